-- serves: 1
-- Why: a worker keeps its plans, and while an app moves in they are of an empty table, where an index of the app's
--   decisions looks as good as one that names the purchase: each look-up then read all that had been decided. An index
--   that begins with the key leaves no choice.
-- Locks: access exclusive on shadow_decisions while both are built. Cost: seconds for each million purchases in shadow.

drop index shadow_decisions_chain, shadow_decisions_of_token;
create index shadow_decisions_chain on shadow_decisions (original_transaction_id);
create index shadow_decisions_of_token on shadow_decisions (token) where token is not null;
