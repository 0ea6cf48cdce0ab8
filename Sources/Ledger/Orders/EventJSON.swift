package import Encoding
import Purchases

extension Event {
    /// The members of the event's object, the same in the feed and in a webhook (deploy/events/event.1.json).
    ///
    /// - Parameter user: the user behind the key of a protected database; nil: the event has the user's id itself.
    /// - Throws: for a body that is no JSON, which the database does not hold.
    package func members(of user: RevealedUser?) throws(JSONError) -> [JSONValue.Member] {
        var members: [JSONValue.Member] = [
            .init("id", .string(id.text)), .init("type", .string(type)), .init("appId", .string(appID)),
        ]
        // A type that is not known here was written by a newer program, about a purchase as most are.
        let type = EventType(rawValue: type)
        if type?.namesUser != false {
            let revealed = if case .id(let id)? = user { id } else { userID }
            members.append(.init("userId", .string(revealed)))
        }
        if user == .erased { members.append(.init("erased", .bool(true))) }
        if type?.namesTransaction != false { members.append(.init("transactionId", .string(transactionID))) }
        if type?.namesReceipt != false { members.append(.init("receiptId", .string(receiptID.text))) }
        members.append(.init("at", .string(at.rfc3339)))
        if let sequence { members.append(.init("sequence", .integer(sequence))) }
        members.append(.init("data", try JSONValue(parsing: Array(body.utf8))))
        return members
    }
}
