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
    /// Of an auto-renewable the number of seats, if it was bought for several.
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
    /// Milliunits of `currency`, already multiplied by `quantity`; of several seats the average price of one.
    package var price: Int64?
    /// Names the download of the app by one Apple Account.
    package var appTransactionId: String?
    /// `BILLED_UPFRONT`, `MONTHLY`.
    package var billingPlanType: String?
    /// Of a monthly plan with a commitment.
    package var commitment: Commitment?
    /// The original id from before a migration to Advanced Commerce, or from before a change between a subscription and
    /// a bundle.
    package var previousOriginalTransactionId: String?
    /// Of a purchase of several seats.
    package var multiSeatInfo: MultiSeatInfo?
    /// `SEAT_ADDITION`: seats were added inside of a period, so several transactions are one period.
    package var additionalTransactionReason: String?
    /// Of a subscription inside of a bundle.
    package var bundle: Bundle?
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

    /// The seats of a purchase.
    package struct MultiSeatInfo: Sendable, Hashable {
        /// `APPLE`, `DEVELOPER`: who invites the members of the group.
        package var invitationManagement: String?
        /// Seats whose price went back. The purchase itself stands.
        package var revokedSeatQuantity: Int?
        /// In no order. Nil also where the list cannot be read.
        package var priceTiers: [SeatPrice]?

        fileprivate init(_ fields: AppleFields) {
            invitationManagement = fields.string("invitationManagement")
            revokedSeatQuantity = fields.int("revokedSeatQuantity")
            priceTiers = (try? fields.list("priceTiers"))?.map(SeatPrice.init)
        }
    }

    /// The bundle that a subscription belongs to. The server's names of these fields follow StoreKit's.
    package struct Bundle: Sendable, Hashable {
        package var productId: String?
        package var transactionId: String?
        package var originalTransactionId: String?
        package var subscriptionGroupIdentifier: String?

        /// Nil where Apple names no bundle.
        init?(_ fields: AppleFields) {
            productId = fields.string("bundleProductId") ?? fields.string("bundleProductID")
            transactionId = fields.string("bundleTransactionId") ?? fields.string("bundleTransactionID")
            originalTransactionId =
                fields.string("bundleOriginalTransactionId") ?? fields.string("bundleOriginalTransactionID")
            subscriptionGroupIdentifier =
                fields.string("bundleSubscriptionGroupIdentifier") ?? fields.string("bundleSubscriptionGroupID")
                ?? fields.string("bundleSubscriptionGroupId")
            let all = [productId, transactionId, originalTransactionId, subscriptionGroupIdentifier]
            guard all.contains(where: { $0 != nil }) else { return nil }
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
        multiSeatInfo = fields.object("multiSeatInfo").map(MultiSeatInfo.init)
        // StoreKit has it inside of `multiSeatInfo`; the server's place is not documented.
        if multiSeatInfo?.invitationManagement == nil {
            multiSeatInfo?.invitationManagement = fields.string("invitationManagement")
        }
        additionalTransactionReason = fields.string("additionalTransactionReason")
        bundle = Bundle(fields)
    }
}

/// The price of one seat, and the number of seats with this price.
package struct SeatPrice: Sendable, Hashable {
    /// Milliunits of the transaction's currency.
    package var price: Int64?
    package var quantity: Int?

    init(_ fields: AppleFields) {
        price = fields.int64("price")
        quantity = fields.int("quantity")
    }
}
