-- serves: 1
-- Why: what runs on may pass from one user to another by a rule that is written down (P10), and an account may become
--   part of another one, as a guest's does when he registers.
-- Locks: access exclusive on ownerships while its key is built anew. Cost: a second or two for each million chains.

-- How often what this purchase gave has moved: 0 is whose it was when it was granted, and the greatest whose it is. A
-- chain is whose its latest purchase is by now.
alter table ownerships
    add column move integer not null default 0,
    drop constraint ownerships_pkey,
    add constraint ownerships_pkey
        primary key (app_id, environment, original_transaction_id, purchased_at, transaction_id, move),
    add constraint ownerships_move check (move >= 0);
create index ownerships_moved on ownerships (transaction_id, move) where move > 0;

create or replace view v_ownerships as
select app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id, binding_source, decided_at,
    move
from ownerships;

-- Accounts that are part of another one. No other row is changed for it: whoever reads whose something is reads here
-- who that is by now, so that what is written at the same moment is found as well.
create table merges (
    app_id text not null,
    user_id text not null,
    into_user_id text not null,                 -- never merged itself: whoever it is merged into takes its place here
    merged_at timestamptz not null default now(),
    primary key (app_id, user_id),
    constraint merges_of_two check (user_id <> into_user_id)
);
create index merges_by_into on merges (app_id, into_user_id);

-- `POST /v1/users/{id}/merge`. `merged`, `known` (done before), or why not: `cycle`, `elsewhere` (part of another one
-- already), `erased`, `too_many` (accounts of one person).
create function merge_users(app text, old_id text, new_id text, ids_max integer, actor text) returns text
language plpgsql security definer as $$
declare
    target text;
    before text;
begin
    -- One at a time, or two could make each other part of themselves.
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

-- Beside `erase_clear_user`, for each id of a person: that it was merged is gone, and so is its name in what is said of
-- it.
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
    where a.action = 'users.merge' and a.details ->> 'app' = app
      and clear_id in (a.details ->> 'user', a.details ->> 'into');
    return forgotten;
end $$;

do $$
declare
    signature text;
begin
    foreach signature in array array[
        'merge_users(text, text, text, integer, text)', 'forget_merges(text, text, text)']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
