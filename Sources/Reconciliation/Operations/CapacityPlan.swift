/// What a deployment needs for so many purchases, and what ends first. Pure: a load in, figures out.
///
/// A straight line through what was measured (``Measured``), with half of each machine left free: good to a factor of two,
/// which is what a plan can be. Measure again on your own machines before you buy any.
package struct CapacityPlan: Sendable, Equatable {
    /// What is asked of the deployment.
    package struct Load: Sendable, Equatable {
        /// Of all apps together.
        package var purchasesPerDay: Double
        /// The busiest second against the mean one.
        package var peakFactor = 3.0
        /// How many of all need Apple's word: legacy receipts, proofs older than an hour, `confirmWithApple: always`. 0 to 1.
        package var askedShare = 0.1
        /// Calls for each of these; a legacy receipt with unknown purchases takes several.
        package var callsPerAsked = 1.0
        /// How long Apple takes for an answer.
        package var appleMilliseconds = 300.0
        /// What Apple allows each app for each endpoint (apple-facts 3.8; `callsPerSecond`).
        package var callsPerSecond = 50.0
        /// Apps that share the purchases evenly, each with a budget of its own.
        package var apps = 1
        /// How long proofs are kept (`retention.payloads`).
        package var proofDays = 90
        /// For how many days of purchases the database is sized.
        package var historyDays = 365
        /// How long the workers may be away while rings pile up.
        package var outageMinutes = 60.0

        package init(purchasesPerDay: Double) { self.purchasesPerDay = purchasesPerDay }
    }

    /// What one machine did (README, Figures; two cores, everything on them, PostgreSQL 15, RabbitMQ 3.10). Where the
    /// figures swing, the dearer one.
    package enum Measured {
        /// Processor time for a receipt, microseconds: taking and storing it; judging and settling it.
        package static let ingestMicroseconds = 234.0
        package static let workerMicroseconds = 285.0
        /// PostgreSQL's own: the insert, and the settle statement with the fetch before it.
        package static let insertMicroseconds = 70.0
        package static let settleMicroseconds = 110.0
        /// The broker's, for a ring of its own; where many come at once, eight share it.
        package static let brokerMicroseconds = 60.0
        /// The most that one process did, receipts a second; the last with Apple's answers in 2 s and 2,000 calls in flight.
        package static let ingestPerSecond = 5_105.0
        package static let workerPerSecond = 4_458.0
        package static let askingWorkerPerSecond = 937.0
        /// A process at rest, and what 2,000 calls in flight add, MB.
        package static let idleMegabytes = 50.0
        package static let megabytesPerCallInFlight = 0.0615
        /// Confirmed messages a second of one publisher on one quorum queue.
        package static let messagesPerSecond = 25_936.0
        /// `pg_total_relation_size` by receipt of what is kept for ever, after `makegood bench fill --rows 60000`: grants
        /// 489, events 488, transactions 411, receipts 359, outcomes 168, attempts 20.
        package static let rowBytes = 1_935.0
        /// The same of a stored proof: 60 for its index, and a seventh of a page for the kilobyte that a signed transaction
        /// has without its header.
        package static let proofBytes = 1_230.0
    }

    /// How full what we run may be at the peak.
    package static let usedMax = 0.5
    /// The share of Apple's limit that is used (README, Decisions).
    package static let budgetShare = 0.8
    /// So that one may die, or be replaced.
    package static let processesMin = 2
    /// Connections of a process beside its writers; those of `makegood_dashboard`; some for people.
    package static let connectionsPerProcess = 4
    package static let otherConnections = 5 + 10
    /// A pointer is at most 64 bytes; what the broker keeps beside it is not measured: a bound.
    package static let messageBytesMax = 1024.0

    /// Why it cannot grow further, from which number of purchases a day on.
    package struct Limit: Sendable, Equatable {
        package enum Kind: String, Sendable, CaseIterable {
            /// Apple's limit on calls: the purchases that need none go on.
            case apple
            /// One quorum queue, where no rings share a message.
            case broker
            /// A PostgreSQL primary with so many cores as ``CapacityPlan/databaseCoresMax``.
            case database
        }

        package let kind: Kind
        package let purchasesPerDay: Double
    }

    package static let databaseCoresMax = 32.0

    package let load: Load
    package let meanPerSecond: Double
    package let peakPerSecond: Double

    package let ingests: Int
    package let workers: Int
    package let schedulers: Int
    /// Cores of all of them at the peak, half free.
    package let ingestCores: Double
    package let workerCores: Double
    package let workerMegabytes: Double

    package let postgresCores: Double
    package let postgresConnections: Int
    /// Bytes that a day adds for ever, and what it keeps of proofs while they are kept.
    package let rowBytesPerDay: Double
    package let proofBytesPerDay: Double
    package let databaseBytes: Double

    package let brokerCores: Double
    package let brokerConnections: Int
    /// Messages that lie there when the workers have been away for so long.
    package let backlogMessages: Double
    package let backlogBytesMax: Double

    package let callsAtPeak: Double
    package let callsInFlight: Int
    /// Calls a second that all apps together may make.
    package let callBudget: Double

    /// The nearest first.
    package let limits: [Limit]

    package init(_ load: Load) {
        self.load = load
        let mean = load.purchasesPerDay / 86_400
        let peak = mean * load.peakFactor
        let asked = peak * load.askedShare
        (meanPerSecond, peakPerSecond) = (mean, peak)

        func processes(_ perSecond: Double, _ most: Double) -> Int {
            max(Self.processesMin, Int((perSecond / (most * Self.usedMax)).rounded(.up)))
        }
        ingests = processes(peak, Measured.ingestPerSecond)
        // An asking worker's share of its time and a local one's add up.
        workers = processes(
            peak + asked * (Measured.workerPerSecond / Measured.askingWorkerPerSecond - 1), Measured.workerPerSecond)
        schedulers = Self.processesMin

        func cores(_ perSecond: Double, _ microseconds: Double) -> Double {
            perSecond * microseconds / 1_000_000 / Self.usedMax
        }
        ingestCores = cores(peak, Measured.ingestMicroseconds)
        workerCores = cores(peak, Measured.workerMicroseconds)
        let database = Measured.insertMicroseconds + Measured.settleMicroseconds
        postgresCores = cores(peak, database)
        brokerCores = cores(peak, Measured.brokerMicroseconds)

        callBudget = load.callsPerSecond * Self.budgetShare * Double(load.apps)
        callsAtPeak = asked * load.callsPerAsked
        // More than the budget are never out.
        callsInFlight = Int((min(callsAtPeak, callBudget) * load.appleMilliseconds / 1000).rounded(.up))
        workerMegabytes =
            Double(workers) * Measured.idleMegabytes + Double(callsInFlight) * Measured.megabytesPerCallInFlight

        postgresConnections = (ingests + workers + schedulers) * Self.connectionsPerProcess + Self.otherConnections
        brokerConnections = ingests + 2 * workers + schedulers
        rowBytesPerDay = load.purchasesPerDay * Measured.rowBytes
        proofBytesPerDay = load.purchasesPerDay * Measured.proofBytes
        databaseBytes =
            rowBytesPerDay * Double(load.historyDays)
            + proofBytesPerDay * Double(min(load.proofDays, load.historyDays))
        backlogMessages = peak * load.outageMinutes * 60
        backlogBytesMax = backlogMessages * Self.messageBytesMax

        let perDay = 86_400 / load.peakFactor
        let callsPerPurchase = load.askedShare * load.callsPerAsked
        let limits = [
            Limit(kind: .broker, purchasesPerDay: Measured.messagesPerSecond * Self.usedMax * perDay),
            Limit(
                kind: .database,
                purchasesPerDay: Self.databaseCoresMax * Self.usedMax * 1_000_000 / database * perDay),
        ]
        let apple = Limit(kind: .apple, purchasesPerDay: callBudget / callsPerPurchase * perDay)
        self.limits = (callsPerPurchase > 0 ? [apple] + limits : limits)
            .sorted { $0.purchasesPerDay < $1.purchasesPerDay }
    }

    /// What becomes of the purchases that need Apple's word.
    package enum Asking: String, Sendable {
        /// Each is asked about when it comes.
        case atOnce
        /// At the peak they wait in their rows; a day has room for all.
        case waits
        /// More come than may ever be asked about.
        case never
    }

    package var asking: Asking {
        if callsAtPeak <= callBudget { return .atOnce }
        return callsAtPeak / load.peakFactor <= callBudget ? .waits : .never
    }
}
