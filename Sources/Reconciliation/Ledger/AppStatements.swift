package import Foundation
package import Postgres

extension Statements {
    package struct AppStart: Sendable {
        package var appID: String
        package var configurationHash: [UInt8]
    }

    /// Remembers an app's first start (the default of `grantFrom`), and makes its held rows due when its
    /// configuration is another than before: a product that was missing may be there now.
    package static let startApp = Statement<AppStart, Date>(
        "ledger.start_app",
        """
        -- Without a lock: a row that this very statement has changed cannot be locked any more, and would be missing.
        with before as (select configuration_sha256 from apps where app_id = $1),
        stored as (
          insert into apps as a (app_id, configuration_sha256) values ($1, $2)
          on conflict (app_id) do update set configuration_sha256 = excluded.configuration_sha256
            where a.configuration_sha256 <> excluded.configuration_sha256
          returning first_started_at),
        woken as (
          update receipts set due_at = now(), rescues = 0
          where app_id = $1 and state = 'held' and due_at > now()
            and exists (select from before where configuration_sha256 <> $2))
        select coalesce((select first_started_at from stored), (select first_started_at from apps where app_id = $1),
          now())
        """,
        bind: { [.text($0.appID), .bytes($0.configurationHash)] },
        read: { row throws(PostgresError) in try row.date(0) })

    /// The database's clock.
    package static let now = Statement<Void, Date>(
        "ledger.now", "select now()", read: { row throws(PostgresError) in try row.date(0) })
}
