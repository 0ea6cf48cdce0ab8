-- serves: 1
-- Why: services work with roles that own nothing and delete nothing (makegood roles). What needs the owner's rights is
-- a function that does this one thing, with a fixed search_path, so that no caller can slip another table under it.
-- Locks: none worth naming, only functions change. Cost: none.

-- Ends one halt and makes the rows that waited for it due; how many.
create function end_halt(app text, service text, environment text, credential text) returns bigint
language sql security definer as $$
    with ended as (
        delete from halts
        where app_id = $1 and halts.service = $2 and halts.environment = $3 and halts.credential = $4
        returning app_id),
    freed as (
        update receipts set due_at = now()
        where lane in ('local', 'apple') and app_id in (select app_id from ended) and reason = 'halted'
            and due_at > now()
        returning id)
    select count(*) from freed
$$;

-- Ends the halts of an app whose credential is none of these, pauses excepted, and makes the rows that waited due.
create function end_stale_halts(app text, credentials text[]) returns bigint
language sql security definer as $$
    with ended as (
        delete from halts where app_id = $1 and service <> '*' and credential <> all($2)
        returning app_id),
    freed as (
        update receipts set due_at = now()
        where lane in ('local', 'apple') and app_id in (select app_id from ended) and reason = 'halted'
            and due_at > now()
        returning id)
    select count(*) from freed
$$;

-- As before, with the owner's rights: the scheduler creates no tables but these, and no more than a year of them.
create or replace function create_payload_partitions(days integer) returns void
language plpgsql security definer as $$
declare
    day date;
begin
    perform pg_advisory_xact_lock(hashtext('makegood.payloads'));
    for day in select d::date from generate_series(
        (now() at time zone 'UTC')::date + 1, (now() at time zone 'UTC')::date + least(days, 366), interval '1 day') d
    loop
        if to_regclass('payloads_' || to_char(day, 'YYYYMMDD')) is null then
            execute format('create table %I partition of payloads for values from (%L) to (%L)',
                'payloads_' || to_char(day, 'YYYYMMDD'), day, day + 1);
        end if;
    end loop;
end $$;

-- The schema of this installation, and temporary tables last: they would come first otherwise.
do $$
begin
    execute format('alter function end_halt(text, text, text, text) set search_path = %I, pg_temp', current_schema());
    execute format('alter function end_stale_halts(text, text[]) set search_path = %I, pg_temp', current_schema());
    execute format('alter function create_payload_partitions(integer) set search_path = %I, pg_temp',
        current_schema());
end $$;

-- Functions may be executed by everybody unless it is said otherwise.
revoke execute on function end_halt(text, text, text, text) from public;
revoke execute on function end_stale_halts(text, text[]) from public;
revoke execute on function create_payload_partitions(integer) from public;
