package import Foundation

/// The facts about one chain at one moment: the input of the chain's follow-up.
package struct ChainFacts: Sendable, Equatable {
    /// One transaction of the chain, by the newest facts, with its grant if it has one.
    package struct Purchase: Sendable, Equatable {
        package var transaction: Transaction
        package var grant: Grant?
        /// In the order of their ordinals.
        package var revocations: [RevocationEntry]
        /// The consumption that the app's backend reported, in thousandths of a percent. Nil: it reported none.
        package var consumed: Int?

        package init(
            transaction: Transaction, grant: Grant? = nil, revocations: [RevocationEntry] = [], consumed: Int? = nil
        ) {
            self.transaction = transaction
            self.grant = grant
            self.revocations = revocations
            self.consumed = consumed
        }
    }

    package struct Grant: Sendable, Equatable {
        /// Of an imported purchase the id that its receipt would have if nobody posted it.
        package var receiptID: UUID
        /// The user who holds the purchase now, after moves and merges. Nil: the user was erased.
        package var userID: String?
        package var goods: [AppPolicy.Goods]
        package var quantity: Int
        package var grantedAt: Date
        /// Whether the purchase was given on trust, and Apple's answer took it back (`purchase.revoked` was told then).
        package var isTakenBackOnTrust: Bool
        /// Whether it was taken back because Apple refused its receipt, and Apple has signed nothing about it since.
        package var isDenied: Bool
        /// Whether the former system gave the purchase: the goods are not known here, and `grantedAt` is the time of
        /// the import.
        package var isImported: Bool

        package init(
            receiptID: UUID, userID: String?, goods: [AppPolicy.Goods], quantity: Int = 1, grantedAt: Date,
            isTakenBackOnTrust: Bool = false, isDenied: Bool = false, isImported: Bool = false
        ) {
            self.receiptID = receiptID
            self.userID = userID
            self.goods = goods
            self.quantity = quantity
            self.grantedAt = grantedAt
            self.isTakenBackOnTrust = isTakenBackOnTrust
            self.isDenied = isDenied
            self.isImported = isImported
        }
    }

    package var appID: String
    package var environment: String
    package var originalID: String
    /// The chain that this one continues.
    package var previousOriginalID: String?
    /// Whether another chain continues this one.
    package var isContinued = false
    /// Each transaction once, in the order of their purchase.
    package var purchases: [Purchase]
    package var renewal: Renewal?
    /// The state that the app's backend was told last. Nil: nothing was told yet.
    package var told: ToldState?
    /// The first look that found the chain over by the clock alone.
    package var lapseSeenAt: Date?
    /// How many events about its subscription the chain has had.
    package var steps: Int
    /// Apple's answers about the chain. Nil: Apple was not asked yet.
    package var asked: Asked?
    /// By the database's clock.
    package var now: Date

    package init(
        appID: String, environment: String, originalID: String, previousOriginalID: String? = nil,
        purchases: [Purchase], renewal: Renewal? = nil, told: ToldState? = nil, lapseSeenAt: Date? = nil,
        steps: Int = 0, now: Date
    ) {
        self.appID = appID
        self.environment = environment
        self.originalID = originalID
        self.previousOriginalID = previousOriginalID
        self.purchases = purchases
        self.renewal = renewal
        self.told = told
        self.lapseSeenAt = lapseSeenAt
        self.steps = steps
        self.now = now
    }
}

/// One time that Apple took a granted purchase back, or gave it back.
package struct RevocationEntry: Sendable, Equatable {
    package enum Kind: String, Sendable, CaseIterable {
        case revoked, reinstated

        /// The type of the event that tells of such an entry.
        var eventType: EventType {
            switch self {
            case .revoked: .purchaseRevoked
            case .reinstated: .purchaseReinstated
            }
        }
    }

    package enum Reason: String, Sendable, CaseIterable {
        /// The money went back, all or in part.
        case refunded
        /// Another product took its place: an upgrade, or a bundle.
        case upgraded
        /// Another customer shared it and shares it no longer.
        case withdrawn
    }

    /// Of the grant.
    package var transactionID: String
    /// From 1; the greatest of a purchase counts.
    package var ordinal: Int
    package var kind: Kind
    package var reason: Reason
    /// Whether goods are taken back, or given back.
    package var takesBack: Bool
    /// The share of the price that Apple has given back by now, in thousandths of a percent.
    package var percentage: Int
    /// The goods that this entry takes back, or gives back: if the share grew, the difference.
    package var goods: [AppPolicy.Goods]
    /// Apple's date.
    package var at: Date
    package var signedAt: Date?

    package init(
        transactionID: String, ordinal: Int, kind: Kind, reason: Reason, takesBack: Bool, percentage: Int,
        goods: [AppPolicy.Goods], at: Date, signedAt: Date?
    ) {
        self.transactionID = transactionID
        self.ordinal = ordinal
        self.kind = kind
        self.reason = reason
        self.takesBack = takesBack
        self.percentage = percentage
        self.goods = goods
        self.at = at
        self.signedAt = signedAt
    }
}

/// The state of a subscription. The raw value is the word in SQL, events and answers.
package enum SubscriptionState: String, Sendable, CaseIterable, Codable {
    case active
    /// Apple could not charge, and asks the app to go on serving the user meanwhile.
    case inGrace = "in_grace"
    /// Apple could not charge, and goes on trying.
    case inRetry = "in_retry"
    case expired
    /// Apple took the newest period back.
    case revoked
    /// Another chain continues this one: a bundle, or a subscription after a bundle.
    case replaced
}

/// The state of a subscription at one moment, by its facts and the clock.
package struct SubscriptionStatus: Sendable, Equatable {
    package var state: SubscriptionState
    /// The period that the state is about.
    package var transactionID: String
    package var productID: String
    /// The time when access ends or ended, by the facts that are known now: the end of the period or of the grace
    /// period, or the revocation.
    package var accessUntil: Date
    /// Whether the app's policy lets the user use the subscription now.
    package var isEntitled: Bool
    /// Whether Apple's facts say that the subscription is over. False: it runs, or only the clock says that it is over.
    package var isEndStated: Bool

    package init(
        state: SubscriptionState, transactionID: String, productID: String, accessUntil: Date, isEntitled: Bool,
        isEndStated: Bool
    ) {
        self.state = state
        self.transactionID = transactionID
        self.productID = productID
        self.accessUntil = accessUntil
        self.isEntitled = isEntitled
        self.isEndStated = isEndStated
    }
}

/// The state of a chain as the app's backend was told it.
package struct ToldState: Sendable, Equatable, Codable {
    package var state: SubscriptionState
    package var transactionID: String
    package var productID: String
    package var accessUntil: Date
    package var isEntitled: Bool
    package var userID: String
    package var renewsAutomatically: Bool?
    /// The product of the next period, where that is another one.
    package var nextProductID: String?
    package var priceConsent: Renewal.PriceConsent?
    /// Of the period. Nil: one, as for a subscription that is not bought by seats.
    package var seats: Int?
    /// Of the next period, where that has another number of them.
    package var nextSeats: Int?
    /// Apple's type and id of the offer that the next period is to have.
    package var nextOfferType: Int?
    package var nextOfferIdentifier: String?
    /// The end of the commitment that the period belongs to.
    package var commitmentUntil: Date?
    /// Whether another commitment follows this one, where Apple says it.
    package var commitmentRenews: Bool?

    package init(
        state: SubscriptionState, transactionID: String, productID: String, accessUntil: Date, isEntitled: Bool,
        userID: String, renewsAutomatically: Bool? = nil, nextProductID: String? = nil,
        priceConsent: Renewal.PriceConsent? = nil
    ) {
        self.state = state
        self.transactionID = transactionID
        self.productID = productID
        self.accessUntil = accessUntil
        self.isEntitled = isEntitled
        self.userID = userID
        self.renewsAutomatically = renewsAutomatically
        self.nextProductID = nextProductID
        self.priceConsent = priceConsent
    }
}

/// The app's policy for its subscriptions.
package struct SubscriptionPolicy: Sendable, Equatable {
    package enum Goods: String, Sendable, CaseIterable {
        /// Each period gives the product's goods.
        case everyPeriod
        /// A renewal gives none.
        case atStart
    }

    /// Whether a user may use a subscription in Apple's grace period.
    package var graceEntitles = true
    /// Whether a user may use a subscription after its end while Apple tries to charge.
    package var retryEntitles = false
    package var goods = Goods.everyPeriod
    /// How a worker asks Apple about chains of the app. No setting.
    package var asks = AskPolicy()

    package init() {}
}
