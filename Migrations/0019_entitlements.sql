-- serves: 12
-- Why: an app asks at each start what its user may use now. `ownerships` leads from a user to the user's chains of
--   subscriptions and non-consumables. Three kinds of purchases have no row there under the user's name: a non-renewing
--   one, one that another customer shares, and one of a chain that continues another chain. This migration marks the
--   grants of such purchases, so that a handful of rows answers a user with ten thousand consumables.
-- Locks: grants whole, while an index is built; posts, verdicts and answers wait meanwhile.
-- Cost: reads transactions twice before it locks anything, and grants once; writes the marked grants. The migration
--   does not find, and does not mark, a non-renewing purchase from an app receipt if neither Apple nor a catalogue has
--   ever named the product non-renewing here.
-- Programs of the version before: they write no mark, so a trigger writes the mark for them.

create temporary table non_renewing on commit drop as
select distinct app_id, product_id from transactions where kind = 'Non-Renewing Subscription'
union
select app_id, product ->> 'id' from catalogues cross join lateral jsonb_array_elements(document -> 'products') product
where product ->> 'type' = 'nonRenewing';
create temporary table marked on commit drop as
select transaction_id from transactions
where kind = 'Non-Renewing Subscription' or ownership in ('FAMILY_SHARED', 'ASSIGNED')
    or facts ? 'previousOriginalTransactionId'
    or kind is null and (app_id, product_id) in (select app_id, product_id from non_renewing);

alter table grants add column is_entitling boolean;
comment on column grants.is_entitling is
    'Whether this grant, and no row of ownerships, says that its user may use the purchase. Null: granted before 0019_entitlements.sql, and not marked.';

-- Marks a grant of a program of the version before. The trigger knows Apple's facts and not the catalogue, because such
-- a program runs for minutes only.
create function mark_entitling_grant() returns trigger language plpgsql security definer as $$
begin
    new.is_entitling := new.binding_source = 'shared' or exists (
        select from transactions t where t.transaction_id = new.transaction_id
            and (t.kind = 'Non-Renewing Subscription' or t.facts ? 'previousOriginalTransactionId'));
    return new;
end $$;
create trigger grants_mark_entitling before insert on grants
    for each row when (new.is_entitling is null) execute function mark_entitling_grant();

update grants set is_entitling = true where transaction_id in (select transaction_id from marked);
-- The purchases that were granted between that look and the lock.
update grants g set is_entitling = true from transactions t
where g.granted_at > now() - interval '10 minutes' and t.transaction_id = g.transaction_id
    and (t.kind = 'Non-Renewing Subscription' or t.ownership in ('FAMILY_SHARED', 'ASSIGNED')
        or t.facts ? 'previousOriginalTransactionId');
create index grants_entitling on grants (app_id, user_id) where is_entitling;

-- As at the end of 0001_receipts.sql.
do $$
begin
    execute format('alter function mark_entitling_grant() set search_path = %I, pg_temp', current_schema());
end $$;
revoke execute on function mark_entitling_grant() from public;
