import Ledger
import Postgres

/// Measures a statement in a database with the rows of years.
extension LedgerLab {
    /// The blocks of this database that the server reads or finds in memory for `body`, including the blocks for the
    /// count itself. No other session uses this database.
    func touched(_ body: () async throws -> Void) async throws -> Int {
        let before = try await blocks()
        try await body()
        return try await blocks() - before
    }

    private static let flush = Statement<Void, Void>("test.flush", "select pg_stat_force_next_flush()")

    private func blocks() async throws -> Int {
        // Both connections are flushed: a session publishes its numbers by itself only once a second.
        _ = try await ledger.run(Self.flush, ())
        try await database.run(Self.flush)
        return try await number(
            "select blks_hit + blks_read from pg_stat_database where datname = current_database()")
    }

    /// Stores 50,000 receipts of one purchase each and their other rows, a minute apart, and takes no statistics.
    func fillHistory() async throws {
        for sql in [
            """
            insert into receipts (id, app_id, user_id, order_id, kind, lane, is_vouched, details, payload_sha256, state,
              received_at, settled_at)
            select ('00000000-0000-8000-8000-' || lpad(n::text, 12, '0'))::uuid, 'game', 'u' || n % 5000, null,
              'signed_transaction', 'local', false, '{}', '\\x00', 'granted', now() - n * interval '1 minute', now()
            from generate_series(1, 50000) n
            """,
            """
            insert into outcomes (receipt_id, transaction_id, state, binding_source, decided_at)
            select id, 't' || n, case when n % 20 = 0 then 'rejected' else 'granted' end, 'poster', received_at
            from (select id, received_at, right(id::text, 12)::int as n from receipts where user_id is not null) r
            """,
            """
            insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, quantity,
              purchased_at, facts)
            select transaction_id, 'game', 'Production', transaction_id, 'coins', 1, decided_at, '{"price": 1990, "currency": "USD"}'
            from outcomes on conflict do nothing
            """,
            """
            insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id, quantity,
              goods, binding_source, granted_at)
            select o.transaction_id, o.transaction_id, 'game', 'Production', r.user_id, r.id, 'coins', 1, '[]', 'poster',
              o.decided_at
            from outcomes o join receipts r on r.id = o.receipt_id where o.state = 'granted'
            """,
            """
            insert into imported_grants (transaction_id, app_id, environment, original_transaction_id, user_id, product_id,
              purchased_at)
            select 'i' || transaction_id, app_id, environment, 'i' || transaction_id, user_id, 'coins', granted_at from grants
            """,
            """
            insert into attempts (receipt_id, attempt, at, reason)
            select id, 1, received_at, 'apple_unavailable' from receipts
            """,
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
            select gen_random_uuid(), app_id, 'purchase.granted', user_id, transaction_id, receipt_id, '{}' from grants
            """,
            """
            update grants set order_id = gen_random_uuid()
            """,
            """
            insert into orders (id, app_id, user_id, product_id, placed_at)
            select order_id, app_id, user_id, 'coins', granted_at from grants
            """,
            """
            insert into audits (at, actor, action, details)
            select now() - n * interval '1 minute', 'ann', 'queue.redrive', jsonb_build_object('app', 'app' || n % 50)
            from generate_series(1, 50000) n
            """,
            """
            insert into provisional_grants (transaction_id, receipt_id, app_id, user_id, product_id, event_id, granted_at)
            select transaction_id, receipt_id, app_id, user_id, 'coins', gen_random_uuid(), granted_at from grants
            where transaction_id like '%7'
            """,
            """
            insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
              binding_source)
            select app_id, environment, transaction_id, granted_at, transaction_id, user_id, 'poster' from grants
            """,
            """
            insert into double_charges (transaction_id, app_id, user_id, product_id, first_transaction_id)
            select transaction_id, app_id, user_id, 'coins', 't' || (right(transaction_id, -1)::int - 1) from grants
            where transaction_id like '%7'
            """,
            """
            insert into client_reports (id, app_id, user_id, order_id, transaction_id, kind, details)
            select gen_random_uuid(), app_id, user_id, order_id, transaction_id, 'failed', '{}' from grants
            """,
            """
            insert into apple_updates (transaction_id, kind, app_id, environment, original_transaction_id, purchased_at)
            select transaction_id, 'finish', app_id, environment, transaction_id, granted_at from grants
            """,
        ] { try await run(sql) }
    }
}
