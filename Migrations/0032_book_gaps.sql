-- serves: 12
-- Why: three gaps in what Makegood proves from outside. A list of refunds whose pages lead in a circle was read for ever.
--   v_sweeps did not say when the rota of customers, and that of refunds, last came round. And a row that the owner of
--   the database wrote without the number of its transaction was in no seal and in no check.
-- Locks: history_walks, while two indexes are built: writers wait. differences, for a moment. outcomes, against writes
--   while its rows without a number get one.
-- Cost: reads history_walks once, and adds 8 to 16 bytes to a row. In a database of before 0028_seals.sql each row of
--   grants, outcomes, revocations and audits of that time is written once more; no published version made such rows.
-- Programs of the version before: they move no `refunds_pages`, so only programs of this version end such a list.

-- Pages of the list of refunds that is under way, as `swept_pages`. And since when Apple is asked about the customer: the
-- rows of before this migration begin now.
alter table history_walks
    add column refunds_pages int not null default 0,
    add column entered_at timestamptz not null default now();
comment on column history_walks.entered_at is
    'When the customer came onto the rota, or came back onto the rota of refunds.';

-- The predicate of the second index is not "is not null": a claim of what is due would imply that, and a plan that is kept
-- from an empty table would read this index instead of the one by the due time.
--
-- The oldest of these times is the last complete round: about each customer who was on the rota before, Apple was asked
-- since.
create index history_walks_rounds on history_walks (app_id, environment, coalesce(swept_at, entered_at))
    where due_at is distinct from 'infinity';
create index history_walks_refund_rounds on history_walks (app_id, environment, greatest(refunds_at, entered_at))
    where coalesce(refunds_due_at < 'infinity', false);

-- A list of Apple's that has no end is a difference: nobody knows what stands behind it.
alter table differences drop constraint differences_category;
alter table differences add constraint differences_category check (category in
    ('purchase_missing', 'end_missing', 'end_undone', 'state_differs', 'grant_unlisted', 'goods_differ', 'list_endless'))
    not valid;
create or replace view v_differences as
select category, subject, app_id, environment, net, details, found_at, seen_at, ended_at,
    case when ended_at is null then 'open' when ended_by is null then 'healed' else 'closed' end as state,
    case when category in ('grant_unlisted', 'goods_differ') then 'person'
        when category = 'purchase_missing' then 'receipt'
        when category = 'list_endless' then 'sweep' else 'follow-up' end as heals_by,
    extract(epoch from coalesce(ended_at, now()) - found_at)::float8 as age_seconds
from differences;
comment on view v_differences is
    'Differences between Apple''s books and ours (L6). A row: category, subject (a transaction; of a state, a chain; of an endless list, a customer). net: the question whose answer showed it. heals_by: the judgement of the sweep''s receipt, the follow-up of the chain, the next sweep, or a person. state: open, healed, or closed by a person. age_seconds: until it ended, or until now.';

-- Every row has a number from now on, so that one without is a finding. Old rows get the number of this transaction, and
-- the next block seals them. The trigger would keep an outcome's number as it was.
alter table outcomes disable trigger outcomes_place;
update grants set xid = pg_current_xact_id()::text::bigint where xid is null;
update outcomes set xid = pg_current_xact_id()::text::bigint where xid is null;
update revocations set xid = pg_current_xact_id()::text::bigint where xid is null;
update audits set xid = pg_current_xact_id()::text::bigint where xid is null;
alter table outcomes enable trigger outcomes_place;
comment on column grants.xid is
    'The transaction that wrote the row; of rows of before 0028_seals.sql, 0032_book_gaps.sql.';
comment on column outcomes.xid is
    'The transaction that decided last; of rows of before 0028_seals.sql, 0032_book_gaps.sql.';

-- As in 0031_short_functions.sql, but for the last complete round of customers and of refunds: each reads one entry of an
-- index.
create or replace view due_customers as
select d.sweep, a.app_id, e.environment, d.due, d.oldest_due_at, d.passed_over, d.last_complete_at
from apps a
cross join (values ('Production' collate "C"), ('Sandbox' collate "C")) e(environment)
cross join lateral (
    select 'customer' collate "C" as sweep, count(*) as due, min(at) as oldest_due_at, (
        select coalesce(sum(passed_over), 0)::bigint from history_walks
        where app_id = a.app_id and environment = e.environment
            and (passed_over > 0 or refunds_passed_over > 0)) as passed_over, (
        select coalesce(swept_at, entered_at) from history_walks
        where app_id = a.app_id and environment = e.environment and due_at is distinct from 'infinity'
        order by coalesce(swept_at, entered_at) limit 1) as last_complete_at
    from (
        (select due_at as at from history_walks
         where app_id = a.app_id and environment = e.environment and wanted_by is not null and due_at <= now()
         order by due_at limit 1000)
        union all
        (select due_at from history_walks
         where app_id = a.app_id and environment = e.environment and wanted_by is null and due_at <= now()
         order by due_at limit 1000) limit 1000) w
    union all
    select 'refund', count(*), min(at), (
        select coalesce(sum(refunds_passed_over), 0)::bigint from history_walks
        where app_id = a.app_id and environment = e.environment and (passed_over > 0 or refunds_passed_over > 0)), (
        select greatest(refunds_at, entered_at) from history_walks
        where app_id = a.app_id and environment = e.environment and coalesce(refunds_due_at < 'infinity', false)
        order by greatest(refunds_at, entered_at) limit 1)
    from (
        select refunds_due_at as at from history_walks
        where app_id = a.app_id and environment = e.environment and refunds_due_at <= now()
        order by refunds_due_at limit 1000) r) d;
create or replace view v_sweeps as
select s.sweep, s.app_id, s.environment, s.due, s.oldest_due_at,
    greatest(0, coalesce(extract(epoch from now() - s.oldest_due_at), 0))::float8 as lag_seconds,
    coalesce(s.progress,
        case s.due when 0 then 'nothing is due' when 1000 then '1000 or more due' else s.due || ' due' end) as progress,
    s.last_complete_at, s.passed_over, coalesce(k.catches, 0) as catches
from (
select 'notification_history' collate "C" as sweep, s.app_id, s.environment,
    coalesce(sum(w.due), 0)::bigint as due, least(min(w.oldest), min(d.at)) as oldest_due_at,
    coalesce(sum(w.windows), 0) || ' windows open, ' || coalesce(sum(w.pages), 0) || ' pages read' as progress,
    min(s.completed_at) as last_complete_at, coalesce(sum(w.passed_over), 0)::bigint as passed_over
from notification_sweeps s
left join lateral (
    select count(*) as windows, count(*) filter (where due_at <= now()) as due, sum(pages) as pages,
        sum(passed_over) as passed_over, min(made_at) filter (where walked_at is null) as oldest
    from notification_windows
    where app_id = s.app_id and environment = s.environment and bundle_id = s.bundle_id) w on true
left join lateral (
    select least(s.failures_due_at, s.all_due_at) as at where least(s.failures_due_at, s.all_due_at) <= now()) d on true
group by s.app_id, s.environment
union all
select 'subscription', app_id, environment, due, oldest_due_at, null, null, 0 from due_subscriptions
union all
select sweep, app_id, environment, due, oldest_due_at, null, last_complete_at, passed_over from due_customers) s
left join (
    select app_id, environment, net, count(*) as catches from net_catches
    where caught_at > now() - interval '1 day' group by 1, 2, 3) k
    on (k.app_id, k.environment, k.net) = (s.app_id, s.environment, s.sweep);
comment on view v_sweeps is
    'The sweeps over Apple''s books. A row: sweep, app, environment. due: questions that are due now; oldest_due_at, lag_seconds: the question that waits longest; progress: in words; last_complete_at: of notification_history the last sweep that left nothing out, of customer and refund a time: Apple was asked since about each customer that was on the rota before; passed_over: entries of Apple''s that do not verify; catches: what the sweep told first within 24 hours.';
