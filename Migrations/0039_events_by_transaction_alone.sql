-- serves: 38
-- Why: `events_of_transaction` says that an event is told once, and its entries lie together; this index was written at random.
-- Locks: access exclusive on events for a moment. Cost: none. Workers from before 38 name the index in their statement and
--   settle nothing without it: upgrade to the version of 38 first.

alter table events drop constraint events_event_id;
