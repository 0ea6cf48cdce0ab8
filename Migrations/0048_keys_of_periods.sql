-- serves: 1
-- Why: Apple lists one period of a subscription under several ids, and not each of them names the billing event that its key is made
--   of: one period was granted under each. A period has a second key, its chain and its end, and a grant under either key is the
--   purchase. And a refund of what another user posted as this one's says nothing of this one's refunds.
-- Locks: access exclusive on grants while they are read once for an index of none: verdicts and answers wait, a second for some three
--   to five million grants; SHARE on transactions while they are read twice: verdicts wait. Cost: one text and two index entries for
--   each period from now on. Grants from before have
--   no second key and are found by Apple's facts. Programs from before write none, and make the key of a repurchase of the
--   refund's date, these of its number: while both run, one repurchase under two ids may be given twice. Replace the workers
--   at one time.

alter table grants add column period_key text;  -- of a period: its chain and its end; null: of anything else, or from before
create unique index grants_period_key on grants (period_key) where period_key is not null;
-- A receipt of a long subscription asks of each of its periods.
create index transactions_periods on transactions (original_transaction_id, expires_at) where expires_at is not null;
create index transactions_chain_revoked on transactions (original_transaction_id) where revoked_at is not null;

create or replace view v_refund_rate_by_user as
select u.app_id, left(encode(sha256(convert_to(u.user_id, 'UTF8')), 'hex'), 12) as user_mask, u.refunds,
    p.purchases, u.refunds::float8 / p.purchases as refund_rate, u.last_revoked_at, u.last_receipt_id
from (
    select g.app_id, g.user_id, count(*) as refunds, max(t.revoked_at) as last_revoked_at,
        (array_agg(g.receipt_id order by t.revoked_at desc))[1] as last_receipt_id
    from transactions t join grants g on g.transaction_id = t.transaction_id
    where t.revoked_at > now() - interval '30 days' and g.binding_source <> 'record'
        -- Where an upgrade or a family ended it, nobody gave money back.
        and t.facts ->> 'isUpgraded' is distinct from 'true' and t.ownership is distinct from 'FAMILY_SHARED'
        and t.ownership is distinct from 'ASSIGNED'
        and coalesce(t.facts ->> 'revocationType', '') not in ('FAMILY_REVOKE', 'ASSIGNMENT_REVOKE')
    group by 1, 2) u
cross join lateral (
    select greatest(count(*), u.refunds) as purchases from grants g
    where g.app_id = u.app_id and g.user_id = u.user_id and g.granted_at > now() - interval '30 days'
        and g.binding_source <> 'record') p;
comment on view v_refund_rate_by_user is
    'Users of whose grants Apple gave money back for one or more in the last 30 days; not what another user posted as this one''s (binding source record), nor what an upgrade or a family ended. A row: app, user (masked). Transactions taken back and transactions granted in that time; their ratio, 1 at most; last_receipt_id: for `makegood explain`.';
