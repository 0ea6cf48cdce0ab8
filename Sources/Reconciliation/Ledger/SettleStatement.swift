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
    /// - No join of two CTEs: the planner expects one row of them and turns quadratic.
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
            case when k.is_refunded then 'refunded' else i.cause end as reason
          from unnest($1::uuid[], $2::int[], $3::float8[], $4::text[], $5::text[], $6::bool[], $7::text[],
              $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::int[], $14::jsonb[], $15::text[],
              $16::text[], $17::text[], $18::timestamptz[], $19::timestamptz[], $20::timestamptz[], $21::text[],
              $22::text[], $23::timestamptz[], $24::jsonb[], $25::text[], $26::text[], $27::text[], $28::int[],
              $29::int8[], $30::int[], $35::text[])
            as i(receipt, attempt, due_in, app, usr, possession, transaction, asked, cause, binding, environment,
              product, quantity, goods, purchase_key, original, kind, purchased_at, expires_at, revoked_at, token,
              ownership, signed_at, facts, event_id, call_service, call_environment, call_status, call_code, call_ms,
              customer)
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
        won as (
          insert into grants (transaction_id, purchase_key, app_id, environment, user_id, customer_id, receipt_id,
            product_id, quantity, goods, binding_source)
          select transaction, purchase_key, app, environment, usr, customer, receipt, product, quantity, goods, binding
          from verdict where decision in ('grant', 'provisional') order by purchase_key, transaction, receipt
          on conflict do nothing
          returning transaction_id, receipt_id),
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
              when 'held' then case when o.collides and v.possession then 'id_collision' else v.reason end
              when 'granted' then case
                when m.is_unconfirmed then 'unconfirmed' when m.mark = 'revoked' then v.reason end
              else v.reason end as reason,
            case when o.state = 'granted' then v.binding end as binding,
            case when o.state = 'again' then 0
              when o.state = 'open' or m.mark = 'given' then 1
              when m.is_unconfirmed then case when v.asked = 'provisional' then 1 else 2 end
              when o.state = 'held' then 2
              when o.state = 'granted' then 3
              when o.state = 'already_granted' then 4 else 5 end as rank
          from verdict v
          left join lateral (
            (select receipt_id, transaction_id, user_id, app_id, environment from grants
              where transaction_id = v.transaction)
            union all
            (select receipt_id, transaction_id, user_id, app_id, environment from grants
              where purchase_key = v.purchase_key)
            limit 1) g on true
          cross join lateral (
            select g.app_id <> v.app or g.environment <> coalesce(v.environment, g.environment) as collides offset 0) c
          cross join lateral (
            select case
                when v.transaction is null or v.decision = 'open' then v.decision
                when (v.transaction, v.receipt) in (select transaction_id, receipt_id from won) then 'granted'
                when g.receipt_id is null and v.decision in ('grant', 'provisional') then 'again'
                when g.receipt_id is null then v.decision
                -- A bare id of another app or environment gets no hint either.
                when c.collides then case when v.possession then 'held' else v.decision end
                when g.transaction_id = v.transaction and g.receipt_id = v.receipt then 'granted'
                when g.user_id = v.usr or v.possession then 'already_granted'
                else v.decision end as state, c.collides offset 0) o
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
          insert into outcomes (receipt_id, transaction_id, state, reason, binding_source)
          select receipt, transaction, state, reason, binding from outcome
          where transaction is not null
            and ((receipt in (select receipt from summary where is_bridge)) is not true
              or asked = 'provisional' and state = 'granted'
              or state <> 'already_granted' and not exists (select from outcomes o
                where o.receipt_id = outcome.receipt and o.transaction_id = outcome.transaction))
            and (receipt in (select receipt from summary where state = 'again')) is not true
          order by receipt, transaction
          on conflict (receipt_id, transaction_id) do update
            set state = excluded.state, reason = excluded.reason,
              binding_source = coalesce(excluded.binding_source, outcomes.binding_source), decided_at = now()
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
          select event_id::uuid, app, 'purchase.granted', usr, transaction, receipt,
            jsonb_build_object('productId', product, 'quantity', quantity, 'environment', environment,
              'originalTransactionId', original, 'purchasedAt', purchased_at, 'goods', goods, 'bindingSource', binding)
              || case when decision = 'provisional' then '{"provisional": true}'::jsonb else '{}'::jsonb end
          from verdict
          where decision in ('grant', 'provisional')
            and (transaction, receipt) in (select transaction_id, receipt_id from won)
          on conflict (event_id) do nothing),
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
            ]
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

    init(_ verdicts: [Verdict]) {
        for verdict in verdicts {
            switch verdict.finding {
            case .transactions(let entries):
                for entry in entries { append(verdict, entry.transaction.id, entry.transaction, entry.decision) }
            case .identifier(let id, let reason): append(verdict, id, nil, .held(reason))
            case .receipt(let decision): append(verdict, nil, nil, decision)
            }
        }
    }

    private mutating func append(
        _ verdict: Verdict, _ transactionID: String?, _ transaction: Transaction?, _ decision: Decision
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
