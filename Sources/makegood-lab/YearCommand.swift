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
            fail to pay, change products, share, switch users and delete the app. \
            Of the posts and of the notifications 30 % are lost; others come late, twice or in another order. Ingest \
            is down for three days, and processes are killed.
            At the end every grant, owner, revocation, subscription, entitlement and event must be as the App Store's \
            books say, to the unit, and all invariants must hold. Entries that nobody told are counted, by \
            the nets that can tell them. Exit 0 only if nothing differs. The seed repeats the customers' year, and not \
            the races between processes.
            With --without a net is off. The other nets must find their own entries all the same.
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
