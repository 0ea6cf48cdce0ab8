/// A difference between Apple's books and ours (Sweeps).
package struct Difference: Sendable, Equatable {
    /// The raw value is the word in SQL.
    package enum Category: String, Sendable, CaseIterable {
        /// Apple lists a purchase that nobody told.
        case purchaseMissing = "purchase_missing"
        /// Apple took a purchase back, and the end was not known here.
        case endMissing = "end_missing"
        /// Apple lists a purchase as standing that was taken back here.
        case endUndone = "end_undone"
        /// Apple names another state of the subscription.
        case stateDiffers = "state_differs"
        /// Apple's history of the customer does not list a purchase that was given.
        case grantUnlisted = "grant_unlisted"
        /// The quantity of the grant is not Apple's quantity.
        case goodsDiffer = "goods_differ"
        /// A list of Apple's about a customer leads in a circle, has too many pages, or cannot be read on.
        case listEndless = "list_endless"
    }

    package var category: Category
    /// A transaction's id; of a state, the chain's; of an endless list, the customer's.
    package var subject: String
    package var appID: String
    package var environment: String
    /// The question whose answer shows the difference.
    package var net: Net
    /// One JSON object.
    package var details: String

    package init(
        _ category: Category, _ subject: String, appID: String, environment: String, net: Net, details: String = "{}"
    ) {
        self.category = category
        self.subject = subject
        self.appID = appID
        self.environment = environment
        self.net = net
        self.details = details
    }
}
