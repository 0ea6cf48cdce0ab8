-- serves: 12
-- Why: a backend that lost what it had taken, or whose endpoint is new, needs events once more. They are sent to one
--   endpoint again, behind everything that is due there (B8).
-- Locks: none, everything is new.
-- Cost: none. A replay is one row, however many events it sends.
-- Programs of the version before: they know no replays. A dispatcher of that version sends none.

-- A replay is a place in the feed of an app that goes on to an end, and a filter. No event is copied. Rows are kept:
-- they say who had what sent again.
create table replays (
    id uuid primary key default gen_random_uuid(),
    app_id text collate "C" not null,
    endpoint uuid not null,
    from_at timestamptz,                        -- events of this time and later; null: of every time
    to_at timestamptz,                          -- events of before this time; null: of every time
    types text[] collate "C",                   -- null: all
    user_id text collate "C",                   -- as in the other tables; null: all
    event_ids uuid[],                           -- null: all
    requested_by text collate "C" not null,
    requested_at timestamptz not null default now(),
    events bigint not null,                     -- how many were found among the first 100,001 of the span
    is_counted boolean not null,                -- false: the span has more
    done_xid xid8 not null,                     -- with `done_id` the place: events up to here are sent or passed over
    done_id bigint not null default 0,
    end_xid xid8 not null,                      -- the events of this transaction and of later ones are not sent
    sent bigint not null default 0,
    attempts integer not null default 0,        -- failures in a row of the event whose turn it is
    last_error text collate "C",
    due_at timestamptz default now(),           -- when it goes on; null once it has ended
    ended_at timestamptz,
    cancelled_by text collate "C",
    constraint replays_end check ((due_at is null) = (ended_at is not null)),
    constraint replays_cancelled check (cancelled_by is null or ended_at is not null)
) with (fillfactor = 50);
comment on table replays is
    'A row: events of an app that are sent to an endpoint again: those of its span that the filter chooses. done_xid, done_id: up to here they are sent. due_at: when it goes on; ended_at without cancelled_by: it is done.';
create index replays_due on replays (endpoint, due_at) where due_at is not null;
create index replays_requested on replays (app_id, requested_at);

-- A transaction of an app's feed: the one before it is of before a time, and it is of that time or later. Null: the app
-- has no event. The times of the feed go up, but for the length of a transaction: `at` is its beginning, and its number
-- comes with its first write. So callers look some minutes around.
create function feed_place(app text, moment timestamptz) returns xid8 language plpgsql stable as $$
declare
    low bigint := (select xid::text::bigint from events where app_id = app order by xid limit 1);
    high bigint := (select xid::text::bigint + 1 from events where app_id = app order by xid desc limit 1);
    middle bigint;
    next record;
begin
    while low < high loop
        middle := low + (high - low) / 2;
        select xid::text::bigint as xid, at into next from events
        where app_id = app and xid >= middle::text::xid8 order by xid limit 1;
        if next.at < moment then low := next.xid + 1; else high := middle; end if;
    end loop;
    return low::text::xid8;
end $$;

-- The span of a replay and how many events of its first 100,001 are chosen, which the endpoint's own filter (`passing`)
-- lets pass. Support asks too, and may not read who an event is about. Ten minutes are longer than any transaction of a
-- program.
create function count_replay(
    app text, since timestamptz, before timestamptz, kinds text[], usr text, ids uuid[], passing text[],
    environments text[])
returns table (first_xid text, end_xid text, events bigint, is_counted boolean)
language sql stable security definer as $$
    with span as materialized (
        select coalesce(case when since is not null then feed_place(app, since - interval '10 minutes') end, '0')
              as first,
            least(pg_snapshot_xmin(pg_current_snapshot()),
              case when before is not null then feed_place(app, before + interval '10 minutes') end) as last),
    looked as materialized (
        select e.type, e.user_id, e.event_id, e.at,
            case when environments is not null then e.body ->> 'environment' end as environment
        from span s cross join lateral (
            select type, user_id, event_id, at, body from events
            where app_id = app and (xid, id) >= (s.first, 0) and xid < s.last
            order by xid, id limit (select 100001)) e)
    select s.first::text, s.last::text,
        (select count(*) from looked e
        where (since is null or e.at >= since) and (before is null or e.at < before)
            and (kinds is null or e.type = any(kinds)) and (usr is null or e.user_id = usr)
            and (ids is null or e.event_id = any(ids)) and (passing is null or e.type = any(passing))
            and (environments is null or e.environment is null or e.environment = any(environments))),
        (select count(*) <= 100000 from looked)
    from span s
$$;

-- As in 0026_followup_gaps.sql; replays of the user's events end.
create or replace function erase_heard_of_user(app text, id text, owner text) returns bigint
language sql security definer as $$
    with revoked as (
        update revocations set user_id = owner where app_id = app and user_id = id and id <> owner),
    -- Nothing counts as told to an erased user, so that no follow-up tells the user anything more.
    told as (
        update chains set told_user_id = null, told = null, state = null, due_at = null
        where app_id = app and told_user_id = id),
    agreed as (
        delete from consents where app_id = app and user_id in (id, owner)),
    replayed as (
        update replays r set user_id = owner, due_at = null, ended_at = coalesce(r.ended_at, now()),
          cancelled_by = case when r.ended_at is null then 'users.erase' else r.cancelled_by end
        where r.app_id = app and r.user_id = $2),
    emptied as (
        update notifications n set payload = null, forward_due_at = null, state = 'ended', due_at = null,
          reason = case when n.settled_at is null then 'erased' else n.reason end,
          settled_at = coalesce(n.settled_at, now())
        where n.id in (
            select k.id from (
                select transaction_id from grants where app_id = app and user_id = owner
                union all
                select transaction_id from imported_grants where app_id = app and user_id = owner) g
            cross join lateral (
                select original_transaction_id from transactions where transaction_id = g.transaction_id offset 0) t
            cross join lateral (
                select id from notifications where transaction_id = g.transaction_id
                union
                select id from notifications where original_transaction_id = t.original_transaction_id) k)
          and n.app_id = app and n.payload is not null
        returning n.id)
    select count(*) from emptied
$$;

-- As at the end of 0001_receipts.sql.
do $$
declare
    signature text;
begin
    foreach signature in array array[
        'feed_place(text, timestamptz)', 'erase_heard_of_user(text, text, text)',
        'count_replay(text, timestamptz, timestamptz, text[], text, uuid[], text[], text[])']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
    end loop;
end $$;
revoke execute on function feed_place(text, timestamptz),
    count_replay(text, timestamptz, timestamptz, text[], text, uuid[], text[], text[]) from public;
