package import Foundation

/// Apple's question how much of a purchase was used, because Apple's customer asked for a refund (CONSUMPTION_REQUEST).
package struct RefundRequest: Sendable, Equatable {
    /// How long Apple takes an answer after Apple signed the question, in seconds.
    package static let answerWithin: TimeInterval = 12 * 3600

    package var notificationID: UUID
    package var appID: String
    package var environment: String
    package var transactionID: String
    package var originalID: String
    /// As Apple gives it: `UNINTENDED_PURCHASE`, `FULFILLMENT_ISSUE`, ….
    package var reason: String?
    /// When Apple signed it.
    package var askedAt: Date

    package init(
        notificationID: UUID, appID: String, environment: String, transactionID: String, originalID: String,
        reason: String?, askedAt: Date
    ) {
        self.notificationID = notificationID
        self.appID = appID
        self.environment = environment
        self.transactionID = transactionID
        self.originalID = originalID
        self.reason = reason
        self.askedAt = askedAt
    }
}
