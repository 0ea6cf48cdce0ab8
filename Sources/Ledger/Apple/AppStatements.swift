package import Foundation
package import Postgres
import Purchases

extension Statements {
    package struct AppStart: Sendable {
        package var appID: String
        package var configurationHash: [UInt8]
        /// False: in shadow (`AppPolicy/Mode`).
        package var isLive = true
        /// Only who judges takes an app back into shadow: any other process may have started on a file of yesterday.
        package var judges = true
        /// This process had another configuration until now: its held rows may have been judged by it.
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
        /// The first start.
        package var first: Date
        /// Where the configuration does not say it.
        package var grantFrom: Date
    }

    /// Remembers an app's first start, once and for ever, and since when it is live: the default of `grantFrom`, in shadow
    /// the first start. Who goes back into shadow is live since he leaves it again: what comes meanwhile is the other
    /// system's, as the first time. A process that sees neither, because another one stores it at this moment, takes the
    /// time of now.
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

    /// Stores which configuration is in force, and makes an app's held rows due where it is another than before: a
    /// product that was missing may be there now. Call when this process judges by it.
    ///
    /// What waits for the end of shadow is not woken: it may be all that was bought in weeks, too much for one statement,
    /// and what the former system gave has to be imported first.
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
        /// Of the configuration that the receipt was judged by.
        package var hash: [UInt8]
        package var dueIn: Duration

        package init(receiptID: UUID, appID: String, hash: [UInt8], dueIn: Duration) {
            self.receiptID = receiptID
            self.appID = appID
            self.hash = hash
            self.dueIn = dueIn
        }
    }

    /// Makes a held receipt due earlier if its app's configuration in force is not the one that it was judged by.
    package static let wakeIfStale = Statement<StaleQuestion, Void>(
        "ledger.wake_if_stale",
        """
        update receipts set due_at = least(due_at, now() + make_interval(secs => $4))
        where id = $1 and state = 'held'
          and exists (select from apps where app_id = $2 and configuration_sha256 <> $3)
        """,
        bind: { [.uuid($0.receiptID), .text($0.appID), .bytes($0.hash), .double($0.dueIn.inSeconds)] })
}
