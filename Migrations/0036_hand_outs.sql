-- serves: 12
-- Why: a grant is worth nothing until the app's backend has handed the goods out, and nobody saw whether it had. The
--   backend acknowledges each event that gives or takes goods (S0-23). What is not acknowledged within the app's limit
--   is counted as a failure, by order number, and named (S0-13, S0-14, S1-33). Refund requests, books and timelines
--   tell what was delivered.
-- Locks: two views of the books, for a moment. Otherwise everything is new.
-- Cost: none until a backend acknowledges: then a row of some 150 bytes for each acknowledged event.
-- Programs of the version before: they acknowledge and count nothing, and count what was granted as delivered.

-- The apps whose backends acknowledge, and how far the schedulers have looked at their events.
create table hand_out_limits (
    app_id text collate "C" primary key,
    within interval,                            -- null: the backend acknowledges no longer
    since timestamptz not null default now(),   -- what was told before counts as delivered
    xid xid8 not null default pg_snapshot_xmin(pg_current_snapshot()),
    id bigint not null default 0                -- with `xid`: the last event that was looked at
);
comment on table hand_out_limits is
    'A row: an app whose backend acknowledges that it handed goods out. within: its limit; null: it acknowledges no longer.';

-- What became of the goods of an event. Event ids are digests, so the transaction comes first, as in the index of
-- events.
create table hand_outs (
    transaction_id text collate "C" not null,   -- of an order of another way of payment: the order's id
    event_id uuid not null,
    app_id text collate "C" not null,
    type text collate "C" not null,
    environment text collate "C" not null,      -- empty of an order of another way of payment
    told_at timestamptz not null,               -- when the event was written
    outcome text collate "C" not null,
    amount bigint,                              -- taken_back: what was really taken, in the app's own unit
    goods jsonb,                                -- taken_back: what was really taken
    reason text collate "C",                    -- of refused
    at timestamptz not null,                    -- when it was done, as the backend says
    reported_at timestamptz not null default now(),
    primary key (transaction_id, event_id),
    constraint hand_outs_outcome check (outcome in ('handed_out', 'taken_back', 'refused', 'void'))
);
create index hand_outs_told_at on hand_outs using brin (told_at) with (autosummarize = on);
comment on table hand_outs is
    'A row: an event whose goods the app''s backend handed out, took back or refused to hand out; void: nothing is to be handed out any more, because the purchase was taken back before or the user was erased.';

-- The counter of failures of the hand-out (S0-13). A row goes when the goods are handed out, or need not be any more.
create table hand_out_failures (
    app_id text collate "C" not null,
    number text collate "C" not null,           -- of the order; Apple's transaction id where there is none
    transaction_id text collate "C" not null,   -- with `event_id`: the event that waits, the newest
    event_id uuid not null,
    told_at timestamptz not null,
    failures integer not null,
    due_at timestamptz not null,                -- when a scheduler looks at it again
    primary key (app_id, number),
    constraint hand_out_failures_some check (failures > 0)
);
create index hand_out_failures_due on hand_out_failures (due_at);
comment on table hand_out_failures is
    'A row: an order or purchase whose goods the app''s backend did not hand out in time, or refused to hand out. failures: passed limits, up to 3, and refusals.';

-- `out`: the event tells the backend to hand goods out; `back`: to take them back; null: neither. An imported purchase
-- is taken back without goods, because the former system gave it. The catalogue need not know the goods of an order.
create function goods_way(type text, body jsonb) returns text language sql immutable as $$
    select case
        when type = 'order.paid' and coalesce(body -> 'goods', 'null') <> '[]' then 'out'
        when type = 'order.refunded' then 'back'
        when body -> 'takeBack' = 'false' then null
        when type in ('purchase.granted', 'purchase.reinstated') and jsonb_array_length(body -> 'goods') > 0 then 'out'
        when type = 'purchase.revoked'
            and (jsonb_array_length(body -> 'goods') > 0 or body -> 'imported' = 'true') then 'back' end
$$;

-- The key of the counter.
create function hand_out_number(trans text) returns text language sql stable as $$
    select coalesce((select order_id::text from grants where transaction_id = trans), trans)
$$;

-- When the goods of a purchase or an order were handed out, as the backend says; null: it has not said so.
create function delivered_at(trans text) returns timestamptz language sql stable as $$
    select max(at) from hand_outs where transaction_id = trans and outcome = 'handed_out'
$$;

-- Whether the backend of an app that acknowledges has not handed out the goods of a grant.
create function is_undelivered(trans text) returns boolean language sql stable as $$
    select exists (
        select from grants g join hand_out_limits l on l.app_id = g.app_id and l.within is not null
        where g.transaction_id = trans and g.granted_at >= l.since and jsonb_array_length(g.goods) > 0
            and delivered_at(trans) is null)
$$;

-- Whether nothing is to be handed out any more by an event: all of the purchase was taken back since, or the user was
-- erased.
create function is_hand_out_void(app text, usr text, trans text, told_xid xid8, told_id bigint) returns boolean
language sql stable as $$
    select usr ~ '^erased_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
        or (select true from users where app_id = app and user_key = usr and erased_at is not null) is true
        or (select true from events
            where transaction_id = trans and (xid, id) > (told_xid, told_id) and goods_way(type, body) = 'back'
                and coalesce(body -> 'percentage', '100000') = '100000' limit 1) is true
$$;

-- Stores what the backend did by an event, once. Answers with a word and with what is stored now:
--   stored     it is new
--   repeated   the same was reported before
--   conflict   another outcome is stored, which stays
--   unknown    these apps have no such event
--   no_goods   the event gives and takes no goods
--   other_way  the event takes goods back and the outcome says that they were handed out, or the other way round
-- A refusal is followed by another one only if that has a later time, which then counts as one more failure.
create function handle_event(apps text[], trans text, event uuid, done text, units bigint, taken jsonb, why text,
    done_at timestamptz)
returns table (word text, outcome text, at timestamptz, failures integer) language plpgsql security definer as $$
declare
    e record;
    h hand_outs;
    key text := hand_out_number(trans);
begin
    select v.app_id, v.type, v.at, coalesce(v.body ->> 'environment', '') as environment,
        goods_way(v.type, v.body) as way into e
        from events v where v.transaction_id = trans and v.event_id = event and v.app_id || '' = any(apps);
    word := case when not found then 'unknown' when e.way is null then 'no_goods'
        when (e.way = 'back') <> (done = 'taken_back') then 'other_way' else 'stored' end;
    if word <> 'stored' then
        return next;
        return;
    end if;
    insert into hand_outs as s (transaction_id, event_id, app_id, type, environment, told_at, outcome, amount, goods,
        reason, at)
    values (trans, event, e.app_id, e.type, e.environment, e.at, done, units, taken, why, coalesce(done_at, now()))
    on conflict (transaction_id, event_id) do update set outcome = excluded.outcome, amount = excluded.amount,
        goods = excluded.goods, reason = excluded.reason, at = excluded.at, reported_at = now()
        where s.outcome = 'void' or s.outcome = 'refused' and (done <> 'refused' or done_at > s.at)
    returning s.* into h;
    if not found then
        select * into h from hand_outs s where s.transaction_id = trans and s.event_id = event;
        word := case when h.outcome = done and (done = 'refused'
            or (h.amount, h.goods) is not distinct from (units, taken)) then 'repeated' else 'conflict' end;
    elsif done = 'refused' then
        insert into hand_out_failures as f (app_id, number, transaction_id, event_id, told_at, failures, due_at)
        select e.app_id, key, trans, event, e.at, 1, now() + l.within
        from hand_out_limits l where l.app_id = e.app_id and l.within is not null
        on conflict (app_id, number) do update set failures = f.failures + 1, transaction_id = trans,
            event_id = event, told_at = excluded.told_at;
    else
        delete from hand_out_failures f where f.app_id = e.app_id and f.number = key;
    end if;
    outcome := h.outcome;
    at := h.at;
    failures := coalesce((select f.failures from hand_out_failures f where f.app_id = e.app_id and f.number = key), 0);
    return next;
end $$;

-- Looks at the next events of one app whose limit has passed, and counts those that nobody acknowledged. An event that
-- is acknowledged at this moment may be counted all the same: the views leave it out, and recount_hand_outs ends it.
create function count_late_hand_outs(app text, most integer) returns bigint
language plpgsql security definer as $$
declare
    a hand_out_limits;
    seen bigint;
begin
    select * into a from hand_out_limits where app_id = app and within is not null for no key update skip locked;
    if not found then return 0; end if;
    -- A server that has counted further (a dump was restored) would never be reached.
    a.xid := least(a.xid, pg_snapshot_xmin(pg_current_snapshot()));
    with ahead as materialized (
        select e.*, bool_and(e.at < now() - a.within) over (order by e.xid, e.id) as is_passed
        from (
            select xid, id, event_id, transaction_id, type, user_id, body, at from events
            where app_id = app and (xid, id) > (a.xid, a.id) and xid < pg_snapshot_xmin(pg_current_snapshot())
            order by xid, id limit most) e),
    moved as (
        update hand_out_limits set xid = l.xid, id = l.id
        from (select xid, id from ahead where is_passed order by xid desc, id desc limit 1) l where app_id = app),
    late as materialized (
        select p.*, is_hand_out_void(app, p.user_id, p.transaction_id, p.xid, p.id) as is_void
        from ahead p
        where p.is_passed and goods_way(p.type, p.body) = 'out' and (
            select true from hand_outs h
            where h.transaction_id = p.transaction_id and h.event_id = p.event_id and h.outcome <> 'refused') is null),
    ended as (
        insert into hand_outs (transaction_id, event_id, app_id, type, environment, told_at, outcome, at)
        select transaction_id, event_id, app, type, coalesce(body ->> 'environment', ''), at, 'void', now()
        from late where is_void
        on conflict (transaction_id, event_id) do update set outcome = 'void', at = now(), reported_at = now()
            where hand_outs.outcome = 'refused'),
    counted as (
        insert into hand_out_failures as f (app_id, number, transaction_id, event_id, told_at, failures, due_at)
        select distinct on (n.number) app, n.number, transaction_id, event_id, at, 1, now() + a.within
        from late cross join lateral (select hand_out_number(transaction_id) as number) n
        where not is_void order by n.number, xid desc, id desc
        on conflict (app_id, number) do update set failures = greatest(f.failures, least(f.failures + 1, 3)),
            transaction_id = excluded.transaction_id, event_id = excluded.event_id, told_at = excluded.told_at)
    select count(*) into seen from ahead where is_passed;
    return seen;
end $$;

-- Looks again at failures whose limit has passed once more: counts them up to three (S0-14), and ends those that are
-- acknowledged or void. Returns how many it looked at.
create function recount_hand_outs(most integer) returns bigint language plpgsql security definer as $$
declare
    seen bigint;
begin
    with due as materialized (
        select f.app_id, f.number, f.transaction_id, f.event_id, f.told_at, e.type, e.environment, l.within,
            h.is_done, e.is_void
        from (
            select * from hand_out_failures where due_at <= now() order by due_at limit most
            for no key update skip locked) f
        left join hand_out_limits l on l.app_id = f.app_id
        left join lateral (
            select v.type, coalesce(v.body ->> 'environment', '') as environment,
                is_hand_out_void(v.app_id, v.user_id, v.transaction_id, v.xid, v.id) as is_void
            from events v where v.transaction_id = f.transaction_id and v.event_id = f.event_id offset 0) e on true
        left join lateral (
            select outcome <> 'refused' as is_done from hand_outs
            where transaction_id = f.transaction_id and event_id = f.event_id offset 0) h on true),
    ended as (
        insert into hand_outs (transaction_id, event_id, app_id, type, environment, told_at, outcome, at)
        select transaction_id, event_id, app_id, type, environment, told_at, 'void', now()
        from due where is_void and is_done is not true
        on conflict (transaction_id, event_id) do update set outcome = 'void', at = now(), reported_at = now()
            where hand_outs.outcome = 'refused'),
    gone as (
        delete from hand_out_failures f using due d
        where f.app_id = d.app_id and f.number = d.number and (d.is_done or d.is_void or d.within is null)),
    counted as (
        update hand_out_failures f set failures = greatest(f.failures, least(f.failures + 1, 3)),
            due_at = now() + d.within
        from due d where f.app_id = d.app_id and f.number = d.number
            and d.is_done is not true and d.is_void is not true and d.within is not null)
    select count(*) into seen from due;
    return seen;
end $$;

create view v_hand_outs_waiting as
select f.app_id, e.environment, f.number as order_number, f.transaction_id, f.event_id, e.type, e.user_id, f.failures,
    f.failures >= 3 as needs_person, case when h.outcome is null then 'waiting' else h.outcome end as state, h.reason,
    f.told_at as since, extract(epoch from l.within)::float8 as limit_seconds,
    extract(epoch from now() - f.told_at)::float8 as waited_seconds,
    'makegood explain ' || f.transaction_id as command
from hand_out_failures f
join hand_out_limits l on l.app_id = f.app_id and l.within is not null
cross join lateral (
    select type, user_id, coalesce(body ->> 'environment', '') as environment from events
    where transaction_id = f.transaction_id and event_id = f.event_id offset 0) e
left join lateral (
    select outcome, reason from hand_outs
    where transaction_id = f.transaction_id and event_id = f.event_id offset 0) h on true
where coalesce(h.outcome, 'refused') = 'refused';
comment on view v_hand_outs_waiting is
    'Goods that an app''s backend did not hand out within the app''s limit, or refused to hand out (S0-23, S1-33). A row: an order or purchase. order_number: of the order, Apple''s transaction id where there is none; failures: passed limits, up to 3, and refusals; needs_person: 3 or more; state: waiting or refused, by reason; since: when the event was written; limit_seconds, waited_seconds: since then. command: what tells its story. Apps whose backends do not acknowledge have no rows.';

-- As in 0027_books.sql, but for the account of hand-outs: what was announced, and what the app's backend acknowledged.
-- An event that takes goods back is an item, and no part of the balance: what the user spent is the app's business.
create or replace view v_clearing_by_span as
select d.unit, d.since, (d.since at time zone 'UTC')::date as day, i.app_id, i.environment, i.account, i.source, i.state,
    i.items, i.balance, i.oldest_at
from (
    select unit, since, since + length as until
    from (values ('day', interval '1 day'), ('hour', interval '1 hour')) u(unit, length)
    cross join lateral generate_series((date_trunc('day', now() at time zone 'UTC') - interval '400 days')
        at time zone 'UTC', now(), length) s(since)) d
cross join lateral (
    select 'receipts' as account, app_id, '' as environment, source, state, count(*) as items,
        count(*) filter (where state = 'received') as balance,
        min(received_at) filter (where state = 'received') as oldest_at
    from receipts where received_at >= d.since and received_at < d.until group by 2, 3, 4, 5
    union all
    select 'notifications', coalesce(app_id, ''), coalesce(environment, ''), came_by, state, count(*),
        count(*) filter (where state = 'received'), min(received_at) filter (where state = 'received')
    from notifications where received_at >= d.since and received_at < d.until group by 2, 3, 4, 5
    union all
    select 'grants', app_id, environment, binding_source,
        case when is_told then 'announced' else 'unannounced' end, count(*),
        count(*) filter (where is_told is null), min(granted_at) filter (where is_told is null)
    from (
        select transaction_id, app_id, environment, binding_source, granted_at from grants
        where granted_at >= d.since and granted_at < d.until offset 0) g
    full join (
        select transaction_id, true as is_told from events
        where at >= d.since and at < d.until and type = 'purchase.granted' offset 0) e using (transaction_id)
    -- Not `is not null`, by which the planner would make another join of it.
    where coalesce(app_id, '') <> '' group by 2, 3, 4, 5
    union all
    select 'hand-outs', app_id, environment, type, state, count(*), count(*) filter (where is_open),
        min(at) filter (where is_open)
    from (
        select app_id, coalesce(body ->> 'environment', '') as environment, type, at,
            coalesce(outcome, case way when 'out' then 'waiting' else 'not acknowledged' end) as state,
            way = 'out' and coalesce(outcome, 'refused') = 'refused' as is_open
        from (
            select e.app_id, e.transaction_id, e.event_id, e.type, e.body, e.at, goods_way(e.type, e.body) as way
            from events e join hand_out_limits l on l.app_id = e.app_id and l.within is not null and e.at >= l.since
            where e.at >= d.since and e.at < d.until and goods_way(e.type, e.body) is not null offset 0) e
        full join (
            select transaction_id, event_id, outcome from hand_outs
            where told_at >= d.since and told_at < d.until offset 0) h using (transaction_id, event_id)
        where coalesce(app_id, '') <> '') w group by 2, 3, 4, 5
    union all
    select 'ends', app_id, environment, reason, kind, count(*), 0, null
    from revocations where recorded_at >= d.since and recorded_at < d.until group by 2, 3, 4, 5
    union all
    select 'ends', app_id, environment, 'refunded', 'not ' || missing, count(*), count(*), min(since)
    from v_open_ends where at >= d.since and at < d.until group by 2, 3, 4, 5
    union all
    select 'refund requests', app_id, environment, '', state, count(*), count(*) filter (where state = 'open'),
        min(asked_at) filter (where state = 'open')
    from refund_requests where asked_at >= d.since and asked_at < d.until group by 2, 3, 4, 5
    union all
    select 'Apple updates', app_id, environment, kind, state, count(*), count(*) filter (where due_at is not null),
        min(created_at) filter (where due_at is not null)
    from apple_updates where created_at >= d.since and created_at < d.until group by 2, 3, 4, 5) i;
comment on view v_clearing is
    'What came in on a day, and what became of it (L1): each account must come to a balance of zero. A row: day of arrival (UTC, of the last 400 days), app (empty: no app here), environment (empty: not known yet), account, source, state. source: the net of a receipt or notification, the binding source of a grant, the reason of an end, the kind of an Apple update, the type of the event of a hand-out. items: all of them; balance: those of which nothing has become yet; oldest_at: of the balance. Ask for a span of day: each day reads its rows.';

create or replace view v_clearing_overdue as
with paused as (select distinct app_id from halts where service = '*')
select account, i.app_id, environment, id, state, reason, since, limit_seconds,
    extract(epoch from now() - since)::float8 as age_seconds,
    case when p.app_id is not null then 'makegood queue resume --app ' || i.app_id else command end as command
from (
    select 'receipts' as account, app_id, '' as environment, id::text as id, state, coalesce(reason, '') as reason,
        coalesce(claimed_at, received_at) as since, case source when 'post' then 3600 else 90000 end as limit_seconds,
        'makegood explain ' || id as command
    from receipts where due_at is not null and state = 'received'
    union all
    select 'notifications', coalesce(app_id, ''), coalesce(environment, ''), id::text, state, coalesce(reason, ''),
        received_at, 600, 'makegood queue status'
    from notifications where due_at is not null and state = 'received'
    union all
    select 'grants', app_id, environment, transaction_id, 'unannounced', '', granted_at, 0,
        'makegood explain ' || transaction_id
    from (
        select transaction_id, app_id, environment, granted_at from grants
        where granted_at >= now() - interval '1 day' offset 0) g
    full join (
        select transaction_id, true as is_told from events
        where at >= now() - interval '1 day' and type = 'purchase.granted' offset 0) e using (transaction_id)
    where coalesce(app_id, '') <> '' and is_told is null
    union all
    select 'hand-outs', app_id, environment, transaction_id, state, coalesce(reason, ''), since, limit_seconds::int,
        command
    from v_hand_outs_waiting
    union all
    select 'ends', app_id, environment, transaction_id, 'not ' || missing, '', since, 600,
        'makegood explain ' || transaction_id
    from v_open_ends where at >= now() - interval '7 days'
    union all
    select 'refund requests', app_id, environment, notification_id::text, state, coalesce(reason, ''), asked_at, 43200,
        'makegood support refund-request show ' || case_id
    from refund_requests where due_at is not null
    union all
    select 'Apple updates', app_id, environment, transaction_id, state, coalesce(reason, ''), created_at, 86400,
        'makegood explain ' || transaction_id
    from apple_updates where due_at is not null) i
left join paused p on p.app_id = i.app_id
where since < now() - make_interval(secs => limit_seconds);
comment on view v_clearing_overdue is
    'Items of v_clearing of which nothing has become for longer than the limit of their account. A row: an item. id: of the receipt, notification or refund request, otherwise Apple''s of the transaction. since: the start of the wait; limit_seconds: of a posted receipt the default of MAKEGOOD_WAITING_LIMIT_SECONDS. command: mends the item, or says what keeps it. Grants of the last day, ends of the last 7; hand-outs of apps whose backends acknowledge.';

-- As at the end of 0001_receipts.sql.
do $$
declare
    name text;
begin
    foreach name in array array['hand_out_number(text)', 'delivered_at(text)', 'is_undelivered(text)', 'is_hand_out_void(text, text, text, xid8, bigint)',
        'handle_event(text[], text, uuid, text, bigint, jsonb, text, timestamptz)', 'count_late_hand_outs(text, integer)',
        'recount_hand_outs(integer)']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', name, current_schema());
        execute format('revoke execute on function %s from public', name);
    end loop;
end $$;
