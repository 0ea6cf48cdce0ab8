/// A way by which this server may hear of a purchase or of its end (B2). The raw value is the word in SQL.
package enum Net: String, Sendable, CaseIterable {
    /// A user, or the app's backend.
    case post
    /// Apple, by itself.
    case notification
    /// A question for the notifications that Apple could not bring.
    case notificationHistory = "notification_history"
    /// A question about a subscription whose period is over.
    case subscription
    /// A question for all purchases of one of Apple's customers.
    case customer
    /// A question for the refunds of one of Apple's customers.
    case refund
}
