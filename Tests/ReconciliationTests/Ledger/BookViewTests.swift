import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Goal: every account of the books comes to zero, and an item that does not is named with its id and a command (L1);
/// the views read few rows beside many. Method: purchases written by the real statements, damage by SQL, and the rows
/// of each view.
@Suite(.timeLimit(.minutes(4))) struct BookViewTests {
    private static let clearing = """
        select concat_ws(' ', account, nullif(environment, ''), nullif(source, ''), state, items, balance)
        from v_clearing where day >= (now() at time zone 'UTC')::date - 1
        """
    private static let overdue = """
        select concat_ws(' ', account, app_id, id, state, command) from v_clearing_overdue
        """

    private static func start(_ lab: LedgerLab) async throws {
        _ = try await lab.ledger.run(
            Statements.rememberApp, .init(appID: "game", configurationHash: [1], isLive: true))
    }

    @Test("L1: receipts, grants and their events: what came in and what became of it; a row that never ends is named")
    func receipts() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.start(lab)
            #expect(try await lab.lines(Self.clearing) == [])
            #expect(try await lab.lines(Self.overdue) == [])
            let (given, held, waiting) = (try await lab.post("u1"), try await lab.post("u2"), try await lab.post("u3"))
            try await lab.settle(given, .purchase("t1"))
            try await lab.settle(held, .purchase("t2", .held(.productUnknown)))
            let id = waiting.id.uuidString.lowercased()
            let books = [
                "grants Production poster announced 1 0", "receipts post granted 1 0", "receipts post held 1 0",
                "receipts post received 1 1",
            ]
            #expect(try await lab.lines(Self.clearing).filter { !$0.hasPrefix("Apple updates") } == books)
            #expect(try await lab.lines(Self.overdue) == [], "within its hour")
            #expect(
                try await lab.number("select count(*) from v_clearing where balance > 0 and oldest_at is null") == 0)

            // The receipt that nobody works on, an hour later; of a receipt that nobody posted, a day later.
            try await lab.run("update receipts set received_at = received_at - interval '61 minutes'")
            #expect(
                try await lab.lines(Self.overdue)
                    == [
                        "receipts game \(id) received makegood explain \(id)"
                    ])
            try await lab.run("update receipts set source = 'sweep' where id = '\(waiting.id)'")
            #expect(try await lab.lines(Self.overdue) == [])
            try await lab.run("update receipts set received_at = received_at - interval '1 day'")
            #expect(try await lab.lines(Self.overdue).count == 1)
            // A person paused the app: the command ends that.
            try await lab.run(
                """
                insert into halts (app_id, service, environment, credential, reason, probe_at)
                values ('game', '*', '', '', 'paused', now())
                """
            )
            #expect(
                try await lab.texts("select command from v_clearing_overdue") == ["makegood queue resume --app game"])
            try await lab.run("delete from halts")
            try await lab.run("delete from receipts where id = '\(waiting.id)'")

            // A grant that nobody was told of.
            try await lab.run("delete from events where type = 'purchase.granted'")
            #expect(try await lab.lines(Self.clearing).contains("grants Production poster unannounced 1 1"))
            #expect(
                try await lab.lines(Self.overdue) == ["grants game t1 unannounced makegood explain t1"])
        }
    }

    @Test("L1: notifications, refund requests and Apple updates: held and parked ones are out of the balance")
    func others() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.start(lab)
            try await lab.run(
                """
                insert into notifications (id, version, app_id, environment, type, payload_sha256, state, due_at,
                  settled_at, received_at, came_by)
                select gen_random_uuid(), 2, 'game', 'Production', 'DID_RENEW', '', state,
                  case when state <> 'ended' then now() end, case when state = 'ended' then now() end,
                  now() - interval '11 minutes', came_by
                from (values ('received', 'notification'), ('held', 'notification'), ('parked', 'notification'),
                  ('ended', 'notification_history')) v(state, came_by)
                """)
            try await lab.run(
                """
                insert into refund_requests (notification_id, case_id, app_id, environment, transaction_id,
                  original_transaction_id, asked_at, state, due_at, ended_at)
                values
                  (gen_random_uuid(), gen_random_uuid(), 'game', 'Sandbox', 't1', 't1', now(), 'answered', null, now()),
                  (gen_random_uuid(), '00000000-0000-8000-8000-000000000001', 'game', 'Sandbox', 't2', 't2',
                    now() - interval '13 hours', 'open', now(), null)
                """)
            try await lab.run(
                """
                insert into apple_updates (transaction_id, kind, app_id, environment, original_transaction_id,
                  purchased_at, state, created_at, due_at, ended_at)
                values ('t1', 'finish', 'game', 'Production', 't1', now(), 'done', now(), null, now()),
                  ('t2', 'finish', 'game', 'Production', 't2', now(), 'parked', now() - interval '25 hours', now(),
                    null)
                """)
            let recent = Self.clearing.replacing("date - 1", with: "date - 2")
            #expect(
                try await lab.lines(recent) == [
                    "Apple updates Production finish done 1 0", "Apple updates Production finish parked 1 1",
                    "notifications Production notification held 1 0",
                    "notifications Production notification parked 1 0",
                    "notifications Production notification received 1 1",
                    "notifications Production notification_history ended 1 0", "refund requests Sandbox answered 1 0",
                    "refund requests Sandbox open 1 1",
                ])
            #expect(
                try await lab.lines("select concat_ws(' ', account, state, command) from v_clearing_overdue") == [
                    "Apple updates parked makegood explain t2", "notifications received makegood queue status",
                    "refund requests open makegood support refund-request show 00000000-0000-8000-8000-000000000001",
                ])
        }
    }

    @Test(
        "L1: an end without a revocation, a reversal without a reinstatement; what waits for its follow-up is in time")
    func ends() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.start(lab)
            for id in ["t1", "t2", "t3"] { try await lab.settle(try await lab.post(), .purchase(id)) }
            let ends = Self.clearing.replacing("where day", with: "where account = 'ends' and day")
            let named = Self.overdue.replacing(
                "from v_clearing_overdue", with: "from v_clearing_overdue where account = 'ends'")
            try await lab.run(
                """
                update transactions set revoked_at = now(), signed_at = now()
                where transaction_id in ('t1', 't2')
                """)
            #expect(try await lab.number("select count(*) from chain_marks") > 0)
            #expect(try await lab.lines(ends) == ["ends Production refunded not revoked 2 2"])
            #expect(try await lab.lines(named) == [], "marked just now")
            try await lab.run("update chain_marks set marked_at = now() - interval '11 minutes'")
            #expect(
                try await lab.lines(named) == [
                    "ends game t1 not revoked makegood explain t1", "ends game t2 not revoked makegood explain t2",
                ])
            // The follow-up takes one back. The other's mark is lost: the damage that no worker finds.
            try await lab.run("delete from chain_marks")
            try await lab.run(
                """
                insert into revocations (transaction_id, ordinal, app_id, environment, user_id, kind, reason,
                  takes_back, percentage, goods, at)
                values ('t1', 1, 'game', 'Production', 'u1', 'revoked', 'refunded', true, 100000, '[]', now())
                """)
            #expect(
                try await lab.lines(ends) == [
                    "ends Production refunded not revoked 1 1", "ends Production refunded revoked 1 0",
                ])
            try await lab.run(
                "update transactions set signed_at = now() - interval '1 hour' where transaction_id = 't2'")
            try await lab.run("delete from chain_marks")
            #expect(try await lab.lines(named) == ["ends game t2 not revoked makegood explain t2"])

            // Apple gave the first one back.
            try await lab.run(
                """
                update transactions set revoked_at = null, signed_at = now() - interval '1 hour'
                where transaction_id = 't1'
                """
            )
            try await lab.run("delete from chain_marks")
            #expect(
                try await lab.lines(named) == [
                    "ends game t1 not reinstated makegood explain t1", "ends game t2 not revoked makegood explain t2",
                ])
            try await lab.run(
                """
                insert into revocations (transaction_id, ordinal, app_id, environment, user_id, kind, reason,
                  takes_back, percentage, goods, at)
                values ('t1', 2, 'game', 'Production', 'u1', 'reinstated', 'refunded', true, 0, '[]', now())
                """)
            #expect(try await lab.lines(named) == ["ends game t2 not revoked makegood explain t2"])
        }
    }

    @Test("L6: a difference is open, heals or is closed by a person, and says which road heals it")
    func differences() async throws {
        try await LedgerLab.with { lab in
            try await lab.run(
                """
                insert into differences (category, subject, app_id, environment, net, found_at, ended_at, ended_by)
                values
                  ('purchase_missing', 't1', 'game', 'Production', 'customer', now() - interval '90 seconds', null,
                    null),
                  ('end_missing', 't2', 'game', 'Production', 'refund', now() - interval '2 hours', now(), null),
                  ('goods_differ', 't3', 'game', 'Production', 'customer', now() - interval '2 hours', now(), 'ann'),
                  ('list_endless', 'c1', 'game', 'Production', 'refund', now() - interval '90 seconds', null, null)
                """)
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', category, state, heals_by, age_seconds >= 90, age_seconds < 7300)
                    from v_differences order by 1
                    """) == [
                        "end_missing healed follow-up t t", "goods_differ closed person t t",
                        "list_endless open sweep t t", "purchase_missing open receipt t t",
                    ])
        }
    }

    @Test("L4: a span, and the same hours of four weeks, the fewest of three that are an hour apart")
    func timeliness() async throws {
        try await LedgerLab.with { lab in
            try await lab.run(
                "update arrivals_progress set summed_to = '2026-11-30 10:20Z', complete_to = '2026-11-30 10:20Z'")
            // 10 and more in each hour of five weeks: the number is 10 for the hour 9, 11 for 10, and so on. Nothing in
            // the hour that is not over, and none in the second week before.
            try await lab.run(
                """
                insert into arrivals_by_hour (hour, app_id, environment, kind, type, arrivals)
                select h, 'game', 'Production', 'notifications', 'DID_RENEW',
                  10 + (extract(hour from h at time zone 'UTC')::int + 15) % 24
                from generate_series(timestamptz '2026-10-26 00:00Z', '2026-11-30 10:00Z', interval '1 hour') h
                where h not between '2026-11-15 00:00Z' and '2026-11-16 23:00Z'
                """)
            let rows = try await lab.texts(
                """
                select concat_ws(' ', hours, until at time zone 'UTC', arrivals, array_to_string(weeks, ' '))
                from v_timeliness order by hours
                """)
            // The hour 9 has 10, the hour 8 has 33, and the hour 10 has 11: the fewest are 10.
            #expect(rows.first == "1 2026-11-30 10:00:00 10 10 0 10 10")
            #expect(rows.count == 4)
            // Six hours from 4 on: 29 to 33 and 10; an hour later 30 to 33, 10 and 11.
            #expect(rows.dropFirst().first == "6 2026-11-30 10:00:00 165 147 0 147 147")
        }
    }

    @Test("of 100,000 purchases the books read the day that is asked for, and of open rows the open ones alone")
    func plans() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.run(
                """
                with bought as (
                  insert into receipts (id, app_id, user_id, kind, lane, is_vouched, details, payload_sha256, state,
                    received_at, judged_at, settled_at)
                  select gen_random_uuid(), 'game', 'u1', 'receipt', 'local', true, '{}', '', 'granted', at, at, at
                  from (select now() - interval '12 seconds' * (100000 - n) as at from generate_series(1, 100000) n) t
                  returning id, received_at as at),
                granted as (
                  insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id,
                    product_id, quantity, goods, binding_source, granted_at)
                  select id, id, 'game', 'Production', 'u1', id, 'coins', 1, '[]', 'poster', at from bought)
                insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body, at)
                select id, 'game', 'purchase.granted', 'u1', id, id, '{}', at from bought
                """)
            for table in ["receipts", "grants", "events"] { try await lab.run("vacuum analyze \(table)") }
            try await lab.run("set max_parallel_workers_per_gather = 0")
            /// The number of rows that the scans of these tables read; rows that a scan threw away count as well.
            func read(_ sql: String) async throws -> Int {
                let plan = try await lab.texts("explain (analyze, costs off, timing off) \(sql)")
                var (rows, isOfThem) = (0, false)
                for line in plan {
                    if line.contains("->") { isOfThem = line.firstMatch(of: #/ on (receipts|grants|events) /#) != nil }
                    guard isOfThem else { continue }
                    rows += line.firstMatch(of: /actual rows=(\d+)/).flatMap { Int($0.1) } ?? 0
                    rows += line.firstMatch(of: /Rows Removed by .*: (\d+)/).flatMap { Int($0.1) } ?? 0
                }
                return rows
            }
            // A day has 7,200 of each, an hour 300; beside them come the other rows of the same pages.
            let day = try await read("select * from v_clearing where day = (now() at time zone 'UTC')::date - 5")
            #expect((21_600...90_000).contains(day), "\(day)")
            let hour = try await read(
                """
                select * from v_clearing_by_span
                where unit = 'hour' and since = date_trunc('hour', now(), 'UTC') - interval '5 days'
                """)
            #expect((900...60_000).contains(hour), "\(hour)")
            let late = try await read("select * from v_clearing_overdue where account <> 'grants'")
            #expect(late < 100, "\(late)")
        }
    }
}

extension LedgerLab {
    /// In the order of bytes, whatever the database's collation is.
    fileprivate func lines(_ sql: String) async throws -> [String] { try await texts(sql).sorted() }
}
