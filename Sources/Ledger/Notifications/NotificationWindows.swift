package import Foundation
package import Postgres
import Purchases

/// A build of an app in one of Apple's environments: Apple answers about notifications of one bundle id.
package struct SweptBuild: Sendable, Hashable {
    package let appID: String
    /// `Production` or `Sandbox`.
    package let environment: String
    package let bundleID: String
    /// How far back Apple remembers the notifications.
    package let reach: Duration

    package init(appID: String, environment: String, bundleID: String, reach: Duration) {
        self.appID = appID
        self.environment = environment
        self.bundleID = bundleID
        self.reach = reach
    }
}

/// A span of Apple's notification history that a process has claimed, until its lease ends.
package struct ClaimedWindow: Sendable, Equatable {
    package let id: Int
    /// The number of the claim: only the last claim moves the row.
    package let reader: Int
    package let appID: String
    package let environment: String
    package let bundleID: String
    package let onlyFailures: Bool
    package let start: Date
    package let end: Date
    /// Apple's token of the next page. Nil: the first page.
    package let page: String?
    /// The pages of this walk so far.
    package let pages: Int
    /// The failures of this page in a row.
    package let attempts: Int
    /// Apple remembers nothing of the window any more.
    package let isForgotten: Bool
}

// The spans of Apple's notification history that are yet to be read.
extension Statements {
    private static let builds =
        "unnest($1::text[], $2::text[], $3::text[], $4::float8[]) as i(app, environment, bundle, reach)"

    private static func values(_ builds: [SweptBuild]) -> [Value] {
        [
            .texts(builds.map(\.appID)), .texts(builds.map(\.environment)), .texts(builds.map(\.bundleID)),
            .doubles(builds.map(\.reach.inSeconds)),
        ]
    }

    /// Has the failures of these builds asked for at once, because a worker has just started.
    package static let beginNotificationSweeps = Statement<[SweptBuild], Void>(
        "sweeps.begin_notifications",
        """
        insert into notification_sweeps as s (app_id, environment, bundle_id)
        select app, environment, bundle from \(builds) order by 1, 2, 3
        on conflict (app_id, environment, bundle_id) do update set failures_due_at = now()
        where s.failures_due_at > now()
        """,
        bind: { values($0) })

    package struct WindowPlan: Sendable {
        package let builds: [SweptBuild]
        /// Between two questions for failures.
        package let failuresEvery: Duration
        /// Between two questions for everything.
        package let allEvery: Duration

        package init(builds: [SweptBuild], failuresEvery: Duration, allEvery: Duration) {
            self.builds = builds
            self.failuresEvery = failuresEvery
            self.allEvery = allEvery
        }
    }

    /// Makes the windows that are due, and returns the purpose of each. Failures are asked for from a day before the
    /// last question on; everything of two days is asked for each day, and of the whole time since the last such
    /// question where that is more; and everything since the last question where nobody asked for two intervals, or
    /// where the database is not the server that it was: another system or timeline, or one that was started since,
    /// from a backup perhaps. No windows are made while those of the same purpose wait for their first walk, unless
    /// nobody asked. The daily question then stays due.
    package static let planNotificationWindows = Statement<WindowPlan, String>(
        "sweeps.plan_notifications",
        """
        with due as (
          select s.app_id, s.environment, s.bundle_id, s.asked_until, d.server, s.failures_due_at <= now() as is_hourly,
            s.all_due_at <= now() and not w.reads_all as is_daily, w.reads_failures,
            now() - make_interval(secs => i.reach) + interval '1 hour' as oldest,
            -- The last question was 27 hours before at most. So at least half a day is asked for twice.
            least(now() - interval '2 days', s.all_due_at - interval '39 hours') as all_since,
            s.asked_until is not null and s.failures_due_at < now() - make_interval(secs => $5) as is_outage,
            s.asked_until is not null and s.server is distinct from d.server as is_other
          from \(builds)
          join notification_sweeps s on s.app_id = i.app and s.environment = i.environment and s.bundle_id = i.bundle
          cross join (select concat_ws('/', system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8),
              extract(epoch from pg_postmaster_start_time())) as server
            from pg_control_system()) d
          cross join lateral (
            select coalesce(bool_or(purpose in ('hourly', 'outage')), false) as reads_failures,
              coalesce(bool_or(purpose = 'daily'), false) as reads_all
            from notification_windows
            where app_id = s.app_id and environment = s.environment and bundle_id = s.bundle_id
              and walked_at is null) w
          where least(s.failures_due_at, s.all_due_at) <= now() and (s.failures_due_at <= now() or not w.reads_all)
          for no key update of s skip locked),
        spans as (
          select d.*, case when is_outage or is_other then 'outage' else 'hourly' end as purpose,
            not (is_outage or is_other) as only_failures,
            greatest(oldest, asked_until - interval '1 day') as since,
            case when asked_until is null then interval '30 days' else interval '1 day' end as step
          from due d where is_hourly and (is_outage or not reads_failures)
          union all
          select d.*, 'daily', false, greatest(oldest, all_since), interval '1 day' from due d where is_daily),
        moved as (
          update notification_sweeps s set
            failures_due_at = case when d.is_hourly then now() + make_interval(secs => $5 * (1 + random() / 10))
              else s.failures_due_at end,
            all_due_at = case when d.is_daily then now() + make_interval(secs => $6 * (1 + random() / 10))
              else s.all_due_at end,
            asked_until = case when d.is_hourly and (d.is_outage or not d.reads_failures) then now()
              else s.asked_until end,
            server = case when d.is_hourly and (d.is_outage or not d.reads_failures) then d.server else s.server end
          from due d
          where s.app_id = d.app_id and s.environment = d.environment and s.bundle_id = d.bundle_id)
        insert into notification_windows
          (app_id, environment, bundle_id, purpose, only_failures, start_at, end_at)
        select app_id, environment, bundle_id, purpose, only_failures, at, least(at + step, now())
        from spans cross join lateral generate_series(since, now() - interval '1 second', step) at
        order by 1, 2, 3, at
        returning purpose
        """,
        bind: { plan in
            values(plan.builds) + [.double(plan.failuresEvery.inSeconds), .double(plan.allEvery.inSeconds)]
        },
        read: { row throws(PostgresError) in try row.text(0) })

    package struct WindowClaim: Sendable {
        package let builds: [SweptBuild]
        package let limit: Int
        /// Longer than any page takes.
        package let lease: Duration

        package init(builds: [SweptBuild], limit: Int, lease: Duration) {
            self.builds = builds
            self.limit = limit
            self.lease = lease
        }
    }

    /// Claims windows that are due, the longest due first. A window that begins anew begins where Apple still
    /// remembers.
    package static let claimNotificationWindows = Statement<WindowClaim, ClaimedWindow>(
        "sweeps.claim_notifications",
        """
        with due as (
          select w.id, now() - make_interval(secs => i.reach) + interval '1 hour' as oldest
          from notification_windows w
          join \(builds) on i.app = w.app_id and i.environment = w.environment and i.bundle = w.bundle_id
          where w.due_at <= now()
          order by w.due_at, w.id limit $5 for no key update of w skip locked)
        update notification_windows w set reader = w.reader + 1, due_at = now() + make_interval(secs => $6),
          start_at = case when w.page is null and w.end_at > d.oldest then greatest(w.start_at, d.oldest)
            else w.start_at end
        from due d where w.id = d.id
        returning w.id, w.reader, w.app_id, w.environment, w.bundle_id, w.only_failures, w.start_at, w.end_at, w.page,
          w.pages, w.attempts, w.end_at <= d.oldest
        """,
        bind: { claim in values(claim.builds) + [.int(claim.limit), .double(claim.lease.inSeconds)] },
        read: { row throws(PostgresError) in
            ClaimedWindow(
                id: try row.int(0), reader: try row.int(1), appID: try row.text(2), environment: try row.text(3),
                bundleID: try row.text(4), onlyFailures: try row.bool(5), start: try row.date(6), end: try row.date(7),
                page: try row.optionalText(8), pages: try row.int(9), attempts: try row.int(10),
                isForgotten: try row.bool(11))
        })

    struct WindowMove: Sendable {
        let window: ClaimedWindow
        /// Nil: the page was the last one.
        let next: String?
        /// Entries of the page that do not verify.
        let passedOver: Int
        /// Until the list is read again, if entries were passed over; it doubles with each such walk.
        let againAfter: Duration
    }

    /// Goes on behind a page, and returns how many entries of the walk were passed over. No row: another worker has the
    /// window.
    static let moveNotificationWindow = Statement<WindowMove, Int>(
        "sweeps.move_notifications",
        """
        update notification_windows set page = $3, pages = case when page is null then 1 else pages + 1 end,
          passed_over = $4 + case when page is null then 0 else passed_over end, attempts = 0,
          walks = walks + ($3::text is null)::int,
          walked_at = case when $3::text is null then coalesce(walked_at, now()) else walked_at end,
          due_at = case when $3::text is null then now() + make_interval(secs => $5 * power(2, least(walks, 4)))
            else now() end
        where id = $1 and reader = $2
        returning passed_over
        """,
        bind: { move in
            [
                .int(move.window.id), .int(move.window.reader), .text(move.next), .int32(move.passedOver),
                .double(move.againAfter.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in try row.int(0) })

    /// Ends a window that was read to its end, or that Apple has forgotten.
    package static let endNotificationWindow = Statement<ClaimedWindow, Void>(
        "sweeps.end_notifications", "select end_notification_window($1, $2, $3)",
        bind: { [.int($0.id), .int($0.reader), .bool(!$0.isForgotten)] }, read: { _ in })

    static let countFoundNotifications = Statement<(window: ClaimedWindow, found: Int), Void>(
        "sweeps.count_notifications",
        """
        update notification_sweeps set found = found + $4 where app_id = $1 and environment = $2 and bundle_id = $3
        """,
        bind: { [.text($0.window.appID), .text($0.window.environment), .text($0.window.bundleID), .int($0.found)] })

    package struct WindowFailure: Sendable {
        package let window: ClaimedWindow
        package let dueIn: Duration
        /// Whether the list begins anew.
        package let forgetsPage: Bool

        package init(_ window: ClaimedWindow, dueIn: Duration, forgetsPage: Bool) {
            self.window = window
            self.dueIn = dueIn
            self.forgetsPage = forgetsPage
        }
    }

    /// Has the page of a window asked for again, or the list from its first page on.
    package static let failNotificationWindow = Statement<WindowFailure, Void>(
        "sweeps.fail_notifications",
        """
        update notification_windows set due_at = now() + make_interval(secs => $3), attempts = attempts + 1,
          page = case when $4 then null else page end
        where id = $1 and reader = $2
        """,
        bind: { failure in
            [
                .int(failure.window.id), .int(failure.window.reader), .double(failure.dueIn.inSeconds),
                .bool(failure.forgetsPage),
            ]
        })

    /// Has a window begin anew whose list could not be read to its end, in two halves if it is longer than an hour: a
    /// shorter list ends sooner.
    package static let halveNotificationWindow = Statement<(window: ClaimedWindow, dueIn: Duration), Void>(
        "sweeps.halve_notifications",
        """
        with whole as (
          select id, end_at, case when end_at - start_at > interval '1 hour'
            then date_trunc('milliseconds', start_at + (end_at - start_at) / 2) else end_at end as middle
          from notification_windows where id = $1 and reader = $2 for no key update),
        first as (
          update notification_windows w set page = null, attempts = w.attempts + 1, end_at = o.middle,
            due_at = now() + make_interval(secs => $3)
          from whole o where w.id = o.id
          returning w.app_id, w.environment, w.bundle_id, w.purpose, w.only_failures, w.made_at, o.middle,
            o.end_at as until)
        insert into notification_windows
          (app_id, environment, bundle_id, purpose, only_failures, start_at, end_at, made_at)
        select app_id, environment, bundle_id, purpose, only_failures, middle, until, made_at
        from first where middle < until
        """,
        bind: { [.int($0.window.id), .int($0.window.reader), .double($0.dueIn.inSeconds)] })

    package struct NotificationsQuestion: Sendable {
        package let appID: String
        /// Nil: as far back as Apple remembers.
        package let since: Date?

        package init(appID: String, since: Date?) {
            self.appID = appID
            self.since = since
        }
    }

    /// Has all of an app's notifications since then asked for, in windows of a day. Returns the spans. No row: no
    /// worker with credentials of the app has run.
    package static let askNotificationHistory = Statement<NotificationsQuestion, (environment: String, start: Date)>(
        "sweeps.ask_notifications",
        """
        insert into notification_windows (app_id, environment, bundle_id, purpose, only_failures, start_at, end_at)
        select s.app_id, s.environment, s.bundle_id, 'command', false, at, least(at + interval '1 day', now())
        from notification_sweeps s
        cross join lateral generate_series(
          greatest($2, now() - case s.environment when 'Sandbox' then interval '30 days' else interval '180 days' end
            + interval '1 hour'), now() - interval '1 second', interval '1 day') at
        where s.app_id = $1
        order by s.environment, s.bundle_id, at
        returning environment, start_at
        """,
        bind: { [.text($0.appID), .date($0.since)] },
        read: { row throws(PostgresError) in (environment: try row.text(0), start: try row.date(1)) })
}

/// A page of Apple's notification history that was verified.
package struct ReadHistoryPage: Sendable {
    package let window: ClaimedWindow
    /// Each id once.
    package let notifications: [NewNotification]
    /// Apple's token of the next page. Nil: this was the last page.
    package let next: String?
    /// Entries that do not verify.
    package let passedOver: Int
    /// Until the list is read again if entries of it were passed over.
    package let againAfter: Duration

    package init(
        _ window: ClaimedWindow, notifications: [NewNotification], next: String?, passedOver: Int, againAfter: Duration
    ) {
        self.window = window
        self.notifications = notifications
        self.next = next
        self.passedOver = passedOver
        self.againAfter = againAfter
    }
}

extension Ledger {
    /// Stores the notifications of a page that are not stored yet, and then moves the position, in one transaction.
    /// Returns the ids of the new ones. If another worker has claimed the window, the notifications are stored all the
    /// same, and the position stays.
    package func store(_ page: ReadHistoryPage) async throws(LedgerError) -> [UUID] {
        let schedule = schedule
        do {
            return try await database.transact("sweeps.store_notifications") { transaction throws(PostgresError) in
                let stored =
                    page.notifications.isEmpty
                    ? nil
                    : transaction.queue(
                        Statements.insertNotifications, .init(page.notifications, schedule: schedule))
                let moved = transaction.queue(
                    Statements.moveNotificationWindow,
                    .init(
                        window: page.window, next: page.next, passedOver: page.passedOver, againAfter: page.againAfter))
                try transaction.exchange()
                let new = stored?.rows ?? []
                if !new.isEmpty {
                    transaction.queue(Statements.countFoundNotifications, (window: page.window, found: new.count))
                }
                if page.next == nil, moved.rows == [0] {
                    transaction.queue(Statements.endNotificationWindow, page.window)
                }
                try transaction.commit()
                return new
            }
        } catch {
            throw LedgerError(error)
        }
    }
}
