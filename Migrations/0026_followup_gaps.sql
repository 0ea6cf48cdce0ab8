-- serves: 12
-- Why: the later life of a purchase had gaps. A refund of an imported purchase marked no chain where the import came
--   after Apple's facts. A refund of a purchase with a bonus took the bonus's goods back, and its user could not get
--   the bonus again. A user who was readmitted had subscriptions that no worker looked at any more.
-- Locks: imported_grants and revocations, for a moment, for a trigger each.
-- Cost: reads the imported purchases once, and looks up the facts of each.
-- Programs of the version before: they follow up no imported purchase, and remove its marks. So its chain is looked at
--   again an hour or two later, when such programs have gone. The triggers work for them too.

-- Marks the chains of imported purchases about which Apple has said something already, as `mark_chains_of_grants` does.
create function mark_chains_of_imports() returns trigger language plpgsql security definer as $$
begin
    insert into chain_marks (app_id, environment, original_transaction_id)
    select distinct f.app_id, f.environment, f.original_transaction_id from fresh f
    where exists (
        select from (select revoked_at, expires_at from transactions
            where original_transaction_id = f.original_transaction_id offset 0) t
        where t.revoked_at is not null or t.expires_at is not null);
    return null;
end $$;
create trigger imported_grants_mark_chains after insert on imported_grants
    referencing new table as fresh for each statement execute function mark_chains_of_imports();

-- No event has told the ends of imported purchases that are known already: the follow-up tells each once. Apple's date
-- in the event says how old a refund is.
with imported as materialized (
    select distinct i.app_id, i.environment, i.original_transaction_id from imported_grants i
    where exists (
        select from (select revoked_at, expires_at from transactions
            where original_transaction_id = i.original_transaction_id offset 0) t
        where t.revoked_at is not null or t.expires_at is not null)),
due as (
    insert into chains as c (app_id, environment, original_transaction_id, due_at)
    select app_id, environment, original_transaction_id, now() + interval '1 hour' * (1 + random()) from imported
    on conflict (app_id, environment, original_transaction_id) do update
        set due_at = least(c.due_at, excluded.due_at))
insert into chain_marks (app_id, environment, original_transaction_id)
select app_id, environment, original_transaction_id from imported;

-- The bonuses of a purchase that Apple takes back whole are free: the user may have each again with another purchase.
-- If Apple gives the purchase back, the user has its bonuses again, and none of them is free. A bonus that the user has
-- got again meanwhile stays with that purchase. `RevocationEntry.bonusEffect` says the same of a row.
create function settle_bonuses_of_revocation() returns trigger language plpgsql security definer as $$
begin
    if new.kind = 'revoked' and new.takes_back and new.percentage = 100000 then
        update given_bonuses set freed_at = now() where transaction_id = new.transaction_id and freed_at is null;
    elsif new.kind = 'reinstated' then
        update given_bonuses b set freed_at = null
        where b.transaction_id = new.transaction_id and b.freed_at is not null
            -- Free since an erasure: nobody has it.
            and b.user_id !~ '^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
            and not exists (
                select from given_bonuses o
                where o.app_id = b.app_id and o.bonus = b.bonus and o.period = b.period and o.freed_at is null
                    and (o.user_id = b.user_id or exists (
                        select from merges m where m.app_id = b.app_id
                            and ((m.user_id, m.into_user_id) = (b.user_id, o.user_id)
                                or (m.user_id, m.into_user_id) = (o.user_id, b.user_id)))));
    end if;
    return null;
exception when unique_violation then
    return null;    -- the user got it again at this moment
end $$;
create trigger revocations_settle_bonuses after insert on revocations
    for each row execute function settle_bonuses_of_revocation();

create or replace view v_revocations as
select r.transaction_id, r.ordinal, r.app_id, r.environment, coalesce(g.product_id, m.product_id) as product_id,
    r.user_id, r.kind, r.reason, r.takes_back, r.percentage / 1000.0 as percentage, r.goods,
    u.percentage / 1000.0 as consumed, r.at, r.recorded_at, g.receipt_id,
    r.ordinal = (select max(ordinal) from revocations where transaction_id = r.transaction_id) as is_last
from revocations r
left join lateral (
    select product_id, receipt_id from grants where transaction_id = r.transaction_id offset 0) g on true
left join lateral (
    select product_id from imported_grants where transaction_id = r.transaction_id offset 0) m on true
left join lateral (
    select percentage from consumption_reports where transaction_id = r.transaction_id
    order by at desc, reported_at desc limit 1) u on true;
comment on view v_revocations is
    'A row: Apple took a granted or imported purchase back, or gave it back. receipt_id: null where the former system gave it. goods: the goods that this row takes back from the user, or gives back; empty where the former system gave them. percentage: the share of the price that Apple has given back by then. consumed: the share of the purchase that the app''s backend last reported as used; null: it reported nothing. Both are in percent. is_last: the row that counts. Ask for a span of recorded_at.';

-- `makegood users readmit`: makes an erased user a customer again, and stores the id anew. The erasure ended the looks
-- at the user's subscriptions, and no fact may come for a year: each chain that the user has is followed up now.
create or replace function readmit_user(app text, key text, sealed_id bytea, sealed_by text, actor text) returns bigint
language sql security definer as $$
    with readmitted as (
        update users set sealed = sealed_id, key_id = sealed_by, erased_at = null
        where app_id = app and user_key = key and erased_at is not null
        returning user_key),
    marked as (
        insert into chain_marks (app_id, environment, original_transaction_id)
        select distinct app, t.environment, t.original_transaction_id
        from (
            select transaction_id from grants where app_id = app and user_id in (select user_key from readmitted)
            union
            select transaction_id from imported_grants
            where app_id = app and user_id in (select user_key from readmitted)
            union
            select transaction_id from ownerships where app_id = app and user_id in (select user_key from readmitted)) g
        cross join lateral (
            select environment, original_transaction_id, expires_at, revoked_at from transactions
            where transaction_id = g.transaction_id and app_id = app offset 0) t
        where t.expires_at is not null or t.revoked_at is not null),
    audited as (
        insert into audits (actor, action, details)
        select actor, 'users.readmit', jsonb_build_object('app', app, 'user', user_key) from readmitted)
    select count(*) from readmitted
$$;

-- As in 0018_refund_requests.sql; the payloads of notifications about imported purchases too.
create or replace function erase_heard_of_user(app text, id text, owner text) returns bigint
language sql security definer as $$
    with revoked as (
        update revocations set user_id = owner where app_id = app and user_id = id and id <> owner),
    -- Nothing counts as told to an erased user, so that no follow-up tells the user anything more.
    told as (
        update chains set told_user_id = null, told = null, state = null, due_at = null
        where app_id = app and told_user_id = id),
    agreed as (
        delete from consents where app_id = app and user_id in (id, owner)),
    emptied as (
        update notifications n set payload = null, forward_due_at = null, state = 'ended', due_at = null,
          reason = case when n.settled_at is null then 'erased' else n.reason end,
          settled_at = coalesce(n.settled_at, now())
        where n.id in (
            select k.id from (
                select transaction_id from grants where app_id = app and user_id = owner
                union all
                select transaction_id from imported_grants where app_id = app and user_id = owner) g
            cross join lateral (
                select original_transaction_id from transactions where transaction_id = g.transaction_id offset 0) t
            cross join lateral (
                select id from notifications where transaction_id = g.transaction_id
                union
                select id from notifications where original_transaction_id = t.original_transaction_id) k)
          and n.app_id = app and n.payload is not null
        returning n.id)
    select count(*) from emptied
$$;

-- As at the end of 0001_receipts.sql.
do $$
declare
    signature text;
begin
    foreach signature in array array[
        'mark_chains_of_imports()', 'settle_bonuses_of_revocation()', 'readmit_user(text, text, bytea, text, text)',
        'erase_heard_of_user(text, text, text)']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
-- Never a sequential scan, whatever the statistics say: an import of a million rows runs it for each.
alter function mark_chains_of_imports() set enable_seqscan = off;
