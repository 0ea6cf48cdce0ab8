import AppStoreSimulator
import FaultProxy
import Foundation
import Glibc
import Synchronization

/// Kills processes with kill -9 at random moments; only kills that interrupted something count. The run kills all kinds
/// of process at the same time, each kind in a sequence of its own.
package final class KillRun: Sendable {
    /// The number of processes of each kind: when one is killed, at least one of the others is up.
    private static let members = 3
    /// The most kills of one kind for each kill that must count. Beyond it the kind's kills end: something is wrong
    /// with the run.
    private static let triesPerKill = 4
    /// The delay that a proxy adds to a scheduler's requests. A scheduler works in bursts of a millisecond, which no
    /// kill could meet on purpose.
    private static let schedulerLatency: Duration = .milliseconds(10)
    private static let tellInterval: Duration = .seconds(30)

    private let plan: Matrix.Plan
    private let count: Int
    private let kinds: [Member.Role]
    private let pause: Duration
    private let tell: @Sendable (String) -> Void
    private let tallies = Mutex<[Member.Role: Tally]>([:])

    private struct Tally {
        var kills = 0
        var counted = 0
    }

    /// - Parameters:
    ///   - count: kills that must count, of all kinds together; at least a fifth of them of each kind.
    ///   - pause: the average time from one kill of a kind to the next. Every restart takes CPU time from the load.
    ///   - isAllInOne: whether every process of the deployment has the role `all`, which unites the three roles.
    package init(
        _ plan: Matrix.Plan, count: Int, pause: Duration, isAllInOne: Bool = false,
        tell: @escaping @Sendable (String) -> Void
    ) {
        self.plan = plan
        self.pause = pause
        self.count = count
        kinds = isAllInOne ? [.all] : [.ingest, .worker, .scheduler]
        self.tell = tell
    }

    package func run() async throws -> Matrix.Row {
        tell("seed \(plan.seed), scale \(plan.scale), \(plan.rate) purchases/s, \(count) kills that count")
        let start = ContinuousClock.now
        return try await PrivateServers.run(script: plan.script) { servers in
            var shape = TestDeployment.Shape(
                executable: plan.executable, scale: plan.scale, rate: plan.rate, seed: plan.seed,
                openFiles: plan.openFiles)
            func members(_ kind: Member.Role) -> Int { kinds.contains(kind) ? Self.members : 0 }
            (shape.ingests, shape.workers, shape.schedulers) = (members(.ingest), members(.worker), members(.scheduler))
            shape.alls = members(.all)
            var row = try await TestDeployment.run(shape, on: servers, name: "kills") { world in
                try await DrillRun(world: world, judgesRates: plan.judgesRates).play(drill)
            }
            row.seconds = ((ContinuousClock.now - start) / .seconds(1)).rounded()
            return row
        }
    }

    /// The number of kills of each kind that must count.
    private var least: Int { (count + 4) / 5 }
    private var counted: Int { tallies.withLock { $0.values.map(\.counted).reduce(0, +) } }

    private func tally(_ role: Member.Role) -> Tally { tallies.withLock { $0[role] ?? Tally() } }

    private var drill: Drill {
        Drill(
            "kills", "kill -9 at random moments", expected: "\(count) kills that interrupted something; zero loss",
            killAll)
    }

    @Sendable private func killAll(_ stage: DrillContext) async throws {
        // One ingest in three cannot reach RabbitMQ, so that the schedulers always have something to do.
        stage.ingests.last?.broker.set(.cut)
        var late = FaultProxy.Conditions()
        late.toServer.latency = Self.schedulerLatency
        for scheduler in stage.schedulers {
            scheduler.postgres.set(late)
            scheduler.broker.set(late)
        }
        let (sold, granted) = (stage.world.shop.sales.count, try await stage.world.grants)
        let start = ContinuousClock.now
        let telling = Task { await report(stage.world.shop, sold: sold, since: start) }
        defer { telling.cancel() }
        try await withThrowingTaskGroup(of: Void.self) { group in
            for (index, role) in kinds.enumerated() {
                let random = SplitMix64(seed: plan.seed &+ 100 &+ UInt64(index))
                group.addTask { try await self.kill(role, random, stage) }
            }
            try await group.waitForAll()
        }
        let seconds = (ContinuousClock.now - start) / .seconds(1)
        for role in kinds {
            let tally = tally(role)
            stage.expect(
                "kills of \(role.rawValue)", tally.counted >= least,
                "\(tally.counted) of \(tally.kills) interrupted something")
        }
        let pace = Duration.seconds(seconds / Double(max(1, counted)))
        stage.expect(
            "kills that count", counted >= count, "\(counted) in \(Int(seconds)) s, one every \(pace.short)")
        // Forged purchases were never sold: 19 of 20 purchases are sold.
        let sales = Double(stage.world.shop.sales.count - sold) / seconds
        let grants = Double(try await stage.world.grants - granted) / seconds
        stage.expect(
            "the load came as asked", !plan.judgesRates || sales >= 0.9 * plan.rate,
            "\(Int(sales)) purchases/s sold, \(Int(grants)) granted")
        stage.expectAnswers([0, 503])
    }

    /// Kills one kind until it has its share and all kinds together have enough.
    private func kill(_ role: Member.Role, _ random: SplitMix64, _ stage: DrillContext) async throws {
        var random = random
        let members = stage.world.members(role)
        let triesMax = Self.triesPerKill * count
        try await withThrowingTaskGroup(of: Void.self) { group in
            while tally(role).counted < least || counted < count, tally(role).kills < triesMax {
                try await stage.sleep(pause * Double.random(in: 0..<2, using: &random))
                // One process of the kind always stays up.
                let up = members.filter(\.isUp)
                guard up.count > 1 else { continue }
                let member = up[Int(random.next() % UInt64(up.count))]
                let isCounted = try await stage.strike(member)
                tallies.withLock { tallies in
                    tallies[role, default: Tally()].kills += 1
                    if isCounted { tallies[role, default: Tally()].counted += 1 }
                }
                group.addTask { try await member.start() }
            }
            try await group.waitForAll()
        }
    }

    /// Reports the state of a long run every 30 s, so that a person can end it early.
    private func report(_ shop: PurchaseGenerator, sold: Int, since start: ContinuousClock.Instant) async {
        while true {
            do { try await Task.sleep(for: Self.tellInterval) } catch { return }
            let parts = kinds.map { role in
                let tally = tally(role)
                return "\(role.rawValue) \(tally.counted) of \(tally.kills)"
            }
            let taken = ContinuousClock.now - start
            let sales = Double(shop.sales.count - sold) / (taken / .seconds(1))
            tell(
                "\(taken.short): \(counted) kills count; \(parts.joined(separator: ", ")); \(Int(sales)) purchases/s sold"
            )
        }
    }
}

extension DrillContext {
    /// Kills a process with kill -9 and returns whether that interrupted something. The proxies first hold the servers'
    /// answers and the process is stopped: so the last thing that the proxies saw is the last thing that the process
    /// did, and the process received every answer that the proxies passed on.
    func strike(_ member: Member) async throws -> Bool {
        let address = member.address
        // A process works most of the time or in short bursts: the loop waits for the moment of a burst.
        let end = ContinuousClock.now + .milliseconds(500)
        while !member.work.counts.isWorking, ContinuousClock.now < end {
            try await Task.sleep(for: .microseconds(500), tolerance: .zero)
        }
        let release = member.holdAnswers()
        defer { release() }
        member.process?.send(SIGSTOP)
        try await Task.sleep(for: .milliseconds(20))
        let waiting = address.map { world.traffic.openRequests(at: $0) } ?? 0
        let isWorking = member.work.counts.isWorking || waiting > 0
        // A scheduler's claim interrupts nothing if no row is due.
        let hasDue = try await hasDueRows(member, waiting: waiting)
        interrupt()
        await member.kill()
        return isWorking && hasDue
    }

    /// Whether a scheduler has due rows to find. Always true for other roles, and for a process with messages or
    /// requests in flight.
    private func hasDueRows(_ member: Member, waiting: Int) async throws -> Bool {
        let counts = member.work.counts
        guard member.role == .scheduler || member.role == .all, counts.unconfirmed + counts.unacked + waiting == 0
        else { return true }
        return try await world.count(
            "select count(*) from (select from receipts where due_at <= now() and settled_at is null limit 1) r") > 0
    }
}
