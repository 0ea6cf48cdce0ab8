-- serves: 1
-- Why: big receipts wait in a lane of their own, `bulk`, so that players who show their past again do not stand before
--   purchases that were just made.
-- Locks: access exclusive on receipts for a moment. Cost: none worth naming: rows that are there obey the narrower rule,
--   so they are not read again.

alter table receipts
    drop constraint receipts_lane,
    add constraint receipts_lane check (lane in ('local', 'apple', 'bulk')) not valid;

-- As before, in every lane.
create or replace function end_halt(app text, service text, environment text, credential text) returns bigint
language sql security definer as $$
    with ended as (
        delete from halts
        where app_id = $1 and halts.service = $2 and halts.environment = $3 and halts.credential = $4
        returning app_id),
    freed as (
        update receipts set due_at = now()
        where lane in ('local', 'apple', 'bulk') and app_id in (select app_id from ended) and reason = 'halted'
            and due_at > now()
        returning id)
    select count(*) from freed
$$;

-- As before, in every lane.
create or replace function end_stale_halts(app text, credentials text[]) returns bigint
language sql security definer as $$
    with ended as (
        delete from halts where app_id = $1 and service <> '*' and credential <> all($2)
        returning app_id),
    freed as (
        update receipts set due_at = now()
        where lane in ('local', 'apple', 'bulk') and app_id in (select app_id from ended) and reason = 'halted'
            and due_at > now()
        returning id)
    select count(*) from freed
$$;

-- The schema of this installation, and temporary tables last: they would come first otherwise.
do $$
begin
    execute format('alter function end_halt(text, text, text, text) set search_path = %I, pg_temp', current_schema());
    execute format('alter function end_stale_halts(text, text[]) set search_path = %I, pg_temp', current_schema());
end $$;
