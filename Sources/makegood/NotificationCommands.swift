import ArgumentParser
import Commands
import Encoding
import Ledger
import Support

struct NotificationsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "notifications", abstract: "Work with Apple's notifications.", subcommands: [Rejudge.self])

    struct Rejudge: AsyncParsableCommand {
        static let configuration = CommandConfiguration(
            abstract: "Judge held notifications again, after an upgrade or a mended configuration.",
            discussion: """
                A notification is held if its type is not known to the version that judged it (type_unknown), if no app \
                has its bundle id (app_unknown), or if it cannot be verified any more. Facts in it that could be \
                verified are stored already. As support. Audited, in batches, and safe to repeat.
                """)

        @Option(help: "Only notifications of this app.")
        var app: String?
        @Option(help: "Only notifications of this type, for example UNCLAIM_SEATS.")
        var type: String?
        @Flag(help: "Only count.")
        var dryRun = false

        func run() async throws {
            try await Connections.withDatabase("notifications") { database in
                let repairs = Repairs(database: database, actor: Connections.actor)
                if dryRun {
                    let held = try await repairs.heldNotifications(app, type: type)
                    for row in held { print("\(row.appID ?? "no app") \(row.type) \(row.reason): \(row.count)") }
                    print("\(held.reduce(0) { $0 + $1.count }.counted("notification")) would be judged again")
                } else {
                    let count = try await repairs.rejudgeNotifications(app, type: type)
                    print("\(count.counted("notification is", "notifications are")) judged again")
                }
            }
        }
    }
}
