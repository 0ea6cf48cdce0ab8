-- serves: 1
-- Why: operators see at a glance which of Apple's hosts are asked, which are down, and what was stopped, and say who goes
--   first in an incident (B9). And calls that are leased leave at even distances: whoever leases learns how many of the
--   slice are taken.
-- Locks: none worth naming. Cost: none.

-- How each worker sees each host: written by it every few seconds while it calls there or is kept from it.
create table apple_hosts (
    worker text not null,                       -- host name and process id
    service text not null,
    environment text not null,
    breaker text not null,
    probe_at timestamptz,                       -- of an open breaker: the next call that may find out
    concurrency_limit integer not null,
    in_flight integer not null,
    reported_at timestamptz not null,
    primary key (worker, service, environment),
    constraint apple_hosts_breaker check (breaker in ('closed', 'half_open', 'open'))
) with (fillfactor = 50);

-- One worker's hosts. What a worker has not said again for ten minutes goes: it is gone, or has nothing to say.
create function report_apple_hosts(
    worker text, services text[], environments text[], breakers text[], probes_in double precision[],
    concurrency_limits integer[], in_flights integer[])
returns void language sql security definer as $$
    delete from apple_hosts h where h.reported_at < now() - interval '10 minutes';
    insert into apple_hosts as h
    select $1, r.service, r.environment, r.breaker,
        case when r.breaker = 'open' then now() + make_interval(secs => r.probe_in) end,
        r.concurrency_limit, r.in_flight, now()
    from unnest($2, $3, $4, $5, $6, $7)
        as r(service, environment, breaker, probe_in, concurrency_limit, in_flight)
    on conflict on constraint apple_hosts_pkey do update
        set breaker = excluded.breaker, probe_at = excluded.probe_at, in_flight = excluded.in_flight,
            concurrency_limit = excluded.concurrency_limit, reported_at = excluded.reported_at
$$;

-- Who goes first where Apple limits an app's calls, for the time of an incident. After that, and without a row: fresh,
-- then repair, then sweep. The others keep this order among them.
create table lane_orders (
    app_id text primary key,
    first_lane text not null,
    until timestamptz not null,
    constraint lane_orders_first check (first_lane in ('fresh', 'repair', 'sweep'))
);

-- In which place a lane is: 1 to 3.
create function lane_place(app text, lane text) returns integer language sql stable as $$
    select array_position(array_prepend(first, array_remove('{fresh,repair,sweep}', first)), $2)
    from (select coalesce((select o.first_lane from lane_orders o where o.app_id = $1 and o.until > clock_timestamp()),
        'fresh') as first) f
$$;

-- As before, in the order that is in force (the columns fresh_… count the first lane, repair_… the second, sweep_… the
-- third), and `leased_before`: how many calls of the slice anybody leased before these. After a stop the budget comes
-- back over ten seconds, or everybody would be at Apple's door at once who was sent away from it.
--
-- Another result is another function; who might execute the old one may execute this one.
do $$
declare
    executors text[] := array(
        select case a.grantee when 0 then 'public' else a.grantee::regrole::text end
        from pg_proc p, aclexplode(p.proacl) a
        where p.oid = 'lease_calls(text, text, text, text, integer, integer, double precision)'::regprocedure
            and a.grantee <> p.proowner);
    executor text;
begin
    drop function lease_calls(text, text, text, text, integer, integer, double precision);
    execute $create$
create function lease_calls(
    app text, env text, place text, lane text, wanted integer, per_slice integer, seconds double precision)
returns table (leased integer, leased_before integer, ends_in double precision, stopped_for double precision)
language plpgsql as $body$
declare
    b call_budgets;
    at timestamptz;
    rank integer := lane_place(app, lane);
    kept_for_second integer;
begin
    perform set_config('synchronous_commit', 'off', true);
    loop
        select * into b from call_budgets c
        where c.app_id = app and c.environment = env and c.endpoint = place for no key update;
        exit when found;
        insert into call_budgets (app_id, environment, endpoint) values (app, env, place) on conflict do nothing;
    end loop;
    -- The clock is read after the lock: who waited for it may be in a later slice.
    at := date_bin(make_interval(secs => seconds), clock_timestamp(), timestamptz 'epoch');
    -- A slice of another length (half of the workers have a new configuration) is over when it is over; one that lies
    -- ahead is of a clock that was set back.
    if clock_timestamp() < b.slice_at or clock_timestamp() >= b.slice_at + make_interval(secs => b.slice_seconds) then
        b.fresh_expected := case when b.slice_at = at - make_interval(secs => seconds) then b.fresh_asked else 0 end;
        b.repair_expected := case when b.slice_at = at - make_interval(secs => seconds) then b.repair_asked else 0 end;
        b.fresh_leased := 0; b.repair_leased := 0; b.sweep_leased := 0; b.fresh_asked := 0; b.repair_asked := 0;
        b.slice_at := at; b.slice_seconds := seconds;
        b.calls := greatest(1, ceil(per_slice
            * least(1, coalesce(extract(epoch from clock_timestamp() - b.stopped_until) / 10, 1))));
    end if;
    kept_for_second := least(b.repair_expected, case
        when b.calls >= 10 then b.calls / 10
        when (extract(epoch from b.slice_at) / b.slice_seconds)::bigint % 10 = 0 then 1
        else 0 end);
    leased_before := b.fresh_leased + b.repair_leased + b.sweep_leased;
    stopped_for := greatest(0, coalesce(extract(epoch from b.stopped_until - clock_timestamp()), 0));
    leased := case when stopped_for > 0 then 0 else greatest(0, least(wanted,
        b.calls - leased_before - case rank
            when 1 then greatest(0, kept_for_second - b.repair_leased)
            when 2 then greatest(0, least(b.fresh_expected, b.calls - kept_for_second) - b.fresh_leased)
            else greatest(0, b.fresh_expected - b.fresh_leased)
                + greatest(0, b.repair_expected - b.repair_leased) end)) end;
    update call_budgets c set
        slice_at = b.slice_at, slice_seconds = b.slice_seconds, calls = b.calls,
        fresh_leased = b.fresh_leased + case rank when 1 then lease_calls.leased else 0 end,
        repair_leased = b.repair_leased + case rank when 2 then lease_calls.leased else 0 end,
        sweep_leased = b.sweep_leased + case rank when 3 then lease_calls.leased else 0 end,
        fresh_asked = b.fresh_asked + case rank when 1 then wanted else 0 end,
        repair_asked = b.repair_asked + case rank when 2 then wanted else 0 end,
        fresh_expected = b.fresh_expected, repair_expected = b.repair_expected
    where c.app_id = app and c.environment = env and c.endpoint = place;
    ends_in := extract(epoch from b.slice_at + make_interval(secs => b.slice_seconds) - clock_timestamp());
    return next;
end $body$ $create$;
    execute format('alter function lease_calls(text, text, text, text, integer, integer, double precision)
        set search_path = %I, pg_temp', current_schema());
    revoke execute on function lease_calls(text, text, text, text, integer, integer, double precision) from public;
    foreach executor in array executors loop
        execute format('grant execute on function
            lease_calls(text, text, text, text, integer, integer, double precision) to %s', executor);
    end loop;

    execute format('alter function lane_place(text, text) set search_path = %I, pg_temp', current_schema());
    revoke execute on function lane_place(text, text) from public;
    execute format('alter function
        report_apple_hosts(text, text[], text[], text[], double precision[], integer[], integer[])
        set search_path = %I, pg_temp', current_schema());
    revoke execute on function
        report_apple_hosts(text, text[], text[], text[], double precision[], integer[], integer[]) from public;
end $$;

-- As before, whatever the order.
create or replace view v_call_budgets as
select app_id, environment, endpoint, calls / slice_seconds as calls_per_second, slice_at as leased_at,
    leased[array_position(lanes, 'fresh')] / slice_seconds as fresh_per_second,
    leased[array_position(lanes, 'repair')] / slice_seconds as repairs_per_second,
    leased[array_position(lanes, 'sweep')] / slice_seconds as sweeps_per_second,
    case when stopped_until > now() then stopped_until end as stopped_until
from (
    select b.*, array[fresh_leased, repair_leased, sweep_leased] as leased,
        array_prepend(coalesce(first_lane, 'fresh'),
            array_remove('{fresh,repair,sweep}', coalesce(first_lane, 'fresh'))) as lanes
    from call_budgets b left join lane_orders o on o.app_id = b.app_id and o.until > now()) b;

-- Everything that keeps us from asking Apple, and how many calls are out: hosts as the workers saw them within the last
-- minute, budgets that were used in it or are stopped, halts.
create view v_apple as
select 'host' as what, null as app_id, service, environment, null as endpoint,
    case when bool_and(breaker <> 'closed') then 'down' when bool_or(breaker <> 'closed') then 'partly down'
        else 'up' end as state,
    min(probe_at) as until, count(*) as workers, count(*) filter (where breaker <> 'closed') as workers_down,
    sum(concurrency_limit) as concurrency_limit, sum(in_flight) as in_flight, null::double precision as calls_per_second
from apple_hosts where reported_at > now() - interval '1 minute' group by service, environment
union all
select 'budget', app_id, 'serverApi', environment, endpoint,
    case when stopped_until > now() then 'stopped by Apple' else 'up' end,
    case when stopped_until > now() then stopped_until end, null, null, null, null,
    case when slice_at > now() - make_interval(secs => 2 * slice_seconds)
        then (fresh_leased + repair_leased + sweep_leased) / slice_seconds else 0 end
from call_budgets where slice_at > now() - interval '1 minute' or stopped_until > now()
union all
select 'lanes', app_id, 'serverApi', null, null, first_lane || ' first', until, null, null, null, null, null
from lane_orders where until > now()
union all
select 'halt', app_id, service, environment, null, reason, probe_at, null, null, null, null, null
from halts;
