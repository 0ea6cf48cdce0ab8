package import Foundation
package import Postgres

extension Statements {
    package struct AppStart: Sendable {
        package var appID: String
        package var configurationHash: [UInt8]
        /// This process had another configuration until now: its held rows may have been judged by it.
        package var isChanged = false
    }

    /// Remembers an app's first start: the default of `grantFrom`.
    package static let rememberApp = Statement<AppStart, Date>(
        "ledger.remember_app",
        """
        with stored as (
          insert into apps (app_id, configuration_sha256) values ($1, $2)
          on conflict (app_id) do nothing returning first_started_at)
        select coalesce((select first_started_at from stored), (select first_started_at from apps where app_id = $1),
          now())
        """,
        bind: { [.text($0.appID), .bytes($0.configurationHash)] },
        read: { row throws(PostgresError) in try row.date(0) })

    /// Stores which configuration is in force, and makes an app's held rows due where it is another than before: a
    /// product that was missing may be there now. Call when this process judges by it.
    package static let takeConfiguration = Statement<AppStart, Int>(
        "ledger.take_configuration",
        """
        with before as (select configuration_sha256 from apps where app_id = $1),
        stored as (
          update apps set configuration_sha256 = $2 where app_id = $1 and configuration_sha256 <> $2),
        woken as (
          update receipts set due_at = now(), rescues = 0
          where lane in ('local', 'apple') and app_id = $1 and state = 'held' and due_at > now()
            and ($3 or exists (select from before where configuration_sha256 <> $2))
          returning id)
        select count(*) from woken
        """,
        bind: { [.text($0.appID), .bytes($0.configurationHash), .bool($0.isChanged)] },
        read: { row throws(PostgresError) in try row.int(0) })
}
