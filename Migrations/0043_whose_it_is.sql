-- serves: 1
-- Why: what another user merely claims takes no purchase. An installation is known by a token that this server issued to it, not
--   by a client's text; a token that was used before stands on purchases that stand; a poster is told when he may finish what went
--   to somebody else by less than proof.
-- Locks: access exclusive on granted_tokens and outcomes for a moment each; new tables otherwise. Cost: none that grows. Programs
--   from before write a client's text into installation_id and go by it: replace the workers first, then ingest.

-- A copy of the app on a device. Its id is never told to anybody, so that no client's text can be one.
create table installations (
    id text primary key,
    app_id text not null,
    issued_at timestamptz not null default now(),
    revoked_at timestamptz                      -- it proves nothing any more, also for what it brought before
);

-- What it shows itself by: one token, and for a while the one before it.
create table installation_tokens (
    token_sha256 bytea primary key,
    installation_id text not null references installations,
    app_id text not null,
    issued_at timestamptz not null default now(),
    expires_at timestamptz,                     -- null: the newest
    constraint installation_tokens_sha256 check (octet_length(token_sha256) = 32)
);
create index installation_tokens_of_installation on installation_tokens (installation_id);

-- Whose purchases it has shown, by Apple's own word. Two of one environment: it proves nothing.
create table installation_customers (
    installation_id text not null references installations,
    environment text not null,
    customer_id text not null,
    shown_at timestamptz not null default now(),
    primary key (installation_id, environment, customer_id)
);

-- The purchase that the memory of a token stands on: refunded, it is forgotten. Null: of before, and forgotten as well.
alter table granted_tokens add column transaction_id text;

-- What went to another user by less than proof: when its poster may finish it.
alter table outcomes add column safe_at timestamptz;

-- Apps whose records name their users as `userId` does. Another app's `uid` may mean anything.
create table record_apps (
    app_id text primary key,
    noted_at timestamptz not null default now()
);

create view v_disputes as
select o.transaction_id, o.receipt_id, r.app_id, r.user_id as claimant, g.user_id as holder,
    coalesce(g.binding_source, o.binding_source) as binding_source, o.state, o.reason, o.decided_at, o.safe_at
from outcomes o
cross join lateral (select app_id, user_id from receipts where id = o.receipt_id offset 0) r
left join lateral (
    select user_id, binding_source from grants where transaction_id = coalesce(o.granted_as, o.transaction_id) offset 0) g on true
where o.safe_at is not null or o.state = 'held' and o.reason in ('token_disputed', 'foreign_order', 'foreign_record', 'foreign_token');
comment on view v_disputes is
    'One row for each purchase that one user shows and another has, or may have, by less than proof: held, or not safe to finish until safe_at.';
