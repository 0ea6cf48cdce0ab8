import Encoding
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

    /// Which purchase it is, where its ids alone do not say it.
    package enum Identity: Sendable, Equatable {
        /// The one that its ids say.
        case ofItsIDs
        /// A purchase made anew after Apple took back this many purchases of its chain: a purchase of its own, and the
        /// same one under every id by which Apple lists it. The count identifies it, because Apple corrects the dates
        /// of refunds.
        case repurchase(Int)
        /// Granted under another id, by this key.
        case granted(key: String)
        /// Another purchase was granted under the key of its ids, and a person gives this one too: by its own id.
        case apart
    }

    package static let production = "Production"
    package static let sandbox = "Sandbox"
    /// Apple's value for a period that the store charged by itself.
    package static let renewal = "RENEWAL"
    /// Apple's types of offers, as far as a decision knows them: an offer code, and an offer that wins back a former
    /// subscriber. Both are redeemed outside of any order of ours.
    package static let offerCode = 3
    package static let winBackOffer = 4
    /// The type of an offer of the app's own for its subscribers: an ordinary purchase.
    package static let promotionalOffer = 2

    package var id: String
    package var originalID: String
    /// The chain's id before a migration to Advanced Commerce, or a change between a subscription and a bundle: one
    /// chain under two ids.
    package var previousOriginalID: String?
    package var productID: String
    /// Nil where Apple does not say (receipts): the catalogue's type holds.
    package var kind: Kind?
    /// Where the purchase was made, as Apple says it. This decides everywhere; the environment that an order expects
    /// does not.
    package var environment: String
    /// Apple's quantity: it multiplies the goods. At least 1.
    package var quantity: Int
    package var purchasedAt: Date
    package var expiresAt: Date?
    /// When Apple ended it: ``ending`` says what that means.
    package var revokedAt: Date?
    package var revocation: Revocation
    /// Whether Apple marks the purchase as replaced by an upgrade. False where Apple does not say it.
    package var isUpgraded: Bool
    package var webOrderLineItemID: String?
    /// Nil for a token that names nobody too (``AccountToken/isNone(_:)``).
    package var appAccountToken: UUID?
    /// `PURCHASED`, `FAMILY_SHARED`, `ASSIGNED`, or a value that this program does not know.
    package var ownership: String?
    /// Apple's customer of this app (`appTransactionId`), where Apple says it.
    package var customerID: String?
    package var signedAt: Date?
    /// `PURCHASE` or `RENEWAL`, where Apple says it: not in legacy receipts.
    package var reason: String?
    package var offerType: Int?
    /// Whether the proof would show a token if the purchase had one: a legacy receipt may not.
    package var showsToken: Bool
    /// Which purchase it is, as ``AppPolicy/judge(_:claim:evidence:)`` finds it each time.
    package var identity = Identity.ofItsIDs
    /// Whether another product of its chain was bought within a minute of its end.
    package var hasSuccessor = false
    /// Whether a purchase of another environment is granted under its id, and a person gives this one too. The ledger
    /// then stores it under ``idBehindEnvironment``.
    package var isGivenApart = false
    /// What else Apple said, as one JSON object: price, currency, storefront, offer, reason.
    package var facts: String

    package init(
        id: String, originalID: String?, previousOriginalID: String? = nil, productID: String, kind: Kind?,
        environment: String, quantity: Int = 1, purchasedAt: Date, expiresAt: Date? = nil, revokedAt: Date? = nil,
        revocation: Revocation = Revocation(),
        isUpgraded: Bool = false, webOrderLineItemID: String? = nil,
        appAccountToken: UUID? = nil, ownership: String? = nil, customerID: String? = nil,
        signedAt: Date? = nil, reason: String? = nil, offerType: Int? = nil, showsToken: Bool = false,
        facts: String = "{}"
    ) {
        self.id = id
        self.originalID = originalID ?? id
        self.previousOriginalID = previousOriginalID
        self.productID = productID
        self.kind = kind
        self.environment = environment
        self.quantity = max(1, quantity)
        self.purchasedAt = purchasedAt
        self.expiresAt = expiresAt
        self.revokedAt = revokedAt
        self.revocation = revocation
        self.isUpgraded = isUpgraded
        self.webOrderLineItemID = webOrderLineItemID
        self.appAccountToken = appAccountToken.flatMap { AccountToken.isNone($0) ? nil : $0 }
        self.ownership = ownership
        self.customerID = customerID
        self.signedAt = signedAt
        self.reason = reason
        self.offerType = offerType
        self.showsToken = showsToken
        self.facts = facts
    }

    /// The environments of StoreKit's tests on a developer's machine. Apple signs nothing there.
    package static let unsignedEnvironments = ["Xcode", "LocalTesting"]

    /// The id by which a transaction is stored. StoreKit's tests number transactions from 0 in each project, so such an
    /// id stands behind its environment (`Xcode/0`), and never meets an id of Apple's.
    package static func storedID(_ id: String, in environment: String) -> String {
        unsignedEnvironments.contains(environment) ? "\(environment)/\(id)" : id
    }

    /// The id as Apple, or a test of StoreKit's, wrote it.
    package static func shownID(_ id: String, in environment: String?) -> String {
        guard let environment, id.hasPrefix(environment + "/") else { return id }
        return String(id.dropFirst(environment.count + 1))
    }

    /// The id of a purchase that a person gives although a purchase of another environment is granted under its own id:
    /// `Sandbox/2000000123456789`. Apple's ids have no slash.
    package var idBehindEnvironment: String { "\(environment)/\(id)" }

    /// The same purchase as the ledger stores it.
    var asStored: Transaction {
        guard isGivenApart else { return self }
        var transaction = self
        transaction.id = idBehindEnvironment
        return transaction
    }

    /// Whether a post that names a transaction means this one.
    package func isCalled(_ name: String?) -> Bool {
        id.isSameText(as: name) || Self.shownID(id, in: environment).isSameText(as: name)
    }

    /// Bought by someone else and shared with the poster (Family Sharing, seats).
    package var isShared: Bool { ownership.map { Self.sharedOwnerships.contains($0) } ?? false }

    package static let sharedOwnerships = ["FAMILY_SHARED", "ASSIGNED"]

    /// Whether it was redeemed outside of any order: such a purchase binds no order that its token or post does not name.
    package var isRedeemed: Bool { offerType == Self.offerCode || offerType == Self.winBackOffer }

    /// One period of an auto-renewable subscription.
    package var isPeriod: Bool { (kind == .autoRenewable || expiresAt != nil) && kind != .nonRenewing }

    package var isFirstOfChain: Bool { originalID == id || isGivenApart && id == "\(environment)/\(originalID)" }

    /// Whether its chain may have an owner: the chain of a subscription, or one that another purchase began.
    package var isOfChain: Bool { isPeriod || !isFirstOfChain || previousOriginalID != nil }

    /// The key that one purchase has under all the ids by which Apple lists it. StoreKit 1 gives each device and each
    /// restore its own transaction id, so the id alone would grant a period or a product twice (Ownership, keys).
    ///
    /// | of | the key, behind the environment |
    /// | a shared purchase | its original transaction and the millisecond it was bought |
    /// | a period | its billing event, if Apple names it; else as a shared purchase |
    /// | anything else | its original transaction |
    /// | a purchase made anew after a refund | the same, and how many were taken back before |
    /// | a purchase that a person gives although another one has its key | its own id |
    package var purchaseKey: String {
        switch identity {
        case .ofItsIDs: keyOfItsIDs
        case .repurchase(let count): keyOfItsIDs + "/#\(count)"
        case .granted(let key): key
        case .apart: "\(environment)/transaction/\(id)"
        }
    }

    /// As ``purchaseKey``, but by the ids alone, whatever ``identity`` says.
    package var keyOfItsIDs: String {
        if isShared { return "\(environment)/shared/\(originalID)/\(Self.milliseconds(purchasedAt))" }
        guard isPeriod else { return "\(environment)/purchase/\(originalID)" }
        return "\(environment)/period/"
            + (webOrderLineItemID ?? "\(originalID)/\(Self.milliseconds(purchasedAt))")
    }

    /// The second key of a period: its chain and the millisecond it ends. It is for a period of which not every id
    /// names the billing event, and for added seats. Nil for everything else.
    package var periodKey: String? {
        guard isPeriod, !isShared, let expiresAt else { return nil }
        return "\(environment)/until/\(originalID)/\(Self.milliseconds(expiresAt))"
    }

    /// Whether a grant under the key of its ids is a grant of this purchase.
    package var hasKeyOfItsIDs: Bool {
        switch identity {
        case .ofItsIDs, .granted: true
        case .repurchase, .apart: false
        }
    }

    private static func milliseconds(_ date: Date) -> Int64 { Int64((date.timeIntervalSince1970 * 1000).rounded()) }

    /// Whether both are one purchase, listed under two ids or one, by what Apple says of them.
    ///
    /// Two consumables under one key that were bought at different seconds are two purchases.
    package func isSamePurchase(as other: Transaction) -> Bool {
        guard environment == other.environment else { return false }
        if id == other.id { return true }
        if let periodKey, periodKey == other.periodKey { return true }
        return keyOfItsIDs == other.keyOfItsIDs && !isOtherConsumable(than: other)
    }

    /// Whether both are consumables that were bought at different seconds. An app receipt says the time to the second
    /// only.
    package func isOtherConsumable(than other: Transaction) -> Bool {
        (kind ?? other.kind) == .consumable
            && Self.milliseconds(purchasedAt) / 1000 != Self.milliseconds(other.purchasedAt) / 1000
    }

    /// This purchase by its own id, with what Apple says of it now; nil if that is about another purchase.
    ///
    /// StoreKit 1 gives a purchase an id per device and per restore, so Apple may list it under another one.
    package func updated(by found: Transaction) -> Transaction? {
        guard isSamePurchase(as: found) else { return nil }
        var transaction = found
        transaction.id = id
        transaction.identity = identity
        return transaction
    }
}
