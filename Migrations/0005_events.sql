-- Why: the app's backend learns of each grant by an event, and gives the goods by it. So each event is written once,
--   and readers miss none: they read in commit order, also after the server was restored from a backup. A role may only
--   write events about facts that it may write. This migration comes before the users because their erasure empties
--   their events.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

-- The feed of the app's backend. Readers read by (xid, id) below the oldest running transaction: commit order, no gaps.
create table events (
    xid xid8 not null default pg_current_xact_id(),
    id bigint not null generated always as identity,
    event_id uuid not null,
    app_id text collate "C" not null,
    type text collate "C" not null,
    user_id text collate "C" not null,
    transaction_id text collate "C" not null,
    receipt_id uuid not null,
    body jsonb not null,
    at timestamptz not null default now(),
    primary key (xid, id)
);
-- Each event is written once. Its id is a digest, so beside a long history an index by the id alone would write each
-- entry to a page of its own. All events of a purchase name its transaction, their ids follow from it, and Apple's
-- numbers grow. With the transaction first the index is unique in the same way, and new entries lie together. The
-- timeline of a purchase finds its events here.
create unique index events_of_transaction on events (transaction_id, event_id);
create index events_at on events using brin (at) with (autosummarize = on);

-- Lets a role insert only events whose facts the role may insert as well. Otherwise scheduler and support could write a
-- `purchase.granted` without a grant, or an `ownership.gained` without an owner.
create function refuse_strange_event() returns trigger language plpgsql as $$
begin
    raise insufficient_privilege using
        message = format('the role %s may not tell of %s: it may not write what the event tells of', current_user, new.type);
end $$;

-- A role may write an event if it may insert into the table that holds the event's facts. A type that is not named here
-- is about a grant.
create trigger refuse_strange_event before insert on events for each row
    when (not has_any_column_privilege(
        case new.type
            when 'purchase.possible_double_charge' then 'double_charges'::regclass
            when 'ownership.lost' then 'ownerships'::regclass
            when 'ownership.gained' then 'ownerships'::regclass
            else 'grants'::regclass
        end, 'insert'))
    execute function refuse_strange_event();

-- A reader of the feed keeps the place of the last event that it has seen. A server that was restored from a backup, or
-- a standby that took over without the last moments, gives the same transaction ids once more. Events by bare
-- transaction id would then lie before their readers' places, and the readers would miss them. So each start of a
-- server begins an era of places, by the clock later than every place ever given. No operator has to do or to know
-- anything.
--
-- A place is xid + shift of the era that the xid belongs to. Only the trigger writes eras.
create table feed_eras (
    server_started_at timestamptz primary key,  -- differs on a restored server and on a standby that took over
    first_xid bigint not null,                  -- the era ends before the next era's first_xid
    shift bigint not null,                      -- never smaller than an earlier era's
    began_at timestamptz not null default now()
);
-- Until the next start of the server, places are equal to transaction ids.
insert into feed_eras (server_started_at, first_xid, shift) values (pg_postmaster_start_time(), 0, 0);

-- Begins an era in the first transaction that writes an event after a start; other transactions that come meanwhile
-- wait for it. No transaction that still ran then is older than the era's first xid, and none from before the start
-- still runs.
--
-- Places of an era begin at the microseconds since 1970 and rise by one with each transaction. A server runs less than
-- one transaction in a microsecond, so a later era begins beyond them, even on a server that knows nothing of the lost
-- transactions.
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

-- As at the end of 0001_receipts.sql.
do $$
begin
    execute format('alter function begin_feed_era() set search_path = %I, pg_temp', current_schema());
end $$;
revoke execute on function refuse_strange_event(), begin_feed_era() from public;
