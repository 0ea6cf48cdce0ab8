-- serves: 1
-- Why: an order that its user asked for after its purchase was given without one has ended with that grant, which names no order
--   (no grant is changed). `v_orders` showed it as open, and erasing its user kept where in the game he plays.
-- Locks: access exclusive on the view for a moment. Cost: none.

create or replace view v_orders as
select o.id, o.app_id, o.user_id, coalesce(g.product_id, o.product_id) as product_id, o.item, o.quantity, o.promotion,
    o.channel, o.environment, o.goods, o.bonuses, o.price_milliunits, o.currency, o.placed_at, o.pay_by, o.reserved_for,
    g.transaction_id, g.granted_at as bound_at
-- Looked up one by one: never all grants for the orders of a day. Whose the made-up grant is: as GET /v1/orders/{id} has it.
from orders o left join lateral (
    select transaction_id, product_id, granted_at from grants where order_id = o.id
    union all
    (select made_up.transaction_id, made_up.product_id, made_up.granted_at
        from (select transaction_id, app_id, user_id, product_id, binding_source, granted_at, order_id
            from grants where transaction_id = o.reserved_for offset 0) made_up
        where made_up.order_id is null and made_up.binding_source <> 'shared' and made_up.app_id = o.app_id
            and (made_up.user_id = o.user_id
                or coalesce((select into_user_id from merges where app_id = o.app_id and user_id = made_up.user_id),
                    made_up.user_id)
                = coalesce((select into_user_id from merges where app_id = o.app_id and user_id = o.user_id), o.user_id)))
    limit 1) g on true;

-- As in 0036; nothing will be delivered by an order that has ended.
create or replace function erase_clear_user(app text, clear_id text, tombstone text, actor text) returns bigint
language plpgsql security definer as $$
declare
    erased bigint;
    others bigint;
    imported bigint;
    bonuses bigint;
    decisions bigint;
begin
    perform pg_advisory_xact_lock(hashtext('makegood.provisional'), hashtext(app));
    -- Before the receipts, as whoever says a word locks them.
    delete from support_decisions d where d.app_id = app and d.user_id = clear_id;
    get diagnostics decisions = row_count;
    update receipts r set user_id = tombstone,
        details = case when r.settled_at is null then r.details - 'uid' - 'client' - 'installationId' else '{}' end,
        installation_id = null, target = case when r.settled_at is null then r.target end,
        attempt = r.attempt + (r.settled_at is null)::int,
        due_at = case when r.settled_at is null then now() end
    where r.app_id = app and r.user_id = clear_id;
    get diagnostics erased = row_count;
    update orders o set user_id = tombstone, details = '{}', installation_id = null, idempotency_key = null,
        debounce_key = null, target = case when (select true from grants g where g.order_id = o.id) then '{}'
            when (select true from grants g where g.transaction_id = o.reserved_for) then '{}' else o.target end
    where o.app_id = app and o.user_id = clear_id;
    get diagnostics others = row_count;
    -- Not to the tombstone: who comes back uses the same tokens, and what he buys then is his again.
    delete from user_tokens t where t.app_id = app and t.user_id = clear_id;
    delete from granted_tokens t where t.app_id = app and t.user_id = clear_id;
    update audits a set details = a.details || jsonb_build_object('receiver', tombstone)
    where a.action = 'support.give' and a.details ->> 'app' = app and a.details ->> 'receiver' = clear_id;
    update ownerships w set user_id = tombstone where w.app_id = app and w.user_id = clear_id;
    update double_charges d set user_id = tombstone where d.app_id = app and d.user_id = clear_id;
    update client_reports c set user_id = tombstone, message = null, details = '{}'
    where c.app_id = app and c.user_id = clear_id;
    update given_bonuses b set user_id = tombstone, freed_at = coalesce(b.freed_at, now())
    where b.app_id = app and b.user_id = clear_id;
    get diagnostics bonuses = row_count;
    update grants g set user_id = tombstone where g.app_id = app and g.user_id = clear_id;
    update imported_grants i set user_id = tombstone where i.app_id = app and i.user_id = clear_id;
    get diagnostics imported = row_count;
    update shadow_decisions s set user_id = tombstone where s.app_id = app and s.user_id = clear_id;
    update provisional_grants p set user_id = tombstone where p.app_id = app and p.user_id = clear_id;
    update events e set user_id = tombstone, body = e.body - 'target' where e.app_id = app and e.user_id = clear_id;
    insert into audits (actor, action, details)
    values (actor, 'users.erase', jsonb_build_object('app', app, 'user', tombstone, 'receipts', erased));
    return erased + others + imported + bonuses + decisions;
end $$;

-- As above.
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
            target = case when (select true from grants g where g.order_id = o.id) then '{}'
                when (select true from grants g where g.transaction_id = o.reserved_for) then '{}' else o.target end
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
