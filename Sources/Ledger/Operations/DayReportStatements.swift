import Encoding
import Foundation
package import Postgres
import Purchases

/// The statements that read the report of a day, and those by which the schedulers keep the reports.
extension Statements {
    package struct DayQuestion: Sendable {
        /// As `2026-11-29`, a day of the calendar.
        package let day: String
        /// Nil: all apps.
        package let appID: String?

        package init(day: String, appID: String?) {
            self.day = day
            self.appID = appID
        }

        fileprivate var values: [Value] { [.text(day), .text(appID)] }
    }

    /// A day as the database's clock sees it. Days are texts.
    package struct DayOfReport: Sendable {
        package let readAt: String
        package let today: String
        /// The first day that a report may be about.
        package let first: String
        package let hasBegun: Bool
        package let isOver: Bool
        /// Or no app is named.
        package let isKnownApp: Bool
    }

    package static let dayOfReport = Statement<DayQuestion, DayOfReport>(
        "report.day",
        """
        select now(), to_char(today, 'YYYY-MM-DD'), to_char(today - 400, 'YYYY-MM-DD'), $1::text::date <= today,
          $1::text::date < today, $2::text is null or exists (select from apps where app_id = $2)
        from (select (now() at time zone 'UTC')::date as today) d
        """,
        bind: { $0.values },
        read: { row throws(PostgresError) in
            DayOfReport(
                readAt: try row.date(0).rfc3339, today: try row.text(1), first: try row.text(2),
                hasBegun: try row.bool(3), isOver: try row.bool(4), isKnownApp: try row.bool(5))
        })

    package struct HourQuestion: Sendable {
        package let question: DayQuestion
        /// 0 to 23.
        package let hour: Int
    }

    package static let receivedInHour = Statement<HourQuestion, DayReport.Received>(
        "report.received",
        """
        select account, app_id, environment, source, state, items, balance, oldest_at
        from v_clearing_by_span
        where unit = 'hour' and ($2::text is null or app_id = $2)
          and since = ($1::text::timestamp + make_interval(hours => $3)) at time zone 'UTC'
        """,
        bind: { $0.question.values + [.int32($0.hour)] },
        read: { row throws(PostgresError) in
            DayReport.Received(
                account: try row.text(0), appId: try row.text(1), environment: try row.text(2),
                source: try row.text(3), state: try row.text(4), items: try row.int(5), balance: try row.int(6),
                oldestAt: try row.optionalDate(7)?.rfc3339)
        })

    /// Of whichever day. The parameter: only this app.
    package static let openOfReport = Statement<String?, DayReport.Open>(
        "report.open",
        """
        select account, app_id, state, reason, sum(items)::bigint, min(oldest_at)
        from (
          select 'receipts' as account, app_id, state, reason, receipts as items, oldest_received_at as oldest_at
          from v_open_receipts
          union all
          select 'notifications', coalesce(app_id, ''), state, reason, notifications, oldest_received_at
          from v_open_notifications) o
        where $1::text is null or app_id = $1
        group by 1, 2, 3, 4 order by account = 'notifications', app_id, state, reason
        """,
        bind: { [.text($0)] },
        read: { row throws(PostgresError) in
            DayReport.Open(
                account: try row.text(0), appId: try row.text(1), state: try row.text(2), reason: try row.text(3),
                items: try row.int(4), oldestAt: try row.optionalDate(5)?.rfc3339)
        })

    /// Of whichever day. The parameter: only this app.
    package static let overdueOfReport = Statement<String?, DayReport.Overdue>(
        "report.overdue",
        """
        select account, app_id, count(*), min(since), (array_agg(id order by since, id))[1:10],
          (array_agg(command order by since, id))[1]
        from v_clearing_overdue where $1::text is null or app_id = $1
        group by 1, 2 order by 1, 2
        """,
        bind: { [.text($0)] },
        read: { row throws(PostgresError) in
            DayReport.Overdue(
                account: try row.text(0), appId: try row.text(1), items: try row.int(2),
                oldestAt: try row.date(3).rfc3339, ids: try row.texts(4), command: try row.text(5))
        })

    package static let netsOfReport = Statement<DayQuestion, DayReport.Net>(
        "report.nets",
        """
        select app_id, environment, net, kind, told, caught, alone
        from v_nets where day = $1::text::date and ($2::text is null or app_id = $2) order by 1, 2, 3, 4
        """,
        bind: { $0.values },
        read: { row throws(PostgresError) in
            DayReport.Net(
                appId: try row.text(0), environment: try row.text(1), net: try row.text(2), kind: try row.text(3),
                told: try row.int(4), caught: try row.int(5), alone: try row.int(6))
        })

    package static let differencesOfReport = Statement<DayQuestion, DayReport.Difference>(
        "report.differences",
        """
        select app_id, category, heals_by,
          count(*) filter (where found_at >= since and found_at < until),
          count(*) filter (where state = 'healed' and ended_at >= since and ended_at < until),
          count(*) filter (where state = 'closed' and ended_at >= since and ended_at < until),
          count(*) filter (where state = 'open'), min(found_at) filter (where state = 'open')
        from (
          select $1::text::timestamp at time zone 'UTC' as since,
            ($1::text::timestamp + interval '1 day') at time zone 'UTC' as until) d
        join v_differences v
          on v.state = 'open' or v.found_at >= since and v.found_at < until or v.ended_at >= since and v.ended_at < until
        where $2::text is null or app_id = $2
        group by 1, 2, 3 order by 1, 2
        """,
        bind: { $0.values },
        read: { row throws(PostgresError) in
            DayReport.Difference(
                appId: try row.text(0), category: try row.text(1), healsBy: try row.text(2), found: try row.int(3),
                healed: try row.int(4), closed: try row.int(5), open: try row.int(6),
                oldestAt: try row.optionalDate(7)?.rfc3339)
        })

    /// Of all apps. The parameter: the day. No row: nothing is sealed.
    package static let sealsOfReport = Statement<String, DayReport.Seals>(
        "report.seals",
        """
        select s.number, encode(s.hash, 'hex'), s.sealed_at,
          (select count(*) from seals where sealed_at >= since and sealed_at < until),
          (select count(*) from seal_corrections where corrected_at >= since and corrected_at < until)
        from (
          select $1::text::timestamp at time zone 'UTC' as since,
            ($1::text::timestamp + interval '1 day') at time zone 'UTC' as until) d
        cross join lateral (select number, hash, sealed_at from seals order by number desc limit 1) s
        """,
        bind: { [.text($0)] },
        read: { row throws(PostgresError) in
            DayReport.Seals(
                block: try row.int(0), head: try row.text(1), sealedAt: try row.date(2).rfc3339,
                blocks: try row.int(3), corrections: try row.int(4))
        })

    package static let sampleOfReport = Statement<DayQuestion, DayReport.Sample>(
        "report.sample",
        """
        select app_id, environment, population, drawn, compared, differences, explained, bound
        from audit_days where day = $1::text::date and ($2::text is null or app_id = $2) order by 1, 2
        """,
        bind: { $0.values },
        read: { row throws(PostgresError) in
            DayReport.Sample(
                appId: try row.text(0), environment: try row.text(1), population: try row.int(2),
                drawn: try row.int(3), compared: try row.int(4), differences: try row.int(5),
                explained: try row.int(6), bound: try row.optionalDouble(7))
        })

    // MARK: The reports that are kept

    /// The oldest of the last seven days without a report, an hour after its end. A deployment's first day counts from
    /// the first start of an app. No row: each has one.
    package static let dueReport = Statement<Void, String>(
        "reports.due",
        """
        select to_char(d.day, 'YYYY-MM-DD')
        from (
          select ((now() - interval '1 hour') at time zone 'UTC')::date - n as day from generate_series(1, 7) n) d
        where d.day >= (select (min(first_started_at) at time zone 'UTC')::date from apps)
          and not exists (select from daily_reports r where r.day = d.day)
        order by d.day limit 1
        """,
        read: { row throws(PostgresError) in try row.text(0) })

    /// Keeps the report of a day: a row for the caller that was the first.
    package static let keepReport = Statement<(day: String, report: String), Bool>(
        "reports.keep",
        """
        insert into daily_reports (day, report) values ($1::text::date, $2::jsonb) on conflict do nothing returning true
        """,
        bind: { [.text($0.day), .json($0.report)] }, read: { row throws(PostgresError) in try row.bool(0) })

    /// How many of the last seven days have no report yet, although an hour has passed since their end.
    package static let missingReports = Statement<Void, Int>(
        "reports.missing",
        """
        select count(*) from (
          select ((now() - interval '1 hour') at time zone 'UTC')::date - n as day from generate_series(1, 7) n) d
        where d.day >= (select (min(first_started_at) at time zone 'UTC')::date from apps)
          and not exists (select from daily_reports r where r.day = d.day)
        """,
        read: { row throws(PostgresError) in try row.int(0) })
}
