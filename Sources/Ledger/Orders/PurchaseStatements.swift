import Encoding
package import Foundation
package import Postgres
import Purchases

/// A place in a list of a user's purchases or orders, or of waiting receipts: when the entry came to be, and what it is.
package struct ListCursor: Sendable, Equatable, Comparable {
    /// Microseconds since 1970, by the clock of the database.
    package let at: Int
    /// The transaction's id of a grant; otherwise the receipt's or the order's id.
    package let key: String

    package init(at: Int, key: String) {
        self.at = at
        self.key = key
    }

    package static let newest = ListCursor(at: .max, key: "")
    package static let oldest = ListCursor(at: 0, key: "")

    package static func < (one: ListCursor, other: ListCursor) -> Bool {
        guard one.at == other.at else { return one.at < other.at }
        return one.key.utf8.lexicographicallyPrecedes(other.key.utf8)
    }

    package var text: String { "\(at)-\(key)" }

    /// Nil for anything but `<number>-<key>`.
    package init?(_ text: String) {
        let parts = text.split(separator: "-", maxSplits: 1, omittingEmptySubsequences: false)
        guard parts.count == 2, let at = Int(parts[0]), at >= 0, parts[1].utf8.count <= 64, !parts[1].utf8.contains(0)
        else { return nil }
        self.init(at: at, key: String(parts[1]))
    }
}

/// What a user paid in a month, in one currency of one environment.
package struct Spending: Sendable, Equatable {
    package let isProduction: Bool
    /// Nil: purchases of which Apple has told no price (app receipts).
    package let currency: String?
    package let purchases: Int
    package let paidMilliunits: Int
    package let refundedPurchases: Int
    package let refundedMilliunits: Int
}

extension Statements {
    package struct PurchasePage: Sendable {
        package var appID: String
        /// Of one person.
        package var userIDs: [String]
        package var before: ListCursor
        /// Of each of the three lists.
        package var limit: Int

        package init(appID: String, userIDs: [String], before: ListCursor, limit: Int) {
            self.appID = appID
            self.userIDs = userIDs
            self.before = before
            self.limit = limit
        }

        fileprivate var values: [Value] {
            [.text(appID), .texts(userIDs.map(Optional.init)), .int(before.at), .text(before.key), .int(limit)]
        }
    }

    /// Microseconds since 1970, and back: a cursor is exact.
    private static func microseconds(_ column: String) -> String { "(extract(epoch from \(column)) * 1000000)::int8" }
    static func time(microseconds at: String) -> String {
        """
        case when \(at) < 9000000000000000 then timestamptz 'epoch' + make_interval(secs => \(at) / 1000000)
          + (\(at) % 1000000) * interval '1 microsecond' else 'infinity' end
        """
    }
    private static let cursorTime = time(microseconds: "$3")

    /// SQL: how often a receipt was posted after the first time, and when last; nulls: never.
    private static func repeats(_ receipt: String) -> String {
        """
        left join lateral (select posts, posted_at from repeated_posts where receipt_id = \(receipt) offset 0) again
          on true
        """
    }

    /// A purchase in one of the lists, without Apple's facts; nil: the place alone.
    typealias ListedRow = (cursor: ListCursor, topUp: ListedTopUp?)

    /// What was granted to a user, newest first.
    static let grantedPurchases = Statement<PurchasePage, ListedRow>(
        "purchases.granted",
        """
        select \(microseconds("g.granted_at")), g.transaction_id, r.id, o.reason, g.goods, g.order_id, again.posts,
          again.posted_at
        from (
          select l.* from unnest($2::text[]) as person(id)
          cross join lateral (
            select transaction_id, receipt_id, goods, granted_at, order_id from grants
            where app_id = $1 and user_id = person.id and granted_at <= \(cursorTime)
              and (granted_at < \(cursorTime) or transaction_id collate "C" < $4)
            order by granted_at desc, transaction_id collate "C" desc limit $5) l
          order by l.granted_at desc, l.transaction_id collate "C" desc limit $5) g
        left join lateral (
          select reason from outcomes where receipt_id = g.receipt_id and transaction_id = g.transaction_id offset 0) o
          on true
        left join lateral (select id from receipts where id = g.receipt_id and user_id = any($2::text[]) offset 0) r
          on true
        \(repeats("r.id"))
        order by g.granted_at desc, g.transaction_id collate "C" desc
        """,
        bind: { $0.values },
        read: { row throws(PostgresError) in
            let id = try row.text(1)
            var topUp = ListedTopUp.granted(
                id, by: try row.optionalUUID(2), reason: try row.optionalText(3), goods: try row.goods(4),
                orderID: try row.optionalUUID(5))
            (topUp.repeats, topUp.repeatedAt) = (try row.optionalInt(6), try row.optionalDate(7))
            return (ListCursor(at: try row.int(0), key: id), topUp)
        })

    /// What the former system gave a user, newest first by the date of purchase, which is the only date that is known.
    static let importedPurchases = Statement<PurchasePage, ListedRow>(
        "purchases.imported",
        """
        select \(microseconds("m.purchased_at")), m.transaction_id, m.product_id, m.environment, m.purchased_at
        from unnest($2::text[]) as person(id)
        cross join lateral (
          select transaction_id, product_id, environment, purchased_at from imported_grants
          where app_id = $1 and user_id = person.id and purchased_at <= \(cursorTime)
            and (purchased_at < \(cursorTime) or transaction_id collate "C" < $4)
          order by purchased_at desc, transaction_id collate "C" desc limit $5) m
        order by m.purchased_at desc, m.transaction_id collate "C" desc limit $5
        """,
        bind: { $0.values },
        read: { row throws(PostgresError) in
            let id = try row.text(1)
            let topUp = ListedTopUp.imported(
                id, productID: try row.text(2), environment: try row.text(3), purchasedAt: try row.date(4))
            return (ListCursor(at: try row.int(0), key: id), topUp)
        })

    /// Receipts that a user posted, newest first, with the purchases in them that were not granted to that user, here
    /// or before. A purchase that the user posted again is listed with the newest post; once it is granted, it is
    /// listed among the grants.
    ///
    /// The cost depends on the page alone: each purchase of the page is compared with its other posts once, however
    /// often it was posted.
    static let postedPurchases = Statement<PurchasePage, ListedRow>(
        "purchases.posted",
        """
        with page as materialized (
          select l.* from unnest($2::text[]) as person(id)
          cross join lateral (
            select id, state, reason, coalesce(shown_transaction_id, transaction_id) as transaction_id, shown_product_id,
              received_at
            from receipts
            where app_id = $1 and user_id = person.id and received_at <= \(cursorTime)
              and (received_at < \(cursorTime) or id::text collate "C" < $4)
            order by received_at desc, id::text collate "C" desc limit $5) l
          order by l.received_at desc, l.id::text collate "C" desc limit $5),
        -- The newest post on the page of each purchase. Every post of the page compared with all others is quadratic.
        newest as materialized (
          select distinct on (o.transaction_id, o.state = 'granted')
            r.id, r.received_at, r.state as receipt_state, o.transaction_id, o.state, o.reason
          from page r
          cross join lateral (
            select transaction_id, state, reason from outcomes
            where receipt_id = r.id
              and (state in ('open', 'held', 'rejected') or reason in ('owned_by_another_user', 'transferred'))
            offset 0) o
          order by o.transaction_id, o.state = 'granted', r.received_at desc, r.id desc),
        -- Key look-ups for each of them, never a join: the kept plan of a join knows no sizes.
        listed as (
          select o.*, row_number() over (partition by o.id order by o.transaction_id) as place from newest o
          where not exists (select from grants g
              where g.transaction_id = o.transaction_id and g.app_id = $1 and g.user_id = any($2::text[]) offset 0)
            and not exists (select from imported_grants m
              where m.transaction_id = o.transaction_id and m.app_id = $1 and m.user_id = any($2::text[]) offset 0)
            and not exists (
              select from outcomes n cross join lateral (
                select received_at, id from receipts
                where id = n.receipt_id and app_id = $1 and user_id = any($2::text[]) offset 0) l
              where n.transaction_id = o.transaction_id and n.state <> 'granted'
                and (l.received_at, l.id) > (o.received_at, o.id) offset 0))
        select \(microseconds("o.received_at")), o.id, o.is_listed, o.is_judged, o.transaction_id, o.receipt_state,
          o.state, o.reason, o.shown_product_id, again.posts, again.posted_at
        from (
          select id, received_at, true as is_listed, true as is_judged, transaction_id, receipt_state,
            nullif(state, 'open') as state, reason, null as shown_product_id
          from listed where place <= \(listedOfReceiptMax)
          union all
          -- A place of each receipt; listed itself where nothing of its purchases is known.
          select id, received_at, state in ('received', 'held', 'parked', 'rejected')
              and not exists (select from outcomes where receipt_id = r.id offset 0)
              and not exists (select from grants g
                where g.transaction_id = r.transaction_id and g.app_id = $1 and g.user_id = any($2::text[]) offset 0),
            false, transaction_id, state, state, reason, shown_product_id
          from page r) o
        \(repeats("o.id"))
        order by o.received_at desc, o.id::text collate "C" desc, o.transaction_id
        """,
        bind: { $0.values },
        read: { row throws(PostgresError) in
            let receiptID = try row.uuid(1)
            let cursor = ListCursor(at: try row.int(0), key: receiptID.text)
            guard try row.bool(2) else { return (cursor, nil) }
            let (receiptState, reason) = (try row.word(5) as ReceiptState, try row.optionalText(7))
            var topUp: ListedTopUp
            if try row.bool(3) {
                topUp = .posted(
                    try row.text(4), in: receiptID, of: receiptState,
                    try row.optionalText(6) == nil ? nil : try row.word(6), reason: reason)
            } else {
                topUp = .unjudged(
                    try row.optionalText(4), in: receiptID, receiptState, reason: reason,
                    productID: try row.optionalText(8))
            }
            (topUp.repeats, topUp.repeatedAt) = (try row.optionalInt(9), try row.optionalDate(10))
            return (cursor, topUp)
        })

    /// The most purchases that are listed of one receipt.
    private static let listedOfReceiptMax = 200

    /// Apple's facts of listed purchases, each with its index in the input. Purchases without facts in their app are
    /// missing.
    static let purchaseFacts = Statement<[(appID: String, transactionID: String)], (index: Int, facts: PurchaseFacts)>(
        "purchases.facts", [.text("app") { $0.appID }, .text("id") { $0.transactionID }],
        sql: { purchases in
            """
            select i.place::int - 1, t.*
            from \(purchases.rows(as: "i", ordinality: "place"))
            cross join lateral (
              select product_id, quantity, environment, purchased_at, revoked_at, \(ending("transactions")) as ending,
                \(terms("transactions")) as terms
              from transactions where transaction_id = i.id and app_id = i.app offset 0) t
            """
        },
        read: { row throws(PostgresError) in
            (
                try row.int(0),
                PurchaseFacts(
                    productID: try row.text(1), quantity: try row.int(2), environment: try row.text(3),
                    purchasedAt: try row.date(4), revokedAt: try row.optionalDate(5), ending: try row.ending(6),
                    terms: try row.decoded(7))
            )
        })

    package struct SpendingQuestion: Sendable {
        package var appID: String
        /// Of one person.
        package var userIDs: [String]
        /// The month's first moment, and the next one's.
        package var from: Date
        package var to: Date

        package init(appID: String, userIDs: [String], from: Date, to: Date) {
            self.appID = appID
            self.userIDs = userIDs
            self.from = from
            self.to = to
        }
    }

    /// What Apple sold to a user in a month and the ledger granted to that user, by Apple's purchase date, and how much
    /// of it Apple has refunded since, whenever. Without shared purchases, which somebody else paid for.
    package static let spending = Statement<SpendingQuestion, Spending>(
        "purchases.spending",
        """
        select is_production, currency, count(*), coalesce(sum(price), 0)::int8,
          count(*) filter (where is_refunded),
          coalesce(sum(price * share / 100000) filter (where is_refunded), 0)::int8
        from (
          select t.environment = 'Production' as is_production, t.is_refunded,
            case when jsonb_typeof(t.facts -> 'price') = 'number' then (t.facts ->> 'price')::numeric end as price,
            case when jsonb_typeof(t.facts -> 'price') = 'number' then t.facts ->> 'currency' end as currency,
            case when jsonb_typeof(t.facts -> 'revocationPercentage') = 'number'
              then (t.facts ->> 'revocationPercentage')::numeric else 100000 end as share
          from (select distinct unnest($2::text[])) as person(id)
          -- Apple's dates have been hours ahead of ours; granted later it may be by any time.
          cross join lateral (
            select transaction_id, binding_source from grants
            where app_id = $1 and user_id = person.id and granted_at >= $3::timestamptz - interval '1 day' offset 0) g
          cross join lateral (
            select environment, purchased_at, facts, \(isRefund("transactions")) as is_refunded from transactions
            where transaction_id = g.transaction_id and app_id = $1 offset 0) t
          where t.purchased_at >= $3 and t.purchased_at < $4 and g.binding_source <> 'shared') p
        group by 1, 2 order by 1 desc, 2 nulls last
        """,
        bind: { [.text($0.appID), .texts($0.userIDs.map(Optional.init)), .date($0.from), .date($0.to)] },
        read: { row throws(PostgresError) in
            Spending(
                isProduction: try row.bool(0), currency: try row.optionalText(1), purchases: try row.int(2),
                paidMilliunits: try row.int(3), refundedPurchases: try row.int(4), refundedMilliunits: try row.int(5))
        })
}
