-- serves: 1
-- Why: `explain` tells the story of a transaction and must find who posted it (B14). The receipt that was granted it
--   stands in grants; the others are found here. What is granted at its first verdict, as nearly all are, writes nothing
--   into this index. And what people did by command is found by app, not by reading all of it.
-- Locks: SHARE on outcomes and audits while they are read once: posts go on, verdicts and commands wait.
-- Cost: half a second for each million outcomes.
create index outcomes_not_granted on outcomes (transaction_id) where state <> 'granted';
create index audits_by_app on audits ((details ->> 'app'), at);
