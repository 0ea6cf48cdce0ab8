extension InvariantTests {
    /// Damages of the numbers of events and of deliveries, for the tests of the invariants.
    static let deliveryDamages = [
        Damage("a numbered event has no number", numbered() + "delete from event_sequences;", "event_numbers"),
        Damage("a user of a numbered event has no stream", numbered() + "delete from event_users;", "event_numbers"),
        Damage(
            "two events have each other's numbers",
            numbered() + """
                update event_sequences s set (xid, id) = (
                  select xid, id from event_sequences o where o.sequence = 3 - s.sequence)
                where sequence < 3;
                """,
            "event_numbers"),
        Damage(
            "a stream counts an event that is not there",
            numbered() + "update event_users set last_sequence = last_sequence + 1;",
            "event_numbers"),
        Damage(
            "an event has two numbers",
            numbered() + """
                insert into event_sequences
                  select stream, last_sequence + 1, xid, id from event_sequences join event_users using (stream)
                  where sequence = 1;
                """,
            "event_numbers"),
        Damage(
            "a delivery waits for an event that was not numbered",
            numbered() + delivery(last: "last_sequence + 1", behind: "s.id"),
            "deliveries"),
        Damage(
            "the cursor of an endpoint passes over an event",
            numbered() + delivery(last: "last_sequence", behind: "s.id + 1"),
            "deliveries"),
        Damage(
            "the database would forget an undelivered event",
            numbered() + "alter table deliveries drop constraint deliveries_due;", "deliveries"),
    ].map { damage in
        Damage(damage.name, "do $$ begin \(damage.sql) end $$", violations: damage.violations)
    }

    /// Adds a second event for the user of the seed's event, and numbers both.
    private static func numbered() -> String {
        """
        insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select gen_random_uuid(), app_id, 'ownership.gained', user_id, transaction_id, receipt_id, '{}' from events;
        insert into event_users (app_id, user_id, last_sequence)
          select app_id, user_id, count(*) from events group by 1, 2;
        insert into event_sequences (stream, sequence, xid, id)
          select stream, row_number() over (order by xid, id), xid, id
          from events join event_users using (app_id, user_id);
        update event_progress set xid = (select max(xid) from events), id = (select max(id) from events);
        """
    }

    /// A delivery of the whole stream that waits for its first event.
    private static func delivery(last: String, behind id: String) -> String {
        """
        insert into deliveries (endpoint, stream, last_sequence, done_sequence, behind_xid, behind_id, due_at)
          select gen_random_uuid(), s.stream, \(last), 0, s.xid, \(id), now()
          from event_sequences s join event_users using (stream) where s.sequence = 1;
        """
    }
}
