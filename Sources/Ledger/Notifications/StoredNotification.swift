package import Foundation
package import Postgres
package import Purchases

/// The state of a notification. The raw value is the word in SQL, logs and dashboards.
package enum NotificationState: String, Sendable, CaseIterable {
    /// A worker has the notification, or the scheduler publishes its id again when it is due.
    case received
    /// The notification's content is not known here, or no app has its bundle id. A worker judges it again by command,
    /// and once a week.
    case held
    /// The notification's workers died. A worker judges it again, rarely.
    case parked
    /// The notification's facts are stored.
    case ended
}

/// A notification in the form in which a worker hears it.
package struct StoredNotification: Sendable, Equatable {
    package let id: UUID
    /// 1 or 2, as Apple counts its notifications.
    package let version: Int
    /// Nil: no app had its bundle id when it came.
    package let appID: String?
    package let bundleID: String?
    package let environment: String?
    package let type: String
    package let subtype: String?
    /// As Apple sent it. Nil: retention is over.
    package let payload: String?
    package let state: NotificationState
    package let attempt: Int
    /// Tries since the last result.
    package let rescues: Int
    package let receivedAt: Date
    /// The database's clock when the row was read.
    package let readAt: Date
    /// Why it is held or waits; nil: it is fresh.
    package let reason: String?
    package let cameBy: Net

    package init(
        id: UUID, version: Int, appID: String?, bundleID: String?, environment: String?, type: String,
        subtype: String?, payload: String?, state: NotificationState, attempt: Int, rescues: Int, receivedAt: Date,
        readAt: Date, reason: String? = nil, cameBy: Net = .notification
    ) {
        self.id = id
        self.version = version
        self.appID = appID
        self.bundleID = bundleID
        self.environment = environment
        self.type = type
        self.subtype = subtype
        self.payload = payload
        self.state = state
        self.attempt = attempt
        self.rescues = rescues
        self.receivedAt = receivedAt
        self.readAt = readAt
        self.reason = reason
        self.cameBy = cameBy
    }
}

/// The state of a notification, and what an operator needs beside it.
package struct NotificationStanding: Sendable, Equatable {
    package let id: UUID
    package let appID: String?
    package let type: String
    package let state: NotificationState
    package let reason: String?
    package let attempt: Int
}

extension Statements {
    /// The notifications that messages point at. An id that is not stored is missing from the result.
    package static let fetchNotifications = Statement<[UUID], StoredNotification>(
        "notifications.fetch",
        """
        select id, version, app_id, bundle_id, environment, type, subtype, payload, state, attempt, rescues,
          received_at, now(), reason, came_by
        from notifications where id = any($1::uuid[])
        """,
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in
            StoredNotification(
                id: try row.uuid(0), version: try row.int(1), appID: try row.optionalText(2),
                bundleID: try row.optionalText(3), environment: try row.optionalText(4), type: try row.text(5),
                subtype: try row.optionalText(6), payload: try row.optionalText(7), state: try row.word(8),
                attempt: try row.int(9), rescues: try row.int(10), receivedAt: try row.date(11),
                readAt: try row.date(12), reason: try row.optionalText(13), cameBy: try row.word(14))
        })

    /// A result that stores no facts: the notification ends or is held.
    package struct ClosedNotification: Sendable {
        package var id: UUID
        package var attempt: Int
        /// Nil: it ends.
        package var heldFor: Duration?
        package var reason: String?

        package init(_ notification: StoredNotification, heldFor: Duration? = nil, reason: String?) {
            id = notification.id
            attempt = notification.attempt
            self.heldFor = heldFor
            self.reason = reason
        }
    }

    /// Ends or holds a notification that brings no facts. No row: it was changed since it was read.
    package static let closeNotification = Statement<ClosedNotification, UUID>(
        "notifications.close",
        """
        update notifications set
          state = case when $3::float8 is null then 'ended' else 'held' end, reason = $4, judged_at = now(), rescues = 0,
          settled_at = case when $3::float8 is null then now() end, due_at = now() + make_interval(secs => $3::float8)
        where id = $1 and attempt = $2 and settled_at is null
        returning id
        """,
        bind: { closed in
            [
                .uuid(closed.id), .int32(closed.attempt), .double(closed.heldFor?.inSeconds), .text(closed.reason),
            ]
        },
        read: { row throws(PostgresError) in try row.uuid(0) })

    package struct PostponedNotification: Sendable {
        package var id: UUID
        package var attempt: Int
        package var dueIn: Duration
        package var reason: Reason

        package init(_ notification: StoredNotification, by dueIn: Duration, for reason: Reason) {
            id = notification.id
            attempt = notification.attempt
            self.dueIn = dueIn
            self.reason = reason
        }
    }

    /// Moves a notification's due time, because it cannot be judged yet.
    package static let postponeNotification = Statement<PostponedNotification, UUID>(
        "notifications.postpone",
        """
        update notifications set due_at = now() + make_interval(secs => $3), rescues = 0, judged_at = now(), reason = $4
        where id = $1 and attempt = $2 and settled_at is null
        returning id
        """,
        bind: { [.uuid($0.id), .int32($0.attempt), .double($0.dueIn.inSeconds), .text($0.reason.rawValue)] },
        read: { row throws(PostgresError) in try row.uuid(0) })

    /// The app of a notification that came before the app's configuration did.
    package static let nameAppOfNotification = Statement<(id: UUID, appID: String), Void>(
        "notifications.name_app", "update notifications set app_id = $2 where id = $1 and app_id is null",
        bind: { [.uuid($0.id), .text($0.appID)] })

    package struct ChainQuestion: Sendable {
        package var appID: String
        package var environment: String
        package var originalID: String

        package init(appID: String, environment: String, originalID: String) {
            self.appID = appID
            self.environment = environment
            self.originalID = originalID
        }
    }

    /// Whether a verified transaction of this chain is stored for this app. Facts about a renewal name no app, so only
    /// a transaction ties them to one.
    package static let knowsChain = Statement<ChainQuestion, Bool>(
        "notifications.knows_chain",
        """
        select exists (select from transactions
          where original_transaction_id = $3 and app_id = $1 and environment = $2)
        """,
        bind: { [.text($0.appID), .text($0.environment), .text($0.originalID)] },
        read: { row throws(PostgresError) in try row.bool(0) })
}
