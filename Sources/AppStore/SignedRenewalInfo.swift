package import Encoding
package import Foundation

/// Apple's facts about the next renewal of a subscription (JWSRenewalInfoDecodedPayload).
///
/// Names no app; see ``SignedDataVerifier/renewalInfo(_:at:)``. Source: AppleFacts 2.2.
package struct SignedRenewalInfo: Sendable, Hashable {
    package var originalTransactionId: String
    package var productId: String?
    package var autoRenewProductId: String?
    /// 0 off, 1 on.
    package var autoRenewStatus: Int?
    /// Why the subscription ended: 1 cancelled, 2 billing error, 3 no consent to the price, 4 product unavailable, 5
    /// other. A subscription that left its bundle has a number that Apple does not document.
    package var expirationIntent: Int?
    package var isInBillingRetryPeriod: Bool?
    /// Access is kept until then.
    package var gracePeriodExpiresDate: Date?
    package var renewalDate: Date?
    package var recentSubscriptionStartDate: Date?
    package var signedDate: Date?
    package var environment: StoreEnvironment?
    package var appAccountToken: UUID?
    package var appTransactionId: String?
    /// 0 the customer has not answered, 1 consented or was notified; absent: no increase.
    package var priceIncreaseStatus: Int?
    /// The offer of the next renewal: 1 introductory, 2 promotional, 3 offer code, 4 win-back.
    package var offerType: Int?
    package var offerIdentifier: String?
    package var offerDiscountType: String?
    /// ISO 8601: `P1M`.
    package var offerPeriod: String?
    /// Milliunits of `currency`.
    package var renewalPrice: Int64?
    /// ISO 4217.
    package var currency: String?
    /// Best first.
    package var eligibleWinBackOfferIds: [String]?
    /// `BILLED_UPFRONT`, `MONTHLY`.
    package var renewalBillingPlanType: String?
    /// Of a monthly plan with a commitment.
    package var commitment: Commitment?
    /// Of Advanced Commerce, one JSON object as Apple wrote it, in our spelling.
    package var advancedCommerceInfo: String?
    /// Seats of the next period; the number may change again before the period begins.
    package var renewalQuantity: Int?
    /// The prices of the seats of the next period, in no order. `renewalPrice` is then the average price of one.
    package var renewalPriceTiers: [SeatPrice]?
    /// Of a subscription inside of a bundle.
    package var bundle: SignedTransaction.Bundle?
    /// Whether the subscription leaves its bundle at the next renewal.
    package var willUnbundle: Bool?

    /// What follows when the commitment ends.
    package struct Commitment: Sendable, Hashable {
        package var autoRenewProductId: String?
        /// 0 off, 1 on.
        package var autoRenewStatus: Int?
        package var renewalBillingPlanType: String?
        package var renewalDate: Date?
        /// Milliunits of the renewal's currency.
        package var renewalPrice: Int64?

        fileprivate init(_ fields: AppleFields) {
            autoRenewProductId = fields.string("commitmentAutoRenewProductId")
            autoRenewStatus = fields.flagNumber("commitmentAutoRenewStatus")
            renewalBillingPlanType = fields.string("commitmentRenewalBillingPlanType")
            renewalDate = fields.date("commitmentRenewalDate")
            renewalPrice = fields.int64("commitmentRenewalPrice")
        }
    }

    package init(_ payload: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(payload)
        originalTransactionId = try fields.required("originalTransactionId")
        productId = fields.string("productId")
        autoRenewProductId = fields.string("autoRenewProductId")
        autoRenewStatus = fields.flagNumber("autoRenewStatus")
        expirationIntent = fields.int("expirationIntent")
        isInBillingRetryPeriod = fields.bool("isInBillingRetryPeriod")
        gracePeriodExpiresDate = fields.date("gracePeriodExpiresDate")
        renewalDate = fields.date("renewalDate")
        recentSubscriptionStartDate = fields.date("recentSubscriptionStartDate")
        signedDate = fields.date("signedDate")
        environment = fields.environment("environment")
        appAccountToken = fields.uuid("appAccountToken")
        appTransactionId = fields.string("appTransactionId")
        priceIncreaseStatus = fields.int("priceIncreaseStatus")
        offerType = fields.int("offerType")
        offerIdentifier = fields.string("offerIdentifier")
        offerDiscountType = fields.string("offerDiscountType")
        offerPeriod = fields.string("offerPeriod")
        renewalPrice = fields.int64("renewalPrice")
        currency = fields.string("currency")
        eligibleWinBackOfferIds = try? fields.strings("eligibleWinBackOfferIds")
        renewalBillingPlanType = fields.string("renewalBillingPlanType")
        commitment = fields.object("commitmentInfo").map(Commitment.init)
        advancedCommerceInfo = fields.objectText("advancedCommerceInfo")
        renewalQuantity = fields.int("renewalQuantity")
        let seats = fields.object("multiSeatInfo")
        renewalPriceTiers = (try? seats?.list("renewalPriceTiers"))?.map(SeatPrice.init)
        bundle = SignedTransaction.Bundle(fields)
        willUnbundle = fields.bool("willUnbundle")
    }
}
