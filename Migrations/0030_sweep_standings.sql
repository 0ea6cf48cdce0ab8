-- serves: 12
-- Why: an operator must see of each sweep over Apple's books whether it is behind (v_sweeps). Workers measure the view each
--   minute, so it reads no more than the rows that are due.
-- Locks: history_walks, while a short index is built.
-- Cost: reads history_walks once.

create index history_walks_passed_over on history_walks (app_id, environment)
    where passed_over > 0 or refunds_passed_over > 0;

-- The view is restated whole, as PostgreSQL demands. Of a sweep with more due rows the first 10,000 are counted.
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
    case d.due when 0 then 'nothing is due' when 10000 then '10000 or more due' else d.due || ' due' end,
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
        order by least(asks, 1), coalesce(ask_at, expires_at) limit 10000) c
    union all
    select 'customer', count(*), min(at), (
        select coalesce(sum(passed_over), 0)::bigint from history_walks
        where app_id = a.app_id and environment = e.environment and (passed_over > 0 or refunds_passed_over > 0))
    from (
        (select due_at as at from history_walks
         where app_id = a.app_id and environment = e.environment and wanted_by is not null and due_at <= now()
         order by due_at limit 10000)
        union all
        (select due_at from history_walks
         where app_id = a.app_id and environment = e.environment and wanted_by is null and due_at <= now()
         order by due_at limit 10000) limit 10000) w
    union all
    select 'refund', count(*), min(at), (
        select coalesce(sum(refunds_passed_over), 0)::bigint from history_walks
        where app_id = a.app_id and environment = e.environment and (passed_over > 0 or refunds_passed_over > 0))
    from (
        select refunds_due_at as at from history_walks
        where app_id = a.app_id and environment = e.environment and refunds_due_at <= now()
        order by refunds_due_at limit 10000) r) d;
