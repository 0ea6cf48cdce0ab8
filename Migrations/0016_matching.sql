-- serves: 1
-- Why: each grant says by which order it was made, each decision why, and each chain whose it has been since when; a
--   purchase that may have been charged twice is told to support (P6).
-- Locks: access exclusive on grants, outcomes and receipts for a moment at the end: columns without a default rewrite
--   nothing. Cost: before that transactions are read once, for the tokens they carry, while everything goes on.

-- Whose a chain (one originalTransactionId) is, from which purchase on, by which row of the table. The latest purchase
-- says whose it is now. Never changed: a chain that moves has one row more.
create table ownerships (
    app_id text not null,
    environment text not null,
    original_transaction_id text not null,
    purchased_at timestamptz not null,
    transaction_id text not null,
    user_id text not null,
    binding_source text not null,
    decided_at timestamptz not null default now(),
    primary key (app_id, environment, original_transaction_id, purchased_at, transaction_id)
);
create index ownerships_by_user on ownerships (app_id, user_id);

-- Whom purchases with a token were given to, for tokens that are no order's and that nobody registered.
create table granted_tokens (
    app_id text not null,
    token uuid not null,
    user_id text not null,
    granted_at timestamptz not null default now(),
    primary key (app_id, token, user_id)
);
create index granted_tokens_by_user on granted_tokens (app_id, user_id);
insert into granted_tokens (app_id, token, user_id)
select distinct g.app_id, t.app_account_token, g.user_id
from transactions t join grants g on g.transaction_id = t.transaction_id
where t.app_account_token is not null and g.binding_source <> 'shared';

-- Purchases that may be one purchase charged twice. All are given; a person looks.
create table double_charges (
    transaction_id text primary key,            -- the later of the two
    app_id text not null,
    user_id text not null,
    product_id text not null,
    first_transaction_id text,                  -- null: the order knows it
    order_id uuid,                              -- both were bought on this order; null: only shortly after each other
    flagged_at timestamptz not null default now()
);
create index double_charges_by_user on double_charges (app_id, user_id);

alter table grants add column order_id uuid;            -- bound by it; null: a make-up order, which has no other record
alter table outcomes add column reasons text[];         -- of the decision; null: nothing but the proof spoke for anybody
-- Where it was posted from, so that an order of the same device is found (design.md 5.1, row 6), and where goods without
-- an order go.
alter table receipts add column installation_id text, add column target jsonb;

create or replace view v_grants as
select transaction_id, app_id, environment, user_id, product_id, quantity, goods, binding_source, receipt_id, granted_at,
    order_id
from grants;

create view v_double_charges as
select d.transaction_id, d.app_id, d.user_id, d.product_id,
    coalesce(d.first_transaction_id, o.transaction_id) as first_transaction_id, d.order_id, d.flagged_at
from double_charges d left join orders o on o.id = d.order_id;

create view v_ownerships as
select app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id, binding_source, decided_at
from ownerships;

-- As in 0011, with every table since that names users, and one at a time with those who take places on trust (0014).
-- How many receipts and orders.
create or replace function erase_clear_user(app text, clear_id text, tombstone text, actor text) returns bigint
language plpgsql security definer as $$
declare
    erased bigint;
    others bigint;
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
    update provisional_grants p set user_id = tombstone where p.app_id = app and p.user_id = clear_id;
    update events e set user_id = tombstone, body = e.body - 'target' where e.app_id = app and e.user_id = clear_id;
    insert into audits (actor, action, details)
    values (actor, 'users.erase', jsonb_build_object('app', app, 'user', tombstone, 'receipts', erased));
    return erased + others;
end $$;

-- As in 0004; what was sent beside orders and in reports goes as well, and where it was posted from. An order that waits
-- keeps where its goods go.
create or replace function erase_protected_user(app text, key text, actor text) returns bigint
language sql security definer as $$
    with erased as (
        update users set sealed = null, key_id = null, erased_at = coalesce(erased_at, now())
        where app_id = app and user_key = key
        returning user_key),
    emptied as (
        update receipts set details = '{}', installation_id = null, target = null
        where app_id = app and user_id in (select user_key from erased) and settled_at is not null
          and (details <> '{}' or installation_id is not null or target is not null)
        returning id),
    orders_emptied as (
        update orders o set details = '{}', installation_id = null, idempotency_key = null,
            target = case when o.transaction_id is null then o.target else '{}' end
        where o.app_id = app and o.user_id in (select user_key from erased)),
    events_emptied as (
        update events e set body = e.body - 'target'
        where e.app_id = app and e.user_id in (select user_key from erased) and e.body ? 'target'),
    reports_emptied as (
        update client_reports r set message = null, details = '{}'
        where r.app_id = app and r.user_id in (select user_key from erased)),
    audited as (
        insert into audits (actor, action, details)
        select actor, 'users.erase',
            jsonb_build_object('app', app, 'user', user_key, 'receipts', (select count(*) from emptied))
        from erased)
    select count(*) from erased
$$;

do $$
begin
    execute format('alter function erase_protected_user(text, text, text) set search_path = %I, pg_temp',
        current_schema());
    execute format('alter function erase_clear_user(text, text, text, text) set search_path = %I, pg_temp',
        current_schema());
end $$;
