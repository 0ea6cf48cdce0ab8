import Encoding
package import Foundation
package import Postgres
package import Purchases

/// A receipt that is held or parked, as support sees it.
package struct WaitingReceipt: Sendable {
    /// A purchase that the receipt waits with.
    package struct Purchase: Sendable, Decodable {
        package let transactionId: String
        /// Nil: not known.
        package let productId: String?
        /// True: the post alone says it, and nobody has verified it.
        package let unverified: Bool?
    }

    package let id: UUID
    package let appID: String
    /// As the tables name users; nil: an order alone names the user.
    package let userID: String?
    package let orderID: String?
    package let state: ReceiptState
    package let reason: String?
    package let attempt: Int
    package let receivedAt: Date
    package let dueAt: Date?
    /// Since it was posted, by the clock of the database.
    package let age: Duration
    /// At most `Statements.waitingPurchasesMax`.
    package let purchases: [Purchase]
    package let place: ListCursor
}

extension Statements {
    /// How many purchases of one waiting receipt are listed.
    package static let waitingPurchasesMax = 20

    package struct WaitingQuestion: Sendable {
        /// Nil: all apps.
        package var apps: [String]?
        /// Nil: held and parked ones.
        package var state: ReceiptState?
        package var reason: String?
        package var after: ListCursor
        package var limit: Int

        package init(
            apps: [String]?, state: ReceiptState? = nil, reason: String? = nil, after: ListCursor = .oldest, limit: Int
        ) {
            self.apps = apps
            self.state = state
            self.reason = reason
            self.after = after
            self.limit = limit
        }
    }

    /// Held and parked receipts, the oldest first.
    package static let waitingReceipts = Statement<WaitingQuestion, WaitingReceipt>(
        "support.waiting_receipts",
        """
        select r.id, r.app_id, r.user_id, r.order_id, r.state, r.reason, r.attempt, r.received_at, r.due_at,
          extract(epoch from now() - r.received_at)::float8, (extract(epoch from r.received_at) * 1000000)::int8, p.list
        from (
          select l.* from unnest(case when $7 then array(select app_id from apps) else $1::text[] end) as app(id)
          cross join lateral (
            select id, app_id, user_id, order_id, state, reason, attempt, received_at, due_at, shown_transaction_id,
              shown_product_id, transaction_id
            from receipts
            where app_id = app.id and state in ('held', 'parked')
              and ($2::text is null or state = $2) and ($3::text is null or reason = $3)
              and received_at >= \(time(microseconds: "$4"))
              and (received_at > \(time(microseconds: "$4")) or id::text collate "C" > $5)
            order by received_at, id limit $6) l
          order by l.received_at, l.id limit $6) r
        cross join lateral (
          select coalesce(
            (select jsonb_agg(jsonb_strip_nulls(jsonb_build_object('transactionId', o.transaction_id,
                'productId', t.product_id)) order by o.transaction_id)
              from (select transaction_id from outcomes where receipt_id = r.id and state in ('open', 'held')
                order by transaction_id limit \(waitingPurchasesMax)) o
              left join lateral (select product_id from transactions
                where transaction_id = o.transaction_id and app_id = r.app_id offset 0) t on true),
            case when coalesce(r.shown_transaction_id, r.transaction_id) is not null then
              jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
                'transactionId', coalesce(r.shown_transaction_id, r.transaction_id), 'productId', r.shown_product_id,
                'unverified', true))) end,
            '[]') as list) p
        order by r.received_at, r.id
        """,
        bind: {
            [
                .texts($0.apps ?? []), .text($0.state?.rawValue), .text($0.reason), .int($0.after.at),
                .text($0.after.key), .int($0.limit), .bool($0.apps == nil),
            ]
        },
        read: { row throws(PostgresError) in
            let id = try row.uuid(0)
            return WaitingReceipt(
                id: id, appID: try row.text(1), userID: try row.optionalText(2), orderID: try row.optionalText(3),
                state: try row.state(4), reason: try row.optionalText(5), attempt: try row.int(6),
                receivedAt: try row.date(7), dueAt: try row.optionalDate(8), age: .seconds(try row.double(9)),
                purchases: try row.decoded(11), place: ListCursor(at: try row.int(10), key: id.text))
        })

    /// Makes these receipts due where they are held or parked; returns their ids.
    package static let redriveReceipts = Statement<[UUID], UUID>(
        "repair.redrive_receipts",
        """
        update receipts set due_at = now(), rescues = 0 where id in (
          select id from receipts where id = any($1::uuid[]) and state = any($2::text[])
          order by id for no key update)
        returning id
        """,
        bind: { [.uuids($0), .texts([ReceiptState.held, .parked].map(\.rawValue))] },
        read: { row throws(PostgresError) in try row.uuid(0) })
}
