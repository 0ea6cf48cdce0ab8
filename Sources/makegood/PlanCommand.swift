import ArgumentParser
import Foundation
import Reconciliation

struct PlanCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "plan",
        abstract: "Say what so many purchases a day need: processes, connections, sizes, and what ends first.",
        discussion: """
            A straight line through the figures of deploy/benchmarks.md (two cores, everything on them), with half of \
            everything left free at the peak: good to a factor of two. Reaches no server. Measure on your own machines \
            with deploy/bench.
            """)

    @Option(help: "Purchases of all apps in a day.")
    var purchasesPerDay: Int
    @Option(help: "How long Apple takes for an answer, milliseconds.")
    var appleMs = 300
    @Option(help: "The busiest second against the mean one.")
    var peak = 3.0
    @Option(
        help: "Of 100 purchases, how many need Apple's word: legacy receipts, old proofs, confirmWithApple: always.")
    var askedPercent = 10.0
    @Option(help: "Calls for each of these.")
    var callsPerAsked = 1.0
    @Option(
        help: "Beside 100 purchases, how many big receipts (32 KiB and more) of players who show their past again.")
    var bigPercent = 0.0
    @Option(help: "Calls that a worker may have in flight (MAKEGOOD_APPLE_IN_FLIGHT).")
    var appleInFlight = 64
    @Option(help: "What Apple allows each app and endpoint, calls a second.")
    var callsPerSecond = 50.0
    @Option(help: "Apps that share the purchases evenly.")
    var apps = 1
    @Option(help: "How long proofs are kept, days.")
    var proofDays = 90
    @Option(help: "For how many days of purchases the database is sized.")
    var historyDays = 365
    @Option(help: "How long workers may be away while rings pile up, minutes.")
    var outageMinutes = 60.0
    @Flag(help: "Print JSON.")
    var json = false

    func validate() throws {
        func check(_ holds: Bool, _ problem: String) throws {
            if !holds { throw ValidationError(problem) }
        }
        try check((1...100_000_000_000).contains(purchasesPerDay), "--purchases-per-day must be 1 to 100000000000")
        try check((1...60_000).contains(appleMs), "--apple-ms must be 1 to 60000")
        try check((1...1000).contains(peak), "--peak must be 1 to 1000")
        try check((0...100).contains(askedPercent), "--asked-percent must be 0 to 100")
        try check((0...10_000).contains(bigPercent), "--big-percent must be 0 to 10000")
        try check((1...10_000).contains(appleInFlight), "--apple-in-flight must be 1 to 10000")
        try check((0...100).contains(callsPerAsked), "--calls-per-asked must be 0 to 100")
        try check((0.001...100_000).contains(callsPerSecond), "--calls-per-second must be 0.001 to 100000")
        try check((1...10_000).contains(apps), "--apps must be 1 to 10000")
        try check((1...3650).contains(proofDays), "--proof-days must be 1 to 3650")
        try check((1...3650).contains(historyDays), "--history-days must be 1 to 3650")
        try check((0...10_080).contains(outageMinutes), "--outage-minutes must be 0 to 10080")
    }

    func run() throws {
        var load = CapacityPlan.Load(purchasesPerDay: Double(purchasesPerDay))
        load.appleMilliseconds = Double(appleMs)
        load.peakFactor = peak
        load.askedShare = askedPercent / 100
        load.callsPerAsked = callsPerAsked
        load.bigShare = bigPercent / 100
        load.callsInFlightPerWorker = appleInFlight
        load.callsPerSecond = callsPerSecond
        load.apps = apps
        load.proofDays = proofDays
        load.historyDays = historyDays
        load.outageMinutes = outageMinutes
        let plan = CapacityPlan(load)
        if json { return try JSON.print(JSON.CapacityPlan(plan)) }
        for line in plan.lines { print(line) }
    }
}

extension CapacityPlan {
    /// As a person reads it.
    fileprivate var lines: [String] {
        var lines = [
            "load        \(Self.count(peakPerSecond)) purchases a second at the peak, \(Self.count(meanPerSecond)) on average",
            "ingest      \(ingests) processes, \(Self.cores(ingestCores)) cores in all",
            "workers     \(workers) processes, \(Self.cores(workerCores)) cores and \(Self.count(workerMegabytes)) MB in all",
            "schedulers  \(schedulers) processes",
        ]
        if bigAtPeak > 0 {
            lines.append(
                "bulk lane   \(Self.count(bigAtPeak)) big receipts a second at the peak, of \(Self.count(bigPerSecond))"
                    + " that the workers end")
        }
        lines += [
            "PostgreSQL  \(Self.cores(postgresCores)) cores, \(postgresConnections) connections (max_connections: a fifth more)",
            "            \(Self.bytes(rowBytesPerDay)) a day for ever, \(Self.bytes(proofBytesPerDay)) a day of proofs;"
                + " \(Self.bytes(databaseBytes)) after \(load.historyDays) days",
            "RabbitMQ    \(Self.cores(brokerCores)) cores, \(brokerConnections) connections; at most"
                + " \(Self.count(backlogMessages)) messages, \(Self.bytes(backlogBytesMax)), after"
                + " \(Self.count(load.outageMinutes)) min without workers",
            "Apple       \(Self.count(callsAtPeak)) calls a second at the peak of \(Self.count(callBudget)) that are used of"
                + " its limit, \(callsInFlight) in flight: \(asking.sentence)",
        ]
        if let limit = limits.first {
            lines.append(
                "first limit: \(limit.kind.sentence), from \(Self.count(limit.purchasesPerDay)) purchases a day on")
        }
        return lines
    }

    private static func cores(_ value: Double) -> String { tenths(value) }

    private static func count(_ value: Double) -> String {
        value < 10 ? tenths(value) : Int(value.rounded()).formatted(.number.locale(Locale(identifier: "en")))
    }

    /// What there is a little of is not nothing.
    private static func tenths(_ value: Double) -> String {
        value > 0 && value < 0.1 ? "under 0.1" : String(format: "%.1f", value)
    }

    private static func bytes(_ value: Double) -> String {
        let units = ["B", "kB", "MB", "GB", "TB", "PB"]
        var (value, unit) = (value, 0)
        while value >= 1000, unit < units.count - 1 { (value, unit) = (value / 1000, unit + 1) }
        return "\(String(format: value < 10 ? "%.1f" : "%.0f", value)) \(units[unit])"
    }
}

extension CapacityPlan.Asking {
    fileprivate var sentence: String {
        switch self {
        case .atOnce: "each at once"
        case .waits: "at the peak some wait in their rows, a day has room for all"
        case .never: "more than may ever be asked; raise the limit with Apple, or need its word less often"
        }
    }
}

extension CapacityPlan.Limit.Kind {
    fileprivate var sentence: String {
        switch self {
        case .apple: "Apple's on calls (what needs none goes on)"
        case .broker: "one quorum queue (another vhost or prefix is another queue)"
        case .database: "one PostgreSQL with \(Int(CapacityPlan.databaseCoresMax)) cores"
        }
    }
}

extension JSON {
    struct CapacityPlan: Encodable {
        let peakPerSecond: Double
        let ingests: Int
        let workers: Int
        let schedulers: Int
        let ingestCores: Double
        let workerCores: Double
        let workerMegabytes: Double
        let postgresCores: Double
        let postgresConnections: Int
        let rowBytesPerDay: Double
        let proofBytesPerDay: Double
        let databaseBytes: Double
        let brokerCores: Double
        let brokerConnections: Int
        let backlogMessages: Double
        let bigAtPeak: Double
        let bigPerSecond: Double
        let callsAtPeak: Double
        let callBudget: Double
        let callsInFlight: Int
        let asking: String
        /// Purchases a day, by what ends there.
        let limits: [String: Double]

        init(_ plan: Reconciliation.CapacityPlan) {
            peakPerSecond = plan.peakPerSecond
            (ingests, workers, schedulers) = (plan.ingests, plan.workers, plan.schedulers)
            (ingestCores, workerCores, workerMegabytes) = (plan.ingestCores, plan.workerCores, plan.workerMegabytes)
            (postgresCores, postgresConnections) = (plan.postgresCores, plan.postgresConnections)
            (rowBytesPerDay, proofBytesPerDay) = (plan.rowBytesPerDay, plan.proofBytesPerDay)
            databaseBytes = plan.databaseBytes
            (brokerCores, brokerConnections) = (plan.brokerCores, plan.brokerConnections)
            backlogMessages = plan.backlogMessages
            (bigAtPeak, bigPerSecond) = (plan.bigAtPeak, plan.bigPerSecond)
            (callsAtPeak, callBudget, callsInFlight) = (plan.callsAtPeak, plan.callBudget, plan.callsInFlight)
            asking = plan.asking.rawValue
            limits = Dictionary(uniqueKeysWithValues: plan.limits.map { ($0.kind.rawValue, $0.purchasesPerDay) })
        }
    }
}
