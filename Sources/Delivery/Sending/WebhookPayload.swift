package import Encoding
package import Foundation
package import Ledger

/// The body of a webhook: the event as the feed shows it, and what belongs to its delivery.
package struct WebhookPayload: Sendable {
    package let event: Event
    /// The user behind the key of a protected database; nil: the event has the user's id itself.
    package let user: RevealedUser?
    /// The endpoint's name.
    package let endpoint: String
    /// The event's number among those of its user, from 1. Nil: the event is sent by a replay, which is outside of the
    /// order of its user.
    package let sequence: Int?
    /// The event that was sent to this endpoint for this user before. Nil: this one is the first.
    package let previousID: UUID?
    /// Every event before this place that passes the endpoint's filter was delivered to the endpoint.
    package let cursor: EventCursor
    /// The number of this try, from 1.
    package let attempt: Int
    /// The replay that sends the event once more; nil: none does.
    package let replay: UUID?

    package init(
        _ event: Event, user: RevealedUser?, endpoint: String, sequence: Int?, previousID: UUID?, cursor: EventCursor,
        attempt: Int, replay: UUID? = nil
    ) {
        self.event = event
        self.user = user
        self.endpoint = endpoint
        self.sequence = sequence
        self.previousID = previousID
        self.cursor = cursor
        self.attempt = attempt
        self.replay = replay
    }

    /// One JSON object in UTF-8. The same values give the same bytes.
    ///
    /// - Throws: for an event whose body is no JSON, which the database does not hold.
    package func bytes() throws(JSONError) -> [UInt8] {
        var delivery: [JSONValue.Member] = [.init("endpoint", .string(endpoint))]
        if let sequence { delivery.append(.init("sequence", .integer(sequence))) }
        if let previousID { delivery.append(.init("previousId", .string(previousID.text))) }
        delivery += [.init("cursor", .string(cursor.text)), .init("attempt", .integer(attempt))]
        if let replay { delivery.append(.init("replay", .string(replay.text))) }
        return JSONValue.object(try event.members(of: user) + [.init("delivery", .object(delivery))]).bytes
    }
}
