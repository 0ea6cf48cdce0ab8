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
        /// Big receipts that are posted beside each purchase, by players who show their past again: those of the bulk
        /// lane (`Lane.bulkBytesMin`), none where apps send signed transactions.
        package var bigShare = 0.0
        /// How long Apple takes for an answer.
        package var appleMilliseconds = 300.0
        /// What a worker may have in flight at Apple (`MAKEGOOD_APPLE_IN_FLIGHT`).
        package var callsInFlightPerWorker = 64
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

    /// What one machine did (deploy/benchmarks.md; two cores, everything on them, PostgreSQL 15, RabbitMQ 3.10). Where
    /// the figures swing, the dearer one.
    package enum Measured {
        /// The machine's.
        package static let cores = 2.0
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
        /// Purchases a second that Apple was asked about where its answers in 300 ms no longer bounded them: eight
        /// workers, and everything on both cores, the stand-in for Apple too.
        package static let askedMachinePerSecond = 429.0
        /// Receipts of 300 known purchases that were posted again: that came in beside everything else, and that one
        /// worker ended, two at a time, both cores busy.
        package static let bigIngestPerSecond = 241.0
        package static let bigWorkerPerSecond = 20.0
        /// Such a receipt as it is posted: 40 purchases are 32 KiB.
        package static let bigProofBytes = 245_000.0
        /// A worker without calls, and what each in flight adds, MB: 64 with 64 of them, 173 with 2,000.
        package static let workerMegabytes = 60.0
        package static let megabytesPerCallInFlight = 0.0565
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
    /// Processor time that a call to Apple costs beside what a purchase costs anyway, microseconds. All of it is
    /// counted as the worker's, though the stand-in for Apple had its part: that was not measured apart.
    package static let callMicroseconds =
        Measured.cores * 1_000_000 / Measured.askedMachinePerSecond - Measured.workerMicroseconds
        - Measured.settleMicroseconds - Measured.brokerMicroseconds
    /// The same for a big receipt, both cores at most: how worker and PostgreSQL divide it was not measured, so each
    /// has half. And for taking one.
    package static let bigHalfMicroseconds = Measured.cores * 1_000_000 / Measured.bigWorkerPerSecond / 2
    package static let bigIngestMicroseconds = Measured.cores * 1_000_000 / Measured.bigIngestPerSecond
    /// The share of Apple's limit that is used (Reconciliation.docc/AppleLimits.md).
    package static let budgetShare = 0.8
    /// So that one may die, or be replaced.
    package static let processesMin = 2
    /// Connections of a process, its writers among them; those of an ingest for lists; those of `makegood_dashboard`, and
    /// some for people.
    package static let connectionsPerProcess = 4
    package static let connectionsForLists = ListReader.connections
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

    /// Big receipts a second at the peak, and what the workers end of them.
    package let bigAtPeak: Double
    package let bigPerSecond: Double

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
        let big = peak * load.bigShare
        (meanPerSecond, peakPerSecond, bigAtPeak) = (mean, peak, big)

        callBudget = load.callsPerSecond * Self.budgetShare * Double(load.apps)
        callsAtPeak = peak * load.askedShare * load.callsPerAsked
        // More than the budget are never out.
        let calls = min(callsAtPeak, callBudget)
        let callsOut = calls * load.appleMilliseconds / 1000
        callsInFlight = Int(callsOut.rounded(.up))

        func processes(_ busy: Double) -> Int { max(Self.processesMin, Int((busy / Self.usedMax).rounded(.up))) }
        ingests = processes(peak / Measured.ingestPerSecond + big / Measured.bigIngestPerSecond)
        // The shares of its time add up; what is out at Apple takes none of it, and has a bound of its own.
        let busy =
            peak / Measured.workerPerSecond + big / Measured.bigWorkerPerSecond
            + calls * (1 / Measured.askingWorkerPerSecond - 1 / Measured.workerPerSecond)
        workers = processes(max(busy, callsOut / Double(load.callsInFlightPerWorker)))
        bigPerSecond = Double(workers) * Measured.bigWorkerPerSecond
        schedulers = Self.processesMin

        func cores(_ microseconds: Double...) -> Double { microseconds.reduce(0, +) / 1_000_000 / Self.usedMax }
        ingestCores = cores(peak * Measured.ingestMicroseconds, big * Self.bigIngestMicroseconds)
        workerCores = cores(
            peak * Measured.workerMicroseconds, calls * Self.callMicroseconds, big * Self.bigHalfMicroseconds)
        let database =
            Measured.insertMicroseconds + Measured.settleMicroseconds + load.bigShare * Self.bigHalfMicroseconds
        postgresCores = cores(peak * database)
        brokerCores = cores((peak + big) * Measured.brokerMicroseconds)
        workerMegabytes =
            Double(workers) * Measured.workerMegabytes + Double(callsInFlight) * Measured.megabytesPerCallInFlight

        let connections = Self.connections(ingests: ingests, workers: workers, schedulers: schedulers)
        postgresConnections = connections.postgres + Self.otherConnections
        brokerConnections = connections.broker
        rowBytesPerDay = load.purchasesPerDay * Measured.rowBytes
        proofBytesPerDay =
            load.purchasesPerDay * (Measured.proofBytes + load.bigShare * Measured.bigProofBytes)
        databaseBytes =
            rowBytesPerDay * Double(load.historyDays)
            + proofBytesPerDay * Double(min(load.proofDays, load.historyDays))
        backlogMessages = (peak + big) * load.outageMinutes * 60
        backlogBytesMax = backlogMessages * Self.messageBytesMax

        let perDay = 86_400 / load.peakFactor
        let callsPerPurchase = load.askedShare * load.callsPerAsked
        let limits = [
            Limit(
                kind: .broker,
                purchasesPerDay: Measured.messagesPerSecond * Self.usedMax / (1 + load.bigShare) * perDay),
            Limit(
                kind: .database,
                purchasesPerDay: Self.databaseCoresMax * Self.usedMax * 1_000_000 / database * perDay),
        ]
        let apple = Limit(kind: .apple, purchasesPerDay: callBudget / callsPerPurchase * perDay)
        self.limits = (callsPerPurchase > 0 ? [apple] + limits : limits)
            .sorted { $0.purchasesPerDay < $1.purchasesPerDay }
    }

    /// What so many processes open; to the broker, each worker one that takes and one that publishes.
    package static func connections(
        ingests: Int, workers: Int, schedulers: Int
    ) -> (postgres: Int, broker: Int) {
        (
            (ingests + workers + schedulers) * connectionsPerProcess + ingests * connectionsForLists,
            ingests + 2 * workers + schedulers
        )
    }

    /// What ends a backlog of purchases that each need one call, faster than which it does not.
    package enum Bound: Sendable {
        /// What the workers may have in flight at Apple, and how long it takes.
        case callsInFlight
        /// The processors of the one machine that everything is on.
        case machine
    }

    /// How many such purchases a second end, with no limit of Apple's, and why not more.
    package static func asked(
        workers: Int, callsInFlightPerWorker: Int, appleMilliseconds: Double, cores: Double
    ) -> (perSecond: Double, bound: Bound) {
        let answered = Double(workers * callsInFlightPerWorker) * 1000 / appleMilliseconds
        let worked = Measured.askedMachinePerSecond * cores / Measured.cores
        return answered < worked ? (answered, .callsInFlight) : (worked, .machine)
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
