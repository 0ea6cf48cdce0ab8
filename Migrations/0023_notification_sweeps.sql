-- serves: 12
-- Why: this server asks Apple for the notifications that Apple could not bring. The position of each question is a row,
--   so that any number of workers may ask. An operator must see what each net caught, and which sweep is behind.
-- Locks: none but of views.
-- Cost: none: the tables are new.

-- When an app's notification history is asked for next.
create table notification_sweeps (
    app_id text collate "C" not null,
    environment text collate "C" not null,
    bundle_id text collate "C" not null,        -- Apple answers about one build of the app
    failures_due_at timestamptz not null default now(),
    all_due_at timestamptz not null default now() + interval '1 day',
    asked_until timestamptz,                    -- the end of the last windows for failures; null: never asked
    server text collate "C",                    -- system identifier and timeline of the database that asked
    found bigint not null default 0,            -- notifications that were not stored before
    completed_at timestamptz,                   -- when the last open window was read to its end, with nothing passed over
    primary key (app_id, environment, bundle_id)
);
comment on table notification_sweeps is
    'A row: when the notification history of an app''s build and environment is asked for next, and until when it was.';

-- A span of Apple's notification history that is yet to be read. A window that was read to its end has no row.
create table notification_windows (
    id bigint primary key generated always as identity,
    app_id text collate "C" not null,
    environment text collate "C" not null,
    bundle_id text collate "C" not null,
    purpose text collate "C" not null,
    only_failures boolean not null,
    start_at timestamptz not null,
    end_at timestamptz not null,
    page text collate "C",                      -- Apple's token of the next page; null: the first
    pages integer not null default 0,           -- of the present walk
    passed_over integer not null default 0,     -- entries of the present walk that do not verify
    attempts integer not null default 0,        -- failures of the present page in a row
    walks integer not null default 0,           -- to the end, with entries passed over
    reader bigint not null default 0,           -- counts the claims; only the last claim moves the row
    due_at timestamptz not null default now(),
    made_at timestamptz not null default now(),
    walked_at timestamptz,                      -- the end of the first walk; null: not yet
    constraint notification_windows_purpose check (purpose in ('hourly', 'daily', 'outage', 'command')),
    constraint notification_windows_span check (start_at < end_at)
);
create index notification_windows_due on notification_windows (due_at);
create index notification_windows_of_app on notification_windows (app_id, environment, bundle_id);
comment on table notification_windows is
    'A row: a span of Apple''s notification history that is yet to be read, or that holds entries which do not verify. Usually empty.';

-- Ends a window that was read to its end, or that Apple has forgotten. The reader of the last claim may. The lock lets
-- the later of two windows that end at once see that the other has gone.
create function end_notification_window(ended bigint, claim bigint, was_read boolean) returns void
language plpgsql security definer as $$
declare
    gone record;
begin
    delete from notification_windows where id = ended and reader = claim returning app_id, environment, bundle_id into gone;
    if not found or not was_read then return; end if;
    perform from notification_sweeps
        where app_id = gone.app_id and environment = gone.environment and bundle_id = gone.bundle_id for no key update;
    update notification_sweeps set completed_at = now()
        where app_id = gone.app_id and environment = gone.environment and bundle_id = gone.bundle_id
            and not exists (
                select from notification_windows
                where app_id = gone.app_id and environment = gone.environment and bundle_id = gone.bundle_id);
end $$;

-- As at the end of 0001_receipts.sql.
do $$
begin
    execute format('alter function end_notification_window(bigint, bigint, boolean) set search_path = %I, pg_temp', current_schema());
    revoke execute on function end_notification_window(bigint, bigint, boolean) from public;
end $$;

-- Only what Apple sent says that notifications arrive: by itself, or once more after this server had asked for it.
-- The view is restated whole, as PostgreSQL demands.
create or replace view v_notification_health as
select a.app_id, e.environment, l.received_at as last_received_at, l.type as last_type,
    extract(epoch from now() - l.received_at)::float8 as silent_seconds, u.usual_gap_seconds, u.days,
    t.received_at as last_test_at, k.asked_at as test_asked_at, coalesce(k.problem, '') as test_problem,
    case when l.received_at is null then 'never'
        when k.asked_at is null or l.received_at >= k.asked_at then 'heard'
        when k.asked_at > now() - interval '10 minutes' then 'asked' else 'silent' end as health,
    coalesce(o.held, 0) as held, coalesce(o.parked, 0) as parked, coalesce(o.due, 0) as due
from apps a
cross join (values ('Production' collate "C"), ('Sandbox' collate "C")) e(environment)
left join lateral (
    select received_at, type from notifications
    where app_id = a.app_id and environment = e.environment and (came_by = 'notification' or repeats > 0)
    order by received_at desc limit 1) l on true
left join lateral (
    select received_at from notifications
    where app_id = a.app_id and environment = e.environment and type = 'TEST'
    order by received_at desc limit 1) t on true
left join lateral (
    select count(*) as days,
        percentile_cont(0.9) within group (order by longest_gap_seconds) as usual_gap_seconds
    from notification_days
    where app_id = a.app_id and environment = e.environment and longest_gap_seconds is not null
        and day >= (l.received_at at time zone 'UTC')::date - 30) u on true
left join notification_tests k on k.app_id = a.app_id and k.environment = e.environment
left join (
    select app_id, environment, count(*) filter (where state = 'held') as held,
        count(*) filter (where state = 'parked') as parked,
        count(*) filter (where state = 'received' and due_at < now()) as due
    from notifications where due_at is not null group by 1, 2) o
    on o.app_id = a.app_id and o.environment = e.environment;

create or replace view v_notifications as
select id, version, app_id, bundle_id, environment, type, coalesce(subtype, '') as subtype, transaction_id,
    original_transaction_id, state, coalesce(reason, '') as reason, attempt, repeats, signed_at, received_at, judged_at,
    due_at, settled_at, extract(epoch from coalesce(settled_at, now()) - received_at)::float8 as age_seconds, came_by
from notifications;

-- What the nets caught. Apple may bring a notification itself after this server asked for it, and then counts its
-- repeats. Of an end only a notification of that kind is news; of a purchase every notification and post.
create view v_nets as
select c.app_id, c.environment, c.net, (c.caught_at at time zone 'UTC')::date as day, c.kind,
    count(*) as told, count(*) filter (where not h.was_heard) as caught,
    count(*) filter (where not h.was_heard and not h.is_heard) as alone
from net_catches c
cross join lateral (
    select coalesce(bool_or(m.at <= c.caught_at and m.sent), false) as was_heard,
        coalesce(bool_or(m.at > c.caught_at or not m.sent), false) as is_heard
    from (
        select n.received_at as at, n.came_by = 'notification' as sent from notifications n
        where n.transaction_id = c.transaction_id and (n.came_by = 'notification' or n.repeats > 0)
            and case c.kind when 'purchase' then true
                when 'end' then n.type in ('REFUND', 'REVOKE') else n.type = 'REFUND_REVERSED' end
        union all
        select r.received_at, true from (
            select receipt_id from grants where transaction_id = c.transaction_id
            union all
            select receipt_id from outcomes where transaction_id = c.transaction_id and state <> 'granted') o
        join receipts r on r.id = o.receipt_id
        where r.source = 'post' and (c.kind = 'purchase' or r.received_at > c.caught_at)) m) h
group by 1, 2, 3, 4, 5;
comment on view v_nets is
    'What each net caught (B2). A row: app, environment, net, day (UTC), kind (purchase, end, reversal). told: a question to Apple told it before anything was stored about it; caught: no post and no notification had come by then; alone: none has come since. Ask for a span of day.';

-- The sweeps over Apple's books. A later migration restates the view with its own sweeps.
create view v_sweeps as
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
group by s.app_id, s.environment;
comment on view v_sweeps is
    'The sweeps over Apple''s books. A row: sweep, app, environment. due: questions that are due now; oldest_due_at, lag_seconds: the question that waits longest; progress: in words; last_complete_at: the last sweep that left nothing out; passed_over: entries of Apple''s that do not verify; catches: what the sweep told first within 24 hours.';
