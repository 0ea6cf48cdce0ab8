package import Foundation

/// A purchase in a user's list, or a post of which no purchase is known.
package struct ListedTopUp: Sendable, Equatable {
    /// Nil: it is not known yet.
    package let transactionId: String?
    /// Nil: another account's proof brought the purchase.
    package let receiptId: UUID?
    package private(set) var productId: String?
    package private(set) var quantity: Int?
    package private(set) var environment: String?
    package private(set) var purchasedAt: Date?
    package private(set) var refundedAt: Date?
    package private(set) var terms: PurchaseTerms?
    package let state: ReceiptState
    package private(set) var reason: String?
    /// Nil: nothing is granted.
    package private(set) var goods: [AppPolicy.Goods]?
    /// How often its receipt was posted after the first time, and when last; nil: never, or another account posted it.
    package var repeats: Int?
    package var repeatedAt: Date?
    /// The order that the purchase bound.
    package private(set) var orderId: UUID?
    /// True: the post alone says the transaction and the product, and nobody has verified them.
    package private(set) var unverified: Bool?

    private init(_ transactionID: String?, in receiptID: UUID? = nil, _ state: ReceiptState, _ reason: String?) {
        transactionId = transactionID
        receiptId = receiptID
        self.state = state
        self.reason = reason
    }

    /// A purchase that was granted to the user.
    ///
    /// - Parameter reason: of the post that brought the purchase. What another poster is told of it is not said to the
    ///   owner.
    package static func granted(
        _ transactionID: String, by receiptID: UUID?, reason: String?, goods: [AppPolicy.Goods]?, orderID: UUID?
    ) -> ListedTopUp {
        let told = reason == Reason.ownedByAnotherUser.rawValue ? nil : reason
        var topUp = ListedTopUp(transactionID, in: receiptID, .granted, told)
        topUp.goods = goods
        topUp.orderId = orderID
        return topUp
    }

    /// A purchase that the former system gave the user, by what that system said of it.
    package static func imported(
        _ transactionID: String, productID: String, environment: String, purchasedAt: Date
    ) -> ListedTopUp {
        var topUp = ListedTopUp(transactionID, .alreadyGranted, Reason.imported.rawValue)
        topUp.productId = productID
        topUp.environment = environment
        topUp.purchasedAt = purchasedAt
        return topUp
    }

    /// A purchase of a post that was not granted to the user.
    ///
    /// - Parameter state: of the purchase in this post; nil: it is open.
    package static func posted(
        _ transactionID: String, in receiptID: UUID, of receiptState: ReceiptState, _ state: ReceiptState?,
        reason: String?
    ) -> ListedTopUp {
        ListedTopUp(transactionID, in: receiptID, told(state, in: receiptState, reason), reason)
    }

    /// A post of which no purchase is known.
    ///
    /// - Parameters:
    ///   - transactionID: as the post itself says; nil: it says none.
    ///   - productID: as the post itself says; nil: it says none.
    package static func unjudged(
        _ transactionID: String?, in receiptID: UUID, _ state: ReceiptState, reason: String?, productID: String?
    ) -> ListedTopUp {
        var topUp = ListedTopUp(transactionID, in: receiptID, told(state, in: state, reason), reason)
        guard transactionID != nil else { return topUp }
        topUp.productId = productID
        topUp.unverified = true
        return topUp
    }

    /// The state that a poster is told of a purchase. A poster learns no more of another user's purchase than that it
    /// was granted.
    private static func told(_ state: ReceiptState?, in receipt: ReceiptState, _ reason: String?) -> ReceiptState {
        if reason == Reason.ownedByAnotherUser.rawValue || reason == Reason.transferred.rawValue {
            return .alreadyGranted
        }
        return state ?? (receipt == .parked ? .parked : .received)
    }

    /// The transaction whose facts the list shows; nil: none. A user who knows only an id is given no hint about the
    /// purchase behind it, and a user who only names one has shown nothing.
    package var factsID: String? {
        if unverified == true || state != .granted && reason == Reason.possessionMissing.rawValue { return nil }
        return transactionId
    }

    /// Adds what Apple says of the purchase. A granted purchase that Apple has taken back says so, whatever its post
    /// was told.
    package mutating func show(_ facts: PurchaseFacts) {
        productId = facts.productID
        quantity = facts.quantity
        environment = facts.environment
        purchasedAt = facts.purchasedAt
        refundedAt = facts.refundedAt
        terms = facts.terms
        if state == .granted, let takenBack = facts.takenBack { reason = takenBack.rawValue }
    }
}

/// What Apple says of a purchase, as far as a list shows it.
package struct PurchaseFacts: Sendable, Equatable {
    package var productID: String
    package var quantity: Int
    package var environment: String
    package var purchasedAt: Date
    package var revokedAt: Date?
    /// Nil: it stands, or was paid for all the same.
    package var ending: Transaction.Ending?
    package var terms: PurchaseTerms

    package init(
        productID: String, quantity: Int, environment: String, purchasedAt: Date, revokedAt: Date? = nil,
        ending: Transaction.Ending? = nil, terms: PurchaseTerms = PurchaseTerms()
    ) {
        self.productID = productID
        self.quantity = quantity
        self.environment = environment
        self.purchasedAt = purchasedAt
        self.revokedAt = revokedAt
        self.ending = ending
        self.terms = terms
    }

    /// Why nothing of it is left. Nil also where Apple took it back for a reason that is not known here.
    var takenBack: Reason? {
        switch ending {
        case .refunded?: .refunded
        case .withdrawn?: .withdrawn
        case .refundedInPart?, .upgraded?, .unknown?, nil: nil
        }
    }

    /// When Apple gave money back for it, all or in part, or may have.
    var refundedAt: Date? {
        switch ending {
        case .refunded?, .refundedInPart?, .unknown?: revokedAt
        case .withdrawn?, .upgraded?, nil: nil
        }
    }
}
