import Encoding
package import Foundation
package import Postgres
package import Purchases
import Synchronization

/// A receipt as its poster may see it.
package struct ReceiptView: Sendable, Equatable {
    package struct TransactionView: Sendable, Equatable, Decodable {
        package let transactionId: String
        package let originalTransactionId: String?
        package let productId: String?
        package let quantity: Int?
        package let environment: String?
        /// RFC 3339, UTC.
        package let purchasedAt: String?
        package let state: String
        package fileprivate(set) var reason: String?
        /// Whether the grant is the poster's; nil without a grant.
        package let isOwn: Bool?
        /// Where another user has the purchase by less than proof: when the poster may finish it, RFC 3339, UTC.
        package var safeAt: String?
        /// Whether `safeAt` is still to come, by the database's clock.
        package var isDisputed: Bool?
        /// False: the proof was old, and Apple was not asked what is so today. Nil: nothing to say about it.
        package var appleAsked: Bool?
        package let goods: [AppPolicy.Goods]?

        /// The id as the app knows it.
        package var shownID: String { Transaction.shownID(transactionId, in: environment) }
        /// The id under which the poster has it, which may be another id of the purchase; nil without a grant.
        package var grantedAs: String?
        /// The order that the purchase bound, if the poster has it.
        package var orderId: UUID?
        /// Who has it, if another user has it and the poster has shown the purchase; as the tables name users. Never
        /// shown as it is.
        package var holder: String?
        /// What else Apple says of the purchase; nil: nothing.
        package var terms: PurchaseTerms?
    }

    package let id: UUID
    package let appID: String
    package let userID: String?
    package let kind: Proof.Kind
    package let state: ReceiptState
    package let reason: String?
    /// The order that the receipt is judged by.
    package var orderID: String?
    /// The transaction that the poster named last: its `safeToFinish` is the receipt's own.
    package var transactionID: String?
    package let receivedAt: Date
    package let dueAt: Date?
    package fileprivate(set) var transactions: [TransactionView]

    package init(
        id: UUID, appID: String, userID: String?, kind: Proof.Kind, state: ReceiptState, reason: String?,
        orderID: String? = nil, transactionID: String? = nil, receivedAt: Date, dueAt: Date?,
        transactions: [TransactionView]
    ) {
        self.id = id
        self.appID = appID
        self.userID = userID
        self.kind = kind
        self.state = state
        self.reason = reason
        self.orderID = orderID
        self.transactionID = transactionID
        self.receivedAt = receivedAt
        self.dueAt = dueAt
        self.transactions = transactions
    }
}

extension Database {
    /// Receipts as their posters may see them, by their ids, all of one snapshot. Unknown ids are missing.
    func receiptViews(_ ids: [UUID]) async throws(PostgresError) -> [UUID: ReceiptView] {
        try await transact("ledger.read_receipts", isSnapshot: true) { transaction throws(PostgresError) in
            let read = transaction.queue(Statements.readReceipts, ids)
            let endings = transaction.queue(Statements.readEndings, ids)
            let holders = transaction.queue(Statements.readHolders, ids)
            try transaction.commit()
            let endingsOf = Dictionary(grouping: endings.rows, by: \.receiptID)
            let holdersOf = Dictionary(grouping: holders.rows, by: \.receiptID)
            var views: [UUID: ReceiptView] = [:]
            for var view in read.rows {
                view.add(endingsOf[view.id] ?? [], holdersOf[view.id] ?? [])
                views[view.id] = view
            }
            return views
        }
    }
}

extension ReceiptView {
    /// Adds to the purchases what is so of few of them, by the bytes of their ids.
    fileprivate mutating func add(_ endings: [Statements.EndedPurchase], _ holders: [Statements.PurchaseHolder]) {
        guard !endings.isEmpty || !holders.isEmpty else { return }
        let reasons = Dictionary(
            endings.map { (Array($0.transactionID.utf8), $0.reason) }, uniquingKeysWith: { first, _ in first })
        let users = Dictionary(
            holders.map { (Array($0.transactionID.utf8), $0.userID) }, uniquingKeysWith: { first, _ in first })
        for index in transactions.indices {
            let id = Array(transactions[index].transactionId.utf8)
            transactions[index].reason = transactions[index].reason ?? reasons[id]
            transactions[index].holder = users[id] ?? nil
        }
    }
}

extension Statements {
    /// Receipts with what became of each of their transactions. Unknown ids are missing from the result.
    package static let readReceipts = Statement<[UUID], ReceiptView>(
        "ledger.read_receipts",
        """
        select r.id, r.app_id, r.user_id, r.kind,
          case when \(isUntold("r")) then 'held' else \(shownState("r")) end,
          case when \(isUntold("r")) then 'possession_missing' else r.reason end,
          r.transaction_id, r.received_at, r.due_at, t.list, r.order_id
        from unnest($1::uuid[]) as i(id)
        cross join lateral (select id, app_id, user_id, order_id, kind, is_vouched, state, reason, transaction_id,
            received_at, due_at
          from receipts where id = i.id offset 0) r
        cross join lateral (
          select coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
              'transactionId', o.transaction_id, 'originalTransactionId', f.original_transaction_id,
              'productId', f.product_id, 'quantity', f.quantity, 'environment', f.environment,
              'purchasedAt', to_char(f.purchased_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
              'terms', nullif(\(terms("f")), '{}'),
              'state', case when o.is_untold then 'held' else \(shownState("o")) end,
              'reason', case when o.is_untold then 'possession_missing' else o.reason end,
              'isOwn', case when o.state in ('granted', 'already_granted')
                then o.reason is distinct from 'owned_by_another_user' end,
              'safeAt', case when o.reason = 'owned_by_another_user' and not o.is_untold then
                to_char(o.safe_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') end,
              'isDisputed', case when o.reason = 'owned_by_another_user' then o.safe_at > now() end,
              'appleAsked', case when '\(MatchReason.appleUnasked.rawValue)' = any(o.reasons) then false end,
              'goods', case when o.is_with_goods and g.transaction_id = o.transaction_id then g.goods end,
              'grantedAs', case when o.is_with_goods and g.app_id = r.app_id then g.transaction_id end,
              'orderId', case when o.is_with_goods and g.app_id = r.app_id then g.order_id end))
              order by f.purchased_at, o.transaction_id), '[]'::jsonb) as list
          from (
            select transaction_id, state, reason, reasons, granted_as, safe_at,
              \(isUntold("outcomes")) is true as is_untold,
              -- What came with a purchase that moved was another user's.
              state in ('granted', 'already_granted') and reason is distinct from 'owned_by_another_user'
                and reason is distinct from 'transferred' as is_with_goods
            from outcomes
            -- What is given under the id behind its environment stands once.
            where receipt_id = r.id and (state <> 'held'
              and right(granted_as, length(transaction_id) + 1) = '/' || transaction_id) is not true) o
          -- A bare id shows nothing of a purchase that others have posted, and neither does another purchase under its
          -- id.
          left join lateral (select original_transaction_id, product_id, quantity, environment, purchased_at, facts,
              expires_at, ownership
            from transactions where transaction_id = o.transaction_id and app_id = r.app_id
              and o.reason is distinct from 'possession_missing' and o.reason is distinct from 'id_collision'
              and not o.is_untold offset 0) f on true
          left join lateral (select transaction_id, goods, order_id, app_id from grants
            where transaction_id = coalesce(o.granted_as, o.transaction_id) offset 0) g on true) t
        """,
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in
            ReceiptView(
                id: try row.uuid(0), appID: try row.text(1), userID: try row.optionalText(2), kind: try row.kind(3),
                state: try row.state(4), reason: try row.optionalText(5), orderID: try row.optionalText(10),
                transactionID: try row.optionalText(6),
                receivedAt: try row.date(7), dueAt: try row.optionalDate(8),
                transactions: try row.decoded(9))
        })

    /// A poster's purchase that Apple has taken back since.
    struct EndedPurchase: Sendable {
        let receiptID: UUID
        let transactionID: String
        let reason: String
    }

    /// The posters' purchases in these receipts that Apple has taken back since they were granted, each with the reason.
    /// By the purchase's id alone: the index of refunds is empty to statistics of a time without any.
    static let readEndings = Statement<[UUID], EndedPurchase>(
        "ledger.read_endings",
        """
        select i.id, o.transaction_id, f.reason
        from unnest($1::uuid[]) as i(id)
        cross join lateral (select app_id from receipts where id = i.id offset 0) r
        cross join lateral (
          select transaction_id from outcomes
          where receipt_id = i.id and state in ('granted', 'already_granted') and reason is null offset 0) o
        cross join lateral (
          select app_id, nullif(\(takenBack("transactions")), '\(Reason.review.rawValue)') as reason
          from transactions where transaction_id = o.transaction_id offset 0) f
        where f.app_id = r.app_id and f.reason is not null
        """,
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in
            EndedPurchase(receiptID: try row.uuid(0), transactionID: try row.text(1), reason: try row.text(2))
        })

    /// Who has a purchase that another user than its poster has.
    struct PurchaseHolder: Sendable {
        let receiptID: UUID
        let transactionID: String
        let userID: String?
    }

    /// Who has the purchases in these receipts that other users have: by a move or a person, by the grant, or by the
    /// former system. None for a poster who is not told that another user has it.
    static let readHolders = Statement<[UUID], PurchaseHolder>(
        "ledger.read_holders",
        """
        select i.id, o.transaction_id, \(person("h.user_id", of: "r.app_id"))
        from unnest($1::uuid[]) as i(id)
        cross join lateral (select app_id, kind, is_vouched from receipts where id = i.id offset 0) r
        cross join lateral (
          select transaction_id, granted_as, reason from outcomes
          where receipt_id = i.id and reason = 'owned_by_another_user' offset 0) o
        left join lateral (select transaction_id, user_id, app_id from grants
          where transaction_id = coalesce(o.granted_as, o.transaction_id) offset 0) g on true
        cross join lateral (select coalesce(
          (select w.user_id from ownerships w where w.transaction_id = g.transaction_id and w.app_id = r.app_id
              and w.move > 0 order by w.move desc limit 1),
          case when g.app_id = r.app_id then g.user_id end,
          (select m.user_id from imported_grants m
            where m.transaction_id = o.transaction_id and m.app_id = r.app_id)) as user_id offset 0) h
        where \(isUntold("o")) is not true
        """,
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in
            PurchaseHolder(
                receiptID: try row.uuid(0), transactionID: try row.text(1), userID: try row.optionalText(2))
        })

    /// SQL: the ``PurchaseTerms`` of a row of `transactions`, as JSON; `{}` where there is no row or it says nothing.
    static func terms(_ row: String) -> String {
        """
        jsonb_strip_nulls(jsonb_build_object('price', \(row).facts -> 'price', 'currency', \(row).facts -> 'currency',
          'offerType', \(row).facts -> 'offerType', 'offerIdentifier', \(row).facts -> 'offerIdentifier',
          'offerDiscountType', \(row).facts -> 'offerDiscountType', 'offerPeriod', \(row).facts -> 'offerPeriod',
          'expiresAt', to_char(\(row).expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
          'ownership', \(row).ownership))
        """
    }

    /// The SQL of the state that a poster is told. Where somebody else's post granted a purchase to its owner, the
    /// poster is told no more than if the purchase had been granted before (Ownership, row 6).
    static func shownState(_ row: String) -> String {
        """
        case when \(row).state = 'granted' and \(row).reason = 'owned_by_another_user' then 'already_granted' else \(row).state end
        """
    }

    /// SQL: whether the poster must not be told that another user has the purchase. A bare id proves nothing, so its
    /// poster gets the same answer for a purchase of another user as for a purchase of nobody.
    private static func isUntold(_ row: String) -> String {
        "(r.kind = 'identifier' and not r.is_vouched and \(row).reason = 'owned_by_another_user')"
    }

    /// Which of these receipts a long poll waits for no more: those that are no longer tried, or were given on trust.
    package static let finishedReceipts = Statement<[UUID], UUID>(
        "ledger.finished_receipts",
        "select id from receipts where id = any($1::uuid[]) and (state <> 'received' or reason = 'unconfirmed')",
        bind: { [.uuids($0)] },
        read: { row throws(PostgresError) in try row.uuid(0) })

    /// Whether facts of all these purchases are stored, from posts of any user.
    package static let areKnownTransactions = Statement<[String], Bool>(
        "ledger.are_known_transactions",
        """
        select not exists (select from unnest($1::text[]) asked (id)
          where not exists (select from transactions t where t.transaction_id = asked.id))
        """,
        bind: { [.texts($0)] },
        read: { row throws(PostgresError) in try row.bool(0) })
}

extension RowReader {
    /// A JSON column as a Decodable value that our own SQL built.
    package func decoded<Value: Decodable>(_ index: Int) throws(PostgresError) -> Value {
        let text = try json(index)
        do {
            return try JSONDecoder().decode(Value.self, from: Data(text.utf8))
        } catch {
            throw undecodable(index)
        }
    }

    /// A column of ``GoodsJSON``; nil where it is NULL.
    func goods(_ index: Int) throws(PostgresError) -> [AppPolicy.Goods]? {
        guard let text = try optionalJSON(index) else { return nil }
        guard let goods = GoodsJSON.decode(text) else { throw undecodable(index) }
        return goods
    }

    /// The bonuses that an order has frozen; most orders have none.
    func bonuses(_ index: Int) throws(PostgresError) -> [Catalogue.Bonus] {
        try json(index) == "[]" ? [] : try decoded(index)
    }
}

/// Goods in the form of orders, grants and events.
package enum GoodsJSON {
    /// Decoded texts. Orders of one offer have the same goods, letter for letter, and every purchase of an app with
    /// orders reads them.
    private static let known = Mutex<[String: [AppPolicy.Goods]]>([:])
    private static let knownMax = 1024

    /// Nil where the text holds anything else.
    static func decode(_ text: String) -> [AppPolicy.Goods]? {
        if let goods = known.withLock({ $0[text] }) { return goods }
        guard let goods = parse(text) else { return nil }
        known.withLock {
            if $0.count >= knownMax { $0.removeAll(keepingCapacity: true) }
            $0[text] = goods
        }
        return goods
    }

    private static func parse(_ text: String) -> [AppPolicy.Goods]? {
        guard case .array(let values)? = try? JSONValue(parsing: Array(text.utf8)) else { return nil }
        var goods: [AppPolicy.Goods] = []
        goods.reserveCapacity(values.count)
        for value in values {
            guard case .string(let item)? = value["item"], case .number(let text)? = value["amount"],
                let amount = Int(text)
            else { return nil }
            switch value["bonus"] {
            case nil, .null?: goods.append(.init(item: item, amount: amount))
            case .string(let bonus)?: goods.append(.init(item: item, amount: amount, bonus: bonus))
            default: return nil
            }
        }
        return goods
    }

    package static func encode(_ goods: [AppPolicy.Goods]) -> String {
        JSONValue.array(
            goods.map { good in
                let bonus = good.bonus.map { [JSONValue.Member("bonus", .string($0))] } ?? []
                return .object(
                    [.init("amount", .integer(good.amount))] + bonus + [.init("item", .string(good.item))])
            }
        ).text
    }
}
