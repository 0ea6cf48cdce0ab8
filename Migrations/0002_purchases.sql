-- Why: a receipt proves transactions. Apple's facts about each transaction are stored once, and each purchase is
--   granted at most once: the unique keys of `grants` keep this promise, whatever the programs do. Beside the grants
--   stand the decisions on each transaction of each receipt with their reasons, the owners of chains of purchases, the
--   bonuses that came with purchases, and purchases that may have been charged twice.
-- Locks: none, everything is new.
-- Cost: none: an empty database.

-- What Apple said about each transaction; the newest answer wins.
create table transactions (
    transaction_id text collate "C" primary key,
    app_id text collate "C" not null,
    environment text collate "C" not null,
    original_transaction_id text collate "C" not null,
    product_id text collate "C" not null,
    kind text collate "C",
    quantity integer not null,
    purchased_at timestamptz not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    app_account_token uuid,
    ownership text collate "C",
    signed_at timestamptz,
    facts jsonb not null,
    customer_id text collate "C",               -- Apple's appTransactionId: limits on one customer's purchases
    constraint transactions_quantity check (quantity > 0)
);
create index transactions_chain on transactions (original_transaction_id);
-- The verdict on a receipt of a long subscription looks up each of its periods.
create index transactions_periods on transactions (original_transaction_id, expires_at) where expires_at is not null;
create index transactions_chain_revoked on transactions (original_transaction_id) where revoked_at is not null;
-- Finds the few purchases that were taken back, by day and by user.
create index transactions_revoked_at on transactions (revoked_at) where revoked_at is not null;

-- The promise: one grant per Apple transaction, per purchase, per period and per order, kept by the database. The grant
-- alone says which purchase an order was bound to, so that a verdict neither locks nor rewrites the order.
create table grants (
    transaction_id text collate "C" primary key,
    purchase_key text collate "C" not null,     -- one purchase that Apple lists under two ids
    app_id text collate "C" not null,
    environment text collate "C" not null,
    user_id text collate "C" not null,
    customer_id text collate "C",               -- Apple's customer of this app, where Apple says it
    receipt_id uuid not null,
    product_id text collate "C" not null,
    quantity integer not null,
    goods jsonb not null,                       -- computed once, at the time of the grant
    binding_source text collate "C" not null,   -- which rule found the owner
    granted_at timestamptz not null default now(),
    order_id uuid,                              -- the order that the purchase binds; null: given without one
    item text collate "C",                      -- what limits count; null: the item that the product is by default
    period_key text collate "C",                -- a period's second key, its chain and its end; null: no period
    constraint grants_purchase_key unique (purchase_key),
    constraint grants_quantity check (quantity > 0)
);
create unique index grants_of_order on grants (order_id) where order_id is not null;
-- Apple lists one period of a subscription under several ids, and not each of them names the billing event that
-- `purchase_key` is made of. A grant under either key counts as the grant of the purchase.
create unique index grants_period_key on grants (period_key) where period_key is not null;
-- There is no index by receipt: the outcomes of a receipt name its transactions, and the transactions lead to the
-- grants. Receipt ids are random, so beside a long history an index would write each entry to a page of its own.
create index grants_by_user on grants (app_id, user_id, granted_at);
-- Finds the users of a customer without reading their grants.
create index grants_of_customer on grants (customer_id, user_id) where customer_id is not null;
create index grants_of_sandbox on grants (app_id, granted_at) where environment <> 'Production';
create index grants_granted_at on grants using brin (granted_at) with (autosummarize = on);

-- The decision on each transaction of each receipt.
create table outcomes (
    receipt_id uuid not null,
    transaction_id text collate "C" not null,
    state text collate "C" not null,
    reason text collate "C",
    binding_source text collate "C",
    decided_at timestamptz not null default now(),
    reasons text[] collate "C",                 -- of the decision; null: only the proof spoke for an owner
    granted_as text collate "C",                -- of already_granted: the grant's transaction, if that is another id
    safe_at timestamptz,                        -- another user has it by less than proof: when the poster may finish it
    primary key (receipt_id, transaction_id),
    constraint outcomes_state check (state in ('open', 'held', 'granted', 'already_granted', 'rejected'))
);
create index outcomes_decided_at on outcomes using brin (decided_at) with (autosummarize = on);
create index outcomes_held on outcomes (reason, receipt_id) where state = 'held';
-- Finds the receipts that posted a transaction, except the one that was granted it, which stands in grants. Nearly
-- every transaction is granted at its first verdict, and writes nothing into this index.
create index outcomes_not_granted on outcomes (transaction_id) where state <> 'granted';

-- The owners of a chain (one originalTransactionId): from which purchase on, and by which rule. The latest purchase
-- decides the current owner. No row is ever changed: a move adds a row.
create table ownerships (
    app_id text collate "C" not null,
    environment text collate "C" not null,
    original_transaction_id text collate "C" not null,
    purchased_at timestamptz not null,
    transaction_id text collate "C" not null,
    user_id text collate "C" not null,
    binding_source text collate "C" not null,
    decided_at timestamptz not null default now(),
    move integer not null default 0,            -- 0: the owner at the grant; the greatest: the current owner
    primary key (app_id, environment, original_transaction_id, purchased_at, transaction_id, move),
    constraint ownerships_move check (move >= 0)
);
create index ownerships_by_user on ownerships (app_id, user_id);
create index ownerships_moved on ownerships (transaction_id, move) where move > 0;

-- The users who got purchases with a token, for tokens that name no order and that nobody registered.
create table granted_tokens (
    app_id text collate "C" not null,
    token uuid not null,
    user_id text collate "C" not null,
    granted_at timestamptz not null default now(),
    transaction_id text collate "C",            -- the purchase with the token: once refunded, it proves nothing
    primary key (app_id, token, user_id)
);
create index granted_tokens_by_user on granted_tokens (app_id, user_id);

-- A user's first, monthly or daily bonus, and the purchase that it came with. A bonus is given once per user and
-- period: the unique index decides between two statements.
create table given_bonuses (
    app_id text collate "C" not null,
    user_id text collate "C" not null,
    bonus text collate "C" not null,
    period text collate "C" not null,           -- of the purchase, in UTC: 2026-11-22, 2026-11, or empty for ever
    transaction_id text collate "C",            -- null: given by the system before this one
    goods jsonb,                                -- as they stand among the goods of the grant
    given_at timestamptz not null default now(),
    freed_at timestamptz,                       -- when it was taken back, or its user erased: it may be given again
    constraint given_bonuses_here check ((transaction_id is null) = (goods is null))
);
create unique index given_bonuses_once on given_bonuses (app_id, user_id, bonus, period) where freed_at is null;
create index given_bonuses_of_transaction on given_bonuses (transaction_id);

-- Keeps a bonus only with its grant. The bonus comes first, for its goods stand in the grant. A transaction that lost the
-- grant to another one must not keep the bonus: its commit fails, and it is run again.
create function hold_bonus_to_its_grant() returns trigger language plpgsql as $$
begin
    perform from grants where transaction_id = new.transaction_id
        and goods @> jsonb_build_array(jsonb_build_object('bonus', new.bonus));
    if not found then
        raise exception 'the purchase was granted without this bonus meanwhile' using errcode = 'serialization_failure';
    end if;
    return null;
end $$;
create constraint trigger given_bonuses_have_grants after insert on given_bonuses deferrable initially deferred
    for each row when (new.transaction_id is not null) execute function hold_bonus_to_its_grant();

-- Only the erasure of a user changes the user of a grant.
create function move_bonuses_with_their_grant() returns trigger language plpgsql as $$
begin
    update given_bonuses set user_id = new.user_id where transaction_id = new.transaction_id;
    return null;
end $$;
create trigger grants_move_bonuses after update of user_id on grants
    for each row when (old.user_id <> new.user_id) execute function move_bonuses_with_their_grant();

-- Purchases that may be one purchase charged twice. All of them are granted; a person looks at them.
create table double_charges (
    transaction_id text collate "C" primary key, -- the later of the two
    app_id text collate "C" not null,
    user_id text collate "C" not null,
    product_id text collate "C" not null,
    first_transaction_id text collate "C",      -- null: the order's grant is the first purchase
    order_id uuid,                              -- both were bought on this order; null: only shortly after each other
    flagged_at timestamptz not null default now()
);
create index double_charges_by_user on double_charges (app_id, user_id);
-- The timeline of a purchase also shows the purchase that was charged after it.
create index double_charges_of_first on double_charges (first_transaction_id) where first_transaction_id is not null;

revoke execute on function hold_bonus_to_its_grant(), move_bonuses_with_their_grant() from public;
