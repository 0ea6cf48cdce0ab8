package import Encoding
package import Foundation

/// What the app's backend did with the goods of an event, as it reports it (S0-23).
package struct HandOut: Sendable, Equatable {
    package enum Outcome: String, Sendable, CaseIterable {
        case handedOut = "handed_out"
        case takenBack = "taken_back"
        /// The goods were not handed out: a failure (S0-13).
        case refused
    }

    /// A report that says nothing clear. Sending it again changes nothing.
    package struct Invalid: Error, Equatable {
        /// The member.
        package let field: String
        /// Follows on "must be".
        package let wanted: String

        init(_ field: String, _ wanted: String) {
            self.field = field
            self.wanted = wanted
        }
    }

    package static let members = ["outcome", "amount", "goods", "reason", "at"]
    package static let reasonBytesMax = 256
    package static let goodsMax = 100
    /// How many failures make an order a matter for people (S0-14). SQL has the number too (0036_hand_outs.sql).
    package static let failuresMax = 3
    /// How far ahead the clock of the app's backend may be, in seconds.
    private static let aheadMax: TimeInterval = 300

    package let outcome: Outcome
    /// Of ``Outcome/takenBack``: what was really taken, in the app's own unit.
    package let amount: Int?
    /// Of ``Outcome/takenBack``: the goods that were really taken.
    package let goods: [AppPolicy.Goods]?
    /// Of ``Outcome/refused``.
    package let reason: String?
    /// Nil: now.
    package let at: Date?

    /// Reads the members of a report from an object, and passes over all others.
    ///
    /// - Throws: for anything that is not as deploy/integrating.md says.
    package init(_ report: JSONValue, now: Date = Date()) throws(Invalid) {
        func member(_ name: String) -> JSONValue? { report[name].flatMap { $0 == .null ? nil : $0 } }
        guard case .string(let word)? = member("outcome"), let outcome = Outcome(rawValue: word) else {
            throw Invalid("outcome", "handed_out, taken_back or refused")
        }
        self.outcome = outcome
        for name in ["amount", "goods"] where member(name) != nil && outcome != .takenBack {
            throw Invalid(name, "left out, unless outcome is taken_back")
        }
        amount = try member("amount").map { value throws(Invalid) in try Self.count(value, "amount") }
        goods = try member("goods").map(Self.goods)
        guard amount == nil || goods == nil else { throw Invalid("amount", "left out beside goods") }
        switch member("reason") {
        case nil where outcome != .refused: reason = nil
        case .string(let text)? where outcome == .refused && (1...Self.reasonBytesMax).contains(text.utf8.count):
            reason = text
        default:
            throw Invalid(
                "reason",
                outcome == .refused
                    ? "a text of 1 to \(Self.reasonBytesMax) bytes" : "left out, unless outcome is refused")
        }
        switch member("at") {
        case nil: at = nil
        case .string(let text)?:
            guard let date = Date(rfc3339: text), date.timeIntervalSince(now) <= Self.aheadMax else { fallthrough }
            at = date
        default: throw Invalid("at", "a time that has come, such as 2026-11-30T12:00:00Z")
        }
    }

    private static func count(_ value: JSONValue, _ field: String) throws(Invalid) -> Int {
        guard case .number(let text) = value, let count = Int(text), count >= 0 else {
            throw Invalid(field, "a whole number from 0 on")
        }
        return count
    }

    private static func goods(_ value: JSONValue) throws(Invalid) -> [AppPolicy.Goods] {
        guard case .array(let parts) = value, parts.count <= goodsMax else {
            throw Invalid("goods", "a list of at most \(goodsMax) entries {item, amount}")
        }
        var goods: [AppPolicy.Goods] = []
        for (index, part) in parts.enumerated() {
            guard case .string(let item)? = part["item"], (1...256).contains(item.utf8.count) else {
                throw Invalid("goods[\(index)].item", "a text of 1 to 256 bytes")
            }
            guard let amount = part["amount"] else { throw Invalid("goods[\(index)].amount", "there") }
            goods.append(.init(item: item, amount: try count(amount, "goods[\(index)].amount")))
        }
        return goods
    }
}

extension HandOut {
    /// What the answer of a webhook's receiver says of the event that it got.
    package enum WebhookReport: Sendable, Equatable {
        /// Nothing: most receivers acknowledge by their status alone, or by a request of their own.
        case none
        case report(HandOut)
        /// The answer speaks of another event, or is not to be understood. The event counts as delivered, and what the
        /// answer says is passed over and counted.
        case ignored
    }

    /// Reads the body of a 2xx answer: `{"handled": {"outcome": …}}`, with the members of a report. Whether the outcome
    /// fits the event is found where it is stored (`handle_event`).
    ///
    /// - Parameters:
    ///   - webhookAnswer: as much of the body as was read.
    ///   - eventID: the event that was sent. An answer may name it as `eventId`, and then names no other.
    package static func read(
        webhookAnswer: [UInt8], to eventID: UUID, now: Date = Date()
    ) -> WebhookReport {
        // Most receivers answer with a word or a page, which is no report.
        guard let body = try? JSONValue(parsing: webhookAnswer), let handled = body["handled"], handled != .null else {
            return .none
        }
        if let named = handled["eventId"] {
            guard case .string(let text) = named, UUID(uuidString: text) == eventID else { return .ignored }
        }
        guard let report = try? HandOut(handled, now: now) else { return .ignored }
        return .report(report)
    }
}
