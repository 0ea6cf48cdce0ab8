-- serves: 1
-- Why: an order has one grant, and is found by it; what was bound lately is found by its time (invariant B7).
-- Locks: SHARE on grants while they are read once: verdicts wait; on orders likewise. Cost: a second for each three
--   million grants.
create unique index grants_of_order on grants (order_id) where order_id is not null;
-- Orders are bound soon after they were placed, so their times of binding lie in order as well.
create index orders_bound_at on orders using brin (bound_at) with (autosummarize = on);
