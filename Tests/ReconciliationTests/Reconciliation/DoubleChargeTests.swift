import Foundation
import Purchases
import TestRandom
import Testing

@testable import Encoding
@testable import Ledger
@testable import Postgres
@testable import Reconciliation

/// Goal: each purchase that was probably meant to be the one before it is flagged once, in whatever steps and by whatever schedulers the
/// grants are searched, and whatever fails in the meantime; and no scheduler searches grants that another one has just
/// searched (P6, 0011_sums.sql).
@Suite(.timeLimit(.minutes(4))) struct DoubleChargeTests {
    @Test(
        "P6: every pair is flagged, in short steps and in one that finds more than it may at once",
        arguments: [7, 5000])
    func steps(first: Int) async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var random = SeededRandom(announcing: "double charges")
            try await lab.buyTwice(1500, spread: "5 minutes", &random, prefix: "a")
            try await lab.buyTwice(500, spread: "1 day", &random, prefix: "b")
            let sweep = DoubleChargeSweep(ledger: lab.ledger, pause: 0, logger: .silent)
            var batch = first
            await sweep.sweep(&batch, unlessWithin: .zero)
            #expect(try await lab.flagged() == 2000, "seed \(random.seed)")
            await sweep.sweep(&batch, unlessWithin: .zero)
            #expect(try await lab.place() == lab.lastEvent())
            #expect(
                try await lab.number("select count(*) from events where type like '%double%'") == 2000, "told once")
        }
    }

    @Test("P6: two purchases are flagged by a sign that they were meant as one, and not because a user buys often")
    func signs() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let start = Date(timeIntervalSince1970: Date.now.timeIntervalSince1970.rounded() - 3600)
            /// Buys the same product some seconds after the start and grants it some seconds after that.
            func buy(_ id: String, _ user: String, after seconds: Double, granted delay: Double = 2) async throws {
                try await lab.settle(
                    try await lab.post(user), .purchase(id) { $0.purchasedAt = start.addingTimeInterval(seconds) })
                try await lab.run(
                    """
                    update grants set granted_at = to_timestamp(\(start.timeIntervalSince1970 + seconds + delay))
                    where transaction_id = '\(id)'
                    """)
            }
            func report(_ user: String, _ kind: String, after seconds: Double, of transaction: String? = nil)
                async throws
            {
                try await lab.run(
                    """
                    insert into client_reports (id, app_id, user_id, transaction_id, kind, details, reported_at)
                    values (gen_random_uuid(), 'game', '\(user)', \(transaction.map { "'\($0)'" } ?? "null"), '\(kind)', '{}',
                      to_timestamp(\(start.timeIntervalSince1970 + seconds)))
                    """)
            }
            // Normal play: a pack every minute, each given at once.
            for n in 0..<5 { try await buy("play\(n)", "often", after: Double(n) * 60) }
            // A double tap. Eleven seconds are enough to mean it.
            for (id, seconds) in [("tap1", 0), ("tap2", 10), ("tap3", 21)] as [(String, Double)] {
                try await buy(id, "tap", after: seconds)
            }
            // The first was given when the second was bought already.
            try await buy("slow1", "slow", after: 0, granted: 60)
            try await buy("slow2", "slow", after: 60)
            // The app saw a failure in between; a cancelled dialog, another transaction's failure or one of another
            // time says nothing.
            for (user, kind, seconds, transaction) in [
                ("failed", "failed", 30, nil), ("unproven", "paid_without_proof", 30, "unproven1"),
                ("cancelled", "cancelled", 30, nil), ("other", "failed", 30, "elsewhere"), ("later", "failed", 61, nil),
            ] as [(String, String, Double, String?)] {
                try await buy("\(user)1", user, after: 0)
                try await report(user, kind, after: seconds, of: transaction)
                try await buy("\(user)2", user, after: 60)
            }
            // A report, but ten minutes and a second between the purchases.
            try await buy("apart1", "apart", after: 0)
            try await report("apart", "failed", after: 30)
            try await buy("apart2", "apart", after: 601)
            let sweep = DoubleChargeSweep(ledger: lab.ledger, pause: 0, logger: .silent)
            var batch = DoubleChargeSweep.batchMax
            await sweep.sweep(&batch, unlessWithin: .zero)
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', first_transaction_id, transaction_id) from double_charges order by 1")
                    == ["failed1 failed2", "slow1 slow2", "tap1 tap2", "unproven1 unproven2"])
        }
    }

    @Test("P6: a guest's purchase and the one of the account that the guest became are one user's")
    func mergedUsers() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var random = SeededRandom(announcing: "double charges of merged users")
            try await lab.buyTwice(3, spread: "5 minutes", &random, prefix: "a")
            for table in ["grants", "events"] {
                try await lab.run(
                    "update \(table) set user_id = 'guest-of-' || user_id where transaction_id like '%-0'")
            }
            // The events of the accounts are deleted, as if they had been searched long ago.
            try await lab.run("delete from events where transaction_id like '%-1'")
            try await lab.run(
                """
                insert into merges (app_id, user_id, into_user_id)
                select 'game', user_id, replace(user_id, 'guest-of-', '') from grants where user_id like 'guest-of-a%'
                  and user_id <> 'guest-of-a3'
                """)
            let sweep = DoubleChargeSweep(ledger: lab.ledger, pause: 0, logger: .silent)
            var batch = DoubleChargeSweep.batchMax
            await sweep.sweep(&batch, unlessWithin: .zero)
            #expect(
                try await lab.texts("select transaction_id || ' ' || user_id from double_charges order by 1")
                    == ["a1-1 a1", "a2-1 a2"], "the third is nobody's but its buyer's")
        }
    }

    @Test("P6: what a user bought long before is not looked at, however much it is; a late post's time is")
    func cost() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var random = SeededRandom(announcing: "cost of double charges")
            try await lab.buyTwice(1000, spread: "20 days", &random, prefix: "old", before: "2 hours")
            let old = try await lab.lastEvent()
            try await lab.buyTwice(1, spread: "1 minute", &random, prefix: "new")
            let last = try await lab.lastEvent()
            for table in ["grants", "events"] { try await lab.run("update \(table) set user_id = 'buyer'") }
            try await lab.run("analyze grants, transactions, events")
            func question(after: Statements.EventPlace) -> Statements.DoubleChargeQuestion {
                .init(
                    step: .init(after: after, last: last, isMore: false), window: DoubleChargeSweep.window,
                    moment: DoubleChargeSweep.moment)
            }
            let step = question(after: old)
            let explain = Statement<Statements.DoubleChargeQuestion, String>(
                "test.explain",
                "explain (analyze, costs off, timing off, summary off) \(Statements.findDoubleCharges.sql)",
                bind: Statements.findDoubleCharges.bind, read: { row throws(PostgresError) in try row.text(0) })
            func lookUps(_ question: Statements.DoubleChargeQuestion) async throws -> Int {
                try await lab.database.run(explain, question).filter { $0.contains(" on transactions") }
                    .compactMap { $0.firstMatch(of: /loops=(\d+)/).flatMap { Int($0.1) } }.reduce(0, +)
            }
            let all = question(after: .init(xid: "0", id: 0))
            #expect(try await lookUps(all) >= 2000, "everything, where everything is asked for")
            #expect(try await lookUps(step) <= 4, "two that were given in the step, and the two of their time")
            try await lab.buyTwice(1, spread: "1 minute", &random, prefix: "single")
            try await lab.run("delete from grants where transaction_id = 'single1-0'")
            let single = Statements.DoubleChargeQuestion(
                step: .init(after: last, last: try await lab.lastEvent(), isMore: false),
                window: DoubleChargeSweep.window, moment: DoubleChargeSweep.moment)
            #expect(try await lookUps(single) == 2, "one of a product: only when it was bought")

            // The purchase is granted now, but was bought close to one of the old purchases: the two are a pair.
            try await lab.run(
                """
                update transactions set purchased_at = (
                  select purchased_at + interval '1 second' from transactions where transaction_id = 'old7-1')
                where transaction_id = 'new1-1'
                """)
            let found = try await lab.ledger.run(Statements.findDoubleCharges, step)
            #expect(found.contains { $0.transactionID == "new1-1" && $0.firstTransactionID == "old7-1" })
        }
    }

    @Test("who began lately is left alone; one that is gone, or that began in a clock's future, is not")
    func turns() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var random = SeededRandom(announcing: "turns of double charges")
            try await lab.buyTwice(1, spread: "1 minute", &random, prefix: "a")
            let turn = Statements.DoubleChargeTurn(interval: .seconds(60), batch: 1)
            let place = try await lab.place()
            func take() async throws -> Int {
                let steps = try await lab.ledger.run(Statements.takeDoubleChargeStep, turn)
                for step in steps { #expect(step.after == place && step.isMore, "nothing was ended") }
                return steps.count
            }
            #expect(try await take() == 1)
            #expect(try await take() == 0)
            for moment in ["now() - interval '61 seconds'", "now() + interval '1 hour'"] {
                try await lab.run("update double_charge_progress set taken_at = \(moment)")
                #expect(try await take() == 1, "\(moment)")
                #expect(try await take() == 0)
            }
        }
    }

    @Test("a verdict that was being written while what came after it was searched is found when it is there")
    func late() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var random = SeededRandom(announcing: "late double charges")
            let sweep = DoubleChargeSweep(ledger: lab.ledger, pause: 0, logger: .silent)
            var batch = DoubleChargeSweep.batchMax
            try await lab.withSession { session in
                try await session.run(Statement<Void, Void>("test.begin", "begin"))
                try await session.run(
                    Statement<Void, Void>("test.buy", LedgerLab.purchases(3, spread: "5 minutes", prefix: "a")))
                try await lab.buyTwice(2, spread: "5 minutes", &random, prefix: "b")
                await sweep.sweep(&batch, unlessWithin: .zero)
                #expect(try await lab.flagged() == 0)
                try await session.run(Statement<Void, Void>("test.commit", "commit"))
            }
            await sweep.sweep(&batch, unlessWithin: .zero)
            #expect(try await lab.flagged() == 5)
        }
    }

    @Test("after a restored dump, whose server has counted less far, what is bought from then on is searched")
    func restored() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var random = SeededRandom(announcing: "double charges after a restore")
            let sweep = DoubleChargeSweep(ledger: lab.ledger, pause: 0, logger: .silent)
            var batch = DoubleChargeSweep.batchMax
            try await lab.run("update double_charge_progress set searched_xid = '9000000000', searched_id = 7")
            try await lab.buyTwice(3, spread: "5 minutes", &random, prefix: "a")
            await sweep.sweep(&batch, unlessWithin: .zero)
            try await lab.buyTwice(3, spread: "5 minutes", &random, prefix: "b")
            await sweep.sweep(&batch, unlessWithin: .zero)
            #expect(try await lab.texts("select distinct left(transaction_id, 1) from double_charges") == ["b"])
        }
    }

    @Test("how far the search is behind: the age of what it has not seen yet, nothing where it has seen all")
    func behind() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var random = SeededRandom(announcing: "a search that is behind")
            func behind() async throws -> Double? {
                try await lab.ledger.run(Statements.doubleChargesBehind, ()).first
            }
            #expect(try await behind() == nil)
            for (prefix, seconds) in [("a", 5000), ("b", 300)] {
                try await lab.buyTwice(1, spread: "1 day", &random, prefix: prefix)
                try await lab.run(
                    "update events set at = now() - interval '\(seconds) seconds' where transaction_id like '\(prefix)%'"
                )
            }
            #expect(try #require(try await behind()).rounded(.down) == 5000)
            let turn = Statements.DoubleChargeTurn(interval: .zero, batch: 2)
            let step = try #require(try await lab.ledger.run(Statements.takeDoubleChargeStep, turn).first)
            _ = try await lab.ledger.run(Statements.endDoubleChargeStep, step)
            #expect(try #require(try await behind()).rounded(.down) == 300)
            let sweep = DoubleChargeSweep(ledger: lab.ledger, pause: 0, logger: .silent)
            var batch = DoubleChargeSweep.batchMax
            // The sweep's own events have to be searched as well.
            for _ in 0..<2 { await sweep.sweep(&batch, unlessWithin: .zero) }
            #expect(try await behind() == nil)
        }
    }

    @Test("where the search fails nothing counts as searched, and the next step is half as long")
    func failure() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var random = SeededRandom(announcing: "failed searches")
            try await lab.buyTwice(3, spread: "30 minutes", &random, prefix: "a")
            let sweep = DoubleChargeSweep(ledger: lab.ledger, pause: 0, logger: .silent)
            let place = try await lab.place()
            var batch = 100
            try await lab.run("alter table transactions rename to away")
            await sweep.sweep(&batch, unlessWithin: .zero)
            #expect(batch == 50)
            #expect(try await lab.place() == place)
            try await lab.run("alter table away rename to transactions")
            await sweep.sweep(&batch, unlessWithin: .zero)
            #expect(try await lab.flagged() == 3)
            #expect(batch == 100)
        }
    }
}

extension LedgerLab {
    fileprivate func buyTwice(
        _ pairs: Int, spread: String, _ random: inout SeededRandom, prefix: String, before: String = "0 seconds"
    ) async throws {
        _ = try await texts("select setseed(\(Double.random(in: -1...1, using: &random)))::text")
        try await run(Self.purchases(pairs, spread: spread, prefix: prefix, before: before))
    }

    /// Pairs of purchases a minute apart, each of a user of its own, granted at random times of the time until now.
    fileprivate static func purchases(
        _ pairs: Int, spread: String, prefix: String, before: String = "0 seconds"
    ) -> String {
        """
        with pair as materialized (
          select '\(prefix)' || n as id, now() - interval '\(before)' - random() * interval '\(spread)' as at
          from generate_series(1, \(pairs)) n),
        purchase as (
          select id || '-' || s as id, id as usr, at - (1 - s) * interval '1 minute' as bought, at
          from pair cross join generate_series(0, 1) s),
        given as (
          insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
            quantity, goods, binding_source, granted_at)
          select id, id, 'game', 'Production', usr, gen_random_uuid(), 'coins', 1, '[]', 'poster', at from purchase
          returning transaction_id, user_id, receipt_id),
        told as (
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select gen_random_uuid(), 'game', 'purchase.granted', user_id, transaction_id, receipt_id, '{}' from given)
        insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, kind,
          quantity, purchased_at, ownership, facts)
        select id, 'game', 'Production', id, 'coins', 'Consumable', 1, bought, 'PURCHASED', '{}' from purchase
        """
    }

    fileprivate func flagged() async throws -> Int { try await number("select count(*) from double_charges") }

    fileprivate func place() async throws -> Statements.EventPlace {
        try await one("select searched_xid::text, searched_id from double_charge_progress")
    }

    fileprivate func lastEvent() async throws -> Statements.EventPlace {
        try await one("select xid::text, id from events order by xid desc, id desc limit 1")
    }

    private func one(_ sql: String) async throws -> Statements.EventPlace {
        let statement = Statement<Void, Statements.EventPlace>(
            "test.place", sql,
            read: { row throws(PostgresError) in .init(xid: try row.text(0), id: try row.int(1)) })
        return try #require(try await database.run(statement, ()).first)
    }
}
