-- serves: 1
-- Why: a place within the limits of trust is its receipt's user's, also where that user is erased at the same moment; a
--   purchase that is granted under another id needs none; and nothing ends a receipt before Apple's word on what was given
--   by it, so that is looked for by receipt. A walk through a customer's history says who reads: whoever lost it stores
--   nothing over the next reader.
-- Locks: provisional_grants and history_walks for a moment, to add an index and a column. Cost: none worth naming.

create index provisional_grants_by_receipt on provisional_grants (receipt_id);

alter table history_walks add column reader bigint not null default 1;     -- counts the claims: whose page may be stored

-- Takes a place for one purchase of one receipt, or says that there is none: the day's limit of the receipt's user or of
-- the app (days by UTC) is reached, another receipt has the purchase's place, or it is granted. The same receipt has its
-- place for ever. The one with the user in its arguments is for workers of the version before.
--
-- One at a time for each app, so the limits hold however many workers ask at once.
create function take_provisional_place(
    purchase text, granted_key text, receipt uuid, product text, confirmation uuid, per_user integer, per_app integer)
returns boolean language plpgsql as $$
declare
    today timestamptz := date_trunc('day', now() at time zone 'UTC') at time zone 'UTC';
    app text;
    usr text;
    holder uuid;
begin
    select r.app_id into app from receipts r where r.id = receipt;
    perform pg_advisory_xact_lock(hashtext('makegood.provisional'), hashtext(app));
    -- Only now: who erases the user has the lock as well, so we see the tombstone, or he sees our place.
    select coalesce(r.user_id, (
            select o.user_id from orders o where o.id::text = lower(r.order_id) and o.app_id = r.app_id))
        into usr from receipts r where r.id = receipt;
    if usr is null then
        return false;
    end if;
    select p.receipt_id into holder from provisional_grants p where p.transaction_id = purchase;
    if found then
        return holder = receipt;
    end if;
    -- Granted before: there is nothing to give.
    if exists (select from grants g where g.transaction_id = purchase)
        or exists (select from grants g where g.purchase_key = granted_key) then
        return false;
    end if;
    if (select count(*) from provisional_grants p
            where p.app_id = app and p.user_id = usr and p.taken_at >= today) >= per_user
        or (select count(*) from provisional_grants p where p.app_id = app and p.taken_at >= today) >= per_app then
        return false;
    end if;
    insert into provisional_grants (transaction_id, receipt_id, app_id, user_id, product_id, event_id)
    values (purchase, receipt, app, usr, product, confirmation);
    return true;
end $$;

do $$
begin
    execute format('alter function take_provisional_place(text, text, uuid, text, uuid, integer, integer)
        set search_path = %I, pg_temp', current_schema());
    revoke execute on function take_provisional_place(text, text, uuid, text, uuid, integer, integer) from public;
end $$;
