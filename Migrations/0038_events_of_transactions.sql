-- serves: 1
-- Why: an event is told once by its id, which is a digest, so that beside a long history each of them was written to a page of
--   its own. All of a purchase's events name its transaction, and their ids follow from it: told once is as well said by
--   both, transaction first, and Apple's numbers grow. A story finds everything that was told of a purchase by it too.
-- Locks: SHARE on events while it is built: nothing is settled, the feed is read. Cost: two seconds for each million events,
--   in which verdicts wait and are tried again. The index over the id alone goes with the next migration.

create unique index events_of_transaction on events (transaction_id, event_id);
