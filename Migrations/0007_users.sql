-- Why: this migration holds who a user is, and how a user is erased. With `users.protect` every table holds a keyed
--   hash instead of the user's id. The id lies only here, encrypted, for delivery and support alone, and can be erased
--   without a change to what was bought. Merged accounts are recorded only here. An installation shows by a token from
--   which copy of the app a post comes, so that no client's text can claim it.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

-- One row per user of a protected database. An erased user's row is a tombstone; a later post of the user does not fill
-- it.
create table users (
    app_id text collate "C" not null,
    user_key text collate "C" not null,         -- HMAC-SHA256 of the id, by app: the user's name in all other tables
    sealed bytea,                               -- the id, AES-256-GCM: nonce, text, tag
    key_id text collate "C",                    -- which key sealed it
    first_seen_at timestamptz not null default now(),
    erased_at timestamptz,
    primary key (app_id, user_key),
    constraint users_sealed check ((sealed is null) = (erased_at is not null) and (sealed is null) = (key_id is null))
);

-- The key by which this database names users: one for all processes, for ever. The first process that starts writes it.
create table user_protection (
    is_only boolean primary key default true,
    fingerprint text collate "C" not null,      -- of the key; empty: the tables hold the ids themselves
    since timestamptz not null default now(),
    log_secret bytea not null default (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
    constraint user_protection_is_only check (is_only)
);
-- The security log must name a refused user without an id that a reader of logs may know. The log therefore has a hash
-- with a secret that all processes of this database share and that no log holds.
comment on column user_protection.log_secret is
    'user.hash in the security log is left(encode(sha256(log_secret || convert_to(user_id, ''UTF8'')), ''hex''), 16).';

-- Accounts that are part of another one, as a guest's account is once the guest registers. A merge changes no other
-- row. A statement that reads an owner reads here who that is by now, and so it also finds rows that are written at the
-- same moment.
create table merges (
    app_id text collate "C" not null,
    user_id text collate "C" not null,
    into_user_id text collate "C" not null,     -- never merged itself: if it is merged, its new account is written here
    merged_at timestamptz not null default now(),
    primary key (app_id, user_id),
    constraint merges_of_two check (user_id <> into_user_id)
);
create index merges_by_into on merges (app_id, into_user_id);

-- `POST /v1/users/{id}/merge`. Answers `merged`, `known` (merged before), or the reason of a refusal: `cycle`,
-- `elsewhere` (part of another account already), `erased`, `too_many` (accounts of one person).
create function merge_users(app text, old_id text, new_id text, ids_max integer, actor text) returns text
language plpgsql security definer as $$
declare
    target text;
    before text;
begin
    -- One merge of an app at a time; otherwise two merges could make each account part of the other.
    perform pg_advisory_xact_lock(hashtext('makegood.merges'), hashtext(app));
    target := coalesce((select m.into_user_id from merges m where m.app_id = app and m.user_id = new_id), new_id);
    if target = old_id then return 'cycle'; end if;
    before := (select m.into_user_id from merges m where m.app_id = app and m.user_id = old_id);
    if before is not null then return case when before = target then 'known' else 'elsewhere' end; end if;
    if old_id like 'erased\_%' or target like 'erased\_%' or exists (
        select from users u where u.app_id = app and u.user_key in (old_id, new_id, target) and u.erased_at is not null)
    then
        return 'erased';
    end if;
    if (select count(*) from merges m where m.app_id = app and m.into_user_id in (old_id, target)) + 1 >= ids_max then
        return 'too_many';
    end if;
    update merges m set into_user_id = target where m.app_id = app and m.into_user_id = old_id;
    insert into merges (app_id, user_id, into_user_id) values (app, old_id, target);
    insert into audits (actor, action, details)
    values (actor, 'users.merge', jsonb_build_object('app', app, 'user', old_id, 'into', new_id));
    return 'merged';
end $$;

-- A copy of the app on a device. The server tells its id to nobody, so that no client's text can be such an id.
create table installations (
    id text collate "C" primary key,
    app_id text collate "C" not null,
    issued_at timestamptz not null default now(),
    revoked_at timestamptz                      -- since then its posts prove nothing, also the earlier ones
);

-- The tokens by which an installation shows itself: the newest, and for a while the one before it.
create table installation_tokens (
    token_sha256 bytea primary key,
    installation_id text collate "C" not null references installations,
    app_id text collate "C" not null,
    issued_at timestamptz not null default now(),
    expires_at timestamptz,                     -- null: the newest
    constraint installation_tokens_sha256 check (octet_length(token_sha256) = 32)
);
create index installation_tokens_of_installation on installation_tokens (installation_id);

-- Apple's customers whose purchases an installation has shown. An installation with two customers of one environment
-- proves nothing.
create table installation_customers (
    installation_id text collate "C" not null references installations,
    environment text collate "C" not null,
    customer_id text collate "C" not null,
    shown_at timestamptz not null default now(),
    primary key (installation_id, environment, customer_id)
);

-- Users whom no verdict may name that was matched until `erased_at`: the hash of the id, kept for a day after that.
-- Where users are not protected, such a verdict would write the erased id again. The next erasure deletes old rows.
create table erasures (
    app_id text collate "C" not null,
    user_sha256 bytea not null,
    erased_at timestamptz not null default now(),
    primary key (app_id, user_sha256)
);
-- A verdict statement asks once for its batch, by time, whether any user was erased meanwhile.
create index erasures_erased_at on erasures (erased_at);

-- Begins the erasure of an id, before `erase_clear_user`, which may begin once every statement that has not seen this
-- row has ended: from then on no statement writes an id that was matched before.
--
-- Until `end_erasure` no purchase is matched to the id either, because the tables still have it; if `end_erasure` never
-- comes, for five minutes.
create function begin_erasure(app text, clear_id text) returns void
language plpgsql security definer as $$
begin
    delete from erasures e where e.erased_at < now() - interval '1 day';
    insert into erasures as e (app_id, user_sha256, erased_at)
    values (app, sha256(convert_to(clear_id, 'UTF8')), now() + interval '5 minutes')
    on conflict (app_id, user_sha256) do update set erased_at = excluded.erased_at;
end $$;

-- Ends the erasure: the tables have the id no more, so a purchase that is matched from now on does not find it.
create function end_erasure(app text, clear_id text) returns void
language sql security definer as $$
    update erasures set erased_at = clock_timestamp()
    where app_id = app and user_sha256 = sha256(convert_to(clear_id, 'UTF8'))
$$;

-- `makegood users erase` where users are not protected: puts a tombstone in the id's place in all tables. Returns how
-- many receipts and other rows had the id.
--
-- A verdict that is being written ends first, or finds that the receipt's attempt has changed, so no worker brings the
-- id back. The lock is that of `take_provisional_place`. The function deletes support decisions for the user, and
-- removes the user from their audits. Bonuses of the user count for nobody any more. An order that has ended loses its
-- target. The function reads all events once, because no index finds them by user.
create function erase_clear_user(app text, clear_id text, tombstone text, actor text) returns bigint
language plpgsql security definer as $$
declare
    erased bigint;
    others bigint;
    imported bigint;
    bonuses bigint;
    decisions bigint;
begin
    perform pg_advisory_xact_lock(hashtext('makegood.provisional'), hashtext(app));
    -- Before the receipts, in the order in which `makegood support give` locks them.
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
    -- Deleted, not moved to the tombstone: a user who comes back uses the same tokens, and owns what is bought then.
    delete from user_tokens t where t.app_id = app and t.user_id = clear_id;
    delete from granted_tokens t where t.app_id = app and t.user_id = clear_id;
    update audits a set details = a.details || jsonb_build_object('receiver', tombstone)
    where a.action = 'support.give' and a.details ->> 'app' = app collate "C" and a.details ->> 'receiver' = clear_id;
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

-- Runs after `erase_clear_user`, for each id of a person: deletes the id's merges, and removes the id from their
-- audits.
create function forget_merges(app text, clear_id text, tombstone text) returns bigint
language plpgsql security definer as $$
declare
    forgotten bigint;
begin
    perform pg_advisory_xact_lock(hashtext('makegood.merges'), hashtext(app));
    delete from merges m where m.app_id = app and clear_id in (m.user_id, m.into_user_id);
    get diagnostics forgotten = row_count;
    update audits a set details = a.details
        || case when a.details ->> 'user' = clear_id then jsonb_build_object('user', tombstone) else '{}' end
        || case when a.details ->> 'into' = clear_id then jsonb_build_object('into', tombstone) else '{}' end
    where a.action = 'users.merge' and a.details ->> 'app' = app collate "C"
      and clear_id in (a.details ->> 'user', a.details ->> 'into');
    return forgotten;
end $$;

-- `makegood users erase` in a protected database: deletes the id. The function also empties what was sent beside ended
-- purchases and orders, in lines and in reports, because these may name the user in free text, and removes from which
-- installation they were posted. An order that waits keeps its target. Returns how many rows of users there were: 0 or
-- 1. May be repeated.
create function erase_protected_user(app text, key text, actor text) returns bigint
language sql security definer as $$
    with erased as (
        update users set sealed = null, key_id = null, erased_at = coalesce(erased_at, now())
        where app_id = app and user_key = key
        returning user_key),
    emptied as (
        update receipts r set details = '{}', installation_id = null, target = null
        where r.app_id = app and r.user_id in (select user_key from erased) and r.settled_at is not null
          and (r.details <> '{}' or r.installation_id is not null or r.target is not null
            or r.lines > 0 and exists (select from receipt_lines l where l.receipt_id = r.id
              and (l.details <> '{}' or coalesce(l.target, l.declared) is not null or l.installation_id is not null)))
        returning r.id),
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

-- `makegood users readmit`: makes an erased user a customer again, and stores the id anew.
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

-- As at the end of 0001_receipts.sql.
do $$
declare
    signature text;
begin
    foreach signature in array array[
        'merge_users(text, text, text, integer, text)', 'begin_erasure(text, text)', 'end_erasure(text, text)',
        'erase_clear_user(text, text, text, text)', 'forget_merges(text, text, text)',
        'erase_protected_user(text, text, text)', 'readmit_user(text, text, bytea, text, text)']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
