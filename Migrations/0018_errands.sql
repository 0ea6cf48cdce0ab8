-- serves: 1
-- Why: what is to be done at Apple for a purchase after it was decided: our order as its token, so that renewals and
--   refunds carry the right account (B5), and that it is finished (B3). Written by the statement that decides it.
-- Locks: none on what is there. Cost: none.

create table errands (
    transaction_id text not null,
    kind text not null,
    app_id text not null,
    environment text not null,
    original_transaction_id text not null,
    purchased_at timestamptz not null,          -- of a chain's purchases the latest says which token counts
    token uuid,
    state text not null default 'open',
    attempt int not null default 0,
    reason text,                                -- of the last try, or why it ended without being done
    http_status int,                            -- the last answer
    code bigint,
    created_at timestamptz not null default now(),
    due_at timestamptz default now(),
    ended_at timestamptz,
    primary key (transaction_id, kind),
    constraint errands_kind check (kind in ('set_token', 'finish')),
    constraint errands_token check ((kind = 'set_token') = (token is not null)),
    constraint errands_state check (state in ('open', 'parked', 'done', 'refused', 'superseded')),
    constraint errands_due check ((state in ('open', 'parked')) = (due_at is not null)),
    constraint errands_ended check ((due_at is null) = (ended_at is not null))
);
create index errands_due on errands (app_id, environment, kind, due_at) where due_at is not null;
create index errands_created_at on errands using brin (created_at) with (autosummarize = on);
-- Which tokens of a chain are ours, and which of them counts.
create index errands_of_chain on errands (original_transaction_id, token) where kind = 'set_token';

create view v_errands as
select app_id, environment, kind, transaction_id, original_transaction_id, token, state, reason, attempt, http_status,
    code, created_at, due_at, ended_at
from errands;
