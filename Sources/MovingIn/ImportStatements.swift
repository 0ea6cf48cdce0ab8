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
    struct ImportResult: Sendable, Equatable {
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

    static func importGrants(isDryRun: Bool) -> Statement<ImportBatch<ImportedGrant>, ImportResult> {
        importing(
            isDryRun ? "import.try_grants" : "import.grants",
            [
                .text("id") { $0.transactionID }, .text("original") { $0.originalID },
                .text("usr") { $0.user.stored }, .text("product") { $0.productID },
                .text("environment") { $0.environment }, .date("purchased_at") { $0.purchasedAt },
                .bool("is_chain") { $0.isChain },
            ],
            sql: { app, rows in
                """
                with given as (
                  select i.*, case
                      when e.app_id is not null then case
                        when e.app_id <> \(app) then 'app' when e.environment <> i.environment then 'environment'
                        when \(person("e.user_id", of: app)) <> w.who then 'userId' when e.product_id <> i.product then 'productId'
                        when e.original_transaction_id <> i.original then 'originalTransactionId' else 'there' end
                      -- A worker gave it here before the import: the same, or a conflict that a person has to look at.
                      when g.app_id is not null then case
                        when g.app_id <> \(app) then 'app' when g.environment <> i.environment then 'environment'
                        when \(person("g.user_id", of: app)) <> w.who then 'userId' when g.product_id <> i.product then 'productId'
                        else 'there' end
                      else 'imported' end as result, \(person("c.user_id", of: app)) <> w.who as is_of_another
                  from \(rows.rows(as: "i", ordinality: "n"))
                  cross join lateral (select \(person("i.usr", of: app)) as who offset 0) w
                  left join lateral (select * from imported_grants where transaction_id = i.id offset 0) e on true
                  left join lateral (select app_id, environment, user_id, product_id from grants
                    where transaction_id = i.id offset 0) g on true
                  left join lateral (select user_id from ownerships
                    where i.is_chain and app_id = \(app) and environment = i.environment
                      and original_transaction_id = i.original and binding_source <> 'imported'
                    order by purchased_at desc, transaction_id desc, move desc limit 1) c on true)
                \(isDryRun ? "" : """
                    , added as (
                      insert into imported_grants (transaction_id, app_id, environment, original_transaction_id, user_id,
                        product_id, purchased_at)
                      select id, \(app), environment, original, usr, product, purchased_at from given
                      where result = 'imported' order by id
                      on conflict do nothing),
                    -- The owner of the chain: among consecutive purchases of one user, the latest names the owner.
                    owned as (
                      insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id,
                        user_id, binding_source)
                      select \(app), environment, original, purchased_at, id, usr, 'imported'
                      from (select *, lead(usr) over (partition by environment, original order by purchased_at, id) as next
                        from given where is_chain and result = 'imported' and is_of_another is not true) r
                      where next is distinct from usr
                      order by original, purchased_at, id
                      on conflict do nothing)
                    """)
                select n::int, result, result = 'imported' and is_of_another is true from given
                where result <> 'imported' or is_of_another
                order by n
                """
            })
    }

    /// Imports the owners of chains. A chain with another owner stays with that owner, unless that ownership was
    /// imported too and the line names a later start.
    static func importOwners(isDryRun: Bool) -> Statement<ImportBatch<ImportedOwner>, ImportResult> {
        importing(
            isDryRun ? "import.try_owners" : "import.owners",
            [
                .text("original") { $0.originalID }, .text("usr") { $0.user.stored },
                .text("environment") { $0.environment }, .date("since") { $0.since },
            ],
            sql: { app, rows in
                """
                with given as (
                  select i.*, case
                      when c.user_id is null then 'imported'
                      when \(person("c.user_id", of: app)) = \(person("i.usr", of: app)) then 'there'
                      when c.binding_source = 'imported' and i.since > c.purchased_at then 'imported'
                      else 'userId' end as result
                  from \(rows.rows(as: "i", ordinality: "n"))
                  left join lateral (
                    select * from (
                      (select user_id, purchased_at, binding_source, 1 as rank from ownerships
                        where app_id = \(app) and environment = i.environment and original_transaction_id = i.original
                        order by purchased_at desc, transaction_id desc, move desc limit 1)
                      union all
                      -- Grants from the time before ownerships were written down.
                      (select g.user_id, t.purchased_at, g.binding_source, 2 from transactions t
                        cross join lateral (select user_id, binding_source from grants
                          where transaction_id = t.transaction_id and binding_source <> 'shared' offset 0) g
                        where t.original_transaction_id = i.original and t.app_id = \(app) and t.environment = i.environment
                        order by t.purchased_at desc limit 1)) k
                    order by rank limit 1) c on true)
                \(isDryRun ? "" : """
                    , owned as (
                      insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id,
                        user_id, binding_source)
                      select \(app), environment, original, coalesce(since, now()), original, usr, 'imported' from given
                      where result = 'imported' order by original
                      on conflict do nothing)
                    """)
                select n::int, result, false from given where result <> 'imported' order by n
                """
            })
    }

    static func importTokens(isDryRun: Bool) -> Statement<ImportBatch<ImportedToken>, ImportResult> {
        importing(
            isDryRun ? "import.try_tokens" : "import.tokens",
            [.uuid("token") { $0.token }, .text("usr") { $0.user.stored }],
            sql: { app, rows in
                """
                with given as (
                  select i.*, case when e.user_id is null then 'imported'
                      when \(isOneOf("e.user_id", "i.usr", of: app)) then 'there' else 'userId' end as result
                  from \(rows.rows(as: "i", ordinality: "n"))
                  left join lateral (select user_id from user_tokens
                    where app_id = \(app) and token = i.token offset 0) e on true)
                \(isDryRun ? "" : """
                    , added as (
                      insert into user_tokens (app_id, token, user_id, source)
                      select \(app), token, usr, 'registered' from given where result = 'imported' order by token
                      on conflict do nothing)
                    """)
                select n::int, result, false from given where result <> 'imported' order by n
                """
            })
    }

    static func importOrders(isDryRun: Bool) -> Statement<ImportBatch<ImportedOrder>, ImportResult> {
        importing(
            isDryRun ? "import.try_orders" : "import.orders",
            [
                .uuid("id") { $0.id }, .text("usr") { $0.user.stored }, .text("product") { $0.productID },
                .text("item") { $0.item }, .int32("quantity") { $0.quantity }, .date("placed_at") { $0.placedAt },
                .date("pay_by") { $0.payBy }, .text("environment") { $0.environment },
                .json("goods") { $0.offer.map { GoodsJSON.encode($0.goods) } },
                .json("bonuses") { JSONValue.bonuses($0.offer?.bonuses ?? []).text },
                .int("price") { $0.price?.milliunits }, .text("currency") { $0.price?.currency },
                .int("offer") { $0.offer?.revision }, .json("target") { $0.target },
                .text("promotion") { $0.promotion },
            ],
            sql: { app, rows in
                """
                with given as (
                  select i.*, case when e.app_id is null then 'imported' when e.app_id <> \(app) then 'app'
                      when \(person("e.user_id", of: app)) <> \(person("i.usr", of: app)) then 'userId' when e.product_id <> i.product then 'productId'
                      else 'there' end as result
                  from \(rows.rows(as: "i", ordinality: "n"))
                  left join lateral (select app_id, user_id, product_id from orders where id = i.id offset 0) e on true)
                \(isDryRun ? "" : """
                    , added as (
                      insert into orders (id, app_id, user_id, product_id, item, quantity, placed_at, pay_by, environment,
                        goods, bonuses, price_milliunits, currency, offer, target, promotion)
                      select id, \(app), usr, product, item, quantity, placed_at, pay_by, environment, goods, bonuses, price,
                        currency, offer, target, promotion
                      from given where result = 'imported' order by id
                      on conflict do nothing)
                    """)
                select n::int, result, false from given where result <> 'imported' order by n
                """
            })
    }

    static func importBonuses(isDryRun: Bool) -> Statement<ImportBatch<ImportedBonus>, ImportResult> {
        importing(
            isDryRun ? "import.try_bonuses" : "import.bonuses",
            [
                .text("usr") { $0.user.stored }, .text("bonus") { $0.bonus }, .text("period") { $0.period },
            ],
            sql: { app, rows in
                """
                with given as (
                  select i.*, case when e.user_id is null then 'imported' else 'there' end as result
                  from \(rows.rows(as: "i", ordinality: "n"))
                  left join lateral (select user_id from given_bonuses
                    where app_id = \(app) and user_id = i.usr and bonus = i.bonus and period = i.period and freed_at is null
                    offset 0) e on true)
                \(isDryRun ? "" : """
                    , added as (
                      insert into given_bonuses (app_id, user_id, bonus, period)
                      select \(app), usr, bonus, period from given where result = 'imported' order by usr, bonus, period
                      on conflict do nothing)
                    """)
                select n::int, result, false from given where result <> 'imported' order by n
                """
            })
    }

    /// A statement about the rows of a batch.
    ///
    /// - Parameter sql: its text, with the place of the app's id and with the rows.
    private static func importing<Row: Sendable>(
        _ name: String, _ columns: [Column<Row>], sql: (_ app: String, _ rows: BatchRows) -> String
    ) -> Statement<ImportBatch<Row>, ImportResult> {
        var parameters = ParameterList<ImportBatch<Row>>()
        let app = parameters.add { .text($0.appID) }
        let rows = parameters.add(columns) { $0.rows }
        return Statement(name, sql(app, rows), parameters: parameters, read: readResult)
    }

    private static let readResult: @Sendable (borrowing RowReader) throws(PostgresError) -> ImportResult = {
        row throws(PostgresError) in
        let word = try row.text(1)
        let outcome: ImportResult.Outcome? =
            switch word {
            case "imported": nil
            case "there": .alreadyThere
            default: .conflict(field: word)
            }
        return ImportResult(index: try row.int(0) - 1, outcome: outcome, isChainOfAnother: try row.bool(2))
    }
}
