package import Postgres
package import Purchases

/// One catalogue of an app.
package struct CatalogueRevision: Sendable, Equatable {
    package let appID: String
    package let revision: Int

    package init(appID: String, revision: Int) {
        self.appID = appID
        self.revision = revision
    }
}

extension Statements {
    /// The catalogues in force.
    package static let catalogueRevisions = Statement<Void, CatalogueRevision>(
        "catalogue.revisions", "select app_id, max(revision) from catalogues group by app_id",
        read: { row throws(PostgresError) in
            CatalogueRevision(appID: try row.text(0), revision: try row.int(1))
        })

    package static let readCatalogue = Statement<CatalogueRevision, String>(
        "catalogue.read", "select document from catalogues where app_id = $1 and revision = $2",
        bind: { [.text($0.appID), .int($0.revision)] },
        read: { row throws(PostgresError) in try row.json(0) })

    package struct AppliedCatalogue: Sendable {
        package var revision: CatalogueRevision
        package var document: String
        package var actor: String
        package var changes: [String]
    }

    /// Puts a catalogue in force. No row: another person has applied one meanwhile.
    package static let applyCatalogue = Statement<AppliedCatalogue, Int>(
        "catalogue.apply",
        """
        with applied as (
          insert into catalogues (app_id, revision, document, applied_by) values ($1, $2, $3, $4)
          on conflict do nothing
          returning app_id, revision),
        audited as (
          insert into audits (actor, action, details)
          select $4, 'catalog.apply', jsonb_build_object('app', app_id, 'revision', revision, 'changes', to_jsonb($5::text[]))
          from applied)
        select revision from applied
        """,
        bind: {
            [
                .text($0.revision.appID), .int($0.revision.revision), .json($0.document), .text($0.actor),
                .texts($0.changes),
            ]
        },
        read: { row throws(PostgresError) in try row.int(0) })

    package struct BoughtQuestion: Sendable {
        package var appID: String
        package var userID: String
        package var product: Catalogue.Product
        package var item: String

        package init(appID: String, userID: String, product: Catalogue.Product, item: String) {
            self.appID = appID
            self.userID = userID
            self.product = product
            self.item = item
        }
    }

    /// Units of an item that a user bought today, in this month and ever, also under ids that became the user's by a
    /// merge. Days and months are those of UTC. Counted are grants, with an order or without, in Apple's quantities. A
    /// grant from the time before grants named their item counts for its order's item, or for the default item. A
    /// purchase that the former system gave is one unit of the default item.
    package static let boughtUnits = Statement<BoughtQuestion, (day: Int, month: Int, ever: Int)>(
        "orders.bought",
        """
        select coalesce(sum(quantity) filter (
            where given_at >= date_trunc('day', now() at time zone 'UTC') at time zone 'UTC'), 0),
          coalesce(sum(quantity) filter (
            where given_at >= date_trunc('month', now() at time zone 'UTC') at time zone 'UTC'), 0),
          coalesce(sum(quantity), 0)
        from (\(idsOfPerson("$2", of: "$1"))) person(id)
        cross join lateral (
          select g.quantity, g.granted_at as given_at
          from (select order_id, quantity, item, granted_at from grants
            where app_id = $1 and user_id = person.id and product_id = $3 and binding_source <> 'shared' offset 0) g
          left join lateral (select item from orders where g.item is null and id = g.order_id offset 0) o on true
          where coalesce(g.item, case when o.item = any($5::text[]) then o.item end, $6) = $4
          union all
          select 1, purchased_at from imported_grants
          where app_id = $1 and user_id = person.id and product_id = $3 and $4 = $6
          offset 0) o
        """,
        bind: {
            [
                .text($0.appID), .text($0.userID), .text($0.product.id), .text($0.item),
                .texts($0.product.items.keys.sorted()), .text($0.product.defaultItem),
            ]
        },
        read: { row throws(PostgresError) in (day: try row.int(0), month: try row.int(1), ever: try row.int(2)) })
}
