package import Foundation
package import Postgres
package import Purchases

/// Which events an endpoint gets once more. What is nil chooses every event.
package struct ReplayQuestion: Sendable {
    /// The endpoint, whose own filter holds for replays too.
    package let endpoint: EndpointFilter
    package var from: Date?
    /// The first moment behind the events.
    package var to: Date?
    package var types: [EventType]?
    /// As in the tables.
    package var user: String?
    package var ids: [UUID]?

    package init(_ endpoint: EndpointFilter) {
        self.endpoint = endpoint
    }

    /// The most ids of a replay.
    package static let idsMax = 1000
    /// So many events of the span are looked through to count those of the replay (0037_replays.sql).
    package static let countedMax = 100_000

    var typeWords: [String]? { types?.map(\.rawValue).sorted() }
}

/// The span of the feed that a replay reads, and how many of its events are chosen.
package struct ReplaySpan: Sendable, Equatable {
    /// Numbers of transactions.
    package let firstXID: Int
    package let endXID: Int
    /// The events of the replay among the first ``ReplayQuestion/countedMax`` and one more of the span.
    package let events: Int
    /// False: the span has more events.
    package let isCounted: Bool
}

/// A replay as people see it.
package struct EventReplay: Sendable, Equatable {
    package enum State: String, Sendable {
        case running, done, cancelled
    }

    package let id: UUID
    package let appID: String
    /// The endpoint's name.
    package let endpoint: String
    package let state: State
    package let from: Date?
    package let to: Date?
    /// Raw values of ``EventType``.
    package let types: [String]?
    /// As in the tables.
    package let user: String?
    /// How many ids the replay names; nil: it names none.
    package let ids: Int?
    package let requestedBy: String
    package let requestedAt: Date
    package let events: Int
    package let isCounted: Bool
    package let sent: Int
    /// Failures in a row of the event whose turn it is.
    package let attempts: Int
    package let lastError: String?
    /// When a failed event is tried again; nil: none has failed, or the replay has ended.
    package let nextAt: Date?
    package let endedAt: Date?
    package let cancelledBy: String?

    /// The most replays of an endpoint that run at a time.
    package static let runningMax = 16
}

extension Statements {
    /// The question as a row `r`, from $1 on: app, endpoint, times, types, user, ids and the endpoint's filter.
    private static let question = """
        (select $1::text as app_id, $2::uuid as endpoint, $3::timestamptz as from_at, $4::timestamptz as to_at,
            string_to_array($5::text, ',') as types, $6::text as user_id,
            string_to_array($7::text, ',')::uuid[] as event_ids) r
        """

    private static func values(_ question: ReplayQuestion) -> [Value] {
        [
            .text(question.endpoint.key.appID), .uuid(question.endpoint.key.id), .date(question.from),
            .date(question.to), .text(question.typeWords?.joined(separator: ",")), .text(question.user),
            .text(question.ids?.map(\.uuidString).joined(separator: ",")),
        ]
    }

    /// The span of a replay and its events, counted. No row: no dispatcher has the endpoint.
    package static let countReplay = Statement<ReplayQuestion, ReplaySpan>(
        "replays.count",
        """
        select first_xid::int8, end_xid::int8, events, is_counted
        from endpoints n cross join lateral count_replay($1, $3, $4, string_to_array($5, ','), $6,
          string_to_array($7, ',')::uuid[], string_to_array($8, ','), string_to_array($9, ',')) c
        where n.id = $2 and \(isDefined)
        """,
        bind: { values($0) + [.text($0.endpoint.typesText), .text($0.endpoint.environmentsText)] },
        read: { row throws(PostgresError) in
            ReplaySpan(
                firstXID: try row.int(0), endXID: try row.int(1), events: try row.int(2), isCounted: try row.bool(3))
        })

    package struct ReplayRequest: Sendable {
        package let question: ReplayQuestion
        package let span: ReplaySpan
        /// Who asks: a person or an access key.
        package let actor: String

        package init(_ question: ReplayQuestion, _ span: ReplaySpan, actor: String) {
            self.question = question
            self.span = span
            self.actor = actor
        }
    }

    /// Begins a replay. A running one with the same question is returned as it is, so that a request may be repeated.
    /// No row: ``EventReplay/runningMax`` run already. Two requests at one moment may both begin one.
    package static let requestReplay = Statement<ReplayRequest, UUID>(
        "replays.request",
        """
        with running as materialized (
          select id, from_at, to_at, types, user_id, event_ids from replays where endpoint = $2 and due_at is not null),
        same as materialized (
          select w.id from running w, \(question)
          where (w.from_at, w.to_at, w.types, w.user_id, w.event_ids)
            is not distinct from (r.from_at, r.to_at, r.types, r.user_id, r.event_ids) limit 1),
        made as (
          insert into replays (
            app_id, endpoint, from_at, to_at, types, user_id, event_ids, requested_by, events, is_counted, done_xid,
            end_xid)
          select r.*, $8, $9, $10, $11::text::xid8, $12::text::xid8 from \(question)
          where not exists (select from same) and (select count(*) from running) < \(EventReplay.runningMax)
          returning id)
        select id from same union all select id from made
        """,
        bind: {
            values($0.question) + [
                .text($0.actor), .int($0.span.events), .bool($0.span.isCounted), .int($0.span.firstXID),
                .int($0.span.endXID),
            ]
        },
        read: { row throws(PostgresError) in try row.uuid(0) })

    private static let replayColumns = """
        r.id, r.app_id, n.name, r.from_at, r.to_at, array_to_string(r.types, ','), r.user_id,
          cardinality(r.event_ids)::int8, r.requested_by, r.requested_at, r.events, r.is_counted, r.sent, r.attempts,
          r.last_error, case when r.attempts > 0 then r.due_at end, r.ended_at, r.cancelled_by
        """

    private static let readReplayRow: @Sendable (borrowing RowReader) throws(PostgresError) -> EventReplay = {
        row throws(PostgresError) in
        let endedAt = try row.optionalDate(16)
        let cancelledBy = try row.optionalText(17)
        return EventReplay(
            id: try row.uuid(0), appID: try row.text(1), endpoint: try row.text(2),
            state: endedAt == nil ? .running : cancelledBy == nil ? .done : .cancelled,
            from: try row.optionalDate(3), to: try row.optionalDate(4),
            types: try row.optionalText(5)?.split(separator: ",").map(String.init), user: try row.optionalText(6),
            ids: try row.optionalInt(7), requestedBy: try row.text(8), requestedAt: try row.date(9),
            events: try row.int(10), isCounted: try row.bool(11), sent: try row.int(12), attempts: try row.int(13),
            lastError: try row.optionalText(14), nextAt: try row.optionalDate(15), endedAt: endedAt,
            cancelledBy: cancelledBy)
    }

    /// One replay of one of these apps.
    package static let readReplay = Statement<(id: UUID, apps: [String]), EventReplay>(
        "replays.read",
        """
        select \(replayColumns) from replays r join endpoints n on n.id = r.endpoint
        where r.id = $1 and r.app_id = any($2::text[])
        """,
        bind: { [.uuid($0.id), .texts($0.apps)] }, read: readReplayRow)

    /// The replays of an app, or of all apps, the latest first, at most so many.
    package static let listReplays = Statement<(app: String?, limit: Int), EventReplay>(
        "replays.list",
        """
        select \(replayColumns) from replays r join endpoints n on n.id = r.endpoint
        where $1::text is null or r.app_id = $1 order by r.requested_at desc limit $2
        """,
        bind: { [.text($0.app), .int($0.limit)] }, read: readReplayRow)

    /// Ends a replay of one of these apps, or of any app. What is on the way arrives. Returns whether it ran; no row:
    /// there is no such replay.
    package static let cancelReplay = Statement<(id: UUID, apps: [String]?, actor: String), Bool>(
        "replays.cancel",
        """
        with found as materialized (
          select id, due_at from replays where id = $1 and ($2 or app_id = any($3::text[])) for update),
        cancelled as (
          update replays r set due_at = null, ended_at = now(), cancelled_by = $4
          from found f where r.id = f.id and f.due_at is not null)
        select due_at is not null from found
        """,
        bind: { [.uuid($0.id), .bool($0.apps == nil), .texts($0.apps ?? []), .text($0.actor)] },
        read: { row throws(PostgresError) in try row.bool(0) })
}
