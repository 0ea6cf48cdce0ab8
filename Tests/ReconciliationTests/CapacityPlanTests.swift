import Reconciliation
import Testing

/// Goal: the plan says what the figures say, grows with the load and names the limit that comes first. Method: a table of
/// loads; the measurements themselves, held against the model; what must never fall when the load grows.
@Suite struct CapacityPlanTests {
    private static func plan(
        _ purchasesPerDay: Double, _ change: (inout CapacityPlan.Load) -> Void = { _ in }
    ) -> CapacityPlan {
        var load = CapacityPlan.Load(purchasesPerDay: purchasesPerDay)
        change(&load)
        return CapacityPlan(load)
    }

    @Test(arguments: [
        // Purchases a day, ingests, workers, connections of PostgreSQL and RabbitMQ.
        (1_000, 2, 2, 43, 8), (1_000_000, 2, 2, 43, 8), (10_000_000, 2, 2, 43, 8), (100_000_000, 2, 2, 43, 8),
        (1_000_000_000, 14, 16, 171, 48),
    ])
    func processesAndConnections(
        _ purchases: Int, _ ingests: Int, _ workers: Int, _ postgres: Int, _ broker: Int
    ) {
        let plan = Self.plan(Double(purchases))
        #expect(plan.ingests == ingests)
        #expect(plan.workers == workers)
        #expect(plan.schedulers == 2)
        #expect(plan.postgresConnections == postgres)
        #expect(plan.brokerConnections == broker)
    }

    /// Rates and sizes of one load, by hand: 8,640,000 a day are 100 a second, 300 at the peak.
    @Test func byHand() {
        let plan = Self.plan(8_640_000) { $0.appleMilliseconds = 2000 }
        #expect(plan.meanPerSecond == 100)
        #expect(plan.peakPerSecond == 300)
        #expect(abs(plan.ingestCores - 300 * 234e-6 * 2) < 1e-9)
        #expect(abs(plan.postgresCores - 300 * 180e-6 * 2) < 1e-9)
        let calls = 30 * (2_000_000 / 429.0 - 285 - 110 - 60)
        #expect(abs(plan.workerCores - (300 * 285 + calls) * 1e-6 * 2) < 1e-9)
        // One in ten asks: 30 a second of the 40 that may be, each two seconds long.
        #expect(abs(plan.callsAtPeak - 30) < 1e-9)
        #expect(plan.callBudget == 40)
        #expect(plan.callsInFlight == 60)
        #expect(plan.asking == .atOnce)
        #expect(plan.rowBytesPerDay == 8_640_000 * CapacityPlan.Measured.rowBytes)
        #expect(
            plan.databaseBytes
                == 8_640_000 * (365 * CapacityPlan.Measured.rowBytes + 90 * CapacityPlan.Measured.proofBytes))
        #expect(plan.backlogMessages == 300 * 3600)
        // 400 purchases a second ask 40 times.
        #expect(plan.limits.first?.kind == .apple)
        #expect(abs((plan.limits.first?.purchasesPerDay ?? 0) - 400.0 / 3 * 86_400) < 1)
    }

    @Test(arguments: [
        (1.0, 100, CapacityPlan.Asking.atOnce), (0.1, 1000, .waits), (0.1, 100, .atOnce), (1.0, 1000, .never),
        (0.0, 1_000_000, .atOnce),
    ])
    func asking(_ share: Double, _ peakPerSecond: Int, _ asking: CapacityPlan.Asking) {
        let plan = Self.plan(Double(peakPerSecond) * 86_400 / 3) {
            $0.askedShare = share
            $0.apps = share == 1 && peakPerSecond == 100 ? 3 : 1
        }
        #expect(plan.asking == asking)
        // A budget is never exceeded, so no more calls than that are ever out.
        #expect(Double(plan.callsInFlight) <= (plan.callBudget * 0.3).rounded(.up))
    }

    /// Apple first where its word is needed, the broker's one queue where it is not.
    @Test func theFirstLimit() {
        #expect(Self.plan(1000).limits.map(\.kind).first == .apple)
        let free = Self.plan(1000) { $0.askedShare = 0 }
        #expect(free.limits.map(\.kind) == [.broker, .database])
        #expect(Self.plan(1000) { $0.apps = 10_000 }.limits.first?.kind == .broker)
        // They say when, whatever the load of today.
        #expect(Self.plan(5).limits == Self.plan(5_000_000).limits)
    }

    /// The measured machine had two cores, and stopped at 2,174 purchases a second on the whole way with everything
    /// on them, the load generator too (25 to 40 µs each): the model must call it nearly full.
    @Test func theMeasuredMachineIsFull() {
        let plan = Self.plan(2174 * 86_400 / 3) { $0.askedShare = 0 }
        let cores = plan.ingestCores + plan.workerCores + plan.postgresCores + plan.brokerCores
        let used = cores * CapacityPlan.usedMax + 2174 * 40e-6
        #expect((1.4...2.0).contains(used), "\(used)")
    }

    /// deploy/benchmarks.md, More workers, `deploy/bench fleet`: 64 calls in flight a worker, Apple at 300 ms, two cores
    /// for everything. Within 20 % where the calls in flight are what bounds it. Four and eight workers: the plan says
    /// that the machine does; its figure is that of eight, and four are within 20 % of it.
    @Test(arguments: [
        (1, 198.0, CapacityPlan.Bound.callsInFlight, 20, 6), (2, 365, .callsInFlight, 24, 8),
        (4, 524, .machine, 32, 12), (8, 429, .machine, 48, 20),
    ])
    func theMeasuredFleet(
        _ workers: Int, _ drained: Double, _ bound: CapacityPlan.Bound, _ postgres: Int, _ broker: Int
    ) {
        let asked = CapacityPlan.asked(
            workers: workers, callsInFlightPerWorker: 64, appleMilliseconds: 300, cores: CapacityPlan.Measured.cores)
        #expect((0.8...1.2).contains(asked.perSecond / drained), "\(asked.perSecond)")
        #expect(asked.bound == bound)
        let connections = CapacityPlan.connections(ingests: 2, workers: workers, schedulers: 2)
        // The ingests of that version had none for lists.
        #expect(connections.postgres == postgres + 2 * CapacityPlan.connectionsForLists)
        #expect(connections.broker == broker)
    }

    /// The same figures from the other side: what the plan gives the load that two cores carried, with nothing left
    /// free, are two cores; and memory, with 64 and with 2,000 calls in flight.
    @Test func theMeasuredWorkers() {
        let plan = Self.plan(429 * 86_400 / 3) {
            $0.askedShare = 1
            $0.apps = 100
        }
        let cores = (plan.workerCores + plan.brokerCores) * CapacityPlan.usedMax + 429 * 110e-6
        #expect(abs(cores - 2) < 0.01, "\(cores)")
        // 128.7 calls out, of 300 ms each: the places of two workers.
        #expect(plan.callsInFlight == 129)
        #expect(plan.workers == 5)
        for (calls, megabytes) in [(64.0, 64.0), (2000, 173)] {
            let plan = Self.plan(calls * 86_400 / 3) {
                $0.askedShare = 1
                $0.appleMilliseconds = 1000
                $0.apps = 100
                $0.callsInFlightPerWorker = 10_000
            }
            let worker = plan.workerMegabytes - Double(plan.workers - 1) * CapacityPlan.Measured.workerMegabytes
            #expect(abs(worker - megabytes) < 1, "\(worker)")
        }
    }

    /// Calls that are out take no time of a worker's, and need a place all the same.
    @Test func aSlowApple() {
        let workers = [64, 640].map { places in
            Self.plan(100_000_000) {
                $0.apps = 100
                $0.appleMilliseconds = 2000
                $0.callsInFlightPerWorker = places
            }.workers
        }
        // 347 calls a second, two seconds each: the places of 10.9 workers, half of them used; or one worker's time.
        #expect(workers == [22, 3])
    }

    /// The bulk lane: two at a time in each worker, whatever it does beside that.
    @Test func bigReceipts() {
        let without = Self.plan(8_640_000)
        let plan = Self.plan(8_640_000) { $0.bigShare = 0.1 }
        #expect(abs(plan.bigAtPeak - 30) < 1e-9)
        // 300 / 4458 + 30 / 20 and the calls: 1.6 workers' time, of which half is used.
        #expect(plan.workers == 4)
        #expect(plan.bigPerSecond == 80)
        #expect(without.bigAtPeak == 0)
        #expect(abs(plan.workerCores - without.workerCores - 30 * 0.05 * 2) < 1e-9)
        #expect(abs(plan.postgresCores - without.postgresCores - 30 * 0.05 * 2) < 1e-9)
        #expect(plan.proofBytesPerDay > 10 * without.proofBytesPerDay)
        #expect(abs(plan.backlogMessages - 330 * 3600) < 1)
        for kind in CapacityPlan.Limit.Kind.allCases where kind != .apple {
            let limits = [plan, without].map { $0.limits.first { $0.kind == kind }?.purchasesPerDay ?? 0 }
            #expect(limits[0] < limits[1])
        }
    }

    @Test func moreNeverNeedsLess() {
        var last = Self.plan(1)
        for exponent in 1...40 {
            let plan = Self.plan(Double(1 << exponent))
            #expect(plan.ingests >= last.ingests && plan.workers >= last.workers)
            #expect(plan.postgresConnections >= last.postgresConnections)
            #expect(plan.databaseBytes > last.databaseBytes && plan.callsInFlight >= last.callsInFlight)
            last = plan
        }
    }
}
