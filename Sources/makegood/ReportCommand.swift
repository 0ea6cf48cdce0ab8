import ArgumentParser
import Commands
import Ledger
import Support

struct ReportCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "report",
        abstract: "Print the books of a day: what came in, how it ended, what is open, what only one net caught.",
        discussion: """
            Days are UTC. A scheduler keeps the same report of all apps as a row of v_daily_reports each morning. As \
            support; read-only, also on a standby.
            Exit code 0: printed; 2: the day or the app is of no use.
            """)

    @Option(help: "The day, for example 2026-11-29; at most 400 days ago.")
    var day: String
    @Option(help: "Only this app.")
    var app: String?
    @Flag(help: "Print JSON.")
    var json = false

    func run() async throws {
        do {
            let report = try await Connections.withDatabase("report", isReadOnly: true) { database in
                try await DayReport.read(day: day, appID: app, in: database)
            }
            Terminal.show(json ? try report.json : report.text)
        } catch let problem as DayReport.Problem {
            Terminal.tell("\(problem)")
            throw ExitCode.unusableInput
        }
    }
}
