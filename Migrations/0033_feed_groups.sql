-- serves: 12
-- Why: a backend that stopped reading the feed hands out no goods, and nobody saw it: only the backend knew its place.
--   A backend may store its place in a group, so that its lag is measured (B8). The lag of an app is measured beside
--   the events of others, so the events of one app must be found by their place.
-- Locks: events, while an index is built on it: writers wait.
-- Cost: reads events once; an index entry of some 40 bytes for each event.
-- Programs of the version before: they read the feed as before and know no groups.

-- The feed of one app. The primary key has the feed of all apps: a reader of a quiet app would read the events of all
-- others there to find that nothing came.
create index events_of_app on events (app_id, xid, id);

-- A group is of one app. A place of several apps would pass over the past of an app that its reader gets to read later.
create table feed_groups (
    app_id text collate "C" not null,
    name text collate "C" not null,
    place bigint not null,                      -- with `id` the cursor, as the feed gives it: xid + shift of the era
    id bigint not null,
    created_at timestamptz not null default now(),
    stored_at timestamptz not null default now(),
    primary key (app_id, name),
    constraint feed_groups_name check (name ~ '^[a-z0-9-]{1,64}$'),
    constraint feed_groups_cursor check (place >= 0 and id >= 0)
);
comment on table feed_groups is
    'A row: a group of readers of an app''s event feed. place, id: the event up to which all are handled.';

-- No role may delete a row, but the reader of a group may forget the group.
create function forget_feed_group(app text, group_name text) returns boolean language sql security definer as $$
    with forgotten as (delete from feed_groups where app_id = app and name = group_name returning 1)
    select exists (select from forgotten)
$$;

-- Schedulers measure the view each minute, so it reads no more than 10,001 events of each group. Events that the feed
-- does not show yet are not behind. The places are turned into transactions as by the feed (ledger.read_events). The
-- planner does not know the limit that a subquery gives: without statistics it would otherwise read and sort all events
-- of the app.
create view v_feed_groups as
select g.app_id, g.name, g.place || '-' || g.id as cursor, g.created_at, g.stored_at,
    behind.events as events_behind, oldest.at as oldest_at,
    greatest(0, coalesce(extract(epoch from now() - oldest.at), 0))::float8 as lag_seconds
from feed_groups g
cross join lateral (
    select least(g.place - e.shift, e.next_xid - 1)::text::xid8 as xid,
        case when g.place - e.shift >= e.next_xid then 9223372036854775807 else g.id end as id
    from (
        select first_xid, shift, lead(first_xid) over (order by first_xid) as next_xid from feed_eras) e
    where e.first_xid + e.shift <= g.place order by e.first_xid desc limit 1) handled
left join lateral (
    select e.at from events e
    where e.app_id = g.app_id and (e.xid, e.id) > (handled.xid, handled.id)
        and e.xid < pg_snapshot_xmin(pg_current_snapshot())
    order by e.xid, e.id limit 1) oldest on true
cross join lateral (
    select count(*) as events from (
        select from events e
        where e.app_id = g.app_id and (e.xid, e.id) > (handled.xid, handled.id)
            and e.xid < pg_snapshot_xmin(pg_current_snapshot())
        order by e.xid, e.id limit (select 10001)) counted) behind;
comment on view v_feed_groups is
    'A row: a group of readers of an app''s event feed. events_behind: events that the feed shows and the group has not handled, 10001: more than 10,000. oldest_at: the oldest of these; lag_seconds: its age, 0: none is behind.';

-- As at the end of 0001_receipts.sql.
do $$
begin
    execute format('alter function forget_feed_group(text, text) set search_path = %I, pg_temp', current_schema());
end $$;
revoke execute on function forget_feed_group(text, text) from public;
