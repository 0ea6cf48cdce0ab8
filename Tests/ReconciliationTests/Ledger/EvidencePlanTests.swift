import Foundation
import Postgres
import Testing

@testable import Ledger

/// Goal: no query for the owner of a purchase reads a whole table. Method: the kept plans of these statements, on
/// filled tables, with statistics of these and of empty tables.
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
                "explain execute short(array['game'], array['\(UUID())'], array['t7'])")
            #expect(short.contains { $0.contains("support_decisions_pkey") })
            #expect(short.contains { $0.contains("orders_pkey") })
            #expect(short.filter { $0.contains("Seq Scan") } == [])
            try await lab.run("prepare tokenless as \(Statements.hasEvidence.sql)")
            let tokenless = try await lab.texts(
                "explain execute tokenless(array['game'], array['u7'], array['i7'], array['t7'], array['coins'], array[now()])"
            )
            for index in [
                "orders_of_product", "orders_of_installation", "grants_of_order", "support_decisions_pkey",
                "merges_by_into",
            ] {
                #expect(
                    tokenless.contains { $0.contains(index) },
                    "\(index) is not used:\n\(tokenless.joined(separator: "\n"))")
            }
            #expect(tokenless.filter { $0.contains("Seq Scan") && !$0.contains("on merges") } == [])
            try await lab.run("prepare evidence as \(Statements.evidence.sql)")
            // In the order of the columns.
            let text = { (value: String) in "array['\(value)']::text[]" }
            let (token, yes, time) = (text(UUID().uuidString), "array[true]", "array[now()]")
            let arguments = [
                text("game"), text("u7"), token, text("i7"), text("u8"), yes, yes, yes, text("t7"), text("k7"),
                text("Production"), text("o7"), text("o8"), text("coins"), time, time, time, time, token, text("c7"),
                yes, "array[false]", yes, yes,
            ]
            let plan = try await lab.texts("explain execute evidence(\(arguments.joined(separator: ", ")))")
            #expect(plan.count > 20)
            #expect(plan.filter { $0.contains("Seq Scan") } == [], "\(plan.joined(separator: "\n"))")
            for index in [
                "orders_of_product", "orders_of_installation", "orders_pkey", "user_tokens_pkey", "granted_tokens_pkey",
                "ownerships_pkey", "transactions_chain", "transactions_chain_revoked", "transactions_periods",
                "merges_pkey", "merges_by_into",
                "apple_updates_of_chain", "grants_of_customer", "grants_of_order",
                "imported_grants_pkey", "imported_grants_chain", "support_decisions_pkey", "installations_pkey",
                "installation_customers_pkey", "grants_purchase_key", "grants_pkey",
            ] {
                #expect(plan.contains { $0.contains(index) }, "\(index) is not used:\n\(plan.joined(separator: "\n"))")
            }
        }
    }

    private static let tables = [
        "orders", "user_tokens", "granted_tokens", "ownerships", "transactions", "grants", "merges", "apple_updates",
        "imported_grants", "support_decisions", "installations", "installation_customers",
    ]

    private static func fill(_ lab: LedgerLab) async throws {
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
