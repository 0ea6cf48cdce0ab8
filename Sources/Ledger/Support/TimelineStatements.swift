package import Foundation
package import Postgres
import Purchases

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

    /// One row: everything that is stored under these keys, read at one moment.
    package static let readTimeline = Statement<TimelineKeys, TimelineRows>(
        "timeline.read",
        "select now(),\n"
            + TimelineQueries.all.map { "(select coalesce(jsonb_agg(to_jsonb(x)), '[]') from (\n\($0)) x)" }
            .joined(separator: ",\n"),
        bind: { keys in
            [.text(keys.appID), .uuids(keys.receipts), .texts(keys.transactions), .uuids(keys.orders)]
        },
        read: { row throws(PostgresError) in
            TimelineRows(
                now: try row.date(0), receipts: try row.storedJSON(1), outcomes: try row.storedJSON(2),
                attempts: try row.storedJSON(3), transactions: try row.storedJSON(4), grants: try row.storedJSON(5),
                trusts: try row.storedJSON(6), events: try row.storedJSON(7), orders: try row.storedJSON(8),
                appleUpdates: try row.storedJSON(9), commands: try row.storedJSON(10), halts: try row.storedJSON(11),
                ownerships: try row.storedJSON(12), doubleCharges: try row.storedJSON(13),
                reports: try row.storedJSON(14), imported: try row.storedJSON(15))
        })
}

/// The queries of a timeline, in the order of `TimelineRows`. `$1` app, `$2` receipts, `$3` transactions, `$4` orders.
private enum TimelineQueries {
    static let all = [
        receipts, outcomes, attempts, transactions, grants, trusts, events, orders, appleUpdates, commands, halts,
        ownerships, doubleCharges, reports, imported,
    ]

    /// SQL: the app's condition beside a list of ids, written so that no index serves it. A service keeps the plan of
    /// an empty table, in which an index by app looks as good as one by the ids.
    private static let isOfApp = "app_id || '' = $1"

    private static let receipts = """
        select id, user_id as "userId", order_id as "orderId", source, kind, lane, transaction_id as "transactionId",
          original_transaction_id as "originalTransactionId", is_vouched as "isVouched", state, reason, attempt,
          extract(epoch from received_at) as "receivedAt", extract(epoch from judged_at) as "judgedAt",
          extract(epoch from due_at) as "dueAt", extract(epoch from settled_at) as "settledAt",
          variant_bundle_id as "variantBundleId", extract(epoch from claimed_at) as "claimedAt", target::text as target, declared::text as declared,
          (select count(*) from outcomes where receipt_id = receipts.id) as purchases, again.posts as repeats,
          extract(epoch from again.posted_at) as "repeatedAt",
          shown_transaction_id as "shownTransactionId", shown_product_id as "shownProductId",
          case when lines > 0 then (select jsonb_agg(jsonb_build_object('saidAt', extract(epoch from said_at),
              'orderId', order_id, 'transactionId', transaction_id, 'target', target::text, 'declared', declared::text)
              order by said_at)
            from receipt_lines where receipt_id = receipts.id) end as said
        from receipts left join lateral (
          select posts, posted_at from repeated_posts where receipt_id = receipts.id offset 0) again on true
        where id = any($2::uuid[]) and \(isOfApp)
        """
    private static let outcomes = """
        select receipt_id as "receiptId", transaction_id as "transactionId", state, reason,
          binding_source as "bindingSource", reasons, extract(epoch from decided_at) as "decidedAt"
        from outcomes where receipt_id = any($2::uuid[]) and transaction_id = any($3::text[])
        """
    private static let attempts = """
        select receipt_id as "receiptId", attempt, extract(epoch from at) as at, reason, service, environment,
          http_status as "httpStatus", code, duration_ms as milliseconds
        from unnest($2::uuid[]) as i(id) cross join lateral (
          select receipt_id, attempt, at, reason, service, environment, http_status, code, duration_ms
          from attempts where receipt_id = i.id order by attempt desc limit \(Statements.timelineEntriesMax)) a
        """
    private static let transactions = """
        select transaction_id as "transactionId", original_transaction_id as "originalTransactionId", environment,
          product_id as "productId", kind, quantity, extract(epoch from purchased_at) as "purchasedAt",
          extract(epoch from expires_at) as "expiresAt", extract(epoch from revoked_at) as "revokedAt",
          app_account_token as "appAccountToken", ownership, extract(epoch from signed_at) as "signedAt",
          facts::text as facts, \(Statements.takenBack("transactions")) as "takenBack"
        from transactions where transaction_id = any($3::text[]) and \(isOfApp)
        """
    private static let grants = """
        select transaction_id as "transactionId", receipt_id as "receiptId", user_id as "userId",
          product_id as "productId", quantity, goods, binding_source as "bindingSource",
          extract(epoch from granted_at) as "grantedAt"
        from grants where transaction_id = any($3::text[]) and \(isOfApp)
        """
    private static let trusts = """
        select transaction_id as "transactionId", extract(epoch from granted_at) as "grantedAt",
          extract(epoch from confirmed_at) as "confirmedAt", extract(epoch from revoked_at) as "revokedAt"
        from provisional_grants where transaction_id = any($3::text[]) and \(isOfApp) and granted_at is not null
        """
    private static let events = """
        select event_id as "eventId", type, transaction_id as "transactionId", extract(epoch from at) as at
        from events where transaction_id = any($3::text[]) and \(isOfApp)
        """
    private static let orders = """
        select id, user_id as "userId", \(Statements.soldProduct) as "productId", item, quantity, promotion, channel,
          goods::text as goods, target::text as target, price_milliunits as "priceMilliunits", currency,
          extract(epoch from placed_at) as "placedAt", extract(epoch from pay_by) as "payBy",
          reserved_for as "reservedFor", bound_by as "transactionId", extract(epoch from given_at) as "boundAt",
          given_to as "grantedTo"
        from orders \(Statements.fulfilment(of: "orders")) where id = any($4::uuid[]) and \(isOfApp)
        """
    private static let appleUpdates = """
        select transaction_id as "transactionId", kind, original_transaction_id as "originalTransactionId", token, state,
          reason, attempt, http_status as "httpStatus", code, extract(epoch from created_at) as "createdAt",
          extract(epoch from due_at) as "dueAt", extract(epoch from ended_at) as "endedAt"
        from apple_updates where transaction_id = any($3::text[]) and \(isOfApp)
        """
    /// Commands about the app while the receipts were open, commands about all apps, and commands about the receipts'
    /// users ever since. Of the commands about one purchase, only those about the timeline's purchases.
    private static let commands = """
        select extract(epoch from c.at) as at, c.actor, c.action, c.details::text as details,
          c.details ->> 'receiver' as receiver
        from (
          select min(received_at) as first, max(coalesce(settled_at, now())) as last, array_agg(user_id) as users
          from receipts where id = any($2::uuid[]) and \(isOfApp)) w
        cross join lateral (
          (select at, actor, action, details from audits
            where details ->> 'app' = $1 collate "C" and at between w.first and now()
              and case when details ? 'transaction' then details ->> 'transaction' = any($3::text[])
                else details ->> 'user' = any(w.users) or details ->> 'user' is null and at <= w.last end
            order by at desc limit \(Statements.timelineEntriesMax))
          union all
          (select at, actor, action, details from audits
            where details ->> 'app' is null and at between w.first and w.last
            order by at desc limit \(Statements.timelineEntriesMax))) c
        """
    /// The owners of every chain that a purchase of the timeline belongs to. A chain that moved has a line for each
    /// owner.
    private static let ownerships = """
        select w.original_transaction_id as "originalTransactionId", w.transaction_id as "transactionId",
          w.user_id as "userId", w.binding_source as "bindingSource", extract(epoch from w.purchased_at) as "purchasedAt",
          w.move, extract(epoch from w.decided_at) as "decidedAt"
        from (select distinct environment, original_transaction_id
          from transactions where transaction_id = any($3::text[]) and \(isOfApp)) c
        cross join lateral (
          select original_transaction_id, transaction_id, user_id, binding_source, purchased_at, move, decided_at
          from ownerships where app_id = $1 and environment = c.environment
            and original_transaction_id = c.original_transaction_id
          order by purchased_at desc, move desc, transaction_id desc limit \(Statements.timelineEntriesMax)) w
        """
    private static let doubleCharges = """
        select distinct on (d.transaction_id) d.transaction_id as "transactionId", d.user_id as "userId",
          d.first_transaction_id as "firstTransactionId", d.order_id as "orderId",
          extract(epoch from d.flagged_at) as "flaggedAt"
        from unnest($3::text[]) as i(id) cross join lateral (
          (select * from double_charges where transaction_id = i.id)
          union all (select * from double_charges where first_transaction_id = i.id
            limit \(Statements.timelinePurchasesMax))) d
        where d.app_id = $1
        """
    private static let reports = """
        select r.user_id as "userId", r.order_id as "orderId", r.transaction_id as "transactionId", r.kind, r.message,
          r.app_version as "appVersion", extract(epoch from r.reported_at) as "reportedAt",
          extract(epoch from r.handled_at) as "handledAt"
        from (
          select id from (select unnest($4::uuid[]) as named) o cross join lateral (
            select id from client_reports where order_id = o.named order by reported_at desc
            limit \(Statements.timelineEntriesMax)) c
          union
          select id from (select unnest($3::text[]) as named) t cross join lateral (
            select id from client_reports where transaction_id = t.named limit \(Statements.timelineEntriesMax)) c) i
        cross join lateral (
          select user_id, order_id, transaction_id, kind, message, app_version, reported_at, handled_at
          from client_reports where id = i.id and \(isOfApp) offset 0) r
        """
    private static let imported = """
        select transaction_id as "transactionId", user_id as "userId", product_id as "productId",
          extract(epoch from purchased_at) as "purchasedAt", extract(epoch from imported_at) as "importedAt"
        from imported_grants where transaction_id = any($3::text[]) and \(isOfApp)
        """
    private static let halts = """
        select service, environment, reason, extract(epoch from since) as since,
          extract(epoch from probe_at) as "probeAt"
        from halts where app_id = $1
        """
}

extension RowReader {
    /// A JSON column that our own SQL built, with times in seconds since 1970.
    func storedJSON<Value: Decodable>(_ index: Int) throws(PostgresError) -> Value {
        let decoder = JSONDecoder()
        decoder.dateDecodingStrategy = .secondsSince1970
        let text = try json(index)
        do {
            return try decoder.decode(Value.self, from: Data(text.utf8))
        } catch {
            throw undecodable(index)
        }
    }
}
