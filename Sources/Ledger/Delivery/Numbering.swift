package import Foundation
package import Postgres

/// The result of one step of numbering.
package struct NumberedBatch: Sendable, Equatable {
    /// How many events got a number.
    package var events = 0
    /// Whether more events may wait for a number.
    package var isFull = false
    /// The endpoints that got something due, and to which no dispatcher sends.
    package var endpoints: [UUID] = []

    package init() {}
}

extension Database {
    /// Gives the next events their numbers, at most `limit`, in the order of the feed, and makes them due at the
    /// endpoints that get them, in one transaction. It runs behind the commits: an event below the oldest running
    /// transaction. One process at a time numbers.
    ///
    /// Idempotent: a step whose commit was not seen is repeated as the next step.
    ///
    /// - Parameter filters: of the endpoints that the configuration file defines. Endpoints that only other dispatchers
    ///   know get every event of their app, and the dispatcher that sends them passes over what their filter refuses.
    /// - Returns: nil where another process numbers, or erases a user.
    package func numberEvents(
        limit: Int, for filters: [EndpointFilter]
    ) async throws(PostgresError) -> NumberedBatch? {
        try await transact("ledger.number_events") { transaction throws(PostgresError) in
            let progress = transaction.queue(Statements.lockProgress, ())
            let next = transaction.queue(Statements.nextEvents, limit)
            try transaction.exchange()
            guard !progress.rows.isEmpty, let span = next.rows.first else {
                try transaction.commit()
                return progress.rows.isEmpty ? nil : NumberedBatch()
            }
            transaction.queue(Statements.countStreams, span)
            let rung = transaction.queue(Statements.numberEvents, .init(span: span, filters: filters))
            transaction.queue(Statements.noteProgress, span)
            try transaction.commit()
            var batch = NumberedBatch()
            batch.events = span.events
            batch.isFull = span.events >= limit
            batch.endpoints = rung.rows
            return batch
        }
    }
}

extension Ledger {
    /// As `Database.numberEvents`.
    package func numberEvents(
        limit: Int, for filters: [EndpointFilter]
    ) async throws(LedgerError) -> NumberedBatch? {
        do {
            return try await database.numberEvents(limit: limit, for: filters)
        } catch {
            throw LedgerError(error)
        }
    }
}

/// So many events of the feed behind a place. They are the same at each look, because every transaction up to the last of
/// them has ended.
struct EventSpan: Sendable {
    let afterXID: Int
    let afterID: Int
    let events: Int
    let lastXID: Int
    let lastID: Int

    var values: [Value] { [.int(afterXID), .int(afterID), .int(events)] }
}

extension Statements {
    struct Numbering: Sendable {
        let span: EventSpan
        let filters: [EndpointFilter]
    }

    /// A statement of its own: what reads after it sees what the numbering before it wrote.
    static let lockProgress = Statement<Void, Void>(
        "delivery.lock_progress", "select from event_progress for update skip locked")

    /// No row: every event that the feed shows has its number.
    static let nextEvents = Statement<Int, EventSpan>(
        "delivery.next_events",
        """
        select p.xid, p.id, e.events, e.xid, e.id
        from event_progress p cross join lateral (
          select xid, id, count(*) over () as events from (
            select xid, id from events
            where (xid, id) > (p.xid, p.id) and xid < pg_snapshot_xmin(pg_current_snapshot())
            order by xid, id limit $1) next
          order by xid desc, id desc limit 1) e
        """,
        bind: { [.int($0)] },
        read: { row throws(PostgresError) in
            EventSpan(
                afterXID: try row.int(0), afterID: try row.int(1), events: try row.int(2), lastXID: try row.int(3),
                lastID: try row.int(4))
        })

    /// The events of a span, whose values are the first parameters. With two bounds PostgreSQL would read the index from its
    /// beginning.
    private static let eventsOfSpan = """
        (select xid, id, app_id, user_id, type, body ->> 'environment' as environment from events
            where (xid, id) > ($1::text::xid8, $2) order by xid, id limit $3) e
        """

    /// Counts the events of a span in their streams, and begins the streams that are new.
    static let countStreams = Statement<EventSpan, Void>(
        "delivery.count_streams",
        """
        insert into event_users as u (app_id, user_id, last_sequence)
        select app_id, user_id, count(*) from \(eventsOfSpan)
        group by app_id, user_id order by app_id, user_id
        on conflict (app_id, user_id) do update set last_sequence = u.last_sequence + excluded.last_sequence
        """,
        bind: { $0.values })

    /// Writes the numbers of a span whose streams are counted, and makes the events due. A delivery that still has
    /// something to do goes on as it is; of one that was done, the first new event is the next.
    static let numberEvents = {
        var parameters = ParameterList<Numbering>()
        for index in 0..<3 { _ = parameters.add { $0.span.values[index] } }
        let filters = parameters.add(
            [
                .uuid("id") { $0.key.id }, .text("types") { $0.typesText },
                .text("environments") { $0.environmentsText },
            ], of: { $0.filters })
        return Statement<Numbering, UUID>(
            "delivery.number",
            """
            with numbered as materialized (
              select u.stream, u.last_sequence - count(*) over (partition by u.stream)
                  + row_number() over (partition by u.stream order by e.xid, e.id) as sequence,
                e.xid, e.id, e.app_id, e.type, e.environment
              from \(eventsOfSpan) cross join lateral (
                select stream, last_sequence from event_users
                where app_id = e.app_id and user_id = e.user_id offset 0) u),
            stored as (
              insert into event_sequences (stream, sequence, xid, id)
              select stream, sequence, xid, id from numbered order by stream, sequence),
            wanting as materialized (
              select n.id, n.app_id, n.since_xid, f.types, f.environments
              from endpoints n left join \(filters.rows(as: "f")) on f.id = n.id
              where f.id is not null or \(isDefined)),
            made as (
              insert into deliveries as d (
                endpoint, stream, last_sequence, done_sequence, behind_xid, behind_id, due_at)
              select distinct on (w.id, e.stream) w.id, e.stream,
                max(e.sequence) over (partition by w.id, e.stream), e.sequence - 1, e.xid, e.id, now()
              from numbered e join wanting w on w.app_id = e.app_id and e.xid >= w.since_xid
                and \(EndpointFilter.passes(
                type: "e.type", environment: "e.environment", types: "w.types", environments: "w.environments"))
              order by w.id, e.stream, e.sequence
              on conflict (endpoint, stream) do update set last_sequence = excluded.last_sequence,
                done_sequence = case when \(isWaiting) then d.done_sequence else excluded.done_sequence end,
                behind_xid = case when \(isWaiting) then d.behind_xid else excluded.behind_xid end,
                behind_id = case when \(isWaiting) then d.behind_id else excluded.behind_id end,
                due_at = case when \(isWaiting) then d.due_at else excluded.due_at end
              returning d.endpoint)
            select n.id from (select distinct endpoint from made) m join endpoints n on n.id = m.endpoint
            where \(isOpen) and \(isFree)
            """,
            parameters: parameters, read: { row throws(PostgresError) in try row.uuid(0) })
    }()

    /// Where a delivery `d` has undelivered events.
    private static let isWaiting = "d.last_sequence > d.done_sequence"

    static let noteProgress = Statement<EventSpan, Void>(
        "delivery.note_progress", "update event_progress set xid = $1::text::xid8, id = $2, at = now()",
        bind: { [.int($0.lastXID), .int($0.lastID)] })
}
