import Foundation

/// Where a purchase was made, as Apple writes it.
package enum StoreEnvironment: String, Codable, Sendable, CaseIterable {
    case production = "Production"
    case sandbox = "Sandbox"
}

/// The four kinds of product, as Apple writes them in `type`.
package enum ProductType: String, Codable, Sendable, CaseIterable {
    case consumable = "Consumable"
    case nonConsumable = "Non-Consumable"
    case autoRenewable = "Auto-Renewable Subscription"
    case nonRenewing = "Non-Renewing Subscription"
}

/// One purchase that the simulated store sold: the fields of JWSTransactionDecodedPayload (apple-facts 2.1).
///
/// Times are UNIX milliseconds. `app` is the bundle id.
package struct Purchase: Codable, Sendable, Equatable {
    package let transactionId: String
    package let originalTransactionId: String
    package let app: String
    package let productId: String
    package let type: ProductType
    package let quantity: Int
    package let environment: StoreEnvironment
    /// Lower case, as the App Store returns it.
    package let appAccountToken: String?
    package let purchaseDate: Int64
    package let originalPurchaseDate: Int64
    package let expiresDate: Int64?
    package let webOrderLineItemId: String?
    package let subscriptionGroupIdentifier: String?
    package let inAppOwnershipType: String
    package let transactionReason: String
    package let storefront: String
    package let storefrontId: String
    package let currency: String
    /// Thousandths of the currency, quantity included.
    package let price: Int64
    package var isUpgraded: Bool?
    package var revocationDate: Int64?
    /// 1: an issue in the app; 0: another reason.
    package var revocationReason: Int?
    /// `REFUND_FULL`, `REFUND_PRORATED`, `FAMILY_REVOKE`, `ASSIGNMENT_REVOKE`.
    package var revocationType: String?
    /// Thousandths of a percent.
    package var revocationPercentage: Int?

    /// Whether Apple took the purchase back.
    package var revoked: Bool { revocationDate != nil }

    /// The JSON that is signed. `bundleId` replaces the app's in forgeries.
    func payload(signedDate: Int64, bundleId: String? = nil) -> [UInt8] {
        JSONWriter.object(capacity: 1024) { json in
            json.field("transactionId", transactionId)
            json.field("originalTransactionId", originalTransactionId)
            json.field("webOrderLineItemId", ifPresent: webOrderLineItemId)
            json.field("bundleId", bundleId ?? app)
            json.field("productId", productId)
            json.field("subscriptionGroupIdentifier", ifPresent: subscriptionGroupIdentifier)
            json.field("purchaseDate", purchaseDate)
            json.field("originalPurchaseDate", originalPurchaseDate)
            json.field("expiresDate", ifPresent: expiresDate)
            json.field("quantity", quantity)
            json.field("type", type.rawValue)
            json.field("appAccountToken", ifPresent: appAccountToken)
            json.field("inAppOwnershipType", inAppOwnershipType)
            json.field("signedDate", signedDate)
            json.field("revocationReason", ifPresent: revocationReason)
            json.field("revocationDate", ifPresent: revocationDate)
            json.field("revocationType", ifPresent: revocationType)
            json.field("revocationPercentage", ifPresent: revocationPercentage)
            if let isUpgraded { json.field("isUpgraded", isUpgraded) }
            json.field("environment", environment.rawValue)
            json.field("transactionReason", transactionReason)
            json.field("storefront", storefront)
            json.field("storefrontId", storefrontId)
            json.field("price", price)
            json.field("currency", currency)
        }
    }
}

/// A purchase together with the proofs a client would hold.
package struct Sale: Sendable {
    package let purchase: Purchase
    /// JWS compact serialisation, as StoreKit 2 gives it to the app.
    package let signedTransaction: String
    /// Base64 of the legacy app receipt with this purchase in it.
    package let receipt: String
}
