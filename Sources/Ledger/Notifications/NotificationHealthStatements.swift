package import Foundation
package import Postgres
import Purchases

/// Whether Apple's notifications arrive, and the tests that Apple is asked for (P38).
extension Statements {
    /// An app and one of Apple's environments.
    package struct NotificationPlace: Sendable, Hashable {
        package let appID: String
        /// `Production` or `Sandbox`.
        package let environment: String

        package init(appID: String, environment: String) {
            self.appID = appID
            self.environment = environment
        }

        fileprivate var values: [Value] { [.text(appID), .text(environment)] }
    }

    package struct NotificationHealth: Sendable {
        package let place: NotificationPlace
        /// The last notification of any type. Nil: none ever came.
        package let heardAt: Date?
        package let heardType: String?
        /// The usual longest silence of a day, in seconds, and the number of days that were counted.
        package let usualGap: Double?
        package let days: Int
        package let testAskedAt: Date?
        /// `no_url`: App Store Connect has no URL.
        package let testProblem: String?
        /// The database's clock.
        package let now: Date
    }

    /// One row for each app and environment.
    package static let notificationHealth = Statement<Void, NotificationHealth>(
        "notifications.health",
        """
        select app_id, environment, last_received_at, last_type, usual_gap_seconds, coalesce(days, 0), test_asked_at,
          nullif(test_problem, ''), now()
        from v_notification_health
        """,
        read: { row throws(PostgresError) in
            NotificationHealth(
                place: .init(appID: try row.text(0), environment: try row.text(1)), heardAt: try row.optionalDate(2),
                heardType: try row.optionalText(3), usualGap: try row.optionalDouble(4), days: try row.int(5),
                testAskedAt: try row.optionalDate(6), testProblem: try row.optionalText(7), now: try row.date(8))
        })

    /// Takes the right to ask Apple for a test: one row for the caller that got it. Nobody else gets it for a minute.
    package static let claimNotificationTest = Statement<NotificationPlace, Bool>(
        "notifications.claim_test",
        """
        insert into notification_tests (app_id, environment) values ($1, $2)
        on conflict (app_id, environment) do update set claimed_at = now()
        where notification_tests.claimed_at < now() - interval '1 minute'
        returning true
        """,
        bind: { $0.values }, read: { row throws(PostgresError) in try row.bool(0) })

    package struct NotificationTest: Sendable {
        package let place: NotificationPlace
        /// Apple's, of the test. Nil: Apple has no URL for the app.
        package let token: String?

        package init(place: NotificationPlace, token: String?) {
            self.place = place
            self.token = token
        }
    }

    /// Stores Apple's answer. The test counts from the moment of the claim, because Apple may bring the test before
    /// Apple answers.
    package static let noteNotificationTest = Statement<NotificationTest, Void>(
        "notifications.note_test",
        """
        update notification_tests set asked_at = claimed_at, token = $3,
          problem = case when $3 is null then 'no_url' end
        where app_id = $1 and environment = $2
        """,
        bind: { $0.place.values + [.text($0.token)] })

    /// Counts the notifications that Apple itself sent, by the days of the last month that are over and were not
    /// counted. A day is counted once; the query reads only the notifications of days without a row.
    package static let countNotificationDays = Statement<NotificationPlace, Void>(
        "notifications.count_days",
        """
        insert into notification_days (app_id, environment, day, received, longest_gap_seconds)
        select $1, $2, d.day, count(*), max(extract(epoch from n.received_at - n.before))
        from (
          select day::date, day at time zone 'UTC' as since, (day + interval '1 day') at time zone 'UTC' as until
          from generate_series(date_trunc('day', now() at time zone 'UTC') - interval '30 days',
            date_trunc('day', now() at time zone 'UTC') - interval '1 day', interval '1 day') s(day)
          where not exists (
            select from notification_days where app_id = $1 and environment = $2 and day = s.day::date)) d
        cross join lateral (
          select received_at, lag(received_at, 1, (
              select received_at from notifications
              where app_id = $1 and environment = $2 and type <> 'TEST' and received_at < d.since
                and (came_by = 'notification' or repeats > 0)
              order by received_at desc limit 1)) over (order by received_at) as before
          from notifications
          where app_id = $1 and environment = $2 and type <> 'TEST' and received_at >= d.since
            and received_at < d.until and (came_by = 'notification' or repeats > 0)) n
        group by d.day
        on conflict do nothing
        """,
        bind: { $0.values })

    package struct TestArrival: Sendable {
        package let id: UUID
        package let receivedAt: Date
        package let state: String
    }

    /// The first test notification that came since then. No row: none did.
    package static let arrivedNotificationTest = Statement<(place: NotificationPlace, since: Date), TestArrival>(
        "notifications.arrived_test",
        """
        select id, received_at, state from notifications
        where app_id = $1 and environment = $2 and type = 'TEST' and received_at >= $3 order by received_at limit 1
        """,
        bind: { $0.place.values + [.date($0.since)] },
        read: { row throws(PostgresError) in
            TestArrival(id: try row.uuid(0), receivedAt: try row.date(1), state: try row.text(2))
        })

    package struct OpenNotifications: Sendable {
        /// `unknown`: no app here has the bundle id.
        package let appID: String
        package let state: String
        package let notifications: Int
        /// How long the oldest of these notifications has been due; 0 where none is due.
        package let overdueSeconds: Double
    }

    /// Open notifications by app and state, zeros included.
    package static let openNotifications = Statement<Void, OpenNotifications>(
        "watch.open_notifications",
        """
        select a.app_id, s.state, coalesce(sum(o.notifications), 0)::bigint, coalesce(max(o.overdue_seconds), 0)::float8
        from (select app_id from apps union all select 'unknown') a
        cross join (values ('received'), ('held'), ('parked')) s(state)
        left join v_open_notifications o on coalesce(o.app_id, 'unknown') = a.app_id and o.state = s.state
        group by 1, 2
        """,
        read: { row throws(PostgresError) in
            OpenNotifications(
                appID: try row.text(0), state: try row.text(1), notifications: try row.int(2),
                overdueSeconds: try row.double(3))
        })

    package struct RevocationCount: Sendable {
        package let appID: String
        package let reason: String
        package let revocations: Int
    }

    /// The number of purchases that Apple took back within the last day, by app and reason, zeros included.
    package static let revocationsOfDay = Statement<Void, RevocationCount>(
        "watch.revocations",
        """
        select a.app_id, w.reason, coalesce(r.revocations, 0)
        from apps a cross join unnest(array[\(reasons)]) w(reason)
        left join (
          select app_id, reason, count(*) as revocations from revocations
          where recorded_at > now() - interval '1 day' and kind = 'revoked' group by 1, 2) r
          on r.app_id = a.app_id and r.reason = w.reason
        """,
        read: { row throws(PostgresError) in
            RevocationCount(appID: try row.text(0), reason: try row.text(1), revocations: try row.int(2))
        })

    private static let reasons = RevocationEntry.Reason.allCases.map { "'\($0.rawValue)'" }.joined(separator: ", ")
}
