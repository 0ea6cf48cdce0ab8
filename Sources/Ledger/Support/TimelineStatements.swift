package import Foundation
package import Postgres

/// The rows behind `explain`. Every statement looks up keys and indexes alone, however large the tables are.
extension Statements {
    /// How many purchases of one receipt, and how many receipts of one purchase, a timeline shows: the named and the
    /// newest.
    package static let timelinePurchasesMax = 50
    package static let timelineReceiptsMax = 20
    /// How many tries of one receipt, and how many commands, a timeline shows: the newest.
    package static let timelineEntriesMax = 200

    package struct TimelineQuestion<ID: Sendable>: Sendable {
        package let id: ID
        package let reader: TimelineReader

        package init(id: ID, reader: TimelineReader) {
            self.id = id
            self.reader = reader
        }

        /// `$2` to `$5`, behind the id.
        fileprivate var values: [Value] {
            switch reader {
            case .people: [.texts([]), .texts([]), .bool(true), .bool(false)]
            case .support(let apps): [.texts(apps.sorted()), .texts([]), .bool(false), .bool(false)]
            case .player(let users):
                [
                    .texts(users.map(\.key)), .texts(users.map(\.value)), .bool(false), .bool(true),
                ]
            }
        }
    }

    private static func isInReach(_ app: String) -> String { "($4 or \(app) = any($2::text[]))" }
    /// SQL: whether a user of an app, as that app's tables name users, is the reader. An account that became part of
    /// the reader's account counts as well; not the other way round.
    private static func isPlayers(_ user: String, of app: String) -> String {
        let player = "($3::text[])[array_position($2::text[], \(app))]"
        let account = "select into_user_id from merges where app_id = \(app) and user_id = \(user)"
        return "\(player) in (\(user), (\(account)))"
    }
    /// SQL: whether the reader may see a row `r` of receipts.
    private static let isReadable = """
        \(isInReach("r.app_id")) and (not $5 or \(isPlayers("r.user_id", of: "r.app_id")) or r.user_id is null and exists (
            select from orders o
            where o.id::text = lower(r.order_id) and o.app_id = r.app_id
              and \(isPlayers("o.user_id", of: "o.app_id"))))
        """
    /// SQL: the orders that the transactions `t.list` are bound to.
    private static let ordersOfListed = """
        select o.id from unnest(t.list) as i(id)
          cross join lateral (
            select order_id as id from grants where transaction_id = i.id and order_id is not null offset 0) o
        """

    /// Keys by a receipt's id; no row where there is no such receipt for this reader.
    package static let findReceiptTimeline = Statement<TimelineQuestion<UUID>, TimelineKeys>(
        "timeline.find_receipt",
        """
        select r.app_id, array[r.id], t.list,
          array(select id from orders where id::text = lower(r.order_id)
            union select o.id from receipt_lines l
              cross join lateral (select id from orders where id::text = lower(l.order_id) offset 0) o
              where l.receipt_id = r.id
            union \(ordersOfListed))
        from receipts r
        cross join lateral (select array(
          select transaction_id from outcomes where receipt_id = r.id
          order by (transaction_id = r.transaction_id) desc nulls last, transaction_id desc
          limit \(timelinePurchasesMax)) as list) t
        where r.id = $1 and \(isReadable)
        """,
        bind: { [.uuid($0.id)] + $0.values }, read: timelineKeys)

    /// Keys by a transaction's id, one row per app: a bare id may also be posted in an app that Apple did not sell it
    /// in. The app in which Apple sold it comes first. A user finds the user's own posts and grants. A post that waits
    /// is found by what its proof says, from its first second on.
    package static let findTransactionTimeline = Statement<TimelineQuestion<String>, TimelineKeys>(
        "timeline.find_transaction",
        """
        with posted as (
          select r.id, r.app_id
          from (
            select receipt_id, granted_at as at from grants where transaction_id = $1
            union all
            select receipt_id, decided_at from outcomes where transaction_id = $1 and state <> 'granted') p
          cross join lateral (
            select id, app_id, user_id, order_id from receipts where id = p.receipt_id offset 0) r
          where \(isReadable)
          order by p.at desc limit \(timelineReceiptsMax)),
        -- Nobody has verified that these are of the transaction: they only come beside what is known. Each poster's newest
        -- first, and those that turned out wrong last, so that one poster hides no other.
        shown as (
          select id, app_id, is_open and kind <> 'identifier' as is_open_proof from (
            select r.id, r.app_id, r.kind, r.received_at, r.state <> 'rejected' as is_open,
              row_number() over (partition by r.app_id, r.user_id order by r.received_at desc) as place
            from (
              select id, app_id, user_id, order_id, kind, state, received_at from receipts
              where shown_transaction_id = $1 and state not in ('granted', 'already_granted') offset 0) r
            where \(isReadable)) r
          order by is_open desc, place, received_at limit \(timelineReceiptsMax)),
        known as (
          select k.app_id from transactions k
          where k.transaction_id = $1 and \(isInReach("k.app_id")) and (not $5 or exists (
            select from grants g
            where g.transaction_id = $1 and g.app_id = k.app_id and \(isPlayers("g.user_id", of: "g.app_id"))))
          union
          select m.app_id from imported_grants m
          where m.transaction_id = $1 and \(isInReach("m.app_id"))
            and (not $5 or \(isPlayers("m.user_id", of: "m.app_id"))))
        select a.app_id,
          array(select id from posted p where p.app_id = a.app_id union select id from shown s where s.app_id = a.app_id),
          t.list, array(\(ordersOfListed))
        from (select app_id from posted union select app_id from known union select app_id from shown) a,
          (select array[$1::text] as list) t
        order by a.app_id in (select app_id from known) desc,
          a.app_id in (select app_id from shown where is_open_proof) desc, a.app_id
        """,
        bind: { [.text($0.id)] + $0.values }, read: timelineKeys)

    /// Keys by an order's id, with the receipts that name the order.
    package static let findOrderTimeline = Statement<TimelineQuestion<UUID>, TimelineKeys>(
        "timeline.find_order",
        """
        select o.app_id, p.list, t.list, array[o.id]
        from orders o
        \(fulfilment(of: "o"))
        cross join lateral (select array(
          select receipt_id from grants where transaction_id = bound_by
          union (
            select receipt_id from outcomes where transaction_id = bound_by and state <> 'granted'
            order by decided_at desc limit \(timelineReceiptsMax))
          union (
            select id from receipts where lower(order_id) = o.id::text and app_id = o.app_id
            order by received_at desc limit \(timelineReceiptsMax))
          union (
            select r.id from receipt_lines l
            cross join lateral (select id, app_id from receipts where id = l.receipt_id offset 0) r
            where lower(l.order_id) = o.id::text and r.app_id = o.app_id
            order by l.said_at desc limit \(timelineReceiptsMax))) as list) p
        cross join lateral (select array(
          select bound_by where bound_by is not null
          union (
            select d.transaction_id from unnest(p.list) as i(id)
            cross join lateral (select transaction_id from outcomes where receipt_id = i.id offset 0) d
            order by 1 desc limit \(timelinePurchasesMax))) as list) t
        where o.id = $1 and \(isInReach("o.app_id")) and (not $5 or \(isPlayers("o.user_id", of: "o.app_id")))
        """,
        bind: { [.uuid($0.id)] + $0.values }, read: timelineKeys)

    private static let timelineKeys: @Sendable (borrowing RowReader) throws(PostgresError) -> TimelineKeys = {
        row throws(PostgresError) in
        TimelineKeys(
            appID: try row.text(0), receipts: try row.uuids(1), transactions: try row.texts(2),
            orders: try row.uuids(3))
    }
}
