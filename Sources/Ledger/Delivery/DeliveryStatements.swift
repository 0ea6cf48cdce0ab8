package import Foundation
package import Postgres
import Purchases

/// An event whose turn it is at an endpoint: the first undelivered one of its stream.
package struct DueEvent: Sendable, Equatable {
    package let stream: Int
    /// The event's number in its stream, from 1 on.
    package let sequence: Int
    /// Attempts of this event that failed.
    package let attempts: Int
    /// When the first of them failed.
    package let failingSince: Date?
    /// The event that this endpoint got before, of the same stream.
    package let previousID: UUID?
    /// Nil: nothing up to `sequence` passes the endpoint's filter any more.
    package let event: Event?
}

/// What became of one event at one endpoint.
package struct DeliveryResult: Sendable {
    package enum Outcome: Sendable, Equatable {
        /// The endpoint took it.
        case delivered
        /// The endpoint's filter refuses everything up to the sequence.
        case passed
        /// The endpoint did not take it. Without `retryIn` a person decides what becomes of it.
        case failed(reason: String, retryIn: Duration?)

        var isDone: Bool {
            switch self {
            case .delivered, .passed: true
            case .failed: false
            }
        }
        var reason: String? {
            switch self {
            case .delivered, .passed: nil
            case .failed(let reason, _): reason
            }
        }
        var retryIn: Duration? {
            switch self {
            case .delivered, .passed: nil
            case .failed(_, let retryIn): retryIn
            }
        }
    }

    package var endpoint: UUID
    package var stream: Int
    package var sequence: Int
    /// Nil: nothing was sent.
    package var eventID: UUID?
    package var outcome: Outcome

    package init(endpoint: UUID, stream: Int, sequence: Int, eventID: UUID?, outcome: Outcome) {
        self.endpoint = endpoint
        self.stream = stream
        self.sequence = sequence
        self.eventID = eventID
        self.outcome = outcome
    }
}

package struct StoredResult: Sendable, Equatable {
    package let stream: Int
    /// False: the delivery was farther, or parked.
    package let isStored: Bool
}

extension Statements {
    package struct DueQuestion: Sendable {
        package let filter: EndpointFilter
        package let limit: Int
        /// Streams that the dispatcher sends at this moment.
        package let except: [Int]

        package init(filter: EndpointFilter, limit: Int, except: [Int]) {
            self.filter = filter
            self.limit = limit
            self.except = except
        }
    }

    /// The most events that one look finds. The bound stands in the text: for a bound that it does not know, PostgreSQL
    /// would read and sort all deliveries that are due.
    package static let dueEventsMax = 1000
    /// The events whose turn it is at an endpoint: of each stream that is due the first one that passes the filter.
    /// Those that are due for longest come first.
    package static let dueEvents = Statement<DueQuestion, DueEvent>(
        "delivery.due_events",
        """
        select d.stream, coalesce(n.sequence, d.last_sequence), d.attempts, d.failing_since, d.previous_event_id,
          \(eventColumns)
        from (
          select * from (
            select stream, last_sequence, done_sequence, attempts, failing_since, previous_event_id, due_at
            from deliveries
            where endpoint = $1 and due_at <= now() and stream <> all($5::int8[])
            order by due_at limit \(dueEventsMax)) first
          limit $4) d
        left join lateral (
          select s.sequence, e.* from event_sequences s join events e on e.xid = s.xid and e.id = s.id
          where s.stream = d.stream and s.sequence > d.done_sequence and s.sequence <= d.last_sequence
            and \(EndpointFilter.passes(
            type: "e.type", environment: "e.body ->> 'environment'", types: "$2::text", environments: "$3::text"))
          order by s.sequence limit 1) n on true
        order by d.due_at
        """,
        bind: {
            [
                .uuid($0.filter.key.id), .text($0.filter.typesText), .text($0.filter.environmentsText), .int($0.limit),
                .ints($0.except),
            ]
        },
        read: { row throws(PostgresError) in
            DueEvent(
                stream: try row.int(0), sequence: try row.int(1), attempts: try row.int(2),
                failingSince: try row.optionalDate(3), previousID: try row.optionalUUID(4),
                event: try row.optionalInt(5) == nil ? nil : try readEvent(row, from: 5))
        })

    /// The assignments of an update that ends the event of this number of a delivery `d`. The place of the next event
    /// comes from a row `s`. Where a numbering has made the next event due meanwhile, `s` may lack the place. Then the
    /// place of the event that was delivered bounds the cursor for a little longer.
    static func eventEnd(_ sequence: String) -> String {
        """
        done_sequence = \(sequence), attempts = 0, failing_since = null, failed_sequence = null, parked_at = null,
            reason = null, due_at = case when d.last_sequence > \(sequence) then now() end,
            behind_xid = case when d.last_sequence > \(sequence) then coalesce(s.xid, d.behind_xid) end,
            behind_id = case when d.last_sequence > \(sequence) then coalesce(s.id, d.behind_id) end
        """
    }

    /// Stores results, at most one of each stream and endpoint, and returns for each, in order, whether it is stored. A
    /// result counts whoever has the turn by now: a late success is a success. What is farther already stays as it is,
    /// and a late failure changes nothing that is parked.
    package static let storeResults = Statement<[DeliveryResult], StoredResult>(
        "delivery.store_results",
        [
            .uuid("endpoint") { $0.endpoint }, .int("stream") { $0.stream }, .int("sequence") { $0.sequence },
            .text("event_id") { $0.outcome == .delivered ? $0.eventID?.uuidString : nil },
            .bool("is_done") { $0.outcome.isDone }, .text("reason") { $0.outcome.reason },
            .double("seconds") { $0.outcome.retryIn?.inSeconds },
        ]
    ) { rows in
        """
        with results as materialized (
          select i.*, s.xid, s.id
          from \(rows.rows(as: "i", ordinality: "n")) left join lateral (
            select xid, id from event_sequences
            where stream = i.stream and sequence = i.sequence + 1 offset 0) s on i.is_done
          order by i.endpoint, i.stream),
        ended as (
          update deliveries d set \(eventEnd("s.sequence")),
            previous_event_id = coalesce(s.event_id::uuid, d.previous_event_id)
          from results s
          where s.is_done and d.endpoint = s.endpoint and d.stream = s.stream and d.done_sequence < s.sequence
            and d.last_sequence >= s.sequence
          returning s.n),
        failed as (
          update deliveries d set attempts = d.attempts + 1, failed_sequence = r.sequence,
            failing_since = coalesce(d.failing_since, now()), reason = left(r.reason, 500),
            due_at = now() + make_interval(secs => r.seconds), parked_at = case when r.seconds is null then now() end
          from results r
          where not r.is_done and d.endpoint = r.endpoint and d.stream = r.stream and d.done_sequence < r.sequence
            and d.last_sequence >= r.sequence and d.parked_at is null
          returning r.n)
        select r.stream, s.n is not null
        from results r left join (select n from ended union all select n from failed) s using (n)
        order by n
        """
    } read: { row throws(PostgresError) in
        StoredResult(stream: try row.int(0), isStored: try row.bool(1))
    }

    /// Up to which event of its app an endpoint got everything that passes its filter. No event before the first
    /// undelivered one: the start of the feed.
    package static let deliveredCursor = Statement<UUID, EventCursor>(
        "delivery.cursor",
        """
        with undelivered as materialized (
          select behind_xid as xid, behind_id as id from deliveries
          where endpoint = $1 and behind_xid is not null order by behind_xid, behind_id limit 1),
        bound as materialized (
          select xid, id from undelivered
          union all
          select xid, id + 1 from event_progress where not exists (select from undelivered))
        select coalesce(e.xid::text::int8 + (select max(shift) from feed_eras where first_xid <= e.xid::text::int8), 0),
          coalesce(e.id, 0)
        from bound b left join lateral (
          select xid, id from events
          where app_id = (select app_id from endpoints where id = $1) and (xid, id) < (b.xid, b.id)
          order by xid desc, id desc limit 1) e on true
        """,
        bind: { [.uuid($0)] },
        read: { row throws(PostgresError) in EventCursor(place: try row.int(0), id: try row.int(1)) })
}
