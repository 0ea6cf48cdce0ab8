package import Foundation

/// Apple's facts about the next renewal of a subscription (JWSRenewalInfoDecodedPayload).
///
/// Names no app; see ``SignedDataVerifier/renewalInfo(_:at:)``. Source: apple-facts 2.2.
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

    init(_ payload: [String: JSON]) throws(FieldMismatch) {
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
    }
}
