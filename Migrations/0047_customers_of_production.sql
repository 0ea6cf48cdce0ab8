-- serves: 1
-- Why: the first place of an Apple customer enters whom that customer's purchases went to before there were places. It entered those of
--   sandbox purchases as well, which the limit is not about: with three testers on one customer's device a third user had a place of two.
-- Locks: none but the function's own row. Cost: none.

create or replace function take_limit_place(app text, name text, owner text, on_day date, purpose text, places integer)
returns boolean language plpgsql as $$
declare
    taken integer;
begin
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
