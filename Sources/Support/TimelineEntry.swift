package import Encoding
package import Foundation
import Ledger
package import Purchases
import Settings

/// One event of a timeline, from a row.
package struct TimelineEntry: Sendable {
    /// The kinds of event, in the order in which events of the same time happen.
    package enum What: String, Sendable, CaseIterable {
        case orderPlaced = "order_placed"
        case bought
        case posted
        /// Another post of the same proof named another order, item or transaction.
        case said
        /// The app reported an error.
        case reported
        case halted
        /// A worker asked Apple, and the answer did not end the receipt.
        case attempt
        case decided
        case orderBound = "order_bound"
        case granted
        /// An import recorded that the former system gave it.
        case imported
        /// A chain belongs to a user from a purchase on.
        case owned
        case possibleDoubleCharge = "possible_double_charge"
        case givenOnTrust = "given_on_trust"
        case confirmed
        case takenBack = "taken_back"
        /// The app's backend said how much was used.
        case used
        /// Apple's customer asked for a refund, and Apple asked what was used.
        case refundAsked = "refund_asked"
        /// Apple's question about a refund ended, answered or not.
        case answeredApple = "answered_apple"
        case refunded
        /// A notification of Apple's arrived.
        case notified
        /// A follow-up recorded that Apple took a granted purchase back, or gave it back.
        case revoked
        case reinstated
        /// The app's backend was told the state of a subscription; the last state only.
        case subscription
        /// The app's backend was told by an event.
        case told
        /// The app's backend handed the goods of an event out, took them back, or did not; or need not any more.
        case delivered
        case goodsTaken = "goods_taken"
        case notDelivered = "not_delivered"
        case deliveryVoid = "delivery_void"
        /// Apple was told about a decided purchase, or is still to be told.
        case toldApple = "told_apple"
        /// An operator or support acted by a command.
        case command
    }

    package let at: Date
    package let what: What
    /// The event in English, for people.
    package let text: String
    /// The event's facts, for programs.
    package let facts: [JSONValue.Member]
    /// The sentence that the player may read of the event.
    package let sentence: PlayerSentence?

    init(
        _ at: Date, _ what: What, _ text: String, _ facts: [(String, JSONValue?)], _ sentence: PlayerSentence? = nil
    ) {
        self.sentence = sentence
        self.at = at
        self.what = what
        self.text = text
        self.facts = facts.compactMap { name, value in value.map { .init(name, $0) } }
    }

    static func all(_ rows: TimelineRows, app: String, _ audience: Audience) -> [TimelineEntry] {
        let builder = TimelineBuilder(rows: rows, app: app, audience: audience)
        let rank = Dictionary(uniqueKeysWithValues: What.allCases.enumerated().map { ($1, $0) })
        return builder.lines.sorted { ($0.at, rank[$0.what] ?? 0) < ($1.at, rank[$1.what] ?? 0) }
    }
}
