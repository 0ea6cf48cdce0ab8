-- serves: 12
-- Why: an operator must see each morning, by figures, that nothing is missing (L1, L4, L6): what came in and what became
--   of it, what is open for longer than it may be and which command mends it, and what arrives no more although it was
--   always there.
-- Locks: refund_requests against the writers of refund requests, for the time in which a small index is built.
-- Cost: the index reads refund_requests once. The schedulers then sum four weeks of arrivals, an hour at a time.

create index refund_requests_asked_at on refund_requests using brin (asked_at) with (autosummarize = on);

-- Arrivals by hour: the sums of all arrivals before `arrivals_progress.summed_to`, and of none after. An hour without an
-- arrival has no row. Rows stay for ever: an app has some twenty in an hour.
create table arrivals_by_hour (
    hour timestamptz not null,
    app_id text collate "C" not null,
    environment text collate "C" not null,      -- empty of receipts: nobody has read their proof when they arrive
    kind text collate "C" not null,
    type text collate "C" not null,             -- of a notification; otherwise empty
    arrivals bigint not null,
    primary key (hour, app_id, environment, kind, type),
    constraint arrivals_by_hour_kind check (kind in ('receipts', 'notifications', 'grants'))
);
comment on table arrivals_by_hour is
    'A row: an hour, app, environment, kind and type of arrivals. receipts: posted ones; notifications: those that Apple sent by itself, without tests; grants: transactions.';

-- How far the sums are, as `goods_by_day_progress` (0011_sums.sql). One row.
create table arrivals_progress (
    is_only boolean primary key default true,
    summed_to timestamptz not null,
    complete_to timestamptz not null,
    complete_xid xid8 not null,
    constraint arrivals_progress_one_row check (is_only),
    constraint arrivals_progress_order check (summed_to <= complete_to)
);
-- Four weeks, and the longest span that is compared with them.
insert into arrivals_progress (summed_to, complete_to, complete_xid)
select at, at, pg_current_xact_id()
from (select date_trunc('hour', now(), 'UTC') - interval '32 days') first_hour(at);

-- The report of each past day (UTC). A row is written once.
create table daily_reports (
    day date primary key,
    report jsonb not null,                      -- as `makegood report --json` prints it
    written_at timestamptz not null default now()
);
comment on table daily_reports is
    'A row: the report of a day (UTC), as it stood on the morning after. A scheduler writes it once.';

-- Arrivals.

-- Each span ends with the last whole hour that is summed. The same span of an earlier week counts with the fewest
-- arrivals of three: of the same hours, and of those an hour before and after, because people's habits move by an hour
-- where daylight-saving time begins or ends. Each span is a range of the key.
create view v_timeliness as
with span as (
    select hours, week, shift, until, until - make_interval(days => 7 * week, hours => hours - shift) as since,
        until - make_interval(days => 7 * week, hours => -shift) as upto
    from (select date_trunc('hour', summed_to, 'UTC') as until from arrivals_progress) p
    cross join (values (1), (6), (24), (72)) w(hours)
    cross join (values (0, 0), (1, -1), (1, 0), (1, 1), (2, -1), (2, 0), (2, 1), (3, -1), (3, 0), (3, 1), (4, -1),
        (4, 0), (4, 1)) k(week, shift)),
counted as (
    select a.app_id, a.environment, a.kind, a.type, s.hours, s.until, s.week, s.shift, sum(a.arrivals) as n
    from span s join arrivals_by_hour a on a.hour >= s.since and a.hour < s.upto
    group by 1, 2, 3, 4, 5, 6, 7, 8),
of_week as (
    select app_id, environment, kind, type, hours, until, week,
        case when week = 0 or count(*) = 3 then min(n) else 0 end as n
    from counted group by 1, 2, 3, 4, 5, 6, 7)
select app_id, environment, kind, type, hours, until, coalesce(sum(n) filter (where week = 0), 0)::bigint as arrivals,
    array[coalesce(sum(n) filter (where week = 1), 0), coalesce(sum(n) filter (where week = 2), 0),
        coalesce(sum(n) filter (where week = 3), 0), coalesce(sum(n) filter (where week = 4), 0)]::bigint[] as weeks
from of_week group by 1, 2, 3, 4, 5, 6;
comment on view v_timeliness is
    'What arrived in the last whole hours, beside the same hours of the four weeks before (L4). A row: app, environment (empty of receipts), kind (receipts, notifications, grants), type of notification, hours of the span. until: the end of the span; weeks: arrivals in the same hours one to four weeks before, the fewest where the hours are moved by one. The program decides what is late (makegood_arrivals_late).';

-- Clearing.

-- What Apple took back or gave back, and no follow-up has told: the rule of the invariant refunds_revoked, and the ends
-- that wait for their follow-up. Refunds that were old when migration 17 came are told to nobody. The view names such
-- refunds on their days.
create view v_open_ends as
select t.app_id, t.environment, t.transaction_id, 'revoked' as missing, t.revoked_at as at,
    coalesce(m.marked_at, case when c.due_at <= now() then c.due_at end, f.signed_at, t.revoked_at) as since
from v_ended_purchases t
cross join lateral (select from grants where transaction_id = t.transaction_id offset 0) g
cross join lateral (select signed_at from transactions where transaction_id = t.transaction_id offset 0) f
left join (
    select app_id, environment, original_transaction_id, min(marked_at) as marked_at
    from chain_marks group by 1, 2, 3) m
    on m.app_id = t.app_id and m.environment = t.environment and m.original_transaction_id = t.original_transaction_id
left join lateral (
    select due_at from chains
    where app_id = t.app_id and environment = t.environment and original_transaction_id = t.original_transaction_id
    offset 0) c on true
where t.revoked_at <= now() and t.is_whole and t.ending = 'refunded'
    and not exists (select from revocations r where r.transaction_id = t.transaction_id)
    and not exists (
        select from provisional_grants p where p.transaction_id = t.transaction_id and p.revoked_at is not null)
    -- The same period under another id, or with seats that were added: not all of it has ended.
    and not exists (
        select from (
            select app_id, environment, product_id, revoked_at, expires_at, purchased_at from transactions own
            where own.original_transaction_id = t.original_transaction_id offset 0) s
        where s.app_id = t.app_id and s.environment = t.environment and s.product_id = t.product_id
            and s.revoked_at is null and (s.expires_at = t.expires_at or s.purchased_at = t.purchased_at))
union all
select r.app_id, r.environment, r.transaction_id, 'reinstated', r.recorded_at,
    coalesce(m.marked_at, f.signed_at, r.recorded_at)
from revocations r
cross join lateral (
    select signed_at, revoked_at, original_transaction_id from transactions
    where transaction_id = r.transaction_id offset 0) f
left join (
    select app_id, environment, original_transaction_id, min(marked_at) as marked_at
    from chain_marks group by 1, 2, 3) m
    on m.app_id = r.app_id and m.environment = r.environment and m.original_transaction_id = f.original_transaction_id
where r.kind = 'revoked' and r.reason = 'refunded' and f.revoked_at is null
    and not exists (
        select from revocations later where later.transaction_id = r.transaction_id and later.ordinal > r.ordinal);
comment on view v_open_ends is
    'A row: a granted purchase that Apple took back whole, or gave back, and that no follow-up has told yet. missing: the row of v_revocations that is still to come (revoked, reinstated). at: Apple''s end, or when we revoked what Apple gave back; since: when the follow-up was due, as far as it is known. Ask for a span of at.';

-- Each span is a loop of its own, which reads the rows of that span alone by an index. Grants and events of a span are
-- hashed (a full join), because statistics know nothing of today.
create view v_clearing_by_span as
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
comment on view v_clearing_by_span is
    'As v_clearing, by days and by hours. unit: day or hour; since: the start of the span. Ask for a unit, and for a span of day or since: each row''s span is read.';

create view v_clearing as
select day, app_id, environment, account, source, state, items, balance, oldest_at
from v_clearing_by_span where unit = 'day';
comment on view v_clearing is
    'What came in on a day, and what became of it (L1): each account must come to a balance of zero. A row: day of arrival (UTC, of the last 400 days), app (empty: no app here), environment (empty: not known yet), account, source, state. source: the net of a receipt or notification, the binding source of a grant, the reason of an end, the kind of an Apple update. items: all of them; balance: those of which nothing has become yet; oldest_at: of the balance. Ask for a span of day: each day reads its rows.';

-- Open items stand in partial indexes, so the view is small beside millions of ended rows.
create view v_clearing_overdue as
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
    'Items of v_clearing of which nothing has become for longer than the limit of their account. A row: an item. id: of the receipt, notification or refund request, otherwise Apple''s of the transaction. since: the start of the wait; limit_seconds: of a posted receipt the default of MAKEGOOD_WAITING_LIMIT_SECONDS. command: mends the item, or says what keeps it. Grants of the last day, ends of the last 7.';

-- Differences.

create view v_differences as
select category, subject, app_id, environment, net, details, found_at, seen_at, ended_at,
    case when ended_at is null then 'open' when ended_by is null then 'healed' else 'closed' end as state,
    case when category in ('grant_unlisted', 'goods_differ') then 'person'
        when category = 'purchase_missing' then 'receipt' else 'follow-up' end as heals_by,
    extract(epoch from coalesce(ended_at, now()) - found_at)::float8 as age_seconds
from differences;
comment on view v_differences is
    'Differences between Apple''s books and ours (L6). A row: category, subject (a transaction; of a state, a chain). net: the question whose answer showed it. heals_by: the judgement of the sweep''s receipt, the follow-up of the chain, or a person. state: open, healed, or closed by a person. age_seconds: until it ended, or until now.';

create view v_daily_reports as
select day, report, written_at, jsonb_array_length(report -> 'overdue') as overdue_accounts, (
    select coalesce(sum((d ->> 'open')::bigint), 0)::bigint
    from jsonb_array_elements(report -> 'differences') d) as open_differences,
    (report #>> '{seals,block}')::bigint as sealed_block, report #>> '{seals,head}' as head
from daily_reports;
comment on view v_daily_reports is
    'A row: the report of a day (UTC), as it stood on the morning after, in the form of `makegood report --json`. overdue_accounts: apps'' accounts with items over their limit; head: the hash of the newest seal, hexadecimal.';
