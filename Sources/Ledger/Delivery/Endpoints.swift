package import Foundation
package import Postgres
package import Purchases

/// The name of an endpoint: a URL of an app's backend that the configuration file defines.
package struct EndpointKey: Sendable, Hashable {
    package let appID: String
    package let name: String
    /// Derived from app and name, so that every process calls the endpoint the same.
    package let id: UUID

    package init(appID: String, name: String) {
        self.appID = appID
        self.name = name
        id = DerivedID.make([appID, "endpoint", name])
    }
}

/// Which events of its app an endpoint gets.
package struct EndpointFilter: Sendable {
    package let key: EndpointKey
    /// Raw values of ``EventType``; nil: all.
    package let types: [String]?
    /// Names of Apple's environments; nil: all. An event without an environment passes all the same.
    package let environments: [String]?

    package init(key: EndpointKey, types: [String]? = nil, environments: [String]? = nil) {
        self.key = key
        self.types = types
        self.environments = environments
    }

    /// The lists as one parameter each; neither types nor environments have commas.
    var typesText: String? { types?.joined(separator: ",") }
    var environmentsText: String? { environments?.joined(separator: ",") }

    /// The condition that an event passes, in SQL.
    ///
    /// - Parameters:
    ///   - type, environment: of the event.
    ///   - types, environments: the texts of a filter.
    static func passes(type: String, environment: String, types: String, environments: String) -> String {
        """
        (\(types) is null or \(type) = any(string_to_array(\(types), ',')))
            and (\(environments) is null or \(environment) is null
              or \(environment) = any(string_to_array(\(environments), ',')))
        """
    }
}

/// A dispatcher that sends to an endpoint, or wants to.
package struct TurnRequest: Sendable {
    package let endpoint: UUID
    /// A random id of the dispatcher.
    package let holder: UUID
    /// How long the turn is, from now on.
    package let length: Duration

    package init(endpoint: UUID, holder: UUID, length: Duration) {
        self.endpoint = endpoint
        self.holder = holder
        self.length = length
    }
}

/// What a dispatcher knows of an endpoint whose turn it has.
package struct EndpointTurn: Sendable, Equatable {
    package let state: EndpointState
    /// In a row.
    package let failures: Int
    /// Failed probes since the endpoint began to fail.
    package let probes: Int
    package let failingSince: Date?
    /// Whether something may be sent now.
    package let isOpen: Bool
}

/// A change of what is known of an endpoint's health.
package struct EndpointHealthChange: Sendable {
    package var endpoint: UUID
    /// The dispatcher, which has the turn.
    package var holder: UUID
    package var state: EndpointState
    /// 0: an event was taken just now.
    package var failures: Int
    package var probes: Int
    package var failingSince: Date?
    /// Until the next probe; nil unless failing.
    package var probeIn: Duration?
    /// Why the endpoint is suspended; nil unless it is.
    package var reason: String?
    package var lastStatus: Int?
    package var lastError: String?

    package init(
        endpoint: UUID, holder: UUID, state: EndpointState, failures: Int, probes: Int, failingSince: Date?,
        probeIn: Duration?, reason: String?, lastStatus: Int?, lastError: String?
    ) {
        self.endpoint = endpoint
        self.holder = holder
        self.state = state
        self.failures = failures
        self.probes = probes
        self.failingSince = failingSince
        self.probeIn = probeIn
        self.reason = reason
        self.lastStatus = lastStatus
        self.lastError = lastError
    }
}

extension Statements {
    /// Where an endpoint `n` stands in the configuration of some dispatcher. A process with an older file must not lose
    /// the events of an endpoint that others know.
    static let isDefined = "n.seen_at > now() - interval '1 day'"
    /// Where something may be sent to an endpoint `n` now.
    static let isOpen = "(n.state = 'working' or n.state = 'failing' and n.probe_at <= now())"
    /// Where no dispatcher has the turn of an endpoint `n`.
    static let isFree = "(n.turn_until is null or n.turn_until <= now())"

    /// Makes the endpoints known, and notes that a dispatcher has them. A new one gets the events from now on.
    package static let registerEndpoints = Statement<[EndpointKey], Void>(
        "endpoints.register", [.uuid("id") { $0.id }, .text("app") { $0.appID }, .text("name") { $0.name }]
    ) { rows in
        """
        insert into endpoints (id, app_id, name)
        select id, app, name from \(rows.rows(as: "i")) order by id
        on conflict (id) do update set seen_at = now()
        """
    }

    /// Takes the turn of an endpoint, or renews it. Nobody takes the turn of an endpoint to which nothing may be sent.
    /// But whoever has it keeps it, so that nobody sends an event that is still in flight. No row: another dispatcher has
    /// the turn, nothing may be sent now, or the endpoint is unknown.
    package static let takeTurn = Statement<TurnRequest, EndpointTurn>(
        "endpoints.take_turn",
        """
        update endpoints n set turn = $2, turn_until = now() + make_interval(secs => $3)
        where id = $1 and (turn = $2 or \(isFree) and \(isOpen))
        returning state, failures, probes, failing_since, \(isOpen)
        """,
        bind: { [.uuid($0.endpoint), .uuid($0.holder), .double($0.length.inSeconds)] },
        read: { row throws(PostgresError) in
            EndpointTurn(
                state: try row.word(0), failures: try row.int(1), probes: try row.int(2),
                failingSince: try row.optionalDate(3), isOpen: try row.bool(4))
        })

    /// Gives the turn back, so that the next dispatcher need not wait for its end.
    package static let endTurn = Statement<TurnRequest, Void>(
        "endpoints.end_turn", "update endpoints set turn = null, turn_until = null where id = $1 and turn = $2",
        bind: { [.uuid($0.endpoint), .uuid($0.holder)] })

    /// Stores the health of an endpoint, and tells of a new state in the same statement. Returns whether it did: false
    /// where another dispatcher has taken the turn since, or the turn was given back.
    package static let storeHealth = Statement<EndpointHealthChange, Bool>(
        "endpoints.store_health",
        """
        with before as materialized (
          select id, state, failing_since from endpoints where id = $1 and turn = $2 for update),
        changed as (
          update endpoints n set state = $3, failures = $4, probes = $5, failing_since = $6,
            probe_at = now() + make_interval(secs => $7), reason = $8, last_status = $9, last_error = left($10, 500),
            succeeded_at = case when $4 = 0 then now() else n.succeeded_at end,
            failed_at = case when $4 = 0 then n.failed_at else now() end
          from before b where n.id = b.id
          returning n.id, n.app_id, n.name, n.reason, n.failures, n.last_status, n.last_error, b.state as former,
            coalesce(n.failing_since, b.failing_since, now()) as since),
        news as (
          select *, case $3 when 'working' then '\(EventType.endpointRecovered.rawValue)'
              when 'failing' then '\(EventType.endpointFailing.rawValue)'
              else '\(EventType.endpointExhausted.rawValue)' end as type
          from changed where former <> $3),
        told as (
          insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
          select \(derivedEvent("app_id", "id::text", "type || extract(epoch from since)::text")), app_id, type, '',
            id::text, id, jsonb_strip_nulls(jsonb_build_object('endpoint', name,
              'since', to_char(since at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))
            || case $3 when 'working' then '{}' else jsonb_build_object(
              'failures', failures, 'reason', reason, 'status', last_status, 'error', last_error) end)
          from news
          on conflict (transaction_id, event_id) do nothing)
        select exists (select from changed)
        """,
        bind: {
            [
                .uuid($0.endpoint), .uuid($0.holder), .text($0.state.rawValue), .int32($0.failures), .int32($0.probes),
                .date($0.failingSince), .double($0.probeIn?.inSeconds), .text($0.reason), .int32($0.lastStatus),
                .text($0.lastError),
            ]
        },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// The endpoints with something due that no dispatcher sends to, at most so many. Replays wait for an
    /// endpoint that works.
    package static let dueEndpoints = Statement<Int, UUID>(
        "endpoints.due",
        """
        select id from endpoints n
        where \(isOpen) and \(isFree) and \(isDefined)
          and (exists (select from deliveries where endpoint = n.id and due_at <= now())
            or n.state = 'working' and exists (select from replays where endpoint = n.id and due_at <= now()))
        order by id limit $1
        """,
        bind: { [.int($0)] },
        read: { row throws(PostgresError) in try row.uuid(0) })
}
