-- serves: 1
-- Why: a purchase that waits for somebody who knows whose it is may be given by a person's word (`support give`).
--   The word is a row beside what speaks for an owner otherwise; the purchase is given by the statement that gives all.
-- Locks: none on what is there. Cost: none.

-- Whose a held purchase is, as a person says. The latest word counts, and none against a grant that exists.
create table support_decisions (
    app_id text not null,
    transaction_id text not null,
    user_id text not null,
    item text,                                  -- which of those that are sold as its product; null: as it is found
    token uuid,                                 -- leads to the user: what Apple is told of it
    decided_at timestamptz not null default now(),
    primary key (app_id, transaction_id)
);
-- In its app somebody else than the poster can be named from now on.
create trigger support_decisions_note_app after insert on support_decisions
    referencing new table as placed for each statement execute function note_ordering_apps();

-- As in 0024, with what support decided: nothing more is given to him by it, and its audit does not name him.
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
        debounce_key = null, target = case when o.transaction_id is null then o.target else '{}' end
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

do $$
begin
    execute format('alter function erase_clear_user(text, text, text, text) set search_path = %I, pg_temp',
        current_schema());
end $$;
