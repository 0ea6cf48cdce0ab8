package import Postgres

/// The database this program was built for: the files of Migrations/, compiled in.
package enum Schema {
    package static let migrations: [Migration] = [
        migration(1, "receipts_and_grants", PackageResources._001_receipts_and_grants_sql),
        migration(2, "least_privilege", PackageResources._002_least_privilege_sql),
        migration(3, "payload_retention", PackageResources._003_payload_retention_sql),
        migration(4, "users", PackageResources._004_users_sql),
        migration(5, "recent_rows", PackageResources._005_recent_rows_sql),
        migration(6, "payload_storage", PackageResources._006_payload_storage_sql),
        migration(7, "proof_headers", PackageResources._007_proof_headers_sql),
        migration(8, "call_budgets", PackageResources._008_call_budgets_sql),
        migration(9, "history_walks", PackageResources._009_history_walks_sql),
        migration(10, "apple_hosts", PackageResources._010_apple_hosts_sql),
        migration(11, "provisional_grants", PackageResources._011_provisional_grants_sql),
        migration(12, "orders", PackageResources._012_orders_sql),
        migration(13, "story_lookups", PackageResources._013_story_lookups_sql),
        migration(14, "owners_of_places", PackageResources._014_owners_of_places_sql),
        migration(15, "catalogue", PackageResources._015_catalogue_sql),
        migration(16, "matching", PackageResources._016_matching_sql),
        migration(17, "orders_of_grants", PackageResources._017_orders_of_grants_sql),
        migration(18, "errands", PackageResources._018_errands_sql),
        migration(19, "moves_and_merges", PackageResources._019_moves_and_merges_sql),
        migration(20, "dashboard_views", PackageResources._020_dashboard_views_sql),
        migration(21, "bonuses", PackageResources._021_bonuses_sql),
        migration(22, "moving_in", PackageResources._022_moving_in_sql),
        migration(23, "feed_eras", PackageResources._023_feed_eras_sql),
        migration(24, "moving_in_safely", PackageResources._024_moving_in_safely_sql),
        migration(25, "reopened_claims", PackageResources._025_reopened_claims_sql),
        migration(26, "rewritten_tokens", PackageResources._026_rewritten_tokens_sql),
        migration(27, "order_bindings", PackageResources._027_order_bindings_sql),
        migration(28, "erasures", PackageResources._028_erasures_sql),
        migration(29, "bulk_lane", PackageResources._029_bulk_lane_sql),
        migration(30, "goods_by_day", PackageResources._030_goods_by_day_sql),
        migration(31, "support_decisions", PackageResources._031_support_decisions_sql),
        migration(32, "storefronts_of_a_day", PackageResources._032_storefronts_of_a_day_sql),
        migration(33, "recent_rows_alone", PackageResources._033_recent_rows_alone_sql),
        migration(34, "double_charge_progress", PackageResources._034_double_charge_progress_sql),
        migration(35, "fewer_index_entries", PackageResources._035_fewer_index_entries_sql),
        migration(36, "grants_bind_orders", PackageResources._036_grants_bind_orders_sql),
        migration(37, "shadow_by_key", PackageResources._037_shadow_by_key_sql),
        migration(38, "events_of_transactions", PackageResources._038_events_of_transactions_sql),
        migration(39, "events_by_transaction_alone", PackageResources._039_events_by_transaction_alone_sql),
        migration(40, "what_it_was", PackageResources._040_what_it_was_sql),
        migration(41, "orders_that_ended", PackageResources._041_orders_that_ended_sql),
        migration(42, "double_charges_by_event", PackageResources._042_double_charges_by_event_sql),
        migration(43, "whose_it_is", PackageResources._043_whose_it_is_sql),
        migration(44, "limit_places", PackageResources._044_limit_places_sql),
        migration(45, "security_log", PackageResources._045_security_log_sql),
        migration(46, "events_of_roles", PackageResources._046_events_of_roles_sql),
        migration(47, "customers_of_production", PackageResources._047_customers_of_production_sql),
        migration(49, "receipt_lines", PackageResources._049_receipt_lines_sql),
    ]

    private static func migration(_ number: Int, _ name: String, _ file: [UInt8]) -> Migration {
        Migration(number: number, name: name, sql: String(decoding: file, as: UTF8.self))
    }
}
