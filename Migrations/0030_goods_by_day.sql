-- serves: 1
-- Why: v_goods_by_day read two weeks of grants each time it was asked, a second for each million and a half. Now the
--   scheduler keeps their sums, and the view reads the grants that are not in them yet: those of the last minutes.
-- Locks: access exclusive on that view for a moment. Cost: none: what is there already is summed by the scheduler, step
--   by step; until it is, and where the scheduler is of an earlier version, the view reads it as before.

-- What was given: every grant before `goods_by_day_progress.summed_to`, and none after. A row: day (UTC), app,
-- environment, product. Kept for ever: they are few.
create table goods_by_day (
    day date not null,
    app_id text not null,
    environment text not null,
    product_id text not null,
    granted bigint not null,                    -- transactions
    units bigint not null,                      -- their quantities
    primary key (day, app_id, environment, product_id)
);

-- How far that is. One row.
--
-- A grant's `granted_at` is when its transaction began, and it is seen when that has ended, which no clock bounds: a
-- commit may wait for a standby. But who began before `complete_to` had his transaction's number soon after, at the
-- latest when `complete_xid` was given out after it. So once all before `complete_xid` have ended, no grant before
-- `complete_to` can come any more, and those that are there may be summed once and for all. (Not a snapshot's xmax: that
-- is the number after the last that has ended, and transactions with later ones may run.)
create table goods_by_day_progress (
    is_only boolean primary key default true,
    summed_to timestamptz not null,
    complete_to timestamptz not null,
    complete_xid xid8 not null,
    constraint goods_by_day_progress_one_row check (is_only),
    constraint goods_by_day_progress_order check (summed_to <= complete_to)
);

-- From the first day that the view shows.
insert into goods_by_day_progress (summed_to, complete_to, complete_xid)
select at, at, pg_current_xact_id()
from (select (date_trunc('day', now() at time zone 'UTC') - interval '13 days') at time zone 'UTC') first_day(at);

-- Sums and progress are read in one snapshot, so each grant counts once at any moment. The last hour is apart, so that
-- it is found by its index whatever the planner makes of a bound that it does not know; what is before is not looked at
-- where the sums reach as far as that.
create or replace view v_goods_by_day as
select app_id, environment, product_id, day, sum(granted)::bigint as granted, sum(units)::bigint as units,
    sum(revoked)::bigint as revoked
from (
    select app_id, environment, product_id, day, granted, units, 0 as revoked
    from goods_by_day where day >= (now() at time zone 'UTC')::date - 13
    union all
    select app_id, environment, product_id, (granted_at at time zone 'UTC')::date, count(*), sum(quantity), 0
    from grants
    where granted_at >= now() - interval '1 hour' and granted_at >= (select summed_to from goods_by_day_progress)
    group by 1, 2, 3, 4
    union all
    select app_id, environment, product_id, (granted_at at time zone 'UTC')::date, count(*), sum(quantity), 0
    from grants
    where (select summed_to from goods_by_day_progress) < now() - interval '1 hour'
        and granted_at >= (date_trunc('day', now() at time zone 'UTC') - interval '13 days') at time zone 'UTC'
        and granted_at >= (select summed_to from goods_by_day_progress) and granted_at < now() - interval '1 hour'
    group by 1, 2, 3, 4
    union all
    -- Apple's date, which may lie days back when it is heard of: not summed. They are few.
    select app_id, environment, product_id, (revoked_at at time zone 'UTC')::date, 0, 0, count(*)
    from transactions
    where revoked_at >= (date_trunc('day', now() at time zone 'UTC') - interval '13 days') at time zone 'UTC'
    group by 1, 2, 3, 4) g
group by 1, 2, 3, 4;
