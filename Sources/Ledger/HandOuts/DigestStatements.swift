import Encoding
package import Foundation
package import Postgres

/// A day, an hour or a minute of an app's events, by the events' times in UTC (L3).
package struct DigestSpan: Sendable, Equatable {
    package let appID: String
    package let start: Date
    /// The span ends before this.
    package let end: Date
    /// Only events up to this place of the feed. Nil: all, which the span must have.
    package let upTo: EventCursor?

    /// Nil for anything but `2026-11-29`, `2026-11-29T13` or `2026-11-29T13:05`.
    package init?(appID: String, day: String, upTo: EventCursor?) {
        let seconds: TimeInterval
        let rest: String
        switch day.utf8.count {
        case 10: (seconds, rest) = (86_400, "T00:00:00Z")
        case 13: (seconds, rest) = (3600, ":00:00Z")
        case 16: (seconds, rest) = (60, ":00Z")
        default: return nil
        }
        guard let start = Date(rfc3339: day + rest) else { return nil }
        self.appID = appID
        self.start = start
        end = start + seconds
        self.upTo = upTo
    }
}

/// The number of the events of a span, and the SHA-256 over their ids in order, one a line.
package struct EventDigest: Sendable, Equatable {
    package let count: Int
    /// 32 bytes.
    package let sha256: [UInt8]
}

/// An id that one side has and the other one has not.
package struct DigestDifference: Sendable, Equatable {
    package let id: UUID
    /// The span has no such event. False: the backend did not name it.
    package let isUnknown: Bool
    /// How many ids differ in the same way.
    package let all: Int
}

extension Statements {
    /// The most events of a digest: some two seconds of the database's time.
    package static let digestMax = 250_000
    /// How many ids of each kind are named.
    package static let digestNamedMax = 1000

    /// Whether no event of the span can come any more, by the schedulers' sums of arrivals (0027_books.sql). Their times
    /// are the beginnings of transactions, so an event may appear minutes after its time.
    package static let isDigestWhole = Statement<DigestSpan, Bool>(
        "digest.is_whole", "select $1 <= summed_to from arrivals_progress",
        bind: { [.date($0.end)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// SQL: the ids of the span's events, `$1` to `$5`. By the time alone: the index by app holds the app's whole past.
    private static let told = """
        eras as materialized (
          select first_xid, shift, lead(first_xid) over (order by first_xid) as next_xid from feed_eras),
        last as materialized (
          select least($4 - shift, next_xid - 1) as xid,
            case when $4 - shift >= next_xid then \(Int.max) else $5 end as id
          from eras where first_xid + shift <= $4 order by first_xid desc limit 1),
        told as materialized (
          select event_id from (
            select event_id, app_id, xid, id from events where at >= $2 and at < $3 offset 0) e
          where app_id = $1
            and ($4::int8 is null or (xid, id) <= ((select xid::text::xid8 from last), (select id from last)))
          limit \(digestMax + 1))
        """

    /// A count above ``digestMax``: there are more events than a digest may have.
    package static let eventDigest = Statement<DigestSpan, EventDigest>(
        "digest.read",
        """
        with \(told)
        select count(*), sha256(convert_to(coalesce(string_agg(event_id::text, e'\\n' order by event_id), ''), 'UTF8'))
        from told
        """,
        bind: { values($0) },
        read: { row throws(PostgresError) in EventDigest(count: try row.int(0), sha256: try row.bytes(1)) })

    package struct DigestQuestion: Sendable {
        package let span: DigestSpan
        package let ids: [UUID]

        package init(_ span: DigestSpan, _ ids: [UUID]) {
            self.span = span
            self.ids = ids
        }
    }

    /// The ids that the backend did not name, and those that are of no event of the span.
    package static let digestDifferences = Statement<DigestQuestion, DigestDifference>(
        "digest.compare",
        """
        with \(told),
        difference as (
          select coalesce(event_id, sent) as id, event_id is null as is_unknown
          from told full join (select distinct sent from unnest($6::uuid[]) as sent) s on event_id = sent
          where event_id is null or sent is null)
        select id, is_unknown, of_kind from (
          select id, is_unknown, count(*) over (partition by is_unknown) as of_kind,
            row_number() over (partition by is_unknown order by id) as place
          from difference) d
        where place <= \(digestNamedMax) order by is_unknown, id
        """,
        bind: { values($0.span) + [.uuids($0.ids)] },
        read: { row throws(PostgresError) in
            DigestDifference(id: try row.uuid(0), isUnknown: try row.bool(1), all: try row.int(2))
        })

    private static func values(_ span: DigestSpan) -> [Value] {
        [
            .text(span.appID), .date(span.start), .date(span.end), .int(span.upTo?.place), .int(span.upTo?.id),
        ]
    }
}
