-- serves: 1
-- Why: what one user may buy of an item was asked when an order was placed, and of what was bought without an order nobody was told that
--   it passed the limit. It is paid, and so it is given; each unit now takes a place where it is granted, and a grant that finds none says so.
-- Locks: none but the function's own row. Cost: for items with limits alone one small row for each unit and limit; those of a day or a
--   month are dropped two days after its end, those of ever stay. Programs from before take no such places, so that what they
--   give is counted by nobody until the user's next day or month, and by a limit of ever never: replace all workers at one time.

-- The holder of an item's limit comes as ["user", "product", "item", whether it is the product's default], and is stored as SHA-256 of
-- the first three. A month's place is of the month's last day, until which nothing drops it.
create or replace function take_limit_place(app text, name text, owner text, on_day date, purpose text, places integer)
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
            -- Whom this customer's purchases went to before there were places; once for each customer.
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
            -- What the user was given before there were places, also under ids that became part of this one; once for each period.
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
