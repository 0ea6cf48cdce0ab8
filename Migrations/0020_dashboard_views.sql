-- serves: 1
-- Why: whoever watches sees whether money waits, where, for how long and for what reason. Each view says in its comment
--   what a row is and in which units; each reads a span of time by an index, or the open rows alone, so that it stays
--   cheap beside ten million ended ones. None shows a proof; of what was sent beside it they show the app's version, of
--   what else Apple said the storefront. Users and customers are masked in what is new here.
-- Locks: SHARE on transactions while they are read once for the index: verdicts wait, posts go on.
-- Cost: half a second for each million transactions.

-- Few purchases are taken back; by day and by user they are found by this.
create index transactions_revoked_at on transactions (revoked_at) where revoked_at is not null;

create view v_open_receipts as
select app_id, lane, state, coalesce(reason, '') as reason, age, count(*) as receipts,
    min(received_at) as oldest_received_at, min(due_at) as oldest_due_at,
    greatest(0, extract(epoch from now() - min(due_at)))::float8 as overdue_seconds
from (
    select app_id, lane, state, reason, received_at, due_at,
        case when received_at > now() - interval '1 minute' then '1: under a minute'
            when received_at > now() - interval '10 minutes' then '2: under 10 minutes'
            when received_at > now() - interval '1 hour' then '3: under an hour'
            when received_at > now() - interval '1 day' then '4: under a day' else '5: a day or more' end as age
    from receipts where due_at is not null) r
group by app_id, lane, state, reason, age;
comment on view v_open_receipts is
    'Open receipts, held and parked ones too. A row: app, lane, state, reason, age since the post. Seconds; overdue: since the oldest due_at passed, 0 where it lies ahead.';

create view v_rates as
select app_id, at, sum(received)::bigint as received, sum(judged)::bigint as judged, sum(granted)::bigint as granted
from (
    select app_id, date_trunc('minute', received_at) as at, count(*) as received, 0 as judged, 0 as granted
    from receipts where received_at > date_trunc('minute', now()) - interval '6 hours' group by 1, 2
    union all
    select r.app_id, date_trunc('minute', o.decided_at), 0, count(*), 0
    from outcomes o join receipts r on r.id = o.receipt_id
    where o.decided_at > date_trunc('minute', now()) - interval '6 hours' group by 1, 2
    union all
    select app_id, date_trunc('minute', granted_at), 0, 0, count(*)
    from grants where granted_at > date_trunc('minute', now()) - interval '6 hours' group by 1, 2) stages
group by app_id, at;
comment on view v_rates is
    'The stages of the last 6 hours. A row: app, minute. received: receipts; judged: transactions by their last decision; granted: transactions. Each per minute; a minute without any has no row.';

create view v_verdicts as
select app_id, date_trunc('hour', received_at) as received_at, kind, state, coalesce(reason, '') as reason,
    count(*) as receipts
from receipts where received_at > date_trunc('hour', now()) - interval '1 day'
group by 1, 2, 3, 4, 5;
comment on view v_verdicts is
    'What became of the receipts of the last 24 hours. A row: app, hour of the post, kind of proof, state, reason. Receipts.';

create view v_grant_times as
select g.transaction_id, g.receipt_id, g.app_id, g.environment, g.product_id, g.binding_source, r.received_at,
    g.granted_at, extract(epoch from g.granted_at - r.received_at)::float8 as seconds,
    left(coalesce(r.details #>> '{client,appVersion}', r.details ->> 'appVersion', ''), 32) as app_version,
    coalesce(t.facts ->> 'storefront', '') as country
from grants g
join receipts r on r.id = g.receipt_id
left join transactions t on t.transaction_id = g.transaction_id;
comment on view v_grant_times is
    'How long each grant took. A row: a granted transaction. seconds: from the post of the receipt that was granted it to the grant. app_version: as the client says; country: Apple''s storefront, three letters; empty: not said. Ask for a span of granted_at.';

create view v_time_to_grant as
select app_id, environment, date_trunc('hour', granted_at) as at, count(*) as grants,
    percentile_cont(0.5) within group (order by seconds) as p50_seconds,
    percentile_cont(0.95) within group (order by seconds) as p95_seconds,
    percentile_cont(0.99) within group (order by seconds) as p99_seconds, max(seconds) as max_seconds
from (
    select g.app_id, g.environment, g.granted_at, extract(epoch from g.granted_at - r.received_at)::float8 as seconds
    from grants g join receipts r on r.id = g.receipt_id
    where g.granted_at > date_trunc('hour', now()) - interval '1 day') g
group by 1, 2, 3;
comment on view v_time_to_grant is
    'Time from post to grant in the last 24 hours. A row: app, environment, hour of the grant. Seconds.';

create view v_time_to_grant_by_client as
select app_id, environment, app_version, country, count(*) as grants,
    percentile_cont(0.5) within group (order by seconds) as p50_seconds,
    percentile_cont(0.95) within group (order by seconds) as p95_seconds,
    percentile_cont(0.99) within group (order by seconds) as p99_seconds, max(seconds) as max_seconds
from v_grant_times where granted_at > now() - interval '6 hours'
group by 1, 2, 3, 4;
comment on view v_time_to_grant_by_client is
    'Time from post to grant in the last 6 hours (B15). A row: app, environment, app version as the client says, Apple''s storefront. Seconds.';

create view v_goods_by_day as
select app_id, environment, product_id, day, sum(granted)::bigint as granted, sum(units)::bigint as units,
    sum(revoked)::bigint as revoked
from (
    select app_id, environment, product_id, (granted_at at time zone 'UTC')::date as day, count(*) as granted,
        sum(quantity) as units, 0 as revoked
    from grants
    where granted_at >= (date_trunc('day', now() at time zone 'UTC') - interval '13 days') at time zone 'UTC'
    group by 1, 2, 3, 4
    union all
    select app_id, environment, product_id, (revoked_at at time zone 'UTC')::date, 0, 0, count(*)
    from transactions
    where revoked_at >= (date_trunc('day', now() at time zone 'UTC') - interval '13 days') at time zone 'UTC'
    group by 1, 2, 3, 4) g
group by 1, 2, 3, 4;
comment on view v_goods_by_day is
    'What was given and what Apple took back in the last 14 days. A row: app, environment, product, day (UTC). granted, revoked: transactions, whether given before or not; units: their quantities.';

create view v_apple_failures as
select r.app_id, a.service, a.environment, coalesce(a.reason, '') as reason, a.http_status, a.code,
    date_trunc('hour', a.at) as at, count(*) as tries,
    percentile_cont(0.95) within group (order by a.duration_ms)::float8 / 1000 as p95_seconds
from attempts a join receipts r on r.id = a.receipt_id
where a.at > date_trunc('hour', now()) - interval '1 day'
group by 1, 2, 3, 4, 5, 6, 7;
comment on view v_apple_failures is
    'Tries at Apple that ended no receipt, of the last 24 hours. A row: app, service, environment, reason, HTTP status and Apple''s code (null: none came), hour. Tries; seconds. Calls that brought a verdict are in Prometheus alone (makegood_apple_calls_total).';

create view v_conservation_recent as
select app_id, day, coalesce(received, 0) as received, coalesce(receipts, 0) as receipts,
    coalesce(ended, 0) as ended, coalesce(open, 0) as open, coalesce(received, 0) = coalesce(receipts, 0) as is_exact
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
comment on view v_conservation_recent is
    'Whether yesterday and today hold exactly what was received. A row: app, day (UTC). Receipts, by two independent counts; v_conservation is the same for all days, and reads them all.';

create view v_paid_not_granted as
select t.app_id, t.environment, t.product_id, t.transaction_id, o.receipt_id, r.state as receipt_state,
    o.state, coalesce(o.reason, '') as reason, t.purchased_at, r.received_at, r.due_at,
    extract(epoch from now() - r.received_at)::float8 as waited_seconds
from receipts r
join outcomes o on o.receipt_id = r.id and o.state in ('open', 'held')
join transactions t on t.transaction_id = o.transaction_id and t.revoked_at is null
where r.due_at is not null and r.received_at < now() - interval '5 minutes'
    and not exists (select from grants g where g.transaction_id = o.transaction_id);
comment on view v_paid_not_granted is
    'Paid by Apple''s word, not refunded, not granted, posted more than 5 minutes ago; must be empty (S1-1) but for what a policy holds, which the reason says. A row: a transaction of an open receipt. Seconds.';

create view v_customers_by_users as
select c.app_id, left(encode(sha256(convert_to(c.customer_id, 'UTF8')), 'hex'), 12) as customer, g.users, g.grants,
    g.last_granted_at, g.last_receipt_id
from (
    select distinct g.app_id, g.customer_id
    from grants g
    cross join lateral (
        select from grants
        where customer_id = g.customer_id and app_id = g.app_id and user_id <> g.user_id limit 1) another
    where g.granted_at > now() - interval '1 day') c
cross join lateral (
    select count(distinct coalesce(m.into_user_id, a.user_id)) as users, count(*) as grants,
        max(granted_at) as last_granted_at, (array_agg(receipt_id order by granted_at desc))[1] as last_receipt_id
    from grants a left join merges m on m.app_id = a.app_id and m.user_id = a.user_id
    where a.customer_id = c.customer_id and a.app_id = c.app_id) g
where g.users > 1;
comment on view v_customers_by_users is
    'Apple''s customers who bought in the last 24 hours and whose purchases, of all time, went to more than one account, merged ones counted once. A row: app, customer (masked). Accounts and granted transactions; last_receipt_id: for `makegood explain`.';

create view v_refund_rate_by_user as
select u.app_id, left(encode(sha256(convert_to(u.user_id, 'UTF8')), 'hex'), 12) as user_mask, u.refunds,
    p.purchases, u.refunds::float8 / p.purchases as refund_rate, u.last_revoked_at, u.last_receipt_id
from (
    select g.app_id, g.user_id, count(*) as refunds, max(t.revoked_at) as last_revoked_at,
        (array_agg(g.receipt_id order by t.revoked_at desc))[1] as last_receipt_id
    from transactions t join grants g on g.transaction_id = t.transaction_id
    where t.revoked_at > now() - interval '30 days'
    group by 1, 2) u
cross join lateral (
    select greatest(count(*), u.refunds) as purchases from grants g
    where g.app_id = u.app_id and g.user_id = u.user_id and g.granted_at > now() - interval '30 days') p;
comment on view v_refund_rate_by_user is
    'Users of whose grants Apple took back one or more in the last 30 days. A row: app, user (masked). Transactions taken back and transactions granted in that time; their ratio, 1 at most; last_receipt_id: for `makegood explain`.';

create view v_storefronts as
select app_id, environment, order_country, storefront, purchases,
    purchases = max(purchases) over (partition by app_id, environment, order_country) as is_usual
from (
    select o.app_id, t.environment, coalesce(o.target ->> 'country', '') as order_country,
        coalesce(t.facts ->> 'storefront', '') as storefront, count(*) as purchases
    from orders o join transactions t on t.transaction_id = o.transaction_id
    where o.bound_at > now() - interval '7 days'
    group by 1, 2, 3, 4) s;
comment on view v_storefronts is
    'Where Apple sold against where the order was placed for, last 7 days. A row: app, environment, country of the order''s target (as the client wrote it), Apple''s storefront (three letters). Purchases; is_usual: no other storefront is as frequent for that country.';

-- What the views before say.
comment on view v_receipts is 'A row: a receipt. Ask for a span of received_at.';
comment on view v_backlog is 'Open receipts. A row: app, lane, state. Receipts.';
comment on view v_grants is 'A row: a granted transaction. Ask for a span of granted_at, or one user.';
comment on view v_attempts is 'A row: a try at Apple that ended no receipt. Milliseconds. Ask for a span of at.';
comment on view v_halts is 'A row: a service of an app that is halted for our misconfiguration, or paused (*).';
comment on view v_audits is 'A row: a command that a person gave.';
comment on view v_conservation is
    'A row: app, day (UTC). Receipts, by two independent counts. Reads every receipt; v_conservation_recent does not.';
comment on view v_payloads is 'Where the proofs lie. A row: a day, and one for each other place. Bytes.';
comment on view v_kept_payloads is 'Proofs that outlive retention. A row: reason. Receipts.';
comment on view v_call_budgets is 'A row: app, environment, endpoint of Apple''s. Calls per second, by lane.';
comment on view v_apple is 'What keeps us from asking Apple. A row: a host, a budget, an order of lanes or a halt.';
comment on view v_provisional is 'A row: a transaction given before Apple confirmed it.';
comment on view v_orders is 'A row: an order. Milliunits. Ask for a span of placed_at, or one user.';
comment on view v_client_reports is 'A row: a report of an app about a purchase that went wrong.';
comment on view v_catalogue is 'What is sold by the catalogues in force. A row: a version of an item. Milliunits.';
comment on view v_ownerships is 'Whose a chain of purchases is, since which purchase. A row: chain, purchase.';
comment on view v_double_charges is 'A row: the later of two purchases that may be one charged twice.';
comment on view v_errands is 'What Apple is to be told after a purchase was decided. A row: transaction, kind.';
