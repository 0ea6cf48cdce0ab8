-- serves: 1
-- Why: an order says what somebody is about to buy, and freezes what it was promised; its id travels as Apple's
--   appAccountToken, so a purchase finds its user and its goods however late it comes (S0-1, S1-8, S3-12).
-- Locks: access exclusive on orders for a moment: columns with constant defaults rewrite nothing. SHARE on receipts while
--   they are read once for the index: posts wait. Cost: no order was placed through this program before, so its table is
--   empty; a second for each million receipts, and its writing where many of them name an order.

alter table orders
    add column item text,                           -- where one store product is sold as many items (S3-8)
    add column quantity integer not null default 1, -- what the client asked for; Apple's multiplies the goods
    add column promotion text,                      -- the catalogue's collection (S1-7)
    add column channel text not null default 'apple',       -- the way of payment (S3-21)
    add column environment text,                    -- where Apple is expected to sell it; Apple's data decides
    add column goods jsonb,                         -- frozen: what one unit of it gives; null: the catalogue held nothing then
    add column bonuses jsonb not null default '[]', -- frozen: what it gives beside them once
    add column price_milliunits bigint,             -- frozen
    add column currency text,
    add column offer bigint,                        -- the version of the catalogue that was frozen
    add column pay_by timestamptz not null default now() + interval '48 hours',     -- bought later: the offer of that day
    add column target jsonb not null default '{}',  -- server, role, country, ext: where in the game the goods go (S0-9)
    add column details jsonb not null default '{}', -- everything else that was sent, unknown fields included (S0-10)
    add column installation_id text,                -- who has this app on this device may place orders of another user
    add column debounce_key bytea,                  -- the same tap again (S3-43)
    add column idempotency_key text,
    add column reserved_for text,                   -- asked for because this transaction came without an order (S2-17)
    add column transaction_id text,                 -- the purchase that it was bound to, once and for ever
    add column bound_at timestamptz,
    add constraint orders_quantity check (quantity > 0),
    add constraint orders_bound check ((transaction_id is null) = (bound_at is null)),
    add constraint orders_price check ((price_milliunits is null) = (currency is null));
create unique index orders_of_transaction on orders (transaction_id) where transaction_id is not null;
create unique index orders_once on orders (app_id, user_id, idempotency_key) where idempotency_key is not null;
-- What somebody is about to buy: unbound orders only, the hot path looks at no others.
create index orders_open on orders (app_id, user_id, product_id, placed_at) where transaction_id is null;
create index orders_of_installation on orders (app_id, installation_id, placed_at)
    where installation_id is not null and transaction_id is null;

-- Tokens that an app uses as appAccountToken for all purchases of a user: one token, one user, per app.
create table user_tokens (
    app_id text not null,
    token uuid not null,
    user_id text not null,
    source text not null,
    registered_at timestamptz not null default now(),
    primary key (app_id, token),
    constraint user_tokens_source check (source in ('registered', 'issued'))
);
create index user_tokens_by_user on user_tokens (app_id, user_id);
-- One token that we issue per user: asked for again, it is the same.
create unique index user_tokens_issued on user_tokens (app_id, user_id) where source = 'issued';

-- Which receipts named an order: what somebody who polls the order learns. As text, for a client may write what it likes.
create index receipts_of_order on receipts (lower(order_id)) where order_id is not null;

-- What an app told of a purchase that went wrong (S0-20, P3). Closes nothing.
create table client_reports (
    id uuid primary key,                        -- derived from the report: the same report is the same row
    app_id text not null,
    user_id text,
    order_id uuid,                              -- an order of this app and user
    transaction_id text,
    kind text not null,
    message text,
    app_version text,
    details jsonb not null,                     -- device, circumstances and unknown fields
    reported_at timestamptz not null default now(),
    handled_at timestamptz,                     -- paid_without_proof: when a person had seen to it
    constraint client_reports_kind
        check (kind in ('failed', 'cancelled', 'deferred', 'paid_without_proof', 'refund_requested', 'error'))
);
create index client_reports_of_order on client_reports (order_id, reported_at) where order_id is not null;
create index client_reports_by_user on client_reports (app_id, user_id, reported_at);
create index client_reports_of_transaction on client_reports (transaction_id) where transaction_id is not null;
create index client_reports_to_handle on client_reports (app_id, reported_at)
    where kind = 'paid_without_proof' and handled_at is null;

create view v_client_reports as
select id, app_id, user_id, order_id, transaction_id, kind, app_version, reported_at, handled_at from client_reports;

create view v_orders as
select id, app_id, user_id, product_id, item, quantity, promotion, channel, environment, goods, bonuses,
    price_milliunits, currency, placed_at, pay_by, reserved_for, transaction_id, bound_at
from orders;
