package import Foundation
package import Postgres

/// A group of readers of one app's feed. The app's backend stores there up to where it has handled the events.
package struct FeedGroup: Sendable, Equatable {
    /// The most groups of an app. The bound is against a backend that makes a new group at each start. Two requests
    /// that each make a group at one moment may both pass it.
    package static let perAppMax = 16
    package static let nameBytesMax = 64
    /// Up to this number the events behind a group are counted (0033_feed_groups.sql).
    package static let countedMax = 10_000

    package struct Key: Sendable, Equatable {
        package let appID: String
        package let name: String

        /// Nil for a name that no group has: not 1 to 64 of `a` to `z`, `0` to `9` and `-`.
        package init?(appID: String, name: String) {
            let letters = UInt8(ascii: "a")...UInt8(ascii: "z")
            let digits = UInt8(ascii: "0")...UInt8(ascii: "9")
            guard (1...FeedGroup.nameBytesMax).contains(name.utf8.count),
                name.utf8.allSatisfy({ letters.contains($0) || digits.contains($0) || $0 == UInt8(ascii: "-") })
            else { return nil }
            self.appID = appID
            self.name = name
        }
    }

    package let cursor: EventCursor
    package let storedAt: Date
}

/// How far a group is behind the feed.
package struct FeedGroupLag: Sendable, Equatable {
    package let appID: String
    package let name: String
    /// The text of an ``EventCursor``.
    package let cursor: String
    package let storedAt: Date
    /// Events that the feed shows and the group has not handled, at most ``FeedGroup/countedMax`` and one more.
    package let eventsBehind: Int
    /// When the oldest of these was written; nil: there is none.
    package let oldestAt: Date?
    /// The age of that event in seconds; 0: there is none.
    package let seconds: Double
}

extension Statements {
    package struct FeedGroupUpdate: Sendable {
        package let key: FeedGroup.Key
        package let cursor: EventCursor
        /// Whether the group may go back.
        package let rewinds: Bool

        package init(_ key: FeedGroup.Key, _ cursor: EventCursor, rewinds: Bool) {
            self.key = key
            self.cursor = cursor
            self.rewinds = rewinds
        }
    }

    package struct GivenCursor: Sendable {
        package let cursor: EventCursor
        package let apps: [String]

        package init(_ cursor: EventCursor, apps: [String]) {
            self.cursor = cursor
            self.apps = apps
        }
    }

    /// Whether the feed of these apps has given this cursor: it is the place of one of their events that the feed
    /// shows, or the start. A place that only a lost server has given is not.
    package static let isGivenCursor = Statement<GivenCursor, Bool>(
        "feed_groups.is_given",
        """
        select ($1 = 0 and $2 = 0) or exists (
          select from events
          where app_id = any($3::text[]) and id = $2 and xid = (
            select ($1 - shift)::text::xid8
            from (select first_xid, shift, lead(first_xid) over (order by first_xid) as next_xid from feed_eras) e
            where first_xid + shift <= $1 and ($1 - shift < next_xid) is not false
            order by first_xid desc limit 1)
          and xid < pg_snapshot_xmin(pg_current_snapshot()))
        """,
        bind: { [.int($0.cursor.place), .int($0.cursor.id), .texts($0.apps)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    /// Stores the cursor of a group, which is made if it is new. No row: the group is farther, or the app has no room
    /// for one more group.
    package static let storeFeedCursor = Statement<FeedGroupUpdate, FeedGroup>(
        "feed_groups.store",
        """
        insert into feed_groups as g (app_id, name, place, id)
        select $1, $2, $3, $4
        where exists (select from feed_groups where app_id = $1 and name = $2)
          or (select count(*) from feed_groups where app_id = $1) < \(FeedGroup.perAppMax)
        on conflict (app_id, name) do update set place = excluded.place, id = excluded.id, stored_at = now()
          where $5 or (excluded.place, excluded.id) >= (g.place, g.id)
        returning place, id, stored_at
        """,
        bind: {
            [
                .text($0.key.appID), .text($0.key.name), .int($0.cursor.place), .int($0.cursor.id), .bool($0.rewinds),
            ]
        },
        read: { row throws(PostgresError) in
            FeedGroup(cursor: EventCursor(place: try row.int(0), id: try row.int(1)), storedAt: try row.date(2))
        })

    package static let readFeedGroup = Statement<FeedGroup.Key, FeedGroup>(
        "feed_groups.read", "select place, id, stored_at from feed_groups where app_id = $1 and name = $2",
        bind: { [.text($0.appID), .text($0.name)] },
        read: { row throws(PostgresError) in
            FeedGroup(cursor: EventCursor(place: try row.int(0), id: try row.int(1)), storedAt: try row.date(2))
        })

    /// Whether there was such a group.
    package static let forgetFeedGroup = Statement<FeedGroup.Key, Bool>(
        "feed_groups.forget", "select forget_feed_group($1, $2)",
        bind: { [.text($0.appID), .text($0.name)] },
        read: { row throws(PostgresError) in try row.bool(0) })

    private static let lagColumns = "app_id, name, cursor, stored_at, events_behind, oldest_at, lag_seconds"

    private static let readLag: @Sendable (borrowing RowReader) throws(PostgresError) -> FeedGroupLag = {
        row throws(PostgresError) in
        FeedGroupLag(
            appID: try row.text(0), name: try row.text(1), cursor: try row.text(2), storedAt: try row.date(3),
            eventsBehind: try row.int(4), oldestAt: try row.optionalDate(5), seconds: try row.double(6))
    }

    package static let feedGroupLag = Statement<FeedGroup.Key, FeedGroupLag>(
        "feed_groups.lag", "select \(lagColumns) from v_feed_groups where app_id = $1 and name = $2",
        bind: { [.text($0.appID), .text($0.name)] }, read: readLag)

    /// The groups of these apps.
    package static let feedGroupLags = Statement<[String], FeedGroupLag>(
        "feed_groups.lags",
        "select \(lagColumns) from v_feed_groups where app_id = any($1::text[]) order by app_id, name",
        bind: { [.texts($0)] }, read: readLag)

    package static let allFeedGroupLags = Statement<Void, FeedGroupLag>(
        "watch.feed_groups", "select \(lagColumns) from v_feed_groups", read: readLag)
}
