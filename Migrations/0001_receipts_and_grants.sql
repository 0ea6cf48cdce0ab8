-- serves: 1
-- Why: the whole ledger of one purchase, from what was submitted to what was granted and told.
-- Locks: none worth naming, everything is new. Cost: none.

-- One row per intake, never deleted. The row is the truth; messages only point at it.
create table receipts (
    id uuid primary key,                        -- derived from the submission: the same submission is the same row
    app_id text not null,
    user_id text,                               -- null: only an order names the user
    order_id text,
    kind text not null,                         -- what was submitted as proof
    lane text not null,                         -- which queue it waits in
    transaction_id text,                        -- the transaction the poster meant
    original_transaction_id text,
    is_vouched boolean not null,                -- a trusted backend (scope claim) vouches for the user
    details jsonb not null,                     -- everything else that was sent, unknown fields included
    payload_sha256 bytea not null,              -- outlives the payload
    state text not null default 'received',
    reason text,
    attempt integer not null default 0,         -- tries at Apple that counted; also the guard of every verdict
    rescues integer not null default 0,         -- times the scheduler queued it again since the last verdict
    received_at timestamptz not null default now(),
    judged_at timestamptz,                      -- the last verdict, final or not
    due_at timestamptz,                         -- open rows: when the scheduler queues it again if nobody settled it
    settled_at timestamptz,
    constraint receipts_kind check (kind in ('signed_transaction', 'receipt', 'identifier')),
    constraint receipts_lane check (lane in ('local', 'apple')),
    constraint receipts_state
        check (state in ('received', 'held', 'parked', 'granted', 'already_granted', 'rejected')),
    constraint receipts_ended
        check ((state in ('granted', 'already_granted', 'rejected')) = (settled_at is not null)),
    constraint receipts_due check ((settled_at is null) = (due_at is not null)),
    constraint receipts_poster check (user_id is not null or order_id is not null)
);
-- The scheduler's feed. The predicate is not the settle statement's guard (settled_at is null), or the planner would
-- look a receipt up by its id through the whole due index.
create index receipts_due on receipts (lane, app_id, due_at) where due_at is not null;
create index receipts_by_user on receipts (app_id, user_id, received_at);
create index receipts_received_at on receipts using brin (received_at);
create index receipts_rejected on receipts (app_id, reason, settled_at) where state = 'rejected';

-- The proof, verbatim. Its own table, by day, so that retention drops partitions and the rows above stay small.
create table payloads (
    receipt_id uuid not null,
    received_on date not null,
    body text not null,
    primary key (receipt_id, received_on)
) partition by range (received_on);
create table payloads_default partition of payloads default;

-- Creates the partitions of today and the days after it that do not exist yet. Called by the scheduler.
create function create_payload_partitions(days integer) returns void language plpgsql as $$
declare
    day date;
begin
    perform pg_advisory_xact_lock(hashtext('makegood.payloads'));
    for day in select d::date from generate_series(
        (now() at time zone 'UTC')::date + 1, (now() at time zone 'UTC')::date + days, interval '1 day') d
    loop
        if to_regclass('payloads_' || to_char(day, 'YYYYMMDD')) is null then
            execute format('create table %I partition of payloads for values from (%L) to (%L)',
                'payloads_' || to_char(day, 'YYYYMMDD'), day, day + 1);
        end if;
    end loop;
end $$;

-- What Apple said about each transaction; the newest word wins.
create table transactions (
    transaction_id text primary key,
    app_id text not null,
    environment text not null,
    original_transaction_id text not null,
    product_id text not null,
    kind text,
    quantity integer not null,
    purchased_at timestamptz not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    app_account_token uuid,
    ownership text,
    signed_at timestamptz,
    facts jsonb not null,
    constraint transactions_quantity check (quantity > 0)
);
create index transactions_chain on transactions (original_transaction_id);

-- The promise: one grant per Apple transaction and per purchase, in the database.
create table grants (
    transaction_id text primary key,
    purchase_key text not null,                 -- one purchase that Apple lists under two ids
    app_id text not null,
    environment text not null,
    user_id text not null,
    customer_id text,                           -- Apple's customer of this app, where Apple says it
    receipt_id uuid not null,
    product_id text not null,
    quantity integer not null,
    goods jsonb not null,                       -- computed once, at the time of the grant
    binding_source text not null,               -- which rule found the owner
    granted_at timestamptz not null default now(),
    constraint grants_purchase_key unique (purchase_key),
    constraint grants_quantity check (quantity > 0)
);
create index grants_by_user on grants (app_id, user_id, granted_at);
create index grants_by_customer on grants (customer_id) where customer_id is not null;
create index grants_of_sandbox on grants (app_id, granted_at) where environment <> 'Production';
create index grants_granted_at on grants using brin (granted_at);
create index grants_by_receipt on grants (receipt_id);

-- What became of each transaction of each receipt.
create table outcomes (
    receipt_id uuid not null,
    transaction_id text not null,
    state text not null,
    reason text,
    binding_source text,
    decided_at timestamptz not null default now(),
    primary key (receipt_id, transaction_id),
    constraint outcomes_state check (state in ('open', 'held', 'granted', 'already_granted', 'rejected'))
);
create index outcomes_decided_at on outcomes using brin (decided_at);
create index outcomes_held on outcomes (reason, receipt_id) where state = 'held';

-- Tries at Apple that counted and did not end the receipt.
create table attempts (
    receipt_id uuid not null,
    attempt integer not null,
    at timestamptz not null default now(),
    reason text,
    service text,
    environment text,
    http_status integer,
    code bigint,
    duration_ms integer,
    primary key (receipt_id, attempt)
);

-- The app backend's feed. Readers go by (xid, id) below the oldest running transaction: commit order, no gaps.
create table events (
    xid xid8 not null default pg_current_xact_id(),
    id bigint not null generated always as identity,
    event_id uuid not null,
    app_id text not null,
    type text not null,
    user_id text not null,
    transaction_id text not null,
    receipt_id uuid not null,
    body jsonb not null,
    at timestamptz not null default now(),
    primary key (xid, id),
    constraint events_event_id unique (event_id)
);

create index events_at on events using brin (at);

-- Our own misconfiguration, or a pause by hand: what needs this service waits, and no receipt is to blame.
create table halts (
    app_id text not null,
    service text not null,                      -- verifyReceipt, serverApi, or * for a pause
    environment text not null,
    credential text not null,                   -- a hash of the key or secret: a corrected one is not halted
    reason text not null,
    since timestamptz not null default now(),
    probe_at timestamptz not null,
    primary key (app_id, service, environment, credential)
);

-- The independent side of the conservation check: counted by the insert itself.
create table tallies (
    app_id text not null,
    day date not null,
    source text not null,
    shard integer not null,                     -- by connection, so that writers do not wait for each other
    received bigint not null,
    primary key (app_id, day, source, shard)
);

-- The app's purchase intent. Its id travels as Apple's appAccountToken.
create table orders (
    id uuid primary key,
    app_id text not null,
    user_id text not null,
    product_id text not null,
    placed_at timestamptz not null default now()
);
create index orders_by_user on orders (app_id, user_id, placed_at);

-- What the services remember of an app between starts.
create table apps (
    app_id text primary key,
    first_started_at timestamptz not null default now(),    -- the default of grantFrom
    configuration_sha256 bytea not null                     -- a change makes held rows due
);

-- What people did by command: who, what, to how many.
create table audits (
    id bigint primary key generated always as identity,
    at timestamptz not null default now(),
    actor text not null,
    action text not null,
    details jsonb not null
);

-- Views: what dashboards may read. No payloads, no details.
create view v_receipts as
select id, app_id, user_id, kind, lane, state, reason, attempt, rescues, received_at, judged_at, due_at, settled_at
from receipts;

create view v_backlog as
select app_id, lane, state, count(*) as receipts, min(due_at) as oldest_due_at, min(received_at) as oldest_received_at
from receipts where due_at is not null
group by app_id, lane, state;

create view v_grants as
select transaction_id, app_id, environment, user_id, product_id, quantity, goods, binding_source, receipt_id, granted_at
from grants;

create view v_attempts as
select receipt_id, attempt, at, reason, service, environment, http_status, code, duration_ms from attempts;

create view v_halts as
select app_id, service, environment, reason, since, probe_at from halts;

create view v_audits as
select id, at, actor, action, details from audits;

-- received = rows, and every row is ended or open, by app and day.
create view v_conservation as
select app_id, day, coalesce(received, 0) as received, coalesce(receipts, 0) as receipts,
    coalesce(granted, 0) as granted, coalesce(already_granted, 0) as already_granted,
    coalesce(rejected, 0) as rejected, coalesce(open, 0) as open,
    coalesce(received, 0) = coalesce(receipts, 0)
        and coalesce(receipts, 0) = coalesce(granted + already_granted + rejected + open, 0) as is_exact
from (
    select app_id, (received_at at time zone 'UTC')::date as day, count(*) as receipts,
        count(*) filter (where state = 'granted') as granted,
        count(*) filter (where state = 'already_granted') as already_granted,
        count(*) filter (where state = 'rejected') as rejected,
        count(*) filter (where settled_at is null) as open
    from receipts group by 1, 2) as row_counts
full join (
    select app_id, day, sum(received)::bigint as received from tallies group by 1, 2) as tally_counts
    using (app_id, day);
