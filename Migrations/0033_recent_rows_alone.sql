-- serves: 1
-- Why: three views looked at more than the rows of their span, measured beside ten million receipts: v_time_to_grant looked
--   each receipt up, most of which one look at their own span finds; v_customers_by_users read every purchase of
--   each customer to find one of another user's, which an index finds that knows the user; v_conservation_recent, where
--   only the difference was asked for, walked an index through all receipts ever received.
-- Locks: SHARE on grants while the index is built: verdicts wait, posts go on; access exclusive on the views for a moment.
-- Cost: a second and a half for each million grants.

-- As grants_by_customer, which goes, and the users of a customer are found without their grants.
create index grants_of_customer on grants (customer_id, user_id) where customer_id is not null;
drop index grants_by_customer;

-- Receipts that wait for longer than the span are looked up one by one; they are few.
create or replace view v_time_to_grant as
select app_id, environment, date_trunc('hour', granted_at) as at, count(*) as grants,
    percentile_cont(0.5) within group (order by seconds) as p50_seconds,
    percentile_cont(0.95) within group (order by seconds) as p95_seconds,
    percentile_cont(0.99) within group (order by seconds) as p99_seconds, max(seconds) as max_seconds
from (
    select g.app_id, g.environment, g.granted_at,
        extract(epoch from g.granted_at - coalesce(r.received_at, o.received_at))::float8 as seconds
    from grants g
    left join (
        select id, received_at from receipts
        where received_at > date_trunc('hour', now()) - interval '25 hours' offset 0) r on r.id = g.receipt_id
    left join lateral (
        select received_at from receipts where r.id is null and id = g.receipt_id offset 0) o on true
    where g.granted_at > date_trunc('hour', now()) - interval '1 day') g
group by 1, 2, 3;

create or replace view v_customers_by_users as
select c.app_id, left(encode(sha256(convert_to(c.customer_id, 'UTF8')), 'hex'), 12) as customer, g.users, g.grants,
    g.last_granted_at, g.last_receipt_id
from (
    select app_id, customer_id, min(user_id) as user_id from grants
    where granted_at > now() - interval '1 day' and customer_id is not null group by 1, 2) c
cross join lateral (
    select from grants where customer_id = c.customer_id and user_id <> c.user_id limit 1) another
cross join lateral (
    select count(distinct coalesce(m.into_user_id, a.user_id)) as users, count(*) as grants,
        max(granted_at) as last_granted_at, (array_agg(receipt_id order by granted_at desc))[1] as last_receipt_id
    from grants a left join merges m on m.app_id = a.app_id and m.user_id = a.user_id
    where a.customer_id = c.customer_id and a.app_id = c.app_id) g
where g.users > 1;

-- is_exact by the two parts: they stand in no index, so the span is read, whatever is asked for.
create or replace view v_conservation_recent as
select app_id, day, coalesce(received, 0) as received, coalesce(receipts, 0) as receipts,
    coalesce(ended, 0) as ended, coalesce(open, 0) as open,
    coalesce(received, 0) = coalesce(ended, 0) + coalesce(open, 0) as is_exact
from (
    select app_id, (received_at at time zone 'UTC')::date as day, count(*) as receipts,
        count(*) filter (where settled_at is not null) as ended, count(*) filter (where settled_at is null) as open
    from receipts
    where received_at >= (date_trunc('day', now() at time zone 'UTC') - interval '1 day') at time zone 'UTC'
    group by 1, 2) as row_counts
full join (
    select app_id, day, sum(received)::bigint as received from tallies
    where day >= (now() at time zone 'UTC')::date - 1 group by 1, 2) as tally_counts
    using (app_id, day);
