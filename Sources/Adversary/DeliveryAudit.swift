import Encoding
import Foundation
package import Ledger
package import Postgres

/// What a receiver got, compared with the events of the database.
///
/// None may be lost. The events of each user must have come in the order of their numbers, each after the one before it
/// was taken. No cursor may lie behind an event that was not taken.
package struct DeliveryAudit: Sendable {
    /// The deliveries that are not done, and the events that nobody has numbered, as a number.
    package static let openCount =
        "select (select count(*) from deliveries where behind_xid is not null) + (select waiting_events from v_numbering)"

    /// What is wrong, in words; empty: nothing is.
    package private(set) var defects: [String] = []
    /// The events that the endpoint had to get.
    package private(set) var events = 0
    /// The webhooks that brought an event that the receiver had taken before.
    package private(set) var repeats = 0
    /// The webhooks that the receiver did not trust.
    package private(set) var refusals = 0

    /// Reads the events of an endpoint without a filter, whose app's users stand in the database as they are.
    ///
    /// - Throws: where the database cannot be read.
    package static func run(
        _ receiver: EventReceiver, of endpoint: EndpointKey, in database: Database
    ) async throws(PostgresError) -> DeliveryAudit {
        let told = try await database.run(Self.told, endpoint)
        var audit = DeliveryAudit()
        audit.events = try await database.run(Self.eventsCount, endpoint).first ?? 0
        audit.compare(receiver.received, with: told)
        if audit.events > told.count { audit.defects.append("\(audit.events - told.count) events have no number") }
        return audit
    }

    /// An event of the database.
    struct Told: Sendable {
        let id: UUID
        let type: String
        /// Nil: the user was erased.
        let userID: String?
        let stream: Int
        let sequence: Int
        let cursor: EventCursor
    }

    private static let eventsCount = Statement<EndpointKey, Int>(
        "adversary.events",
        """
        select count(*) from events where app_id = $1 and xid >= (select since_xid from endpoints where id = $2)
        """,
        bind: { [.text($0.appID), .uuid($0.id)] }, read: { row throws(PostgresError) in try row.int(0) })

    /// The events that have numbers, in the order of the feed. The numbers have no index by the event, so the events are
    /// looked up by theirs.
    private static let told = Statement<EndpointKey, Told>(
        "adversary.told",
        """
        select e.event_id, e.type, case when u.user_id = e.user_id then e.user_id end, s.stream, s.sequence,
          s.xid::text::int8 + (select max(shift) from feed_eras where first_xid <= s.xid::text::int8), s.id
        from event_sequences s
        join event_users u on u.stream = s.stream
        cross join lateral (
          select event_id, type, user_id from events
          where app_id = u.app_id and xid = s.xid and id = s.id offset 0) e
        where u.app_id = $1 and s.xid >= (select since_xid from endpoints where id = $2)
        order by s.xid, s.id
        """,
        bind: { [.text($0.appID), .uuid($0.id)] },
        read: { row throws(PostgresError) in
            Told(
                id: try row.uuid(0), type: try row.text(1), userID: try row.optionalText(2), stream: try row.int(3),
                sequence: try row.int(4), cursor: EventCursor(place: try row.int(5), id: try row.int(6)))
        })

    /// - Parameters:
    ///   - received: in the order in which they came.
    ///   - told: in the order of the feed.
    mutating func compare(_ received: [EventReceiver.Received], with told: [Told]) {
        var found = Findings()
        let places = Dictionary(told.enumerated().map { ($1.id, $0) }) { first, _ in first }
        let before = Self.before(told, &found)
        var arrived = Array(repeating: false, count: told.count)
        var taken = arrived
        /// The place of the first event that is not taken.
        var frontier = 0
        for webhook in received {
            guard webhook.refusal == nil else {
                refusals += 1
                continue
            }
            guard let place = UUID(uuidString: webhook.id).flatMap({ places[$0] }) else {
                found.note("came, and the database does not have them", webhook.id)
                continue
            }
            let event = told[place]
            if (webhook.sequence, webhook.type) != (event.sequence, event.type) {
                found.note("came with another number or type", "\(webhook.id): \(webhook.sequence) \(webhook.type)")
            }
            if let userID = event.userID, !(webhook.userID ?? "").isSameText(as: userID) {
                found.note("came for another user", "\(webhook.id): \(webhook.userID ?? "nobody")")
            }
            if !webhook.isReplay {
                if !arrived[place], let before = before[place], !taken[before] {
                    found.note("came before the event before them was taken", "\(webhook.id): \(event.sequence)")
                }
                if webhook.previousID.flatMap(UUID.init(uuidString:)) != before[place].map({ told[$0].id }) {
                    found.note("named another event before them", "\(webhook.id): \(webhook.previousID ?? "none")")
                }
                if let cursor = EventCursor(webhook.cursor) {
                    if frontier < told.count,
                        (cursor.place, cursor.id) >= (told[frontier].cursor.place, told[frontier].cursor.id)
                    {
                        found.note("brought a cursor behind an event that was not taken", webhook.cursor)
                    }
                } else {
                    found.note("brought no cursor", webhook.id)
                }
            }
            arrived[place] = true
            guard webhook.isTaken else { continue }
            if taken[place] { repeats += 1 }
            taken[place] = true
            while frontier < told.count, taken[frontier] { frontier += 1 }
        }
        for place in told.indices where !taken[place] {
            found.note("were never taken", "\(told[place].id) of \(told[place].type)")
        }
        defects = found.texts
    }

    /// The place of the event before each event of the same user; the numbers of a user have no gap.
    private static func before(_ told: [Told], _ found: inout Findings) -> [Int?] {
        var last: [Int: Int] = [:]
        return told.indices.map { place in
            let event = told[place]
            let before = last.updateValue(place, forKey: event.stream)
            if let before, told[before].sequence + 1 != event.sequence {
                found.note("have a number that does not follow the one before", "\(event.id): \(event.sequence)")
            }
            return before
        }
    }
}

/// Findings by their kinds, with an example of each.
private struct Findings {
    private var kinds: [String: (count: Int, example: String)] = [:]

    mutating func note(_ kind: String, _ example: @autoclosure () -> String) {
        if kinds[kind] == nil { kinds[kind] = (0, example()) }
        kinds[kind]?.count += 1
    }

    var texts: [String] { kinds.sorted { $0.key < $1.key }.map { "\($1.count) events \($0), such as \($1.example)" } }
}
