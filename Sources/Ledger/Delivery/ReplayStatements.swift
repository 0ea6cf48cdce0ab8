package import Foundation
package import Postgres
import Purchases

/// The next events of the replay whose turn it is at an endpoint.
package struct ReplayPage: Sendable {
    package let replay: UUID
    /// Failures in a row of the first event.
    package let attempts: Int
    /// Up to here everything was sent or passed over before.
    package let start: Statements.EventPlace
    /// Up to here everything is, once the events are sent.
    package let end: Statements.EventPlace
    /// Whether nothing of the replay follows.
    package let isLast: Bool
    package var events: [(place: Statements.EventPlace, event: Event)]
}

/// What became of events of a replay.
package struct ReplayProgress: Sendable {
    package let replay: UUID
    package let place: Statements.EventPlace
    /// The events up to there that the endpoint has taken.
    package let sent: Int
    package let isDone: Bool
    /// Why the endpoint did not take the next event, and until when the replay waits.
    package let failure: (reason: String, retryIn: Duration)?

    package init(
        replay: UUID, place: Statements.EventPlace, sent: Int, isDone: Bool = false,
        failure: (reason: String, retryIn: Duration)? = nil
    ) {
        self.replay = replay
        self.place = place
        self.sent = sent
        self.isDone = isDone
        self.failure = failure
    }
}

extension Statements {
    /// So many events of the feed are looked through for one page.
    private static let lookedMax = 2000

    /// Whether an event `e` is one of the replay `r`, a row with the columns of the filter.
    private static let isReplayed = """
        (r.from_at is null or e.at >= r.from_at) and (r.to_at is null or e.at < r.to_at)
            and (r.types is null or e.type = any(r.types)) and (r.user_id is null or e.user_id = r.user_id)
            and (r.event_ids is null or e.event_id = any(r.event_ids))
        """

    /// Whether an event `e` comes to the endpoint $1 by itself: it waits behind an event of its user, or it has no
    /// number yet. A replay that sent it would bring it before its turn.
    private static let comesByItself = """
        e.xid >= r.since_xid and (
            (e.xid, e.id) > (select xid, id from event_progress)
            or exists (
              select from event_users u join deliveries d on d.endpoint = $1 and d.stream = u.stream
              where u.app_id = e.app_id and u.user_id = e.user_id and (e.xid, e.id) >= (d.behind_xid, d.behind_id)))
        """

    /// One row for each event of a page, or one row without an event.
    static let replayRows = Statement<
        ReplayPageQuestion, (page: ReplayPage, event: Event?, place: EventPlace?)
    >(
        "delivery.replay",
        """
        with r as materialized (
          select r.*, n.since_xid from replays r join endpoints n on n.id = r.endpoint
          where r.endpoint = $1 and r.due_at <= now() order by r.requested_at, r.id limit 1),
        looked as materialized (
          select e.* from r cross join lateral (
            select xid, id, event_id, app_id, type, user_id, transaction_id, receipt_id, body, at from events
            where app_id = r.app_id and (xid, id) > (r.done_xid, r.done_id) and xid < r.end_xid
            order by xid, id limit (select \(lookedMax))) e),
        chosen as materialized (
          select e.* from looked e cross join r
          where \(isReplayed)
            and \(EndpointFilter.passes(
            type: "e.type", environment: "e.body ->> 'environment'", types: "$3::text", environments: "$4::text"))
            and not (\(comesByItself))
          order by e.xid, e.id limit $2),
        page as materialized (
          select r.id as replay, r.attempts, r.done_xid, r.done_id, coalesce(last.xid, r.done_xid) as end_xid,
            coalesce(last.id, r.done_id) as end_id, not c.is_full and l.events < \(lookedMax) as is_last
          from r cross join (select count(*) as events from looked) l
          cross join (select count(*) >= $2 as is_full from chosen) c
          left join lateral (
            select xid, id from chosen where c.is_full
            union all
            select xid, id from looked where not c.is_full
            order by xid desc, id desc limit 1) last on true)
        select replay, attempts, done_xid::text, done_id, end_xid::text, end_id, is_last, xid::text,
          \(eventColumns)
        from page left join chosen on true
        order by xid, id
        """,
        bind: {
            [
                .uuid($0.filter.key.id), .int($0.limit), .text($0.filter.typesText),
                .text($0.filter.environmentsText),
            ]
        },
        read: { row throws(PostgresError) in
            let page = ReplayPage(
                replay: try row.uuid(0), attempts: try row.int(1),
                start: EventPlace(xid: try row.text(2), id: try row.int(3)),
                end: EventPlace(xid: try row.text(4), id: try row.int(5)), isLast: try row.bool(6), events: [])
            guard let xid = try row.optionalText(7) else { return (page, nil, nil) }
            let event = try readEvent(row, from: 8)
            return (page, event, EventPlace(xid: xid, id: event.cursor.id))
        })

    struct ReplayPageQuestion: Sendable {
        let filter: EndpointFilter
        let limit: Int
    }

    /// Stores how far a replay has come. No row: the replay has ended, or another dispatcher has taken it farther.
    package static let storeReplay = Statement<ReplayProgress, Bool>(
        "delivery.store_replay",
        """
        update replays set done_xid = $2::text::xid8, done_id = $3, sent = sent + $4,
          attempts = case when $6::text is null then 0 when (done_xid, done_id) = ($2::text::xid8, $3) then attempts + 1
            else 1 end,
          last_error = left($6, 500), ended_at = case when $5 then now() end,
          due_at = case when $5 then null when $6 is null then due_at else now() + make_interval(secs => $7) end
        where id = $1 and due_at is not null and (done_xid, done_id) <= ($2::text::xid8, $3)
        returning true
        """,
        bind: {
            [
                .uuid($0.replay), .text($0.place.xid), .int($0.place.id), .int($0.sent), .bool($0.isDone),
                .text($0.failure?.reason), .double($0.failure?.retryIn.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in try row.bool(0) })
}

extension Ledger {
    /// The next events of the replay whose turn it is at an endpoint, at most `limit`. Nil: no replay is due.
    package func replayPage(of filter: EndpointFilter, limit: Int) async throws(LedgerError) -> ReplayPage? {
        let rows = try await run(Statements.replayRows, .init(filter: filter, limit: limit))
        guard var page = rows.first?.page else { return nil }
        page.events = rows.compactMap { row in
            guard let event = row.event, let place = row.place else { return nil }
            return (place, event)
        }
        return page
    }
}
