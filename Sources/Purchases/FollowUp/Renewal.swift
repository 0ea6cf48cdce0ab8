package import Foundation

/// Apple's facts about the next renewal of a subscription, in our nouns. Each value is nil where Apple does not say it.
///
/// The facts name no app. They count for the app of a verified transaction of the same chain.
package struct Renewal: Sendable, Equatable, Codable {
    /// Whether the customer agreed to a higher price.
    package enum PriceConsent: String, Sendable, Codable {
        case pending, accepted
    }

    /// Apple's word on a commitment: a plan of monthly charges for twelve months.
    package struct Commitment: Sendable, Equatable, Codable {
        /// Whether another commitment follows. False: the customer cancelled, and Apple charges until the commitment
        /// ends.
        package var renewsAutomatically: Bool?
        package var renewsAt: Date?

        package init(renewsAutomatically: Bool? = nil, renewsAt: Date? = nil) {
            self.renewsAutomatically = renewsAutomatically
            self.renewsAt = renewsAt
        }
    }

    package var originalID: String
    package var environment: String
    /// The newest facts of a chain count.
    package var signedAt: Date
    package var productID: String?
    /// The product of the next period.
    package var nextProductID: String?
    /// Within a commitment true also after the customer cancelled: ``commitment`` tells.
    package var renewsAutomatically: Bool?
    /// Apple's number of the reason why the subscription ended: 1 cancelled, 2 billing error, 3 no consent to a price,
    /// 4 the product is not for sale, 5 another; others are newer than this program.
    package var expirationIntent: Int?
    package var isInBillingRetry: Bool
    package var graceUntil: Date?
    package var renewsAt: Date?
    package var priceConsent: PriceConsent?
    package var offerType: Int?
    package var offerIdentifier: String?
    /// Seats of the next period.
    package var quantity: Int?
    /// Nil: the subscription has no commitment.
    package var commitment: Commitment?

    package init(
        originalID: String, environment: String, signedAt: Date, productID: String? = nil,
        nextProductID: String? = nil, renewsAutomatically: Bool? = nil, expirationIntent: Int? = nil,
        isInBillingRetry: Bool = false, graceUntil: Date? = nil, renewsAt: Date? = nil,
        priceConsent: PriceConsent? = nil, offerType: Int? = nil, offerIdentifier: String? = nil, quantity: Int? = nil,
        commitment: Commitment? = nil
    ) {
        self.originalID = originalID
        self.environment = environment
        self.signedAt = signedAt
        self.productID = productID
        self.nextProductID = nextProductID
        self.renewsAutomatically = renewsAutomatically
        self.expirationIntent = expirationIntent
        self.isInBillingRetry = isInBillingRetry
        self.graceUntil = graceUntil
        self.renewsAt = renewsAt
        self.priceConsent = priceConsent
        self.offerType = offerType
        self.offerIdentifier = offerIdentifier
        self.quantity = quantity
        self.commitment = commitment
    }

    /// Whether Apple charges the next period. Nil: Apple has not said it.
    ///
    /// - Parameters:
    ///   - end: of the newest period.
    ///   - commitmentEnd: of the commitment that the newest period belongs to, if there is one.
    func charges(after end: Date, commitmentEnd: Date?) -> Bool? {
        if commitment?.renewsAutomatically == false, let commitmentEnd, commitmentEnd <= end { return false }
        return renewsAutomatically
    }
}
