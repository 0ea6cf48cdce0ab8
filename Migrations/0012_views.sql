-- Why: an operator must see whether purchases wait, where, for how long and for what reason. Dashboards may read only
--   these views. Each view's comment says what a row is and in which units. A view of a span of time reads the span by
--   an index, or reads only the open rows, so that it stays cheap beside ten million ended rows. No view shows a proof.
--   Of what was sent beside a proof the views show the app's version, and of the rest of Apple's facts the storefront.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

-- Receipts.

create view v_receipts as
select id, app_id, user_id, kind, lane, state, reason, attempt, rescues, received_at, judged_at, due_at, settled_at
from receipts;
comment on view v_receipts is 'A row: a receipt. Ask for a span of received_at.';

create view v_backlog as
select app_id, lane, state, count(*) as receipts, min(due_at) as oldest_due_at, min(received_at) as oldest_received_at
from receipts where due_at is not null
group by app_id, lane, state;
comment on view v_backlog is 'Open receipts. A row: app, lane, state. Receipts.';

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

create view v_verdicts as
select app_id, date_trunc('hour', received_at) as received_at, kind, state, coalesce(reason, '') as reason,
    count(*) as receipts
from receipts where received_at > date_trunc('hour', now()) - interval '1 day'
group by 1, 2, 3, 4, 5;
comment on view v_verdicts is
    'What became of the receipts of the last 24 hours. A row: app, hour of the post, kind of proof, state, reason. Receipts.';

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

create view v_paid_not_granted as
select t.app_id, t.environment, t.product_id, t.transaction_id, o.receipt_id, r.state as receipt_state,
    o.state, coalesce(o.reason, '') as reason, t.purchased_at, r.received_at, r.due_at,
    extract(epoch from now() - r.received_at)::float8 as waited_seconds
from receipts r
join outcomes o on o.receipt_id = r.id and o.state in ('open', 'held')
join transactions t on t.transaction_id = o.transaction_id and t.revoked_at is null
where r.due_at is not null and r.received_at < now() - interval '5 minutes'
    and not exists (select from grants g where g.transaction_id = o.transaction_id)
    and not exists (select from apps a where a.app_id = r.app_id and a.live_since is null);
comment on view v_paid_not_granted is
    'Paid by Apple''s word, not refunded, not granted, posted more than 5 minutes ago; must be empty (S1-1) but for what a policy holds, which the reason says. Nothing of apps in shadow, whose goods another system gives. A row: a transaction of an open receipt. Seconds.';

-- Whether as many rows exist as were received, and every row is ended or open; by app and day.
create view v_conservation as
select app_id, day, coalesce(received, 0) as received, coalesce(receipts, 0) as receipts,
    coalesce(granted, 0) as granted, coalesce(already_granted, 0) as already_granted,
    coalesce(rejected, 0) as rejected, coalesce(open, 0) as open,
    coalesce(received, 0) = coalesce(receipts, 0)
        and coalesce(receipts, 0) = coalesce(granted + already_granted + rejected + open, 0) as is_exact
from (
    select app_id, (received_at at time zone 'UTC')::date as day, count(*) as receipts,
        count(*) filter (where state = 'granted') as granted,
        count(*) filter (where state = 'already_granted') as already_granted,
        count(*) filter (where state = 'rejected') as rejected,
        count(*) filter (where settled_at is null) as open
    from receipts group by 1, 2) as row_counts
full join (
    select app_id, day, sum(received)::bigint as received from tallies group by 1, 2) as tally_counts
    using (app_id, day);
comment on view v_conservation is
    'A row: app, day (UTC). Receipts, by two independent counts. Reads every receipt; v_conservation_recent does not.';

-- `is_exact` compares two parts that stand in no index, so the view reads only its span, whatever columns a query asks
-- for.
create view v_conservation_recent as
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
comment on view v_conservation_recent is
    'Whether yesterday and today hold exactly what was received. A row: app, day (UTC). Receipts, by two independent counts; v_conservation is the same for all days, and reads them all.';

-- Bytes include indexes.
create view v_payloads as
select 'day' as place, day, pg_total_relation_size(relation) as bytes from payload_days
union all select 'default', null, pg_total_relation_size('payloads_default'::regclass)
union all select 'kept', null, pg_total_relation_size('kept_payloads'::regclass);
comment on view v_payloads is 'Where the proofs lie. A row: a day, and one for each other place. Bytes.';

create view v_kept_payloads as
select reason, count(*) as receipts, min(kept_until) as next_judged_at from kept_payloads group by reason;
comment on view v_kept_payloads is 'Proofs that outlive retention. A row: reason. Receipts.';

-- Purchases.

create view v_grants as
select transaction_id, app_id, environment, user_id, product_id, quantity, goods, binding_source, receipt_id, granted_at,
    order_id
from grants;
comment on view v_grants is 'A row: a granted transaction. Ask for a span of granted_at, or one user.';

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

-- Receipts that were received before the span are looked up one by one; they are few.
create view v_time_to_grant as
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

-- The query reads sums and progress in one snapshot, so each grant counts once at any moment. The last hour is a part
-- of its own, so that its index finds it: the planner does not know the other bound. The hours before are not read
-- where the sums reach that far. If no scheduler sums, the view reads two weeks of grants.
create view v_goods_by_day as
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
    from transactions
    where revoked_at >= (date_trunc('day', now() at time zone 'UTC') - interval '13 days') at time zone 'UTC'
    group by 1, 2, 3, 4) g
group by 1, 2, 3, 4;
comment on view v_goods_by_day is
    'What was given and what Apple took back in the last 14 days. A row: app, environment, product, day (UTC). granted, revoked: transactions, whether given before or not; units: their quantities.';

create view v_provisional as
select p.transaction_id, p.app_id, p.product_id, p.user_id, p.receipt_id, g.goods, p.granted_at,
    case when p.confirmed_at is not null then 'confirmed' when p.revoked_at is not null then 'revoked'
        else 'unconfirmed' end as state,
    coalesce(p.confirmed_at, p.revoked_at) as answered_at
from provisional_grants p join grants g on g.transaction_id = p.transaction_id
where p.granted_at is not null;
comment on view v_provisional is 'A row: a transaction given before Apple confirmed it.';

create view v_bonuses as
select app_id, bonus, period, transaction_id, goods, given_at, freed_at from given_bonuses;
comment on view v_bonuses is
    'What was given once beside a purchase. A row: a bonus with the grant that has it (null: given by the system before this one). period: of the purchase, in UTC (2026-11-22, 2026-11, or empty for ever); given_at: when it was granted or imported; freed_at: when it was taken back, or its user erased.';

create view v_ownerships as
select app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id, binding_source, decided_at,
    move
from ownerships;
comment on view v_ownerships is 'Whose a chain of purchases is, since which purchase. A row: chain, purchase.';

create view v_disputes as
select o.transaction_id, o.receipt_id, r.app_id, r.user_id as claimant, g.user_id as holder,
    coalesce(g.binding_source, o.binding_source) as binding_source, o.state, o.reason, o.decided_at, o.safe_at
from outcomes o
cross join lateral (select app_id, user_id from receipts where id = o.receipt_id offset 0) r
left join lateral (
    select user_id, binding_source from grants where transaction_id = coalesce(o.granted_as, o.transaction_id) offset 0) g on true
where o.safe_at is not null or o.state = 'held' and o.reason in ('token_disputed', 'foreign_order', 'foreign_record', 'foreign_token');
comment on view v_disputes is
    'One row for each purchase that one user shows and another has, or may have, by less than proof: held, or not safe to finish until safe_at.';

-- The grant of the order is looked up one by one, so that no plan reads all grants.
create view v_double_charges as
select d.transaction_id, d.app_id, d.user_id, d.product_id,
    coalesce(d.first_transaction_id, g.transaction_id) as first_transaction_id, d.order_id, d.flagged_at
from double_charges d left join lateral (
    select transaction_id from grants where order_id = d.order_id offset 0) g on true;
comment on view v_double_charges is 'A row: the later of two purchases that may be one charged twice.';

create view v_refund_rate_by_user as
select u.app_id, left(encode(sha256(convert_to(u.user_id, 'UTF8')), 'hex'), 12) as user_mask, u.refunds,
    p.purchases, u.refunds::float8 / p.purchases as refund_rate, u.last_revoked_at, u.last_receipt_id
from (
    select g.app_id, g.user_id, count(*) as refunds, max(t.revoked_at) as last_revoked_at,
        (array_agg(g.receipt_id order by t.revoked_at desc))[1] as last_receipt_id
    from transactions t join grants g on g.transaction_id = t.transaction_id
    where t.revoked_at > now() - interval '30 days' and g.binding_source <> 'record'
        -- Apple gave no money back where an upgrade or a family ended the purchase.
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

create view v_customers_by_users as
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
comment on view v_customers_by_users is
    'Apple''s customers who bought in the last 24 hours and whose purchases, of all time, went to more than one account, merged ones counted once. A row: app, customer (masked). Accounts and granted transactions; last_receipt_id: for `makegood explain`.';

-- Orders and what is sold.

-- An order has ended if a grant names it. An order that was asked for by a purchase, after the purchase was granted
-- without an order, has ended with that grant, which names no order.
create view v_orders as
select o.id, o.app_id, o.user_id, coalesce(g.product_id, o.product_id) as product_id, o.item, o.quantity, o.promotion,
    o.channel, o.environment, o.goods, o.bonuses, o.price_milliunits, o.currency, o.placed_at, o.pay_by, o.reserved_for,
    g.transaction_id, g.granted_at as bound_at
-- Grants are looked up one by one, so that no plan reads all grants for the orders of a day. The owner of the made-up
-- grant is checked as in GET /v1/orders/{id}.
from orders o left join lateral (
    select transaction_id, product_id, granted_at from grants where order_id = o.id
    union all
    (select made_up.transaction_id, made_up.product_id, made_up.granted_at
        from (select transaction_id, app_id, user_id, product_id, binding_source, granted_at, order_id
            from grants where transaction_id = o.reserved_for offset 0) made_up
        where made_up.order_id is null and made_up.binding_source <> 'shared' and made_up.app_id = o.app_id
            and (made_up.user_id = o.user_id
                or coalesce((select into_user_id from merges where app_id = o.app_id and user_id = made_up.user_id),
                    made_up.user_id)
                = coalesce((select into_user_id from merges where app_id = o.app_id and user_id = o.user_id), o.user_id)))
    limit 1) g on true;
comment on view v_orders is 'A row: an order. Milliunits. Ask for a span of placed_at, or one user.';

-- By the time when an order was placed, which an index knows, and not by the time when it was bound.
create view v_storefronts as
select app_id, environment, order_country, storefront, purchases,
    purchases = max(purchases) over (partition by app_id, environment, order_country) as is_usual
from (
    select o.app_id, t.environment, coalesce(o.target ->> 'country', '') as order_country,
        coalesce(t.facts ->> 'storefront', '') as storefront, count(*) as purchases
    from orders o
    cross join lateral (select transaction_id from grants where order_id = o.id offset 0) g
    join transactions t on t.transaction_id = g.transaction_id
    where o.placed_at > now() - interval '1 day'
    group by 1, 2, 3, 4) s;
comment on view v_storefronts is
    'Where Apple sold against where the order was placed for: orders placed in the last 24 hours that a purchase was bound to. A row: app, environment, country of the order''s target (as the client wrote it), Apple''s storefront (three letters). Purchases; is_usual: no other storefront is as frequent for that country.';

create view v_client_reports as
select id, app_id, user_id, order_id, transaction_id, kind, app_version, reported_at, handled_at from client_reports;
comment on view v_client_reports is 'A row: a report of an app about a purchase that went wrong.';

create view v_catalogue as
select c.app_id, c.revision, c.applied_at, p.product ->> 'id' as product_id, p.product ->> 'type' as type,
    i.item ->> 'id' as item, i.item ->> 'id' = p.product ->> 'default' as is_default, i.item -> 'limits' as limits,
    v.version ->> 'promotion' as promotion, (v.version ->> 'from')::timestamptz as valid_from,
    (v.version ->> 'until')::timestamptz as valid_until, v.version -> 'goods' as goods,
    v.version -> 'bonuses' as bonuses, (v.version ->> 'priceMilliunits')::bigint as price_milliunits,
    v.version ->> 'currency' as currency
from catalogues c
cross join lateral jsonb_array_elements(c.document -> 'products') as p(product)
cross join lateral jsonb_array_elements(p.product -> 'items') as i(item)
cross join lateral jsonb_array_elements(i.item -> 'versions') as v(version)
where c.revision = (select max(revision) from catalogues where app_id = c.app_id);
comment on view v_catalogue is 'What is sold by the catalogues in force. A row: a version of an item. Milliunits.';

-- Apple.

create view v_halts as
select app_id, service, environment, reason, since, probe_at from halts;
comment on view v_halts is 'A row: a service of an app that is halted for our misconfiguration, or paused (*).';

create view v_attempts as
select receipt_id, attempt, at, reason, service, environment, http_status, code, duration_ms from attempts;
comment on view v_attempts is 'A row: a try at Apple that ended no receipt. Milliseconds. Ask for a span of at.';

create view v_apple_failures as
select r.app_id, a.service, a.environment, coalesce(a.reason, '') as reason, a.http_status, a.code,
    date_trunc('hour', a.at) as at, count(*) as tries,
    percentile_cont(0.95) within group (order by a.duration_ms)::float8 / 1000 as p95_seconds
from attempts a join receipts r on r.id = a.receipt_id
where a.at > date_trunc('hour', now()) - interval '1 day'
group by 1, 2, 3, 4, 5, 6, 7;
comment on view v_apple_failures is
    'Tries at Apple that ended no receipt, of the last 24 hours. A row: app, service, environment, reason, HTTP status and Apple''s code (null: none came), hour. Tries; seconds. Calls that brought a verdict are in Prometheus alone (makegood_apple_calls_total).';

-- By lane, whichever order of the lanes is in force.
create view v_call_budgets as
select app_id, environment, endpoint, calls / slice_seconds as calls_per_second, slice_at as leased_at,
    leased[array_position(lanes, 'fresh')] / slice_seconds as fresh_per_second,
    leased[array_position(lanes, 'repair')] / slice_seconds as repairs_per_second,
    leased[array_position(lanes, 'sweep')] / slice_seconds as sweeps_per_second,
    case when stopped_until > now() then stopped_until end as stopped_until
from (
    select b.*, array[fresh_leased, repair_leased, sweep_leased] as leased,
        array_prepend(coalesce(first_lane, 'fresh'),
            array_remove('{fresh,repair,sweep}', coalesce(first_lane, 'fresh'))) as lanes
    from call_budgets b left join lane_orders o on o.app_id = b.app_id and o.until > now()) b;
comment on view v_call_budgets is 'A row: app, environment, endpoint of Apple''s. Calls per second, by lane.';

-- Hosts as the workers saw them within the last minute, budgets that were used within it or are stopped, orders of
-- lanes, and halts.
create view v_apple as
select 'host' as what, null as app_id, service, environment, null as endpoint,
    case when bool_and(breaker <> 'closed') then 'down' when bool_or(breaker <> 'closed') then 'partly down'
        else 'up' end as state,
    min(probe_at) as until, count(*) as workers, count(*) filter (where breaker <> 'closed') as workers_down,
    sum(concurrency_limit) as concurrency_limit, sum(in_flight) as in_flight, null::double precision as calls_per_second
from apple_hosts where reported_at > now() - interval '1 minute' group by service, environment
union all
select 'budget', app_id, 'serverApi', environment, endpoint,
    case when stopped_until > now() then 'stopped by Apple' else 'up' end,
    case when stopped_until > now() then stopped_until end, null, null, null, null,
    case when slice_at > now() - make_interval(secs => 2 * slice_seconds)
        then (fresh_leased + repair_leased + sweep_leased) / slice_seconds else 0 end
from call_budgets where slice_at > now() - interval '1 minute' or stopped_until > now()
union all
select 'lanes', app_id, 'serverApi', null, null, first_lane || ' first', until, null, null, null, null, null
from lane_orders where until > now()
union all
select 'halt', app_id, service, environment, null, reason, probe_at, null, null, null, null, null
from halts;
comment on view v_apple is 'What keeps us from asking Apple. A row: a host, a budget, an order of lanes or a halt.';

create view v_apple_updates as
select app_id, environment, kind, transaction_id, original_transaction_id, token, state, reason, attempt, http_status,
    code, created_at, due_at, ended_at
from apple_updates;
comment on view v_apple_updates is 'What Apple is to be told after a purchase was decided. A row: transaction, kind.';

-- Moving in, and what people did.

create view v_imported_grants as
select transaction_id, app_id, environment, original_transaction_id, user_id, product_id, purchased_at, imported_at
from imported_grants;
comment on view v_imported_grants is 'What the system before this one has given. A row: transaction.';

create view v_shadow_decisions as
select transaction_id, app_id, environment, original_transaction_id, user_id, product_id, goods, binding_source, order_id,
    purchased_at, receipt_id, decided_at
from shadow_decisions;
comment on view v_shadow_decisions is 'What would have been given while an app was in shadow. A row: transaction.';

create view v_audits as
select id, at, actor, action, details from audits;
comment on view v_audits is 'A row: a command that a person gave.';
