-- serves: 1
-- Why: how far purchases have been compared with those before them is a place in the events, of which each grant has one: each
--   grant is looked at once, so many in a step. Steps by time, looked at twice, were all of a busy minute at once, for seconds
--   of a core, beside a long history with every page that its index by time did not know yet.
-- Locks: access exclusive on the one row for a moment. Cost: reads the events since the last search, a minute of them.

-- The last event that was looked at. `searched_to` is of programs from before.
alter table double_charge_progress add column searched_xid xid8, add column searched_id bigint;

update double_charge_progress set searched_id = 0, searched_xid = coalesce(
    (select xid from (select xid from events where at >= searched_to - interval '2 minutes' offset 0) e
        order by xid limit 1),
    pg_snapshot_xmin(pg_current_snapshot()));

alter table double_charge_progress alter searched_xid set not null, alter searched_id set not null;
