-- serves: 12
-- Why: a worker may have read who owns a purchase before the grant, revocation or move that wakes a receipt, and may
--   write its verdict afterwards: then the receipt would wait a day for an owner who is known. A wake therefore begins a
--   new attempt, and a verdict on an earlier attempt writes nothing.
-- Locks: none.
-- Cost: none.

-- As in 0017_notifications.sql, but for the attempt, and for a receipt that is due already: a worker may be judging it.
create or replace function wake_unposted(receipt uuid, app text) returns boolean language plpgsql as $$
begin
    -- By the id alone: the index of due rows would be walked.
    perform from (
        select app_id, settled_at from receipts where id = receipt for no key update skip locked limit 1) r
    where r.app_id = app and r.settled_at is null;
    if found then
        update receipts set due_at = least(due_at, now()), attempt = attempt + 1 where id = receipt;
    end if;
    return found;
end $$;

-- As at the end of 0001_receipts.sql: a function that is replaced loses its settings.
do $$
begin
    execute format('alter function wake_unposted(uuid, text) set search_path = %I, pg_temp', current_schema());
end $$;
