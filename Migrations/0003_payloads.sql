-- Why: a payload is a proof as it was posted, byte for byte. Payloads have tables of their own, by day, so that
--   retention drops whole days and receipts stay small. Retention first moves the payloads that must stay longer;
--   hashes and decoded facts stay for ever. Four fifths of a signed transaction are its header, Apple's certificates,
--   which are the same in every purchase for a year or longer. Makegood stores a header once: payloads then take a
--   fifth of the space, and of what an insert writes. This migration comes after the purchases because retention reads
--   which of them a payload still serves.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

-- Headers that many proofs share. No row is ever deleted or changed: a header holds certificates and nobody's data.
-- There are few, because ingest shares a header only after it has seen the header again and again.
create table proof_headers (
    sha256 bytea primary key,
    header text collate "C" not null,           -- the first part of a JWS, with the dot that follows it
    constraint proof_headers_sha256 check (sha256 = sha256(convert_to(header, 'UTF8')))
) with (toast_tuple_target = 8160);
-- Stored in its row, as payloads are, because every read of a proof needs it.
alter table proof_headers alter column header set storage external;

-- The proofs by day. A signed transaction has about 4 kB. By default PostgreSQL would try to compress such a value, in
-- vain because it is base64, and move it to a table with an index of its own: 40 % of the cost of an insert. With these
-- settings a value stays in its row up to 8 kB, and PostgreSQL moves a larger one without compressing it.
create table stored_payloads (
    receipt_id uuid not null,
    received_on date not null,
    body text collate "C" not null,
    header_sha256 bytea,                        -- null: the body is the whole proof
    constraint stored_payloads_pkey primary key (receipt_id, received_on)
) partition by range (received_on);
alter table stored_payloads alter column body set storage external;

-- Holds payloads of days without a partition. Retention empties it row by row.
create table payloads_default partition of stored_payloads default with (toast_tuple_target = 8160);
create index payloads_default_received_on on payloads_default (received_on);

-- Every proof as it was posted, however it is stored. Where a header is missing, its proofs are missing, not shorter.
create view payloads as
select p.receipt_id, p.received_on,
    case when p.header_sha256 is null then p.body else h.header || p.body end as body
from stored_payloads p left join proof_headers h on h.sha256 = p.header_sha256;

-- The partitions of days.
create view payload_days as
select to_date(right(c.relname, 8), 'YYYYMMDD') as day, c.relname::text as name, c.oid as relation
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'stored_payloads'::regclass and c.relname ~ '^payloads_[0-9]{8}$';

-- Payloads that must stay though the partition of their day is dropped.
create table kept_payloads (
    receipt_id uuid primary key,
    body text collate "C" not null,
    reason text collate "C" not null,
    kept_until timestamptz not null,            -- when retention looks again for a reason to keep it
    constraint kept_payloads_reason check (reason in ('open', 'rejected', 'chain'))
) with (toast_tuple_target = 8160);
alter table kept_payloads alter column body set storage external;
create index kept_payloads_until on kept_payloads (kept_until);

-- For each subscription chain the newest judged receipt: the one with which Apple can be asked.
create table kept_chains (
    app_id text collate "C" not null,
    environment text collate "C" not null,
    original_transaction_id text collate "C" not null,
    receipt_id uuid not null,
    received_at timestamptz not null,
    primary key (app_id, environment, original_transaction_id)
);
create index kept_chains_by_receipt on kept_chains (receipt_id);

-- How far retention has judged the payloads of a day. A step that dies is repeated. A day that was judged whole is
-- dropped.
create table payload_passes (
    day date primary key,
    judged_to uuid not null
);

-- Creates the partitions of today and the days after it that do not exist yet. The scheduler calls it and may not run
-- DDL itself: the function has its owner's rights, and creates at most a year of partitions.
--
-- The function uses PARTITION OF, not ATTACH: an insert that waits for an ATTACH has already chosen the default
-- partition and fails (23514). With PARTITION OF an insert waits at the parent until the catalogue has changed, and
-- then chooses. If a reader holds its locks for hours, the function gives up after lock_timeout; the next call tries
-- again, days before it matters.
--
-- Under that lock PostgreSQL checks the default partition by reading all of it. So the function skips days that have
-- payloads there. If payloads of earlier days lie there (no scheduler ran for a week), the function creates one day a
-- call, and retention moves those payloads row by row.
create function create_payload_partitions(days integer) returns void
language plpgsql security definer set lock_timeout = '100ms' as $$
declare
    today date := (now() at time zone 'UTC')::date;
    day date;
    name text;
begin
    -- Another scheduler runs it.
    if not pg_try_advisory_xact_lock(hashtext('makegood.payload_partitions')) then return; end if;
    for day in select d::date from generate_series(today, today + least(days, 366), interval '1 day') d loop
        name := 'payloads_' || to_char(day, 'YYYYMMDD');
        continue when to_regclass(name) is not null
            or exists (select from payloads_default d where d.received_on = day);
        begin
            execute format('create table %I partition of stored_payloads for values from (%L) to (%L)
                with (toast_tuple_target = 8160)', name, day, day + 1);
        exception when check_violation then
            -- The day's first payload came to the default partition just now: the day's other payloads go there too.
            null;
        end;
        exit when exists (select from payloads_default d where d.received_on < today);
    end loop;
end $$;

-- Enters the given receipts for their chains, but only receipts without which Apple cannot be asked: app receipts
-- (StoreKit 1) that brought a subscription, of apps without credentials for the App Store Server API. (An app with
-- credentials asks by the original transaction id, which stays for ever.) Only chains count that have not been expired
-- for more than 60 days, by the newest facts of any source. A newer receipt replaces an older one, and retention judges
-- the older one again.
create function enter_payload_chains(receipt_ids uuid[], apps_asking_by_id text[]) returns void
language sql as $$
    with newest as (
        select distinct on (t.app_id, t.environment, t.original_transaction_id)
            t.app_id, t.environment, t.original_transaction_id, r.id as receipt_id, r.received_at
        from unnest(receipt_ids) as i(id)
        join receipts r on r.id = i.id and r.kind = 'receipt' and r.state in ('granted', 'already_granted')
            and r.app_id <> all (apps_asking_by_id)
        join outcomes o on o.receipt_id = r.id
        join transactions t on t.transaction_id = o.transaction_id and t.app_id = r.app_id
            and t.expires_at is not null
        where exists (select from transactions c where c.original_transaction_id = t.original_transaction_id
            and c.app_id = t.app_id and c.environment = t.environment and c.expires_at > now() - interval '60 days')
        order by t.app_id, t.environment, t.original_transaction_id, r.received_at desc, r.id),
    displaced as (
        update kept_payloads k set kept_until = now()
        from kept_chains c join newest n using (app_id, environment, original_transaction_id)
        where k.receipt_id = c.receipt_id and n.received_at > c.received_at and k.reason = 'chain')
    insert into kept_chains as c (app_id, environment, original_transaction_id, receipt_id, received_at)
    select app_id, environment, original_transaction_id, receipt_id, received_at from newest
    on conflict (app_id, environment, original_transaction_id) do update
        set receipt_id = excluded.receipt_id, received_at = excluded.received_at
        where excluded.received_at > c.received_at
$$;

-- The reasons why the payloads of these receipts must stay, and until when. The payload of a receipt that is missing
-- from the result may be dropped.
create function payload_reasons(receipt_ids uuid[], apps_asking_by_id text[])
returns table (receipt_id uuid, reason text, kept_until timestamptz)
language sql stable as $$
    select r.id, w.reason, w.kept_until
    from unnest(receipt_ids) as i(id)
    join receipts r on r.id = i.id
    left join lateral (
        select max(t.expires_at) + interval '60 days' as kept_until
        from kept_chains c join transactions t on t.original_transaction_id = c.original_transaction_id
            and t.app_id = c.app_id and t.environment = c.environment
        where c.receipt_id = r.id and r.app_id <> all (apps_asking_by_id)) chain on true
    cross join lateral (
        select case
            when r.settled_at is null then 'open'
            when r.state = 'rejected' and r.settled_at > now() - interval '180 days' then 'rejected'
            when chain.kept_until > now() then 'chain' end as reason,
        case
            -- Nobody knows how long it stays open, so retention looks again each day.
            when r.settled_at is null then now() + interval '1 day'
            when r.state = 'rejected' and r.settled_at > now() - interval '180 days'
                then r.settled_at + interval '180 days'
            else chain.kept_until end as kept_until) w
    where w.reason is not null
$$;

-- Copies the payloads of a partition that must stay to kept_payloads, each of them whole, and returns how many must
-- stay. Where a header is missing the body is null, and nothing is kept or dropped.
create function keep_payloads(place text, receipt_ids uuid[], apps_asking_by_id text[]) returns integer
language plpgsql as $$
declare
    moved integer;
begin
    perform enter_payload_chains(receipt_ids, apps_asking_by_id);
    execute format('with stays as (select * from payload_reasons($1, $2)), copied as (
        insert into kept_payloads (receipt_id, body, reason, kept_until)
        select s.receipt_id, case when p.header_sha256 is null then p.body else h.header || p.body end, s.reason,
            s.kept_until
        from stays s join %I p on p.receipt_id = s.receipt_id
        left join proof_headers h on h.sha256 = p.header_sha256
        on conflict (receipt_id) do nothing)
        select count(*) from stays', place) into moved using receipt_ids, apps_asking_by_id;
    return moved;
end $$;

-- One step of retention: looks again at kept payloads whose time has come, empties the default partition, judges the
-- oldest day that is due, and drops the day when it is judged whole; at most `batch` rows of each. The scheduler calls
-- it and may not run DDL or DELETE itself: the function has its owner's rights.
--
-- Of several schedulers one works, and for the others the function returns at once. Everything of a step commits
-- together, so a step that dies is repeated. A payload that was judged droppable stays so until the drop: only
-- `makegood support rejudge` and `reopen_claim` open an ended receipt again, and both keep its payload themselves.
--
-- DROP takes ACCESS EXCLUSIVE on the parent for the moment of a catalogue change. Inserts wait behind it for
-- lock_timeout at most; then the drop gives up until the next step. DETACH CONCURRENTLY does not work beside a default
-- partition.
create function retain_payloads(keep_days integer, apps_asking_by_id text[], batch integer)
returns table (judged integer, kept integer, released integer, dropped_day date, is_more boolean)
language plpgsql security definer set lock_timeout = '100ms' as $$
declare
    -- Whatever the caller asks for, today and yesterday stay.
    first_kept_day constant date := (now() at time zone 'UTC')::date - greatest(keep_days, 1);
    ids uuid[];
    place text;
    day_due date;
    moved integer;
begin
    judged := 0; kept := 0; released := 0; is_more := false;
    if not pg_try_advisory_xact_lock(hashtext('makegood.payload_retention')) then return next; return; end if;

    -- Kept payloads whose reasons may have ended.
    select array_agg(k.receipt_id) into ids from (
        select due.receipt_id from kept_payloads due where due.kept_until <= now()
        order by due.kept_until limit batch for update skip locked) k;
    if ids is not null then
        perform enter_payload_chains(ids, apps_asking_by_id);
        update kept_payloads k set reason = w.reason, kept_until = w.kept_until
        from payload_reasons(ids, apps_asking_by_id) w where k.receipt_id = w.receipt_id;
        -- Every reason that still holds ends later than now.
        delete from kept_payloads k where k.receipt_id = any(ids) and k.kept_until <= now();
        get diagnostics released = row_count;
        delete from kept_chains c where c.receipt_id = any(ids)
            and not exists (select from kept_payloads k where k.receipt_id = c.receipt_id);
        judged := cardinality(ids);
        is_more := judged = batch;
    end if;

    -- Payloads in the default partition.
    select array_agg(p.receipt_id) into ids from (
        select d.receipt_id from payloads_default d where d.received_on < first_kept_day
        order by d.received_on limit batch) p;
    if ids is not null then
        moved := keep_payloads('payloads_default', ids, apps_asking_by_id);
        delete from payloads_default d where d.receipt_id = any(ids) and d.received_on < first_kept_day;
        judged := judged + cardinality(ids); kept := kept + moved; released := released + cardinality(ids) - moved;
        is_more := is_more or cardinality(ids) = batch;
    end if;

    -- The payloads of the oldest day.
    select d.day, d.name into day_due, place from payload_days d where d.day < first_kept_day order by d.day limit 1;
    if place is not null then
        execute format('select array_agg(receipt_id) from (select receipt_id from %I where receipt_id > $1
            order by receipt_id limit $2) p', place) into ids using coalesce(
            (select p.judged_to from payload_passes p where p.day = day_due), '00000000-0000-0000-0000-000000000000'),
            batch;
        if ids is not null then
            moved := keep_payloads(place, ids, apps_asking_by_id);
            insert into payload_passes as p (day, judged_to) values (day_due, ids[cardinality(ids)])
            on conflict (day) do update set judged_to = excluded.judged_to;
            judged := judged + cardinality(ids); kept := kept + moved; released := released + cardinality(ids) - moved;
        end if;
        if coalesce(cardinality(ids), 0) = batch then
            is_more := true;
        else
            begin
                execute format('drop table %I', place);
                delete from payload_passes p where p.day = day_due;
                dropped_day := day_due;
                is_more := true;
            exception when lock_not_available then
                -- A reader holds its lock for long. What was judged stays judged.
                null;
            end;
        end if;
    end if;
    return next;
end $$;

-- Keeps the payloads of receipts that are about to be opened again, whatever a step of retention that runs at the same
-- time has judged. Returns the receipts that have a payload. Support calls it, because support may not read payloads.
create function keep_reopened_payloads(receipt_ids uuid[]) returns setof uuid
language sql security definer as $$
    insert into kept_payloads (receipt_id, body, reason, kept_until)
    select r.id, coalesce(p.body, k.body), 'open', now() + interval '1 day'
    from unnest(receipt_ids) as i(id)
    join receipts r on r.id = i.id
    left join lateral (select body from payloads where receipt_id = r.id
        and received_on = (r.received_at at time zone 'UTC')::date offset 0) p on true
    left join kept_payloads k on k.receipt_id = r.id
    where coalesce(p.body, k.body) is not null
    order by r.id
    on conflict (receipt_id) do update set reason = excluded.reason, kept_until = excluded.kept_until
    returning receipt_id
$$;

-- The receipts of the last seconds whose stored proof differs from what was posted, or whose header is missing. The
-- function has its owner's rights, so that a role that checks the invariants need not read proofs.
create function changed_proofs(since_seconds double precision) returns setof uuid
language sql stable security definer as $$
    select r.id from receipts r
    join payloads p on p.receipt_id = r.id and p.received_on = (r.received_at at time zone 'UTC')::date
    where r.received_at >= now() - make_interval(secs => since_seconds)
      and p.received_on >= ((now() - make_interval(secs => since_seconds)) at time zone 'UTC')::date
      and sha256(convert_to(p.body, 'UTF8')) is distinct from r.payload_sha256
$$;

-- As at the end of 0001_receipts.sql.
do $$
declare
    signature text;
begin
    foreach signature in array array[
        'create_payload_partitions(integer)', 'enter_payload_chains(uuid[], text[])',
        'payload_reasons(uuid[], text[])', 'keep_payloads(text, uuid[], text[])',
        'retain_payloads(integer, text[], integer)', 'keep_reopened_payloads(uuid[])',
        'changed_proofs(double precision)']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
