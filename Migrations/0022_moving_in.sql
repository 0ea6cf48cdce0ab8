-- serves: 1
-- Why: an app that moves in brings what the system before it has given (`makegood import`), and may run beside that
--   system for a while, deciding without giving (`mode: shadow`).
--   Imported purchases have a table of their own and no row in grants: a grant is what we gave, with its receipt, its
--   goods and its event, and every invariant says so. What somebody else gave has none of them; here it only answers.
-- Locks: access exclusive on apps for a moment. Cost: none worth naming.

-- What the system before this one has given. The purchase is already granted here: nothing is given for it again, under
-- whatever id Apple lists it. Written by the schema's owner alone, once; never changed.
create table imported_grants (
    transaction_id text primary key,
    app_id text not null,
    environment text not null,
    original_transaction_id text not null,
    user_id text not null,
    product_id text not null,
    purchased_at timestamptz not null,
    imported_at timestamptz not null default now()
);
-- Another id of the same purchase: of a restore, of a period on another device.
create index imported_grants_chain on imported_grants (original_transaction_id);
create index imported_grants_by_user on imported_grants (app_id, user_id);

-- What would have been given while the app was in shadow. The receipt that decided first may decide anew, nobody else.
create table shadow_decisions (
    transaction_id text primary key,
    purchase_key text not null,
    app_id text not null,
    environment text not null,
    original_transaction_id text not null,
    user_id text not null,
    product_id text not null,
    goods jsonb not null,
    binding_source text not null,
    order_id uuid,                              -- would have been bound by it
    token uuid,
    purchased_at timestamptz not null,
    receipt_id uuid not null,
    decided_at timestamptz not null default now()
);
create index shadow_decisions_of_purchase on shadow_decisions (purchase_key);
create index shadow_decisions_by_time on shadow_decisions (app_id, purchased_at, transaction_id);
create index shadow_decisions_chain on shadow_decisions (app_id, original_transaction_id);
create index shadow_decisions_of_order on shadow_decisions (order_id) where order_id is not null;
create index shadow_decisions_of_token on shadow_decisions (app_id, token) where token is not null;
create index shadow_decisions_by_user on shadow_decisions (app_id, user_id);

-- Since when the app's goods are given here: the default of grantFrom. Null: it has only been in shadow so far. What the
-- version before starts is live.
alter table apps add column live_since timestamptz;
update apps set live_since = first_started_at;
alter table apps alter column live_since set default now();

create view v_imported_grants as
select transaction_id, app_id, environment, original_transaction_id, user_id, product_id, purchased_at, imported_at
from imported_grants;

create view v_shadow_decisions as
select transaction_id, app_id, environment, original_transaction_id, user_id, product_id, goods, binding_source, order_id,
    purchased_at, receipt_id, decided_at
from shadow_decisions;

comment on view v_imported_grants is 'What the system before this one has given. A row: transaction.';
comment on view v_shadow_decisions is 'What would have been given while an app was in shadow. A row: transaction.';

-- As in 0016, with what was imported and what was decided in shadow.
create or replace function erase_clear_user(app text, clear_id text, tombstone text, actor text) returns bigint
language plpgsql security definer as $$
declare
    erased bigint;
    others bigint;
    imported bigint;
begin
    perform pg_advisory_xact_lock(hashtext('makegood.provisional'), hashtext(app));
    update receipts r set user_id = tombstone,
        details = case when r.settled_at is null then r.details - 'uid' - 'client' - 'installationId' else '{}' end,
        installation_id = null, target = case when r.settled_at is null then r.target end,
        attempt = r.attempt + (r.settled_at is null)::int,
        due_at = case when r.settled_at is null then now() end
    where r.app_id = app and r.user_id = clear_id;
    get diagnostics erased = row_count;
    update orders o set user_id = tombstone, details = '{}', installation_id = null, idempotency_key = null,
        debounce_key = null, target = case when o.transaction_id is null then o.target else '{}' end
    where o.app_id = app and o.user_id = clear_id;
    get diagnostics others = row_count;
    -- Not to the tombstone: who comes back uses the same tokens, and what he buys then is his again.
    delete from user_tokens t where t.app_id = app and t.user_id = clear_id;
    delete from granted_tokens t where t.app_id = app and t.user_id = clear_id;
    update ownerships w set user_id = tombstone where w.app_id = app and w.user_id = clear_id;
    update double_charges d set user_id = tombstone where d.app_id = app and d.user_id = clear_id;
    update client_reports c set user_id = tombstone, message = null, details = '{}'
    where c.app_id = app and c.user_id = clear_id;
    update grants g set user_id = tombstone where g.app_id = app and g.user_id = clear_id;
    update imported_grants i set user_id = tombstone where i.app_id = app and i.user_id = clear_id;
    get diagnostics imported = row_count;
    update shadow_decisions s set user_id = tombstone where s.app_id = app and s.user_id = clear_id;
    update provisional_grants p set user_id = tombstone where p.app_id = app and p.user_id = clear_id;
    update events e set user_id = tombstone, body = e.body - 'target' where e.app_id = app and e.user_id = clear_id;
    insert into audits (actor, action, details)
    values (actor, 'users.erase', jsonb_build_object('app', app, 'user', tombstone, 'receipts', erased));
    return erased + others + imported;
end $$;

do $$
begin
    execute format('alter function erase_clear_user(text, text, text, text) set search_path = %I, pg_temp',
        current_schema());
end $$;
