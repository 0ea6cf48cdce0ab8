import ArgumentParser
import Commands
import Foundation
import Postgres
import Purchases

/// `makegood-lab bench fill`: fills a database with many purchases, so that other measurements run against it. Hidden:
/// it writes purchases that nobody made.
struct BenchFillCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "fill",
        abstract: "Fill a migrated database with ended purchases that nobody made.",
        discussion: """
            100000 a day up to now: 92 of 100 granted, 2 granted before, 2 refunded, 4 with a wrong signature; one in \
            ten a legacy receipt that Apple did not answer at first. The last two days keep their proofs. `check \
            --full` holds. Only for a database in which nothing else was ever received; may be repeated, and ended \
            at any time.
            """, shouldDisplay: false)

    /// The receipts of one statement. One commit holds them, so that the invariants hold whenever the command is ended.
    private static let batchRows = 20_000

    @Option(help: ArgumentHelp("How many receipts.", valueName: "number"))
    var rows: Int

    @Option(help: ArgumentHelp("The app they are for.", valueName: "id"))
    var app = "game"

    @Flag(help: "Each granted one was bought on an order of its own.")
    var orders = false

    func validate() throws {
        guard (1..<1_000_000_000).contains(rows) else { throw ValidationError("--rows must be 1 to 999999999") }
    }

    func run() async throws {
        let run = "9" + String(Int64(Date.now.timeIntervalSince1970)).suffix(6)
        try await Connections.withDatabase("bench-fill", patience: .seconds(600)) { database in
            if try await database.run(Filling.foreign).first == true {
                throw ValidationError("the database holds receipts that a fill did not put there")
            }
            try await database.run(Filling.days)
            let start = ContinuousClock.now
            for first in stride(from: 1, through: rows, by: Self.batchRows) {
                let last = min(first + Self.batchRows - 1, rows)
                try await database.run(
                    Filling.fill, Filling(first: first, last: last, rows: rows, app: app, run: run, hasOrders: orders))
                let seconds = (ContinuousClock.now - start) / .seconds(1)
                Terminal.tell("\(last) receipts, \(Int(Double(last) / seconds)) a second")
            }
            // Autovacuum would do this later.
            for table in [
                "receipts", "outcomes", "grants", "transactions", "events", "attempts", "orders", "stored_payloads",
            ] {
                try await database.run(Statement<Void, Void>("bench.vacuum", "vacuum (analyze) \(table)"))
            }
        }
    }
}

/// A part of a fill: receipts number `first` to `last` of `rows`.
private struct Filling: Sendable {
    let first: Int
    let last: Int
    let rows: Int
    let app: String
    /// Seven digits before each transaction's number: two fills within eleven days share no id.
    let run: String
    let hasOrders: Bool

    /// Whether the database holds receipts that no fill wrote.
    static let foreign = Statement<Void, Bool>(
        "bench.foreign", "select exists (select from tallies where source <> 'fill')",
        read: { row throws(PostgresError) in try row.bool(0) })

    /// Creates a partition for each day whose payloads are filled in, as a scheduler would have. The default partition
    /// is read whole whenever a day begins; in a deployment it is empty.
    static let days = Statement<Void, Void>(
        "bench.days",
        """
        do $$
        declare
            day date;
        begin
            for day in select (now() at time zone 'UTC')::date - n from generate_series(0, 2) n loop
                execute format('create table if not exists %I partition of stored_payloads for values from (%L) to (%L)
                    with (toast_tuple_target = 8160)', 'payloads_' || to_char(day, 'YYYYMMDD'), day, day + 1);
            end loop;
        end $$
        """)

    /// Inserts rows of the size that a worker writes: larger rows would leave free space for new rows on old pages.
    static let fill = Statement<Filling, Void>(
        "bench.fill",
        """
        with i as materialized (
          select n, $5 || lpad(n::text, 9, '0') as transaction_id, md5($5 || n)::uuid as id,
            'u' || n % 1000003 as user_id, $5 || lpad((n % 1000003)::text, 8, '0') as customer_id,
            case when n % 50 = 0 then 'already_granted' when n % 50 in (1, 2, 3) then 'rejected' else 'granted' end as state,
            case n % 50 when 1 then 'refunded' when 2 then 'signature' when 3 then 'signature' end as reason,
            case when n % 10 = 4 then 'receipt' else 'signed_transaction' end as kind,
            t.at as received_at, t.at + make_interval(secs => 0.02 + n % 97 * 0.001) as settled_at,
            b.body, sha256(convert_to(coalesce(b.body, $5 || n), 'UTF8')) as payload_sha256
          from generate_series($1::bigint, $2) n
          cross join lateral (select now() - make_interval(secs => ($3 - n) * 0.864) as at) t
          left join lateral (
            select string_agg(md5($5 || n || s), '') as body from generate_series(1, 90) s
            where t.at >= now() - interval '2 days' offset 0) b on true),
        new as (
          insert into receipts (id, app_id, user_id, kind, lane, is_vouched, details, payload_sha256, state, reason,
            attempt, received_at, judged_at, settled_at)
          select id, $4, user_id, kind, case kind when 'receipt' then 'apple' else 'local' end, false,
            '{}', payload_sha256, state, reason, (kind = 'receipt')::int, received_at, settled_at, settled_at
          from i),
        kept as (
          insert into stored_payloads (receipt_id, received_on, body)
          select id, (received_at at time zone 'UTC')::date, body from i where body is not null),
        tried as (
          insert into attempts (receipt_id, attempt, at, reason, service, environment, http_status, duration_ms)
          select id, 1, settled_at - interval '0.01 seconds', 'apple_unavailable', 'verifyReceipt', 'Production', 503, 40
          from i where kind = 'receipt'),
        bought as (
          insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, kind,
            quantity, purchased_at, revoked_at, ownership, customer_id, signed_at, facts)
          select transaction_id, $4, 'Production', transaction_id, 'com.example.game.coins' || n % 12, 'Consumable', 1,
            received_at - interval '5 seconds', case when reason = 'refunded' then received_at - interval '2 seconds' end,
            'PURCHASED', customer_id, received_at - interval '1 second',
            jsonb_build_object('price', 990 + n % 12 * 1000, 'reason', 'PURCHASE', 'currency', 'USD', 'storefront', 'USA')
          from i where state = 'granted' or reason = 'refunded'),
        given as (
          insert into grants (transaction_id, purchase_key, app_id, environment, user_id, customer_id, receipt_id,
            product_id, quantity, goods, binding_source, granted_at, order_id, is_entitling)
          select transaction_id, 'Production/purchase/' || transaction_id, $4, 'Production', user_id,
            customer_id, id, 'com.example.game.coins' || n % 12, 1,
            jsonb_build_array(jsonb_build_object('item', 'coins', 'amount', 6000)),
            case when $6 then 'order_token' else 'poster' end, settled_at,
            case when $6 then md5('order' || transaction_id)::uuid end, false
          from i where state = 'granted'),
        ordered as (
          insert into orders (id, app_id, user_id, product_id, item, environment, goods, target, debounce_key, placed_at,
            pay_by)
          select md5('order' || transaction_id)::uuid, $4, user_id, 'com.example.game.coins' || n % 12, 'coins',
            'Production', '[{"item": "coins", "amount": 6000}]', '{"server": "s1", "role": "r1"}',
            sha256(transaction_id::bytea), received_at - interval '1 minute', received_at + interval '47 hours'
          from i where $6 and state = 'granted'),
        decided as (
          insert into outcomes (receipt_id, transaction_id, state, reason, binding_source, decided_at)
          select id, case when state = 'already_granted' then $5 || lpad((n - 1)::text, 9, '0') else transaction_id end,
            state, case when state = 'already_granted' then 'owned_by_another_user' else reason end,
            case when state = 'granted' then case when $6 then 'order_token' else 'poster' end end, settled_at
          from i where reason is distinct from 'signature'),
        told as (
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body, at)
          select md5('event' || transaction_id)::uuid, $4, '\(EventType.purchaseGranted.rawValue)', user_id, transaction_id, id,
            jsonb_build_object('productId', 'com.example.game.coins' || n % 12, 'quantity', 1, 'environment', 'Production',
              'originalTransactionId', transaction_id, 'purchasedAt', received_at - interval '5 seconds',
              'goods', jsonb_build_array(jsonb_build_object('item', 'coins', 'amount', 6000)), 'bindingSource', 'poster'),
            settled_at
          from i where state = 'granted')
        insert into tallies as t (app_id, day, source, shard, received)
        select $4, (received_at at time zone 'UTC')::date, 'fill', 0, count(*) from i group by 2
        on conflict (app_id, day, source, shard) do update set received = t.received + excluded.received
        """,
        bind: { part in
            [
                .int(part.first), .int(part.last), .int(part.rows), .text(part.app), .text(part.run),
                .bool(part.hasOrders),
            ]
        })
}
