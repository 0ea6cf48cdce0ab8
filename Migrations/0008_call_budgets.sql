-- serves: 1
-- Why: Apple limits the calls of an app per endpoint, and all workers together must keep to it (B9). They lease calls for
--   a slice of time, a quarter of a second as a rule, so there is a statement per worker and slice, not per call.
-- Locks: none worth naming, everything is new. Cost: none.

-- One row per app, environment and endpoint: the slice in which calls were leased last.
create table call_budgets (
    app_id text not null,
    environment text not null,
    endpoint text not null,
    slice_at timestamptz not null default '-infinity',  -- when it began
    slice_seconds double precision not null default 1,
    calls integer not null default 0,           -- that Apple allows in it
    fresh_leased integer not null default 0,    -- in this slice: for purchases nobody looked at yet,
    repair_leased integer not null default 0,   -- for those that come again,
    sweep_leased integer not null default 0,    -- and to look for what no message told us
    fresh_asked integer not null default 0,
    repair_asked integer not null default 0,
    fresh_expected integer not null default 0,  -- what the slice before asked for
    repair_expected integer not null default 0,
    stopped_until timestamptz,                  -- Apple's Retry-After, for everybody
    primary key (app_id, environment, endpoint)
) with (fillfactor = 50);

-- Leases up to `wanted` calls of this lane until the slice ends. Fresh purchases first, then repairs, then sweeps: a lane
-- leaves what those before it asked for in the slice before, and takes what they leave. A tenth is kept for repairs, so
-- that what was put off ends under a load that never lets up: of each slice, or every tenth slice where it is small.
--
-- A crash may forget a slice (synchronous_commit is off): then so many calls may be made twice in a quarter of a second.
create function lease_calls(
    app text, env text, place text, lane text, wanted integer, per_slice integer, seconds double precision)
returns table (leased integer, ends_in double precision, stopped_for double precision)
language plpgsql as $$
declare
    b call_budgets;
    at timestamptz;
    room integer;
    kept_for_repairs integer;
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
        b.slice_at := at; b.slice_seconds := seconds; b.calls := per_slice;
    end if;
    kept_for_repairs := least(b.repair_expected, case
        when b.calls >= 10 then b.calls / 10
        when (extract(epoch from b.slice_at) / b.slice_seconds)::bigint % 10 = 0 then 1
        else 0 end);
    room := b.calls - b.fresh_leased - b.repair_leased - b.sweep_leased - case lane
        when 'fresh' then greatest(0, kept_for_repairs - b.repair_leased)
        when 'repair' then greatest(0, least(b.fresh_expected, b.calls - kept_for_repairs) - b.fresh_leased)
        else greatest(0, b.fresh_expected - b.fresh_leased) + greatest(0, b.repair_expected - b.repair_leased) end;
    stopped_for := greatest(0, coalesce(extract(epoch from b.stopped_until - clock_timestamp()), 0));
    leased := case when stopped_for > 0 then 0 else greatest(0, least(wanted, room)) end;
    update call_budgets c set
        slice_at = b.slice_at, slice_seconds = b.slice_seconds, calls = b.calls,
        fresh_leased = b.fresh_leased + case lane when 'fresh' then lease_calls.leased else 0 end,
        repair_leased = b.repair_leased + case lane when 'repair' then lease_calls.leased else 0 end,
        sweep_leased = b.sweep_leased + case lane when 'sweep' then lease_calls.leased else 0 end,
        fresh_asked = b.fresh_asked + case lane when 'fresh' then wanted else 0 end,
        repair_asked = b.repair_asked + case lane when 'repair' then wanted else 0 end,
        fresh_expected = b.fresh_expected, repair_expected = b.repair_expected
    where c.app_id = app and c.environment = env and c.endpoint = place;
    ends_in := extract(epoch from b.slice_at + make_interval(secs => b.slice_seconds) - clock_timestamp());
    return next;
end $$;

-- What is leased now, and what Apple has stopped.
create view v_call_budgets as
select app_id, environment, endpoint, calls / slice_seconds as calls_per_second,
    slice_at as leased_at, fresh_leased / slice_seconds as fresh_per_second,
    repair_leased / slice_seconds as repairs_per_second, sweep_leased / slice_seconds as sweeps_per_second,
    case when stopped_until > now() then stopped_until end as stopped_until
from call_budgets;

do $$
begin
    execute format('alter function lease_calls(text, text, text, text, integer, integer, double precision)
        set search_path = %I, pg_temp', current_schema());
    revoke execute on function lease_calls(text, text, text, text, integer, integer, double precision) from public;
end $$;
