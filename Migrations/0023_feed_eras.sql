-- serves: 1
-- Why: a reader of the feed keeps the place of the last event he has seen, and places followed the server's transaction
--   ids. A server that was restored from a backup, or a standby that took over without the last moments, gives the same
--   ids once more: what it wrote then lay behind its readers, who were never told (S1-1). Now each start of a server
--   begins an era of places, later than every place ever given, by the clock. Nobody has to do or to know anything.
--   Events themselves stay as they are. A program of the version before gives and takes transaction ids as places; beside
--   a server that was started since, its readers get nothing until they ask a process of this version.
-- Locks: share row exclusive on events for a moment, for its trigger. Cost: a look-up for each statement that writes events.

-- A place is xid + shift of the era that the xid belongs to. Written by the trigger alone.
create table feed_eras (
    server_started_at timestamptz primary key,  -- a restored server and a standby that took over have another one
    first_xid bigint not null,                  -- the era ends before the next one's
    shift bigint not null,                      -- never smaller than an earlier era's
    began_at timestamptz not null default now()
);
-- Until the next start of the server places are what they were.
insert into feed_eras (server_started_at, first_xid, shift) values (pg_postmaster_start_time(), 0, 0);

-- The first to write an event after a start begins the era; who comes meanwhile waits for him. No transaction that still
-- ran then is older than its first xid, and none from before the start still runs.
--
-- Places of an era begin at the microseconds since 1970 and rise by one with each transaction. That is less than one in a
-- microsecond, so that a later era begins beyond them, even on a server that knows nothing of the lost ones.
create function begin_feed_era() returns trigger language plpgsql security definer as $$
declare
    first bigint;
begin
    if not exists (select from feed_eras where server_started_at = pg_postmaster_start_time()) then
        first := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
        insert into feed_eras (server_started_at, first_xid, shift)
        select pg_postmaster_start_time(), first,
            greatest(floor(extract(epoch from clock_timestamp()) * 1000000)::bigint - first, max(shift))
        from feed_eras
        on conflict do nothing;
    end if;
    return null;
end $$;
create trigger begin_feed_era before insert on events for each statement execute function begin_feed_era();

-- Nobody can slip another table under it (0002).
do $$ begin
    execute format('alter function begin_feed_era() set search_path = %I, pg_temp', current_schema());
end $$;
revoke execute on function begin_feed_era() from public;
