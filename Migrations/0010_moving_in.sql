-- Why: an app that moves in brings what the former system has given (`makegood import`), and may run beside that system
--   for a while, deciding without giving (`mode: shadow`). Imported purchases have a table of their own and no row in
--   grants: a grant is a purchase that was given here, with its receipt, its goods and its event, and the invariants
--   check that. A purchase that another system gave has none of them: its row only says that it was given.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

-- What the former system has given. The purchase counts as granted here: nothing is given for it again, under whatever
-- id Apple lists it. Only the schema's owner writes a row, once, and no row is ever changed.
create table imported_grants (
    transaction_id text collate "C" primary key,
    app_id text collate "C" not null,
    environment text collate "C" not null,
    original_transaction_id text collate "C" not null,
    user_id text collate "C" not null,
    product_id text collate "C" not null,
    purchased_at timestamptz not null,
    imported_at timestamptz not null default now()
);
-- Finds an imported purchase under another id: of a restore, or of a period on another device.
create index imported_grants_chain on imported_grants (original_transaction_id);
create index imported_grants_by_user on imported_grants (app_id, user_id);

-- Refuses a grant of a purchase that was imported after the transaction had looked: the worker repeats its batch, and
-- finds the import. Each statement that grants checks once whether anything was imported, and only then checks each of
-- its grants.
create function refuse_imported_purchases() returns trigger language plpgsql security definer as $$
begin
    perform from imported_grants limit 1;
    if not found then return null; end if;
    perform from written w cross join lateral (
        (select from imported_grants where transaction_id = w.transaction_id)
        union all
        -- The same purchase under another id, as all other statements look up imported grants.
        (select from transactions t cross join lateral (
            select purchased_at from imported_grants
            where original_transaction_id = t.original_transaction_id offset 0) i
        where t.transaction_id = w.transaction_id
            and (w.purchase_key = w.environment || '/purchase/' || t.original_transaction_id
                or date_trunc('second', i.purchased_at) = date_trunc('second', t.purchased_at)))
        limit 1) i
    limit 1;
    if found then
        raise exception 'a purchase was given by the system before this one'
            using errcode = 'serialization_failure';
    end if;
    return null;
end $$;
-- Never a sequential scan, whatever the statistics say: the table is empty until the day it holds millions.
alter function refuse_imported_purchases() set enable_seqscan = off;
create trigger grants_are_not_imported after insert on grants
    referencing new table as written for each statement execute function refuse_imported_purchases();

-- What would have been given while the app was in shadow. The receipt that decided a purchase first may decide it anew,
-- and no other.
create table shadow_decisions (
    transaction_id text collate "C" primary key,
    purchase_key text collate "C" not null,
    app_id text collate "C" not null,
    environment text collate "C" not null,
    original_transaction_id text collate "C" not null,
    user_id text collate "C" not null,
    product_id text collate "C" not null,
    goods jsonb not null,
    binding_source text collate "C" not null,
    order_id uuid,                              -- would have been bound by the purchase
    token uuid,
    purchased_at timestamptz not null,
    receipt_id uuid not null,
    decided_at timestamptz not null default now()
);
-- Finds a purchase. Its key comes first, not the app: a worker keeps its plans, and while an app moves in they are
-- plans of an empty table, in which an index by app looks as good as one that names the purchase. Each look-up would
-- then read all decisions of the app.
create index shadow_decisions_of_purchase on shadow_decisions (purchase_key);
create index shadow_decisions_chain on shadow_decisions (original_transaction_id);
create index shadow_decisions_of_order on shadow_decisions (order_id) where order_id is not null;
create index shadow_decisions_of_token on shadow_decisions (token) where token is not null;
create index shadow_decisions_by_time on shadow_decisions (app_id, purchased_at, transaction_id);
create index shadow_decisions_by_user on shadow_decisions (app_id, user_id);

-- As at the end of 0001_receipts.sql.
do $$
begin
    execute format('alter function refuse_imported_purchases() set search_path = %I, pg_temp', current_schema());
end $$;
revoke execute on function refuse_imported_purchases() from public;
