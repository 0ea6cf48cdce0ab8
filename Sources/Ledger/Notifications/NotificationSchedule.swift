package import Foundation
package import Postgres
package import Purchases

// The schedule of notifications: due rows, strikes, forwarding, judging again, and the end of payloads.
extension Statements {
    package struct NotificationClaim: Sendable {
        package var limit: Int
        package var rescueDelay: Duration
        package var rescueDelayMax: Duration
        /// Whether the claim parks a row with eight rescues; false where its messages may never have reached a worker.
        package var mayPark: Bool
        /// Whether the claim takes rows that were rescued before; false where earlier messages still wait in the queue.
        package var repeats: Bool

        package init(
            limit: Int, rescueDelay: Duration, rescueDelayMax: Duration, mayPark: Bool = true, repeats: Bool = true
        ) {
            self.limit = limit
            self.rescueDelay = rescueDelay
            self.rescueDelayMax = rescueDelayMax
            self.mayPark = mayPark
            self.repeats = repeats
        }
    }

    /// Claims due notifications for publishing, the oldest first. As ``claim``: a claim is a lease that doubles with
    /// every rescue without a result, and a row with eight rescues is parked instead.
    package static let claimNotifications = Statement<NotificationClaim, ClaimedReceipt>(
        "notifications.claim",
        """
        with due as (
          select id, $4 and rescues >= $5 and state = 'received' as parks from notifications
          where due_at <= now() and ($6 or rescues = 0)
          order by due_at limit $1 for no key update skip locked)
        update notifications n set
          state = case when d.parks then 'parked' else n.state end,
          reason = case when d.parks then 'never_worked' else n.reason end,
          attempt = n.attempt + d.parks::int, rescues = case when d.parks then 0 else n.rescues + 1 end,
          judged_at = case when d.parks then now() else n.judged_at end,
          due_at = now() + case when d.parks then make_interval(secs => $3 * (1 - random() / 4))
            else make_interval(
              secs => least($2 * power(2, least(n.rescues, 20)) * (1 + random() / 2), $3 * (1 - random() / 4))) end
        from due d where n.id = d.id
        returning n.id, n.attempt, d.parks
        """,
        bind: { claim in
            [
                .int(claim.limit), .double(claim.rescueDelay.inSeconds), .double(claim.rescueDelayMax.inSeconds),
                .bool(claim.mayPark), .int32(rescuesMax), .bool(claim.repeats),
            ]
        },
        read: { row throws(PostgresError) in
            ClaimedReceipt(id: try row.uuid(0), attempt: try row.int(1), isNewlyParked: try row.bool(2))
        })

    package struct NotificationStrike: Sendable {
        package var pointer: Pointer
        package var parking: Parking

        package init(_ pointer: Pointer, parking: Parking) {
            self.pointer = pointer
            self.parking = parking
        }
    }

    /// Counts a message that came again because a worker died with it or gave it back. As ``strike``: the count, 0
    /// where the row was parked just now, no row where it was changed since it was read.
    package static let strikeNotification = Statement<NotificationStrike, Int>(
        "notifications.strike",
        """
        with struck as (
          select id, rescues >= $3 or (state = 'parked' and reason = 'never_worked') as parks from notifications
          where id = $1 and attempt = $2 and settled_at is null for no key update)
        update notifications n set
          state = case when s.parks then 'parked' else n.state end,
          reason = case when s.parks then 'never_worked' else n.reason end, attempt = n.attempt + s.parks::int,
          judged_at = case when s.parks then now() else n.judged_at end,
          due_at = case when s.parks then now() + make_interval(secs => least(greatest(
            extract(epoch from now() - n.received_at)::float8 - $6, $4), $5)) else n.due_at end,
          rescues = case when s.parks then 0 else n.rescues + 1 end
        from struck s where n.id = s.id
        returning n.rescues
        """,
        bind: { strike in
            [
                .uuid(strike.pointer.id), .int32(strike.pointer.attempt), .int32(rescuesMax),
                .double(strike.parking.againMin.inSeconds), .double(strike.parking.againMax.inSeconds),
                .double(strike.parking.after.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in try row.int(0) })

    // MARK: Forwarding

    /// A notification that is sent to the app's other URL.
    package struct ForwardedNotification: Sendable, Equatable {
        package let id: UUID
        package let appID: String
        package let version: Int
        package let payload: String
        /// The number of this try, from 1.
        package let attempt: Int
        package let age: Duration
    }

    package struct ForwardClaim: Sendable {
        package var apps: [String]
        package var limit: Int
        /// Until a try without a result is repeated; it doubles with each try up to `delayMax`.
        package var delay: Duration
        package var delayMax: Duration

        package init(apps: [String], limit: Int, delay: Duration, delayMax: Duration) {
            self.apps = apps
            self.limit = limit
            self.delay = delay
            self.delayMax = delayMax
        }
    }

    /// Claims notifications that are due at other URLs, the oldest first. The claim sets the time of the next try, so
    /// that a process that dies with a notification loses nothing.
    package static let claimForwards = Statement<ForwardClaim, ForwardedNotification>(
        "notifications.claim_forwards",
        """
        with due as (
          select id from notifications
          where forward_due_at <= now() and app_id = any($1::text[]) and payload is not null
          order by forward_due_at limit $2 for no key update skip locked)
        update notifications n set forward_attempts = n.forward_attempts + 1,
          forward_due_at = now() + make_interval(secs => least($3 * power(2, least(n.forward_attempts, 20)), $4))
        from due d where n.id = d.id
        returning n.id, n.app_id, n.version, n.payload, n.forward_attempts,
          extract(epoch from now() - n.received_at)::float8
        """,
        bind: { claim in
            [
                .texts(claim.apps), .int(claim.limit), .double(claim.delay.inSeconds),
                .double(claim.delayMax.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in
            ForwardedNotification(
                id: try row.uuid(0), appID: try row.text(1), version: try row.int(2), payload: try row.text(3),
                attempt: try row.int(4), age: .seconds(try row.double(5)))
        })

    /// Ends the forwarding of notifications: the other URL has taken them, or the forwarder gives them up.
    package static let endForwards = Statement<[UUID], Void>(
        "notifications.end_forwards",
        "update notifications set forward_due_at = null where id = any($1::uuid[]) and forward_due_at is not null",
        bind: { [.uuids($0)] })

    // MARK: Judging again

    package struct NotificationRejudging: Sendable {
        package var appID: String?
        package var type: String?
        package var limit: Int

        package init(appID: String? = nil, type: String? = nil, limit: Int) {
            self.appID = appID
            self.type = type
            self.limit = limit
        }
    }

    /// `makegood notifications rejudge`: makes held and parked notifications due now. A slow worker's result from
    /// before is stale.
    package static let rejudgeNotifications = Statement<NotificationRejudging, UUID>(
        "notifications.rejudge",
        """
        with candidate as (
          select id from notifications
          where due_at is not null and state in ('held', 'parked')
            and ($1::text is null or app_id = $1) and ($2::text is null or type = $2)
          order by due_at limit $3 for no key update skip locked)
        update notifications n set state = 'received', reason = null, attempt = n.attempt + 1, rescues = 0, due_at = now()
        from candidate c where n.id = c.id
        returning n.id
        """,
        bind: { [.text($0.appID), .text($0.type), .int($0.limit)] },
        read: { row throws(PostgresError) in try row.uuid(0) })

    package struct ConfiguredApps: Sendable {
        package var ids: [String]
        package var bundleIDs: [String]
        package var limit: Int

        package init(ids: [String], bundleIDs: [String], limit: Int) {
            self.ids = ids
            self.bundleIDs = bundleIDs
            self.limit = limit
        }
    }

    /// Makes notifications due that are held because no app had their bundle id, and whose app is configured now; also
    /// those whose row names neither an app nor a bundle id, because their payload may name one. Returns the ids.
    package static let wakeNotifications = Statement<ConfiguredApps, UUID>(
        "notifications.wake",
        """
        with candidate as (
          select id from notifications
          where due_at > now() and state = 'held' and reason = '\(Reason.appUnknown.rawValue)'
            and (app_id = any($1::text[]) or app_id is null and (bundle_id is null or bundle_id = any($2::text[])))
          order by due_at limit $3 for no key update skip locked)
        update notifications n set attempt = n.attempt + 1, rescues = 0, due_at = now()
        from candidate c where n.id = c.id
        returning n.id
        """,
        bind: { [.texts($0.ids), .texts($0.bundleIDs), .int($0.limit)] },
        read: { row throws(PostgresError) in try row.uuid(0) })

    package struct HeldNotifications: Sendable, Equatable {
        package let appID: String?
        package let type: String
        package let reason: String
        package let count: Int
    }

    /// The held and parked notifications by app, type and reason.
    package static let heldNotifications = Statement<NotificationRejudging, HeldNotifications>(
        "notifications.held",
        """
        select app_id, type, coalesce(reason, ''), count(*) from notifications
        where due_at is not null and state in ('held', 'parked')
          and ($1::text is null or app_id = $1) and ($2::text is null or type = $2)
        group by 1, 2, 3 order by 4 desc, 1, 2, 3 limit $3
        """,
        bind: { [.text($0.appID), .text($0.type), .int($0.limit)] },
        read: { row throws(PostgresError) in
            HeldNotifications(
                appID: try row.optionalText(0), type: try row.text(1), reason: try row.text(2), count: try row.int(3))
        })

    /// The states of the notifications that dead letters point at. An id that is not stored is missing from the result.
    package static let notificationStandings = Statement<[UUID], NotificationStanding>(
        "notifications.standings",
        "select id, app_id, type, state, reason, attempt from notifications where id = any($1::uuid[])",
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in
            NotificationStanding(
                id: try row.uuid(0), appID: try row.optionalText(1), type: try row.text(2), state: try row.word(3),
                reason: try row.optionalText(4), attempt: try row.int(5))
        })

    // MARK: Retention

    package struct NotificationRetention: Sendable {
        /// Payloads of notifications that ended at least so many days ago are emptied.
        package var days: Int
        package var batch: Int

        package init(days: Int, batch: Int) {
            self.days = days
            self.batch = batch
        }
    }

    /// Empties payloads of ended notifications, a batch at a time. Returns how many.
    package static let emptyNotifications = Statement<NotificationRetention, Int>(
        "notifications.empty_payloads",
        """
        with old as (
          select id from notifications
          where received_at < now() - make_interval(days => $1) and settled_at < now() - make_interval(days => $1)
            and payload is not null
          limit $2 for no key update skip locked),
        emptied as (
          update notifications set payload = null, forward_due_at = null where id in (select id from old) returning 1)
        select count(*)::int from emptied
        """,
        bind: { [.int32($0.days), .int($0.batch)] },
        read: { row throws(PostgresError) in try row.int(0) })
}
