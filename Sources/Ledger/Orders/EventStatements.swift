package import Foundation
package import Postgres

/// One line of the app backend's feed.
package struct Event: Sendable, Equatable {
    package let cursor: EventCursor
    /// Derived from what happened: the same thing told twice has the same id.
    package let id: UUID
    package let appID: String
    package let type: String
    package let userID: String
    package let transactionID: String
    package let receiptID: UUID
    /// A JSON object.
    package let body: String
    package let at: Date
    /// The event's number among those of its user, from 1 on, where the feed was read. Nil: no dispatcher has numbered
    /// the event.
    package var sequence: Int?
}

/// A place in the feed, in commit order, not in insertion order. The place keeps its meaning on a server that was
/// restored from a backup or took over: events that such a server writes come after every place that was ever given
/// (0005_events.sql).
package struct EventCursor: Sendable, Equatable {
    package static let start = EventCursor(place: 0, id: 0)

    /// The transaction's number, counted on from the beginning of its era, which is in microseconds since 1970.
    package let place: Int
    package let id: Int

    package init(place: Int, id: Int) {
        self.place = place
        self.id = id
    }

    package var text: String { "\(place)-\(id)" }

    /// Nil for anything but `<number>-<number>`.
    package init?(_ text: String) {
        let parts = text.split(separator: "-", omittingEmptySubsequences: false)
        guard parts.count == 2, let place = Int(parts[0]), let id = Int(parts[1]), place >= 0, id >= 0
        else { return nil }
        self.init(place: place, id: id)
    }
}

extension Statements {
    package struct EventPage: Sendable {
        package var apps: [String]
        package var after: EventCursor
        package var limit: Int

        package init(apps: [String], after: EventCursor, limit: Int) {
            self.apps = apps
            self.after = after
            self.limit = limit
        }
    }

    /// The SQL of ``DerivedID/event(appID:transactionID:type:distinction:)``, for events that few verdicts write. All
    /// parameters are texts.
    static func derivedEvent(_ app: String, _ transaction: String, _ type: String) -> String {
        let parts = [app, transaction, type].map {
            "int8send(octet_length(convert_to(\($0), 'UTF8'))::int8) || convert_to(\($0), 'UTF8')"
        }
        return """
            (select encode(set_byte(set_byte(id, 6, (get_byte(id, 6) & 15) | 128), 8, (get_byte(id, 8) & 63) | 128), 'hex')::uuid
              from (select substring(sha256(\(parts.joined(separator: " || ")) || int8send(0)) for 16) as id) digest)
            """
    }

    /// The columns of ``readEvent(_:from:)``, where `xid` and the others are those of one event.
    static let eventColumns = """
        xid::text::int8 + (select max(shift) from feed_eras where first_xid <= xid::text::int8), id, event_id, app_id,
          type, user_id, transaction_id, receipt_id, body, at
        """

    static func readEvent(_ row: borrowing RowReader, from first: Int) throws(PostgresError) -> Event {
        Event(
            cursor: EventCursor(place: try row.int(first), id: try row.int(first + 1)), id: try row.uuid(first + 2),
            appID: try row.text(first + 3), type: try row.text(first + 4), userID: try row.text(first + 5),
            transactionID: try row.text(first + 6), receiptID: try row.uuid(first + 7),
            body: try row.json(first + 8), at: try row.date(first + 9))
    }

    /// Events below the oldest running transaction, by (xid, id): a reader with a cursor by id alone would miss events
    /// that commit late. A cursor from a time that this server has lost is before the first event of the next era. Each
    /// app is read by itself, so that a reader of a quiet app passes over no events of others.
    package static let readEvents = Statement<EventPage, Event>(
        "ledger.read_events", feedPage(selecting: "sequence"),
        bind: { page in
            [.texts(page.apps), .int(page.after.place), .int(page.after.id), .int(page.limit)]
        },
        read: { row throws(PostgresError) in try readNumberedEvent(row) })

    static func readNumberedEvent(_ row: borrowing RowReader) throws(PostgresError) -> Event {
        var event = try readEvent(row, from: 0)
        event.sequence = try row.optionalInt(10)
        return event
    }

    /// The SQL of a page of the feed: apps, cursor and limit are the first parameters. Beside each event stand its stream
    /// and its number, as `s`.
    static func feedPage(selecting columns: String) -> String {
        """
        with eras as materialized (
          select first_xid, shift, lead(first_xid) over (order by first_xid) as next_xid from feed_eras),
        after as materialized (
          select least($2 - shift, next_xid - 1) as xid,
            case when $2 - shift >= next_xid then \(Int.max) else $3 end as id
          from eras where first_xid + shift <= $2 order by first_xid desc limit 1)
        select \(eventColumns), \(columns)
        from unnest($1::text[]) app cross join lateral (
          select xid, id, event_id, app_id, type, user_id, transaction_id, receipt_id, body, at from events
          where app_id = app and (xid, id) > ((select xid::text::xid8 from after), (select id from after))
            and xid < pg_snapshot_xmin(pg_current_snapshot())
          order by xid, id limit $4) e
        left join lateral (
          select stream, sequence from event_sequences n where n.xid = e.xid and n.id = e.id offset 0) s on true
        order by xid, id limit $4
        """
    }

    /// Whether a place lies beyond every place that was ever given, by this server or by one that was lost: a lost
    /// server's places lie before the era that this server begins with its first event.
    package static let isBeyondFeed = Statement<EventCursor, Bool>(
        "ledger.is_beyond_feed",
        """
        select $1 >= case when exists (select from feed_eras where server_started_at = pg_postmaster_start_time())
          then last else greatest(last, (extract(epoch from clock_timestamp()) * 1000000)::int8) end
        from (
          select pg_snapshot_xmax(pg_current_snapshot())::text::int8 + (select max(shift) from feed_eras) as last) e
        """,
        bind: { [.int($0.place)] },
        read: { row throws(PostgresError) in try row.bool(0) })
}

extension Event {
    package var user: UserName { UserName(appID: appID, key: userID) }
}
