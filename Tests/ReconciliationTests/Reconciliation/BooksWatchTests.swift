import Foundation
import Metrics
import Postgres
import Purchases
import TestRandom
import Testing

@testable import Ledger
@testable import Reconciliation
@testable import Service

/// Goal: arrivals are counted once by whichever number of schedulers, each day has one report, and the metrics say what
/// the books say. Method: rows on a database of its own, and the loops' single looks, alone and at once.
@Suite(.timeLimit(.minutes(4))) struct BooksWatchTests {
    private static func start(_ lab: LedgerLab, since: String = "now() - interval '3 days'") async throws {
        _ = try await lab.ledger.run(
            Statements.rememberApp, .init(appID: "game", configurationHash: [1], isLive: true))
        try await lab.run("update apps set first_started_at = \(since)")
    }

    private static let yesterday = "to_char((now() at time zone 'UTC')::date - 1, 'YYYY-MM-DD')"

    @Test(
        "L4: arrivals by hour are the direct sums, beside other schedulers; no tests, and nothing that we asked for"
    )
    func arrivals() async throws {
        try await LedgerLab.with(scale: 0.01, connections: 4, endsSound: false) { lab in
            try await lab.run(
                """
                insert into receipts (id, app_id, user_id, kind, lane, is_vouched, details, payload_sha256, due_at,
                  received_at, source)
                select gen_random_uuid(), 'app' || n % 2, 'u1', 'receipt', 'local', false, '{}', '', now(),
                  now() - interval '7 minutes' * n, case when n % 10 = 0 then 'sweep' else 'post' end
                from generate_series(1, 500) n
                """)
            try await lab.run(
                """
                insert into notifications (id, version, app_id, environment, type, payload_sha256, due_at, received_at,
                  came_by)
                select gen_random_uuid(), 2, nullif('app' || n % 3, 'app2'), 'Production',
                  (array['TEST', 'DID_RENEW', 'REFUND', 'DID_RENEW'])[1 + n % 4], '', now(),
                  now() - interval '11 minutes' * n,
                  case when n % 7 = 0 then 'notification_history' else 'notification' end
                from generate_series(1, 300) n
                """)
            try await lab.run(
                """
                insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
                  quantity, goods, binding_source, granted_at)
                select n, n, 'app1', (array['Production', 'Sandbox'])[1 + n % 2], 'u1', gen_random_uuid(), 'coins', 1,
                  '[]', 'poster', now() - interval '5 minutes' * n
                from generate_series(1, 400) n
                """)
            try await lab.run(
                """
                update arrivals_progress
                set summed_to = now() - interval '4 days', complete_to = now() - interval '4 days'
                """)
            let loops = (0..<3).map { _ in RunningSums.arrivalsByHour(lab.ledger, logger: .silent) }
            try await lab.until("never up to date") {
                try await withThrowingTaskGroup { group in
                    for loop in loops {
                        group.addTask {
                            var span = RunningSums.spanMax
                            await loop.tick(&span)
                        }
                    }
                    try await group.waitForAll()
                }
                return try await lab.number(
                    "select count(*) from arrivals_progress where summed_to > now() - interval '6 minutes'") == 1
            }
            #expect(
                try await lab.number(
                    """
                    with direct as (
                      select received_at as at, app_id, '' as environment, 'receipts' as kind, '' as type from receipts
                      where source = 'post'
                      union all
                      select received_at, app_id, environment, 'notifications', type from notifications
                      where came_by = 'notification' and type <> 'TEST' and app_id is not null
                      union all
                      select granted_at, app_id, environment, 'grants', '' from grants),
                    summed as (
                      select date_trunc('hour', at, 'UTC') as hour, app_id, environment, kind, type,
                        count(*) as arrivals
                      from direct where at < (select summed_to from arrivals_progress) group by 1, 2, 3, 4, 5)
                    select count(*) from (
                      (table summed except all table arrivals_by_hour)
                      union all (table arrivals_by_hour except all table summed)) d
                    """) == 0)
            #expect(try await lab.number("select count(distinct kind || type) from arrivals_by_hour") == 4)

            // The server's clock was a day ahead: the hour begins again, and is right.
            try await lab.run(
                """
                update arrivals_progress
                set summed_to = now() + interval '1 day', complete_to = now() + interval '1 day'
                """
            )
            var span = RunningSums.spanMax
            await loops[0].tick(&span)
            #expect(
                try await lab.number("select count(*) from arrivals_progress where summed_to <= now()") == 1)
        }
    }

    @Test("L4: what stopped is a metric, and the metric ends with the next arrivals")
    func late() async throws {
        try await LedgerLab.with { lab in
            try await lab.run("update arrivals_progress set summed_to = now(), complete_to = now()")
            try await lab.run(
                """
                insert into arrivals_by_hour (hour, app_id, environment, kind, type, arrivals)
                select h, app, 'Production', 'notifications', 'DID_RENEW', 200
                from generate_series(date_trunc('hour', now(), 'UTC') - interval '29 days',
                  date_trunc('hour', now(), 'UTC') - interval '1 hour', interval '1 hour') h
                cross join (values ('game'), ('chess')) a(app)
                where app = 'chess' or h < date_trunc('hour', now(), 'UTC') - interval '1 hour'
                """)
            let registry = PrometheusRegistry()
            let watch = BooksWatch(ledger: lab.ledger, logger: .silent, metrics: registry)
            func series(_ app: String) -> String {
                let place = "app=\"\(app)\",environment=\"Production\""
                return "makegood_arrivals_late{\(place),kind=\"notifications\",type=\"DID_RENEW\"} "
            }
            var late: Set<Statements.ArrivalSeries> = []
            try await watch.measureArrivals(&late)
            #expect(late.map(\.appID) == ["game"])
            #expect(registry.text.contains(series("game") + "1") && registry.text.contains(series("chess") + "0"))
            // Nothing is said about hours that are not summed.
            try await lab.run(
                "update arrivals_progress set summed_to = now() - interval '5 hours'")
            try await watch.measureArrivals(&late)
            #expect(late.isEmpty && registry.text.contains(series("game") + "0"))
        }
    }

    @Test("L1, L6: overdue items and open differences are metrics, zeros included")
    func metrics() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.start(lab)
            let registry = PrometheusRegistry()
            let watch = BooksWatch(ledger: lab.ledger, logger: .silent, metrics: registry)
            var named: Set<String> = []
            try await watch.measureOverdue(&named)
            try await watch.measureDifferences()
            #expect(named.isEmpty)
            for account in DayReport.Received.accounts {
                #expect(
                    registry.text.contains("makegood_clearing_overdue_items{account=\"\(account)\",app=\"game\"} 0"),
                    "\(registry.text)")
            }
            let posted = try await lab.post()
            try await lab.run("update receipts set received_at = now() - interval '2 hours'")
            try await lab.run(
                """
                insert into differences (category, subject, app_id, environment, net, found_at)
                values ('goods_differ', 't1', 'game', 'Production', 'customer', now() - interval '2 hours')
                """)
            try await watch.measureOverdue(&named)
            try await watch.measureDifferences()
            #expect(named == ["receipts \(posted.id.uuidString.lowercased())"])
            #expect(registry.text.contains(#"makegood_clearing_overdue_items{account="receipts",app="game"} 1"#))
            #expect(registry.text.contains(#"makegood_open_differences{app="game",category="goods_differ"} 1"#))
            #expect(registry.text.contains(#"makegood_open_differences{app="game",category="end_missing"} 0"#))
        }
    }

    @Test("two schedulers at once write each past day once, also an empty one, and none before the first or today")
    func reports() async throws {
        try await LedgerLab.with(connections: 4, endsSound: false) { lab in
            let registry = PrometheusRegistry()
            let watch = BooksWatch(ledger: lab.ledger, logger: .silent, metrics: registry)
            try await watch.writeReports()
            #expect(try await lab.number("select count(*) from daily_reports") == 0, "no app was ever started")

            try await Self.start(lab)
            try await lab.settle(try await lab.post(), .purchase("t1"))
            let day = "((now() at time zone 'UTC')::date - 1)::timestamp at time zone 'UTC'"
            try await lab.run("update receipts set received_at = \(day) + interval '90 minutes'")
            try await lab.run("update grants set granted_at = \(day) + interval '90 minutes'")
            try await lab.run("update events set at = \(day) + interval '90 minutes'")
            // The day before yesterday has a report: it stays as it is.
            try await lab.run(
                "insert into daily_reports (day, report) values ((now() at time zone 'UTC')::date - 2, '{}')")
            try await withThrowingTaskGroup { group in
                for _ in 0..<3 { group.addTask { try await watch.writeReports() } }
                try await group.waitForAll()
            }
            try await watch.writeReports()
            // Within the hour after midnight, yesterday's report is not due.
            let isDue = try await lab.number("select extract(hour from now() at time zone 'UTC')::int") >= 1
            #expect(try await lab.number("select count(*) from daily_reports") == (isDue ? 3 : 2))
            #expect(try await lab.number("select count(*) from daily_reports where report = '{}'") == 1)
            #expect(registry.text.contains("makegood_daily_reports_missing 0"))
            guard isDue else { return }
            let texts = try await lab.texts("select report::text from daily_reports order by day")
            let empty = try DayReport(json: texts[0])
            #expect(empty.received == [] && empty.nets == [] && empty.isOver)
            let report = try DayReport(json: try #require(texts.last))
            #expect(report.day == (try await lab.texts("select \(Self.yesterday)").first))
            #expect(
                report.received.map { "\($0.account) \($0.source) \($0.state) \($0.items)" }
                    == ["receipts post granted 1", "grants poster announced 1"])
        }
    }

    @Test("the report of a day: an app alone, a day in the future, one too long ago, and texts that are no day")
    func questions() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.start(lab)
            try await lab.settle(try await lab.post(), .purchase("t1"))
            let database = lab.ledger.database
            func problem(_ day: String, app: String? = nil) async -> DayReport.Problem? {
                do {
                    _ = try await DayReport.read(day: day, appID: app, in: database)
                    return nil
                } catch { return error as? DayReport.Problem }
            }
            for text in ["", "today", "2026-02-30", "2026-13-01", "2026-1-1", "2026-11-29T00:00:00Z", "29.11.2026"] {
                #expect(await problem(text) == .noDay, "\(text)")
            }
            let today = try #require(
                try await lab.texts("select to_char(now() at time zone 'UTC', 'YYYY-MM-DD')").first)
            #expect(await problem("2100-01-01") == .inFuture(today: today))
            guard case .tooOld? = await problem("2019-12-31") else {
                Issue.record("too long ago")
                return
            }
            #expect(await problem(today, app: "chess") == .unknownApp)
            #expect(DayReport.Problem.noDay.description.contains("--day"))
            #expect(DayReport.Problem.unknownApp.description.contains("--app"))

            let report = try await DayReport.read(day: today, appID: "game", in: database)
            #expect(!report.isOver && report.app == "game" && report.seals == nil)
            #expect(report.received.contains { $0.account == "grants" && $0.state == "announced" && $0.items == 1 })
            try await lab.run("insert into apps (app_id, configuration_sha256) values ('chess', '')")
            #expect(try await DayReport.read(day: today, appID: "chess", in: database).received == [])
        }
    }
}
