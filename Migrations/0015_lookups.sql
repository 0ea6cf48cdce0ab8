-- Why: support finds a purchase that still waits by Apple's transaction id, and lists what waits for a person. A
--   posted proof says of which transaction it is before anybody has verified the proof: what it says is a key for
--   look-ups, and decides nothing.
-- serves: 12
-- Locks: receipts against posts and verdicts, for the time in which the two indexes are built; messages wait meanwhile.
-- Cost: reads receipts twice. The first index starts empty; the second one holds the held and parked rows alone.

alter table receipts
    add column shown_transaction_id text collate "C",
    add column shown_product_id text collate "C";
comment on column receipts.shown_transaction_id is
    'The transaction that the posted proof says it is of, or that a post without one names. Nobody has verified it: a key for look-ups alone. Null: none, or posted before this column was.';
comment on column receipts.shown_product_id is 'The product that the posted proof says it is of. Nobody has verified it.';
-- A purchase that was given is found by its grant and its outcome.
create index receipts_shown on receipts (shown_transaction_id)
    where shown_transaction_id is not null and state not in ('granted', 'already_granted');
-- Without the id, or a look-up of one row by its id and state might go through this whole index.
create index receipts_waiting on receipts (app_id, received_at) where state in ('held', 'parked');

comment on view v_paid_not_granted is
    'Paid by Apple''s word, not refunded, not granted, posted more than 5 minutes ago. Empty (S1-1) but for what the app''s settings or a person hold, such as purchases of the sandbox: the reason says which. Nothing of apps in shadow, whose goods another system gives. A row: a transaction of an open receipt. Seconds. makegood support waiting lists the same receipts with their users.';
