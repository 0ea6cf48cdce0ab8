import Encoding
package import Foundation
package import Postgres

extension TimelineRows {
    /// Everything that is stored under these keys: a statement for each kind of row, all of one moment and in one
    /// exchange.
    ///
    /// - Throws: the database's error, retryable as it says.
    package static func read(_ keys: TimelineKeys, in database: Database) async throws(PostgresError) -> TimelineRows {
        try await database.transact("timeline.read", isSnapshot: true) { transaction throws(PostgresError) in
            let now = transaction.queue(Statements.timelineNow, ())
            let receipts = transaction.queue(Statements.timelineReceipts, keys)
            let outcomes = transaction.queue(Statements.timelineOutcomes, keys)
            let attempts = transaction.queue(Statements.timelineAttempts, keys)
            let transactions = transaction.queue(Statements.timelineTransactions, keys)
            let grants = transaction.queue(Statements.timelineGrants, keys)
            let trusts = transaction.queue(Statements.timelineTrusts, keys)
            let events = transaction.queue(Statements.timelineEvents, keys)
            let handOuts = transaction.queue(Statements.timelineHandOuts, keys)
            let orders = transaction.queue(Statements.timelineOrders, keys)
            let appleUpdates = transaction.queue(Statements.timelineAppleUpdates, keys)
            let commands = transaction.queue(Statements.timelineCommands, keys)
            let halts = transaction.queue(Statements.timelineHalts, keys)
            let ownerships = transaction.queue(Statements.timelineOwnerships, keys)
            let doubleCharges = transaction.queue(Statements.timelineDoubleCharges, keys)
            let reports = transaction.queue(Statements.timelineReports, keys)
            let imported = transaction.queue(Statements.timelineImported, keys)
            let notifications = transaction.queue(Statements.timelineNotifications, keys)
            let revocations = transaction.queue(Statements.timelineRevocations, keys)
            let refundRequests = transaction.queue(Statements.timelineRefundRequests, keys)
            let consumption = transaction.queue(Statements.timelineConsumption, keys)
            let subscriptions = transaction.queue(Statements.timelineSubscriptions, keys)
            try transaction.commit()
            var rows = TimelineRows(
                now: now.rows[0], receipts: receipts.rows, outcomes: outcomes.rows, attempts: attempts.rows,
                transactions: transactions.rows, grants: grants.rows, trusts: trusts.rows, events: events.rows,
                orders: orders.rows, appleUpdates: appleUpdates.rows, commands: commands.rows, halts: halts.rows,
                ownerships: ownerships.rows, doubleCharges: doubleCharges.rows, reports: reports.rows,
                imported: imported.rows)
            rows.handOuts = handOuts.rows
            rows.hearing.notifications = notifications.rows
            rows.hearing.revocations = revocations.rows
            rows.hearing.refundRequests = refundRequests.rows
            rows.hearing.consumption = consumption.rows
            rows.hearing.subscriptions = subscriptions.rows
            return rows
        }
    }
}

/// What a timeline is made of. Every statement looks up keys and indexes alone, however large the tables are.
extension Statements {
    /// SQL: the app's condition beside a list of ids, written so that no index serves it. A service keeps the plan of
    /// an empty table, in which an index by app looks as good as one by the ids.
    static let isOfApp = "app_id || '' = $1"

    package static let timelineNow = Statement<Void, Date>(
        "timeline.now", "select now()", read: { row throws(PostgresError) in try row.date(0) })

    package static let timelineReceipts = Statement<TimelineKeys, TimelineRows.Receipt>(
        "timeline.receipts",
        objects: """
            select id, user_id as "userId", order_id as "orderId", source, kind, lane,
              transaction_id as "transactionId", original_transaction_id as "originalTransactionId",
              is_vouched as "isVouched", state, reason, attempt,
              extract(epoch from received_at) as "receivedAt", extract(epoch from judged_at) as "judgedAt",
              extract(epoch from due_at) as "dueAt", extract(epoch from settled_at) as "settledAt",
              variant_bundle_id as "variantBundleId", extract(epoch from claimed_at) as "claimedAt",
              target::text as target, declared::text as declared,
              (select count(*) from outcomes where receipt_id = receipts.id) as purchases, again.posts as repeats,
              extract(epoch from again.posted_at) as "repeatedAt",
              shown_transaction_id as "shownTransactionId", shown_product_id as "shownProductId",
              case when lines > 0 then (select jsonb_agg(jsonb_build_object('saidAt', extract(epoch from said_at),
                  'orderId', order_id, 'transactionId', transaction_id, 'target', target::text,
                  'declared', declared::text) order by said_at)
                from receipt_lines where receipt_id = receipts.id) end as said
            from receipts left join lateral (
              select posts, posted_at from repeated_posts where receipt_id = receipts.id offset 0) again on true
            where id = any($2::uuid[]) and \(isOfApp)
            """, bind: { [.text($0.appID), .uuids($0.receipts)] })

    package static let timelineAttempts = Statement<TimelineKeys, TimelineRows.Attempt>(
        "timeline.attempts",
        objects: """
            select receipt_id as "receiptId", attempt, extract(epoch from at) as at, reason, service, environment,
              http_status as "httpStatus", code, duration_ms as milliseconds
            from unnest($1::uuid[]) as i(id) cross join lateral (
              select receipt_id, attempt, at, reason, service, environment, http_status, code, duration_ms
              from attempts where receipt_id = i.id order by attempt desc limit \(timelineEntriesMax)) a
            """, bind: { [.uuids($0.receipts)] })

    package static let timelineOutcomes = Statement<TimelineKeys, TimelineRows.Outcome>(
        "timeline.outcomes",
        objects: """
            select receipt_id as "receiptId", transaction_id as "transactionId", state, reason,
              binding_source as "bindingSource", reasons, extract(epoch from decided_at) as "decidedAt"
            from outcomes where receipt_id = any($1::uuid[]) and transaction_id = any($2::text[])
            """, bind: { [.uuids($0.receipts), .texts($0.transactions)] })

    package static let timelineTransactions = Statement<TimelineKeys, TimelineRows.Transaction>(
        "timeline.transactions",
        objects: """
            select transaction_id as "transactionId", original_transaction_id as "originalTransactionId", environment,
              product_id as "productId", kind, quantity, extract(epoch from purchased_at) as "purchasedAt",
              extract(epoch from expires_at) as "expiresAt", extract(epoch from revoked_at) as "revokedAt",
              app_account_token as "appAccountToken", ownership, extract(epoch from signed_at) as "signedAt",
              facts::text as facts, \(takenBack("transactions")) as "takenBack"
            from transactions where transaction_id = any($2::text[]) and \(isOfApp)
            """, bind: { [.text($0.appID), .texts($0.transactions)] })

    package static let timelineGrants = Statement<TimelineKeys, TimelineRows.Grant>(
        "timeline.grants",
        objects: """
            select transaction_id as "transactionId", receipt_id as "receiptId", user_id as "userId",
              product_id as "productId", quantity, goods, binding_source as "bindingSource",
              extract(epoch from granted_at) as "grantedAt"
            from grants where transaction_id = any($2::text[]) and \(isOfApp)
            """, bind: { [.text($0.appID), .texts($0.transactions)] })

    package static let timelineTrusts = Statement<TimelineKeys, TimelineRows.Trust>(
        "timeline.provisional_grants",
        objects: """
            select transaction_id as "transactionId", extract(epoch from granted_at) as "grantedAt",
              extract(epoch from confirmed_at) as "confirmedAt", extract(epoch from revoked_at) as "revokedAt"
            from provisional_grants where transaction_id = any($2::text[]) and \(isOfApp) and granted_at is not null
            """, bind: { [.text($0.appID), .texts($0.transactions)] })

    package static let timelineImported = Statement<TimelineKeys, TimelineRows.Imported>(
        "timeline.imported_grants",
        objects: """
            select transaction_id as "transactionId", user_id as "userId", product_id as "productId",
              extract(epoch from purchased_at) as "purchasedAt", extract(epoch from imported_at) as "importedAt"
            from imported_grants where transaction_id = any($2::text[]) and \(isOfApp)
            """, bind: { [.text($0.appID), .texts($0.transactions)] })

    /// The owners of every chain that a purchase of the timeline belongs to. A chain that moved has a line for each
    /// owner.
    package static let timelineOwnerships = Statement<TimelineKeys, TimelineRows.Ownership>(
        "timeline.ownerships",
        objects: """
            select w.original_transaction_id as "originalTransactionId", w.transaction_id as "transactionId",
              w.user_id as "userId", w.binding_source as "bindingSource",
              extract(epoch from w.purchased_at) as "purchasedAt", w.move,
              extract(epoch from w.decided_at) as "decidedAt"
            from (select distinct environment, original_transaction_id
              from transactions where transaction_id = any($2::text[]) and \(isOfApp)) c
            cross join lateral (
              select original_transaction_id, transaction_id, user_id, binding_source, purchased_at, move, decided_at
              from ownerships where app_id = $1 and environment = c.environment
                and original_transaction_id = c.original_transaction_id
              order by purchased_at desc, move desc, transaction_id desc limit \(timelineEntriesMax)) w
            """, bind: { [.text($0.appID), .texts($0.transactions)] })

    package static let timelineDoubleCharges = Statement<TimelineKeys, TimelineRows.DoubleCharge>(
        "timeline.double_charges",
        objects: """
            select distinct on (d.transaction_id) d.transaction_id as "transactionId", d.user_id as "userId",
              d.first_transaction_id as "firstTransactionId", d.order_id as "orderId",
              extract(epoch from d.flagged_at) as "flaggedAt"
            from unnest($2::text[]) as i(id) cross join lateral (
              (select * from double_charges where transaction_id = i.id)
              union all (select * from double_charges where first_transaction_id = i.id
                limit \(timelinePurchasesMax))) d
            where d.app_id = $1
            """, bind: { [.text($0.appID), .texts($0.transactions)] })

    package static let timelineEvents = Statement<TimelineKeys, TimelineRows.Event>(
        "timeline.events",
        objects: """
            select event_id as "eventId", type, transaction_id as "transactionId", extract(epoch from at) as at
            from events where transaction_id = any($2::text[]) and \(isOfApp)
            """, bind: { [.text($0.appID), .texts($0.transactions)] })

    /// By transaction, and by the ids of orders of other ways of payment.
    package static let timelineHandOuts = Statement<TimelineKeys, TimelineRows.HandOut>(
        "timeline.hand_outs",
        objects: """
            select event_id as "eventId", type, transaction_id as "transactionId", outcome, amount, goods, reason,
              extract(epoch from at) as at
            from hand_outs where transaction_id = any($2::text[]) and \(isOfApp)
            """, bind: { [.text($0.appID), .texts($0.transactions + $0.orders.map(\.text))] })

    package static let timelineOrders = Statement<TimelineKeys, TimelineRows.Order>(
        "timeline.orders",
        objects: """
            select id, user_id as "userId", \(soldProduct) as "productId", item, quantity, promotion, channel,
              goods::text as goods, target::text as target, price_milliunits as "priceMilliunits", currency,
              extract(epoch from placed_at) as "placedAt", extract(epoch from pay_by) as "payBy",
              reserved_for as "reservedFor", bound_by as "transactionId", extract(epoch from given_at) as "boundAt",
              given_to as "grantedTo"
            from orders \(fulfilment(of: "orders")) where id = any($2::uuid[]) and \(isOfApp)
            """, bind: { [.text($0.appID), .uuids($0.orders)] })

    package static let timelineReports = Statement<TimelineKeys, TimelineRows.Report>(
        "timeline.reports",
        objects: """
            select r.user_id as "userId", r.order_id as "orderId", r.transaction_id as "transactionId", r.kind,
              r.message, r.app_version as "appVersion", extract(epoch from r.reported_at) as "reportedAt",
              extract(epoch from r.handled_at) as "handledAt"
            from (
              select id from (select unnest($3::uuid[]) as named) o cross join lateral (
                select id from client_reports where order_id = o.named order by reported_at desc
                limit \(timelineEntriesMax)) c
              union
              select id from (select unnest($2::text[]) as named) t cross join lateral (
                select id from client_reports where transaction_id = t.named limit \(timelineEntriesMax)) c) i
            cross join lateral (
              select user_id, order_id, transaction_id, kind, message, app_version, reported_at, handled_at
              from client_reports where id = i.id and \(isOfApp) offset 0) r
            """, bind: { [.text($0.appID), .texts($0.transactions), .uuids($0.orders)] })

    package static let timelineAppleUpdates = Statement<TimelineKeys, TimelineRows.AppleUpdate>(
        "timeline.apple_updates",
        objects: """
            select transaction_id as "transactionId", kind, original_transaction_id as "originalTransactionId", token,
              state, reason, attempt, http_status as "httpStatus", code, extract(epoch from created_at) as "createdAt",
              extract(epoch from due_at) as "dueAt", extract(epoch from ended_at) as "endedAt"
            from apple_updates where transaction_id = any($2::text[]) and \(isOfApp)
            """, bind: { [.text($0.appID), .texts($0.transactions)] })

    /// Commands about the app while the receipts were open, commands about all apps, and commands about the receipts'
    /// users ever since. Of the commands about one purchase, only those about the timeline's purchases.
    package static let timelineCommands = Statement<TimelineKeys, TimelineRows.Command>(
        "timeline.commands",
        objects: """
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
                order by at desc limit \(timelineEntriesMax))
              union all
              (select at, actor, action, details from audits
                where details ->> 'app' is null and at between w.first and w.last
                order by at desc limit \(timelineEntriesMax))) c
            """, bind: { [.text($0.appID), .uuids($0.receipts), .texts($0.transactions)] })

    package static let timelineHalts = Statement<TimelineKeys, TimelineRows.Halt>(
        "timeline.halts",
        objects: """
            select service, environment, reason, extract(epoch from since) as since,
              extract(epoch from probe_at) as "probeAt"
            from halts where app_id = $1
            """, bind: { [.text($0.appID)] })
}

extension Statement where Row: Decodable {
    /// A statement whose rows come as JSON objects.
    ///
    /// - Parameter query: its columns have the names of the row's properties, and its times are seconds since 1970.
    init(_ name: String, objects query: String, bind: @escaping @Sendable (Parameters) -> [Value]) {
        self.init(
            name, "select to_jsonb(x) from (\n\(query)) x", bind: bind,
            read: { row throws(PostgresError) in try row.storedJSON(0) })
    }
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
