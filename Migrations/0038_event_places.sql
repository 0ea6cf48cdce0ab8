-- serves: 12
-- Why: the feed shows each event's number among those of its user, and which events an endpoint has yet to take. Both
--   ask for the number of an event, and the numbers were found by user alone (B8).
-- Locks: event_sequences, while the index is built: dispatchers number nothing, and everybody else goes on.
-- Cost: some 40 bytes for each numbered event, and a second for each million that stands there.
-- Programs of the version before: they write and read as before.

-- Places grow, so each new one is written at the end of the index.
create unique index event_sequences_place on event_sequences (xid, id);
