import Postgres
import Purchases

// Parts of ``Statements/settle``, in its order: up to what is given.
extension Statements {
    /// What is to be written, of the receipts that are still as they were when they were judged: `outdated`, `mine`,
    /// the limits' places, `verdict`.
    static let settleVerdicts = """
        with outdated as (
          select i.receipt from \(given.rows.rows(as: "i", "receipt", "app", "usr", "matched_owner"))
            cross join lateral (select 1 from merges where app_id = i.app and user_id = any(array[i.usr, i.matched_owner])
              limit 1) m
          where (select true from merges limit 1)
          union all
          select i.receipt
          from \(given.rows.rows(as: "i", "receipt", "app", "usr", "matched_owner", "judged_at"))
            cross join lateral (select 1 from erasures
              where app_id = i.app and user_sha256 = any(array[
                  sha256(convert_to(i.usr, 'UTF8')), sha256(convert_to(i.matched_owner, 'UTF8'))])
                and erased_at > i.judged_at limit 1) e
          where (select true from erasures
            where erased_at > (select min(judged_at) from \(given.rows.rows(as: "i", "judged_at"))) limit 1)),
        mine as (
          select v.receipt
          from (select distinct receipt, attempt, lines
              from \(given.rows.rows(as: "i", "receipt", "attempt", "lines"))) v
            cross join lateral (select 1 from receipts r
              where r.id = v.receipt and r.settled_at is null and r.attempt = v.attempt and r.lines = v.lines
              for no key update skip locked) r
          where (v.receipt in (select receipt from outdated)) is not true),
        asked_places as materialized (
          select p.*, case when p.name in ('make_up_customer', 'item_ever') then '-infinity'
              when p.name = 'item_month'
                then (date_trunc('month', now() at time zone 'UTC') + interval '1 month' - interval '1 day')::date
              else (now() at time zone 'UTC')::date end as day
          from \(given.places.rows(as: "p"))
          where (p.receipt in (select receipt from mine)) is true
            -- Nothing is left to give: no place.
            and (select true from grants where transaction_id = p.transaction) is null
            and (select true from grants where purchase_key = p.purchase_key) is null
            and (select \(takenBack("transactions")) from transactions where transaction_id = p.transaction) is null),
        -- In key order in every statement, users' and customers' before the app's, and all before bonuses and grants.
        narrow as materialized (
          select a.receipt, a.transaction, a.name,
            take_limit_place(a.app, a.name, a.holder, a.day, a.taken_for, a.places) as has
          from (select * from asked_places where name <> 'sandbox_app'
            order by name, app, holder, taken_for, receipt offset 0) a),
        wide as materialized (
          select a.receipt, a.transaction, a.name,
            take_limit_place(a.app, a.name, a.holder, a.day, a.taken_for, a.places) as has
          from (select * from asked_places where name = 'sandbox_app'
              and ((receipt, transaction) in (
                select receipt, transaction from narrow where not has and not starts_with(name, 'item_'))) is not true
            order by app, taken_for, receipt offset 0) a),
        lacks as (
          select jsonb_object_agg(receipt::text || ' ' || transaction, name) as of_purchases from (
            select * from narrow where not has and not starts_with(name, 'item_')
            union all select * from wide where not has) p),
        -- What is paid is given beyond a limit of the catalogue, and says so.
        exceeds as (
          select jsonb_object_agg(purchase, reasons) as of_purchases from (
            select receipt::text || ' ' || transaction as purchase, string_agg(distinct 'limit_' || name, ',') as reasons
            from narrow where not has and starts_with(name, 'item_') group by 1) p),
        verdict as (
          select i.*, lacking.name as lacking,
            case when k.word = 'review' then 'held' when k.word is not null then 'rejected'
              when imported.user_id is not null and i.asked in ('grant', 'provisional') then 'held'
              when i.asked = 'provisional' and (place.is_taken is not true or lacking.name is not null) then 'open'
              when lacking.name is not null then 'held'
              else i.asked end as decision,
            case when k.word is not null then k.word
              when imported.user_id is not null and i.asked in ('grant', 'provisional') then 'possession_missing'
              when i.asked = 'grant' and lacking.name is not null
                then case when lacking.name like 'sandbox%' then '\(Reason.sandbox.rawValue)' else '\(Reason.review.rawValue)' end
              else i.cause end as reason,
            coalesce(i.matched_owner, i.usr) as owner, i.order_text::uuid as order_id,
            imported.user_id as imported_user, imported.app_id as imported_app,
            imported.environment as imported_environment
          from \(given.rows.rows(as: "i"))
          cross join lateral (select case when i.asked in ('grant', 'provisional') then
            (select of_purchases from lacks) ->> (i.receipt::text || ' ' || i.transaction) end as name offset 0) lacking
          -- By its id alone: the index of refunds is empty to statistics of a time without any, and would be walked.
          -- Not of an end that the proof shows itself: that was judged.
          left join lateral (select nullif(\(takenBack("t")), case when i.binding = 'support' then 'review' end) as word from (
              select app_id, environment, original_transaction_id, product_id, kind, expires_at, revoked_at, ownership,
                signed_at, facts
              from transactions
              where i.asked in ('grant', 'provisional') and transaction_id = i.transaction offset 0) t
            where t.app_id = i.app and t.environment = i.environment and t.revoked_at is distinct from i.revoked_at
              and t.signed_at > coalesce(i.signed_at, '-infinity')) k
            on true
          left join lateral (\(importedGrant("i", id: "transaction"))) imported on true
          left join lateral (
            select p.confirmed_at is null and p.revoked_at is null and not exists (select from outcomes o
                where o.receipt_id = i.receipt and o.transaction_id = i.transaction
                  and o.state in ('held', 'rejected')) as is_taken
            from provisional_grants p
            where i.asked = 'provisional' and p.transaction_id = i.transaction and p.receipt_id = i.receipt
            offset 0) place on true
          where (i.receipt in (select receipt from mine)) is true),
        """

    /// Of rows of `verdict`. All ids of a period have its second key.
    private static let orderOfGrants = "coalesce(period_key, purchase_key), transaction, receipt"

    /// What is given by it, by which order, with which bonuses: `presented`, `presents`, `won`, `known`.
    static let settleGrants = """
        presented as (                 -- of two purchases of one batch the earlier has it; keys in order, as below
          insert into given_bonuses (app_id, user_id, bonus, period, transaction_id, goods)
          select v.app, v.owner, b.id, b.period, v.transaction, b.goods
          from (
            select app, owner, transaction, purchase_key, period_key, purchased_at, order_id, bonuses,
              row_number() over (partition by purchase_key order by \(orderOfGrants)) as of_purchase,
              row_number() over (partition by coalesce(period_key, purchase_key) order by \(orderOfGrants)) as of_period,
              row_number() over (partition by transaction order by \(orderOfGrants)) as of_transaction
            from verdict
            where (select bool_or(bonuses is not null) from verdict) and decision in ('grant', 'provisional')
              and not yields) v
            cross join lateral jsonb_to_recordset(v.bonuses) as b(id text, period text, goods jsonb)
          where v.of_purchase = 1 and v.of_period = 1 and v.of_transaction = 1
            and (select true from grants where transaction_id = v.transaction) is null
            and (select true from grants where purchase_key = v.purchase_key) is null
            and (select true from grants where period_key = v.period_key) is null
            and (select true from grants where order_id = v.order_id) is null
            -- Nor under another name of the same person.
            and (select true from merges m join given_bonuses had on had.app_id = m.app_id and had.user_id = m.user_id
                and had.bonus = b.id and had.period = b.period and had.freed_at is null
              where m.app_id = v.app and m.into_user_id = v.owner limit 1) is null
          order by v.app, v.owner, b.id, b.period, v.purchased_at, v.transaction
          on conflict do nothing
          returning transaction_id, goods),
        presents as (
          select jsonb_object_agg(transaction_id, goods) as of_purchases
          from (select p.transaction_id, jsonb_agg(g order by g ->> 'bonus') as goods
            from presented p cross join lateral jsonb_array_elements(p.goods) g group by 1) p),
        won as (
          insert into grants (transaction_id, purchase_key, period_key, app_id, environment, user_id, customer_id,
            receipt_id, product_id, quantity, goods, binding_source, order_id, item)
          select transaction, purchase_key, period_key, app, environment, owner, customer, receipt, product, quantity,
            \(goodsWithBonuses), binding, order_id, item
          from verdict where decision in ('grant', 'provisional') and not yields
          order by \(orderOfGrants)
          on conflict do nothing
          returning transaction_id, receipt_id),
        known as (
          insert into transactions as t (\(factColumns))
          select distinct on (transaction) transaction, app, environment, original, product, kind, quantity,
            purchased_at, expires_at, revoked_at, token::uuid, ownership, customer, signed_at, facts
          from verdict v
          -- What a receipt says of a purchase is no news where facts of it are stored, and locks none of them.
          where product is not null and (signed_at is not null
            or (select true from transactions t where t.transaction_id = v.transaction) is null)
          order by transaction, signed_at desc nulls last
          \(onOlderFacts)),
        """

    /// What passes to whoever shows it: `claimed`, `taken`, `moved`.
    static let settleMoves = """
        claimed as (                   -- what another user has, and the policy may move
          select v.receipt, v.transaction, v.app, v.environment, v.usr, v.product,
            t.original_transaction_id as original, t.purchased_at, g.transaction_id as granted, h.user_id as holder,
            h.move, case when v.transfer = 'hold' then 'hold'
              when m.of_day < \(AppPolicy.movesPerDayMax) and m.of_month < \(AppPolicy.movesPerMonthMax) then 'move'
              else 'limit' end as fate
          from verdict v
          cross join lateral (
            (select transaction_id, user_id, app_id, environment from grants where transaction_id = v.transaction)
            union all
            (select transaction_id, user_id, app_id, environment from grants where purchase_key = v.purchase_key)
            union all
            (select transaction_id, user_id, app_id, environment from grants where period_key = v.period_key)
            limit 1) g
          cross join lateral (
            select original_transaction_id, purchased_at from transactions
            where transaction_id = g.transaction_id and revoked_at is null offset 0) t
          left join lateral (
            select user_id, move, decided_at from ownerships
            where transaction_id = g.transaction_id and app_id = g.app_id and environment = g.environment and move > 0
            order by move desc limit 1) o on true
          cross join lateral (
            select \(person("coalesce(o.user_id, g.user_id)", of: "g.app_id")) as user_id, coalesce(o.move, 0) as move
            offset 0) h
          cross join lateral (
            select count(*) filter (where decided_at > now() - interval '24 hours') as of_day, count(*) as of_month
            from ownerships
            where app_id = g.app_id and environment = g.environment
              and original_transaction_id = t.original_transaction_id and move > 0
              and decided_at > now() - interval '30 days') m
          where v.transfer is not null and v.decision in ('grant', 'held') and g.app_id = v.app
            and g.environment = v.environment and h.user_id <> v.usr
            and (select coalesce(claimed_at, received_at) from receipts where id = v.receipt)
              > coalesce(o.decided_at, '-infinity')
            -- What is over gives no right to what runs.
            and not exists (
              select from transactions later
                cross join lateral (select 1 from grants where transaction_id = later.transaction_id offset 0) k
              where later.original_transaction_id = t.original_transaction_id and later.app_id = g.app_id
                and later.environment = g.environment and later.purchased_at > t.purchased_at)),
        taken as (
          insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
            binding_source, move)
          select distinct on (granted) app, environment, original, purchased_at, granted, usr, 'transfer', move + 1
          from claimed where fate = 'move' order by granted, receipt
          on conflict do nothing
          returning transaction_id, user_id),
        moved as (                     -- one of those that the same user claims it by
          select distinct on (granted) * from claimed
          where fate = 'move' and (granted, usr) in (select transaction_id, user_id from taken)
          order by granted, receipt),
        """
}
