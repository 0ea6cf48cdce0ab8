-- serves: 12
-- Why: workers ask Apple for the purchases and the refunds of every known customer, without being asked. Each customer
--   needs a row that says when Apple is asked next, why, and where the list goes on.
-- Locks: history_walks, imported_grants and orders, for a moment, for columns, a trigger and short indexes. Everything
--   else is new.
-- Cost: indexes over history_walks, which has a row for each customer whose history was ever read, and a scan of
--   orders for a block range index.

-- The sweep has a position of its own beside the position of the walks for posted receipts.
alter table history_walks
    add column due_at timestamptz,              -- when Apple is asked next; null: new here, a worker decides it
    add column wanted_by text collate "C",      -- why Apple is asked before the rota; null: the rota
    add column wanted_at timestamptz,
    add column active_until timestamptz,        -- until then refunds are likely: 180 days behind the last purchase
    add column swept_asked_id text collate "C", -- the id that Apple is asked with; the same for all pages
    add column swept_revision text collate "C", -- behind the last page that a sweep stored; kept between sweeps
    add column swept_begun_at timestamptz,      -- of the sweep that is under way; null: none is
    add column swept_at timestamptz,            -- when a sweep last read to the end
    add column whole_at timestamptz,            -- when the last sweep from the first page began
    add column swept_pages int not null default 0,  -- of the sweep that is under way
    add column swept_until timestamptz,         -- until then no other reader sweeps
    add column sweeper bigint not null default 0,   -- counts the claims: a reader that lost its claim moves nothing
    add column passed_over int not null default 0,  -- entries of this or the last sweep that do not verify
    add column failures int not null default 0, -- in a row
    add column problem text collate "C",        -- of the last failure
    add column refunds_due_at timestamptz,      -- when Apple is asked for refunds next; null: not on that rota
    add column refunds_revision text collate "C",   -- of a list that goes on; null: the next question is a new one
    add column refunds_at timestamptz,          -- when the refunds were last read to the end
    add column refunds_until timestamptz,
    add column refunds_reader bigint not null default 0,
    add column refunds_passed_over int not null default 0,
    add column refunds_failures int not null default 0;
alter table history_walks add constraint history_walks_wanted_by check (wanted_by in
    ('unpaid_order', 'paid_without_proof', 'support', 'missing_periods', 'refund_undone', 'sample')) not valid;
comment on column history_walks.wanted_by is
    'unpaid_order, paid_without_proof (a report), support (a look-up), missing_periods (of a subscription), refund_undone (a refund that Apple lists no more), sample (the whole history is compared).';
create index history_walks_wanted on history_walks (app_id, environment, due_at) where wanted_by is not null;
-- New rows, which have no time yet.
create index history_walks_new on history_walks (app_id, environment) where due_at is null and wanted_by is null;
create index history_walks_rota on history_walks (app_id, environment, due_at) where wanted_by is null;
create index history_walks_refunds on history_walks (app_id, environment, refunds_due_at)
    where refunds_due_at is not null;

-- How far the customers behind the verdicts have rows, and which orders and reports have made customers due. All workers
-- share it, and a step has a limited number of rows. One row.
create table customer_progress (
    is_only boolean primary key default true,
    searched_xid xid8 not null default '0',     -- with `searched_id`: the last event that was looked at
    searched_id bigint not null default 0,
    imported_to text collate "C" default '',    -- the last imported purchase that was looked at; null: all were
    orders_to timestamptz not null default now(),
    reports_to timestamptz not null default now(),
    constraint customer_progress_one_row check (is_only)
);
insert into customer_progress default values;

-- Finds the orders whose time to pay has just passed.
create index orders_pay_by on orders using brin (pay_by) with (autosummarize = on);

-- Finds the open differences in the order of their keys: a worker looks at each of them again and again.
create index differences_by_key on differences (category, subject) where ended_at is null;

-- Enters the customers of purchases that are imported from now on. Those of before are entered by a worker's steps.
create function enter_imported_customers() returns trigger language plpgsql security definer as $$
begin
    insert into history_walks as w (app_id, environment, customer, asked_id, begun_at, busy_until, active_until)
    select app_id, environment, original_transaction_id, min(transaction_id), to_timestamp(0), to_timestamp(0),
        max(purchased_at) + interval '180 days'
    from written where environment in ('Production', 'Sandbox')
    group by 1, 2, 3 order by 1, 2, 3
    on conflict (app_id, environment, customer) do update set active_until = excluded.active_until
        where excluded.active_until > coalesce(w.active_until, '-infinity');
    return null;
end $$;
create trigger imported_grants_enter_customers after insert on imported_grants
    referencing new table as written for each statement execute function enter_imported_customers();

-- Makes customers due, so that Apple is asked for their history soon, and returns how many. A row of the arrays names a
-- purchase of the customer (its id, or the id of its chain) or a user, whose customers are those of the user's last
-- purchases. `apart`: seconds from the last sweep of a customer. The caller need not read Apple's customers.
create function want_customers(apps text[], purchases text[], users text[], reason text, apart double precision)
returns bigint language sql security definer as $$
    with named as (
        select n.app, p.environment, p.customer, p.id from unnest(apps, purchases, users) as n(app, purchase, usr)
        cross join lateral (
            (select t.environment, coalesce(t.customer_id, t.original_transaction_id) as customer, t.transaction_id as id
            from transactions t where t.transaction_id = n.purchase and t.app_id = n.app)
            union all
            (select t.environment, coalesce(t.customer_id, t.original_transaction_id), t.transaction_id
            from transactions t where t.original_transaction_id = n.purchase and t.app_id = n.app
            order by t.customer_id nulls last limit 1)
            union all
            (select i.environment, coalesce(c.customer_id, i.original_transaction_id), i.transaction_id
            from imported_grants i left join lateral (select customer_id from transactions
                where original_transaction_id = i.original_transaction_id and customer_id is not null limit 1) c on true
            where i.transaction_id = n.purchase and i.app_id = n.app)
            union all
            (select g.environment, coalesce(t.customer_id, t.original_transaction_id), t.transaction_id
            from (select transaction_id, environment from grants where app_id = n.app and user_id = n.usr
                order by granted_at desc limit 20) g
            cross join lateral (select customer_id, original_transaction_id, transaction_id from transactions
                where transaction_id = g.transaction_id offset 0) t)
            union all
            (select i.environment, coalesce(c.customer_id, i.original_transaction_id), i.transaction_id
            from (select * from imported_grants where app_id = n.app and user_id = n.usr limit 20) i
            left join lateral (select customer_id from transactions
                where original_transaction_id = i.original_transaction_id and customer_id is not null limit 1) c on true)) p
        where p.environment in ('Production', 'Sandbox')),
    wanted as (
        insert into history_walks as w
            (app_id, environment, customer, asked_id, begun_at, busy_until, due_at, wanted_by, wanted_at)
        select app, environment, customer, min(id), to_timestamp(0), to_timestamp(0), now(), reason, now()
        from named group by 1, 2, 3 order by 1, 2, 3
        on conflict (app_id, environment, customer) do update set
            due_at = least(case when w.due_at < 'infinity' then w.due_at end,
                greatest(now(), w.swept_at + make_interval(secs => apart))),
            wanted_by = case when w.wanted_by = 'sample' then w.wanted_by else excluded.wanted_by end, wanted_at = now()
        returning 1)
    select count(*) from wanted
$$;

-- As at the end of 0001_receipts.sql.
do $$
declare
    signature text;
begin
    foreach signature in array array[
        'enter_imported_customers()', 'want_customers(text[], text[], text[], text, double precision)']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
