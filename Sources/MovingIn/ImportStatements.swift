import Encoding
import Foundation
import Ledger
import Postgres
import Purchases
import Settings

extension Statements {
    struct ImportBatch<Row: Sendable>: Sendable {
        var appID: String
        /// The rows, none of them twice (`ImportRow.identity`).
        var rows: [Row]
    }

    /// The result for one row, where it is not simply "imported".
    struct ImportFate: Sendable, Equatable {
        /// The row's place in the batch, from 0.
        var index: Int
        /// Nil: imported, with `isChainOfAnother`.
        var outcome: Outcome?
        /// The chain was given to another user here, and stays with that user.
        var isChainOfAnother: Bool

        enum Outcome: Sendable, Equatable {
            case alreadyThere
            /// Another value stands in the table: the field that differs.
            case conflict(field: String)
        }
    }

    // Each statement finds the result for every row and, except in a dry run, inserts the imported rows. No statement
    // changes an existing row.

    static func importGrants(isDryRun: Bool) -> Statement<ImportBatch<ImportedGrant>, ImportFate> {
        Statement(
            isDryRun ? "import.try_grants" : "import.grants",
            """
            with given as (
              select i.*, case
                  when e.app_id is not null then case
                    when e.app_id <> $1 then 'app' when e.environment <> i.environment then 'environment'
                    when \(person("e.user_id", of: "$1")) <> w.who then 'userId' when e.product_id <> i.product then 'productId'
                    when e.original_transaction_id <> i.original then 'originalTransactionId' else 'there' end
                  -- A worker gave it here before the import: the same, or a conflict that a person has to look at.
                  when g.app_id is not null then case
                    when g.app_id <> $1 then 'app' when g.environment <> i.environment then 'environment'
                    when \(person("g.user_id", of: "$1")) <> w.who then 'userId' when g.product_id <> i.product then 'productId'
                    else 'there' end
                  else 'imported' end as fate, \(person("c.user_id", of: "$1")) <> w.who as is_of_another
              from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::bool[])
                with ordinality as i(id, original, usr, product, environment, purchased_at, is_chain, n)
              cross join lateral (select \(person("i.usr", of: "$1")) as who offset 0) w
              left join lateral (select * from imported_grants where transaction_id = i.id offset 0) e on true
              left join lateral (select app_id, environment, user_id, product_id from grants
                where transaction_id = i.id offset 0) g on true
              left join lateral (select user_id from ownerships
                where i.is_chain and app_id = $1 and environment = i.environment
                  and original_transaction_id = i.original and binding_source <> 'imported'
                order by purchased_at desc, transaction_id desc, move desc limit 1) c on true)
            \(isDryRun ? "" : """
                , added as (
                  insert into imported_grants (transaction_id, app_id, environment, original_transaction_id, user_id,
                    product_id, purchased_at)
                  select id, $1, environment, original, usr, product, purchased_at from given
                  where fate = 'imported' order by id
                  on conflict do nothing),
                -- The owner of the chain: among consecutive purchases of one user, the latest names the owner.
                owned as (
                  insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id,
                    user_id, binding_source)
                  select $1, environment, original, purchased_at, id, usr, 'imported'
                  from (select *, lead(usr) over (partition by environment, original order by purchased_at, id) as next
                    from given where is_chain and fate = 'imported' and is_of_another is not true) r
                  where next is distinct from usr
                  order by original, purchased_at, id
                  on conflict do nothing)
                """)
            select n::int, fate, fate = 'imported' and is_of_another is true from given
            where fate <> 'imported' or is_of_another
            order by n
            """,
            bind: { batch in
                let rows = batch.rows
                return [
                    .text(batch.appID), .texts(rows.map(\.transactionID)), .texts(rows.map(\.originalID)),
                    .texts(rows.map(\.user.stored)), .texts(rows.map(\.productID)), .texts(rows.map(\.environment)),
                    .dates(rows.map(\.purchasedAt)), .bools(rows.map(\.isChain)),
                ]
            }, read: readFate)
    }

    /// Imports the owners of chains. A chain with another owner stays with that owner, unless that ownership was
    /// imported too and the line names a later start.
    static func importOwners(isDryRun: Bool) -> Statement<ImportBatch<ImportedOwner>, ImportFate> {
        Statement(
            isDryRun ? "import.try_owners" : "import.owners",
            """
            with given as (
              select i.*, case
                  when c.user_id is null then 'imported'
                  when \(person("c.user_id", of: "$1")) = \(person("i.usr", of: "$1")) then 'there'
                  when c.binding_source = 'imported' and i.since > c.purchased_at then 'imported'
                  else 'userId' end as fate
              from unnest($2::text[], $3::text[], $4::text[], $5::timestamptz[])
                with ordinality as i(original, usr, environment, since, n)
              left join lateral (
                select * from (
                  (select user_id, purchased_at, binding_source, 1 as rank from ownerships
                    where app_id = $1 and environment = i.environment and original_transaction_id = i.original
                    order by purchased_at desc, transaction_id desc, move desc limit 1)
                  union all
                  -- Grants from the time before ownerships were written down.
                  (select g.user_id, t.purchased_at, g.binding_source, 2 from transactions t
                    cross join lateral (select user_id, binding_source from grants
                      where transaction_id = t.transaction_id and binding_source <> 'shared' offset 0) g
                    where t.original_transaction_id = i.original and t.app_id = $1 and t.environment = i.environment
                    order by t.purchased_at desc limit 1)) k
                order by rank limit 1) c on true)
            \(isDryRun ? "" : """
                , owned as (
                  insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id,
                    user_id, binding_source)
                  select $1, environment, original, coalesce(since, now()), original, usr, 'imported' from given
                  where fate = 'imported' order by original
                  on conflict do nothing)
                """)
            select n::int, fate, false from given where fate <> 'imported' order by n
            """,
            bind: { batch in
                let rows = batch.rows
                return [
                    .text(batch.appID), .texts(rows.map(\.originalID)), .texts(rows.map(\.user.stored)),
                    .texts(rows.map(\.environment)), .dates(rows.map(\.since)),
                ]
            }, read: readFate)
    }

    static func importTokens(isDryRun: Bool) -> Statement<ImportBatch<ImportedToken>, ImportFate> {
        Statement(
            isDryRun ? "import.try_tokens" : "import.tokens",
            """
            with given as (
              select i.*, case when e.user_id is null then 'imported'
                  when \(isOneOf("e.user_id", "i.usr", of: "$1")) then 'there' else 'userId' end as fate
              from unnest($2::uuid[], $3::text[]) with ordinality as i(token, usr, n)
              left join lateral (select user_id from user_tokens
                where app_id = $1 and token = i.token offset 0) e on true)
            \(isDryRun ? "" : """
                , added as (
                  insert into user_tokens (app_id, token, user_id, source)
                  select $1, token, usr, 'registered' from given where fate = 'imported' order by token
                  on conflict do nothing)
                """)
            select n::int, fate, false from given where fate <> 'imported' order by n
            """,
            bind: { batch in
                [.text(batch.appID), .uuids(batch.rows.map(\.token)), .texts(batch.rows.map(\.user.stored))]
            }, read: readFate)
    }

    static func importOrders(isDryRun: Bool) -> Statement<ImportBatch<ImportedOrder>, ImportFate> {
        Statement(
            isDryRun ? "import.try_orders" : "import.orders",
            """
            with given as (
              select i.*, case when e.app_id is null then 'imported' when e.app_id <> $1 then 'app'
                  when \(person("e.user_id", of: "$1")) <> \(person("i.usr", of: "$1")) then 'userId' when e.product_id <> i.product then 'productId'
                  else 'there' end as fate
              from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::int[], $7::timestamptz[],
                  $8::timestamptz[], $9::text[], $10::jsonb[], $11::jsonb[], $12::int8[], $13::text[], $14::int8[],
                  $15::jsonb[], $16::text[])
                with ordinality as i(id, usr, product, item, quantity, placed_at, pay_by, environment, goods, bonuses,
                  price, currency, offer, target, promotion, n)
              left join lateral (select app_id, user_id, product_id from orders where id = i.id offset 0) e on true)
            \(isDryRun ? "" : """
                , added as (
                  insert into orders (id, app_id, user_id, product_id, item, quantity, placed_at, pay_by, environment,
                    goods, bonuses, price_milliunits, currency, offer, target, promotion)
                  select id, $1, usr, product, item, quantity, placed_at, pay_by, environment, goods, bonuses, price,
                    currency, offer, target, promotion
                  from given where fate = 'imported' order by id
                  on conflict do nothing)
                """)
            select n::int, fate, false from given where fate <> 'imported' order by n
            """,
            bind: { batch in
                let rows = batch.rows
                let offers = rows.map(\.offer)
                return [
                    .text(batch.appID), .uuids(rows.map(\.id)), .texts(rows.map(\.user.stored)),
                    .texts(rows.map(\.productID)), .texts(rows.map(\.item)), .int32s(rows.map(\.quantity)),
                    .dates(rows.map(\.placedAt)), .dates(rows.map(\.payBy)), .texts(rows.map(\.environment)),
                    .jsons(offers.map { $0.map { GoodsJSON.encode($0.goods) } }),
                    .jsons(offers.map { JSONValue.bonuses($0?.bonuses ?? []).text }),
                    .ints(rows.map { $0.price?.milliunits }), .texts(rows.map { $0.price?.currency }),
                    .ints(offers.map { $0?.revision }), .jsons(rows.map(\.target)), .texts(rows.map(\.promotion)),
                ]
            }, read: readFate)
    }

    static func importBonuses(isDryRun: Bool) -> Statement<ImportBatch<ImportedBonus>, ImportFate> {
        Statement(
            isDryRun ? "import.try_bonuses" : "import.bonuses",
            """
            with given as (
              select i.*, case when e.user_id is null then 'imported' else 'there' end as fate
              from unnest($2::text[], $3::text[], $4::text[]) with ordinality as i(usr, bonus, period, n)
              left join lateral (select user_id from given_bonuses
                where app_id = $1 and user_id = i.usr and bonus = i.bonus and period = i.period and freed_at is null
                offset 0) e on true)
            \(isDryRun ? "" : """
                , added as (
                  insert into given_bonuses (app_id, user_id, bonus, period)
                  select $1, usr, bonus, period from given where fate = 'imported' order by usr, bonus, period
                  on conflict do nothing)
                """)
            select n::int, fate, false from given where fate <> 'imported' order by n
            """,
            bind: { batch in
                [
                    .text(batch.appID), .texts(batch.rows.map(\.user.stored)), .texts(batch.rows.map(\.bonus)),
                    .texts(batch.rows.map(\.period)),
                ]
            }, read: readFate)
    }

    private static let readFate: @Sendable (borrowing RowReader) throws(PostgresError) -> ImportFate = {
        row throws(PostgresError) in
        let word = try row.text(1)
        let outcome: ImportFate.Outcome? =
            switch word {
            case "imported": nil
            case "there": .alreadyThere
            default: .conflict(field: word)
            }
        return ImportFate(index: try row.int(0) - 1, outcome: outcome, isChainOfAnother: try row.bool(2))
    }
}
