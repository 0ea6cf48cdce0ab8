-- serves: 12
-- Why: a renewal that neither a user nor Apple told of is found by asking Apple about the subscription after the end of
--   its period. The chain's row says when a worker asks next, and what Apple answered last.
-- Locks: chains, while two indexes are built: follow-ups, and notifications about subscriptions, wait meanwhile.
-- Cost: reads chains twice.
-- Programs of the version before: their follow-ups leave `ask_at` as it is. A question that comes too early costs a call.

alter table chains
    add column ask_at timestamptz,              -- when a worker asks Apple; null: at expires_at, if the told state runs
    add column ask_until timestamptz,           -- the lease of the worker that asks now; a follow-up makes no time earlier
    add column ask_reader bigint not null default 0,    -- the number of the last claim: only its worker moves the position
    add column ask_failures integer not null default 0, -- questions without an answer since the last answer
    add column asked_at timestamptz,            -- the last answer
    add column asked_end timestamptz,           -- the end of the period that the last answers were about
    add column asks integer not null default 0, -- the answers about that period; 0: none about the present one
    add column apple_state text collate "C",    -- the state by Apple's last answer; null: the answer named none
    add column compare_at timestamptz;          -- when apple_state is compared with the told state
alter table chains add constraint chains_apple_state
    check (apple_state in ('active', 'in_grace', 'in_retry', 'expired', 'revoked')) not valid;
comment on column chains.ask_at is
    'When a worker asks Apple about the chain; infinity: never, until new facts. Null: when the told access ends.';

-- The chains about which a worker asks Apple, of each app those first that nobody asked about since their period began.
create index chains_to_ask on chains (app_id, least(asks, 1), coalesce(ask_at, expires_at))
    where coalesce(ask_at, expires_at) < 'infinity' and (ask_at is not null or state in ('active', 'in_grace', 'in_retry'));
create index chains_to_compare on chains (app_id, compare_at) where compare_at is not null;
