-- serves: 1
-- Why: each grant was written into an index by its receipt that no statement asks: the receipt's outcomes name its
--   transactions, and those find the grants. Receipt ids are random, so beside a long history each entry was a page of its
--   own. Verdicts ask once for a batch, and by time, whether anybody was erased meanwhile, instead of once for each purchase.
-- Locks: access exclusive on grants for a moment; SHARE on erasures, which are few. Cost: none.

drop index grants_by_receipt;
create index erasures_erased_at on erasures (erased_at);
