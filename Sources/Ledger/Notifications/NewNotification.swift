package import Foundation
package import Postgres
package import Purchases

/// A notification of Apple's that ingest has verified and not stored yet.
package struct NewNotification: Sendable, Equatable {
    /// Apple's notificationUUID; of version 1, which has none, derived.
    package var id: UUID
    package var version: Int
    /// Nil: no app here has its bundle id.
    package var appID: String?
    package var bundleID: String?
    package var environment: String?
    package var type: String
    package var subtype: String?
    package var transactionID: String?
    package var originalTransactionID: String?
    /// Of version 1 nil.
    package var signedAt: Date?
    /// Of version 2 the JWS; of version 1 the JSON without the password.
    package var payload: String
    package var payloadSHA256: [UInt8]
    /// Whether the notification is sent on to the app's other URL.
    package var isForwarded: Bool
    /// Apple itself, or this server's question for what Apple could not bring.
    package var cameBy = Net.notification

    package init(
        id: UUID, version: Int, appID: String?, bundleID: String?, environment: String?, type: String,
        subtype: String? = nil, transactionID: String? = nil, originalTransactionID: String? = nil,
        signedAt: Date? = nil, payload: String, payloadSHA256: [UInt8], isForwarded: Bool = false
    ) {
        self.id = id
        self.version = version
        self.appID = appID
        self.bundleID = bundleID
        self.environment = environment
        self.type = type
        self.subtype = subtype
        self.transactionID = transactionID
        self.originalTransactionID = originalTransactionID
        self.signedAt = signedAt
        self.payload = payload
        self.payloadSHA256 = payloadSHA256
        self.isForwarded = isForwarded
    }
}

extension Statements {
    package struct NotificationInsertion: Sendable {
        /// Each id once.
        package var notifications: [NewNotification]
        package var schedule: RetrySchedule

        package init(_ notifications: [NewNotification], schedule: RetrySchedule) {
            self.notifications = notifications
            self.schedule = schedule
        }
    }

    /// How long a notification of an unknown app is held before a worker looks at it again; a command may make the
    /// worker look sooner.
    private static let unknownAppHeldFor: Duration = .seconds(7 * 86_400)

    /// Stores the notifications that are not stored yet, and returns their ids. A notification of an app that is not
    /// known here is held.
    package static let insertNotifications = Statement<NotificationInsertion, UUID>(
        "notifications.insert",
        """
        insert into notifications (id, version, app_id, bundle_id, environment, type, subtype, transaction_id,
          original_transaction_id, signed_at, payload, payload_sha256, state, reason, due_at, forward_due_at, came_by)
        select id, version, app, bundle, environment, type, subtype, transaction, original, signed, payload, sha,
          case when app is null then 'held' else 'received' end, case when app is null then 'app_unknown' end,
          now() + make_interval(secs => due_in), case when forwarded then now() end, net
        from unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
          $9::text[], $10::timestamptz[], $11::text[], $12::bytea[], $13::float8[], $14::bool[],
          $15::text[])
          as i(id, version, app, bundle, environment, type, subtype, transaction, original, signed, payload, sha,
            due_in, forwarded, net)
        order by id
        on conflict (id) do nothing
        returning id
        """,
        bind: { insertion in
            let notifications = insertion.notifications
            let schedule = insertion.schedule
            return [
                .uuids(notifications.map(\.id)), .int32s(notifications.map(\.version)),
                .texts(notifications.map(\.appID)), .texts(notifications.map(\.bundleID)),
                .texts(notifications.map(\.environment)), .texts(notifications.map(\.type)),
                .texts(notifications.map(\.subtype)), .texts(notifications.map(\.transactionID)),
                .texts(notifications.map(\.originalTransactionID)), .dates(notifications.map(\.signedAt)),
                .texts(notifications.map(\.payload)), .bytesArray(notifications.map(\.payloadSHA256)),
                .doubles(
                    notifications.map {
                        ($0.appID == nil ? unknownAppHeldFor * schedule.scale : schedule.rescueDelay(.unposted))
                            .inSeconds
                    }),
                .bools(notifications.map(\.isForwarded)), .texts(notifications.map(\.cameBy.rawValue)),
            ]
        },
        read: { row throws(PostgresError) in try row.uuid(0) })

    /// Counts notifications that Apple sent again; an id stands as often as it came. Locks the rows in the order of
    /// their ids.
    package static let countNotificationRepeats = Statement<[UUID], Void>(
        "notifications.count_repeats",
        """
        with counted as (select id, count(*)::int as times from unnest($1::uuid[]) as i(id) group by id),
        locked as (
          select n.id, c.times from notifications n join counted c on c.id = n.id order by n.id for update of n)
        update notifications n set repeats = n.repeats + l.times from locked l where n.id = l.id
        """,
        bind: { [.uuids($0)] })
}
