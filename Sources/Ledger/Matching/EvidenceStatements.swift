import Encoding
import Foundation
package import Postgres
package import Purchases

// Orders as evidence. The SQL looks up orders by one index each, behind limits and `offset 0`, so that no plan reads the
// whole table, whatever its statistics say. The SQL avoids EXISTS, which a plan may answer by reading the whole other
// table.
extension Statements {
    /// How many open orders of one user and product, and of one installation, are read; the latest.
    package static let ordersMax = 16
    /// How many of the newest orders are searched for open ones, bound orders included.
    private static let ordersReadMax = 256

    /// The SQL of the columns of an order `o` for a question `i`.
    ///
    /// - Parameter isProven: SQL: whether the order was placed on the installation that posted the purchase.
    private static func orderColumns(isProven: String) -> String {
        """
        o.id, o.user_id, o.product_id, o.quantity, o.environment, o.placed_at, o.pay_by, o.goods,
          nullif(o.bonuses, '[]'), o.target, \(isProven), o.reserved_for, o.bound_by, o.item
        """
    }
    private static let orderFields = """
        id, \(person("orders.user_id", of: "i.app")) as user_id, \(soldProduct) as product_id, quantity, environment,
              placed_at, pay_by, goods, item, bonuses, target, installation_id, reserved_for, bound_by
        """

    /// SQL: the ids of a user's open orders that may fit the purchase of a question `i`, the latest first. Bound orders
    /// stand in the same index, so at most `ordersReadMax` orders are read, bound ones included.
    private static func openOrders(of user: String) -> String {
        openOrders("user_id = \(user)", placedBefore: placedBeforeMax)
    }
    /// As ``openOrders(of:)``, for orders on the installation that posted the purchase, placed near it in time.
    private static let openOrdersNearby = openOrders("installation_id = i.installation", placedBefore: nearMax)

    private static func openOrders(_ condition: String, placedBefore: String) -> String {
        """
        select id from (
          select id, placed_at from orders
          where app_id = i.app and \(condition) and product_id = i.product and \(isOfApple)
            and placed_at between i.purchased_at - \(placedBefore) and i.purchased_at + \(placedAfterMax)
          order by placed_at desc limit \(ordersReadMax)) newest
        \(binding(of: "newest"))
        where bound_by is null
        order by placed_at desc limit \(ordersMax)
        """
    }

    private static let isOfApple =
        "lower(channel) in (\(NewOrder.channelsOfApple.map { "'\($0)'" }.joined(separator: ", ")))"

    /// The unbound order that the token of each question names. No row for a question without one, or with a purchase
    /// that a support decision exists for. Where ``EvidenceQuestion/mayEndWithToken`` is true, nothing else need be
    /// read. Nearly every purchase of an app with orders is asked this way, for a seventh of what all the evidence costs.
    package static let orderOfToken = Statement<[EvidenceQuestion], EvidenceRow>(
        "matching.order_of_token",
        [
            .text("app") { $0.appID }, .text("token") { $0.transaction.appAccountToken?.text },
            .id, .idBehindEnvironment,
        ],
        sql: { questions in
            """
            select i.n, \(orderColumns(isProven: "false"))
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (
              select \(orderFields), app_id from orders \(binding(of: "orders")) where id = i.token::uuid offset 0) o
            where o.app_id = i.app and o.bound_by is null and (o.reserved_for is null or o.reserved_for = i.id)
              and case when (select true from support_decisions limit 1)
                then (select true from support_decisions where app_id = i.app
                  and transaction_id in (i.id, i.apart_id) limit 1) end is not true
            """
        },
        read: { row throws(PostgresError) in
            var evidence = Evidence()
            if let order = try row.order(from: 1) { evidence.orders = [order] }
            return EvidenceRow(question: try row.int(0) - 1, evidence: evidence)
        })

    /// The indexes, from 0, of the questions that have any evidence, among questions for which
    /// ``EvidenceQuestion/mayHaveNone`` is true. Mostly none: a purchase without an order, in an app with orders, costs
    /// only this look-up.
    package static let hasEvidence = Statement<[EvidenceQuestion], Int>(
        "matching.has_evidence",
        [
            .text("app") { $0.appID }, .text("usr") { $0.userID }, .text("installation") { $0.installationID },
            .id, .idBehindEnvironment, .text("product") { $0.transaction.productID },
            .date("purchased_at") { $0.transaction.purchasedAt },
        ],
        sql: { questions in
            """
            select i.n - 1
            from \(questions.rows(as: "i", ordinality: "n"))
            where coalesce(
              (select true from (\(openOrders(of: "i.usr"))) own limit 1),
              (select true from (\(openOrdersNearby)) near limit 1),
              (select true from support_decisions where app_id = i.app
                and transaction_id in (i.id, i.apart_id) limit 1),
              case when (select true from merges limit 1)
                then (select true from merges where app_id = i.app and into_user_id = i.usr limit 1) end)
            """
        },
        read: { row throws(PostgresError) in try row.int(0) })

    /// The orders that are named for each question: by its token, by its submission, and by a grant on trust.
    ///
    /// An order of another way of payment (S3-21) is found here alone: where the token or the submission names it. The
    /// SQL looks up an order by its id alone and compares the app outside: a service keeps the plan of an empty table,
    /// in which any index of the app looks as good.
    static let namedOrders = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.named_orders",
        [
            .app, .id, .token, .text("named_text") { $0.namedOrderID?.text }, .installation,
            .bool("is_on_trust") { $0.isOnTrust }, .isOfChain,
        ],
        sql: { questions in
            """
            select i.n - 1, \(foundColumns)
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (
              select i.token_text::uuid as id
              union all select i.named_text::uuid where i.named_text is distinct from i.token_text
              union all select bound.id
              from (select order_id as id from grants where i.is_on_trust and transaction_id = i.id limit 1) bound) k
            \(foundOrder)
            """
        },
        read: readOrder)

    /// The open orders of each user, and what was placed under an id that is part of the user by now.
    static let ordersOfUsers = Statement<[UserOfQuestion], EvidencePart>(
        "matching.orders_of_users",
        [
            .text("app") { $0.question.appID }, .text("usr") { $0.userID },
            .text("product") { $0.question.transaction.productID },
            .date("purchased_at") { $0.question.transaction.purchasedAt },
            .text("installation") { $0.question.installationID },
            .bool("is_chain") { $0.question.transaction.isOfChain },
        ],
        sql: { users in
            """
            select i.n - 1, \(foundColumns)
            from \(users.rows(as: "i", ordinality: "n"))
            cross join lateral (
              select i.usr as user_id
              union all select user_id from merges where app_id = i.app and into_user_id = i.usr) owner
            cross join lateral (\(openOrders(of: "owner.user_id"))) k
            \(foundOrder)
            """
        },
        read: readOrder)

    /// The open orders that were placed near each purchase on the installation that posted it.
    static let ordersNearby = Statement<[EvidenceQuestion], EvidencePart>(
        "matching.orders_nearby",
        [.app, .installation, .product, .purchasedAt, .isOfChain],
        sql: { questions in
            """
            select i.n - 1, \(foundColumns)
            from \(questions.rows(as: "i", ordinality: "n"))
            cross join lateral (\(openOrdersNearby)) k
            \(foundOrder)
            """
        },
        read: readOrder)

    /// The columns of ``foundOrder``, which `readOrder` reads from column 1 on.
    private static let foundColumns = "\(orderColumns(isProven: "o.installation_id = i.installation")), o.is_forgotten"
    /// SQL: the order with the id `k.id`, as `o`.
    private static let foundOrder = """
        cross join lateral (
          select \(orderFields),
            i.is_chain and \(isForgotten("orders.user_id", since: "placed_at")) as is_forgotten
          from (select * from orders where id = k.id offset 0) orders \(binding(of: "orders"))
          where app_id = i.app offset 0) o
        """

    private static let readOrder: @Sendable (borrowing RowReader) throws(PostgresError) -> EvidencePart = {
        row throws(PostgresError) in
        let (order, isForgotten) = (try row.order(from: 1), try row.bool(15))
        return EvidencePart(of: try row.int(0)) { search in
            if let order { search.take(order, isForgotten: isForgotten) }
        }
    }

    /// SQL: whether a user was erased after becoming the owner at `since`. In a protected database the user's name in
    /// the tables outlives the erasure.
    static func isForgotten(_ user: String, since: String) -> String {
        """
        (\(user) ~ '\(UserErasure.tombstonePattern)'
          or coalesce((select erased_at from users where app_id = i.app and user_key = \(user)) >= \(since), false))
        """
    }

    private static let placedAfterMax = "interval '\(Int(Matcher.placedAfterMax)) seconds'"
    /// No offer is valid for longer: by row 7 an older order decides nothing. Without this bound a user's bound orders
    /// have no end.
    private static let placedBeforeMax = "interval '366 days'"
    private static let nearMax = "interval '\(Int(Matcher.nearMax)) seconds'"
}

/// The evidence of a question whose token's order decides.
package struct EvidenceRow: Sendable {
    package let question: Int
    package let evidence: Evidence
}

extension RowReader {
    /// The order in the columns of `orderColumns` from this column on; nil where there is no order.
    fileprivate func order(from column: Int) throws(PostgresError) -> PlacedOrder? {
        guard let id = try optionalUUID(column) else { return nil }
        return PlacedOrder(
            id: id, userID: try text(column + 1), productID: try text(column + 2),
            item: try optionalText(column + 13), quantity: try int(column + 3),
            environment: try optionalText(column + 4), placedAt: try date(column + 5), payBy: try date(column + 6),
            goods: try goods(column + 7), bonuses: try optionalJSON(column + 8) == nil ? [] : try bonuses(column + 8),
            target: try json(column + 9),
            isOnProvenInstallation: try optionalBool(column + 10) ?? false, reservedFor: try optionalText(column + 11),
            transactionID: try optionalText(column + 12))
    }
}
