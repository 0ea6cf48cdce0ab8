import Encoding
package import Foundation
package import Purchases

/// An order as it is about to be stored. Its id is made once, so that writing it again is the same order.
package struct NewOrder: Sendable, Equatable {
    /// Travels as Apple's `appAccountToken` (S3-59).
    package var id: UUID
    package var appID: String
    package var userID: String
    package var productID: String
    package var item: String?
    package var quantity: Int
    package var promotion: String?
    package var channel: String
    package var environment: String?
    /// What is frozen; nil: nothing was promised.
    package var offer: Offer?
    package var payBy: Duration
    /// JSON objects.
    package var target: String
    package var details: String
    /// Of the token that this server issued to the installation it was placed on.
    package var installationTokenSHA256: [UInt8]?
    /// The same within `debounce` is the same tap.
    package var debounceKey: [UInt8]
    package var debounce: Duration
    package var idempotencyKey: String?
    package var reservedFor: String?

    package init(
        id: UUID, appID: String, userID: String, productID: String, item: String? = nil, quantity: Int,
        promotion: String? = nil, channel: String, environment: String? = nil, offer: Offer? = nil, payBy: Duration,
        target: String, details: String, installationTokenSHA256: [UInt8]? = nil, debounceKey: [UInt8],
        debounce: Duration, idempotencyKey: String? = nil, reservedFor: String? = nil
    ) {
        self.id = id
        self.appID = appID
        self.userID = userID
        self.productID = productID
        self.item = item
        self.quantity = quantity
        self.promotion = promotion
        self.channel = channel
        self.environment = environment
        self.offer = offer
        self.payBy = payBy
        self.target = target
        self.details = details
        self.installationTokenSHA256 = installationTokenSHA256
        self.debounceKey = debounceKey
        self.debounce = debounce
        self.idempotencyKey = idempotencyKey
        self.reservedFor = reservedFor
    }

    package static let channelDefault = "apple"
    /// Apple's by what apps call it, in small letters; every other word is another way of payment.
    package static let channelsOfApple = [
        channelDefault, "app_store", "appstore", "app store", "ios", "iap", "apple_iap", "storekit", "itunes",
    ]
}

/// An order as its user may see it.
package struct OrderView: Sendable, Equatable {
    package enum State: String, Sendable, CaseIterable {
        /// Waits for its purchase, and its offer holds.
        case open
        /// Its offer has lapsed; a purchase still finds it.
        case expired
        /// A purchase was granted by it, which binds it for ever.
        case granted
    }

    /// A receipt that named the order, with the orders that its purchases were bound to.
    package struct Submission: Sendable, Equatable, Decodable {
        package struct Transaction: Sendable, Equatable, Decodable {
            package let transactionId: String
            package let state: String
            package var orderId: String?
            /// Whose order that is. Told to nobody.
            package let orderUserId: String?
        }

        package let id: String
        /// Whose receipt it is; nil: nobody's but the order's. Told to nobody.
        package let userId: String?
        package let state: String
        package let reason: String?
        /// RFC 3339, UTC.
        package let receivedAt: String
        package var transactions: [Transaction]
    }

    package var id: UUID
    package var appID: String
    package var userID: String
    package var productID: String
    package var item: String?
    package var quantity: Int
    package var promotion: String?
    package var channel: String
    package var environment: String?
    /// One unit's, frozen; nil: nothing was promised.
    package var goods: [AppPolicy.Goods]?
    package var bonuses: [Catalogue.Bonus]
    package var price: Catalogue.Price?
    /// A JSON object.
    package var target: String
    package var placedAt: Date
    package var payBy: Date
    /// By the database's clock.
    package var isExpired: Bool
    package var reservedFor: String?
    package var transactionID: String?
    package var boundAt: Date?
    /// What was given for it; nil: not granted.
    package var granted: [AppPolicy.Goods]?
    package var debounceKey: [UInt8]?
    /// Whose the purchase is that the order was asked for, where no order is bound by that purchase. Told to nobody.
    package var grantedTo: String?
    /// At most the newest `OrderView.submissionsMax`; nil where nobody asked.
    package var submissions: [Submission]?

    package static let submissionsMax = 20

    package var state: State {
        if transactionID != nil { return .granted }
        return isExpired ? .expired : .open
    }
}

extension OrderView {
    init(_ order: NewOrder, placedAt: Date, payBy: Date) {
        self.init(
            id: order.id, appID: order.appID, userID: order.userID, productID: order.productID, item: order.item,
            quantity: order.quantity, promotion: order.promotion, channel: order.channel,
            environment: order.environment, goods: order.offer?.goods, bonuses: order.offer?.bonuses ?? [],
            price: order.offer?.price, target: order.target, placedAt: placedAt, payBy: payBy, isExpired: false,
            reservedFor: order.reservedFor, debounceKey: order.debounceKey)
    }

    /// Without the receipts of other ids than these, without the ids of orders that are of other ones, and open where it
    /// ends with another one's purchase.
    package func shown(to ids: [String]) -> OrderView {
        func isShown(_ id: String?) -> Bool { id.map { id in ids.contains { $0.isSameText(as: id) } } ?? true }
        var view = self
        view.submissions = submissions?.filter { isShown($0.userId) }.map { submission in
            var submission = submission
            submission.transactions = submission.transactions.map { transaction in
                var transaction = transaction
                if !isShown(transaction.orderUserId) { transaction.orderId = nil }
                return transaction
            }
            return submission
        }
        if !isShown(grantedTo) { (view.transactionID, view.boundAt, view.granted) = (nil, nil, nil) }
        return view
    }
}
