-- serves: 1
-- Why: an order says what somebody is about to buy, and freezes what it was promised; its id travels as Apple's
--   appAccountToken, so a purchase finds its user and its goods however late it comes (S0-1, S1-8, S3-12).
-- Locks: access exclusive on orders for a moment: columns with constant defaults rewrite nothing. Cost: no order was
--   placed through this program before, so its table is empty.

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
