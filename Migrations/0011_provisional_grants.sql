-- serves: 1
-- Why: while Apple cannot be reached, a purchase that was verified here may be given on trust, within limits that the
--   operator sets (B10). Each such grant is marked here, until Apple has confirmed it or taken it back.
-- Locks: none worth naming, everything is new but one function. Cost: none.

-- A place within the limits of a day, taken before anything is given; the verdict that gives says when. Never deleted.
create table provisional_grants (
    transaction_id text primary key,
    receipt_id uuid not null,
    app_id text not null,
    user_id text not null,
    product_id text not null,
    event_id uuid not null,                     -- what tells of Apple's word: confirmed, until it is the other one
    taken_at timestamptz not null default now(),
    granted_at timestamptz,                     -- null: nothing was given, the place is only counted
    confirmed_at timestamptz,
    revoked_at timestamptz,                     -- Apple denies it; the grant stays where it is, and is told to be void
    constraint provisional_grants_order check (granted_at is not null or confirmed_at is null and revoked_at is null),
    constraint provisional_grants_ending check (confirmed_at is null or revoked_at is null)
);
create index provisional_grants_by_user on provisional_grants (app_id, user_id, taken_at);
create index provisional_grants_by_app on provisional_grants (app_id, taken_at);
create index provisional_grants_granted_at on provisional_grants using brin (granted_at) with (autosummarize = on);
create index provisional_grants_unconfirmed on provisional_grants (app_id, granted_at)
    where granted_at is not null and confirmed_at is null and revoked_at is null;

-- Takes a place for one purchase of one receipt, or says that there is none: the day's limit of the user or of the app
-- (days by UTC) is reached, or another receipt has the purchase's place. The same receipt has its place for ever.
--
-- One at a time for each app, so the limits hold however many workers ask at once.
create function take_provisional_place(
    app text, usr text, purchase text, receipt uuid, product text, confirmation uuid, per_user integer,
    per_app integer)
returns boolean language plpgsql as $$
declare
    today timestamptz := date_trunc('day', now() at time zone 'UTC') at time zone 'UTC';
    holder uuid;
begin
    perform pg_advisory_xact_lock(hashtext('makegood.provisional'), hashtext(app));
    select p.receipt_id into holder from provisional_grants p where p.transaction_id = purchase;
    if found then
        return holder = receipt;
    end if;
    -- Granted before: there is nothing to give.
    if exists (select from grants g where g.transaction_id = purchase) then
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

-- What was given on trust, and what Apple said of it since.
create view v_provisional as
select p.transaction_id, p.app_id, p.product_id, p.user_id, p.receipt_id, g.goods, p.granted_at,
    case when p.confirmed_at is not null then 'confirmed' when p.revoked_at is not null then 'revoked'
        else 'unconfirmed' end as state,
    coalesce(p.confirmed_at, p.revoked_at) as answered_at
from provisional_grants p join grants g on g.transaction_id = p.transaction_id
where p.granted_at is not null;

-- As in 0004, with the new table.
create or replace function erase_clear_user(app text, clear_id text, tombstone text, actor text) returns bigint
language plpgsql security definer as $$
declare
    erased bigint;
begin
    update receipts r set user_id = tombstone,
        details = case when r.settled_at is null then r.details - 'uid' - 'client' else '{}' end,
        attempt = r.attempt + (r.settled_at is null)::int,
        due_at = case when r.settled_at is null then now() end
    where r.app_id = app and r.user_id = clear_id;
    get diagnostics erased = row_count;
    update orders o set user_id = tombstone where o.app_id = app and o.user_id = clear_id;
    update grants g set user_id = tombstone where g.app_id = app and g.user_id = clear_id;
    update provisional_grants p set user_id = tombstone where p.app_id = app and p.user_id = clear_id;
    update events e set user_id = tombstone where e.app_id = app and e.user_id = clear_id;
    insert into audits (actor, action, details)
    values (actor, 'users.erase', jsonb_build_object('app', app, 'user', tombstone, 'receipts', erased));
    return erased;
end $$;

do $$
begin
    execute format('alter function erase_clear_user(text, text, text, text) set search_path = %I, pg_temp',
        current_schema());
    execute format('alter function take_provisional_place(text, text, text, uuid, text, uuid, integer, integer)
        set search_path = %I, pg_temp', current_schema());
    revoke execute on function take_provisional_place(text, text, text, uuid, text, uuid, integer, integer)
        from public;
end $$;
