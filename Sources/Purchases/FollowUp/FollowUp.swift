package import Encoding
package import Foundation

/// The result of a chain's follow-up: everything that is to be written about the chain.
package struct FollowUp: Sendable, Equatable {
    /// An event for the app's backend.
    package struct Event: Sendable, Equatable {
        package var type: EventType
        package var userID: String
        /// The transaction that the event is about.
        package var transactionID: String
        /// A text that tells the event from others of its type about the same transaction.
        package var distinction: String
        /// The receipt of the grant, for the timeline.
        package var receiptID: UUID
        package var body: [JSONValue.Member]

        package init(
            type: EventType, userID: String, transactionID: String, distinction: String, receiptID: UUID,
            body: [JSONValue.Member]
        ) {
            self.type = type
            self.userID = userID
            self.transactionID = transactionID
            self.distinction = distinction
            self.receiptID = receiptID
            self.body = body
        }
    }

    package var revocations: [RevocationEntry] = []
    /// In the order in which they happened.
    package var events: [Event] = []
    package var told: ToldState?
    package var lapseSeenAt: Date?
    package var steps = 0
    /// The time when a worker looks at the chain next. Nil: only new facts change the state.
    package var dueAt: Date?
    /// The time when a worker asks Apple about the chain next. Nil: only new facts bring a question.
    package var askAt: Date?
    /// The end of the newest period, by Apple's date. Nil: the chain has no period that somebody has.
    package var periodEndsAt: Date?
    /// Transactions whose ended receipts are judged again: a refund was reversed, or a refund made way for a purchase
    /// that was taken for the refunded one.
    package var rejudged: [String] = []

    package init() {}
}
