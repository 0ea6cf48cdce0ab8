-- serves: 12
-- Why: an operator must see whether Apple's notifications arrive, what became of them, and which purchases Apple took
--   back. The workers must know how long an app is usually silent, and which test Apple was asked for, so that they can
--   tell a quiet app from a broken address (P38). A chain mark needs its time, because a mark that stays shows that no
--   worker follows the chain up.
-- Locks: chain_marks, for a moment, for a column. Everything else is new.
-- Cost: none: the tables are new or nearly empty.

alter table chain_marks add column marked_at timestamptz not null default now();

-- Counts of an app's notifications on one day (UTC), so that no query counts a month of notifications again. Tests do
-- not count, because their times are not usual. A day without a notification has no row.
create table notification_days (
    app_id text collate "C" not null,
    environment text collate "C" not null,
    day date not null,
    received bigint not null,
    longest_gap_seconds double precision,       -- of the gaps that ended on this day; null: no notification came before
    primary key (app_id, environment, day)
);
comment on table notification_days is
    'A row: the notifications of an app, environment and past day (UTC), without tests. A worker writes it once.';

-- The last test notification that a worker asked Apple for. The row is also the right to ask: the worker that moves
-- `claimed_at` asks.
create table notification_tests (
    app_id text collate "C" not null,
    environment text collate "C" not null,
    claimed_at timestamptz not null default now(),
    asked_at timestamptz,                       -- when Apple took the request, or said why not; null: not yet
    token text collate "C",                     -- Apple's, to ask what became of it
    problem text collate "C",                   -- null: Apple took the request
    primary key (app_id, environment),
    constraint notification_tests_problem check (problem = 'no_url')
);
comment on table notification_tests is
    'A row: the last test notification of an app and environment that a worker asked Apple for. problem: no_url, App Store Connect has no URL.';

-- Tests are few, and a worker reads the newest one.
create index notifications_tests on notifications (app_id, environment, received_at) where type = 'TEST';

-- What the checks of a scheduler ask of ended purchases, so that its role need not read Apple's facts. The view is
-- restated whole, as PostgreSQL demands; the columns at its end are new.
create or replace view v_ended_purchases as
select t.transaction_id, t.app_id, t.environment, t.product_id, t.original_transaction_id, t.revoked_at,
    case
        when t.ownership in ('FAMILY_SHARED', 'ASSIGNED')
            or t.facts ->> 'revocationType' in ('FAMILY_REVOKE', 'ASSIGNMENT_REVOKE') then 'withdrawn'
        when t.facts ->> 'isUpgraded' = 'true' then
            case when t.facts ->> 'revocationType' = 'REFUND_FULL' or t.facts ->> 'revocationReason' = '1'
                or t.facts ->> 'revocationReason' = '0' and t.facts ->> 'reason' is not null then 'refunded'
                else 'upgraded' end
        -- A legacy receipt marks no upgrade, and a reason that is newer than the program may be one: then another product
        -- of the chain was bought within a minute of the end.
        when t.expires_at is not null and t.kind is distinct from 'Non-Renewing Subscription'
            and (t.facts ->> 'revocationType' is null and t.facts ->> 'reason' is null
                or t.facts ->> 'revocationType' not in ('REFUND_FULL', 'REFUND_PRORATED')
                or t.facts ->> 'revocationReason' not in ('0', '1'))
            and exists (
                select from (
                    select app_id, environment, product_id, purchased_at from transactions
                    where original_transaction_id = t.original_transaction_id offset 0) s
                where s.app_id = t.app_id and s.environment = t.environment and s.product_id <> t.product_id
                    and s.purchased_at between t.revoked_at - interval '60 seconds' and t.revoked_at + interval '60 seconds')
            then 'upgraded'
        else 'refunded' end as ending,
    t.purchased_at, t.expires_at,
    t.ownership is distinct from 'FAMILY_SHARED' and t.ownership is distinct from 'ASSIGNED'
        and coalesce(t.facts ->> 'revocationType', 'REFUND_FULL') in ('REFUND_FULL', 'REFUND_PRORATED')
        and coalesce(t.facts ->> 'revocationReason', '0') in ('0', '1')
        and (t.facts ->> 'revocationType' = 'REFUND_PRORATED'
            and t.facts -> 'revocationPercentage' < '100000'::jsonb) is not true as is_whole
from transactions t
where t.revoked_at is not null;
comment on view v_ended_purchases is
    'Purchases that Apple ended. A row: a transaction. ending: refunded (all or in part, or for a reason that is not known here), withdrawn (a customer who shared it shares it no longer) or upgraded (another product took its place; it was paid for, and no money went back). is_whole: true if a refund is of the whole price, for a reason that is known here. Ask for a span of revoked_at.';

create view v_notifications as
select id, version, app_id, bundle_id, environment, type, coalesce(subtype, '') as subtype, transaction_id,
    original_transaction_id, state, coalesce(reason, '') as reason, attempt, repeats, signed_at, received_at, judged_at,
    due_at, settled_at, extract(epoch from coalesce(settled_at, now()) - received_at)::float8 as age_seconds
from notifications;
comment on view v_notifications is
    'A row: a notification of Apple''s. app_id is null where no app here has its bundle id. repeats: how often Apple sent it again. age_seconds: until it ended, or until now. Ask for a span of received_at.';

create view v_open_notifications as
select app_id, coalesce(bundle_id, '') as bundle_id, environment, type, coalesce(subtype, '') as subtype, state,
    coalesce(reason, '') as reason, count(*) as notifications, min(received_at) as oldest_received_at,
    greatest(0, extract(epoch from now() - min(due_at)))::float8 as overdue_seconds
from notifications where due_at is not null
group by 1, 2, 3, 4, 5, 6, 7;
comment on view v_open_notifications is
    'Open notifications, held and parked ones too. A row: app (null: no app here has the bundle id), bundle id, environment, type, subtype, state, reason. Seconds since the oldest due_at passed, 0 where it lies ahead.';

-- The usual silence is the 90th percentile of the longest gap of each day, of the 30 days before the last notification:
-- nights and weekends are usual, an outage of a few days in a month is not. Each app is looked up by its index.
create view v_notification_health as
select a.app_id, e.environment, l.received_at as last_received_at, l.type as last_type,
    extract(epoch from now() - l.received_at)::float8 as silent_seconds, u.usual_gap_seconds, u.days,
    t.received_at as last_test_at, k.asked_at as test_asked_at, coalesce(k.problem, '') as test_problem,
    case when l.received_at is null then 'never'
        when k.asked_at is null or l.received_at >= k.asked_at then 'heard'
        when k.asked_at > now() - interval '10 minutes' then 'asked' else 'silent' end as health,
    coalesce(o.held, 0) as held, coalesce(o.parked, 0) as parked, coalesce(o.due, 0) as due
from apps a
cross join (values ('Production' collate "C"), ('Sandbox' collate "C")) e(environment)
left join lateral (
    select received_at, type from notifications
    where app_id = a.app_id and environment = e.environment order by received_at desc limit 1) l on true
left join lateral (
    select received_at from notifications
    where app_id = a.app_id and environment = e.environment and type = 'TEST'
    order by received_at desc limit 1) t on true
left join lateral (
    select count(*) as days,
        percentile_cont(0.9) within group (order by longest_gap_seconds) as usual_gap_seconds
    from notification_days
    where app_id = a.app_id and environment = e.environment and longest_gap_seconds is not null
        and day >= (l.received_at at time zone 'UTC')::date - 30) u on true
left join notification_tests k on k.app_id = a.app_id and k.environment = e.environment
left join (
    select app_id, environment, count(*) filter (where state = 'held') as held,
        count(*) filter (where state = 'parked') as parked,
        count(*) filter (where state = 'received' and due_at < now()) as due
    from notifications where due_at is not null group by 1, 2) o
    on o.app_id = a.app_id and o.environment = e.environment;
comment on view v_notification_health is
    'Whether Apple''s notifications arrive. A row: app, environment. health: never (none ever came), heard, asked (Apple was asked for a test within 10 minutes), silent (the test did not come). usual_gap_seconds: on nine days of ten the longest silence is no longer; days: the number of days that were counted. held, parked, due: open notifications; due: the time to judge them has passed.';

create view v_subscriptions as
select c.app_id, c.environment, c.original_transaction_id, c.previous_original_transaction_id,
    c.told_user_id as user_id, c.product_id, c.transaction_id, c.state, c.expires_at as access_until,
    (c.renewal ->> 'renewsAutomatically')::boolean as renews, c.renewal ->> 'nextProductID' as next_product_id,
    coalesce(c.renewal ->> 'priceConsent', '') as price_consent, c.steps as events, e.type as last_event,
    e.at as last_event_at, c.followed_at, c.due_at
from chains c
left join lateral (
    select type, at from events
    where transaction_id = c.transaction_id and type like 'subscription.%' order by at desc, id desc limit 1) e on true
where c.state is not null;
comment on view v_subscriptions is
    'A row: a subscription as the app''s backend was told of it last. access_until: the end of the period or of the grace period. renews, next_product_id, price_consent: by the newest word of Apple''s. last_event: of the period. due_at: when the clock may change the state.';

create view v_revocations as
select r.transaction_id, r.ordinal, r.app_id, r.environment, g.product_id, r.user_id, r.kind, r.reason, r.takes_back,
    r.percentage / 1000.0 as percentage, r.goods, u.percentage / 1000.0 as consumed, r.at, r.recorded_at, g.receipt_id,
    r.ordinal = (select max(ordinal) from revocations where transaction_id = r.transaction_id) as is_last
from revocations r
left join lateral (
    select product_id, receipt_id from grants where transaction_id = r.transaction_id offset 0) g on true
left join lateral (
    select percentage from consumption_reports where transaction_id = r.transaction_id
    order by at desc, reported_at desc limit 1) u on true;
comment on view v_revocations is
    'A row: Apple took a granted purchase back, or gave it back. goods: the goods that this row takes back from the user, or gives back. percentage: the share of the price that Apple has given back by then. consumed: the share of the purchase that the app''s backend last reported as used; null: it reported nothing. Both are in percent. is_last: the row that counts. Ask for a span of recorded_at.';
