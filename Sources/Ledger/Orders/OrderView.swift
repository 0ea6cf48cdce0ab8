import Encoding
package import Foundation
package import Purchases

/// An order that is about to be stored. Its id is made once, so that writing it again stores the same order.
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
    /// What is frozen in the order; nil: nothing was promised.
    package var offer: Offer?
    package var payBy: Duration
    /// JSON objects.
    package var target: String
    package var details: String
    /// SHA-256 of the token that this server issued to the installation on which the order was placed.
    package var installationTokenSHA256: [UInt8]?
    /// An order with the same key within `debounce` is the same tap.
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
    /// Apple's channel by the names that apps use for it, in small letters. Every other value is another way of
    /// payment.
    package static let channelsOfApple = [
        channelDefault, "app_store", "appstore", "app store", "ios", "iap", "apple_iap", "storekit", "itunes",
    ]
}

/// How an order of another way of payment than Apple's ends: as its own service reports it (S3-70).
package enum OrderEnding: String, Sendable, CaseIterable {
    case paid
    /// It will not be paid. A payment that comes all the same counts.
    case closed
    /// The payment was given back.
    case refunded

    /// The type of the event that `end_order` writes of it.
    var eventType: EventType {
        switch self {
        case .paid: .orderPaid
        case .closed: .orderClosed
        case .refunded: .orderRefunded
        }
    }
}

/// The open order of which the answer to a new order tells.
package struct OpenOrder: Sendable, Equatable {
    package let id: UUID
    package let placedAt: Date
    package let payBy: Date
    package let item: String?
    package let quantity: Int
    package let channel: String
}

/// An order as its user may see it.
package struct OrderView: Sendable, Equatable {
    package enum State: String, Sendable, CaseIterable {
        /// Waits for its purchase, and its offer is still valid.
        case open
        /// Its offer has lapsed; a purchase still finds it.
        case expired
        /// A purchase was granted by it, which binds it for ever.
        case granted
        // The ends of an order of another way of payment, as its own service reports them (``OrderEnding``).
        case paid, closed, refunded
    }

    /// A receipt that named the order, with the orders that its purchases were bound to.
    package struct NamingReceipt: Sendable, Equatable, Decodable {
        package struct Transaction: Sendable, Equatable, Decodable {
            package let transactionId: String
            package let state: String
            package var orderId: String?
            /// The user of that order. Never shown to anybody.
            package let orderUserId: String?
        }

        package let id: String
        /// The user of the receipt; nil: the order alone names the user. Never shown to anybody.
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
    /// The goods of one unit, frozen; nil: nothing was promised.
    package var goods: [AppPolicy.Goods]?
    package var bonuses: [Catalogue.Bonus]
    package var price: Catalogue.Price?
    /// A JSON object.
    package var target: String
    package var placedAt: Date
    package var payBy: Date
    /// Whether the offer has lapsed, by the database's clock.
    package var isExpired: Bool
    package var reservedFor: String?
    package var transactionID: String?
    package var boundAt: Date?
    /// What the purchase gave for it; nil: not granted.
    package var granted: [AppPolicy.Goods]?
    package var debounceKey: [UInt8]?
    /// The owner of the purchase that the order was asked for, where that purchase binds no order. Never shown to
    /// anybody.
    package var grantedTo: String?
    /// What the service of another way of payment has reported, and when.
    package var ending: OrderEnding?
    package var endedAt: Date?
    /// When the app's backend handed its goods out, as the backend says. Nil: it has not said so.
    package var deliveredAt: Date?
    /// At most the newest `OrderView.submissionsMax`; nil where they were not asked for.
    package var submissions: [NamingReceipt]?

    package static let submissionsMax = 20

    package var state: State {
        if transactionID != nil { return .granted }
        switch ending {
        case .paid?: return .paid
        case .closed?: return .closed
        case .refunded?: return .refunded
        case nil: return isExpired ? .expired : .open
        }
    }

    /// The order's place in a list.
    package var place: ListCursor {
        ListCursor(at: Int((placedAt.timeIntervalSince1970 * 1_000_000).rounded()), key: id.text)
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

    /// The order as a person with these ids may see it: without receipts of other users, without the ids of other
    /// users' orders, and open where another user's purchase fulfils it.
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
        if !isShown(grantedTo) {
            (view.transactionID, view.boundAt, view.granted, view.deliveredAt) = (nil, nil, nil, nil)
        }
        return view
    }
}
