extension Invariant {
    /// The invariants of the delivery of events. They need only the database.
    static let ofDelivery: [Invariant] = [
        Invariant(
            "B8", "event_numbers",
            "the newest events of a user have the last numbers of the user's stream, in the order of the feed",
            // After a move by a dump the order of older events is lost (xid 0).
            """
            select case when t.stream is null then 'a user of ' || t.app_id || ' has no stream'
                else 'stream ' || t.stream || ' is not numbered as the feed is' end
            from (
              select e.app_id, e.stream, count(*) as events,
                array_agg(e.xid || ' ' || e.id order by e.xid, e.id) as places
              from event_progress p cross join lateral (
                select xid, id, app_id, stream from events_in_streams
                where xid >= (
                    select min(xid) from (select xid, at from events where at >= \(since) offset 0) recent
                    where xid > '0' and xid >= p.since_xid)
                  and (xid, id) <= (p.xid, p.id) and not is_erased) e
              group by 1, 2) t
            left join lateral (select last_sequence from event_users where stream = t.stream offset 0) u on true
            where t.places is distinct from (
              select array_agg(s.xid || ' ' || s.id order by s.sequence) from event_sequences s
              where s.stream = t.stream and s.sequence > u.last_sequence - t.events)
            """),
        Invariant(
            "B8", "deliveries",
            "an undelivered event is due or parked, was numbered, and bounds the cursor of its endpoint",
            """
            select 'deliveries has no constraint ' || k.name
            from (values ('deliveries_order'), ('deliveries_due'), ('deliveries_behind'), ('deliveries_failed')) k(name)
            where not exists (
              select from pg_constraint
              where conrelid = 'deliveries'::regclass and conname = k.name and contype = 'c' and convalidated)
            union all
            select 'stream ' || d.stream || ' at endpoint ' || d.endpoint || case
                when s.stream is null or u.last_sequence is null or d.last_sequence > u.last_sequence
                  then ' waits for an event without a number' else ' is beyond its cursor' end
            from deliveries d
            left join lateral (
              select stream, xid, id from event_sequences
              where stream = d.stream and sequence = d.done_sequence + 1 offset 0) s on true
            left join lateral (select last_sequence from event_users where stream = d.stream offset 0) u on true
            where d.behind_xid is not null and coalesce(d.due_at, d.parked_at) >= \(since)
              and (s.stream is null or u.last_sequence is null or d.last_sequence > u.last_sequence
                or (d.behind_xid, d.behind_id) > (s.xid, s.id))
            """),
    ]
}
