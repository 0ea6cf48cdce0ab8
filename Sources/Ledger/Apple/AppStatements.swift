package import Foundation
package import Postgres
import Purchases

extension Statements {
    package struct AppStart: Sendable {
        package var appID: String
        package var configurationHash: [UInt8]
        /// False: the app is in shadow (`AppPolicy/Mode`).
        package var isLive = true
        /// Whether this process judges purchases. Only such a process takes an app back into shadow, because another
        /// process may have started with an older file.
        package var judges = true
        /// Whether this process had another configuration until now. Then it may have judged held rows by that one.
        package var isChanged = false

        package init(
            appID: String, configurationHash: [UInt8], isLive: Bool = true, judges: Bool = true, isChanged: Bool = false
        ) {
            self.appID = appID
            self.configurationHash = configurationHash
            self.isLive = isLive
            self.judges = judges
            self.isChanged = isChanged
        }
    }

    package struct AppDates: Sendable, Equatable {
        /// The app's first start.
        package var first: Date
        /// `grantFrom` where the configuration does not set it.
        package var grantFrom: Date
    }

    /// Remembers an app's first start for ever, and since when the app is live. The default of `grantFrom` is the time
    /// when the app went live, and the first start while the app is in shadow. An app that goes back into shadow counts
    /// as live from when it leaves shadow again, because the other system gives the purchases that come meanwhile, as
    /// the first time. Where another process stores the row at this moment, and the statement sees none, the times are
    /// now.
    package static let rememberApp = Statement<AppStart, AppDates>(
        "ledger.remember_app",
        """
        with stored as (
          insert into apps (app_id, configuration_sha256, live_since) values ($1, $2, case when $3 then now() end)
          on conflict (app_id) do nothing returning first_started_at, live_since),
        changed as (
          update apps set live_since = case when $3 then now() end
          where app_id = $1 and (live_since is null) = $3 and ($3 or $4) returning live_since),
        known as (
          select first_started_at, live_since from stored
          union all select first_started_at, live_since from apps where app_id = $1)
        select i.first, case when $3
          then coalesce((select live_since from changed), (select live_since from known), now()) else i.first end
        from (select coalesce((select first_started_at from known), now()) as first) i
        """,
        bind: { [.text($0.appID), .bytes($0.configurationHash), .bool($0.isLive), .bool($0.judges)] },
        read: { row throws(PostgresError) in AppDates(first: try row.date(0), grantFrom: try row.date(1)) })

    /// Stores which configuration is in force, and makes an app's held rows due where the configuration has changed: a
    /// product that was missing may be there now. The caller must already judge by the configuration. Returns how many
    /// rows became due.
    ///
    /// Rows that are held in shadow do not become due: they may be all purchases of weeks, too many for one statement,
    /// and an operator must first import what the former system gave.
    package static let takeConfiguration = Statement<AppStart, Int>(
        "ledger.take_configuration",
        """
        with before as (select configuration_sha256 from apps where app_id = $1),
        stored as (
          update apps set configuration_sha256 = $2 where app_id = $1 and configuration_sha256 <> $2),
        woken as (
          update receipts set due_at = now(), rescues = 0
          where lane in (\(lanes)) and app_id = $1 and state = 'held' and due_at > now()
            and reason is distinct from '\(Reason.shadow.rawValue)'
            and ($3 or exists (select from before where configuration_sha256 <> $2))
          returning id)
        select count(*) from woken
        """,
        bind: { [.text($0.appID), .bytes($0.configurationHash), .bool($0.isChanged)] },
        read: { row throws(PostgresError) in try row.int(0) })

    package struct StaleQuestion: Sendable {
        package var receiptID: UUID
        package var appID: String
        /// The hash of the configuration that the receipt was judged by.
        package var hash: [UInt8]
        package var dueIn: Duration

        package init(receiptID: UUID, appID: String, hash: [UInt8], dueIn: Duration) {
            self.receiptID = receiptID
            self.appID = appID
            self.hash = hash
            self.dueIn = dueIn
        }
    }

    /// Makes a held receipt due earlier if it was judged by another configuration than its app's configuration in
    /// force.
    package static let wakeIfStale = Statement<StaleQuestion, Void>(
        "ledger.wake_if_stale",
        """
        update receipts set due_at = least(due_at, now() + make_interval(secs => $4))
        where id = $1 and state = 'held'
          and exists (select from apps where app_id = $2 and configuration_sha256 <> $3)
        """,
        bind: { [.uuid($0.receiptID), .text($0.appID), .bytes($0.hash), .double($0.dueIn.inSeconds)] })
}
