-- serves: 12
-- Why: an app that has lost its user posts a purchase with a placeholder in the user's place (`undefined`, `null`, `0`).
--   The post names nobody, and Makegood stores it all the same: an order, a token or a chain may name the owner, or the
--   user posts the purchase again. Such a receipt has neither a user nor an order. This migration lets receipts have
--   neither, and empties what stands beside the receipts without a user when the user of their purchases is erased.
-- Locks: receipts, for a moment: a constraint is dropped, and no row is read.
-- Cost: none.
-- Programs of the version before: they never write such a receipt. A worker of that version holds one as order_unknown,
--   so workers are replaced before ingest, as always.

alter table receipts drop constraint receipts_poster;
comment on column receipts.user_id is
    'Null: only an order names the user, or the post named a placeholder in the user''s place (declared.isOfPlaceholder).';

-- Empties what was sent beside purchases of a user in ended receipts that name no user. `makegood users erase` calls the
-- function after it has erased the user: `owner` is the user's name in grants since then. Returns how many receipts.
-- May be repeated.
create function empty_unnamed_posts(app text, owner text) returns bigint
language sql security definer as $$
    with emptied as (
        update receipts r set details = '{}', installation_id = null, target = null
        where r.id in (
            select o.receipt_id from grants g
            cross join lateral (
                select receipt_id from outcomes where transaction_id = g.transaction_id and state <> 'granted'
                union select g.receipt_id) o
            where g.app_id = app and g.user_id = owner)
          and r.app_id = app and r.user_id is null and r.settled_at is not null and r.details <> '{}'
        returning r.id)
    select count(*) from emptied
$$;

-- As at the end of 0001_receipts.sql.
do $$
begin
    execute format('alter function empty_unnamed_posts(text, text) set search_path = %I, pg_temp', current_schema());
end $$;
revoke execute on function empty_unnamed_posts(text, text) from public;
