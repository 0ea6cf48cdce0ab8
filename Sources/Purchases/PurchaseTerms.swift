package import Encoding
import Foundation

/// What Apple says of a purchase's price, offer and sharing, and when its period ends: for events, answers and lists.
/// From the facts that are stored; what Apple does not say is nil.
package struct PurchaseTerms: Sendable, Equatable, Decodable {
    /// 1.99 USD is 1990.
    package var price: Int?
    package var currency: String?
    package var offerType: Int?
    package var offerIdentifier: String?
    package var offerDiscountType: String?
    package var offerPeriod: String?
    /// RFC 3339, UTC.
    package var expiresAt: String?
    package var ownership: String?

    /// Whether somebody else bought it and shares it with the user, who gets no goods for it.
    package var isShared: Bool { ownership.map { Transaction.sharedOwnerships.contains($0) } ?? false }

    package init() {}

    package init(_ transaction: Transaction) {
        let facts = try? JSONValue(parsing: Array(transaction.facts.utf8))
        func text(_ name: String) -> String? {
            if case .string(let text)? = facts?[name] { text } else { nil }
        }
        func number(_ name: String) -> Int? {
            if case .number(let text)? = facts?[name] { Int(text) } else { nil }
        }
        price = number("price")
        currency = text("currency")
        offerType = number("offerType")
        offerIdentifier = text("offerIdentifier")
        offerDiscountType = text("offerDiscountType")
        offerPeriod = text("offerPeriod")
        expiresAt = transaction.expiresAt?.rfc3339
        ownership = transaction.ownership
    }

    /// The members of events, answers and lists; none that Apple says nothing for.
    package var members: [JSONValue.Member] {
        var members: [JSONValue.Member] = []
        if let price { members.append(.init("priceMilliunits", .integer(price))) }
        if let currency { members.append(.init("currency", .string(currency))) }
        if let expiresAt { members.append(.init("expiresAt", .string(expiresAt))) }
        if isShared { members.append(.init("shared", .bool(true))) }
        if offerDiscountType == "FREE_TRIAL" { members.append(.init("trial", .bool(true))) }
        var offer: [JSONValue.Member] = []
        if let kind = offerType.flatMap({ Self.offerKinds[$0] }) { offer.append(.init("type", .string(kind))) }
        for (name, text) in [
            ("id", offerIdentifier), ("discount", offerDiscountType?.lowercased()), ("period", offerPeriod),
        ] {
            if let text { offer.append(.init(name, .string(text))) }
        }
        if !offer.isEmpty { members.append(.init("offer", .object(offer))) }
        return members
    }

    /// Apple's types of offers (AppleFacts, section 2). A type that is not here has no name yet.
    static let offerKinds = [1: "introductory", 2: "promotional", 3: "code", 4: "win_back"]
}
