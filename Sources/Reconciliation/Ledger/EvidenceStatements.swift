package import Foundation
package import Postgres
package import Purchases

/// Whose is this purchase? Asked for one purchase of one receipt.
package struct EvidenceQuestion: Sendable {
    package let appID: String
    /// The poster.
    package let userID: String?
    package let namedOrderID: UUID?
    package let installationID: String?
    package let transaction: Transaction

    package init(
        appID: String, userID: String?, namedOrderID: UUID?, installationID: String?, transaction: Transaction
    ) {
        self.appID = appID
        self.userID = userID
        self.namedOrderID = namedOrderID
        self.installationID = installationID
        self.transaction = transaction
    }
}

extension Statements {
    /// Open orders of one user and product, and of one installation, that are looked at; the latest.
    package static let ordersMax = 16

    /// One row for each order that may matter, and one for a question without any: which question, what is known beside
    /// the orders, the order. Key look-ups only.
    ///
    /// Orders are looked up by one index each, behind limits and `offset 0`, so that no plan reads the table, whatever
    /// its statistics say; and nothing is asked by EXISTS, which a plan may answer by reading all of the other table.
    package static let evidence = Statement<[EvidenceQuestion], EvidenceRow>(
        "matching.evidence",
        """
        select i.n, r.user_id, coalesce(u.users, '{}'), case when i.token is not null and r.user_id is null and w.decides is not true then (
            select true from user_tokens where app_id = i.app and user_id = i.usr limit 1) end,
          c.user_id, case when not i.is_period then (
            select t.revoked_at from transactions t
              cross join lateral (select from grants where transaction_id = t.transaction_id offset 0) g
            where t.original_transaction_id = i.original and t.app_id = i.app and t.environment = i.environment
            order by t.purchased_at desc limit 1) end,
          case when i.named is not null then coalesce(
            (select true from grants where transaction_id = i.id),
            (select true from grants where purchase_key = i.purchase_key)) end,
          o.id, o.user_id, o.product_id, o.quantity, o.environment, o.placed_at, o.pay_by, o.goods,
          jsonb_build_array(o.item, o.bonuses, o.target)::text, o.target,
          o.installation_id = i.installation, o.reserved_for, o.transaction_id, o.item
        from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
            $9::text[], $10::timestamptz[], $11::text[], $12::bool[], $13::bool[]) with ordinality
          as raw(app, usr, named_text, installation, id, purchase_key, environment, original, product, purchased_at,
            token_text, is_chain, is_period, n)
        cross join lateral (select raw.*, raw.named_text::uuid as named, raw.token_text::uuid as token offset 0) i
        -- The purchase's token is an unbound order: row 2 decides, and nothing else need be known.
        left join lateral (
          select user_id, transaction_id is null and not i.is_chain as decides
          from orders where id = i.token and app_id = i.app offset 0) w on true
        left join lateral (
          select user_id from user_tokens
          where w.decides is not true and app_id = i.app and token = i.token offset 0) r on true
        left join lateral (
          select array_agg(user_id) as users from (
            select user_id from granted_tokens
            where w.decides is not true and app_id = i.app and token = i.token limit 2) t) u on true
        left join lateral (
          select case when i.is_chain then coalesce(
            (select user_id from ownerships where app_id = i.app and environment = i.environment
              and original_transaction_id = i.original order by purchased_at desc, transaction_id desc limit 1),
            -- What was granted before ownerships were written down.
            (select g.user_id from transactions t
              cross join lateral (select user_id from grants where transaction_id = t.transaction_id
                and binding_source <> 'shared' offset 0) g
              where t.original_transaction_id = i.original and t.app_id = i.app and t.environment = i.environment
              order by t.purchased_at desc limit 1)) end as user_id offset 0) c on true
        left join lateral (
          select f.* from (
            select i.token as id
            union all select i.named
            union all select open.id
            from unnest(array[i.usr, r.user_id, case when array_length(u.users, 1) = 1 then u.users[1] end, w.user_id,
              c.user_id]) as owner(user_id)
            cross join lateral (
              select id from orders
              where w.decides is not true and app_id = i.app and user_id = owner.user_id and product_id = i.product
                and transaction_id is null and placed_at <= i.purchased_at + \(placedAfterMax)
              order by placed_at desc limit \(ordersMax)) open
            union all select near.id
            from (select id from orders
              where w.decides is not true and app_id = i.app and installation_id = i.installation
                and transaction_id is null and product_id = i.product
                and placed_at between i.purchased_at - \(nearMax) and i.purchased_at + \(placedAfterMax)
              order by placed_at desc limit \(ordersMax)) near) k
          cross join lateral (
            select id, user_id, product_id, quantity, environment, placed_at, pay_by, goods, item, bonuses, target,
              installation_id, reserved_for, transaction_id
            from orders where id = k.id and app_id = i.app offset 0) f) o on true
        order by i.n
        """,
        bind: { questions in
            let transactions = questions.map(\.transaction)
            return [
                .texts(questions.map(\.appID)), .texts(questions.map(\.userID)),
                .texts(questions.map(\.namedOrderID?.uuidString)), .texts(questions.map(\.installationID)),
                .texts(transactions.map(\.id)), .texts(transactions.map(\.purchaseKey)),
                .texts(transactions.map(\.environment)), .texts(transactions.map(\.originalID)),
                .texts(transactions.map(\.productID)), .dates(transactions.map(\.purchasedAt)),
                .texts(transactions.map(\.appAccountToken?.uuidString)),
                .bools(transactions.map { $0.isPeriod || $0.originalID != $0.id }),
                .bools(transactions.map(\.isPeriod)),
            ]
        },
        read: { row throws(PostgresError) in
            var evidence = Evidence()
            evidence.registeredUserID = try row.optionalText(1)
            evidence.tokenUserIDs = try row.texts(2)
            evidence.posterHasToken = try row.optionalBool(3) ?? false
            let revokedAt = try row.optionalDate(5)
            evidence.chain = try row.optionalText(4).map { Evidence.Chain(userID: $0, revokedAt: revokedAt) }
            evidence.isGranted = try row.optionalBool(6) ?? false
            if let order = try row.order(from: 7) { evidence.orders.append(order) }
            return EvidenceRow(question: try row.int(0) - 1, evidence: evidence)
        })

    /// The evidence of each question, in order. An order that was found in two ways is one.
    static func join(_ rows: [EvidenceRow], count: Int) -> [Evidence] {
        var all = Array(repeating: Evidence?.none, count: count)
        for row in rows {
            if let known = all[row.question]?.orders {
                let isKnown = { (order: PlacedOrder) in known.contains { $0.id == order.id } }
                all[row.question]?.orders += row.evidence.orders.filter { !isKnown($0) }
            } else {
                all[row.question] = row.evidence
            }
        }
        return all.map { $0 ?? .none }
    }

    /// Which apps have ever had an order or a token of a user: in others nothing could answer.
    package static let appsWithOrders = Statement<Void, String>(
        "matching.apps_with_orders",
        """
        select app_id from apps a
        where coalesce(
          -- In the order of an index: without one, the first of an app that has none is found by reading all the others.
          (select true from orders where app_id = a.app_id order by user_id, placed_at limit 1),
          (select true from user_tokens where app_id = a.app_id order by token limit 1))
        """,
        read: { row throws(PostgresError) in try row.text(0) })

    private static let placedAfterMax = "interval '\(Int(Matcher.placedAfterMax)) seconds'"
    private static let nearMax = "interval '\(Int(Matcher.nearMax)) seconds'"
}

/// One row of ``Statements/evidence``: what is known of the question, with one of its orders.
package struct EvidenceRow: Sendable {
    package let question: Int
    package let evidence: Evidence
}

extension RowReader {
    /// Fourteen columns from here on; nil where there is no such row.
    fileprivate func order(from column: Int) throws(PostgresError) -> PlacedOrder? {
        guard let id = try optionalUUID(column) else { return nil }
        return PlacedOrder(
            id: id, userID: try text(column + 1), productID: try text(column + 2),
            item: try optionalText(column + 13), quantity: try int(column + 3),
            environment: try optionalText(column + 4), placedAt: try date(column + 5), payBy: try date(column + 6),
            goods: try optionalJSON(column + 7) == nil ? nil : try decoded(column + 7),
            terms: try text(column + 8), target: try json(column + 9),
            isOfInstallation: try optionalBool(column + 10) ?? false, reservedFor: try optionalText(column + 11),
            transactionID: try optionalText(column + 12))
    }
}
