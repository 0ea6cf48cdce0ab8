import AppStoreSimulator
import Foundation
import Ledger
import Postgres
import Purchases
import RabbitMQ
import Support
import WorkQueue

/// One drill from the first purchase to the last invariant.
struct DrillRun: Sendable {
    private static let calm: Duration = .seconds(3)
    private static let recoveryMax: Duration = .seconds(60)
    private static let restMax: Duration = .seconds(150)

    let world: TestDeployment
    /// Whether the rate after a fault counts; where other work shares the machine, the rate says nothing.
    var judgesRates = true

    func play(_ drill: Drill) async throws -> Matrix.Row {
        let load = Task { await world.traffic.run() }
        do {
            let row = try await playUnderLoad(drill)
            load.cancel()
            await load.value
            return row
        } catch {
            load.cancel()
            await load.value
            throw error
        }
    }

    private func playUnderLoad(_ drill: Drill) async throws -> Matrix.Row {
        // The first second is a warm-up.
        try await Task.sleep(for: .seconds(1))
        let before = try await rate(over: Self.calm)
        let stage = DrillContext(world)
        var failure: (any Error)?
        do { try await drill.run(stage) } catch { failure = error }
        try Task.checkCancellation()
        // A drill that failed may have left a server stopped or down.
        if failure != nil { try await world.servers.restore() }
        try await world.endFaults()
        world.traffic.set(rate: world.shape.rate)
        world.traffic.set(PurchaseGenerator.Mix())
        world.traffic.resume()
        let (ratio, recovery) = try await recover(to: before)
        if drill.isTimed, judgesRates { stage.expect("80 % of the rate before", ratio >= 0.8, "\(ratio)") }
        world.traffic.stop()
        try await stage.expect("every app has its answer", within: .seconds(120)) { world.traffic.journal.open == 0 }
        try await rest(stage)
        let violations = try await audit(stage)
        var row = Matrix.Row(fault: drill.id, done: drill.name, expected: drill.expected, outcome: .passed)
        row.checks = stage.expectations.map { .init(expected: $0.what, seen: $0.seen, holds: $0.holds) }
        if let failure { row.checks.append(.init(expected: "the drill runs", seen: "\(failure)", holds: false)) }
        for surprise in world.traffic.journal.surprises {
            row.checks.append(.init(expected: "no surprise", seen: surprise, holds: false))
        }
        let answers = stage.answers
        (row.requests, row.troubles) = (answers.count, answers.troubleText)
        (row.recoveryRatio, row.recoverySeconds) = (ratio, recovery)
        row.violations = violations
        row.receipts = try await world.count("select count(*) from receipts")
        if !violations.isEmpty || row.checks.contains(where: { !$0.holds }) { row.outcome = .failed }
        return row
    }

    /// The number of grants a second.
    private func rate(over time: Duration) async throws -> Double {
        let (first, start) = (try await world.grants, ContinuousClock.now)
        try await Task.sleep(for: time)
        return Double(try await world.grants - first) / ((ContinuousClock.now - start) / .seconds(1))
    }

    /// Waits until grants come at 80 % of the earlier rate, measured over three seconds. Returns the last rate as a
    /// share of the earlier one, and after how many seconds it was reached.
    private func recover(to before: Double) async throws -> (ratio: Double, seconds: Double?) {
        let start = ContinuousClock.now
        var ratio = 0.0
        repeat {
            let at = ContinuousClock.now
            // The runner's own connection to the database may not be back yet.
            guard let now = try? await rate(over: Self.calm) else {
                try await Task.sleep(for: .milliseconds(200))
                continue
            }
            ratio = ((now / max(before, 0.1)) * 100).rounded() / 100
            if ratio >= 0.8 || !judgesRates { return (ratio, (((at - start) / .seconds(1)) * 10).rounded() / 10) }
        } while ContinuousClock.now - start < Self.recoveryMax
        return (ratio, nil)
    }

    /// Expects that every receipt has a verdict and that no worker holds a message.
    private func rest(_ stage: DrillContext) async throws {
        try await stage.expect("at rest", within: Self.restMax) {
            try await world.count(
                """
                select (select count(*) from receipts where state = 'received')
                  + (select count(*) from notifications where state = 'received') + (select count(*) from chain_marks)
                """) == 0
                && world.members.allSatisfy { $0.work.counts.unacked == 0 }
        }
        let open = try await world.texts(
            """
            select concat_ws(' ', kind, coalesce(reason, '-'), 'attempt', attempt, 'rescues', rescues, 'due in',
              round(extract(epoch from due_at - now())), 's') from receipts where state = 'received' limit 5
            """)
        let unacked = world.members.map(\.work.counts.unacked).reduce(0, +)
        if !open.isEmpty || unacked > 0 {
            stage.expect("nothing is left", false, "\(unacked) unacked; \(open.joined(separator: "; "))")
        }
        let parked = try await world.texts(
            "select reason || ' ' || count(*) from receipts where state = 'parked' group by reason")
        stage.expect("nothing is parked", parked.isEmpty, parked.joined(separator: ", "))
        try await brokerAtRest(stage)
        try await stage.auditDeliveries()
    }

    /// Expects that no message waits and that no purchase is a dead letter (I8, I17).
    private func brokerAtRest(_ stage: DrillContext) async throws {
        let publisher = try await stage.publisher()
        do {
            try await stage.expect("no message waits", within: Self.recoveryMax) {
                for lane in Lane.allCases {
                    if try await publisher.depth(of: world.queues.verify(lane)) > 0 { return false }
                }
                return true
            }
            let letters = try await DeadLetters(
                broker: try BrokerConfiguration(url: world.servers.amqpURL), queues: world.queues,
                publisher: publisher, database: world.database, logger: DrillContext.quiet
            ).look(at: Int(UInt16.max))
            let open = letters.flatMap(\.open).filter { $0.state != .parked }
            let strange = letters.count { !$0.isReadable }
            stage.expect(
                "dead letters are poison, or of receipts with a verdict", open.isEmpty && strange <= stage.poison,
                "\(letters.count) letters; \(open.count) point at open receipts, \(strange) at none")
        } catch {
            stage.expect("the broker can be asked", false, "\(error)")
        }
        await publisher.close()
    }

    /// Checks all invariants against the journal of the apps and the ledger of the App Store, and what was told of each
    /// chain against its facts.
    private func audit(_ stage: DrillContext) async throws -> [String] {
        let calls = world.store.calls().compactMap { call -> Witness.Call? in
            guard let asked = call.receiptHash ?? call.transactionIds.first else { return nil }
            // Sweeps and answers about refunds ask about a chain or a customer. Their tries are not those of a proof.
            let subject = call.service.asksAboutProof ? asked : "\(call.service.rawValue) \(asked)"
            let start = Date(timeIntervalSince1970: Double(call.at) / 1000)
            let end = start.addingTimeInterval(Double(call.milliseconds) / 1000)
            let wait = call.status == 429 ? stage.retryAfter : nil
            return Witness.Call(
                subject: subject, startedAt: start, endedAt: end, httpStatus: call.status,
                retryAt: wait.map { end.addingTimeInterval($0 / .seconds(1)) })
        }
        // Over millions of rows an invariant takes a long time.
        let database = world.patientDatabase()
        let witness = Witness(database: database)
        try await witness.load(
            journal: world.traffic.journal.entries, ledger: world.shop.sales, calls: calls,
            limits: .init(
                callsAtOnce: world.judges * 64 * stage.callsAtOnceFactor,
                interruptions: stage.interruptions, workers: world.judges))
        let violations = try await Invariant.check(
            database, span: .all, witness: true, scale: world.shape.scale)
        // Chains that the version before followed up were told by its rules.
        let told =
            world.shape.previous == nil ? try await FollowUpCheck.run(database, span: .recent).violation : nil
        try await witness.drop()
        await database.close()
        return (violations + [told].compactMap(\.self)).map(\.text)
    }
}

extension Drill {
    /// Whether the rate afterwards is judged; not where the load itself is the fault.
    fileprivate var isTimed: Bool { number != 27 }
}

extension SimulatedService {
    /// Whether workers call it about a receipt's proof, so that the tries of receipts bound the calls.
    fileprivate var asksAboutProof: Bool {
        switch self {
        case .subscriptionStatuses, .refundHistory, .refundHistoryV1, .consumption, .consumptionV1: false
        default: true
        }
    }
}
