import Foundation
import Postgres
import Testing

@testable import Ledger

/// Goal: no query for the owner of a purchase, or for what a user has, reads a whole table. Method: the kept plans of
/// these statements, on filled tables, with statistics of these and of empty tables.
@Suite(.timeLimit(.minutes(8))) struct EvidencePlanTests {
    @Test("on filled tables, also behind old statistics, no question reads a table", arguments: [true, false])
    func plan(isAnalyzed: Bool) async throws {
        try await LedgerLab.with(connections: 1, endsSound: false) { lab in
            for table in Self.tables { try await lab.run("alter table \(table) set (autovacuum_enabled = false)") }
            if !isAnalyzed { try await lab.run("analyze") }
            try await Self.fill(lab)
            if isAnalyzed { try await lab.run("analyze") }
            try await lab.run("set plan_cache_mode = force_generic_plan")
            try await lab.run("prepare short as \(Statements.orderOfToken.sql)")
            let short = try await lab.texts(
                "explain execute short(array['game'], array['\(UUID())'], array['t7'], array['Production/t7'])")
            #expect(short.contains { $0.contains("support_decisions_pkey") })
            #expect(short.contains { $0.contains("orders_pkey") })
            #expect(short.filter { $0.contains("Seq Scan") } == [])
            try await lab.run("prepare tokenless as \(Statements.hasEvidence.sql)")
            let tokenless = try await lab.texts(
                """
                explain execute tokenless(array['game'], array['u7'], array['i7'], array['t7'], array['Production/t7'],
                  array['coins'], array[now()])
                """)
            for index in [
                "orders_of_product", "orders_of_installation", "grants_of_order", "support_decisions_pkey",
                "merges_by_into",
            ] {
                #expect(
                    tokenless.contains { $0.contains(index) },
                    "\(index) is not used:\n\(tokenless.joined(separator: "\n"))")
            }
            #expect(tokenless.filter { $0.contains("Seq Scan") && !$0.contains("on merges") } == [])
            for probe in Self.probes {
                try await lab.run("prepare \(probe.name) as \(probe.sql)")
                let plan = try await lab.texts("explain execute \(probe.name)(\(probe.values.joined(separator: ", ")))")
                let text = "\(probe.name):\n\(plan.joined(separator: "\n"))"
                #expect(plan.count > 2 && !text.contains("Seq Scan"), "\(text)")
                for index in probe.indexes { #expect(text.contains(index), "\(index) is not used by \(text)") }
            }
        }
    }

    /// Each statement of the evidence, with a value for each of its columns, and the indexes that it must use.
    private static let probes: [(name: String, sql: String, values: [String], indexes: [String])] = {
        let text = { (value: String) in "array['\(value)']::text[]" }
        let (app, user, id, key) = (text("game"), text("u7"), text("t7"), text("k7"))
        let (environment, original, previous) = (text("Production"), text("o7"), text("o8"))
        let (product, installation, token) = (text("coins"), text("i7"), text(UUID().uuidString))
        let (yes, no, time) = ("array[true]", "array[false]", "array[now()]")
        let order = ["orders_pkey", "grants_of_order", "merges_pkey", "users_pkey"]
        return [
            (
                "named_orders", Statements.namedOrders.sql, [app, id, token, token, installation, yes, yes],
                order + ["grants_pkey"]
            ),
            (
                "support_decisions", Statements.decisionsOfSupport.sql, [app, id, text("Production/t7"), key, time],
                ["support_decisions_pkey", "grants_purchase_key", "transactions_pkey"]
            ),
            (
                "users_of_token", Statements.usersOfToken.sql, [app, token, environment, original, previous, yes],
                ["user_tokens_pkey", "granted_tokens_pkey", "transactions_pkey", "apple_updates_of_chain"]
            ),
            (
                "owners_of_chains", Statements.ownersOfChains.sql, [app, environment, original, previous, yes],
                ["ownerships_pkey", "transactions_chain", "grants_pkey"]
            ),
            (
                "purchases_before", Statements.purchasesBefore.sql, [app, id, environment, original, previous, time],
                ["transactions_chain"]
            ),
            (
                "grants_of_chains", Statements.grantsOfChains.sql, [app, environment, original, time, time, no],
                [
                    "transactions_chain", "transactions_periods", "transactions_pkey", "grants_pkey",
                    "imported_grants_pkey", "imported_grants_chain",
                ]
            ),
            (
                "taken_back", Statements.takenBackUnderAnotherID.sql,
                [app, id, environment, original, time, time, no, time, yes],
                ["transactions_chain_revoked", "transactions_chain "]
            ),
            (
                "successors", Statements.purchasesWithSuccessor.sql, [app, environment, original, product, time],
                ["transactions_chain"]
            ),
            ("users_of_record", Statements.usersOfRecord.sql, [app, user], ["orders_of_product", "record_apps_pkey"]),
            ("users_of_customer", Statements.usersOfCustomer.sql, [app, text("c7")], ["grants_of_customer"]),
            (
                "posts_of_purchases", Statements.postsOfPurchases.sql, [app, id],
                ["outcomes_not_granted", "receipts_pkey", "receipts_shown"]
            ),
            (
                "are_granted", Statements.areGranted.sql, [id, key, environment, original, time],
                ["grants_pkey", "grants_purchase_key", "imported_grants_pkey", "imported_grants_chain"]
            ),
            (
                "orders_of_users", Statements.ordersOfUsers.sql, [app, user, product, time, installation, yes],
                order + ["orders_of_product", "merges_by_into"]
            ),
            (
                "orders_nearby", Statements.ordersNearby.sql, [app, installation, product, time, yes],
                order + ["orders_of_installation"]
            ),
            (
                "proven_installations", Statements.provenInstallations.sql, [app, installation, environment],
                ["installations_pkey", "installation_customers_pkey"]
            ),
            (
                "entitlement_chains", Statements.ownedChains.sql, [app, user, yes, environment],
                [
                    "ownerships_by_user", "grants_entitling", "ownerships_pkey", "transactions_chain", "merges_by_into",
                    "users_pkey",
                ]
            ),
            (
                "entitlement_purchases", Statements.purchasesOfChains.sql, [app, environment, original],
                ["chains_pkey", "chains_after", "transactions_chain", "grants_pkey", "imported_grants_chain"]
            ),
            (
                "posters_with_token", Statements.postersWithToken.sql, [app, user],
                ["merges_by_into", "user_tokens_by_user"]
            ),
        ]
    }()

    private static let tables = [
        "orders", "user_tokens", "granted_tokens", "ownerships", "transactions", "grants", "merges", "apple_updates",
        "imported_grants", "support_decisions", "installations", "installation_customers", "receipts", "outcomes",
    ]

    private static func fill(_ lab: LedgerLab) async throws {
        try await lab.run(
            """
            insert into receipts (id, app_id, user_id, kind, lane, is_vouched, details, payload_sha256, state, reason,
              due_at, shown_transaction_id)
            select md5(n::text)::uuid, 'game', 'u' || n % 1000, 'signed_transaction', 'local', false, '{}', '\\x00', 'held',
              'review', now(), 't' || n from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into outcomes (receipt_id, transaction_id, state)
            select md5(n::text)::uuid, 't' || n, 'held' from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into imported_grants (transaction_id, app_id, environment, original_transaction_id, user_id, product_id,
              purchased_at)
            select 'i' || n, 'game', 'Production', 'io' || n, 'u' || n % 1000, 'coins', now()
            from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into support_decisions (app_id, transaction_id, user_id)
            select 'game', 's' || n, 'u' || n % 1000 from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into merges (app_id, user_id, into_user_id)
            select 'game', 'guest' || n, 'u' || n % 1000 from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into orders (id, app_id, user_id, product_id, placed_at, installation_id)
            select gen_random_uuid(), 'game', 'u' || n % 1000, 'coins', now() - n * interval '1 second', 'i' || n % 1000
            from generate_series(1, 30000) n
            """)
        try await lab.run(
            "insert into installations (id, app_id) select 'i' || n, 'game' from generate_series(0, 19999) n")
        try await lab.run(
            """
            insert into installation_customers (installation_id, environment, customer_id)
            select 'i' || n, 'Production', 'c' || n from generate_series(0, 19999) n
            """)
        try await lab.run(
            """
            insert into user_tokens (app_id, token, user_id, source)
            select 'game', gen_random_uuid(), 'u' || n % 1000, 'registered' from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into granted_tokens (app_id, token, user_id, transaction_id)
            select 'game', gen_random_uuid(), 'u' || n % 1000, 't' || n from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
              binding_source)
            select 'game', 'Production', 'o' || n, now(), 't' || n, 'u1', 'poster' from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, quantity,
              purchased_at, facts)
            select 't' || n, 'game', 'Production', 'o' || n, 'coins', 1, now(), '{}' from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id, quantity,
              goods, binding_source)
            select 't' || n, 'k' || n, 'game', 'Production', 'u' || n % 1000, gen_random_uuid(), 'coins', 1, '[]', 'poster'
            from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into apple_updates (transaction_id, kind, app_id, environment, original_transaction_id, purchased_at, token)
            select 't' || n, 'set_token', 'game', 'Production', 'o' || n, now(), gen_random_uuid()
            from generate_series(1, 20000) n
            """)
    }
}
