package import Foundation

/// One Apple purchase event as Apple proved it, in our nouns. From a signed transaction or an entry of a receipt.
package struct Transaction: Sendable, Equatable {
    /// Apple's product types, as they stand in a signed transaction.
    package enum Kind: String, Sendable, CaseIterable {
        case consumable = "Consumable"
        case nonConsumable = "Non-Consumable"
        case autoRenewable = "Auto-Renewable Subscription"
        case nonRenewing = "Non-Renewing Subscription"
    }

    package static let production = "Production"
    package static let sandbox = "Sandbox"
    /// Apple's word for a period that the store charged by itself.
    package static let renewal = "RENEWAL"
    /// Apple's type of an offer that is redeemed by a code, outside of any order of ours.
    private static let offerCode = 3

    package var id: String
    package var originalID: String
    package var productID: String
    /// Nil where Apple does not say (receipts): the catalogue's type holds.
    package var kind: Kind?
    /// Apple's word for where it was bought; decides everywhere, the order's expectation does not.
    package var environment: String
    /// Apple's quantity: it multiplies the goods. At least 1.
    package var quantity: Int
    package var purchasedAt: Date
    package var expiresAt: Date?
    package var revokedAt: Date?
    package var webOrderLineItemID: String?
    package var appAccountToken: UUID?
    /// `PURCHASED`, `FAMILY_SHARED`, `ASSIGNED` or a word we do not know.
    package var ownership: String?
    /// Apple's customer of this app (`appTransactionId`), where Apple says it.
    package var customerID: String?
    package var signedAt: Date?
    /// `PURCHASE` or `RENEWAL`, where Apple says it: not in legacy receipts.
    package var reason: String?
    package var offerType: Int?
    /// Whether the proof would show a token if the purchase had one: a legacy receipt may not.
    package var showsToken: Bool
    /// When Apple took back what the chain was granted, where this was bought after it: a purchase of its own, and the
    /// same one under every id that Apple lists it by.
    package var repurchasedAfter: Date?
    /// What else Apple said, as one JSON object: price, currency, storefront, offer, reason.
    package var facts: String

    package init(
        id: String, originalID: String?, productID: String, kind: Kind?, environment: String, quantity: Int = 1,
        purchasedAt: Date, expiresAt: Date? = nil, revokedAt: Date? = nil, webOrderLineItemID: String? = nil,
        appAccountToken: UUID? = nil, ownership: String? = nil, customerID: String? = nil,
        signedAt: Date? = nil, reason: String? = nil, offerType: Int? = nil, showsToken: Bool = false,
        facts: String = "{}"
    ) {
        self.id = id
        self.originalID = originalID ?? id
        self.productID = productID
        self.kind = kind
        self.environment = environment
        self.quantity = max(1, quantity)
        self.purchasedAt = purchasedAt
        self.expiresAt = expiresAt
        self.revokedAt = revokedAt
        self.webOrderLineItemID = webOrderLineItemID
        self.appAccountToken = appAccountToken
        self.ownership = ownership
        self.customerID = customerID
        self.signedAt = signedAt
        self.reason = reason
        self.offerType = offerType
        self.showsToken = showsToken
        self.facts = facts
    }

    /// Bought by someone else and shared with the poster (Family Sharing, seats).
    package var isShared: Bool { ownership.map { Self.sharedOwnerships.contains($0) } ?? false }

    package static let sharedOwnerships = ["FAMILY_SHARED", "ASSIGNED"]

    package var isOfferCode: Bool { offerType == Self.offerCode }

    /// One period of an auto-renewable subscription.
    package var isPeriod: Bool { (kind == .autoRenewable || expiresAt != nil) && kind != .nonRenewing }

    package var isFirstOfChain: Bool { originalID == id }

    /// Its chain may have an owner: a subscription's, or one that another purchase began.
    package var isOfChain: Bool { isPeriod || !isFirstOfChain }

    /// What one purchase has in common under all the ids Apple lists it by: StoreKit 1 gives each device and each
    /// restore its own transaction id, so the id alone would grant a period or a product twice (design.md 6).
    package var purchaseKey: String {
        let milliseconds = { (date: Date) in Int64((date.timeIntervalSince1970 * 1000).rounded()) }
        if isShared { return "\(environment)/shared/\(originalID)/\(milliseconds(purchasedAt))" }
        if isPeriod {
            if let webOrderLineItemID { return "\(environment)/period/\(webOrderLineItemID)" }
            return "\(environment)/period/\(originalID)/\(milliseconds(purchasedAt))"
        }
        if let repurchasedAfter { return "\(environment)/purchase/\(originalID)/\(milliseconds(repurchasedAfter))" }
        return "\(environment)/purchase/\(originalID)"
    }

    /// This purchase by its own id, with what Apple says of it now; nil if that is about another purchase.
    ///
    /// StoreKit 1 gives a purchase an id per device and per restore, so Apple may list it under another one.
    package func updated(by found: Transaction) -> Transaction? {
        var transaction = found
        transaction.repurchasedAfter = repurchasedAfter
        guard transaction.id == id || transaction.purchaseKey == purchaseKey, transaction.environment == environment
        else { return nil }
        transaction.id = id
        return transaction
    }
}
