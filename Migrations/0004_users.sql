-- serves: 1
-- Why: with `users.protect` every table holds a keyed hash instead of the user's id; the id lies encrypted here, for
--   delivery and support alone, and can be erased without touching what was bought.
-- Locks: none worth naming, everything is new. Cost: none.

-- One row per user of a protected database. Erased: a tombstone, which a later post of the user does not fill again.
create table users (
    app_id text not null,
    user_key text not null,                     -- HMAC-SHA256 of the id, by app: what stands in all other tables
    sealed bytea,                               -- the id, AES-256-GCM: nonce, text, tag
    key_id text,                                -- which key sealed it
    first_seen_at timestamptz not null default now(),
    erased_at timestamptz,
    primary key (app_id, user_key),
    constraint users_sealed check ((sealed is null) = (erased_at is not null) and (sealed is null) = (key_id is null))
);

-- Which key names the users of this database: one for all processes, for ever. The first that starts writes it.
create table user_protection (
    is_only boolean primary key default true,
    fingerprint text not null,                  -- of the key; empty: ids stand here as they are
    since timestamptz not null default now(),
    constraint user_protection_is_only check (is_only)
);

-- `makegood users erase` in a protected database: the id goes, with what was sent beside the ended purchases (it may
-- name the player in words of its own). How many rows of users that were there: 0 or 1. May be repeated.
create function erase_protected_user(app text, key text, actor text) returns bigint
language sql security definer as $$
    with erased as (
        update users set sealed = null, key_id = null, erased_at = coalesce(erased_at, now())
        where app_id = app and user_key = key
        returning user_key),
    emptied as (
        update receipts set details = '{}'
        where app_id = app and user_id in (select user_key from erased) and settled_at is not null and details <> '{}'
        returning id),
    audited as (
        insert into audits (actor, action, details)
        select actor, 'users.erase',
            jsonb_build_object('app', app, 'user', user_key, 'receipts', (select count(*) from emptied))
        from erased)
    select count(*) from erased
$$;

-- The same where ids stand as they are: a tombstone takes the id's place everywhere. How many receipts.
--
-- A verdict that is being written ends first, or finds that its attempt has moved on; so no worker brings the id back.
-- Reads all events once: they are in no order by user.
create function erase_clear_user(app text, clear_id text, tombstone text, actor text) returns bigint
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
    update events e set user_id = tombstone where e.app_id = app and e.user_id = clear_id;
    insert into audits (actor, action, details)
    values (actor, 'users.erase', jsonb_build_object('app', app, 'user', tombstone, 'receipts', erased));
    return erased;
end $$;

-- `makegood users readmit`: an erased user is a customer again; his id is stored anew.
create function readmit_user(app text, key text, sealed_id bytea, sealed_by text, actor text) returns bigint
language sql security definer as $$
    with readmitted as (
        update users set sealed = sealed_id, key_id = sealed_by, erased_at = null
        where app_id = app and user_key = key and erased_at is not null
        returning user_key),
    audited as (
        insert into audits (actor, action, details)
        select actor, 'users.readmit', jsonb_build_object('app', app, 'user', user_key) from readmitted)
    select count(*) from readmitted
$$;

-- The schema of this installation, and temporary tables last: they would come first otherwise. Functions may be
-- executed by everybody unless it is said otherwise.
do $$
declare
    signature text;
begin
    foreach signature in array array[
        'erase_protected_user(text, text, text)', 'erase_clear_user(text, text, text, text)',
        'readmit_user(text, text, bytea, text, text)']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
