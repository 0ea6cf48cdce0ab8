-- serves: 12
-- Why: the app's backend hands out no goods before it knows of a grant, and a backend that reads the feed must keep
--   asking. Dispatchers bring each event to the endpoints of its app, in order for each user, and lose none (B8).
-- Locks: events, for a moment, for two triggers: writers wait.
-- Cost: none at once. A dispatcher numbers the events that are written from now on: some 150 bytes for each event.
-- Programs of the version before: they write and read events as before. Nobody numbers events until a dispatcher runs.

-- How far events are numbered: up to and including this place in the feed. Whoever numbers locks the row. One row.
create table event_progress (
    is_only boolean primary key default true check (is_only),
    xid xid8 not null,
    id bigint not null,
    at timestamptz not null default now(),
    since_xid xid8 not null default pg_snapshot_xmin(pg_current_snapshot())  -- no earlier event is numbered
);
comment on table event_progress is
    'One row: how far dispatchers have numbered events. xid, id: the last event that is numbered; at: when that was; since_xid: no earlier event is numbered.';
insert into event_progress (xid, id) values (pg_snapshot_xmin(pg_current_snapshot()), 0);

-- A stream: the events of one user of one app. Events about nobody have the user ''.
create table event_users (
    stream bigint primary key generated always as identity,
    app_id text collate "C" not null,
    user_id text collate "C",                   -- null: the user was erased
    last_sequence bigint not null default 0,
    unique (app_id, user_id)
) with (fillfactor = 80);
comment on table event_users is
    'A row: a stream, which is all events of one user of one app. user_id null: the user was erased. last_sequence: how many events are numbered.';

create table event_sequences (
    stream bigint not null,
    sequence bigint not null,                   -- from 1 on, in the order of the feed, without a gap
    xid xid8 not null,
    id bigint not null,
    primary key (stream, sequence)
);
comment on table event_sequences is
    'A row: the number of an event in its stream. xid, id: the event''s place in the feed.';

-- Endpoints stand in the configuration file. Here is what dispatchers have to agree on.
create table endpoints (
    id uuid primary key,                        -- derived from app and name
    app_id text collate "C" not null,
    name text collate "C" not null,
    since_xid xid8 not null default pg_snapshot_xmin(pg_current_snapshot()),  -- earlier events are not delivered
    state text collate "C" not null default 'working',
    failures integer not null default 0,        -- in a row
    failing_since timestamptz,
    probes integer not null default 0,
    probe_at timestamptz,                       -- before, nothing is sent to a failing endpoint
    reason text collate "C",                    -- of a suspended endpoint: gone, exhausted
    last_status integer,
    last_error text collate "C",
    succeeded_at timestamptz,
    failed_at timestamptz,
    turn uuid,                                  -- the dispatcher that sends to it
    turn_until timestamptz,
    seen_at timestamptz not null default now(), -- when a dispatcher last had it in its configuration
    unique (app_id, name),
    constraint endpoints_state check (state in ('working', 'failing', 'suspended')),
    constraint endpoints_probe check ((state = 'failing') = (probe_at is not null)),
    constraint endpoints_turn check ((turn is null) = (turn_until is null))
) with (fillfactor = 50);
comment on table endpoints is
    'A row: an endpoint of an app''s backend, which the configuration file defines. state: working; failing, and one event is tried at probe_at; suspended, and nothing is sent until makegood endpoints resume. turn: the dispatcher that sends to it, until turn_until.';

-- How far one stream is delivered to one endpoint. The constraints hold that a delivery is due or parked as long as an
-- event is undelivered, so that none is forgotten.
create table deliveries (
    endpoint uuid not null,
    stream bigint not null,
    last_sequence bigint not null,              -- of the newest event that passes the endpoint's filter
    done_sequence bigint not null,              -- up to here all is delivered or passed over
    behind_xid xid8,                            -- the place of the first event that may be undelivered, if there is one
    behind_id bigint,
    previous_event_id uuid,                     -- the event that was delivered last
    attempts integer not null default 0,        -- failures of the event whose turn it is
    failed_sequence bigint,                     -- that event, once it has failed
    failing_since timestamptz,
    due_at timestamptz,
    parked_at timestamptz,                      -- tried for too long: a person decides
    reason text collate "C",                    -- of the last failure
    primary key (endpoint, stream),
    constraint deliveries_order check (done_sequence <= last_sequence),
    constraint deliveries_due check (
        (last_sequence > done_sequence) = (due_at is not null or parked_at is not null)
        and (due_at is null or parked_at is null)),
    constraint deliveries_behind check (
        (last_sequence > done_sequence) = (behind_xid is not null) and (behind_xid is null) = (behind_id is null)),
    constraint deliveries_failed check (
        (failing_since is null) = (failed_sequence is null) and (parked_at is null or failing_since is not null))
) with (fillfactor = 70);
comment on table deliveries is
    'A row: how far a stream is delivered to an endpoint. done_sequence: up to here; last_sequence: up to here it has to be. due_at: when the next event is sent; parked_at: it was tried for too long, and waits for a person with all later events of its user.';
-- No index names `last_sequence`, which grows while a delivery waits.
create index deliveries_due on deliveries (endpoint, due_at) where due_at is not null;
create index deliveries_pending on deliveries (endpoint, behind_xid, behind_id) where behind_xid is not null;
create index deliveries_failing on deliveries (endpoint, failing_since) where failing_since is not null;

-- A stream of a user who was erased keeps its numbers and loses the id. A numbering that runs has read the id already:
-- the erasure waits for it, and the next one reads the new one. An erasure of a protected user changes no id.
create function forget_event_users() returns trigger language plpgsql security definer as $$
begin
    if not exists (select app_id, user_id from was except select app_id, user_id from became) then return null; end if;
    perform from event_progress for update;
    update event_users u set user_id = null
    from (select app_id, user_id from was except select app_id, user_id from became) gone
    where u.app_id = gone.app_id and u.user_id = gone.user_id;
    return null;
end $$;
create trigger forget_event_users after update on events referencing old table as was new table as became
    for each statement execute function forget_event_users();

-- As in 0005_events.sql. Whoever may change the state of an endpoint may tell of it.
create or replace trigger refuse_strange_event before insert on events for each row
    when (not case when starts_with(new.type, 'endpoint.')
        then has_any_column_privilege('endpoints'::regclass, 'update')
        else has_any_column_privilege(
            case new.type
                when 'purchase.possible_double_charge' then 'double_charges'::regclass
                when 'ownership.lost' then 'ownerships'::regclass
                when 'ownership.gained' then 'ownerships'::regclass
                else 'grants'::regclass
            end, 'insert') end)
    execute function refuse_strange_event();

-- For the invariants, whose roles need not read who an event is about.
create view events_in_streams as
select e.xid, e.id, e.app_id, u.stream,
    e.user_id ~ '^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' as is_erased
from events e left join event_users u on u.app_id = e.app_id and u.user_id = e.user_id;
comment on view events_in_streams is
    'A row: an event. stream: of its user, null: the user has none; is_erased: the user was erased.';

-- Schedulers measure the view each minute, so it reads no more than 10,001 deliveries of each endpoint. All events of a
-- transaction have its time.
create view v_endpoints as
select n.id as endpoint, n.app_id, n.name, n.state, coalesce(n.reason, '') as reason, n.failures, n.failing_since,
    n.probe_at, n.last_status, n.last_error, n.succeeded_at, n.failed_at, n.seen_at,
    n.seen_at > now() - interval '1 day' as is_defined, coalesce(n.turn_until > now(), false) as is_served,
    waiting.streams as waiting_streams, waiting.events as waiting_events, parked.streams as parked_streams,
    oldest.at as oldest_at, greatest(0, coalesce(extract(epoch from now() - oldest.at), 0))::float8 as lag_seconds
from endpoints n
cross join lateral (
    select count(*) as streams, coalesce(sum(last_sequence - done_sequence), 0)::bigint as events,
        min(behind_xid) filter (where parked_at is null) as oldest_xid
    from (
        select last_sequence, done_sequence, behind_xid, parked_at from deliveries
        where endpoint = n.id and behind_xid is not null
        order by behind_xid, behind_id limit (select 10001)) counted) waiting
cross join lateral (
    select count(*) as streams from (
        select from deliveries where endpoint = n.id and failing_since is not null and parked_at is not null
        order by failing_since limit (select 10001)) counted) parked
left join lateral (select at from events where xid = waiting.oldest_xid order by id limit 1) oldest on true;
comment on view v_endpoints is
    'A row: an endpoint of an app''s backend, with what it has yet to get. waiting_streams: users with undelivered events, 10001: more than 10,000; waiting_events: their events, whatever the filter says; parked_streams: users whose next event was tried for too long. oldest_at: the oldest undelivered event that is not parked; lag_seconds: its age, 0: there is none. seen_at: when a dispatcher last had the endpoint in its configuration; is_defined: less than a day ago, so that events are still kept for it. is_served: a dispatcher sends to it now.';

create view v_undelivered as
select n.app_id, n.name, d.endpoint, d.stream, coalesce(u.user_id, '') as user_id, d.failed_sequence as sequence,
    e.event_id, e.type, e.at, d.attempts, d.failing_since, d.due_at, d.parked_at, coalesce(d.reason, '') as reason,
    d.last_sequence - d.failed_sequence as events_behind
from deliveries d
join endpoints n on n.id = d.endpoint
join event_users u on u.stream = d.stream
join event_sequences s on s.stream = d.stream and s.sequence = d.failed_sequence
join events e on e.xid = s.xid and e.id = s.id
where d.failing_since is not null;
comment on view v_undelivered is
    'A row: an event that an endpoint did not take, so that the later events of its user wait (events_behind). due_at: when it is tried again; parked_at: it was tried for too long, and waits for makegood endpoints redrive or skip. user_id: empty for nobody and for an erased user.';

-- As v_feed_groups: no more than 10,001 events are read.
create view v_numbering as
select p.at as numbered_at, waiting.events as waiting_events, oldest.at as oldest_at,
    greatest(0, coalesce(extract(epoch from now() - oldest.at), 0))::float8 as lag_seconds
from event_progress p
left join lateral (
    select e.at from events e
    where (e.xid, e.id) > (p.xid, p.id) and e.xid < pg_snapshot_xmin(pg_current_snapshot())
    order by e.xid, e.id limit 1) oldest on true
cross join lateral (
    select count(*) as events from (
        select from events e
        where (e.xid, e.id) > (p.xid, p.id) and e.xid < pg_snapshot_xmin(pg_current_snapshot())
        order by e.xid, e.id limit (select 10001)) counted) waiting;
comment on view v_numbering is
    'One row: how far dispatchers are behind with numbering. waiting_events: events that the feed shows and that have no number, 10001: more than 10,000. oldest_at: the oldest of these; lag_seconds: its age, 0: there is none.';

-- As at the end of 0001_receipts.sql.
do $$
begin
    execute format('alter function forget_event_users() set search_path = %I, pg_temp', current_schema());
end $$;
revoke execute on function forget_event_users() from public;
