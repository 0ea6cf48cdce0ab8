import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Settings
@testable import Support

/// Goal: payloads go when their day is old enough, payloads with a reason to stay longer stay for exactly as long as
/// that reason, hashes and facts stay for ever, and ingest is not disturbed (S3-47, P17).
///
/// Method: real rows whose dates are moved into the past, in partitions of those days; then single steps of retention
/// by the function that the scheduler calls.
@Suite(.timeLimit(.minutes(8))) struct PayloadRetentionTests {
    static let days = 90

    @Test("P17, S3-47: each reason to stay, and each that is none")
    func reasons() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var expected: [UUID: String] = [:]
            for state in ["received", "held", "parked"] {
                let posted = try await lab.post()
                try await lab.run("update receipts set state = '\(state)' where id = '\(posted.id)'")
                try await lab.age(posted, days: 100)
                expected[posted.id] = "open"
            }
            for (days, reason) in [(100, "rejected"), (179, "rejected"), (181, "gone")] {
                let posted = try await lab.post()
                try await lab.settle(lab.verdict(posted, .receipt(.rejected(.untrustedRoot))))
                try await lab.age(posted, days: days)
                expected[posted.id] = reason
            }
            for (days, reason) in [(Self.days - 1, "day"), (Self.days, "day"), (Self.days + 1, "gone")] {
                let posted = try await lab.post(kind: .signedTransaction)
                try await lab.settle(posted, .purchase("signed \(days)"))
                try await lab.age(posted, days: days)
                expected[posted.id] = reason
            }
            let chains: [(String, Proof.Kind, String, Int?, String)] = [
                ("live", .receipt, "game", 10, "chain"), ("expired 59", .receipt, "game", -59, "chain"),
                ("expired 61", .receipt, "game", -61, "gone"), ("credentials", .receipt, "asking", 10, "gone"),
                ("signed", .signedTransaction, "game", 10, "gone"), ("consumable", .receipt, "game", nil, "gone"),
            ]
            for (name, kind, app, expiry, reason) in chains {
                let posted = try await lab.post(app: app, kind: kind)
                try await lab.settle(posted, .subscription(name, expiresInDays: expiry))
                try await lab.age(posted, days: 120)
                expected[posted.id] = reason
            }
            // The older receipt of a chain goes; the newest stays, although it granted nothing.
            let old = try await lab.post()
            try await lab.settle(old, .subscription("c1", of: "c", expiresInDays: -20))
            try await lab.age(old, days: 130)
            let new = try await lab.post()
            try await lab.settle(
                new, .subscription("c1", of: "c", expiresInDays: -20), .subscription("c2", of: "c", expiresInDays: 9))
            try await lab.age(new, days: 125)
            let restored = try await lab.post()
            try await lab.settle(restored, .subscription("c2", of: "c", expiresInDays: 9))
            #expect(try await lab.state(restored) == "already_granted")
            try await lab.age(restored, days: 95)
            expected[old.id] = "gone"
            expected[new.id] = "gone"
            expected[restored.id] = "chain"

            let (records, broken) = (try await lab.records, try await lab.broken)
            try await lab.retain()
            for (id, reason) in expected { #expect(try await lab.place(id) == reason, "\(id)") }
            // Hashes, decoded facts, verdicts, grants and events are unchanged, and every invariant holds as before.
            #expect(try await lab.records == records)
            #expect(records.count { $0.hasPrefix("transaction ") } > 8)
            #expect(try await lab.broken == broken)
            #expect(try await lab.oldestDay() == Self.days)
            try await lab.expectSound()
            for (id, reason) in expected {
                let row = try #require(try await lab.ledger.fetch(id))
                #expect(row.hasPayload == (reason != "gone"), "read wherever it lies")
                if row.hasPayload { #expect(try await lab.isPosted(row.proof.payload, as: id)) }
            }
        }
    }

    @Test("each reason ends: what stays without one goes, what has another stays for that")
    func ends() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let open = try await lab.post()
            let turned = try await lab.post()
            let rejected = try await lab.post()
            try await lab.settle(lab.verdict(rejected, .receipt(.rejected(.wrongApp))))
            let chained = try await lab.post()
            try await lab.settle(chained, .subscription("a", expiresInDays: 5))
            let renewed = try await lab.post()
            try await lab.settle(renewed, .subscription("b", expiresInDays: 5))
            let asked = try await lab.post(app: "soon")
            try await lab.settle(asked, .subscription("d", expiresInDays: 5))
            let all = [open, turned, rejected, chained, renewed, asked]
            for posted in all { try await lab.age(posted, days: 100) }
            try await lab.retain()
            for posted in all { #expect(try await lab.place(posted.id) != "gone") }
            try await lab.lookAgain()
            for posted in all { #expect(try await lab.place(posted.id) != "gone", "the reason is still there") }

            try await lab.settle(open, .purchase("t1"))
            try await lab.settle(lab.verdict(turned, .receipt(.rejected(.signature))))
            try await lab.run(
                "update receipts set settled_at = now() - interval '181 days' where id = '\(rejected.id)'")
            for chain in ["a", "b"] {
                try await lab.run(
                    """
                    update transactions set expires_at = now() - interval '61 days'
                    where original_transaction_id = '\(chain)'
                    """)
            }
            // The chain was renewed in the meantime, by a source that is not a receipt: the last expiry of the chain
            // counts.
            let notified = try await lab.post(kind: .signedTransaction)
            try await lab.settle(notified, .subscription("b2", of: "b", expiresInDays: 20))
            try await lab.lookAgain(asking: ["asking", "soon"])
            #expect(try await lab.place(open.id) == "gone")
            #expect(try await lab.place(turned.id) == "rejected")
            #expect(try await lab.place(rejected.id) == "gone")
            #expect(try await lab.place(chained.id) == "gone")
            #expect(try await lab.place(renewed.id) == "chain")
            #expect(try await lab.place(asked.id) == "gone", "the app has credentials now")
            #expect(try await lab.number("select count(*) from kept_chains") == 1)

            // A receipt that is only judged now becomes the chain's newest.
            let newer = try await lab.post()
            try await lab.settle(newer, .subscription("b2", of: "b", expiresInDays: 20))
            try await lab.age(newer, days: 95)
            try await lab.retain()
            #expect(try await lab.place(newer.id) == "chain")
            try await lab.retain()
            #expect(try await lab.place(renewed.id) == "gone")
            try await lab.expectSound()
        }
    }

    @Test("a crash in any step, and a reader that hinders the drop, change nothing but the time")
    func crash() async throws {
        try await LedgerLab.with(connections: 3, endsSound: false) { lab in
            let open = try await lab.post()
            let granted = try await lab.post()
            try await lab.settle(granted, .purchase("t1"))
            for posted in [open, granted] { try await lab.age(posted, days: 100) }
            // The session runs the whole step, and then does not commit.
            try await lab.withSession { session in
                try await session.run(Statement<Void, Void>("test.begin", "begin"))
                let step = try #require(try await session.run(Statements.retainPayloads, .test()).first)
                #expect(step.droppedDay != nil && step.kept == 1)
                let pid =
                    try await session.run(
                        Statement<Void, Int>(
                            "test.pid", "select pg_backend_pid()", read: { row throws(PostgresError) in try row.int(0) }
                        )
                    ).first ?? 0
                try await lab.run("select pg_terminate_backend(\(pid))")
            }
            #expect(try await lab.place(open.id) == "day")
            #expect(try await lab.place(granted.id) == "day")
            // The payload is moved, and then another session reads for long, for example a dump.
            try await lab.withSession { reader in
                try await reader.run(Statement<Void, Void>("test.begin", "begin"))
                try await reader.run(Statement<Void, Void>("test.read", "select count(*) from payloads"))
                for _ in 0..<3 {
                    let step = try #require(try await lab.ledger.run(Statements.retainPayloads, .test()).first)
                    #expect(step.droppedDay == nil && !step.isMore)
                }
                #expect(try await lab.place(open.id) == "open")
                #expect(try await lab.place(granted.id) == "day")
                let posted = try await lab.post()
                #expect(try await lab.ledger.fetch(posted.id)?.hasPayload == true, "ingest goes on")
                try await reader.run(Statement<Void, Void>("test.commit", "commit"))
            }
            let step = try #require(try await lab.ledger.run(Statements.retainPayloads, .test()).first)
            #expect(step.droppedDay != nil && step.judged == 0, "what was judged stays judged")
            #expect(try await lab.place(granted.id) == "gone")
            #expect(try await lab.number("select count(*) from payload_passes") == 0)
            try await lab.expectSound()
        }
    }

    @Test("reopened between the judging and the drop: the payload stays")
    func reopened() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let repairs = Repairs(database: lab.database, actor: "ann")
            var old: [Posted] = []
            for _ in 0..<3 {
                let posted = try await lab.post()
                try await lab.settle(lab.verdict(posted, .receipt(.rejected(.wrongApp))))
                try await lab.age(posted, days: 200)
                old.append(posted)
            }
            // Two of the three payloads may go.
            _ = try await lab.ledger.run(Statements.retainPayloads, .test(batch: 2))
            #expect(try await lab.number("select count(*) from payload_passes") == 1)
            let reopened = try #require(old.map(\.id).min { $0.uuidString < $1.uuidString })
            try await lab.run("update receipts set reason = 'wrong_environment' where id = '\(reopened)'")
            #expect(try await repairs.rejudge("game", reason: "wrong_environment", since: nil) == 1)
            try await lab.retain()
            #expect(try await lab.place(reopened) == "open")
            let payload = try #require(try await lab.ledger.fetch(reopened)).proof.payload
            #expect(try await lab.isPosted(payload, as: reopened))
            // The other payloads are gone: these receipts cannot be judged, and the command says so.
            let counts = try await repairs.countRejected("game", reason: nil, since: nil)
            #expect(counts == [.init(reason: "wrong_app", count: 2, withoutPayload: 2)])
            #expect(try await repairs.rejudge("game", reason: nil, since: nil) == 0)
            try await lab.expectSound()
        }
    }

    @Test("eight schedulers at once: each day is dropped once, what must stay is kept once")
    func manySchedulers() async throws {
        try await LedgerLab.with(connections: 8, endsSound: false) { lab in
            for day in 0..<6 {
                try await lab.fill(
                    50, ended: "granted", daysAgo: 100 + day)
                try await lab.fill(10, ended: nil, daysAgo: 100 + day)
            }
            let dropped = try await withThrowingTaskGroup(of: [String].self) { group in
                for _ in 0..<8 {
                    group.addTask {
                        var dropped: [String] = []
                        // A step that finds another one at work does nothing, and that may happen often.
                        for _ in 0..<20_000 {
                            let step = try await lab.ledger.run(Statements.retainPayloads, .test(batch: 20)).first
                            if let day = step?.droppedDay { dropped.append(day) }
                            if try await lab.oldestDay() == nil { break }
                            if step?.isMore != true { try await Task.sleep(for: .milliseconds(5)) }
                        }
                        return dropped
                    }
                }
                return try await group.reduce(into: []) { $0 += $1 }
            }
            #expect(dropped.count == 6 && Set(dropped).count == 6)
            #expect(try await lab.number("select count(*) from kept_payloads where reason = 'open'") == 60)
            #expect(try await lab.number("select count(*) from payloads") == 0)
        }
    }

    @Test("ingest and workers during the drop of thirty days: none fails, none waits for long")
    func traffic() async throws {
        try await LedgerLab.with(connections: 4, endsSound: false) { lab in
            _ = try await lab.ledger.run(Statements.createPayloadPartitions, 7)
            for day in 0..<30 { try await lab.fill(100, ended: "granted", daysAgo: 100 + day) }
            let (slowest, stall) = try await lab.besideStalls {
                try await withThrowingTaskGroup(of: Duration.self) { group in
                    for _ in 0..<4 {
                        group.addTask {
                            var slowest: Duration = .zero
                            while !Task.isCancelled, try await lab.oldestDay() ?? 0 > Self.days {
                                let start = ContinuousClock.now
                                let posted = try await lab.post()
                                #expect(try await lab.ledger.fetch(posted.id)?.hasPayload == true)
                                slowest = max(slowest, ContinuousClock.now - start)
                            }
                            return slowest
                        }
                    }
                    group.addTask {
                        try await lab.retain()
                        return .zero
                    }
                    return try await group.reduce(.zero, max)
                }
            }
            print("retention: slowest post and fetch during 30 drops: \(slowest), the machine's stalls \(stall)")
            #expect(slowest < .seconds(2) + stall)
            #expect(try await lab.number("select count(*) from payloads_default") == 0, "today has a partition")
        }
    }

    @Test("100,000 payloads of a day: no step is long, and they are through in bounded time")
    func many() async throws {
        try await LedgerLab.with(connections: 1, endsSound: false, isAlone: true) { lab in
            for _ in 0..<11 { try await lab.fill(9000, ended: "granted", daysAgo: 100) }
            try await lab.fill(1000, ended: "rejected", daysAgo: 100)
            try await lab.run("analyze")
            let (slowest, stall) = try await lab.besideStalls {
                let start = ContinuousClock.now
                var slowest: Duration = .zero
                var steps = 0
                while try await lab.oldestDay() != nil {
                    let step = ContinuousClock.now
                    let result = try await lab.ledger.run(
                        Statements.retainPayloads, .test(batch: PayloadRetention.batchMax)
                    ).first
                    #expect(result?.judged ?? 0 <= PayloadRetention.batchMax, "no step takes more than its batch")
                    slowest = max(slowest, ContinuousClock.now - step)
                    steps += 1
                    // It takes 101 steps, and more if autovacuum holds the day for a moment and the drop gives up.
                    try #require(steps <= 1000)
                }
                let took = ContinuousClock.now - start
                print("retention: 100,000 payloads in \(took), \(steps) steps, slowest \(slowest)")
                return slowest
            }
            #expect(slowest < .seconds(2) + stall)
            #expect(try await lab.number("select count(*) from kept_payloads") == 1000)
        }
    }

    @Test("the default partition holds nothing for ever")
    func defaultPartition() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let open = try await lab.post()
            let granted = try await lab.post()
            try await lab.settle(granted, .purchase("t1"))
            let young = try await lab.post()
            for (posted, days) in [(open, 95), (granted, 95), (young, 20)] {
                try await lab.age(posted, days: days, inPartition: false)
            }
            #expect(try await lab.number("select count(*) from payloads_default") == 3)
            // Today's payloads lie there too, so today gets no partition; the days to come get theirs, one with each
            // call while old payloads lie there.
            _ = try await lab.post()
            _ = try await lab.ledger.run(Statements.createPayloadPartitions, 2)
            #expect(try await lab.number("select count(*) from payload_days") == 1)
            _ = try await lab.ledger.run(Statements.createPayloadPartitions, 2)
            #expect(try await lab.number("select count(*) from payload_days") == 2)
            try await lab.retain()
            #expect(try await lab.place(open.id) == "open")
            #expect(try await lab.place(granted.id) == "gone")
            #expect(try await lab.number("select count(*) from payloads_default") == 2)
            try await lab.expectSound()
        }
    }

    @Test("a kept payload is looked up only where the day's is gone; both by primary key")
    func plan() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            _ = try await lab.ledger.run(Statements.createPayloadPartitions, 7)
            try await lab.fill(2000, ended: nil, daysAgo: 0)
            try await lab.fill(2000, ended: nil, daysAgo: 100)
            try await lab.retain()
            // The tables of the days to come are not analyzed: an empty table may be read whole.
            for table in ["receipts", "kept_payloads"] { try await lab.run("analyze \(table)") }
            func plan(_ days: Int) async throws -> String {
                let ids =
                    "(select array_agg(id) from (select id from receipts where received_at < now()"
                    + " - interval '\(days) days' order by received_at desc limit 100) r)"
                let sql = Statements.fetchReceipts.sql.replacing("$1::uuid[]", with: ids)
                return try await lab.texts("explain (analyze, costs off, timing off) \(sql)").joined(separator: "\n")
            }
            let fresh = try await plan(0)
            let kept = try await plan(50)
            #expect(fresh.contains("kept_payloads_pkey on kept_payloads (never executed)"), "\(fresh)")
            #expect(kept.contains("kept_payloads_pkey on kept_payloads (actual rows=1 loops=100)"), "\(kept)")
            #expect(!kept.contains("Seq Scan on kept_payloads") && !fresh.contains("Seq Scan on stored_payloads"))
        }
    }

    @Test("the service: partitions ahead, days dropped, sizes measured; a second run finds nothing to do")
    func service() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            for day in 0..<3 { try await lab.fill(20, ended: "granted", daysAgo: 8 + day) }
            try await lab.fill(20, ended: nil, daysAgo: 8)
            let configuration = try Configuration.parse(
                """
                apps: [{id: game, bundleId: com.example.game, environments: [Sandbox]}]
                retention: {payloads: 7d}
                """, directory: .temporaryDirectory)
            #expect(configuration.payloadDays == 7)
            let service = PayloadRetention(
                ledger: lab.ledger, configuration: ConfigurationHolder(configuration), logger: .silent)
            for _ in 0..<2 {
                var batch = PayloadRetention.batchMax
                await service.tick(&batch)
                #expect(batch == PayloadRetention.batchMax, "nothing failed")
                #expect(try await lab.number("select count(*) from payload_days") == 8, "today and seven days")
                #expect(try await lab.number("select count(*) from kept_payloads") == 20)
            }
            let places = try await lab.ledger.run(Statements.payloadPlaces, ())
            #expect(Set(places.map(\.name)) == ["day", "default", "kept"])
            #expect(places.first { $0.name == "day" }?.oldestDays == 0)
            let kept = try await lab.ledger.run(Statements.keptPayloads, ())
            #expect(kept.map { "\($0.reason) \($0.receipts)" }.sorted() == ["chain 0", "open 20", "rejected 0"])
        }
    }
}
