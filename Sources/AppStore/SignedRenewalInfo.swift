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
    /// Why it ended: 1 cancelled, 2 billing error, 3 no consent to the price, 4 product unavailable, 5 other.
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

    /// What follows when the commitment ends.
    package struct Commitment: Sendable, Hashable {
        package var autoRenewProductId: String?
        /// 0 off, 1 on.
        package var autoRenewStatus: Int?
        package var renewalBillingPlanType: String?
        package var renewalDate: Date?
        /// Milliunits of the renewal's currency.
        package var renewalPrice: Int64?

        fileprivate init(_ fields: [String: JSON]) {
            autoRenewProductId = try? fields.string("commitmentAutoRenewProductId")
            autoRenewStatus = try? fields.int("commitmentAutoRenewStatus")
            renewalBillingPlanType = try? fields.string("commitmentRenewalBillingPlanType")
            renewalDate = try? fields.date("commitmentRenewalDate")
            renewalPrice = try? fields.int64("commitmentRenewalPrice")
        }
    }

    package init(_ payload: [String: JSON]) throws(FieldMismatch) {
        originalTransactionId = try payload.required("originalTransactionId")
        productId = try payload.string("productId")
        autoRenewProductId = try payload.string("autoRenewProductId")
        autoRenewStatus = try payload.int("autoRenewStatus")
        expirationIntent = try payload.int("expirationIntent")
        isInBillingRetryPeriod = try payload.bool("isInBillingRetryPeriod")
        gracePeriodExpiresDate = try payload.date("gracePeriodExpiresDate")
        renewalDate = try payload.date("renewalDate")
        recentSubscriptionStartDate = try payload.date("recentSubscriptionStartDate")
        signedDate = try payload.date("signedDate")
        environment = try payload.environment("environment")
        appAccountToken = try payload.uuid("appAccountToken")
        appTransactionId = try payload.string("appTransactionId")
        // As in a transaction: a value of another type than documented is as good as absent.
        priceIncreaseStatus = try? payload.int("priceIncreaseStatus")
        offerType = try? payload.int("offerType")
        offerIdentifier = try? payload.string("offerIdentifier")
        offerDiscountType = try? payload.string("offerDiscountType")
        offerPeriod = try? payload.string("offerPeriod")
        renewalPrice = try? payload.int64("renewalPrice")
        currency = try? payload.string("currency")
        eligibleWinBackOfferIds = try? payload.strings("eligibleWinBackOfferIds")
        renewalBillingPlanType = try? payload.string("renewalBillingPlanType")
        commitment = (try? payload.object("commitmentInfo")).map(Commitment.init)
        advancedCommerceInfo = payload.objectText("advancedCommerceInfo")
    }
}
