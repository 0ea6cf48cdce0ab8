import Adversary
import ArgumentParser
import Commands
import Foundation
import Purchases

/// `makegood-lab year`: a year of an app's customers in minutes, compared with the App Store's books.
struct YearCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "year",
        abstract: "Live through a year with simulated customers, and compare the ledger with the App Store's books.",
        discussion: """
            Starts private PostgreSQL and RabbitMQ, a simulated App Store, an ingest, 2 workers and a scheduler of the \
            program, all on one clock that steps ahead. The customers buy, subscribe, get refunds and lose them again, \
            fail to pay, change products, share, switch users and delete the app, some right after the first purchase. \
            Of the posts 30 % are lost, and of the notifications 18 % fail at Apple and 12 % are never tried; others \
            come late, twice or in another order. Ingest is down for three days, for a day Apple answers the questions \
            of the sweeps with 429, and processes are killed. Some users are erased, and what was rejected is judged \
            again.
            At the end these must be as the App Store's books say, to the unit: each grant with its owner, the goods \
            that are left of it, and the one event that told it; the events that took goods back or gave them back; \
            the state of each subscription and the last event of it; the period and the end that each \
            subscription.started and subscription.renewed names; the entitlements of each user. Each notification that \
            failed at Apple must have come from its notification history. All invariants must hold, what was told of \
            each chain must follow from its facts, and the sealed rows must be as they were sealed.
            States that came and went between two looks have no event, and the books do not say which: the number of \
            events about a subscription is not compared. Nor are purchases of erased users. What nobody told is \
            counted, by the nets that can tell it. What was told and has no owner that anybody can know must wait for \
            one, and is listed. Exit 0 only if nothing differs. The seed repeats the customers' year, and not the \
            races between processes.
            With --without a net is off. What the others must find, they must find all the same.
            """)

    @Option(help: ArgumentHelp("How many customers.", valueName: "number"))
    var customers = 1000

    @Option(help: ArgumentHelp("How many days.", valueName: "number"))
    var days = 365

    @Option(
        help: ArgumentHelp(
            "Start of all random numbers. (default: another one each time, and printed)", valueName: "number"))
    var seed: UInt64?

    @Option(help: ArgumentHelp("A net that is off: \(Self.netNames). May stand several times.", valueName: "net"))
    var without: [String] = []

    @Flag(help: "After that, once more without each net in turn.")
    var each = false

    @Option(help: ArgumentHelp("The length of a step of the clock.", valueName: "hours"))
    var step = 12

    @Option(help: ArgumentHelp("Factor on the pauses of the processes' loops.", valueName: "factor"))
    var scale = 0.05

    @OptionGroup var place: PlaceOptions

    private static var netNames: String { Net.allCases.map(\.rawValue).joined(separator: ", ") }

    func validate() throws {
        guard (1...100_000).contains(customers) else { throw ValidationError("--customers must be 1 to 100000") }
        guard (1...600).contains(days) else { throw ValidationError("--days must be 1 to 600") }
        guard (1...24).contains(step), 24 % step == 0 else {
            throw ValidationError("--step must divide 24 hours")
        }
        guard scale > 0, scale <= 1 else { throw ValidationError("--scale must be above 0, at most 1") }
        for net in without where Net(rawValue: net) == nil {
            throw ValidationError("--without: there is no net \(net): \(Self.netNames)")
        }
    }

    func run() async throws {
        let seed = seed ?? .random(in: 0...999_999)
        Terminal.tell("seed \(seed)")
        let off = Set(without.compactMap { Net(rawValue: $0) })
        var isPassed = true
        for nets in [off] + (each ? Net.allCases.filter { !off.contains($0) }.map { off.union([$0]) } : []) {
            let report = try await live(seed, without: nets)
            Terminal.show(report.text)
            isPassed = isPassed && report.isPassed
        }
        if !isPassed { throw ExitCode.failure }
    }

    private func live(_ seed: UInt64, without nets: Set<Net>) async throws -> YearReport {
        var setup = YearRun.Setup(
            terms: .init(customers: customers, days: days, seed: seed), script: place.local,
            executable: place.program, openFiles: try ChaosOptions.openFiles)
        setup.without = nets
        setup.stepHours = step
        setup.scale = scale
        let chosen = setup
        return try await Interrupted.ends { try await YearRun(chosen) { Terminal.tell($0) }.run() }
    }
}
