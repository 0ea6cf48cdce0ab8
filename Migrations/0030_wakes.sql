-- serves: 12
-- Why: a worker may have read who owns a purchase before the grant, revocation or move that wakes a receipt, and may
--   write its verdict afterwards: then the receipt would wait a day for an owner who is known. A wake therefore begins a
--   new attempt, and a verdict on an earlier attempt writes nothing. A wake is no try, and must not lead to parking.
-- Locks: receipts, for a moment, for a column with a default that rewrites no row.
-- Cost: 4 bytes for each new row of receipts.
-- Programs of the version before: they count a wake of theirs as a try.

alter table receipts add column wakes integer not null default 0;
comment on column receipts.wakes is
    'How often news about the owner of a purchase made the receipt due. Each began a new attempt, and was no try.';

-- As in 0017_notifications.sql, but for the attempt, and for a receipt that is due already: a worker may be judging it.
create or replace function wake_unposted(receipt uuid, app text) returns boolean language plpgsql as $$
begin
    -- By the id alone: the index of due rows would be walked.
    perform from (
        select app_id, settled_at from receipts where id = receipt for no key update skip locked limit 1) r
    where r.app_id = app and r.settled_at is null;
    if found then
        update receipts set due_at = least(due_at, now()), attempt = attempt + 1, wakes = wakes + 1
            where id = receipt;
    end if;
    return found;
end $$;

-- As at the end of 0001_receipts.sql: a function that is replaced loses its settings.
do $$
begin
    execute format('alter function wake_unposted(uuid, text) set search_path = %I, pg_temp', current_schema());
end $$;
