-- serves: 1
-- Why: a limit that is read by one statement and reached by another one is passed by whoever comes at once: a batch of two hundred
--   sandbox purchases with a limit of two gave two hundred. Each thing that a limit counts has a place of its own now, a unique row
--   that is taken in the transaction which gives it.
-- Locks: SHARE on orders while they are read once for an index of none: orders wait, a second for some five million. Cost: one small row for each limited purchase, dropped after two days; of customers' users for ever.
--   On the day it is applied the day's counts begin anew. Programs from before take no places: replace the workers.

create table limit_places (
    app_id text not null,
    limit_name text not null,
    holder text not null,                       -- SHA-256 of the user; Apple's customer; '' = the app
    day date not null,                          -- UTC; -infinity: for ever
    n integer not null,
    taken_for text not null,                    -- the purchase's key; of a customer SHA-256 of the user
    taken_at timestamptz not null default now(),
    primary key (app_id, limit_name, holder, day, n),
    constraint limit_places_once unique (app_id, limit_name, holder, day, taken_for),
    constraint limit_places_n check (n > 0)
);
create index limit_places_by_day on limit_places (day);

-- Takes a place, or says that there is none. There are no gaps, so n is the count: whoever takes n has seen 1 to n - 1, committed
-- or his own. A rival who has n is waited for, and then looked at anew: each query of a volatile function has a snapshot of its own.
-- No lock but the row's. The same purpose has its place already.
create function take_limit_place(app text, name text, owner text, on_day date, purpose text, places integer)
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
                        where customer_id = owner and app_id = app limit 1000) g) u
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

-- Of bare ids only those count that lead nowhere, and whether one does is known later: n keeps the takers apart, and the count is
-- read after that. One that is stored already needs no place.
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

-- An order's place among those that its user placed on one day, by UTC: the limit is exact, and of two processes that place orders
-- of one user at once the later one sees what the earlier has placed, so that one tap is one order.
alter table orders add column placed_on date, add column place integer;
create unique index orders_places on orders (app_id, user_id, placed_on, place) where place is not null;

-- Places of days that are over; a thousand at a time.
create function drop_limit_places() returns bigint language plpgsql security definer as $$
declare
    dropped bigint;
begin
    delete from limit_places where ctid = any(array(
        select ctid from limit_places
        where day > '-infinity' and day < (now() at time zone 'UTC')::date - 2 order by day limit 1000));
    get diagnostics dropped = row_count;
    return dropped;
end $$;

do $$
begin
    execute format('alter function drop_limit_places() set search_path = %I, pg_temp', current_schema());
    revoke execute on function drop_limit_places() from public;
    revoke execute on function take_question_place(text, text, uuid, integer) from public;
    revoke execute on function take_limit_place(text, text, text, date, text, integer) from public;
end $$;
