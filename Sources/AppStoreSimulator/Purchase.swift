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

/// One purchase that the simulated store sold: the fields of JWSTransactionDecodedPayload (AppleFacts 2.1).
///
/// Times are UNIX milliseconds. `app` is the bundle id.
package struct Purchase: Codable, Sendable, Equatable {
    package let transactionId: String
    package let originalTransactionId: String
    package var previousOriginalTransactionId: String?
    package let app: String
    package let productId: String
    package let type: ProductType
    package let quantity: Int
    package let environment: StoreEnvironment
    /// Lower case, as the App Store returns it.
    package var appAccountToken: String?
    package let purchaseDate: Int64
    package let originalPurchaseDate: Int64
    package var expiresDate: Int64?
    package let webOrderLineItemId: String?
    package let subscriptionGroupIdentifier: String?
    package let inAppOwnershipType: String
    package let transactionReason: String
    package let storefront: String
    package let storefrontId: String
    package let currency: String
    /// Thousandths of the currency, quantity included.
    package let price: Int64
    /// 1 introductory, 2 promotional, 3 offer code, 4 win-back.
    package let offerType: Int?
    package let offerIdentifier: String?
    package let offerDiscountType: String?
    /// ISO 8601 duration.
    package let offerPeriod: String?
    /// The order that was chosen for it; nil: the one made from the transaction id, see ``order``.
    package let orderId: String?
    /// The purchase of another member that this one shares; only `FAMILY_SHARED`.
    package let familyOf: String?
    package var isUpgraded: Bool?
    package var revocationDate: Int64?
    /// 1: an issue in the app; 0: another reason; 2: moved into a bundle or out of it (Apple's number is not known).
    package var revocationReason: Int?
    /// `REFUND_FULL`, `REFUND_PRORATED`, `FAMILY_REVOKE`, `ASSIGNMENT_REVOKE`.
    package var revocationType: String?
    /// Thousandths of a percent.
    package var revocationPercentage: Int?

    /// The same for all purchases of one Apple account in one app; nil until the sale has it.
    package var appTransactionId: String?
    /// The Apple account, if it is not ``account``'s default.
    package var customer: String?
    /// The App Store Server API does not know the purchase before this time.
    package var visibleAt: Int64?
    /// When the app's backend finished the transaction.
    package var finishedAt: Int64?
    /// `SEAT_ADDITION` on every transaction of a period to which seats were added.
    package var additionalTransactionReason: String?
    /// True: `quantity` counts seats, and `price` is the price of each.
    package var isMultiSeat: Bool?
    /// When another product of the group replaced this one; verifyReceipt shows it as the cancellation date.
    package var upgradedAt: Int64?
    /// Seats that were refunded; the purchase itself stands.
    package var revokedSeatQuantity: Int?

    /// Whether Apple took the purchase back.
    package var revoked: Bool { revocationDate != nil }

    /// Name of the Apple account: the sale's `customer`, else the account token, else one account for each purchase.
    package var account: String { customer ?? appAccountToken ?? originalTransactionId }

    /// The order id on the mail to the customer; a family member gets none.
    package var order: String? { orderId ?? (familyOf == nil ? OrderId.text(transactionId) : nil) }

    var key: Account { Account(app: app, environment: environment, customer: account) }

    /// Whether Apple shows both purchases the same: only this store knows the difference.
    func isSameToApple(as other: Purchase) -> Bool {
        var mine = self
        mine.finishedAt = other.finishedAt
        mine.visibleAt = other.visibleAt
        mine.customer = other.customer
        return mine == other
    }

    mutating func clearRevocation() {
        revocationDate = nil
        revocationReason = nil
        revocationType = nil
        revocationPercentage = nil
    }

    /// Whether the App Store Server API knows the purchase by now.
    func isVisible(now: Int64) -> Bool { visibleAt ?? 0 <= now }

    /// Writes all fields, under the names that the ledger reads back. By hand, since `JSONEncoder` costs a sale more
    /// than its signature.
    func writeAll(_ json: inout JSONWriter) {
        json.field("transactionId", transactionId)
        json.field("originalTransactionId", originalTransactionId)
        json.field("previousOriginalTransactionId", ifPresent: previousOriginalTransactionId)
        json.field("app", app)
        json.field("productId", productId)
        json.field("type", type.rawValue)
        json.field("quantity", quantity)
        json.field("environment", environment.rawValue)
        json.field("appAccountToken", ifPresent: appAccountToken)
        json.field("purchaseDate", purchaseDate)
        json.field("originalPurchaseDate", originalPurchaseDate)
        json.field("expiresDate", ifPresent: expiresDate)
        json.field("webOrderLineItemId", ifPresent: webOrderLineItemId)
        json.field("subscriptionGroupIdentifier", ifPresent: subscriptionGroupIdentifier)
        json.field("inAppOwnershipType", inAppOwnershipType)
        json.field("transactionReason", transactionReason)
        json.field("storefront", storefront)
        json.field("storefrontId", storefrontId)
        json.field("currency", currency)
        json.field("price", price)
        json.field("offerType", ifPresent: offerType)
        json.field("offerIdentifier", ifPresent: offerIdentifier)
        json.field("offerDiscountType", ifPresent: offerDiscountType)
        json.field("offerPeriod", ifPresent: offerPeriod)
        json.field("orderId", ifPresent: orderId)
        json.field("familyOf", ifPresent: familyOf)
        if let isUpgraded { json.field("isUpgraded", isUpgraded) }
        json.field("revocationDate", ifPresent: revocationDate)
        json.field("revocationReason", ifPresent: revocationReason)
        json.field("revocationType", ifPresent: revocationType)
        json.field("revocationPercentage", ifPresent: revocationPercentage)
        json.field("appTransactionId", ifPresent: appTransactionId)
        json.field("customer", ifPresent: customer)
        json.field("visibleAt", ifPresent: visibleAt)
        json.field("finishedAt", ifPresent: finishedAt)
        json.field("additionalTransactionReason", ifPresent: additionalTransactionReason)
        if let isMultiSeat { json.field("isMultiSeat", isMultiSeat) }
        json.field("upgradedAt", ifPresent: upgradedAt)
        json.field("revokedSeatQuantity", ifPresent: revokedSeatQuantity)
    }

    /// The JSON that is signed. `bundleId` replaces the app's in forgeries.
    func payload(signedDate: Int64, bundleId: String? = nil) -> [UInt8] {
        JSONWriter.object(capacity: 1024) { json in
            json.field("transactionId", transactionId)
            json.field("originalTransactionId", originalTransactionId)
            json.field("previousOriginalTransactionId", ifPresent: previousOriginalTransactionId)
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
            json.field("offerType", ifPresent: offerType)
            json.field("offerIdentifier", ifPresent: offerIdentifier)
            json.field("offerDiscountType", ifPresent: offerDiscountType)
            json.field("offerPeriod", ifPresent: offerPeriod)
            json.field("environment", environment.rawValue)
            json.field("transactionReason", transactionReason)
            json.field("storefront", storefront)
            json.field("storefrontId", storefrontId)
            json.field("price", price)
            json.field("currency", currency)
            json.field("appTransactionId", ifPresent: appTransactionId)
            json.field("additionalTransactionReason", ifPresent: additionalTransactionReason)
            guard isMultiSeat == true else { return }
            json.field(
                "multiSeatInfo",
                object: { info in
                    info.field("invitationManagement", "APPLE")
                    info.field("priceTiers", tier: price, quantity)
                    info.field("revokedSeatQuantity", ifPresent: revokedSeatQuantity)
                })
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
    /// What the family members got, in the order of the request's `family`.
    package var family: [Sale] = []
}

/// An order id in the shape of Apple's, made from a transaction id and back: most orders need no index.
enum OrderId {
    /// Crockford's digits: no I, L, O, U.
    private static let digits = Array("0123456789ABCDEFGHJKMNPQRSTVWXYZ".utf8)

    static func isWellFormed(_ text: String) -> Bool {
        (1...64).contains(text.utf8.count)
            && text.utf8.allSatisfy { (0x30...0x39).contains($0) || (0x41...0x5A).contains($0) }
    }

    /// `M` and the id as a number to the base 32; nil for an id that is no number of 64 bits.
    static func text(_ transactionId: String) -> String? {
        guard var rest = UInt64(transactionId) else { return nil }
        var text: [UInt8] = []
        repeat {
            text.append(digits[Int(rest % 32)])
            rest /= 32
        } while rest > 0
        return "M" + String(decoding: text.reversed(), as: UTF8.self)
    }

    static func transactionId(_ text: String) -> String? {
        guard text.utf8.first == UInt8(ascii: "M"), (2...13).contains(text.utf8.count) else { return nil }
        var number: UInt64 = 0
        for byte in text.utf8.dropFirst() {
            guard let digit = digits.firstIndex(of: byte) else { return nil }
            number = number << 5 | UInt64(digit)
        }
        return String(number)
    }
}
