-- Why: an order says what a user is about to buy, and freezes what the user was promised. Its id travels as Apple's
--   appAccountToken, so a purchase finds its user and its goods however late it comes. Beside the orders stand the
--   other ways from a purchase to a user: the tokens of an app's users, and support decisions
--   (`makegood support give`). The order does not say which purchase it was bound to: the grant does.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

create table orders (
    id uuid primary key,
    app_id text collate "C" not null,
    user_id text collate "C" not null,
    product_id text collate "C" not null,
    placed_at timestamptz not null default now(),
    item text collate "C",                      -- the item, where one store product is sold as several items
    quantity integer not null default 1,        -- as the client asked; the goods are multiplied by Apple's quantity
    promotion text collate "C",                 -- the catalogue's collection
    channel text collate "C" not null default 'apple', -- the way of payment
    environment text collate "C",               -- where Apple is expected to sell it; Apple's data decides
    goods jsonb,                                -- frozen: what one unit gives; null: the catalogue held nothing then
    bonuses jsonb not null default '[]',        -- frozen: what one unit gives once beside the goods
    price_milliunits bigint,                    -- frozen
    currency text collate "C",
    offer bigint,                               -- the catalogue's revision whose offer was frozen
    pay_by timestamptz not null default now() + interval '48 hours',    -- bought later: the offer of that day counts
    target jsonb not null default '{}',         -- server, role, country, ext: where in the game the goods go
    details jsonb not null default '{}',        -- everything else that was sent, unknown fields included
    installation_id text collate "C",           -- the app on this device may place orders of another user
    debounce_key bytea,                         -- the same key: the same tap again
    idempotency_key text collate "C",
    reserved_for text collate "C",              -- asked for because this transaction came without an order
    placed_on date,                             -- the day (UTC) that `place` belongs to
    place integer,                              -- its number among the user's orders of that day; null: imported
    constraint orders_quantity check (quantity > 0),
    constraint orders_price check ((price_milliunits is null) = (currency is null))
);
create index orders_by_user on orders (app_id, user_id, placed_at);
create index orders_by_id_text on orders ((id::text) collate "C");  -- the order that a receipt names
create unique index orders_once on orders (app_id, user_id, idempotency_key) where idempotency_key is not null;
-- Keeps the limit of orders per user and day exact. Of two processes that place orders of one user at once, the later
-- one sees the orders of the earlier one, so that one tap is one order.
create unique index orders_places on orders (app_id, user_id, placed_on, place) where place is not null;
-- Finds orders that a user may be about to buy. The query passes over orders that are bound by then.
create index orders_of_product on orders (app_id, user_id, product_id, placed_at);
create index orders_of_installation on orders (app_id, installation_id, placed_at) where installation_id is not null;
-- Finds the order that was asked for by a purchase, whatever key it is asked with.
create index orders_of_purchases on orders (reserved_for) where reserved_for is not null;
create index orders_placed_at on orders using brin (placed_at) with (autosummarize = on);

-- Tokens that an app uses as appAccountToken for all purchases of a user: one token, one user, per app.
create table user_tokens (
    app_id text collate "C" not null,
    token uuid not null,
    user_id text collate "C" not null,
    source text collate "C" not null,
    registered_at timestamptz not null default now(),
    primary key (app_id, token),
    constraint user_tokens_source check (source in ('registered', 'issued'))
);
create index user_tokens_by_user on user_tokens (app_id, user_id);
-- This server issues one token per user, and returns the same token when it is asked again.
create unique index user_tokens_issued on user_tokens (app_id, user_id) where source = 'issued';

-- Support decisions about the owner of a held purchase. A decision is a row beside the other evidence for an owner, and
-- the purchase is granted by the same transaction as all purchases. The latest decision counts, and none changes an
-- existing grant.
create table support_decisions (
    app_id text collate "C" not null,
    transaction_id text collate "C" not null,
    user_id text collate "C" not null,
    item text collate "C",                      -- one of the items sold as its product; null: by the rules
    token uuid,                                 -- leads to the user: Apple is told this token
    decided_at timestamptz not null default now(),
    primary key (app_id, transaction_id)
);

-- Apps that have ever had an order, a user's token or a support decision. In all other apps nothing names another user
-- than the poster, and no worker asks who owns a purchase. The statement that writes an app's first such row writes
-- this row too, so that a process that sees that row sees this one.
create table ordering_apps (app_id text collate "C" primary key);

create function note_ordering_apps() returns trigger language plpgsql security definer as $$
begin
    insert into ordering_apps (app_id)
    select distinct app_id from placed p where not exists (select from ordering_apps where app_id = p.app_id)
    order by 1
    on conflict do nothing;
    return null;
end $$;
create trigger orders_note_app after insert on orders
    referencing new table as placed for each statement execute function note_ordering_apps();
create trigger user_tokens_note_app after insert on user_tokens
    referencing new table as placed for each statement execute function note_ordering_apps();
create trigger support_decisions_note_app after insert on support_decisions
    referencing new table as placed for each statement execute function note_ordering_apps();

-- Reports of apps about purchases that went wrong. A report closes nothing.
create table client_reports (
    id uuid primary key,                        -- derived from the report: the same report is the same row
    app_id text collate "C" not null,
    user_id text collate "C",
    order_id uuid,                              -- an order of this app and user
    transaction_id text collate "C",
    kind text collate "C" not null,
    message text collate "C",
    app_version text collate "C",
    details jsonb not null,                     -- device, circumstances and unknown fields
    reported_at timestamptz not null default now(),
    handled_at timestamptz,                     -- of paid_without_proof: when a person handled it
    constraint client_reports_kind
        check (kind in ('failed', 'cancelled', 'deferred', 'paid_without_proof', 'refund_requested', 'error'))
);
create index client_reports_of_order on client_reports (order_id, reported_at) where order_id is not null;
create index client_reports_by_user on client_reports (app_id, user_id, reported_at);
create index client_reports_of_transaction on client_reports (transaction_id) where transaction_id is not null;
create index client_reports_to_handle on client_reports (app_id, reported_at)
    where kind = 'paid_without_proof' and handled_at is null;

-- As at the end of 0001_receipts.sql.
do $$
begin
    execute format('alter function note_ordering_apps() set search_path = %I, pg_temp', current_schema());
end $$;
revoke execute on function note_ordering_apps() from public;
