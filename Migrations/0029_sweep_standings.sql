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
    population bigint not null,                 -- customers that could be drawn
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

create index history_walks_passed_over on history_walks (app_id, environment)
    where passed_over > 0 or refunds_passed_over > 0;

-- The view is restated whole, as PostgreSQL demands. Of a sweep with more due rows the first 1,000 are counted.
create or replace view v_sweeps as
select 'notification_history' collate "C" as sweep, s.app_id, s.environment,
    coalesce(sum(w.due), 0)::bigint as due, least(min(w.oldest), min(d.at)) as oldest_due_at,
    greatest(0, coalesce(extract(epoch from now() - least(min(w.oldest), min(d.at))), 0))::float8 as lag_seconds,
    coalesce(sum(w.windows), 0) || ' windows open, ' || coalesce(sum(w.pages), 0) || ' pages read' as progress,
    min(s.completed_at) as last_complete_at, coalesce(sum(w.passed_over), 0)::bigint as passed_over,
    (select count(*) from net_catches
     where app_id = s.app_id and environment = s.environment and net = 'notification_history'
        and caught_at > now() - interval '1 day') as catches
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
select d.sweep, a.app_id, e.environment, d.due, d.oldest_due_at,
    greatest(0, coalesce(extract(epoch from now() - d.oldest_due_at), 0))::float8,
    case d.due when 0 then 'nothing is due' when 1000 then '1000 or more due' else d.due || ' due' end,
    null::timestamptz, d.passed_over,
    (select count(*) from net_catches
     where app_id = a.app_id and environment = e.environment and net = d.sweep and caught_at > now() - interval '1 day')
from apps a
cross join (values ('Production' collate "C"), ('Sandbox' collate "C")) e(environment)
cross join lateral (
    select 'subscription' collate "C" as sweep, count(*) as due, min(at) as oldest_due_at, 0::bigint as passed_over from (
        select coalesce(ask_at, expires_at) as at from chains
        where app_id = a.app_id and environment = e.environment and coalesce(ask_at, expires_at) <= now()
            and coalesce(ask_at, expires_at) < 'infinity'
            and (ask_at is not null or state in ('active', 'in_grace', 'in_retry'))
        order by least(asks, 1), coalesce(ask_at, expires_at) limit 1000) c
    union all
    select 'customer', count(*), min(at), (
        select coalesce(sum(passed_over), 0)::bigint from history_walks
        where app_id = a.app_id and environment = e.environment and (passed_over > 0 or refunds_passed_over > 0))
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
        order by refunds_due_at limit 1000) r) d;
