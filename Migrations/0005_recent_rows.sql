-- serves: 1
-- Why: a BRIN index knows new pages only after a vacuum, which comes after a fifth of the table was written; until then
--   every question for recent rows reads all of them, each minute. And two questions had no index: attempts by time
--   (`makegood check`), and the order a receipt names (the worker).
-- Locks: SHARE UPDATE EXCLUSIVE on the BRIN indexes, for a moment. SHARE on attempts and orders while they are read
--   once: posts go on, retries and new orders wait. Cost: a second for each million attempts or orders.
alter index receipts_received_at set (autosummarize = on);
alter index grants_granted_at set (autosummarize = on);
alter index outcomes_decided_at set (autosummarize = on);
alter index events_at set (autosummarize = on);
create index attempts_at on attempts using brin (at) with (autosummarize = on);
create index orders_by_id_text on orders ((id::text));
