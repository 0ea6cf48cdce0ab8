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

        fileprivate init(_ fields: AppleFields) {
            billingPeriodNumber = fields.int("billingPeriodNumber")
            totalBillingPeriods = fields.int("totalBillingPeriods")
            expiresDate = fields.date("commitmentExpiresDate")
            price = fields.int64("commitmentPrice")
        }
    }

    package init(_ payload: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(payload)
        transactionId = try fields.required("transactionId")
        originalTransactionId = fields.string("originalTransactionId")
        webOrderLineItemId = fields.string("webOrderLineItemId")
        bundleId = try fields.required("bundleId")
        productId = try fields.required("productId")
        subscriptionGroupIdentifier = fields.string("subscriptionGroupIdentifier")
        type = fields.string("type")
        purchaseDate = fields.date("purchaseDate")
        originalPurchaseDate = fields.date("originalPurchaseDate")
        expiresDate = fields.date("expiresDate")
        quantity = fields.int("quantity")
        appAccountToken = fields.uuid("appAccountToken")
        inAppOwnershipType = fields.string("inAppOwnershipType")
        signedDate = fields.date("signedDate")
        revocationDate = try fields.dateOfEnd("revocationDate")
        revocationReason = fields.int("revocationReason")
        revocationType = fields.string("revocationType")
        revocationPercentage = fields.int("revocationPercentage")
        isUpgraded = fields.bool("isUpgraded")
        offerType = fields.int("offerType")
        offerIdentifier = fields.string("offerIdentifier")
        offerDiscountType = fields.string("offerDiscountType")
        environment = fields.environment("environment")
        storefront = fields.string("storefront")
        storefrontId = fields.string("storefrontId")
        transactionReason = fields.string("transactionReason")
        currency = fields.string("currency")
        price = fields.int64("price")
        appTransactionId = fields.string("appTransactionId")
        offerPeriod = fields.string("offerPeriod")
        billingPlanType = fields.string("billingPlanType")
        commitment = fields.object("commitmentInfo").map(Commitment.init)
        previousOriginalTransactionId = fields.string("previousOriginalTransactionId")
        advancedCommerceInfo = fields.objectText("advancedCommerceInfo")
    }
}
