package import Postgres

/// The database this program was built for: the files of Migrations/, compiled in.
package enum Schema {
    package static let migrations: [Migration] = [
        migration(1, "receipts", PackageResources._001_receipts_sql),
        migration(2, "purchases", PackageResources._002_purchases_sql),
        migration(3, "payloads", PackageResources._003_payloads_sql),
        migration(4, "orders", PackageResources._004_orders_sql),
        migration(5, "events", PackageResources._005_events_sql),
        migration(6, "apps", PackageResources._006_apps_sql),
        migration(7, "users", PackageResources._007_users_sql),
        migration(8, "apple", PackageResources._008_apple_sql),
        migration(9, "limits", PackageResources._009_limits_sql),
        migration(10, "moving_in", PackageResources._010_moving_in_sql),
        migration(11, "sums", PackageResources._011_sums_sql),
        migration(12, "views", PackageResources._012_views_sql),
        migration(13, "unnamed_posts", PackageResources._013_unnamed_posts_sql),
        migration(14, "ended_purchases", PackageResources._014_ended_purchases_sql),
        migration(15, "lookups", PackageResources._015_lookups_sql),
        migration(16, "other_ways", PackageResources._016_other_ways_sql),
        migration(17, "notifications", PackageResources._017_notifications_sql),
        migration(18, "refund_requests", PackageResources._018_refund_requests_sql),
        migration(19, "entitlements", PackageResources._019_entitlements_sql),
        migration(20, "refund_views", PackageResources._020_refund_views_sql),
        migration(21, "notification_views", PackageResources._021_notification_views_sql),
        migration(22, "nets", PackageResources._022_nets_sql),
        migration(23, "notification_sweeps", PackageResources._023_notification_sweeps_sql),
        migration(24, "subscription_sweeps", PackageResources._024_subscription_sweeps_sql),
        migration(25, "customer_sweeps", PackageResources._025_customer_sweeps_sql),
        migration(26, "followup_gaps", PackageResources._026_followup_gaps_sql),
        migration(27, "books", PackageResources._027_books_sql),
        migration(28, "seals", PackageResources._028_seals_sql),
        migration(29, "sweep_standings", PackageResources._029_sweep_standings_sql),
        migration(30, "wakes", PackageResources._030_wakes_sql),
        migration(31, "short_functions", PackageResources._031_short_functions_sql),
        migration(32, "book_gaps", PackageResources._032_book_gaps_sql),
        migration(33, "feed_groups", PackageResources._033_feed_groups_sql),
        migration(34, "parked_events", PackageResources._034_parked_events_sql),
        migration(35, "delivery", PackageResources._035_delivery_sql),
        migration(36, "hand_outs", PackageResources._036_hand_outs_sql),
        migration(37, "replays", PackageResources._037_replays_sql),
    ]

    private static func migration(_ number: Int, _ name: String, _ file: [UInt8]) -> Migration {
        Migration(number: number, name: name, sql: String(decoding: file, as: UTF8.self))
    }
}
