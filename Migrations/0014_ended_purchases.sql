-- serves: 12
-- Why: Apple gives a period that an upgrade replaced the same date as a refund (`revoked_at`), and no money goes back for
--   it (F4). Two views counted such a period: `v_goods_by_day` as taken back, and `v_refund_rate_by_user` as refunded
--   where only the successor in the chain tells of the upgrade. The other way round, `v_refund_rate_by_user` did not
--   count a refund of an upgraded period for a reason of its own.
--   And a receipt whose proof names the bundle id of the app's Mac Catalyst or App Clip build is rejected as another
--   app's, unless the app lists the id (F22): support reads which id that is.
-- Locks: an exclusive lock on receipts for the time of a catalogue change; none on what the views read.
-- Cost: none: no row is rewritten.

alter table receipts add column variant_bundle_id text collate "C"; -- of a proof of another app that looks like another build of this one

-- Every purchase that Apple ended, and how. Apple's fields mean what `Transaction.ending` says of them.
create view v_ended_purchases as
select t.transaction_id, t.app_id, t.environment, t.product_id, t.original_transaction_id, t.revoked_at,
    case
        when t.ownership in ('FAMILY_SHARED', 'ASSIGNED')
            or t.facts ->> 'revocationType' in ('FAMILY_REVOKE', 'ASSIGNMENT_REVOKE') then 'withdrawn'
        when t.facts ->> 'isUpgraded' = 'true' then
            case when t.facts ->> 'revocationType' = 'REFUND_FULL' or t.facts ->> 'revocationReason' = '1'
                or t.facts ->> 'revocationReason' = '0' and t.facts ->> 'reason' is not null then 'refunded'
                else 'upgraded' end
        -- A legacy receipt marks no upgrade, and a reason that is newer than the program may be one: then another product
        -- of the chain was bought within a minute of the end.
        when t.expires_at is not null and t.kind is distinct from 'Non-Renewing Subscription'
            and (t.facts ->> 'revocationType' is null and t.facts ->> 'reason' is null
                or t.facts ->> 'revocationType' not in ('REFUND_FULL', 'REFUND_PRORATED')
                or t.facts ->> 'revocationReason' not in ('0', '1'))
            and exists (
                select from (
                    select app_id, environment, product_id, purchased_at from transactions
                    where original_transaction_id = t.original_transaction_id offset 0) s
                where s.app_id = t.app_id and s.environment = t.environment and s.product_id <> t.product_id
                    and s.purchased_at between t.revoked_at - interval '60 seconds' and t.revoked_at + interval '60 seconds')
            then 'upgraded'
        else 'refunded' end as ending
from transactions t
where t.revoked_at is not null;
comment on view v_ended_purchases is
    'Purchases that Apple ended. A row: a transaction. ending: refunded (all or in part, or for a reason that is not known here), withdrawn (a customer who shared it shares it no longer) or upgraded (another product took its place; it was paid for, and no money went back). Ask for a span of revoked_at.';

create or replace view v_goods_by_day as
select app_id, environment, product_id, day, sum(granted)::bigint as granted, sum(units)::bigint as units,
    sum(revoked)::bigint as revoked
from (
    select app_id, environment, product_id, day, granted, units, 0 as revoked
    from goods_by_day where day >= (now() at time zone 'UTC')::date - 13
    union all
    select app_id, environment, product_id, (granted_at at time zone 'UTC')::date, count(*), sum(quantity), 0
    from grants
    where granted_at >= now() - interval '1 hour' and granted_at >= (select summed_to from goods_by_day_progress)
    group by 1, 2, 3, 4
    union all
    select app_id, environment, product_id, (granted_at at time zone 'UTC')::date, count(*), sum(quantity), 0
    from grants
    where (select summed_to from goods_by_day_progress) < now() - interval '1 hour'
        and granted_at >= (date_trunc('day', now() at time zone 'UTC') - interval '13 days') at time zone 'UTC'
        and granted_at >= (select summed_to from goods_by_day_progress) and granted_at < now() - interval '1 hour'
    group by 1, 2, 3, 4
    union all
    -- By Apple's date, which may lie days back when the refund becomes known, so these are not summed. They are few.
    select app_id, environment, product_id, (revoked_at at time zone 'UTC')::date, 0, 0, count(*)
    from v_ended_purchases
    where revoked_at >= (date_trunc('day', now() at time zone 'UTC') - interval '13 days') at time zone 'UTC'
        and ending <> 'upgraded'
    group by 1, 2, 3, 4) g
group by 1, 2, 3, 4;
comment on view v_goods_by_day is
    'What was given and what Apple took back in the last 14 days. A row: app, environment, product, day (UTC). granted, revoked: transactions, whether given before or not, without periods that an upgrade ended; units: their quantities.';

create or replace view v_refund_rate_by_user as
select u.app_id, left(encode(sha256(convert_to(u.user_id, 'UTF8')), 'hex'), 12) as user_mask, u.refunds,
    p.purchases, u.refunds::float8 / p.purchases as refund_rate, u.last_revoked_at, u.last_receipt_id
from (
    select g.app_id, g.user_id, count(*) as refunds, max(t.revoked_at) as last_revoked_at,
        (array_agg(g.receipt_id order by t.revoked_at desc))[1] as last_receipt_id
    from v_ended_purchases t join grants g on g.transaction_id = t.transaction_id
    where t.revoked_at > now() - interval '30 days' and g.binding_source <> 'record' and t.ending = 'refunded'
    group by 1, 2) u
cross join lateral (
    select greatest(count(*), u.refunds) as purchases from grants g
    where g.app_id = u.app_id and g.user_id = u.user_id and g.granted_at > now() - interval '30 days'
        and g.binding_source <> 'record') p;
