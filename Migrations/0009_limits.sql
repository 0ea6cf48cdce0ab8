-- Why: an operator limits what is given before Apple confirms it (while Apple cannot be reached, or by a post alone),
--   what is given in the sandbox, what one user may buy of an item, and how often bare ids are asked about. If one
--   statement reads a limit and another one uses it up, purchases that come at once exceed it: with a limit of two, a
--   batch of two hundred would give two hundred. So each thing that a limit counts has a place of its own, a unique
--   row, and the transaction that gives the thing takes the place.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

-- Purchases that were verified here and given while Apple could not be reached, until Apple has confirmed or denied
-- them. A row is a place within the limits of a day. The place is taken before anything is given, and the verdict that
-- grants the purchase writes `granted_at`. No row is ever deleted.
create table provisional_grants (
    transaction_id text collate "C" primary key,
    receipt_id uuid not null,
    app_id text collate "C" not null,
    user_id text collate "C" not null,
    product_id text collate "C" not null,
    event_id uuid not null,                     -- of the event about Apple's answer: confirmed, until Apple denies it
    taken_at timestamptz not null default now(),
    granted_at timestamptz,                     -- null: nothing was given, the place only counts
    confirmed_at timestamptz,
    revoked_at timestamptz,                     -- Apple denied it; the grant stays, and an event says it is void
    constraint provisional_grants_order check (granted_at is not null or confirmed_at is null and revoked_at is null),
    constraint provisional_grants_ending check (confirmed_at is null or revoked_at is null)
);
create index provisional_grants_by_user on provisional_grants (app_id, user_id, taken_at);
create index provisional_grants_by_app on provisional_grants (app_id, taken_at);
create index provisional_grants_granted_at on provisional_grants using brin (granted_at) with (autosummarize = on);
create index provisional_grants_unconfirmed on provisional_grants (app_id, granted_at)
    where granted_at is not null and confirmed_at is null and revoked_at is null;
-- Finds what a receipt was given on trust. Nothing ends a receipt before Apple's answer about that.
create index provisional_grants_by_receipt on provisional_grants (receipt_id);

-- Frees the bonus of a purchase that is taken back: the user may have the bonus again.
create function free_bonuses_taken_back() returns trigger language plpgsql security definer as $$
begin
    update given_bonuses set freed_at = now() where transaction_id = new.transaction_id and freed_at is null;
    return null;
end $$;
create trigger provisional_grants_free_bonuses after update of revoked_at on provisional_grants
    for each row when (old.revoked_at is null and new.revoked_at is not null)
    execute function free_bonuses_taken_back();

-- Takes a place for one purchase of one receipt. Returns false where the limit of the receipt's user or of the app is
-- reached for the day (UTC), where another receipt has the purchase's place, or where the purchase is granted already,
-- also under another id. A receipt keeps its place for ever. The place belongs to the receipt's user, even if the user
-- is erased at the same moment.
--
-- One call at a time for each app, so the limits hold however many workers ask at once.
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
    -- Read under the lock. An erasure takes the same lock, so either this function sees the tombstone, or the erasure
    -- sees this place.
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
    -- Granted before: nothing is to be given on trust.
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

-- One row for each thing that a limit counts.
create table limit_places (
    app_id text collate "C" not null,
    limit_name text collate "C" not null,
    holder text collate "C" not null,           -- SHA-256 of the user; Apple's customer; a receipt; '' = the app
    day date not null,                          -- UTC; -infinity: for ever
    n integer not null,
    taken_for text collate "C" not null,        -- the purchase's key; of a customer: SHA-256 of the user
    taken_at timestamptz not null default now(),
    primary key (app_id, limit_name, holder, day, n),
    constraint limit_places_once unique (app_id, limit_name, holder, day, taken_for),
    constraint limit_places_n check (n > 0)
);
create index limit_places_by_day on limit_places (day);
create index limit_places_of_answers on limit_places (taken_at)
    where limit_name = 'bare_id_answers' and day = '-infinity' and n = 1;

-- Takes a place; returns false if there is none. There are no gaps, so n is the count: a statement that takes n has
-- seen 1 to n - 1, committed or its own. If another statement has taken n, the function waits for that statement and
-- looks again: each query of a volatile function has a snapshot of its own. There is no lock but the row's. A purpose
-- that has a place already keeps it.
--
-- An Apple customer's first place also enters the users that the customer's purchases of production went to before.
-- Sandbox purchases are left out: testers on one device would use the limit up.
--
-- The caller names the holder of an item's limit as ["user", "product", "item", whether it is the product's default],
-- and the function stores SHA-256 of the first three. A month's place has the month's last day as its day, so that
-- nothing drops it before. A purchase beyond such a limit is paid, and so it is granted: the grant finds no place and
-- records that.
create function take_limit_place(app text, name text, owner text, on_day date, purpose text, places integer)
returns boolean language plpgsql as $$
declare
    taken integer;
    bought jsonb;
    since timestamptz;
begin
    if name in ('item_day', 'item_month', 'item_ever') then
        bought := owner::jsonb;
        owner := encode(sha256(convert_to((bought - 3)::text, 'UTF8')), 'hex');
        since := case when name = 'item_month' then date_trunc('month', on_day::timestamp) else on_day::timestamp end
            at time zone 'UTC';
    end if;
    loop
        perform from limit_places p
            where p.app_id = app and p.limit_name = name and p.holder = owner and p.day = on_day and p.taken_for = purpose;
        if found then
            return true;
        end if;
        select p.n into taken from limit_places p
            where p.app_id = app and p.limit_name = name and p.holder = owner and p.day = on_day order by p.n desc limit 1;
        if taken is null and name = 'make_up_customer' then
            -- The users to whom this customer's purchases went before there were places; once for each customer.
            insert into limit_places (app_id, limit_name, holder, day, n, taken_for)
                select app, name, owner, on_day, row_number() over (order by u.usr), u.usr
                from (select distinct encode(sha256(convert_to(g.user_id, 'UTF8')), 'hex') as usr
                    from (select user_id from grants
                        where customer_id = owner and app_id = app and environment = 'Production' limit 1000) g) u
                on conflict do nothing;
            if found then
                continue;
            end if;
        end if;
        if taken is null and bought is not null then
            -- What the user was given before there were places, also under merged ids; once for each period.
            insert into limit_places (app_id, limit_name, holder, day, n, taken_for)
                select app, name, owner, on_day, row_number() over (order by u.given_at, u.unit_of), u.unit_of
                from (
                    select g.given_at, g.purchase_key || case when unit > 1 then ' ' || unit else '' end as unit_of
                    from (
                        select user_id from (values (bought ->> 0)) as own (user_id)
                        union all
                        select m.user_id from merges m where m.app_id = app and m.into_user_id = bought ->> 0) person
                    cross join lateral (
                        select granted_at as given_at, purchase_key, quantity from grants
                        where app_id = app and user_id = person.user_id and product_id = bought ->> 1
                            and binding_source <> 'shared'
                            and coalesce(item, case when (bought ->> 3)::boolean then bought ->> 2 end) = bought ->> 2
                            and granted_at >= since
                        union all
                        select purchased_at, transaction_id, 1 from imported_grants
                        where app_id = app and user_id = person.user_id and product_id = bought ->> 1
                            and (bought ->> 3)::boolean and purchased_at >= since) g
                    cross join generate_series(1, g.quantity) as unit
                    order by 1, 2 limit places) u
                on conflict do nothing;
            if found then
                continue;
            end if;
        end if;
        if coalesce(taken, 0) >= places then
            return false;
        end if;
        insert into limit_places (app_id, limit_name, holder, day, n, taken_for)
            values (app, name, owner, on_day, coalesce(taken, 0) + 1, purpose) on conflict do nothing;
        if found then
            return true;
        end if;
    end loop;
end $$;

-- Takes a place for a question about a bare id. Only ids that lead nowhere count, which is known only later. So n only
-- keeps concurrent callers apart: a caller whose n is taken counts again. An id that is stored already needs no place.
create function take_question_place(app text, owner text, receipt uuid, places integer) returns boolean
language plpgsql as $$
declare
    today date := (now() at time zone 'UTC')::date;
    taken integer;
    fruitless integer;
begin
    loop
        perform from receipts r where r.id = receipt;
        if found then
            return true;
        end if;
        perform from limit_places p
            where p.app_id = app and p.limit_name = 'questions' and p.holder = owner and p.day = today
                and p.taken_for = receipt::text;
        if found then
            return true;
        end if;
        select coalesce(max(p.n), 0), count(*) filter (where r.state is null or r.state in ('received', 'parked', 'rejected')
                or r.reason in ('possession_missing', 'owned_by_another_user'))
            into taken, fruitless
            from limit_places p
            left join lateral (select state, reason from receipts where id = p.taken_for::uuid offset 0) r on true
            where p.app_id = app and p.limit_name = 'questions' and p.holder = owner and p.day = today;
        if fruitless >= places then
            return false;
        end if;
        insert into limit_places (app_id, limit_name, holder, day, n, taken_for)
            values (app, 'questions', owner, today, taken + 1, receipt::text) on conflict do nothing;
        if found then
            return true;
        end if;
    end loop;
end $$;

-- Drops places of past days, and Apple's answers about bare ids of which the last is thirty days old, a thousand of
-- each at a time. The answers only limit calls to Apple: a receipt whose answers were dropped may cause three more
-- calls, one each time that a post or a person makes it due again. All answers about an id are dropped together:
-- otherwise there would be gaps, and n is the count.
create function drop_limit_places() returns bigint language plpgsql security definer as $$
declare
    dropped bigint;
    forgotten bigint;
begin
    delete from limit_places where ctid = any(array(
        select ctid from limit_places
        where day > '-infinity' and day < (now() at time zone 'UTC')::date - 2 order by day limit 1000));
    get diagnostics dropped = row_count;
    delete from limit_places p
        using (
            select f.app_id, f.holder from limit_places f
            where f.limit_name = 'bare_id_answers' and f.day = '-infinity' and f.n = 1
                and f.taken_at < now() - interval '30 days'
                and not exists (select from limit_places l
                    where l.app_id = f.app_id and l.limit_name = 'bare_id_answers' and l.holder = f.holder and l.day = '-infinity'
                        and l.taken_at >= now() - interval '30 days')
            order by f.taken_at limit 1000) f
        where p.app_id = f.app_id and p.limit_name = 'bare_id_answers' and p.holder = f.holder and p.day = '-infinity';
    get diagnostics forgotten = row_count;
    return dropped + forgotten;
end $$;

-- As at the end of 0001_receipts.sql.
do $$
declare
    signature text;
begin
    foreach signature in array array[
        'free_bonuses_taken_back()', 'take_provisional_place(text, text, uuid, text, uuid, integer, integer)',
        'drop_limit_places()']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
revoke execute on function take_limit_place(text, text, text, date, text, integer),
    take_question_place(text, text, uuid, integer) from public;
