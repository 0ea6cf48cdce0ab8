-- serves: 1
-- Why: a signed transaction has about 4 kB. By default such a value is compressed, in vain (it is base64), and moved to
--   a table of its own with an index of its own: 40 % of what an insert cost. Now it stays in its row up to 8 kB, and
--   what is larger is moved without trying to compress it.
-- Locks: ACCESS EXCLUSIVE on payloads and its partitions for a change of the catalogue; values that are there stay as
--   they are. Cost: none.
alter table payloads alter column body set storage external;
alter table kept_payloads alter column body set storage external, set (toast_tuple_target = 8160);
do $$
declare
    partition regclass;
begin
    for partition in select inhrelid::regclass from pg_inherits where inhparent = 'payloads'::regclass loop
        execute format('alter table %s alter column body set storage external, set (toast_tuple_target = 8160)', partition);
    end loop;
end $$;

-- As before, but PARTITION OF instead of ATTACH: an insert that waits for an ATTACH has chosen the default partition
-- already and fails (23514). Now it waits at the parent, for a change of the catalogue, and then chooses. Readers of many
-- hours make this give up after lock_timeout; the next call tries again, days before it matters.
--
-- The check of the default partition reads all of it under that lock. So no day is tried that has payloads there, and
-- where earlier days lie there (no scheduler ran for a week) one day a call is enough. What lies there leaves row by row.
create or replace function create_payload_partitions(days integer) returns void
language plpgsql security definer set lock_timeout = '100ms' as $$
declare
    today date := (now() at time zone 'UTC')::date;
    day date;
    name text;
begin
    -- Another scheduler is at it.
    if not pg_try_advisory_xact_lock(hashtext('makegood.payload_partitions')) then return; end if;
    for day in select d::date from generate_series(today, today + least(days, 366), interval '1 day') d loop
        name := 'payloads_' || to_char(day, 'YYYYMMDD');
        continue when to_regclass(name) is not null
            or exists (select from payloads_default d where d.received_on = day);
        begin
            execute format('create table %I partition of payloads for values from (%L) to (%L)
                with (toast_tuple_target = 8160)', name, day, day + 1);
        exception when check_violation then
            -- Its first payload came to the default partition just now: the others follow it.
            null;
        end;
        exit when exists (select from payloads_default d where d.received_on < today);
    end loop;
end $$;

-- The receipts of the last seconds whose stored proof is not what was posted. A function with its owner's rights, so
-- that whoever keeps the books need not be able to read proofs.
create function changed_proofs(since_seconds double precision) returns setof uuid
language sql stable security definer as $$
    select r.id from receipts r
    join payloads p on p.receipt_id = r.id and p.received_on = (r.received_at at time zone 'UTC')::date
    where r.received_at >= now() - make_interval(secs => since_seconds)
      and p.received_on >= ((now() - make_interval(secs => since_seconds)) at time zone 'UTC')::date
      and sha256(convert_to(p.body, 'UTF8')) <> r.payload_sha256
$$;

do $$
declare
    signature text;
begin
    foreach signature in array array['create_payload_partitions(integer)', 'changed_proofs(double precision)'] loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
