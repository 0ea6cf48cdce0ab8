-- serves: 12
-- Why: an operator must see of each sweep over Apple's books whether it is behind (v_sweeps). Workers measure the view
--   each minute, so it reads no more than a thousand due rows of each sweep, app and environment. And customers drawn at
--   random are compared with the ledger each day (L5), for which a customer's purchases must be found.
-- Locks: history_walks and transactions, while an index is built on each: writers wait.
-- Cost: reads history_walks and transactions once.

-- The audit by sample. A row: an app, environment and day (UTC).
create table audit_days (
    app_id text collate "C" not null,
    environment text collate "C" not null,
    day date not null,
    population bigint not null,                 -- customers that could be drawn; above 10,000 an estimate
    drawn integer not null default 0,
    compared integer not null default 0,        -- of the drawn ones, so far
    differences integer not null default 0,     -- among these, that were there before Apple was asked
    explained integer not null default 0,       -- of these, that a person has closed
    bound double precision,                     -- on the rate of unexplained ones, with 95 % confidence; null: none compared
    primary key (app_id, environment, day)
);
comment on table audit_days is
    'A row: the audit by sample of an app, environment and day (UTC). bound: the differences for each customer are fewer, with 95 % confidence.';

create table audit_samples (
    app_id text collate "C" not null,
    environment text collate "C" not null,
    customer text collate "C" not null,         -- as in history_walks
    day date not null,
    drawn_at timestamptz not null default now(),
    compared_at timestamptz,                    -- null: Apple's list was not read to its end since
    differences integer not null default 0,
    explained integer not null default 0,
    primary key (app_id, environment, day, customer)
);
create index audit_samples_open on audit_samples (drawn_at) where compared_at is null;
comment on table audit_samples is 'A row: a customer who was drawn for the audit of a day.';

create index transactions_of_customer on transactions (customer_id) where customer_id is not null;

-- The customers who can be drawn, in an order that says nothing of them.
create index history_walks_by_chance on history_walks (app_id, environment, hashtext(customer))
    where due_at is distinct from 'infinity';

create index history_walks_passed_over on history_walks (app_id, environment)
    where passed_over > 0 or refunds_passed_over > 0;

-- The view is restated whole, as PostgreSQL demands. Of a sweep with more due rows the first 1,000 are counted. The due
-- subscriptions are read once for each app, as the index `chains_to_ask` has them: the first 1,000 of those that were
-- never asked about, and of the others.
create or replace view v_sweeps as
select s.sweep, s.app_id, s.environment, s.due, s.oldest_due_at,
    greatest(0, coalesce(extract(epoch from now() - s.oldest_due_at), 0))::float8 as lag_seconds,
    coalesce(s.progress,
        case s.due when 0 then 'nothing is due' when 1000 then '1000 or more due' else s.due || ' due' end) as progress,
    s.last_complete_at, s.passed_over, coalesce(k.catches, 0) as catches
from (
select 'notification_history' collate "C" as sweep, s.app_id, s.environment,
    coalesce(sum(w.due), 0)::bigint as due, least(min(w.oldest), min(d.at)) as oldest_due_at,
    coalesce(sum(w.windows), 0) || ' windows open, ' || coalesce(sum(w.pages), 0) || ' pages read' as progress,
    min(s.completed_at) as last_complete_at, coalesce(sum(w.passed_over), 0)::bigint as passed_over
from notification_sweeps s
left join lateral (
    select count(*) as windows, count(*) filter (where due_at <= now()) as due, sum(pages) as pages,
        sum(passed_over) as passed_over, min(made_at) filter (where walked_at is null) as oldest
    from notification_windows
    where app_id = s.app_id and environment = s.environment and bundle_id = s.bundle_id) w on true
left join lateral (
    select least(s.failures_due_at, s.all_due_at) as at where least(s.failures_due_at, s.all_due_at) <= now()) d on true
group by s.app_id, s.environment
union all
select 'subscription', a.app_id, d.environment, d.due, d.oldest_due_at, null, null, 0
from apps a
cross join lateral (
    select e.environment, least(count(c.at), 1000) as due, min(c.at) as oldest_due_at
    from (values ('Production' collate "C"), ('Sandbox' collate "C")) e(environment)
    left join (
        (select environment, coalesce(ask_at, expires_at) as at from chains
         where app_id = a.app_id and least(asks, 1) = 0 and coalesce(ask_at, expires_at) <= now()
            and coalesce(ask_at, expires_at) < 'infinity'
            and (ask_at is not null or state in ('active', 'in_grace', 'in_retry'))
         order by coalesce(ask_at, expires_at) limit 1000)
        union all
        (select environment, coalesce(ask_at, expires_at) from chains
         where app_id = a.app_id and least(asks, 1) = 1 and coalesce(ask_at, expires_at) <= now()
            and coalesce(ask_at, expires_at) < 'infinity'
            and (ask_at is not null or state in ('active', 'in_grace', 'in_retry'))
         order by coalesce(ask_at, expires_at) limit 1000)) c using (environment)
    group by e.environment) d
union all
select d.sweep, a.app_id, e.environment, d.due, d.oldest_due_at, null, null, d.passed_over
from apps a
cross join (values ('Production' collate "C"), ('Sandbox' collate "C")) e(environment)
cross join lateral (
    select 'customer' collate "C" as sweep, count(*) as due, min(at) as oldest_due_at, (
        select coalesce(sum(passed_over), 0)::bigint from history_walks
        where app_id = a.app_id and environment = e.environment
            and (passed_over > 0 or refunds_passed_over > 0)) as passed_over
    from (
        (select due_at as at from history_walks
         where app_id = a.app_id and environment = e.environment and wanted_by is not null and due_at <= now()
         order by due_at limit 1000)
        union all
        (select due_at from history_walks
         where app_id = a.app_id and environment = e.environment and wanted_by is null and due_at <= now()
         order by due_at limit 1000) limit 1000) w
    union all
    select 'refund', count(*), min(at), (
        select coalesce(sum(refunds_passed_over), 0)::bigint from history_walks
        where app_id = a.app_id and environment = e.environment and (passed_over > 0 or refunds_passed_over > 0))
    from (
        select refunds_due_at as at from history_walks
        where app_id = a.app_id and environment = e.environment and refunds_due_at <= now()
        order by refunds_due_at limit 1000) r) d) s
left join (
    select app_id, environment, net, count(*) as catches from net_catches
    where caught_at > now() - interval '1 day' group by 1, 2, 3) k
    on (k.app_id, k.environment, k.net) = (s.app_id, s.environment, s.sweep);
