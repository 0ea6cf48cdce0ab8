import Encoding
package import Foundation
package import Postgres
import Purchases
import Settings

extension Statements {
    package struct Placement: Sendable, Equatable {
        package let id: UUID
        package let placedAt: Date
        package let payBy: Date
    }

    private static let insertOrders = """
        insert into orders (id, app_id, user_id, product_id, item, quantity, promotion, channel, environment, goods,
            bonuses, price_milliunits, currency, offer, pay_by, target, details, installation_id, debounce_key,
            idempotency_key, reserved_for, placed_on, place)
          select i.id, i.app, i.usr, i.product, i.item, i.quantity, i.promotion, i.channel, i.environment, i.goods,
            i.bonuses, i.price, i.currency, i.offer, now() + make_interval(secs => i.pay), i.target, i.details,
            \(installation(ofToken: "i.installation")), i.debounce, i.idempotency, i.reserved, i.today, i.place
          from next i
        """

    /// Orders of one user and UTC day; the next one is answered 429. No user comes near it.
    package static let ordersPerUserMax = 1000

    /// Places the orders of a batch. An order is missing from the result if it is there already: by its id, as the same
    /// tap, by its idempotency key, or as the order of its transaction. All orders of a user are missing if another
    /// statement took the place of the first one among the user's orders of the day: the next round sees the orders of
    /// that statement. An order beyond the limit is in the result without its times.
    package static let placeOrders = Statement<[NewOrder], (id: UUID, placement: Placement?)>(
        "orders.place",
        """
        with requested as (
          select i.*, (now() at time zone 'UTC')::date as today
          from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::text[], $8::text[],
            $9::text[], $10::jsonb[], $11::jsonb[], $12::int8[], $13::text[], $14::int8[], $15::float8[], $16::jsonb[],
            $17::jsonb[], $18::bytea[], $19::bytea[], $20::float8[], $21::text[], $22::text[])
            as i(id, app, usr, product, item, quantity, promotion, channel, environment, goods, bonuses, price, currency,
              offer, pay, target, details, installation, debounce, tap, idempotency, reserved)
          where not exists (select from orders o where o.app_id = i.app and o.user_id = i.usr
              and o.product_id = i.product and o.debounce_key = i.debounce
              and o.placed_at > now() - make_interval(secs => i.tap) and \(isUnbound("o")))
            and (i.reserved is null or (select true from \(ordersOfReserved) limit 1) is null)),
        next as materialized (
          select i.*, i.of_user + coalesce((
              select o.place from orders o
              where o.app_id = i.app and o.user_id = i.usr and o.placed_on = i.today and o.place is not null
              order by o.place desc limit 1), 0) as place
          from (select *, (row_number() over (partition by app, usr order by id))::int as of_user from requested) i),
        first as (
          \(insertOrders) where i.of_user = 1 and i.place <= \(ordersPerUserMax)
          order by i.app, i.usr
          on conflict do nothing
          returning id, placed_at, pay_by, app_id, user_id),
        rest as (
          \(insertOrders) where i.of_user > 1 and i.place <= \(ordersPerUserMax)
            and (i.app, i.usr) in (select app_id, user_id from first)
          order by i.app, i.usr, i.place
          on conflict do nothing
          returning id, placed_at, pay_by)
        select id, placed_at, pay_by from first
        union all
        select id, placed_at, pay_by from rest
        union all
        select id, null, null from next where place > \(ordersPerUserMax)
        """,
        bind: { orders in
            [
                .uuids(orders.map(\.id)), .texts(orders.map(\.appID)), .texts(orders.map(\.userID)),
                .texts(orders.map(\.productID)), .texts(orders.map(\.item)), .int32s(orders.map(\.quantity)),
                .texts(orders.map(\.promotion)), .texts(orders.map(\.channel)), .texts(orders.map(\.environment)),
                .jsons(orders.map { $0.offer.map { GoodsJSON.encode($0.goods) } }),
                .jsons(orders.map { JSONValue.bonuses($0.offer?.bonuses ?? []).text }),
                .ints(orders.map { $0.offer?.price?.milliunits }), .texts(orders.map { $0.offer?.price?.currency }),
                .ints(orders.map { $0.offer?.revision }), .doubles(orders.map(\.payBy.inSeconds)),
                .jsons(orders.map(\.target)), .jsons(orders.map(\.details)),
                .bytesArray(orders.map(\.installationTokenSHA256)),
                .bytesArray(orders.map(\.debounceKey)), .doubles(orders.map(\.debounce.inSeconds)),
                .texts(orders.map(\.idempotencyKey)), .texts(orders.map(\.reservedFor)),
            ]
        },
        read: { row throws(PostgresError) in
            let id = try row.uuid(0)
            guard let placedAt = try row.optionalDate(1) else { return (id, nil) }
            return (id, Placement(id: id, placedAt: placedAt, payBy: try row.date(2)))
        })

    package struct FoundOrder: Sendable {
        /// The position in the input, from 0.
        package let index: Int
        package let view: OrderView
    }

    /// The existing orders that stand in for those that were not placed. The time in which a tap counts as the same is
    /// a second longer here, because time has passed since ``placeOrders``.
    package static let findOrders = Statement<[NewOrder], FoundOrder>(
        "orders.find",
        """
        select \(orderColumns), i.n::int
        from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::float8[], $7::text[], $8::text[])
          with ordinality as i(id, app, usr, product, debounce, tap, idempotency, reserved, n)
        cross join lateral (
          select * from (
            select 1 as rank, o.* from orders o where o.id = i.id
            union all
            (select 2, o.* from \(ordersOfReserved) limit 1)
            union all
            select 3, o.* from orders o where o.app_id = i.app and o.user_id = i.usr
              and o.idempotency_key = i.idempotency
            union all
            (select 4, o.* from orders o where o.app_id = i.app and o.user_id = i.usr and o.product_id = i.product
              and o.debounce_key = i.debounce and o.placed_at > now() - make_interval(secs => i.tap + 1)
              and \(isUnbound("o")) order by o.placed_at desc limit 1)) candidates
          order by rank limit 1) o
        \(fulfilment(of: "o")) \(ending(of: "o"))
        """,
        bind: { orders in
            [
                .uuids(orders.map(\.id)), .texts(orders.map(\.appID)), .texts(orders.map(\.userID)),
                .texts(orders.map(\.productID)), .bytesArray(orders.map(\.debounceKey)),
                .doubles(orders.map(\.debounce.inSeconds)), .texts(orders.map(\.idempotencyKey)),
                .texts(orders.map(\.reservedFor)),
            ]
        },
        read: { row throws(PostgresError) in
            FoundOrder(index: try row.int(orderColumnCount) - 1, view: try row.order())
        })

    /// Orders with the receipts that named them, by the first post or a later one. Unknown ids are missing from the
    /// result. A receipt of another user who named the order is left out.
    package static let readOrders = Statement<[UUID], OrderView>(
        "orders.read",
        """
        select \(orderColumns), s.list
        from unnest($1::uuid[]) as i(id)
        cross join lateral (select * from orders where id = i.id offset 0) o
        \(fulfilment(of: "o")) \(ending(of: "o"))
        cross join lateral (
          select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('id', r.id, 'userId', r.user_id,
              'state', \(shownState("r")), 'reason', r.reason,
              'receivedAt', to_char(r.received_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
              'transactions', t.list)) order by r.received_at), '[]') as list
          from (
            select receipts.id, user_id, state, reason, received_at
            from (select id from receipts where lower(order_id) = o.id::text
              union select receipt_id from receipt_lines where lower(order_id) = o.id::text) named
            cross join lateral (select id, app_id, user_id, state, reason, received_at
              from receipts where id = named.id offset 0) receipts
            -- Of the order's user.
            where app_id = o.app_id and (user_id is null or \(isOneOf("receipts.user_id", "o.user_id", of: "o.app_id")))
            order by received_at desc limit \(OrderView.submissionsMax)) r
          cross join lateral (
            select coalesce(jsonb_agg(jsonb_build_object('transactionId', c.transaction_id, 'state', \(shownState("c")),
                'orderId', b.id, 'orderUserId', b.user_id) order by c.transaction_id), '[]') as list
            from (select transaction_id, state, reason from outcomes where receipt_id = r.id order by transaction_id
              limit 100) c
            left join lateral (select bound.id, bound.user_id from grants g
              cross join lateral (select id, app_id, user_id from orders where id = g.order_id offset 0) bound
              where g.transaction_id = c.transaction_id and bound.app_id = o.app_id
                and \(isOneOf("bound.user_id", "o.user_id", of: "o.app_id")) offset 0) b on true) t) s
        """,
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in
            var view = try row.order()
            let submissions: [OrderView.NamingReceipt] = try row.decoded(orderColumnCount)
            view.submissions = submissions
            return view
        })

    /// Which of these orders have got their purchase, or an end at another way of payment: what a long poll waits for.
    package static let boundOrders = Statement<[UUID], UUID>(
        "orders.bound",
        """
        select id from (select * from orders where id = any($1::uuid[]) offset 0) o
        \(fulfilment(of: "o")) \(ending(of: "o"))
        where bound_by is not null or ended_as is not null
        """,
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in try row.uuid(0) })

    /// The newest other order of the user for the product that waits for its purchase and whose offer is valid, for the
    /// answer to a new order (S2-12, S2-21). No row: there is none. The search goes back as far as an order is valid.
    package static let openOrder = Statement<NewOrder, OpenOrder>(
        "orders.open",
        """
        select id, placed_at, pay_by, item, quantity, channel from orders o
        where app_id = $1 and user_id = $2 and product_id = $3 and id <> $4 and reserved_for is null
          and placed_at > now() - make_interval(secs => $5) and pay_by > now() and \(isUnbound("o"))
        order by placed_at desc limit 1
        """,
        bind: {
            [
                .text($0.appID), .text($0.userID), .text($0.productID), .uuid($0.id), .double($0.payBy.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in
            OpenOrder(
                id: try row.uuid(0), placedAt: try row.date(1), payBy: try row.date(2), item: try row.optionalText(3),
                quantity: try row.int(4), channel: try row.text(5))
        })

    package struct OrderSearch: Sendable {
        package var appID: String
        /// Of one person.
        package var userIDs: [String]
        package var productID: String?
        /// Nil: orders in all states.
        package var state: OrderView.State?
        package var before: ListCursor
        package var limit: Int

        package init(
            appID: String, userIDs: [String], productID: String? = nil, state: OrderView.State? = nil,
            before: ListCursor = .newest, limit: Int
        ) {
            self.appID = appID
            self.userIDs = userIDs
            self.productID = productID
            self.state = state
            self.before = before
            self.limit = limit
        }
    }

    /// A user's orders, the newest first.
    package static let searchOrders = Statement<OrderSearch, OrderView>(
        "orders.search",
        """
        select \(orderColumns)
        from unnest($2::text[]) as person(id)
        cross join lateral (select orders.*, b.*, e.* from orders \(fulfilment(of: "orders")) \(ending(of: "orders"))
          where app_id = $1 and user_id = person.id and ($3::text is null or \(soldProduct) = $3)
            and ($4::text is null or $4 = case when bound_by is not null then 'granted'
              when ended_as is not null then ended_as when pay_by < now() then 'expired' else 'open' end)
            and placed_at <= \(time(microseconds: "$6"))
            and (placed_at < \(time(microseconds: "$6")) or id::text collate "C" < $7)
          order by placed_at desc, id desc limit $5) o
        order by o.placed_at desc, o.id desc limit $5
        """,
        bind: {
            [
                .text($0.appID), .texts($0.userIDs.map(Optional.init)), .text($0.productID), .text($0.state?.rawValue),
                .int($0.limit), .int($0.before.at), .text($0.before.key),
            ]
        },
        read: { row throws(PostgresError) in try row.order() })

    private static let orderColumns = """
        o.id, o.app_id, o.user_id, \(soldProduct), o.item, o.quantity, o.promotion, o.channel, o.environment, o.goods,
          o.bonuses, o.price_milliunits, o.currency, o.target, o.placed_at, o.pay_by,
          bound_by is null and o.pay_by < now(), o.reserved_for, bound_by, given_at, given, o.debounce_key,
          given_to, ended_as, ended_at, delivered_at(coalesce(bound_by, o.id::text))
        """
    private static let orderColumnCount = 26

    /// SQL: the orders `o` of the same user for the purchase of a request `i`: the order that the purchase was bound
    /// to, and orders that the user asked for by that purchase before, under whatever key.
    private static let ordersOfReserved = """
        (select order_id as id from grants where transaction_id = i.reserved
              union all (select id from orders where reserved_for = i.reserved order by placed_at, id limit 16)) g
            cross join lateral (select * from orders where id = g.id offset 0) o
            where o.app_id = i.app and \(isOneOf("o.user_id", "i.usr", of: "i.app"))
        """

    /// SQL: the purchase that was granted by an order and so bound it, and what the purchase gave. Nulls: the order is
    /// unbound.
    static func binding(of order: String) -> String {
        """
        left join lateral (
          select transaction_id as bound_by, product_id as sold_product, granted_at as given_at, goods as given
          from grants where order_id = \(order).id offset 0) b on true
        """
    }
    /// SQL: as ``binding(of:)``, and also for an order that was asked for because its purchase came without one
    /// (`reserved_for`). If that purchase had been granted to the order's user by then, the order counts as fulfilled
    /// by that grant (S3-23). The grant stays unchanged, because no grant is ever changed.
    static func fulfilment(of order: String) -> String {
        """
        left join lateral (
          select transaction_id as bound_by, product_id as sold_product, granted_at as given_at, goods as given,
            null as given_to
          from grants where order_id = \(order).id
          union all
          (select transaction_id, case when user_id = \(order).user_id then product_id end, granted_at, goods,
              -- Whoever posted it may read what it gave.
              case when (select user_id from receipts where id = made_up.receipt_id) is distinct from \(order).user_id
                then user_id end
            from (select transaction_id, app_id, user_id, product_id, goods, binding_source, granted_at, order_id,
                receipt_id
              from grants where transaction_id = \(order).reserved_for offset 0) made_up
            where order_id is null and binding_source <> 'shared' and app_id = \(order).app_id
              and \(isOneOf("made_up.user_id", "\(order).user_id", of: "\(order).app_id")))
          limit 1) b on true
        """
    }
    /// SQL: what the service of another way of payment reported of the order; nulls: nothing.
    private static func ending(of order: String) -> String {
        """
        left join lateral (
          select state as ended_as, reported_at as ended_at from order_endings where order_id = \(order).id offset 0) e
          on true
        """
    }
    /// Beside ``binding(of:)``: the order's product is the one that Apple sold, where the purchase's token proves the
    /// order (S3-42).
    static let soldProduct = "coalesce(sold_product, product_id)"
    /// SQL without EXISTS, which a plan may answer by reading all grants. An order of another way of payment that was
    /// paid, closed or refunded waits for no purchase either.
    private static func isUnbound(_ order: String) -> String {
        """
        (select true from grants where order_id = \(order).id) is null
          and (select true from order_endings where order_id = \(order).id) is null
        """
    }
}

extension RowReader {
    /// The order in the columns `Statements.orderColumns`, from the first column on.
    fileprivate func order() throws(PostgresError) -> OrderView {
        let price: Catalogue.Price? =
            if let milliunits = try optionalInt(11) { .init(milliunits: milliunits, currency: try text(12)) } else {
                nil
            }
        return OrderView(
            id: try uuid(0), appID: try text(1), userID: try text(2), productID: try text(3), item: try optionalText(4),
            quantity: try int(5), promotion: try optionalText(6), channel: try text(7),
            environment: try optionalText(8), goods: try goods(9), bonuses: try bonuses(10), price: price,
            target: try json(13), placedAt: try date(14), payBy: try date(15), isExpired: try bool(16),
            reservedFor: try optionalText(17), transactionID: try optionalText(18), boundAt: try optionalDate(19),
            granted: try goods(20), debounceKey: try optionalBytes(21), grantedTo: try optionalText(22),
            ending: try optionalText(23) == nil ? nil : try word(23), endedAt: try optionalDate(24),
            deliveredAt: try optionalDate(25))
    }
}

/// How a batch of orders is placed.
enum OrderBatch {
    /// The most rounds of one batch. Each round places some of a user's orders, in this process or in another one.
    private static let roundsMax = 32

    /// Places a batch, and returns the order that now counts for each of them, and whether it is this one; nil: its
    /// user has placed too many.
    ///
    /// - Throws: also where other processes placed orders of these users in every round. The orders that are left are
    ///   not placed; the caller may ask for all orders again.
    static func place(
        _ orders: [NewOrder], in database: Database
    ) async throws(PostgresError) -> [(view: OrderView, isNew: Bool)?] {
        // The same tap twice in a batch is one order.
        var firstOfTap: [[UInt8]: Int] = [:]
        for (index, order) in orders.enumerated() where firstOfTap[order.debounceKey] == nil {
            firstOfTap[order.debounceKey] = index
        }
        var placed: [(view: OrderView, isNew: Bool)?] = orders.map { _ in nil }
        var open = firstOfTap.values.sorted()
        // One round suffices, unless another process places orders of one of these users at this moment.
        for _ in 0..<roundsMax where !open.isEmpty {
            let rows = Dictionary(
                try await database.run(Statements.placeOrders, open.map { orders[$0] }),
                uniquingKeysWith: { first, _ in first })
            for index in open {
                // An order that was asked for by a purchase may be fulfilled already, so it is read.
                guard let row = rows[orders[index].id] ?? nil, orders[index].reservedFor == nil else { continue }
                placed[index] = (OrderView(orders[index], placedAt: row.placedAt, payBy: row.payBy), true)
            }
            open = open.filter { placed[$0] == nil }
            guard !open.isEmpty else { break }
            for found in try await database.run(Statements.findOrders, open.map { orders[$0] }) {
                let index = open[found.index]
                placed[index] = (found.view, found.view.id == orders[index].id)
            }
            // The orders beyond the limit are done, unless they exist already.
            open = open.filter { placed[$0] == nil && rows[orders[$0].id].map { $0 != nil } ?? true }
        }
        guard open.isEmpty else { throw .serialization }
        return orders.indices.map { index in
            guard let first = firstOfTap[orders[index].debounceKey], first != index else { return placed[index] }
            return placed[first].map { (view: $0.view, isNew: false) }
        }
    }
}
