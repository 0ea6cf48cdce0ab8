-- serves: 1
-- Why: a program of the version before 0022 knows nothing of imported purchases, and would give them again while the
--   processes are renewed one by one: what is imported cannot be granted, whoever tries. A bonus that was given on trust
--   and taken back is its user's to have again, one that the system before this one gave is not, and two accounts of one
--   person may be erased with the same one. What an app in shadow holds is another system's to give, and no alert.
-- Locks: share row exclusive on grants and provisional_grants for a moment, for their triggers; access exclusive on
--   given_bonuses while its key is built anew. Cost: a second or two for each million bonuses; each statement that grants
--   looks once whether anything was imported, and only then for each of its grants.

-- The program of this version never tries: its verdict on such a purchase is "already granted". An older one is refused as
-- by any constraint: its batch is taken apart until the one purchase is alone, its neighbours are settled, and the
-- receipt stays open until a program that knows better has it.
create function refuse_imported_purchases() returns trigger language plpgsql security definer as $$
begin
    perform from imported_grants limit 1;
    if not found then return null; end if;
    perform from written w cross join lateral (
        (select from imported_grants where transaction_id = w.transaction_id)
        union all
        -- The same purchase under another id, as `makegood import` is read everywhere else.
        (select from transactions t cross join lateral (
            select purchased_at from imported_grants
            where original_transaction_id = t.original_transaction_id offset 0) i
        where t.transaction_id = w.transaction_id
            and (w.purchase_key = w.environment || '/purchase/' || t.original_transaction_id
                or date_trunc('second', i.purchased_at) = date_trunc('second', t.purchased_at)))
        limit 1) i
    limit 1;
    if found then
        raise exception 'a purchase was given by the system before this one'
            using errcode = 'integrity_constraint_violation';
    end if;
    return null;
end $$;
-- Whatever the statistics say: the table is empty until the day it holds millions.
alter function refuse_imported_purchases() set enable_seqscan = off;
create trigger grants_are_not_imported after insert on grants
    referencing new table as written for each statement execute function refuse_imported_purchases();

alter table given_bonuses
    alter column transaction_id drop not null,      -- null: given by the system before this one
    alter column goods drop not null,
    add column freed_at timestamptz,                -- taken back, or its user was erased: it may be given again
    add constraint given_bonuses_here check ((transaction_id is null) = (goods is null)),
    drop constraint given_bonuses_pkey;
create unique index given_bonuses_once on given_bonuses (app_id, user_id, bonus, period) where freed_at is null;

drop trigger given_bonuses_have_grants on given_bonuses;
create trigger given_bonuses_have_grants after insert on given_bonuses
    for each row when (new.transaction_id is not null) execute function hold_bonus_to_its_grant();

-- What was given on trust and taken back took its bonus with it.
create function free_bonuses_taken_back() returns trigger language plpgsql security definer as $$
begin
    update given_bonuses set freed_at = now() where transaction_id = new.transaction_id and freed_at is null;
    return null;
end $$;
create trigger provisional_grants_free_bonuses after update of revoked_at on provisional_grants
    for each row when (old.revoked_at is null and new.revoked_at is not null) execute function free_bonuses_taken_back();

update given_bonuses set freed_at = now()
where transaction_id in (select transaction_id from provisional_grants where granted_at is not null and revoked_at is not null);

create or replace view v_bonuses as
select app_id, bonus, period, transaction_id, goods, given_at, freed_at from given_bonuses;
comment on view v_bonuses is
    'What was given once beside a purchase. A row: a bonus with the grant that has it (null: given by the system before this one). period: of the purchase, in UTC (2026-11-22, 2026-11, or empty for ever); given_at: when it was granted or imported; freed_at: when it was taken back, or its user erased.';

create or replace view v_paid_not_granted as
select t.app_id, t.environment, t.product_id, t.transaction_id, o.receipt_id, r.state as receipt_state,
    o.state, coalesce(o.reason, '') as reason, t.purchased_at, r.received_at, r.due_at,
    extract(epoch from now() - r.received_at)::float8 as waited_seconds
from receipts r
join outcomes o on o.receipt_id = r.id and o.state in ('open', 'held')
join transactions t on t.transaction_id = o.transaction_id and t.revoked_at is null
where r.due_at is not null and r.received_at < now() - interval '5 minutes'
    and not exists (select from grants g where g.transaction_id = o.transaction_id)
    and not exists (select from apps a where a.app_id = r.app_id and a.live_since is null);
comment on view v_paid_not_granted is
    'Paid by Apple''s word, not refunded, not granted, posted more than 5 minutes ago; must be empty (S1-1) but for what a policy holds, which the reason says. Nothing of apps in shadow, whose goods another system gives. A row: a transaction of an open receipt. Seconds.';

comment on column apps.live_since is
    'Since when the app''s goods are given here: the default of grantFrom. Null: it is in shadow.';

-- As in 0022, with bonuses: whose they were holds nobody any more.
create or replace function erase_clear_user(app text, clear_id text, tombstone text, actor text) returns bigint
language plpgsql security definer as $$
declare
    erased bigint;
    others bigint;
    imported bigint;
    bonuses bigint;
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
    return erased + others + imported + bonuses;
end $$;

do $$
begin
    execute format('alter function erase_clear_user(text, text, text, text) set search_path = %I, pg_temp',
        current_schema());
    execute format('alter function refuse_imported_purchases() set search_path = %I, pg_temp', current_schema());
    execute format('alter function free_bonuses_taken_back() set search_path = %I, pg_temp', current_schema());
    revoke execute on function refuse_imported_purchases(), free_bonuses_taken_back() from public;
end $$;
