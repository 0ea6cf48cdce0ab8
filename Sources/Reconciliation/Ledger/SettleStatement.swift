package import Foundation
package import Postgres
package import Purchases

/// What became of a receipt when its verdict was written.
package struct Settlement: Sendable, Equatable {
    package let receiptID: UUID
    package let state: ReceiptState
    /// The row's attempt after the verdict: what the next pointer carries.
    package let attempt: Int
}

/// One batch of verdicts, and the clocks that the statement needs beside them.
package struct SettleBatch: Sendable {
    package var verdicts: [Verdict]
    package var parking: Parking

    /// When tries end and a person is needed (design.md 3): after this age *and* eight attempts.
    package struct Parking: Sendable, Equatable {
        package static let attemptsMin = 8
        package var after: Duration = .seconds(86_400)
        package var againMin: Duration = .seconds(3600)
        package var againMax: Duration = .seconds(86_400)

        package init(scale: Double = 1) {
            after = after * scale
            againMin = againMin * scale
            againMax = againMax * scale
        }
    }
}

extension Statements {
    /// Writes every verdict of a batch, final or not: grants, facts, outcomes, attempts, events, receipts. Idempotent:
    /// a repeated batch finds settled rows, or rows whose attempt moved on, and changes nothing.
    ///
    /// The shape and its traps (settle.md), each held by a test:
    /// - The guard is taken once per receipt with SKIP LOCKED: nobody waits for a neighbour. A receipt that is missing
    ///   from the result is read again by the caller.
    /// - "Inserted by us" is matched on transaction *and* receipt: three users may claim one transaction in one batch.
    /// - An owner that this snapshot does not see leaves the receipt as it is (`again`); the next statement sees it.
    /// - No join of two CTEs: the planner expects one row of them and turns quadratic. `IN … IS TRUE` is no join.
    /// - Grants go in the order of their purchases: batches that share purchases cannot deadlock on them, under whatever
    ///   ids (the same id has the same purchase, but a restore has another id).
    /// - A proof that fails as a whole takes back nothing that it granted before: its outcomes still count.
    /// - A grant that exists answers before any decision but `open` (design.md 5.1, rows 1 and 0b); without
    ///   possession only to its own user.
    /// - Purchases that Apple is asked about later, and nothing else open, are no attempt (`history_pending`).
    /// - A refund on record answers a proof that Apple signed before it (row 0a): an old proof is no way around it.
    /// - What is given on trust (`provisional`) needs its place within the limits, and that the purchase was not held
    ///   or rejected. Its verdict keeps the receipt open, and of what it does not give it writes only what nothing was
    ///   said of. It is no attempt: what asking Apple brought is the next verdict. The verdict that brings Apple's word
    ///   about it marks and tells it, and the grant stays whatever that word is. Nothing but that word ends a receipt
    ///   with such a grant, also not a verdict that does not name it.
    /// - An order is bound by one purchase, the one that is granted by it. Whoever finds it bound or held gives nothing
    ///   (`again`): its caller matches the purchase anew. What is granted is the owner's, who may be another than the
    ///   poster; then the poster is told no more than of anybody else's purchase.
    package static let settle = Statement<SettleBatch, Settlement>(
        "ledger.settle",
        """
        with mine as (
          select v.receipt
          from (select distinct receipt, attempt from unnest($1::uuid[], $2::int[]) as i(receipt, attempt)) v
            cross join lateral (select 1 from receipts r
              where r.id = v.receipt and r.settled_at is null and r.attempt = v.attempt
              for no key update skip locked) r),
        verdict as (
          select i.*,
            case when k.is_refunded then 'rejected' when i.asked = 'provisional' and place.is_taken is not true then 'open'
              else i.asked end as decision,
            case when k.is_refunded then 'refunded' else i.cause end as reason,
            coalesce(i.matched_owner, i.usr) as owner, i.order_text::uuid as order_id
          from unnest($1::uuid[], $2::int[], $3::float8[], $4::text[], $5::text[], $6::bool[], $7::text[],
              $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::int[], $14::jsonb[], $15::text[],
              $16::text[], $17::text[], $18::timestamptz[], $19::timestamptz[], $20::timestamptz[], $21::text[],
              $22::text[], $23::timestamptz[], $24::jsonb[], $25::text[], $26::text[], $27::text[], $28::int[],
              $29::int8[], $30::int[], $35::text[], $36::text[], $37::text[], $38::text[], $39::text[], $40::jsonb[],
              $41::bool[], $42::jsonb[], $43::text[], $44::text[])
            as i(receipt, attempt, due_in, app, usr, possession, transaction, asked, cause, binding, environment,
              product, quantity, goods, purchase_key, original, kind, purchased_at, expires_at, revoked_at, token,
              ownership, signed_at, facts, event_id, call_service, call_environment, call_status, call_code, call_ms,
              customer, matched_owner, order_text, why, charged_order, order_facts, takes_chain, beside,
              claimant_event, holder_event)
          left join lateral (select true as is_refunded from transactions t
            where i.asked in ('grant', 'provisional') and t.transaction_id = i.transaction and t.app_id = i.app
              and t.environment = i.environment and t.revoked_at is not null
              and t.signed_at > coalesce(i.signed_at, '-infinity') limit 1) k
            on true
          left join lateral (
            select p.confirmed_at is null and p.revoked_at is null and not exists (select from outcomes o
                where o.receipt_id = i.receipt and o.transaction_id = i.transaction
                  and o.state in ('held', 'rejected')) as is_taken
            from provisional_grants p
            where i.asked = 'provisional' and p.transaction_id = i.transaction and p.receipt_id = i.receipt
            offset 0) place on true
          where (i.receipt in (select receipt from mine)) is true),
        wanted as (                    -- an order that somebody else holds is not waited for
          -- Not by "transaction_id is null": the planner would look an order up by its id through all that are open.
          select o.id, o.transaction_id
          from (select distinct order_id from verdict where order_id is not null and decision in ('grant', 'provisional')) v
            cross join lateral (select id, transaction_id from orders o
              where o.id = v.order_id for no key update skip locked) o),
        bindable as (                  -- one purchase each
          select distinct on (order_id) order_id, transaction, receipt from verdict
          where order_id is not null and decision in ('grant', 'provisional')
            and (order_id in (select id from wanted where transaction_id is null)) is true
          order by order_id, purchase_key, transaction, receipt),
        won as (
          insert into grants (transaction_id, purchase_key, app_id, environment, user_id, customer_id, receipt_id,
            product_id, quantity, goods, binding_source, order_id)
          select transaction, purchase_key, app, environment, owner, customer, receipt, product, quantity, goods, binding,
            order_id
          from verdict where decision in ('grant', 'provisional') and (order_id is null
            or (order_id, transaction, receipt) in (select order_id, transaction, receipt from bindable))
          order by purchase_key, transaction, receipt
          on conflict do nothing
          returning transaction_id, receipt_id),
        bound as (                     -- Apple's product is the order's, where its token proves it (S3-42)
          update orders o set transaction_id = v.transaction, bound_at = now(), product_id = v.product
          from verdict v
          where v.order_id is not null and o.id = v.order_id
            and ((v.transaction, v.receipt) in (select transaction_id, receipt_id from won)) is true),
        known as (
          insert into transactions as t (\(factColumns))
          select distinct on (transaction) transaction, app, environment, original, product, kind, quantity,
            purchased_at, expires_at, revoked_at, token::uuid, ownership, customer, signed_at, facts
          from verdict where product is not null order by transaction, signed_at desc nulls last
          \(onOlderFacts)),
        outcome as (
          select v.receipt, v.due_in, v.transaction, v.asked, o.state, m.mark, v.event_id, v.revoked_at, p.confirmation,
            case o.state
              when 'already_granted' then
                case when g.user_id is distinct from v.usr then 'owned_by_another_user' end
              when 'held' then case when o.collides and v.possession then 'id_collision'
                when v.decision in ('grant', 'provisional') then 'possession_missing' else v.reason end
              when 'granted' then case
                when m.is_unconfirmed then 'unconfirmed' when m.mark = 'revoked' then v.reason
                when coalesce(g.user_id, v.owner) is distinct from v.usr then 'owned_by_another_user' end
              else v.reason end as reason,
            case when o.state = 'granted' then coalesce(g.binding_source, v.binding) end as binding,
            case when o.state = 'granted' and g.receipt_id is null then string_to_array(v.why, ',') end as reasons,
            case when o.state in ('granted', 'already_granted') and v.claimant_event is not null and g.user_id <> v.owner
              then g.user_id end as holder, v.app, v.owner, v.product, v.claimant_event, v.holder_event,
            case when o.state = 'again' then 0
              when o.state = 'open' or m.mark = 'given' then 1
              when m.is_unconfirmed then case when v.asked = 'provisional' then 1 else 2 end
              when o.state = 'held' then 2
              when o.state = 'granted' then 3
              when o.state = 'already_granted' then 4 else 5 end as rank
          from verdict v
          left join lateral (
            (select receipt_id, transaction_id, user_id, app_id, environment, binding_source from grants
              where transaction_id = v.transaction)
            union all
            (select receipt_id, transaction_id, user_id, app_id, environment, binding_source from grants
              where purchase_key = v.purchase_key)
            limit 1) g on true
          cross join lateral (
            select g.app_id <> v.app or g.environment <> coalesce(v.environment, g.environment) as collides,
              -- Without possession: no hint of what others were given.
              case when v.decision in ('grant', 'provisional') then 'held' else v.decision end as unproven offset 0) c
          cross join lateral (
            select case
                when v.transaction is null or v.decision = 'open' then v.decision
                when (v.transaction, v.receipt) in (select transaction_id, receipt_id from won) then 'granted'
                when g.receipt_id is null and v.decision in ('grant', 'provisional') then 'again'
                when g.receipt_id is null then v.decision
                -- A bare id of another app or environment gets no hint either.
                when c.collides then case when v.possession then 'held' else c.unproven end
                when g.transaction_id = v.transaction and g.receipt_id = v.receipt then 'granted'
                when g.user_id = v.usr or v.possession then 'already_granted'
                else c.unproven end as state, c.collides offset 0) o
          -- By their keys alone, here and above: the index of the unconfirmed would be walked for each.
          left join lateral (
            select p.granted_at is not null and p.confirmed_at is null and p.revoked_at is null as is_open,
              p.event_id as confirmation
            from provisional_grants p
            where g.transaction_id = v.transaction and g.receipt_id = v.receipt and p.transaction_id = v.transaction
              and p.receipt_id = v.receipt offset 0) p on true
          cross join lateral (
            select mark, o.state = 'granted' and (mark = 'given' or p.is_open and mark is null) as is_unconfirmed
            from (select case
                when o.state <> 'granted' then null
                when v.decision = 'provisional'
                  and (v.transaction, v.receipt) in (select transaction_id, receipt_id from won) then 'given'
                when p.is_open and v.asked = 'grant' and v.decision = 'grant' then 'confirmed'
                when p.is_open and v.asked = 'rejected' and v.reason in (\(takingBack)) then 'revoked'
                end as mark offset 0) m) m),
        judged as (
          select receipt, min(due_in) as due_in,
            least(min(rank), case when bool_or(asked = 'provisional') then 1 end) as rank,
            bool_or(asked = 'provisional') as is_bridge,
            bool_and(transaction is null) and min(rank) = 5 as closes,
            bool_or(state = 'open' and reason is distinct from '\(Reason.historyPending.rawValue)') as has_try,
            case when bool_or(asked = 'provisional')
              then coalesce(max(reason) filter (where reason = 'unconfirmed'), 'apple_unavailable')
              else (array_agg(reason order by rank, reason nulls first))[1] end as reason
          from outcome group by receipt),
        summary as (
          select j.receipt, j.due_in, j.closes, j.reason as closing_reason, j.is_bridge,
            j.rank = 1 and j.has_try and not j.is_bridge as is_try,
            case when w.waits then 'unconfirmed' when k.rank is null then j.reason else k.reason end as reason,
            (array['again', 'received', 'held', 'granted', 'already_granted', 'rejected'])[
              least(j.rank, k.rank, case when w.waits then 2 end) + 1] as state
          from judged j
          left join lateral (
            select case when o.state = 'granted' then 3 else 4 end as rank, o.reason
            from outcomes o
            where j.closes and o.receipt_id = j.receipt and o.state in ('granted', 'already_granted')
            order by 1, 2 nulls first limit 1) k on true
          -- What was given on trust and is not answered here either, be it named or not: it keeps its receipt.
          left join lateral (
            select bool_or(\(waitsForWord) and ((p.transaction_id, p.receipt_id) in (
                select transaction, receipt from outcome where mark in ('confirmed', 'revoked'))) is not true) as waits
            from provisional_grants p where j.rank not in (0, 2) and p.receipt_id = j.receipt) w on true),
        stored as (
          insert into outcomes (receipt_id, transaction_id, state, reason, binding_source, reasons)
          select receipt, transaction, state, reason, binding, reasons from outcome
          where transaction is not null
            and ((receipt in (select receipt from summary where is_bridge)) is not true
              or asked = 'provisional' and state = 'granted'
              or state <> 'already_granted' and not exists (select from outcomes o
                where o.receipt_id = outcome.receipt and o.transaction_id = outcome.transaction))
            and (receipt in (select receipt from summary where state = 'again')) is not true
          order by receipt, transaction
          on conflict (receipt_id, transaction_id) do update
            set state = excluded.state, reason = excluded.reason,
              binding_source = coalesce(excluded.binding_source, outcomes.binding_source),
              reasons = coalesce(excluded.reasons, outcomes.reasons), decided_at = now()
            where outcomes.state in ('open', 'held', 'rejected')
              or outcomes.reason = 'unconfirmed' and excluded.state = 'granted'),
        closed as (
          update outcomes o set state = 'rejected', reason = s.closing_reason, decided_at = now()
          from summary s
          where s.closes and s.state <> 'held' and o.receipt_id = s.receipt and o.state in ('open', 'held')),
        tried as (
          insert into attempts (receipt_id, attempt, reason, service, environment, http_status, code, duration_ms)
          select distinct on (receipt) receipt, attempt + 1, reason, call_service, call_environment, call_status,
            call_code, call_ms
          from verdict
          where decision = 'open' and reason is distinct from '\(Reason.historyPending.rawValue)'
            and (receipt in (select receipt from summary where is_try)) is true
          order by receipt
          on conflict do nothing),
        told as (
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select event_id::uuid, app, 'purchase.granted', owner, transaction, receipt,
            jsonb_build_object('productId', product, 'quantity', quantity, 'environment', environment,
              'originalTransactionId', original, 'purchasedAt', purchased_at, 'goods', goods, 'bindingSource', binding)
              || case when decision = 'provisional' then '{"provisional": true}'::jsonb else '{}'::jsonb end
              || coalesce(order_facts, '{}'::jsonb)
          from verdict
          where decision in ('grant', 'provisional')
            and (transaction, receipt) in (select transaction_id, receipt_id from won)
          on conflict (event_id) do nothing),
        told_beside as (
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select e.id, v.app, e.type, e."user", v.transaction, v.receipt, e.body
          from verdict v cross join lateral jsonb_to_recordset(v.beside) as e(id uuid, type text, "user" text, body jsonb)
          where v.beside is not null
            and ((v.transaction, v.receipt) in (select transaction_id, receipt_id from won)) is true
          on conflict (event_id) do nothing),
        disputed as (                  -- a proof for another owner than the one it was given to: nothing moves by itself
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select e.id::uuid, o.app, 'ownership.disputed', e.usr, o.transaction, o.receipt,
            jsonb_build_object('productId', o.product, 'isOwner', e.usr = o.holder)
          from outcome o
            cross join lateral (values (o.claimant_event, o.owner), (o.holder_event, o.holder)) e(id, usr)
          where o.holder is not null and (o.receipt in (select receipt from summary where state = 'again')) is not true
          order by 1
          on conflict (event_id) do nothing),
        owned as (
          insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
            binding_source)
          select app, environment, original, purchased_at, transaction, owner, binding from verdict
          where takes_chain and ((transaction, receipt) in (select transaction_id, receipt_id from won)) is true
          order by original, transaction
          on conflict do nothing),
        remembered as (                -- whose an unregistered token is
          insert into granted_tokens (app_id, token, user_id)
          select distinct app, token::uuid, owner from verdict
          where token is not null and binding not in ('order_token', 'user_token', 'shared')
            and ((transaction, receipt) in (select transaction_id, receipt_id from won)) is true
          order by 1, 2, 3
          on conflict do nothing),
        charged as (
          insert into double_charges (transaction_id, app_id, user_id, product_id, order_id)
          select transaction, app, owner, product, charged_order::uuid from verdict
          where charged_order is not null
            and ((transaction, receipt) in (select transaction_id, receipt_id from won)) is true
          order by transaction
          on conflict do nothing),
        marked as (
          update provisional_grants p set
            granted_at = case when m.mark = 'given' then now() else p.granted_at end,
            confirmed_at = case when m.mark = 'confirmed' then now() end,
            revoked_at = case when m.mark = 'revoked' then now() end,
            event_id = case when m.mark = 'revoked' then m.event_id::uuid else p.event_id end
          from outcome m
          where m.mark is not null and p.transaction_id = m.transaction and p.receipt_id = m.receipt
            and (m.mark = 'given' or (m.receipt in (select receipt from summary where state = 'again')) is not true)),
        answered as (
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select case when m.mark = 'revoked' then m.event_id::uuid else m.confirmation end, g.app_id,
            'purchase.' || m.mark, g.user_id, m.transaction, m.receipt,
            jsonb_strip_nulls(jsonb_build_object('productId', g.product_id, 'quantity', g.quantity,
              'environment', g.environment, 'goods', g.goods, 'reason', m.reason, 'revokedAt', m.revoked_at))
          from outcome m cross join lateral (
            select app_id, user_id, product_id, quantity, environment, goods from grants
            where transaction_id = m.transaction offset 0) g
          where m.mark in ('confirmed', 'revoked')
            and (m.receipt in (select receipt from summary where state = 'again')) is not true
          on conflict (event_id) do nothing)
        update receipts r set
          state = case when s.is_try and r.attempt + 1 >= $34 and r.received_at < now() - make_interval(secs => $31)
            then 'parked' else s.state end,
          reason = s.reason,
          attempt = r.attempt + s.is_try::int,
          rescues = 0,
          judged_at = now(),
          settled_at = case when s.state in ('granted', 'already_granted', 'rejected') then now() end,
          due_at = case
            when s.is_try and r.attempt + 1 >= $34 and r.received_at < now() - make_interval(secs => $31)
              then now() + make_interval(secs => least(greatest(
                extract(epoch from now() - r.received_at)::float8 - $31, $32), $33))
            when s.state in ('received', 'held') then now() + make_interval(secs => s.due_in) end
        from summary s where r.id = s.receipt and s.state <> 'again'
        returning r.id, r.state, r.attempt
        """,
        bind: { batch in
            let columns = SettleColumns(batch.verdicts)
            return columns.values + [
                .double(batch.parking.after.inSeconds), .double(batch.parking.againMin.inSeconds),
                .double(batch.parking.againMax.inSeconds), .int32(SettleBatch.Parking.attemptsMin),
                .texts(columns.customers),
            ] + columns.matches.values
        },
        read: { row throws(PostgresError) in
            Settlement(receiptID: try row.uuid(0), state: try row.state(1), attempt: try row.int(2))
        })

    static let takingBack = Reason.takingBack.map { "'\($0.rawValue)'" }.joined(separator: ", ")
}

/// The batch by columns, as `unnest` takes it: one row per receipt and transaction.
private struct SettleColumns {
    private var receipts: [UUID] = []
    private var attempts: [Int?] = []
    private var dueIn: [Double?] = []
    private var apps: [String?] = []
    private var users: [String?] = []
    private var possessions: [Bool?] = []
    private var transactions: [String?] = []
    private var decisions: [String?] = []
    private var reasons: [String?] = []
    private var bindings: [String?] = []
    private var environments: [String?] = []
    private var products: [String?] = []
    private var quantities: [Int?] = []
    private var goods: [String?] = []
    private var purchaseKeys: [String?] = []
    private var originals: [String?] = []
    private var kinds: [String?] = []
    private var purchasedAt: [Date?] = []
    private var expiresAt: [Date?] = []
    private var revokedAt: [Date?] = []
    private var tokens: [String?] = []
    private var ownerships: [String?] = []
    private var signedAt: [Date?] = []
    private var facts: [String?] = []
    private var eventIDs: [String?] = []
    private var callServices: [String?] = []
    private var callEnvironments: [String?] = []
    private var callStatuses: [Int?] = []
    private var callCodes: [Int?] = []
    private var callMilliseconds: [Int?] = []
    private(set) var customers: [String?] = []
    private(set) var matches = MatchColumns()

    init(_ verdicts: [Verdict]) {
        for verdict in verdicts {
            switch verdict.finding {
            case .transactions(let entries):
                for entry in entries {
                    append(verdict, entry.transaction.id, entry.transaction, entry.decision, entry.match)
                }
            case .identifier(let id, let reason): append(verdict, id, nil, .held(reason))
            case .receipt(let decision): append(verdict, nil, nil, decision)
            }
        }
    }

    private mutating func append(
        _ verdict: Verdict, _ transactionID: String?, _ transaction: Transaction?, _ decision: Decision,
        _ match: Match? = nil
    ) {
        receipts.append(verdict.receiptID)
        attempts.append(verdict.attempt)
        dueIn.append(verdict.dueIn.inSeconds)
        apps.append(verdict.appID)
        users.append(verdict.claim.userID)
        possessions.append(verdict.claim.hasPossession)
        transactions.append(transactionID)
        appendDecision(decision)
        appendFacts(transaction)
        matches.append(match, of: transaction, in: verdict)
        eventIDs.append(transaction.map { Self.eventID(verdict.appID, $0, decision).uuidString })
        callServices.append(verdict.call?.service)
        callEnvironments.append(verdict.call?.environment)
        callStatuses.append(verdict.call?.httpStatus)
        callCodes.append(verdict.call?.code)
        callMilliseconds.append(verdict.call?.milliseconds)
    }

    /// Of what this decision tells if it is carried out: of the grant, or that Apple took it back.
    private static func eventID(_ appID: String, _ transaction: Transaction, _ decision: Decision) -> UUID {
        if case .rejected = decision {
            return DerivedID.event(
                appID: appID, transactionID: transaction.id, type: "purchase.revoked", revokedAt: transaction.revokedAt)
        }
        return DerivedID.event(appID: appID, transactionID: transaction.id, type: "purchase.granted")
    }

    private mutating func appendDecision(_ decision: Decision) {
        let (word, reason, given, source): (String, Reason?, [AppPolicy.Goods]?, BindingSource?) =
            switch decision {
            case .grant(let goods, let source): ("grant", nil, goods, source)
            case .provisional(let goods, let source): ("provisional", .appleUnavailable, goods, source)
            case .rejected(let reason): ("rejected", reason, nil, nil)
            case .held(let reason): ("held", reason, nil, nil)
            case .open(let reason): ("open", reason, nil, nil)
            }
        decisions.append(word)
        reasons.append(reason?.rawValue)
        goods.append(given.map(GoodsJSON.encode))
        bindings.append(source?.rawValue)
    }

    private mutating func appendFacts(_ transaction: Transaction?) {
        environments.append(transaction?.environment)
        products.append(transaction?.productID)
        quantities.append(transaction?.quantity)
        purchaseKeys.append(transaction?.purchaseKey)
        originals.append(transaction?.originalID)
        kinds.append(transaction?.kind?.rawValue)
        purchasedAt.append(transaction?.purchasedAt)
        expiresAt.append(transaction?.expiresAt)
        revokedAt.append(transaction?.revokedAt)
        tokens.append(transaction?.appAccountToken?.uuidString)
        ownerships.append(transaction?.ownership)
        customers.append(transaction?.customerID)
        signedAt.append(transaction?.signedAt)
        facts.append(transaction?.facts)
    }

    var values: [Value] {
        [
            .uuids(receipts), .int32s(attempts), .doubles(dueIn), .texts(apps), .texts(users), .bools(possessions),
            .texts(transactions), .texts(decisions), .texts(reasons), .texts(bindings), .texts(environments),
            .texts(products), .int32s(quantities), .jsons(goods), .texts(purchaseKeys), .texts(originals),
            .texts(kinds), .dates(purchasedAt), .dates(expiresAt), .dates(revokedAt), .texts(tokens),
            .texts(ownerships), .dates(signedAt), .jsons(facts), .texts(eventIDs), .texts(callServices),
            .texts(callEnvironments), .int32s(callStatuses), .ints(callCodes), .int32s(callMilliseconds),
        ]
    }
}
