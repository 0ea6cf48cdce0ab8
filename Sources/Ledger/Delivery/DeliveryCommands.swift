package import Foundation
package import Postgres
package import Purchases

/// An endpoint with what it has yet to get, as people see it (`v_endpoints`).
package struct EndpointStanding: Sendable, Equatable {
    package let id: UUID
    package let appID: String
    package let name: String
    package let state: EndpointState
    /// Why it is suspended; empty unless it is.
    package let reason: String
    package let failures: Int
    package let failingSince: Date?
    package let probeAt: Date?
    package let lastStatus: Int?
    package let lastError: String?
    package let succeededAt: Date?
    package let failedAt: Date?
    package let seenAt: Date
    /// Whether a dispatcher had it in its configuration within a day.
    package let isDefined: Bool
    /// Whether a dispatcher sends to it now.
    package let isServed: Bool
    /// Users with undelivered events, at most ``countedMax`` and one more; their events; and of these users those whose
    /// next event was tried for too long.
    package let waitingStreams: Int
    package let waitingEvents: Int
    package let parkedStreams: Int
    /// Of the undelivered events that are not parked; nil: there is none.
    package let oldestAt: Date?
    /// The age of that event in seconds; 0: there is none.
    package let lagSeconds: Double

    /// Up to this number users are counted (0035_delivery.sql).
    package static let countedMax = 10_000
}

/// An event that an endpoint did not take (`v_undelivered`).
package struct UndeliveredEvent: Sendable, Equatable {
    package let appID: String
    /// Of the endpoint.
    package let name: String
    package let endpoint: UUID
    /// As in the tables; empty for nobody and for an erased user.
    package let userID: String
    package let sequence: Int
    package let eventID: UUID
    package let type: String
    package let at: Date
    package let attempts: Int
    package let failingSince: Date
    /// When it is tried again; nil: it is parked.
    package let dueAt: Date?
    package let parkedAt: Date?
    package let reason: String
    /// The later events of the user, which wait for this one.
    package let eventsBehind: Int
}

/// How far numbering is behind the feed (`v_numbering`).
package struct NumberingLag: Sendable, Equatable {
    package let numberedAt: Date
    /// Events without a number, at most ``EndpointStanding/countedMax`` and one more.
    package let waitingEvents: Int
    /// The age of the oldest of them in seconds; 0: there is none.
    package let seconds: Double
}

extension Statements {
    private static let standingColumns = """
        endpoint, app_id, name, state, reason, failures, failing_since, probe_at, last_status, last_error, succeeded_at,
          failed_at, seen_at, is_defined, is_served, waiting_streams, waiting_events, parked_streams, oldest_at,
          lag_seconds
        """

    private static let readStanding: @Sendable (borrowing RowReader) throws(PostgresError) -> EndpointStanding = {
        row throws(PostgresError) in
        EndpointStanding(
            id: try row.uuid(0), appID: try row.text(1), name: try row.text(2), state: try row.word(3),
            reason: try row.text(4), failures: try row.int(5), failingSince: try row.optionalDate(6),
            probeAt: try row.optionalDate(7), lastStatus: try row.optionalInt(8), lastError: try row.optionalText(9),
            succeededAt: try row.optionalDate(10), failedAt: try row.optionalDate(11), seenAt: try row.date(12),
            isDefined: try row.bool(13), isServed: try row.bool(14), waitingStreams: try row.int(15),
            waitingEvents: try row.int(16), parkedStreams: try row.int(17), oldestAt: try row.optionalDate(18),
            lagSeconds: try row.double(19))
    }

    /// The endpoints of an app, or of all.
    package static let endpointStandings = Statement<String?, EndpointStanding>(
        "endpoints.list",
        "select \(standingColumns) from v_endpoints where $1::text is null or app_id = $1 order by app_id, name",
        bind: { [.text($0)] }, read: readStanding)

    /// All endpoints, for the figures.
    package static let allEndpointStandings = Statement<Void, EndpointStanding>(
        "watch.endpoints", "select \(standingColumns) from v_endpoints", read: readStanding)

    package static let numberingLag = Statement<Void, NumberingLag>(
        "watch.numbering", "select numbered_at, waiting_events, lag_seconds from v_numbering",
        read: { row throws(PostgresError) in
            NumberingLag(numberedAt: try row.date(0), waitingEvents: try row.int(1), seconds: try row.double(2))
        })

    /// What an endpoint did not take, the oldest failure first, at most so many.
    package static let undeliveredEvents = Statement<(endpoint: UUID, limit: Int), UndeliveredEvent>(
        "endpoints.undelivered",
        """
        select app_id, name, endpoint, user_id, sequence, event_id, type, at, attempts, failing_since, due_at,
          parked_at, reason, events_behind
        from v_undelivered where endpoint = $1 order by failing_since limit $2
        """,
        bind: { [.uuid($0.endpoint), .int($0.limit)] },
        read: { row throws(PostgresError) in
            UndeliveredEvent(
                appID: try row.text(0), name: try row.text(1), endpoint: try row.uuid(2), userID: try row.text(3),
                sequence: try row.int(4), eventID: try row.uuid(5), type: try row.text(6), at: try row.date(7),
                attempts: try row.int(8), failingSince: try row.date(9), dueAt: try row.optionalDate(10),
                parkedAt: try row.optionalDate(11), reason: try row.text(12), eventsBehind: try row.int(13))
        })

    /// Has an endpoint that is suspended or failing tried at once, by one event, and audits that in the same statement.
    /// Whether it was suspended or failing; no row: there is no such endpoint.
    package static let resumeEndpoint = Statement<(endpoint: UUID, actor: String), Bool>(
        "endpoints.resume",
        """
        with before as materialized (
          select id, state from endpoints where id = $1 for update),
        resumed as (
          update endpoints n set state = 'failing', probe_at = now(), reason = null, probes = 0,
            failing_since = case when b.state = 'suspended' then now() else n.failing_since end
          from before b where n.id = b.id and b.state <> 'working'
          returning n.app_id, n.name, b.state as former),
        audited as (
          insert into audits (actor, action, details)
          select $2, 'endpoints.resume', jsonb_build_object('app', app_id, 'endpoint', name, 'state', former)
          from resumed)
        select exists (select from resumed) from before
        """,
        bind: { [.uuid($0.endpoint), .text($0.actor)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// What a person has tried again.
    package struct EventRedrive: Sendable {
        package enum Choice: Sendable {
            /// Everything that is parked.
            case parked
            /// The event that a user waits for, also one that is tried again by itself. The user as in the tables.
            case user(String)
            /// One event, also one that is tried again by itself.
            case event(UUID)
        }

        package let endpoint: UUID
        package let choice: Choice
        package let actor: String

        package init(endpoint: UUID, _ choice: Choice, actor: String) {
            self.endpoint = endpoint
            self.choice = choice
            self.actor = actor
        }

        var user: String? { if case .user(let id) = choice { id } else { nil } }
        var event: UUID? { if case .event(let id) = choice { id } else { nil } }
    }

    /// Has undelivered events tried at once, as if they had not failed yet, and audits that in the same statement.
    /// Returns how many.
    package static let redriveEvents = Statement<EventRedrive, Int>(
        "endpoints.redrive",
        """
        with chosen as materialized (
          select stream from v_undelivered
          where endpoint = $1 and (user_id = $2 or event_id = $3
            or $2::text is null and $3::uuid is null and parked_at is not null)),
        redriven as (
          update deliveries d set due_at = now(), parked_at = null, attempts = 0, failing_since = null,
            failed_sequence = null, reason = null
          from chosen c where d.endpoint = $1 and d.stream = c.stream and d.failing_since is not null
          returning d.stream),
        audited as (
          insert into audits (actor, action, details)
          select $4, 'endpoints.redrive', jsonb_strip_nulls(jsonb_build_object('app', n.app_id, 'endpoint', n.name,
            'event', $3::uuid, 'events', (select count(*) from redriven)))
          from endpoints n where n.id = $1 and exists (select from redriven))
        select count(*) from redriven
        """,
        bind: { [.uuid($0.endpoint), .text($0.user), .uuid($0.event), .text($0.actor)] },
        read: { row throws(PostgresError) in try row.int(0) })

    /// Gives up one event that an endpoint did not take, so that the later ones of its user go on, and audits that with
    /// the person's reason in the same statement. Whether there was such an event.
    package static let skipEvent = Statement<(endpoint: UUID, event: UUID, reason: String, actor: String), Bool>(
        "endpoints.skip",
        """
        with chosen as materialized (
          select v.stream, v.sequence, v.app_id, v.name, s.xid, s.id
          from v_undelivered v
          left join event_sequences s on s.stream = v.stream and s.sequence = v.sequence + 1
          where v.endpoint = $1 and v.event_id = $2),
        skipped as (
          update deliveries d set \(eventEnd("s.sequence"))
          from chosen s where d.endpoint = $1 and d.stream = s.stream and d.failed_sequence = s.sequence
          returning s.app_id, s.name),
        audited as (
          insert into audits (actor, action, details)
          select $4, 'endpoints.skip',
            jsonb_build_object('app', app_id, 'endpoint', name, 'event', $2::uuid, 'reason', $3::text)
          from skipped)
        select exists (select from skipped)
        """,
        bind: { [.uuid($0.endpoint), .uuid($0.event), .text($0.reason), .text($0.actor)] },
        read: { row throws(PostgresError) in try row.bool(0) })
}
