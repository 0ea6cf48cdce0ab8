-- Why: two questions would read long spans of grants each time: what was given by day, and which purchases may be one
--   that was charged twice. The schedulers answer them step by step and note their progress here, so that one of them
--   looks at each grant, once.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

-- What was given by day: the sums of all grants before `goods_by_day_progress.summed_to`, and of none after. A row: day
-- (UTC), app, environment, product. Rows stay for ever: they are few.
create table goods_by_day (
    day date not null,
    app_id text collate "C" not null,
    environment text collate "C" not null,
    product_id text collate "C" not null,
    granted bigint not null,                    -- transactions
    units bigint not null,                      -- their quantities
    primary key (day, app_id, environment, product_id)
);

-- How far the sums are. One row.
--
-- A grant's `granted_at` is when its transaction began. Other transactions see the grant when its transaction has
-- ended, and no clock bounds that: a commit may wait for a standby. But a transaction that began before `complete_to`
-- got its number soon after, and before `complete_xid` was given out. So once all transactions before `complete_xid`
-- have ended, no grant before `complete_to` can come any more, and a scheduler may sum these grants once and for all.
-- (A snapshot's xmax would not do: it is the number after the last that has ended, and transactions with later numbers
-- may run.)
create table goods_by_day_progress (
    is_only boolean primary key default true,
    summed_to timestamptz not null,
    complete_to timestamptz not null,
    complete_xid xid8 not null,
    constraint goods_by_day_progress_one_row check (is_only),
    constraint goods_by_day_progress_order check (summed_to <= complete_to)
);

-- The sums begin with the first day that `v_goods_by_day` shows.
insert into goods_by_day_progress (summed_to, complete_to, complete_xid)
select at, at, pg_current_xact_id()
from (select (date_trunc('day', now() at time zone 'UTC') - interval '13 days') at time zone 'UTC') first_day(at);

-- How far purchases have been compared with those before them: a place in the events, because each grant has an event.
-- All schedulers share it, and a step has a limited number of events. One row.
create table double_charge_progress (
    is_only boolean primary key default true,
    taken_at timestamptz not null,              -- when a scheduler last began a step; the others wait for a while
    searched_xid xid8 not null,                 -- with `searched_id`: the last event that was looked at
    searched_id bigint not null,
    constraint double_charge_progress_one_row check (is_only)
);

insert into double_charge_progress (taken_at, searched_xid, searched_id)
values ('-infinity', pg_snapshot_xmin(pg_current_snapshot()), 0);
