package import AppStore
import Foundation
package import Purchases

extension Transaction {
    /// Nil where Apple left out what a grant needs: the purchase date or the environment.
    package init?(_ signed: SignedTransaction) {
        guard let purchasedAt = signed.purchaseDate, let environment = signed.environment else { return nil }
        self.init(
            id: signed.transactionId, originalID: signed.originalTransactionId, productID: signed.productId,
            kind: signed.type.flatMap(Kind.init(rawValue:)), environment: environment.rawValue,
            quantity: signed.quantity ?? 1, purchasedAt: purchasedAt, expiresAt: signed.expiresDate,
            revokedAt: signed.revocationDate, webOrderLineItemID: signed.webOrderLineItemId,
            appAccountToken: signed.appAccountToken, ownership: signed.inAppOwnershipType,
            customerID: signed.appTransactionId, signedAt: signed.signedDate,
            facts: Facts(
                price: signed.price, currency: signed.currency, storefront: signed.storefront,
                reason: signed.transactionReason, offerType: signed.offerType, isUpgraded: signed.isUpgraded,
                revocationReason: signed.revocationReason
            ).json)
    }

    /// Nil where Apple left out the purchase date.
    package init?(_ entry: ReceiptEntry, in receipt: VerifiedReceipt) {
        guard let purchasedAt = entry.purchaseDate else { return nil }
        self.init(
            id: entry.transactionId, originalID: entry.originalTransactionId, productID: entry.productId,
            kind: entry.isAutoRenewable ? .autoRenewable : nil, environment: receipt.environment.rawValue,
            quantity: entry.quantity ?? 1, purchasedAt: purchasedAt, expiresAt: entry.expiresDate,
            revokedAt: entry.cancellationDate, webOrderLineItemID: entry.webOrderLineItemId,
            appAccountToken: entry.appAccountToken, ownership: entry.ownershipType, signedAt: receipt.requestDate,
            facts: Facts(isUpgraded: entry.isUpgraded, revocationReason: entry.cancellationReason).json)
    }
}

/// What Apple says beside what decides; kept for support and statistics.
private struct Facts: Encodable {
    var price: Int64?
    var currency: String?
    var storefront: String?
    var reason: String?
    var offerType: Int?
    var isUpgraded: Bool?
    var revocationReason: Int?

    var json: String {
        // Integers, booleans and strings always encode.
        guard let data = try? JSONEncoder().encode(self) else { return "{}" }
        return String(decoding: data, as: UTF8.self)
    }
}
