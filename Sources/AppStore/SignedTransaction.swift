package import Encoding
package import Foundation

/// Apple's facts about one purchase event (JWSTransactionDecodedPayload).
///
/// Only the fields that identify the purchase must be there. Enumerations stay Apple's own strings and numbers, so a
/// value added tomorrow decodes today; unknown keys are ignored. Source: AppleFacts 2.1, field by field.
package struct SignedTransaction: Sendable, Hashable {
    package var transactionId: String
    /// Constant over a chain of renewals.
    package var originalTransactionId: String?
    /// One billing event, the same on all devices; auto-renewables only.
    package var webOrderLineItemId: String?
    package var bundleId: String
    package var productId: String
    package var subscriptionGroupIdentifier: String?
    /// `Auto-Renewable Subscription`, `Non-Consumable`, `Consumable`, `Non-Renewing Subscription`.
    package var type: String?
    package var purchaseDate: Date?
    package var originalPurchaseDate: Date?
    /// Subscriptions only.
    package var expiresDate: Date?
    package var quantity: Int?
    /// nil also where the value is no UUID.
    package var appAccountToken: UUID?
    /// `PURCHASED`, `FAMILY_SHARED`, `ASSIGNED`.
    package var inAppOwnershipType: String?
    package var signedDate: Date?
    /// Presence means refunded or taken back.
    package var revocationDate: Date?
    package var revocationReason: Int?
    /// `REFUND_FULL`, `REFUND_PRORATED`, `FAMILY_REVOKE`, `ASSIGNMENT_REVOKE`.
    package var revocationType: String?
    /// Milliunits: 100000 is everything.
    package var revocationPercentage: Int?
    package var isUpgraded: Bool?
    /// 1 introductory, 2 promotional, 3 offer code, 4 win-back.
    package var offerType: Int?
    package var offerIdentifier: String?
    package var offerDiscountType: String?
    /// Of the offer, ISO 8601: `P1M`.
    package var offerPeriod: String?
    package var environment: StoreEnvironment?
    /// Three-letter country code.
    package var storefront: String?
    package var storefrontId: String?
    /// `PURCHASE`, `RENEWAL`.
    package var transactionReason: String?
    /// ISO 4217.
    package var currency: String?
    /// Milliunits of `currency`, already multiplied by `quantity`.
    package var price: Int64?
    /// Names the download of the app by one Apple Account.
    package var appTransactionId: String?
    /// `BILLED_UPFRONT`, `MONTHLY`.
    package var billingPlanType: String?
    /// Of a monthly plan with a commitment.
    package var commitment: Commitment?
    /// The original id from before a migration to Advanced Commerce.
    package var previousOriginalTransactionId: String?
    /// Of Advanced Commerce, one JSON object as Apple wrote it, in our spelling.
    package var advancedCommerceInfo: String?

    /// How far a commitment of several billing periods has come.
    package struct Commitment: Sendable, Hashable {
        package var billingPeriodNumber: Int?
        package var totalBillingPeriods: Int?
        package var expiresDate: Date?
        /// Milliunits of the transaction's currency.
        package var price: Int64?

        fileprivate init(_ fields: [String: JSON]) {
            billingPeriodNumber = try? fields.int("billingPeriodNumber")
            totalBillingPeriods = try? fields.int("totalBillingPeriods")
            expiresDate = try? fields.date("commitmentExpiresDate")
            price = try? fields.int64("commitmentPrice")
        }
    }

    package init(_ payload: [String: JSON]) throws(FieldMismatch) {
        transactionId = try payload.required("transactionId")
        originalTransactionId = try payload.string("originalTransactionId")
        webOrderLineItemId = try payload.string("webOrderLineItemId")
        bundleId = try payload.required("bundleId")
        productId = try payload.required("productId")
        subscriptionGroupIdentifier = try payload.string("subscriptionGroupIdentifier")
        type = try payload.string("type")
        purchaseDate = try payload.date("purchaseDate")
        originalPurchaseDate = try payload.date("originalPurchaseDate")
        expiresDate = try payload.date("expiresDate")
        quantity = try payload.int("quantity")
        appAccountToken = try payload.uuid("appAccountToken")
        inAppOwnershipType = try payload.string("inAppOwnershipType")
        signedDate = try payload.date("signedDate")
        revocationDate = try payload.date("revocationDate")
        revocationReason = try payload.int("revocationReason")
        revocationType = try payload.string("revocationType")
        revocationPercentage = try payload.int("revocationPercentage")
        isUpgraded = try payload.bool("isUpgraded")
        offerType = try payload.int("offerType")
        offerIdentifier = try payload.string("offerIdentifier")
        offerDiscountType = try payload.string("offerDiscountType")
        environment = try payload.environment("environment")
        storefront = try payload.string("storefront")
        storefrontId = try payload.string("storefrontId")
        transactionReason = try payload.string("transactionReason")
        currency = try payload.string("currency")
        price = try payload.int64("price")
        appTransactionId = try payload.string("appTransactionId")
        // No decision depends on these new fields: a value of another type than documented is as good as absent.
        offerPeriod = try? payload.string("offerPeriod")
        billingPlanType = try? payload.string("billingPlanType")
        commitment = (try? payload.object("commitmentInfo")).map(Commitment.init)
        previousOriginalTransactionId = try? payload.string("previousOriginalTransactionId")
        advancedCommerceInfo = payload.objectText("advancedCommerceInfo")
    }
}
