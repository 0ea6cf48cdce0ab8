-- serves: 1
-- Why: a grant says which of a product's items it was, so that limits count what was given and not what was ordered. A purchase
--   that is answered as given already, under another id of Apple's, says which grant that was: who looks whether something
--   paid is lost need not guess. The order that was asked for by a purchase is found by it, whatever key it is asked with.
-- Locks: SHARE on orders while its index is built: orders are not placed, for a second for each few million of them; access
--   exclusive on the two tables for a moment. Cost: none beside it. Rows from before say nothing, and are judged as before.

alter table grants add column item text;            -- null: the one that the product is where nobody says
alter table outcomes add column granted_as text;    -- of already_granted: the grant's transaction, if that is another id
create index orders_of_purchases on orders (reserved_for) where reserved_for is not null;
