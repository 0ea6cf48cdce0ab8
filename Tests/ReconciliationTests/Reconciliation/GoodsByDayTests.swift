import Foundation
import Postgres
import Purchases
import TestRandom
import Testing

@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: `v_goods_by_day` shows at every moment the sums of the grants, and reads few of the grants (0011_sums.sql).
/// Method: grants at random times of 16 days and at the edges of each day, and the view compared with the grants'
/// direct sum in one snapshot: before anything is summed, after each step, beside other schedulers, while a grant's
/// transaction is still open, after the clock went back and after a restore.
@Suite(.timeLimit(.minutes(4))) struct GoodsByDayTests {
    @Test("the view is the direct sum: after every step, on both sides of every midnight, and what is bought meanwhile")
    func equalsTheDirectSum() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var random = SeededRandom(announcing: "goods by day")
            try await lab.fill(3000, &random)
            #expect(try await lab.difference() == 0, "nothing is summed")
            #expect(try await lab.summed() == 0)
            _ = try await lab.ledger.run(Statements.lookAheadOfGoods, .zero)
            for number in 0... {
                let span = Duration.seconds(Int.random(in: 3600...2 * 86_400, using: &random))
                let isMore = try await lab.step(span)
                #expect(try await lab.difference() == 0, "seed \(random.seed), step \(number)")
                try await lab.give("m\(number)")
                #expect(try await lab.difference() == 0, "seed \(random.seed), bought after step \(number)")
                if !isMore { break }
            }
            let whole = try await lab.granted()
            #expect(try await lab.summed() == whole, "everything before the look, once")
            #expect(whole > 2000)
            #expect(try await lab.ledger.run(Statements.sumGoods, .seconds(3600)) == [], "and not again")
            #expect(try await lab.difference() == 0)
        }
    }

    @Test("any number of schedulers: each grant is summed once, and the view is right all the while")
    func atOnce() async throws {
        try await LedgerLab.with(connections: 6, endsSound: false) { lab in
            var random = SeededRandom(announcing: "goods by day, at once")
            let seed = random.seed
            try await lab.fill(2000, &random)
            _ = try await lab.ledger.run(Statements.lookAheadOfGoods, RunningSums.margin)
            try await withThrowingTaskGroup { group in
                for _ in 0..<5 {
                    group.addTask {
                        // The step is repeated until all grants are summed: a step after another scheduler's step finds
                        // nothing to do.
                        try await lab.until("not summed in time") {
                            _ = try await lab.ledger.run(Statements.sumGoods, .seconds(7200))
                            _ = try await lab.ledger.run(Statements.sumGoodsAgain, RunningSums.margin)
                            return try await lab.isDone()
                        }
                    }
                }
                group.addTask {
                    try await lab.until("not summed in time") {
                        #expect(try await lab.difference() == 0, "seed \(seed)")
                        return try await lab.isDone()
                    }
                }
                try await group.waitForAll()
            }
            #expect(try await lab.summed() == (try await lab.granted()))
            #expect(try await lab.difference() == 0, "seed \(seed)")
        }
    }

    @Test("a step that waits for another scheduler's sums nothing when that has moved on")
    func second() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            var random = SeededRandom(announcing: "goods by day, second")
            try await lab.fill(300, &random)
            _ = try await lab.ledger.run(Statements.lookAheadOfGoods, .zero)
            try await lab.untilComplete()
            try await lab.withSession { other in
                try await other.run(Statement<Void, Void>("test.begin", "begin"))
                let span = Duration.seconds(86_400)
                #expect(try await other.run(Statements.sumGoods, span) == [true])
                async let second = lab.ledger.run(Statements.sumGoods, span)
                try await lab.untilBlocked()
                try await other.run(Statement<Void, Void>("test.commit", "commit"))
                let rows = try await second
                #expect(rows == [])
            }
            #expect(try await lab.difference() == 0)
            while try await lab.step(.seconds(86_400)) {}
            #expect(try await lab.summed() == (try await lab.granted()))
            #expect(try await lab.difference() == 0)
        }
    }

    @Test("a grant whose transaction outlasts the look ahead, or has no number yet, is not lost")
    func late() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.withSession { worker in
                func run(_ sql: String) async throws { try await worker.run(Statement<Void, Void>("test.late", sql)) }
                // The transaction has begun, and has done nothing else yet: its grants lie after everything that is
                // complete by then.
                try await run("begin")
                try await run("select now()")
                _ = try await lab.ledger.run(Statements.lookAheadOfGoods, RunningSums.margin)
                while try await lab.step(.seconds(86_400)) {}
                try await run(LedgerLab.give("later"))
                try await run("commit")
                #expect(try await lab.number("select count(*) from v_goods_by_day where granted = 1") == 1)
                #expect(try await lab.difference() == 0)
                #expect(try await lab.summed() == 0)

                // The transaction has granted and has not committed yet.
                try await run("begin")
                try await run(LedgerLab.give("late"))
                _ = try await lab.ledger.run(Statements.lookAheadOfGoods, .zero)
                #expect(try await !lab.isDone())
                #expect(try await lab.ledger.run(Statements.sumGoods, .seconds(86_400)) == [])
                try await run("commit")
                #expect(try await lab.difference() == 0)
                while try await lab.step(.seconds(86_400)) {}
                #expect(try await lab.summed() == 2)
                #expect(try await lab.difference() == 0)
            }
        }
    }

    @Test("the service: sums up to some minutes ago; where the clock went back, or counts anew, it begins again")
    func service() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let service = RunningSums.goodsByDay(lab.ledger, logger: .silent)
            func tick() async throws {
                var span = RunningSums.spanMax
                await service.tick(&span)
                #expect(span == RunningSums.spanMax, "nothing failed")
            }
            var random = SeededRandom(announcing: "goods by day, service")
            try await lab.fill(300, &random)
            // Another scheduler has summed all but the last hours.
            _ = try await lab.ledger.run(Statements.lookAheadOfGoods, .seconds(3 * 3600))
            while try await lab.step(.seconds(86_400)) {}
            let isUpToDate =
                "select count(*) from goods_by_day_progress where summed_to > now() - interval '6 minutes'"
            try await lab.until("never up to date") {
                try await tick()
                return try await lab.number(isUpToDate) == 1
            }
            #expect(try await lab.difference() == 0)

            // The server's clock was a day ahead, and the scheduler summed that day as well.
            try await lab.run(LedgerLab.give("ahead", at: "now() + interval '20 hours'"))
            try await lab.run(
                """
                update goods_by_day_progress set complete_to = now() + interval '1 day',
                  complete_xid = pg_snapshot_xmin(pg_current_snapshot())
                """)
            while try await lab.step(.seconds(86_400)) {}
            try await lab.give("today")
            #expect(try await lab.difference() > 0, "before what is summed")
            for _ in 0..<2 {
                try await tick()
                #expect(try await lab.difference() == 0)
            }

            // A dump was restored on a server with lower transaction ids.
            try await lab.run(
                """
                update goods_by_day_progress set complete_to = summed_to + interval '1 second',
                  complete_xid = '9000000000000000000'
                """)
            try await lab.until("never complete again") {
                try await tick()
                return try await lab.isDone()
            }
            #expect(try await lab.difference() == 0)
        }
    }

    @Test("of 100,000 grants of two weeks the view reads those that are not summed, found by their index")
    func readsFew() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.run(
                """
                insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
                  quantity, goods, binding_source, granted_at)
                select 't' || n, 't' || n, 'game', 'Production', 'u1', gen_random_uuid(), 'coins', 1, '[]', 'poster',
                  now() - interval '12 seconds' * (100000 - n)
                from generate_series(1, 100000) n
                """)
            try await lab.run("vacuum analyze grants")
            try await lab.run("set max_parallel_workers_per_gather = 0")
            /// The number of grants that the view's scans read; rows that a scan threw away count as well.
            func read() async throws -> Int {
                let plan = try await lab.texts("explain (analyze, costs off, timing off) select * from v_goods_by_day")
                var rows = 0
                var isOfGrants = false
                for line in plan {
                    if line.contains("->") { isOfGrants = line.contains(" on grants ") }
                    guard isOfGrants else { continue }
                    rows += line.firstMatch(of: /actual rows=(\d+)/).flatMap { Int($0.1) } ?? 0
                    rows += line.firstMatch(of: /Rows Removed by .*: (\d+)/).flatMap { Int($0.1) } ?? 0
                }
                return rows
            }
            #expect(try await read() >= 93_000, "two weeks, as nothing is summed")
            _ = try await lab.ledger.run(Statements.lookAheadOfGoods, RunningSums.margin)
            while try await lab.step(.seconds(86_400)) {}
            // The 25 grants of five minutes, and the other grants in the same pages' range of the index.
            let rows = try await read()
            #expect((25...20_000).contains(rows), "\(rows)")
            #expect(try await lab.difference() == 0)
        }
    }
}

extension LedgerLab {
    private static let columns = """
        transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id, quantity, goods,
        binding_source, granted_at
        """

    /// SQL that inserts one grant, at `time`.
    fileprivate static func give(_ id: String, at time: String = "now()") -> String {
        """
        insert into grants (\(columns))
        values ('\(id)', '\(id)', 'game', 'Production', 'u1', gen_random_uuid(), 'coins', 2, '[]', 'poster', \(time))
        """
    }

    fileprivate func give(_ id: String) async throws { try await run(Self.give(id)) }

    /// Inserts grants of 16 days, of the last hours and of the last minutes, and two around each midnight; and
    /// purchases that Apple took back.
    fileprivate func fill(_ count: Int, _ random: inout SeededRandom) async throws {
        _ = try await texts("select setseed(\(Double.random(in: -1...1, using: &random)))::text")
        try await run(
            """
            insert into grants (\(Self.columns))
            select id, id, 'app' || floor(random() * 2), (array['Production', 'Sandbox'])[1 + floor(random() * 2)::int],
              'u1', gen_random_uuid(), 'coins' || floor(random() * 4), 1 + floor(random() * 3)::int, '[]', 'poster', at
            from (
              select 'r' || n as id,
                now() - random() * (array['16 days', '3 hours', '10 minutes']::interval[])[1 + n % 3] as at
              from generate_series(1, \(count)) n
              union all
              select 'd' || d || '-' || s, ((now() at time zone 'UTC')::date - d)::timestamp at time zone 'UTC'
                - s * interval '1 microsecond'
              from generate_series(0, 15) d, generate_series(0, 1) s) i
            """)
        try await run(
            """
            insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, kind,
              quantity, purchased_at, ownership, facts, revoked_at)
            select transaction_id, app_id, environment, transaction_id, product_id, 'Consumable', quantity, granted_at,
              'PURCHASED', '{}', granted_at + interval '1 hour'
            from grants where transaction_id like 'r%7'
            """)
    }

    /// The number of rows by which the view and the grants themselves differ, in one snapshot.
    fileprivate func difference() async throws -> Int {
        try await number(
            """
            with first_day(at) as (
              select (date_trunc('day', now() at time zone 'UTC') - interval '13 days') at time zone 'UTC'),
            direct as (
              select app_id, environment, product_id, (at at time zone 'UTC')::date as day,
                sum(granted)::bigint as granted, sum(units)::bigint as units, sum(revoked)::bigint as revoked
              from (
                select app_id, environment, product_id, granted_at as at, 1 as granted, quantity as units, 0 as revoked
                from grants
                union all
                select app_id, environment, product_id, revoked_at, 0, 0, 1 from transactions
                where revoked_at is not null) g
              where at >= (select at from first_day)
              group by 1, 2, 3, 4),
            seen as (select app_id, environment, product_id, day, granted, units, revoked from v_goods_by_day)
            select count(*) from (
              (table seen except all table direct) union all (table direct except all table seen)) d
            """)
    }

    /// The number of grants on the days that the view shows, up to the time to which they are summed.
    fileprivate func granted() async throws -> Int {
        try await number(
            """
            select count(*) from grants, goods_by_day_progress
            where granted_at >= (date_trunc('day', now() at time zone 'UTC') - interval '13 days') at time zone 'UTC'
              and granted_at < summed_to
            """)
    }

    fileprivate func summed() async throws -> Int {
        try await number("select coalesce(sum(granted), 0)::bigint from goods_by_day")
    }

    fileprivate func isDone() async throws -> Bool {
        try await number("select count(*) from goods_by_day_progress where summed_to = complete_to") == 1
    }

    /// Waits until the grants are complete. Other tests' transactions count as well, because transaction ids belong to
    /// the whole server.
    fileprivate func untilComplete() async throws {
        try await until("a transaction beside did not end") {
            try await number(
                """
                select count(*) from goods_by_day_progress
                where complete_xid <= pg_snapshot_xmin(pg_current_snapshot())
                """) == 1
        }
    }

    /// Makes one step, as soon as the step may be made.
    ///
    /// - Returns: whether there is more.
    fileprivate func step(_ span: Duration) async throws -> Bool {
        guard try await !isDone() else { return false }
        try await untilComplete()
        let steps = try await ledger.run(Statements.sumGoods, span)
        return try #require(steps.first as Bool?)
    }
}
