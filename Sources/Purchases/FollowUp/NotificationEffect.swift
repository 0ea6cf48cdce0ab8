import Encoding

/// One row of the table of Apple's notifications: a type, its meaning, and its effect.
///
/// The table is the documentation too: `Notifications.md` shows the same rows. A type decides nothing about a purchase.
/// The type says what a worker does with the facts that Apple signed inside the notification. Types and subtypes are
/// Apple's (AppleFacts, sections 4.3 and 5.3).
package struct NotificationEffect: Sendable, Equatable {
    /// A worker's part.
    package enum Kind: String, Sendable, CaseIterable {
        /// Stores the signed facts; the follow-up writes their effects.
        case hear
        /// Stores the signed facts, and opens a question about a refund that Apple wants answered.
        case refundRequest
        /// Notes that the app's test notification arrived.
        case test
        /// Keeps the notification; nothing follows.
        case record
    }

    package var type: String
    /// Nil among them: without a subtype. Empty: the row is of version 1 alone.
    package var subtypes: [String?]
    /// The types of version 1 that mean the same.
    package var typesOfVersion1: [String]
    /// The meaning that Apple gives the type.
    package var meaning: String
    /// The effect, as far as the signed facts say so.
    package var follows: String
    package var kind: Kind

    /// The row of a notification. Nil: its type or subtype is not known here, and the notification is held
    /// (`type_unknown`).
    ///
    /// - Parameter version: of Apple's notifications, 1 or 2. Version 1 has no subtypes.
    package static func of(type: String, subtype: String?, version: Int) -> NotificationEffect? {
        version == 1
            ? table.first { $0.typesOfVersion1.contains { $0.isSameText(as: type) } }
            : table.first { row in
                row.type.isSameText(as: type) && row.subtypes.contains { $0.isSameText(as: subtype) }
            }
    }

    /// The row as a line of the documentation.
    package var line: String {
        func words(_ words: [String]) -> String { words.map { "`\($0)`" }.joined(separator: ", ") }
        let known = subtypes.map { $0.map { "`\($0)`" } ?? "–" }.joined(separator: ", ")
        let shown = subtypes.isEmpty ? "only version 1" : known
        let former = typesOfVersion1.isEmpty ? "–" : words(typesOfVersion1)
        return "| `\(type)` | \(shown) | \(former) | \(meaning) | \(follows) | \(kind.rawValue) |"
    }

    private init(
        _ type: String, subtypes: [String?] = [nil], v1 typesOfVersion1: [String] = [], _ meaning: String,
        _ follows: String, _ kind: Kind = .hear
    ) {
        self.type = type
        self.subtypes = subtypes
        self.typesOfVersion1 = typesOfVersion1
        self.meaning = meaning
        self.follows = follows
        self.kind = kind
    }

    package static let table: [NotificationEffect] = [
        .init(
            "SUBSCRIBED", subtypes: ["INITIAL_BUY"], v1: ["INITIAL_BUY"],
            "a first subscription of its group, or a family member's first access", "the period is granted"),
        .init(
            "SUBSCRIBED", subtypes: ["RESUBSCRIBE"], v1: ["INTERACTIVE_RENEWAL"],
            "a subscription after a lapse; in version 1 also an upgrade", "the period is granted"),
        .init("DID_RENEW", v1: ["DID_RENEW"], "Apple charged the next period", "the period is granted"),
        .init(
            "DID_RENEW", subtypes: ["BILLING_RECOVERY"], v1: ["DID_RECOVER", "RENEWAL"],
            "Apple charged a period after it had failed to", "the period is granted"),
        .init(
            "DID_CHANGE_RENEWAL_PREF", subtypes: ["UPGRADE"], "another product from now on",
            "its period is granted; the former period ends, and its goods stay"),
        .init(
            "DID_CHANGE_RENEWAL_PREF", subtypes: ["DOWNGRADE"], v1: ["DID_CHANGE_RENEWAL_PREF"],
            "another product from the next period on", "the change is told; nothing changes before the next period"),
        .init("DID_CHANGE_RENEWAL_PREF", "no other product any more", "the change is told"),
        .init(
            "DID_CHANGE_RENEWAL_PREF", subtypes: ["INCREASE_QUANTITY", "DECREASE_QUANTITY"],
            "seats are added now, or are fewer from the next period on", "the change is told; no goods again"),
        .init(
            "DID_CHANGE_RENEWAL_STATUS", subtypes: ["AUTO_RENEW_ENABLED", "AUTO_RENEW_DISABLED"],
            v1: ["DID_CHANGE_RENEWAL_STATUS"], "renewal was switched on or off",
            "the change is told; the user's access stays"),
        .init("OFFER_REDEEMED", "an offer for a subscription that runs", "the offer is told"),
        .init(
            "OFFER_REDEEMED", subtypes: ["UPGRADE"], "an offer for another product from now on",
            "its period is granted; the former period ends, and its goods stay"),
        .init(
            "OFFER_REDEEMED", subtypes: ["DOWNGRADE"], "an offer for another product from the next period on",
            "the change is told"),
        .init(
            "OFFER_REDEEMED", subtypes: ["INITIAL_BUY", "RESUBSCRIBE"], "before 2024: a subscription by an offer",
            "the period is granted"),
        .init(
            "DID_FAIL_TO_RENEW", subtypes: ["GRACE_PERIOD"], "Apple could not charge, and a grace period runs",
            "the state is `in_grace` until its end"),
        .init(
            "DID_FAIL_TO_RENEW", v1: ["DID_FAIL_TO_RENEW"], "Apple could not charge, and tries again",
            "after the period's end the state is `in_retry`"),
        .init(
            "GRACE_PERIOD_EXPIRED", "the grace period is over, and Apple tries again", "the state is `in_retry`"),
        .init(
            "EXPIRED", subtypes: ["VOLUNTARY", "BILLING_RETRY", "PRICE_INCREASE", "PRODUCT_NOT_FOR_SALE", nil],
            "the subscription is over", "the state is `expired`, with Apple's reason"),
        .init(
            "PRICE_INCREASE", subtypes: ["PENDING", "ACCEPTED"], v1: ["PRICE_INCREASE_CONSENT"],
            "a higher price needs the customer's consent, or has it", "the consent is told"),
        .init(
            "REFUND", v1: ["REFUND", "CANCEL"],
            "the money of one transaction went back; in version 1 `CANCEL` for a subscription",
            "that transaction is taken back, whole or in part; other periods stay"),
        .init("REFUND", subtypes: ["SEATS"], "the money of some seats went back", "no purchase is taken back"),
        .init("REFUND_REVERSED", "Apple took a refund back", "the purchase is reinstated, or granted at last"),
        .init("REFUND_DECLINED", "Apple refused a refund", "nothing is taken back"),
        .init(
            "REVOKE", v1: ["REVOKE"], "another customer shares the purchase no longer",
            "the user's access ends; goods stay"),
        .init(
            "CONSUMPTION_REQUEST", "a customer asked for a refund, and Apple asks how much was used",
            "Apple is answered within 12 hours, if the user agreed; the user's access stays", .refundRequest),
        .init(
            "CONSUMPTION_REQUEST", subtypes: [], v1: ["CONSUMPTION_REQUEST"],
            "the same; version 1 does not prove which purchase it is about", "Apple is not answered"),
        .init("ONE_TIME_CHARGE", "a purchase that is no subscription", "the purchase is granted"),
        .init("RENEWAL_EXTENDED", "Apple moved the end of a period", "the period runs until then"),
        .init(
            "RENEWAL_EXTENSION", subtypes: ["SUMMARY", "FAILURE"], "the result of moving the end of many periods",
            "nothing", .record),
        .init(
            "EXTERNAL_PURCHASE_TOKEN", subtypes: ["UNREPORTED", "CREATED", "ACTIVE_TOKEN_REMINDER"],
            "a token of purchases outside of the App Store", "nothing", .record),
        .init(
            "RESCIND_CONSENT", "a parent withdrew the consent to a child's use of the app", "nothing", .record),
        .init(
            "UNCLAIM_SEATS", "Apple released claims of seats", "nothing: no claims are kept here", .record),
        .init("METADATA_UPDATE", "Advanced Commerce: another description", "nothing beside the facts"),
        .init(
            "MIGRATION", "a subscription moved to Advanced Commerce",
            "the new chain goes on with the former one's owner"),
        .init("MIGRATE", "the same; Apple's list of changes spells it so", "as `MIGRATION`"),
        .init("PRICE_CHANGE", "Advanced Commerce: another price", "nothing beside the facts"),
        .init("TEST", "a test that this server asked for, or a person", "its arrival is noted", .test),
    ]
}
