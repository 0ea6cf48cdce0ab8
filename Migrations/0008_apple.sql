-- Why: this migration holds what all workers together must know of Apple: which of its services are halted because of
--   our own mistake, how many calls are left within Apple's limits, which hosts are down, how far a customer's purchase
--   history was read, and what Apple is still to be told after a purchase was decided.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

-- Halts for our own misconfiguration, or pauses by hand: receipts that need this service wait, and none is rejected for
-- it.
create table halts (
    app_id text collate "C" not null,
    service text collate "C" not null,          -- verifyReceipt, serverApi, or * for a pause
    environment text collate "C" not null,
    credential text collate "C" not null,       -- a hash of the key or secret: a corrected one is not halted
    reason text collate "C" not null,
    since timestamptz not null default now(),
    probe_at timestamptz not null,
    primary key (app_id, service, environment, credential)
);

-- Ends one halt and makes the rows that waited for it due. Returns how many rows.
create function end_halt(app text, service text, environment text, credential text) returns bigint
language sql security definer as $$
    with ended as (
        delete from halts
        where app_id = $1 and halts.service = $2 and halts.environment = $3 and halts.credential = $4
        returning app_id),
    freed as (
        update receipts set due_at = now()
        where lane in ('local', 'apple', 'bulk') and app_id in (select app_id from ended) and reason = 'halted'
            and due_at > now()
        returning id)
    select count(*) from freed
$$;

-- Ends the halts of an app with other credentials than these, except pauses, and makes the rows that waited for them
-- due.
create function end_stale_halts(app text, credentials text[]) returns bigint
language sql security definer as $$
    with ended as (
        delete from halts where app_id = $1 and service <> '*' and credential <> all($2)
        returning app_id),
    freed as (
        update receipts set due_at = now()
        where lane in ('local', 'apple', 'bulk') and app_id in (select app_id from ended) and reason = 'halted'
            and due_at > now()
        returning id)
    select count(*) from freed
$$;

-- The calls that workers have leased. Apple limits the calls of an app per endpoint, and all workers together must keep
-- to the limit. The workers lease calls for a slice of time, a quarter of a second as a rule: one statement per worker
-- and slice, not per call. One row per app, environment and endpoint: the slice in which calls were leased last. Where
-- `lane_orders` sets another order, the columns fresh_… count the first lane, repair_… the second and sweep_… the
-- third.
create table call_budgets (
    app_id text collate "C" not null,
    environment text collate "C" not null,
    endpoint text collate "C" not null,
    slice_at timestamptz not null default '-infinity',  -- when the slice began
    slice_seconds double precision not null default 1,
    calls integer not null default 0,           -- how many Apple allows in it
    fresh_leased integer not null default 0,    -- in this slice: for purchases that no worker looked at yet,
    repair_leased integer not null default 0,   -- for purchases that were tried before,
    sweep_leased integer not null default 0,    -- and for the search for purchases that no message told us of
    fresh_asked integer not null default 0,
    repair_asked integer not null default 0,
    fresh_expected integer not null default 0,  -- how many the slice before asked for
    repair_expected integer not null default 0,
    stopped_until timestamptz,                  -- Apple's Retry-After, for all workers
    primary key (app_id, environment, endpoint)
) with (fillfactor = 50);

-- The lane that goes first where Apple limits an app's calls, for the time of an incident. After that time, and without
-- a row, the order is fresh, repair, sweep. The other lanes keep this order among them.
create table lane_orders (
    app_id text collate "C" primary key,
    first_lane text collate "C" not null,
    until timestamptz not null,
    constraint lane_orders_first check (first_lane in ('fresh', 'repair', 'sweep'))
);

-- The place of a lane: 1 to 3.
create function lane_place(app text, lane text) returns integer language sql stable as $$
    select array_position(array_prepend(first, array_remove('{fresh,repair,sweep}', first)), $2)
    from (select coalesce((select o.first_lane from lane_orders o where o.app_id = $1 and o.until > clock_timestamp()),
        'fresh') as first) f
$$;

-- Leases up to `wanted` calls of this lane until the slice ends. A lane leaves as many calls to the lanes before it as
-- they asked for in the slice before, and may lease the rest. A tenth of the calls is kept for the second lane, so that
-- purchases which were put off end even under constant load: a tenth of each slice, or one call of every tenth slice
-- where slices are small. `leased_before` is how many calls of the slice were leased before these; with it the worker
-- spaces its calls evenly. After a stop the budget comes back over ten seconds; without that all callers that Apple
-- sent away would come back at once.
--
-- A crash may lose a slice (synchronous_commit is off): then workers may make the calls of a quarter of a second twice.
create function lease_calls(
    app text, env text, place text, lane text, wanted integer, per_slice integer, seconds double precision)
returns table (leased integer, leased_before integer, ends_in double precision, stopped_for double precision)
language plpgsql as $$
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
    -- The clock is read after the lock, because a caller that waited for the lock may be in a later slice.
    at := date_bin(make_interval(secs => seconds), clock_timestamp(), timestamptz 'epoch');
    -- A slice of another length (half of the workers have a new configuration) ends at its own end. A slice that lies
    -- ahead is of a clock that was set back, and is replaced.
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
end $$;

-- How each worker sees each of Apple's hosts. A worker writes its rows every few seconds while it calls the host or is
-- kept from it.
create table apple_hosts (
    worker text collate "C" not null,           -- host name and process id
    service text collate "C" not null,
    environment text collate "C" not null,
    breaker text collate "C" not null,
    probe_at timestamptz,                       -- of an open breaker: when the next call may test the host
    concurrency_limit integer not null,
    in_flight integer not null,
    reported_at timestamptz not null,
    primary key (worker, service, environment),
    constraint apple_hosts_breaker check (breaker in ('closed', 'half_open', 'open'))
) with (fillfactor = 50);

-- Writes one worker's hosts. Deletes rows that no worker has written for ten minutes: their worker is gone, or has
-- nothing to report.
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

-- The last walk through each customer's purchase history. A legacy receipt may list hundreds of purchases. A worker
-- reads those that are unknown here from Apple's history, page by page, at most once per customer and hour, whoever
-- posts how many receipts; every receipt uses what a walk has read. One row per customer whose history was ever read.
create table history_walks (
    app_id text collate "C" not null,
    environment text collate "C" not null,
    customer text collate "C" not null,         -- Apple's appTransactionId, or an original transaction id
    asked_id text collate "C" not null,         -- the id that Apple was asked with; the same for all pages
    begun_at timestamptz not null default now(),
    busy_until timestamptz not null,            -- until then no other reader reads on: this one may still work
    revision text collate "C",                  -- behind the last stored page; null: none yet, or it has ended
    ended_at timestamptz,                       -- all pages are stored
    reader bigint not null default 1,           -- counts the claims: a reader that lost the walk stores no page
    primary key (app_id, environment, customer),
    constraint history_walks_ended check (ended_at is null or revision is null)
);

-- What Apple is to be told of a purchase after it was decided: our order becomes its token, so that renewals and
-- refunds carry the right account, and the purchase is finished. The transaction that decides the purchase writes
-- the row.
create table apple_updates (
    transaction_id text collate "C" not null,
    kind text collate "C" not null,
    app_id text collate "C" not null,
    environment text collate "C" not null,
    original_transaction_id text collate "C" not null,
    purchased_at timestamptz not null,          -- the latest purchase of a chain decides which token counts
    token uuid,
    state text collate "C" not null default 'open',
    attempt int not null default 0,
    reason text collate "C",                    -- of the last try, or why it ended without success
    http_status int,                            -- the last answer
    code bigint,
    created_at timestamptz not null default now(),
    due_at timestamptz default now(),
    ended_at timestamptz,
    former_tokens uuid[] not null default '{}', -- replaced by a support decision; still ours if Apple sends them
    primary key (transaction_id, kind),
    constraint apple_updates_kind check (kind in ('set_token', 'finish')),
    constraint apple_updates_token check ((kind = 'set_token') = (token is not null)),
    constraint apple_updates_state check (state in ('open', 'parked', 'done', 'refused', 'superseded')),
    constraint apple_updates_due check ((state in ('open', 'parked')) = (due_at is not null)),
    constraint apple_updates_ended check ((due_at is null) = (ended_at is not null))
);
create index apple_updates_due on apple_updates (app_id, environment, kind, due_at) where due_at is not null;
create index apple_updates_created_at on apple_updates using brin (created_at) with (autosummarize = on);
-- Finds the tokens of a chain that are ours, and which of them counts.
create index apple_updates_of_chain on apple_updates (original_transaction_id, token) where kind = 'set_token';

-- As at the end of 0001_receipts.sql.
do $$
declare
    signature text;
begin
    foreach signature in array array[
        'end_halt(text, text, text, text)', 'end_stale_halts(text, text[])', 'lane_place(text, text)',
        'lease_calls(text, text, text, text, integer, integer, double precision)',
        'report_apple_hosts(text, text[], text[], text[], double precision[], integer[], integer[])']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
