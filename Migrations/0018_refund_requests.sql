-- serves: 12
-- Why: if a customer asks Apple for a refund, Apple asks the app how much of the purchase was used. Makegood answers
--   from its own ledger, and only if the user has agreed. The tables keep the consents, the consumption that the app's
--   backend reports, and the requests with their answers.
-- Locks: none: all tables are new.
-- Cost: none.

-- Consents: whether a user agrees that Apple is told how much of a purchase was used. The newest row counts; no row is
-- changed.
create table consents (
    app_id text collate "C" not null,
    user_id text collate "C" not null,
    at timestamptz not null default clock_timestamp(),
    is_given boolean not null,
    primary key (app_id, user_id, at)
);
comment on table consents is
    'A row: a user agreed that Apple is told how much of a purchase was used, or took the consent back. The newest row counts; a user without a row has not agreed.';

-- Reports of the app's backend how much of a granted purchase was used. The report with the newest `at` counts, of
-- equal times the report that came last; no row is changed.
create table consumption_reports (
    transaction_id text collate "C" not null,
    reported_at timestamptz not null default clock_timestamp(),
    app_id text collate "C" not null,
    percentage integer not null,                -- in thousandths of a percent
    units bigint,                               -- as reported, where units were reported
    at timestamptz not null,                    -- as of when, by the app's clock
    primary key (transaction_id, reported_at),
    constraint consumption_reports_percentage check (percentage between 0 and 100000)
);
comment on table consumption_reports is
    'A row: a report of the app''s backend how much of a purchase its user has used. The row with the newest `at` counts.';

-- Apple's questions about refunds. Apple may ask several times about one refund: the requests of one purchase that come
-- before Apple has decided are one case, which has the id of its first request.
create table refund_requests (
    notification_id uuid primary key,
    case_id uuid not null,
    app_id text collate "C" not null,
    environment text collate "C" not null,
    transaction_id text collate "C" not null,
    original_transaction_id text collate "C" not null,
    request_reason text collate "C",            -- as Apple gives it: UNINTENDED_PURCHASE …
    asked_at timestamptz not null,              -- when Apple signed the request; Apple takes an answer for 12 hours
    state text collate "C" not null default 'open',
    reason text collate "C",                    -- why unanswered: no_consent, too_late, refused, superseded …
    due_at timestamptz,                         -- when it is answered, or tried again
    claimed_until timestamptz,                  -- a worker has it until then, and no edit is taken; null: none has it
    attempt integer not null default 0,
    edited jsonb,                               -- support's edit; the newest edit of a case counts
    edited_by text collate "C",
    answer jsonb,                               -- the whole body that was sent
    api_version smallint,
    http_status integer,
    code bigint,
    ended_at timestamptz,
    constraint refund_requests_state check (state in ('open', 'answered', 'unanswered')),
    constraint refund_requests_ended check ((state = 'open') = (ended_at is null)),
    constraint refund_requests_due check ((state = 'open') = (due_at is not null))
);
create index refund_requests_due on refund_requests (due_at) where due_at is not null;
create index refund_requests_of_transaction on refund_requests (transaction_id, asked_at);
create index refund_requests_of_case on refund_requests (case_id);
comment on table refund_requests is
    'A row: a CONSUMPTION_REQUEST of Apple''s, with its answer or the reason why none was sent.';

-- Erases a user from the rows that follow after grants, and returns the number of emptied payloads. `makegood users
-- erase` calls the function after the erasure of the user: since then `owner` is the user's name in grants, which in a
-- protected database is the id itself. Renames the user in revocations, empties what the user was told of
-- chains, deletes the consents, and empties
-- the payloads of notifications about the user's purchases, because a payload holds Apple's ids of the customer. An open
-- or held notification ends, because no worker could judge an empty one. May be repeated.
create function erase_heard_of_user(app text, id text, owner text) returns bigint
language sql security definer as $$
    with revoked as (
        update revocations set user_id = owner where app_id = app and user_id = id and id <> owner),
    -- Nothing counts as told to an erased user, so that no follow-up tells the user anything more.
    told as (
        update chains set told_user_id = null, told = null, state = null, due_at = null
        where app_id = app and told_user_id = id),
    agreed as (
        delete from consents where app_id = app and user_id in (id, owner)),
    emptied as (
        update notifications n set payload = null, forward_due_at = null, state = 'ended', due_at = null,
          reason = case when n.settled_at is null then 'erased' else n.reason end,
          settled_at = coalesce(n.settled_at, now())
        where n.id in (
            select k.id from grants g
            cross join lateral (
                select original_transaction_id from transactions where transaction_id = g.transaction_id offset 0) t
            cross join lateral (
                select id from notifications where transaction_id = g.transaction_id
                union
                select id from notifications where original_transaction_id = t.original_transaction_id) k
            where g.app_id = app and g.user_id = owner)
          and n.app_id = app and n.payload is not null
        returning n.id)
    select count(*) from emptied
$$;

-- As at the end of 0001_receipts.sql.
do $$
begin
    execute format('alter function erase_heard_of_user(text, text, text) set search_path = %I, pg_temp',
        current_schema());
end $$;
revoke execute on function erase_heard_of_user(text, text, text) from public;
