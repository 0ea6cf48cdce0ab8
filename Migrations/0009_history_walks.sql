-- serves: 1
-- Why: a legacy receipt may list hundreds of purchases. Those we do not know are read from Apple's history, page by page,
--   at most once per customer and hour, whoever posts how many receipts (B9); what a walk reads, every receipt uses.
-- Locks: transactions for a moment, to add an empty column. Cost: none.

-- One row per customer whose history was ever read: the last walk through it.
create table history_walks (
    app_id text not null,
    environment text not null,
    customer text not null,                     -- Apple's appTransactionId; an original transaction id where Apple says none
    asked_id text not null,                     -- the id that Apple was asked with: every page of a walk with the same
    begun_at timestamptz not null default now(),
    busy_until timestamptz not null,            -- until then nobody else reads on: the reader may still be at work
    revision text,                              -- behind the last page that was stored; null: none yet, or it has ended
    ended_at timestamptz,                       -- all pages are stored
    primary key (app_id, environment, customer),
    constraint history_walks_ended check (ended_at is null or revision is null)
);

-- Whose purchase it is at Apple (appTransactionId): the limits on one customer's purchases ask for it.
alter table transactions add column customer_id text;
