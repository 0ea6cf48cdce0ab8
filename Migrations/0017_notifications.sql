-- serves: 12
-- Why: Apple tells of purchases by itself: in notifications, and in answers to questions without a post. This migration
--   stores each notification once, lets a receipt come from Apple instead of from a user, and keeps the later life of a
--   purchase: revocations, the state of subscriptions, and when the clock changes the state.
-- Locks: receipts, for a moment, for two columns and a constraint that reads no row; then receipts against posts and
--   verdicts, while two indexes that start empty are built (messages wait meanwhile). transactions,
--   grants, ownerships and provisional_grants, for a moment, for a trigger.
-- Cost: reads receipts twice.
-- Programs of the version before: they write no notification. Their verdicts mark chains as due by the triggers.

-- A notification of Apple's. Ingest writes the row before it answers, and no row is ever deleted.
create table notifications (
    id uuid primary key,                        -- Apple's notificationUUID; of version 1, which has none, derived
    version smallint not null,
    app_id text collate "C",                    -- null: no app here has its bundle id
    bundle_id text collate "C",                 -- as the notification names it; null: it names none
    environment text collate "C",               -- null: it names none
    type text collate "C" not null,
    subtype text collate "C",
    transaction_id text collate "C",            -- of the verified data inside; null: there is none
    original_transaction_id text collate "C",
    signed_at timestamptz,                      -- of version 1 null
    payload text collate "C",                   -- as Apple sent it, but without a password; null: retention is over
    payload_sha256 bytea not null,              -- outlives the payload
    state text collate "C" not null default 'received',
    reason text collate "C",
    attempt integer not null default 0,
    rescues integer not null default 0,
    received_at timestamptz not null default now(),
    judged_at timestamptz,
    due_at timestamptz,
    settled_at timestamptz,
    repeats integer not null default 0,         -- how often Apple sent it again
    forward_due_at timestamptz,                 -- when it is next sent to the app's other URL; null: it was, or never is
    forward_attempts integer not null default 0,
    constraint notifications_version check (version in (1, 2)),
    constraint notifications_state check (state in ('received', 'held', 'parked', 'ended')),
    constraint notifications_ended check ((state = 'ended') = (settled_at is not null)),
    constraint notifications_due check ((settled_at is null) = (due_at is not null))
);
alter table notifications alter column payload set storage external;
create index notifications_due on notifications (due_at) where due_at is not null;
create index notifications_received_at on notifications using brin (received_at) with (autosummarize = on);
create index notifications_of_app on notifications (app_id, environment, received_at);
create index notifications_of_chain on notifications (original_transaction_id, signed_at)
    where original_transaction_id is not null;
create index notifications_of_transaction on notifications (transaction_id) where transaction_id is not null;
create index notifications_forwarded on notifications (forward_due_at) where forward_due_at is not null;
comment on table notifications is
    'A row: a notification of Apple''s, stored once however often Apple sends it. The facts inside decide, not the type.';
comment on column notifications.state is
    'received: a worker has it, or the scheduler publishes it again when it is due. held: its type is not known here, or no app has its bundle id. parked: its workers died. ended: its facts are stored.';

-- A receipt that nobody posted has neither user nor order. Its id follows from its transaction.
alter table receipts
    add column source text collate "C" not null default 'post',
    add column customer_id text collate "C";
alter table receipts add constraint receipts_source check (source in ('post', 'notification', 'sweep')) not valid;
alter table receipts drop constraint receipts_lane;
alter table receipts add constraint receipts_lane check (lane in ('local', 'apple', 'bulk', 'unposted')) not valid;
comment on column receipts.source is
    'Who brought the receipt: post, a user or the app''s backend; notification, Apple; sweep, a question of this server to Apple.';
comment on column receipts.customer_id is
    'Of a receipt that nobody posted: Apple''s customer, where Apple says it. Null for every other receipt.';
-- A receipt that waits for its owner becomes due by a grant, a revocation or a new owner of the same chain or customer.
create index receipts_unposted_of_chain on receipts (original_transaction_id)
    where source <> 'post' and settled_at is null;
create index receipts_unposted_of_customer on receipts (customer_id)
    where source <> 'post' and settled_at is null and customer_id is not null;

-- Apple's last word about the next renewal of a chain, the told state of the chain, and the time of the next follow-up.
-- A chain has a row if one of its transactions is a period or was taken back.
create table chains (
    app_id text collate "C" not null,
    environment text collate "C" not null,
    original_transaction_id text collate "C" not null,
    previous_original_transaction_id text collate "C",  -- the chain that this one continues: a bundle, a migration
    renewal jsonb,                              -- Apple's facts, dates in seconds since 1970; null: none are known
    renewal_signed_at timestamptz,
    state text collate "C",                     -- of a subscription, as it was told last; null: nothing was told yet
    product_id text collate "C",                -- of the period that the told state is about
    transaction_id text collate "C",
    expires_at timestamptz,                     -- the end of the user's access, as told: of the period or the grace period
    told jsonb,                                 -- the rest of the told state
    told_user_id text collate "C",
    lapse_seen_at timestamptz,                  -- the first look that found the chain over by the clock alone
    steps integer not null default 0,           -- how many events the chain has had: the count numbers them
    due_at timestamptz,                         -- when a worker looks at it next; null: only new facts change it
    followed_at timestamptz,                    -- the last look
    primary key (app_id, environment, original_transaction_id),
    constraint chains_state
        check (state in ('active', 'in_grace', 'in_retry', 'expired', 'revoked', 'replaced')),
    constraint chains_renewal check ((renewal is null) = (renewal_signed_at is null))
);
create index chains_due on chains (due_at) where due_at is not null;
create index chains_after on chains (previous_original_transaction_id)
    where previous_original_transaction_id is not null;
comment on column chains.due_at is
    'When the clock may change the state. New facts about the chain mark it in chain_marks.';
comment on table chains is
    'A row: a chain that a worker follows up: a subscription, or a purchase that Apple took back.';

-- Each time that Apple took a granted purchase back, or gave it back. No row is ever changed.
create table revocations (
    transaction_id text collate "C" not null,   -- of the grant
    ordinal integer not null,
    app_id text collate "C" not null,
    environment text collate "C" not null,
    user_id text collate "C" not null,          -- who held the purchase then
    kind text collate "C" not null,
    reason text collate "C" not null,
    takes_back boolean not null,                -- whether goods are taken back, or given back
    percentage integer not null,                -- share of the price given back by now, in thousandths of a percent
    goods jsonb not null,                       -- the goods that this row takes back, or gives back
    at timestamptz not null,                    -- Apple's date; corrections of the date add no row
    signed_at timestamptz,                      -- of the facts that name the end
    recorded_at timestamptz not null default now(),
    primary key (transaction_id, ordinal),
    constraint revocations_ordinal check (ordinal > 0),
    constraint revocations_kind check (kind in ('revoked', 'reinstated')),
    constraint revocations_reason check (reason in ('refunded', 'upgraded', 'withdrawn')),
    constraint revocations_percentage check (percentage between 0 and 100000)
);
create index revocations_recorded_at on revocations using brin (recorded_at) with (autosummarize = on);
create index revocations_by_user on revocations (app_id, user_id, recorded_at);
comment on table revocations is
    'A row: Apple took a granted purchase back, or gave it back. The greatest ordinal of a purchase counts.';

-- Chain marks: something was stored about the chain, and no follow-up has looked at the chain since. A mark is a row of
-- its own, so that a verdict waits for no other verdict and for no follow-up. Triggers write marks; a hear transaction
-- writes the mark for Apple's facts of a renewal. Only `forget_chain_marks` removes marks.
create table chain_marks (
    id bigint primary key generated always as identity,
    app_id text collate "C" not null,
    environment text collate "C" not null,
    original_transaction_id text collate "C" not null
);
comment on table chain_marks is
    'A row: something was stored about a chain, and no follow-up has looked at it since. Usually empty.';

-- Removes the marks that a follow-up has read. The follow-up reads marks first and facts afterwards, so it has seen the
-- facts of each mark that it removes.
create function forget_chain_marks(ids bigint[]) returns void language sql security definer as $$
    delete from chain_marks where id = any(ids)
$$;

-- Marks the chains of facts that may end a purchase, or begin or end a period. A chain that continues another chain
-- ends the other chain too.
-- Facts that stand may be the newest about a purchase that Apple took back under another id of its chain. A consumable
-- that begins its chain has no other id.
create function mark_chains_of_new_facts() returns trigger language plpgsql security definer as $$
begin
    insert into chain_marks (app_id, environment, original_transaction_id)
    select distinct f.app_id, f.environment, c.original from fresh f
        cross join lateral (
            values (f.original_transaction_id), (f.facts ->> 'previousOriginalTransactionId')) c(original)
    where c.original is not null and (f.revoked_at is not null or f.expires_at is not null
        or (f.original_transaction_id <> f.transaction_id or f.kind = 'Non-Consumable') and exists (
            select from transactions
            where original_transaction_id = f.original_transaction_id and revoked_at is not null offset 0));
    return null;
end $$;
create trigger transactions_mark_chains after insert on transactions
    referencing new table as fresh for each statement execute function mark_chains_of_new_facts();

create function mark_chains_of_newer_facts() returns trigger language plpgsql security definer as $$
begin
    insert into chain_marks (app_id, environment, original_transaction_id)
    select distinct f.app_id, f.environment, c.original from fresh f join former b using (transaction_id)
        cross join lateral (
            values (f.original_transaction_id), (f.facts ->> 'previousOriginalTransactionId')) c(original)
    where c.original is not null and (coalesce(f.revoked_at, b.revoked_at, f.expires_at, b.expires_at) is not null
            and (f.revoked_at, f.expires_at, f.facts, f.ownership) is distinct from
                (b.revoked_at, b.expires_at, b.facts, b.ownership)
        or f.signed_at is distinct from b.signed_at
            and (f.original_transaction_id <> f.transaction_id or f.kind = 'Non-Consumable') and exists (
                select from transactions
                where original_transaction_id = f.original_transaction_id and revoked_at is not null offset 0));
    return null;
end $$;
create trigger transactions_mark_changed_chains after update on transactions
    referencing new table as fresh old table as former
    for each statement execute function mark_chains_of_newer_facts();

-- Marks the chains of grants, because a grant may come long after the facts, and Apple may have taken the purchase back under another id of its chain.
create function mark_chains_of_grants() returns trigger language plpgsql security definer as $$
begin
    insert into chain_marks (app_id, environment, original_transaction_id)
    select distinct t.app_id, t.environment, t.original_transaction_id
    from fresh g cross join lateral (
        select app_id, environment, original_transaction_id, revoked_at, expires_at from transactions
        where transaction_id = g.transaction_id offset 0) t
    where t.revoked_at is not null or t.expires_at is not null or exists (
        select from (select revoked_at from transactions
            where original_transaction_id = t.original_transaction_id offset 0) listed
        where listed.revoked_at is not null);
    return null;
end $$;
create trigger grants_mark_chains after insert on grants
    referencing new table as fresh for each statement execute function mark_chains_of_grants();

-- Marks the chains that have a new owner. Other rows of the table are written with a grant, which marks the chain
-- itself.
create function mark_chains_of_moves() returns trigger language plpgsql security definer as $$
begin
    insert into chain_marks (app_id, environment, original_transaction_id)
    select distinct app_id, environment, original_transaction_id from fresh where move > 0;
    return null;
end $$;
create trigger ownerships_mark_chains after insert on ownerships
    referencing new table as fresh for each statement execute function mark_chains_of_moves();

-- Apple denied a period that was given on trust: no facts say so.
create function mark_chain_of_denied() returns trigger language plpgsql security definer as $$
begin
    insert into chain_marks (app_id, environment, original_transaction_id)
    select t.app_id, t.environment, t.original_transaction_id from (
        select app_id, environment, original_transaction_id, expires_at from transactions
        where transaction_id = new.transaction_id offset 0) t
    where t.expires_at is not null;
    return null;
end $$;
create trigger provisional_grants_mark_chains after update of revoked_at on provisional_grants
    for each row when (old.revoked_at is distinct from new.revoked_at)
    execute function mark_chain_of_denied();

-- No event has told the refunds that are known already. The follow-up tells those of the last 90 days once: Apple lets
-- a customer ask for 90 days.
insert into chain_marks (app_id, environment, original_transaction_id)
select distinct t.app_id, t.environment, t.original_transaction_id
from transactions t join grants g on g.transaction_id = t.transaction_id
where t.revoked_at > now() - interval '90 days';

-- Makes a receipt due that nobody posted and that waits for its owner, and returns whether it did. The function passes
-- over a receipt that another process has locked. One id a call: a plan for many ids, made on an empty table and kept,
-- would read all receipts.
create function wake_unposted(receipt uuid, app text) returns boolean language plpgsql as $$
begin
    -- By the id alone: the index of due rows would be walked.
    perform from (
        select app_id, settled_at, due_at from receipts where id = receipt for no key update skip locked limit 1) r
    where r.app_id = app and r.settled_at is null and r.due_at > now();
    if found then update receipts set due_at = now() where id = receipt; end if;
    return found;
end $$;

-- As at the end of 0001_receipts.sql.
do $$
declare
    signature text;
begin
    foreach signature in array array[
        'forget_chain_marks(bigint[])', 'wake_unposted(uuid, text)', 'mark_chains_of_new_facts()', 'mark_chains_of_newer_facts()',
        'mark_chains_of_grants()', 'mark_chains_of_moves()', 'mark_chain_of_denied()']
    loop
        execute format('alter function %s set search_path = %I, pg_temp', signature, current_schema());
        execute format('revoke execute on function %s from public', signature);
    end loop;
end $$;
