package import Foundation
package import Purchases

/// Facts that Apple told without a post: the input of one hear transaction.
package struct Hearing: Sendable {
    /// The notification with the facts, and its attempt when it was read.
    package struct Notification: Sendable, Equatable {
        /// What becomes of the notification.
        package enum Ending: Sendable, Equatable {
            case ended
            /// The notification's content is not known here, or no app has its bundle id. A command has the
            /// notification judged again.
            case held(reason: String)
        }

        package var id: UUID
        package var attempt: Int
        package var ending: Ending

        package init(id: UUID, attempt: Int, ending: Ending) {
            self.id = id
            self.attempt = attempt
            self.ending = ending
        }
    }

    /// Nil: this server asked Apple.
    package var notification: Notification?
    package var appID: String
    /// The net that brought the facts. Nil: a notification that Apple sent.
    package var net: Net?
    /// Apple's facts, each transaction once.
    package var transactions: [Transaction] = []
    package var renewals: [Renewal] = []
    /// Receipts that nobody posted, each for a purchase that may be granted. A receipt is stored only if nobody was
    /// granted its transaction.
    package var submissions: [Submission] = []
    package var refundRequest: RefundRequest?
    /// Customers of Apple whom the facts name, to be on the rota.
    package var customers: [Statements.NamedCustomer] = []
    /// The place in Apple's list behind the facts; moved only if its reader still has the claim.
    package var customerPlace: Statements.CustomerPlace?
    /// The question of the subscription sweep that this answers.
    package var askedChain: AskedChain?

    package init(notification: Notification?, appID: String, net: Net? = nil) {
        self.notification = notification
        self.appID = appID
        self.net = net
    }
}
