import Encoding
import Foundation
import Postgres
import Purchases

// What a settle transaction writes, in its order.
extension Statements {
    /// Gives bonuses, each once by the user's key of its period: the purchase of the row brings the bonus's goods. A
    /// purchase that is granted already, or whose order is bound, brings none. `given_bonuses_have_grants` refuses the
    /// commit where a bonus's grant was not inserted, and the batch is repeated.
    ///
    /// - Parameter rows: of a purchase the one that will have the grant.
    static let giveBonuses = Statement<[VerdictRow], Void>(
        "settle.give_bonuses",
        [
            .text("app") { $0.verdict.appID }, .text("owner") { $0.owner }, .text("transaction") { $0.transactionID },
            .text("purchase_key") { $0.transaction?.purchaseKey }, .text("period_key") { $0.transaction?.periodKey },
            .date("purchased_at") { $0.transaction?.purchasedAt }, .text("order_text") { $0.match?.order?.id.text },
            .json("bonuses") { $0.bonuses },
        ],
        sql: { rows in
            """
            insert into given_bonuses (app_id, user_id, bonus, period, transaction_id, goods)
            select i.app, i.owner, b.id, b.period, i.transaction, b.goods
            from \(rows.rows(as: "i"))
              cross join lateral jsonb_to_recordset(i.bonuses) as b(id text, period text, goods jsonb)
            where (select true from grants where transaction_id = i.transaction) is null
              and (select true from grants where purchase_key = i.purchase_key) is null
              and (select true from grants where period_key = i.period_key) is null
              and (select true from grants where order_id = i.order_text::uuid) is null
              -- Nor under another name of the same person.
              and (select true from merges m join given_bonuses had on had.app_id = m.app_id and had.user_id = m.user_id
                  and had.bonus = b.id and had.period = b.period and had.freed_at is null
                where m.app_id = i.app and m.into_user_id = i.owner limit 1) is null
            order by i.app, i.owner, b.id, b.period, i.purchased_at, i.transaction
            on conflict do nothing
            """
        })

    /// Inserts grants in the order of their purchases, so that batches that share purchases cannot deadlock on them,
    /// under whatever ids. Returns the inserted ones: three users may claim one transaction in a batch.
    ///
    /// A period has two unique keys, and a grant under either is the purchase; an order is bound by one grant. `on
    /// conflict` without a target heeds all of them. Batches that share two orders, each wanted by two purchases, can
    /// deadlock: one of the batches is repeated.
    static let insertGrants = Statement<[VerdictRow], (transactionID: String, receiptID: UUID)>(
        "settle.insert_grants",
        [
            .text("transaction") { $0.transactionID }, .text("purchase_key") { $0.transaction?.purchaseKey },
            .text("period_key") { $0.transaction?.periodKey }, .text("app") { $0.verdict.appID },
            .text("environment") { $0.transaction?.environment }, .text("owner") { $0.owner },
            .text("customer") { $0.transaction?.customerID }, .uuid("receipt") { $0.verdict.receiptID },
            .text("product") { $0.transaction?.productID }, .int32("quantity") { $0.transaction?.quantity },
            .json("goods") { $0.asked.goods.map(GoodsJSON.encode) }, .bool("has_bonuses") { $0.bonuses != nil },
            .text("binding") { $0.binding?.rawValue }, .text("order_text") { $0.match?.order?.id.text },
            .text("item") { $0.match?.item }, .bool("is_entitling") { $0.isEntitlingByGrant },
        ],
        sql: { rows in
            """
            insert into grants (transaction_id, purchase_key, period_key, app_id, environment, user_id, customer_id,
              receipt_id, product_id, quantity, goods, binding_source, order_id, item, is_entitling)
            select transaction, purchase_key, period_key, app, environment, owner, customer, receipt, product, quantity,
              case when has_bonuses then goods || coalesce((
                  select jsonb_agg(g order by g ->> 'bonus')
                  from given_bonuses b cross join lateral jsonb_array_elements(b.goods) g
                  where b.transaction_id = i.transaction and b.freed_at is null), '[]')
                else goods end,
              binding, order_text::uuid, item, is_entitling
            from \(rows.rows(as: "i"))
            order by coalesce(period_key, purchase_key) collate "C", transaction collate "C", receipt
            on conflict do nothing
            returning transaction_id, receipt_id
            """
        },
        read: { row throws(PostgresError) in (transactionID: try row.text(0), receiptID: try row.uuid(1)) })

    /// Writes the outcomes of purchases. What is final stays, except that a failed proof may succeed later, and that
    /// Apple may confirm a grant.
    static let writeOutcomes = Statement<[SettledPurchase], Void>(
        "settle.write_outcomes",
        [
            .uuid("receipt") { $0.row.verdict.receiptID }, .text("transaction") { $0.row.transactionID },
            .text("state") { $0.outcome.state.rawValue }, .text("reason") { $0.outcome.reason },
            .text("binding") { $0.outcome.binding?.rawValue },
            .text("reasons") { $0.outcome.reasons?.joined(separator: ",") },
            .text("granted_as") { $0.outcome.grantedAs }, .date("safe_at") { $0.outcome.keepsCopyUntil },
            .bool("only_new") { $0.isWrittenOnlyIfNew },
        ],
        sql: { rows in
            """
            insert into outcomes (receipt_id, transaction_id, state, reason, binding_source, reasons, granted_as, safe_at)
            select receipt, transaction, state, reason, binding, string_to_array(reasons, ','), granted_as, safe_at
            from \(rows.rows(as: "i"))
            where not only_new or (select true from outcomes o
              where o.receipt_id = i.receipt and o.transaction_id = i.transaction) is null
            order by receipt, transaction
            on conflict (receipt_id, transaction_id) do update
              set state = excluded.state, reason = excluded.reason,
                binding_source = case when outcomes.state = 'held' and excluded.state <> 'held'
                  then excluded.binding_source else coalesce(excluded.binding_source, outcomes.binding_source) end,
                reasons = case when outcomes.state = 'held' and excluded.state <> 'held'
                  then excluded.reasons else coalesce(excluded.reasons, outcomes.reasons) end,
                granted_as = excluded.granted_as, safe_at = excluded.safe_at, decided_at = now()
              where outcomes.state in ('open', 'held', 'rejected')
                or outcomes.reason = 'unconfirmed' and excluded.state = 'granted'
            """
        })

    /// Ends the outcomes under the ids of purchases that are given under their ids behind their environments.
    static let endCollisions = Statement<[SettledPurchase], Void>(
        "settle.end_collisions",
        [
            .uuid("receipt") { $0.row.verdict.receiptID }, .text("transaction") { $0.row.transactionID },
            .text("shown") { row in
                row.row.transactionID.map { Transaction.shownID($0, in: row.row.transaction?.environment) }
            },
            .text("state") { purchase in
                (purchase.outcome.state == .granted ? PurchaseOutcome.State.alreadyGranted : purchase.outcome.state)
                    .rawValue
            },
            .text("reason") { $0.outcome.reason }, .text("granted_as") { $0.outcome.grantedAs },
        ],
        sql: { rows in
            """
            update outcomes o set state = i.state, reason = i.reason, granted_as = coalesce(i.granted_as, i.transaction),
              decided_at = now()
            from \(rows.rows(as: "i"))
            where o.receipt_id = i.receipt and o.transaction_id = i.shown and o.state = 'held'
            """
        })

    /// Ends what is open or held in receipts whose proof failed as a whole.
    static let closeOutcomes = Statement<[SettledReceipt], Void>(
        "settle.close_outcomes",
        [.uuid("receipt") { $0.verdict.receiptID }, .text("reason") { $0.summary.closingReason }],
        sql: { rows in
            """
            update outcomes o set state = 'rejected', reason = i.reason, decided_at = now()
            from \(rows.rows(as: "i"))
            where o.receipt_id = i.receipt and o.state in ('open', 'held')
            """
        })

    /// Counts tries at Apple.
    static let writeAttempts = Statement<[(verdict: Verdict, reason: Reason?)], Void>(
        "settle.write_attempts",
        [
            .uuid("receipt") { $0.verdict.receiptID }, .int32("attempt") { $0.verdict.attempt + 1 },
            .text("reason") { $0.reason?.rawValue }, .text("service") { $0.verdict.call?.service },
            .text("environment") { $0.verdict.call?.environment }, .int32("status") { $0.verdict.call?.httpStatus },
            .int("code") { $0.verdict.call?.code }, .int32("ms") { $0.verdict.call?.milliseconds },
        ],
        sql: { rows in
            """
            insert into attempts (receipt_id, attempt, reason, service, environment, http_status, code, duration_ms)
            select receipt, attempt, reason, service, environment, status, code, ms from \(rows.rows(as: "i"))
            order by receipt
            on conflict do nothing
            """
        })

    /// Writes events, each once. Returns the ids of those that were not told before.
    static let writeEvents = Statement<[SettledEvent], UUID>(
        "settle.write_events",
        [
            .uuid("id") { $0.id }, .text("app") { $0.appID }, .text("type") { $0.type.rawValue },
            .text("usr") { $0.userID },
            .text("transaction") { $0.transactionID }, .uuid("receipt") { $0.receiptID }, .json("body") { $0.body },
            .json("target") { $0.target }, .bool("has_bonuses") { $0.takesGoodsOfGrant },
        ],
        sql: { rows in
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
            select id, app, type, usr, transaction, receipt,
              body || case when target is null then '{}' else jsonb_build_object('target', target) end
                || case when not has_bonuses then '{}'
                  else (select jsonb_build_object('goods', goods) from grants where transaction_id = i.transaction) end
            from \(rows.rows(as: "i", ordinality: "n"))
            order by n
            on conflict (transaction_id, event_id) do nothing
            returning event_id
            """
        },
        read: { row throws(PostgresError) in try row.uuid(0) })

    /// Tells Apple's answer about what was given on trust, with the order and the target that the grant was told with.
    static let tellAnswers = Statement<[SettledPurchase], Void>(
        "settle.tell_answers",
        [
            .text("id") { $0.answer?.id.text }, .text("type") { $0.answer?.type.rawValue },
            .text("transaction") { $0.row.transactionID }, .uuid("receipt") { $0.row.verdict.receiptID },
            .text("reason") { $0.outcome.mark == .revoked ? $0.outcome.reason : nil },
            .text("revoked_at") { $0.outcome.mark == .revoked ? $0.row.transaction?.revokedAt?.rfc3339 : nil },
        ],
        sql: { rows in
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
            select i.id::uuid, g.app_id, i.type, g.user_id, i.transaction, i.receipt,
              jsonb_strip_nulls(jsonb_build_object('productId', g.product_id, 'quantity', g.quantity,
                'environment', g.environment, 'goods', g.goods, 'reason', i.reason, 'revokedAt', i.revoked_at))
                || told.body
            from \(rows.rows(as: "i")) cross join lateral (
              select app_id, user_id, product_id, quantity, environment, goods from grants
              where transaction_id = i.transaction offset 0) g
            cross join lateral (
              select coalesce(jsonb_object_agg(key, value), '{}') as body
              from events e cross join lateral jsonb_each(e.body)
              where e.transaction_id = i.transaction and e.type = '\(EventType.purchaseGranted.rawValue)'
                and key in ('orderId', 'orderNumber', 'target')) told
            on conflict (transaction_id, event_id) do nothing
            """
        })

    /// Marks grants on trust: given, confirmed or taken back.
    static let markTrust = Statement<[SettledPurchase], Void>(
        "settle.mark_trust",
        [
            .text("transaction") { $0.row.transactionID }, .uuid("receipt") { $0.row.verdict.receiptID },
            .text("mark") { $0.outcome.mark?.rawValue }, .text("event") { $0.answer?.id.text },
        ],
        sql: { rows in
            """
            update provisional_grants p set
              granted_at = case when i.mark = 'given' then now() else p.granted_at end,
              confirmed_at = case when i.mark = 'confirmed' then now() end,
              revoked_at = case when i.mark = 'revoked' then now() end,
              event_id = case when i.mark = 'revoked' then i.event::uuid else p.event_id end
            from \(rows.rows(as: "i"))
            where p.transaction_id = i.transaction and p.receipt_id = i.receipt
            """
        })

    /// Notes the owners of chains that began or changed hands with a grant.
    static let ownChains = Statement<[VerdictRow], Void>(
        "settle.own_chains",
        [
            .text("app") { $0.verdict.appID }, .text("environment") { $0.transaction?.environment },
            .text("original") { $0.originalID }, .date("purchased_at") { $0.transaction?.purchasedAt },
            .text("transaction") { $0.transactionID }, .text("owner") { $0.owner },
            .text("binding") { $0.binding?.rawValue },
        ],
        sql: { rows in
            """
            insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
              binding_source)
            select app, environment, original, purchased_at, transaction, owner, binding from \(rows.rows(as: "i"))
            order by original, transaction
            on conflict do nothing
            """
        })

    /// Moves purchases to posters who claim them. Two transactions that move one purchase at once conflict (23505): the
    /// second one is repeated, and sees the first.
    static let moveOwnerships = Statement<[SettledMove], Void>(
        "settle.move_ownerships",
        [
            .text("app") { $0.row.verdict.appID }, .text("environment") { $0.row.transaction?.environment },
            .text("original") { $0.chain.originalID }, .date("purchased_at") { $0.chain.purchasedAt },
            .text("granted") { $0.grantedID }, .text("usr") { $0.row.poster }, .int32("move") { $0.chain.move + 1 },
        ],
        sql: { rows in
            """
            insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
              binding_source, move)
            select app, environment, original, purchased_at, granted, usr, '\(BindingSource.transfer.rawValue)', move
            from \(rows.rows(as: "i"))
            order by granted
            """
        })

    /// Remembers whose unregistered tokens are. What such a memory stands on already, stands.
    static let rememberTokens = Statement<[VerdictRow], Void>(
        "settle.remember_tokens",
        [
            .text("app") { $0.verdict.appID }, .text("token") { $0.transaction?.appAccountToken?.text },
            .text("owner") { $0.owner }, .text("transaction") { $0.transactionID },
        ],
        sql: { rows in
            """
            insert into granted_tokens (app_id, token, user_id, transaction_id)
            select distinct on (app, token, owner) app, token::uuid, owner, transaction from \(rows.rows(as: "i"))
            where (select true from granted_tokens had
                cross join lateral (select from transactions where transaction_id = had.transaction_id
                  and revoked_at is null offset 0) standing
              where had.app_id = i.app and had.token = i.token::uuid and had.user_id = i.owner) is null
            order by app, token, owner, transaction
            on conflict (app_id, token, user_id) do update
              set transaction_id = excluded.transaction_id, granted_at = now()
            """
        })

    /// Notes purchases that were bought once more on a bound order.
    static let noteDoubleCharges = Statement<[VerdictRow], Void>(
        "settle.note_double_charges",
        [
            .text("transaction") { $0.transactionID }, .text("app") { $0.verdict.appID }, .text("owner") { $0.owner },
            .text("product") { $0.transaction?.productID }, .text("order_text") { $0.match?.secondChargeOf?.text },
        ],
        sql: { rows in
            """
            insert into double_charges (transaction_id, app_id, user_id, product_id, order_id)
            select transaction, app, owner, product, order_text::uuid from \(rows.rows(as: "i"))
            order by transaction
            on conflict do nothing
            """
        })

    /// Stores what Apple is to be told afterwards, with what it is for, so that neither is there alone.
    static let insertAppleUpdates = Statement<[(appID: String, update: AppleUpdate)], Void>(
        "settle.insert_apple_updates",
        [
            .text("transaction") { $0.update.transaction.id }, .text("kind") { $0.update.kind.rawValue },
            .text("app") { $0.appID }, .text("environment") { $0.update.transaction.environment },
            .text("original") { $0.update.transaction.originalID },
            .date("purchased_at") { $0.update.transaction.purchasedAt }, .text("token") { $0.update.token?.text },
        ],
        sql: { rows in
            """
            insert into apple_updates (transaction_id, kind, app_id, environment, original_transaction_id, purchased_at,
              token)
            select transaction, kind, app, environment, original, purchased_at, token::uuid from \(rows.rows(as: "i"))
            order by transaction, kind
            on conflict do nothing
            """
        })

    /// Writes the receipts' states, and returns what became of each. A try in the lane `bulk` comes back through
    /// Apple's queue.
    static let updateReceipts = Statement<
        [SettledReceipt], (id: UUID, state: ReceiptState, attempt: Int, age: Double)
    >(
        "settle.update_receipts",
        [
            .uuid("receipt") { $0.verdict.receiptID }, .text("state") { $0.summary.state?.rawValue },
            .text("reason") { $0.summary.reason }, .double("due_in") { $0.summary.dueIn?.inSeconds },
            .bool("is_try") { $0.summary.isTry }, .text("variant") { $0.verdict.variantBundleID },
        ],
        sql: { rows in
            """
            update receipts r set state = i.state, reason = i.reason, variant_bundle_id = i.variant,
              attempt = r.attempt + i.is_try::int,
              lane = case when i.is_try and r.lane = 'bulk' then 'apple' else r.lane end, rescues = 0, judged_at = now(),
              settled_at = case when i.due_in is null then now() end,
              due_at = now() + make_interval(secs => i.due_in)
            from \(rows.rows(as: "i"))
            where r.id = i.receipt
            returning r.id, r.state, r.attempt, extract(epoch from clock_timestamp() - r.received_at)::float8
            """
        },
        read: { row throws(PostgresError) in
            (id: try row.uuid(0), state: try row.state(1), attempt: try row.int(2), age: try row.double(3))
        })

    /// Makes receipts due that nobody posted and that wait for an owner: of the same chain, or of the same customer.
    /// Each takes a look at a small index, which is empty where nothing waits. A receipt that another process has
    /// locked is left out: the follow-up of the chain makes it due. A wake begins a new attempt, so a verdict by what was
    /// known before writes nothing. Returns the ids of the receipts that it made due.
    static let wakeUnposted = Statement<[VerdictRow], UUID>(
        "settle.wake_unposted",
        [
            .text("app") { $0.verdict.appID }, .text("original") { $0.originalID },
            .text("customer") { $0.transaction?.customerID },
        ],
        sql: { rows in
            """
            select w.id from \(rows.rows(as: "i")) cross join lateral (\(waitingUnposted)) w
            where wake_unposted(w.id, i.app)
            """
        },
        read: { row throws(PostgresError) in try row.uuid(0) })

    /// SQL: a select of the ids of open receipts that nobody posted, of the chain or of the customer of a row `i`.
    static let waitingUnposted = """
        select id from receipts where original_transaction_id = i.original and source <> 'post' and settled_at is null
        union
        select id from receipts where customer_id = i.customer and source <> 'post' and settled_at is null
        """
}
