import Postgres
import Purchases

// Parts of ``Statements/settle``, in its order: what became of it.
extension Statements {
    /// What became of each purchase, and of each receipt: `outcome`, `judged`, `summary`, `stored`, `closed`, `tried`.
    static let settleOutcomes = """
        outcome as (
          select v.receipt, v.due_in, v.transaction, v.asked, o.state, m.mark, v.event_id, v.revoked_at, p.confirmation,
            case o.state
              when 'already_granted' then
                case when c.is_claimed then 'transferred' when c.holder is distinct from v.usr then 'owned_by_another_user'
                  when g.user_id is distinct from v.usr then 'transferred' when g.receipt_id is null then 'imported' end
              when 'held' then case when o.collides and v.possession then 'id_collision'
                when o.is_apart then '\(Reason.review.rawValue)'
                when o.waits_for_person then '\(Reason.transferReview.rawValue)'
                when v.decision in ('grant', 'provisional') then 'possession_missing' else v.reason end
              when 'granted' then case
                when m.is_unconfirmed then 'unconfirmed' when m.mark = 'revoked' then v.reason
                when coalesce(g.user_id, v.owner) is distinct from v.usr then 'owned_by_another_user' end
              else v.reason end as reason,
            case when o.state = 'granted' then coalesce(g.binding_source, v.binding)
              when o.state = 'held' and (v.decision = 'held' or o.is_apart) then v.binding end as binding,
            case when o.state = 'already_granted' then nullif(g.transaction_id, v.transaction) end as granted_as,
            case
              when o.state = 'held' and o.is_apart then array['\(MatchReason.keyInUse.rawValue)']
              -- What it was granted by, also where the receipt was not written then for a neighbour's sake.
              when o.state = 'granted' and v.decision <> 'held' and (g.receipt_id is null or g.binding_source = v.binding)
                or o.state = 'held' and v.decision = 'held'
                then case when v.lacking is not null and v.decision = 'held'
                    then array_append(coalesce(string_to_array(v.why, ','), '{}'), 'limit_' || v.lacking)
                  when (select of_purchases from exceeds) is not null and o.state = 'granted'
                    then array_cat(string_to_array(v.why, ','), string_to_array(
                      (select of_purchases from exceeds) ->> (v.receipt::text || ' ' || v.transaction), ','))
                  else string_to_array(v.why, ',') end
              when o.state = 'already_granted' and c.is_claimed then array['\(MatchReason.transferred.rawValue)']
              when o.state = 'already_granted' and c.fate = 'limit' then array['\(MatchReason.transferLimit.rawValue)']
              end as reasons,
            case when o.state in ('granted', 'already_granted') and v.proves_owner and g.user_id <> v.owner
              then g.user_id end as holder, v.app, v.owner, v.product, s.safe_at,
            case when o.state = 'held' and v.reason = '\(Reason.tokenDisputed.rawValue)' then v.rival
              -- Where the claimant has proof, that is told below.
              when s.safe_at is not null and (w.is_won or g.receipt_id is not null)
                and (v.proves_owner and g.user_id <> v.owner) is not true
                -- Whose own post brought the other user's record takes nothing from himself.
                and (coalesce(g.binding_source, v.binding) not in ('shared', 'record')
                  or g.binding_source = 'record'
                    and (select user_id from receipts where id = g.receipt_id) is distinct from v.usr)
                then coalesce(c.holder, v.owner)
              end as rival, v.usr, coalesce(v.original, v.transaction) as original,
            case when o.state = 'again' then 0
              when o.state = 'open' or m.mark = 'given' then 1
              when m.is_unconfirmed then case when v.asked = 'provisional' then 1 else 2 end
              when o.state = 'held' then 2
              when o.state = 'granted' then 3
              when o.state = 'already_granted' then 4 else 5 end as rank
          from verdict v
          cross join lateral (
            select ((v.transaction, v.receipt) in (select transaction_id, receipt_id from won)) is true as is_won offset 0) w
          -- Whoever has it. What we have given is not seen by this statement, and nobody else has that.
          left join lateral (
            select receipt_id, transaction_id, \(person("had.user_id", of: "had.app_id")) as user_id, app_id, environment,
              binding_source
            from (
              (select receipt_id, transaction_id, user_id, app_id, environment, binding_source
                from grants where not w.is_won and transaction_id = v.transaction)
              union all
              (select receipt_id, transaction_id, user_id, app_id, environment, binding_source
                from grants where not w.is_won and purchase_key = v.purchase_key)
              union all
              (select receipt_id, transaction_id, user_id, app_id, environment, binding_source
                from grants where not w.is_won and period_key = v.period_key)
              union all
              (select null, v.transaction, v.imported_user, v.imported_app, v.imported_environment, null
                where v.imported_user is not null)
              limit 1) had
            offset 0) g on true
          -- Whose it is since, by a move or a person.
          left join lateral (
            select \(person("o.user_id", of: "o.app_id")) as user_id, binding_source from ownerships o
            where o.transaction_id = g.transaction_id and o.app_id = g.app_id and o.environment = g.environment
              and o.move > 0 order by o.move desc limit 1) h on true
          -- Two consumables that were bought at different times are two purchases.
          cross join lateral (
            select g.app_id <> v.app or g.environment <> coalesce(v.environment, g.environment) as collides,
              case when v.is_consumable and g.transaction_id <> v.transaction then (
                select date_trunc('second', purchased_at) <> date_trunc('second', v.purchased_at)
                from transactions where transaction_id = g.transaction_id) end as is_other,
              (v.transaction, v.receipt) in (select transaction, receipt from claimed c
                where (c.granted, c.usr) in (select transaction_id, user_id from taken)) as is_claimed,
              case when v.transfer is not null then (
                select fate from claimed c where c.receipt = v.receipt and c.transaction = v.transaction) end as fate,
              coalesce(h.user_id, g.user_id) as holder,
              case when h.user_id is not null then h.binding_source when g.transaction_id is null then v.binding
                else g.binding_source end as proof,
              -- Without possession: no hint of what others were given.
              case when v.decision in ('grant', 'provisional') then 'held' else v.decision end as unproven offset 0) c
          cross join lateral (
            select case
                when v.transaction is null or v.decision = 'open' then v.decision
                when w.is_won then 'granted'
                when g.receipt_id is null and v.decision in ('grant', 'provisional') then 'again'
                when g.transaction_id is null then v.decision
                -- A bare id of another app or environment gets no hint either.
                when c.collides then case when v.possession then 'held' else c.unproven end
                when c.is_other then c.unproven
                when g.transaction_id = v.transaction and g.receipt_id = v.receipt then 'granted'
                when c.fate = 'hold' then 'held'
                when c.fate = 'move' and not c.is_claimed then 'again'
                when c.holder = v.usr or v.possession then 'already_granted'
                else c.unproven end as state, c.collides, c.fate = 'hold' as waits_for_person,
              c.is_other and not c.collides
                and (v.decision in ('grant', 'provisional') or v.reason = '\(Reason.review.rawValue)') as is_apart
              offset 0) o
          -- Another user has it by less than proof: its poster keeps his copy for a day since he was first told so.
          cross join lateral (
            select case when o.state in ('granted', 'already_granted') and v.possession and v.usr is not null
                and c.is_claimed is not true and coalesce(c.holder, v.owner) is distinct from v.usr
                and (c.proof in (\(proofs))) is not true
              then least(now() + make_interval(secs => \(given.safeAfter)), (
                select told.safe_at
                from (select receipt_id, safe_at from outcomes
                  where transaction_id = v.transaction and state <> 'granted' offset 0) told
                  cross join lateral (select from receipts where id = told.receipt_id and user_id = v.usr offset 0) his
                where told.safe_at is not null order by told.safe_at limit 1)) end as safe_at offset 0) s
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
                when v.decision = 'provisional' and w.is_won then 'given'
                when p.is_open and v.asked = 'grant' and v.decision = 'grant' then 'confirmed'
                when p.is_open and v.asked = 'rejected' and v.reason in (\(takingBack)) then 'revoked'
                end as mark offset 0) m) m),
        judged as (
          select receipt, min(due_in) as due_in,
            least(min(rank), case when bool_or(asked = 'provisional') then 1 end) as rank,
            bool_or(asked = 'provisional') as is_bridge,
            bool_and(transaction is null) and min(rank) = 5 as closes,
            bool_or(state = 'open' and (reason in (\(waiting))) is not true) as has_try,
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
            from provisional_grants p
            where (select true from provisional_grants limit 1) and j.rank not in (0, 2) and p.receipt_id = j.receipt) w
            on true),
        stored as (
          insert into outcomes (receipt_id, transaction_id, state, reason, binding_source, reasons, granted_as, safe_at)
          select receipt, transaction, state, reason, binding, reasons, granted_as, safe_at from outcome
          where transaction is not null
            and ((receipt in (select receipt from summary where is_bridge)) is not true
              or asked = 'provisional' and state = 'granted'
              or state <> 'already_granted' and not exists (select from outcomes o
                where o.receipt_id = outcome.receipt and o.transaction_id = outcome.transaction))
            and (receipt in (select receipt from summary where state = 'again')) is not true
          order by receipt, transaction
          on conflict (receipt_id, transaction_id) do update
            set state = excluded.state, reason = excluded.reason,
              binding_source = case when outcomes.state = 'held' and excluded.state <> 'held'
                then excluded.binding_source else coalesce(excluded.binding_source, outcomes.binding_source) end,
              reasons = case when outcomes.state = 'held' and excluded.state <> 'held'
                then excluded.reasons else coalesce(excluded.reasons, outcomes.reasons) end,
              granted_as = excluded.granted_as, safe_at = excluded.safe_at, decided_at = now()
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
          where decision = 'open' and (reason in (\(waiting))) is not true
            and (receipt in (select receipt from summary where is_try)) is true
          order by receipt
          on conflict do nothing),
        """

    /// What the event of a grant says, of a row of `verdict`.
    private static let grantMembers = """
        'productId', product, 'quantity', quantity, 'environment', environment, 'originalTransactionId', original,
              'purchasedAt', purchased_at, 'goods', \(goodsWithBonuses), 'bindingSource', binding
        """

    /// Who is told, and what is remembered beside it: `told` to `answered`.
    static let settleEvents = """
        told as (
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select event_id::uuid, app, 'purchase.granted', owner, transaction, receipt,
            -- Of an order in one go: joining two bodies costs as much as making one.
            case
              when decision = 'provisional' then jsonb_build_object(\(grantMembers), 'provisional', true)
                || coalesce(order_facts, '{}')
              when order_facts is null then jsonb_build_object(\(grantMembers))
              when order_id is null then jsonb_build_object(\(grantMembers)) || order_facts
              else jsonb_build_object(\(grantMembers),
                'target', order_facts -> 'target', 'orderId', order_facts -> 'orderId') end
          from verdict
          where decision in ('grant', 'provisional')
            and (transaction, receipt) in (select transaction_id, receipt_id from won)
          on conflict (transaction_id, event_id) do nothing),
        told_beside as (
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select e.id, v.app, e.type, e."user", v.transaction, v.receipt, e.body
          from verdict v cross join lateral jsonb_to_recordset(v.beside) as e(id uuid, type text, "user" text, body jsonb)
          where v.beside is not null
            and ((v.transaction, v.receipt) in (select transaction_id, receipt_id from won)) is true
          on conflict (transaction_id, event_id) do nothing),
        disputed as (                  -- a proof for another owner than the one it was given to: nothing moves by itself
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select \(derivedEvent("o.app", "o.transaction", "'ownership.disputed.' || e.side")), o.app, 'ownership.disputed',
            e.usr, o.transaction, o.receipt, jsonb_build_object('productId', o.product, 'isOwner', e.usr = o.holder)
          from outcome o cross join lateral (values ('claimant', o.owner), ('holder', o.holder)) e(side, usr)
          where o.holder is not null and (o.receipt in (select receipt from summary where state = 'again')) is not true
          order by 1
          on conflict (transaction_id, event_id) do nothing
          returning receipt_id),
        claimed_against as (           -- shown by another than has it by less than proof: each of the two is told once
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select distinct on (1) \(derivedEvent("o.app", "o.original", "'ownership.disputed.' || e.side || '.' || e.usr")),
            o.app, 'ownership.disputed', e.usr, o.original, o.receipt,
            jsonb_build_object('productId', o.product, 'isOwner', o.state <> 'held' and e.usr = o.rival)
          from outcome o cross join lateral (values ('claimant', o.usr), ('holder', o.rival)) e(side, usr)
          where o.rival is not null and (o.receipt in (select receipt from summary where state = 'again')) is not true
          order by 1
          on conflict (transaction_id, event_id) do nothing
          returning receipt_id),
        told_moves as (
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          -- A purchase may move again, but by another receipt.
          select \(derivedEvent("m.app", "m.transaction", "e.type || '.' || upper(m.receipt::text)")), m.app, e.type, e.usr,
            m.transaction, m.receipt,
            jsonb_build_object('productId', m.product, 'originalTransactionId', m.original, 'bindingSource', 'transfer')
          from moved m cross join lateral (values ('ownership.lost', m.holder), ('ownership.gained', m.usr)) e(type, usr)
          order by 1
          on conflict (transaction_id, event_id) do nothing),
        owned as (
          insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
            binding_source)
          select app, environment, original, purchased_at, transaction, owner, binding from verdict
          where takes_chain and ((transaction, receipt) in (select transaction_id, receipt_id from won)) is true
          order by original, transaction
          on conflict do nothing),
        remembered as (                -- whose an unregistered token is
          insert into granted_tokens (app_id, token, user_id, transaction_id)
          select distinct on (app, token, owner) app, token::uuid, owner, transaction from verdict
          where remembers and environment = '\(Transaction.production)'
            and ((transaction, receipt) in (select transaction_id, receipt_id from won)) is true
            -- What it stands on already, stands.
            and (select true from granted_tokens had
                cross join lateral (select from transactions where transaction_id = had.transaction_id
                  and revoked_at is null offset 0) standing
              where had.app_id = verdict.app and had.token = verdict.token::uuid and had.user_id = verdict.owner) is null
          order by app, token, owner, transaction
          on conflict (app_id, token, user_id) do update
            set transaction_id = excluded.transaction_id, granted_at = now()),
        charged as (
          insert into double_charges (transaction_id, app_id, user_id, product_id, order_id)
          select transaction, app, owner, product, charged_order::uuid from verdict
          where charged_order is not null
            and ((transaction, receipt) in (select transaction_id, receipt_id from won)) is true
          order by transaction
          on conflict do nothing),
        apple_update as (
        \(insertAppleUpdates)),
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
          on conflict (transaction_id, event_id) do nothing)
        """

    /// What Apple is told afterwards. A token is the owner's whom this very verdict has found, or has found again where
    /// Apple confirmed what was given on trust: the order that it was given by. That a purchase is finished may be told
    /// whenever.
    private static let insertAppleUpdates = """
        insert into apple_updates (transaction_id, kind, app_id, environment, original_transaction_id, purchased_at, token)
        select i.transaction, i.kind, i.app, i.environment, i.original, i.purchased_at, i.token::uuid
        from \(given.appleUpdates.rows(as: "i"))
        where case i.kind
          when 'set_token' then (i.transaction, i.receipt) in (select transaction_id, receipt_id from won)
            or (i.transaction, i.receipt) in (select transaction, receipt from outcome where mark = 'confirmed')
              and i.token::uuid = (select order_id from grants where transaction_id = i.transaction)
          else (i.transaction, i.receipt, i.becomes) in (select transaction, receipt, state from outcome
            where reason is distinct from 'id_collision') end
        order by i.transaction, i.kind
        on conflict do nothing
        """
}
