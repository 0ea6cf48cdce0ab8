package import AppStore
import Encoding
import Foundation
package import Purchases

extension Transaction {
    /// Nil where Apple left out what a grant needs: the purchase date or the environment.
    ///
    /// - Parameter environment: where the data came from, for data that name no environment.
    package init?(_ signed: SignedTransaction, from environment: StoreEnvironment? = nil) {
        guard let purchasedAt = signed.purchaseDate, let environment = signed.environment ?? environment else {
            return nil
        }
        self.init(
            id: Self.storedID(signed.transactionId, in: environment.rawValue),
            originalID: signed.originalTransactionId.map { Self.storedID($0, in: environment.rawValue) },
            previousOriginalID: signed.previousOriginalTransactionId, productID: signed.productId,
            kind: signed.type.flatMap(Kind.init(rawValue:)), environment: environment.rawValue,
            quantity: signed.quantity ?? 1, purchasedAt: purchasedAt, expiresAt: signed.expiresDate,
            revokedAt: signed.revocationDate,
            revocation: Revocation(
                reason: signed.revocationReason, type: signed.revocationType, percentage: signed.revocationPercentage),
            isUpgraded: signed.isUpgraded ?? false, webOrderLineItemID: signed.webOrderLineItemId,
            appAccountToken: signed.appAccountToken, ownership: signed.inAppOwnershipType,
            customerID: signed.appTransactionId, signedAt: signed.signedDate,
            reason: signed.transactionReason, offerType: signed.offerType, showsToken: true,
            facts: Facts(
                price: signed.price, currency: signed.currency, storefront: signed.storefront,
                reason: signed.transactionReason, offerType: signed.offerType, offerID: signed.offerIdentifier,
                offerDiscountType: signed.offerDiscountType, offerPeriod: signed.offerPeriod,
                billingPlan: signed.billingPlanType, commitment: signed.commitment, isUpgraded: signed.isUpgraded,
                revocationReason: signed.revocationReason, revocationType: signed.revocationType,
                revocationPercentage: signed.revocationPercentage,
                previousOriginalID: signed.previousOriginalTransactionId,
                isAdvancedCommerce: signed.advancedCommerceInfo == nil ? nil : true,
                webOrderLineItemID: signed.webOrderLineItemId, group: signed.subscriptionGroupIdentifier,
                additionalReason: signed.additionalTransactionReason,
                revokedSeats: signed.multiSeatInfo?.revokedSeatQuantity, bundle: signed.bundle
            ).json)
    }

    /// Nil where Apple left out the purchase date.
    package init?(_ entry: ReceiptEntry, in receipt: VerifiedReceipt) {
        self.init(entry, environment: receipt.environment, signedAt: receipt.requestDate)
    }

    /// Nil where Apple left out the purchase date, and for a receipt of a type that nobody serves.
    package init?(_ entry: ReceiptEntry, in receipt: AppReceipt) {
        guard let environment = receipt.environment else { return nil }
        self.init(entry, environment: environment, signedAt: receipt.creationDate)
    }

    private init?(_ entry: ReceiptEntry, environment: StoreEnvironment, signedAt: Date?) {
        guard let purchasedAt = entry.purchaseDate else { return nil }
        self.init(
            id: Self.storedID(entry.transactionId, in: environment.rawValue),
            originalID: entry.originalTransactionId.map { Self.storedID($0, in: environment.rawValue) },
            productID: entry.productId,
            kind: entry.isAutoRenewable ? .autoRenewable : nil, environment: environment.rawValue,
            quantity: entry.quantity ?? 1, purchasedAt: purchasedAt, expiresAt: entry.expiresDate,
            revokedAt: entry.cancellationDate, revocation: Revocation(reason: entry.cancellationReason),
            isUpgraded: entry.isUpgraded ?? false, webOrderLineItemID: entry.webOrderLineItemId,
            appAccountToken: entry.appAccountToken, ownership: entry.ownershipType, signedAt: signedAt,
            offerType: entry.offerType,
            facts: Facts(
                offerType: entry.offerType, offerID: entry.offerCodeRefName ?? entry.promotionalOfferId,
                isUpgraded: entry.isUpgraded, revocationReason: entry.cancellationReason,
                webOrderLineItemID: entry.webOrderLineItemId, group: entry.subscriptionGroupIdentifier
            ).json)
    }
}

extension ReceiptEntry {
    /// The type of the offer that the purchase was made with, as signed data says it. A receipt names an offer code or
    /// a promotional offer by its id; a win-back offer it does not show.
    fileprivate var offerType: Int? {
        if offerCodeRefName?.isEmpty == false { return Transaction.offerCode }
        return promotionalOfferId?.isEmpty == false ? Transaction.promotionalOffer : nil
    }
}

/// Facts from Apple that decide nothing when a receipt is judged; kept for support, statistics and the follow-up of the
/// chain.
private struct Facts {
    var price: Int64?
    var currency: String?
    var storefront: String?
    var reason: String?
    var offerType: Int?
    var offerID: String?
    var offerDiscountType: String?
    var offerPeriod: String?
    var billingPlan: String?
    var commitment: SignedTransaction.Commitment?
    var isUpgraded: Bool?
    var revocationReason: Int?
    var revocationType: String?
    /// Milliunits: 100000 is everything.
    var revocationPercentage: Int?
    /// The chain's id before a migration to Advanced Commerce, or before a change between a subscription and a bundle.
    var previousOriginalID: String?
    /// Whether it was bought through the Advanced Commerce API; nil: it was not.
    var isAdvancedCommerce: Bool?
    var webOrderLineItemID: String?
    /// Of a subscription's products.
    var group: String?
    var additionalReason: String?
    var revokedSeats: Int?
    var bundle: SignedTransaction.Bundle?

    /// Written without `JSONEncoder`: each transaction needs one such text, and this costs a tenth.
    var json: String {
        let members: [(String, JSONValue?)] = [
            ("price", price.map { .number(String($0)) }), ("currency", currency.map(JSONValue.string)),
            ("storefront", storefront.map(JSONValue.string)), ("reason", reason.map(JSONValue.string)),
            ("offerType", offerType.map(JSONValue.integer)), ("offerIdentifier", offerID.map(JSONValue.string)),
            ("offerDiscountType", offerDiscountType.map(JSONValue.string)),
            ("offerPeriod", offerPeriod.map(JSONValue.string)), ("billingPlanType", billingPlan.map(JSONValue.string)),
            ("billingPeriodNumber", (commitment?.billingPeriodNumber).map(JSONValue.integer)),
            ("totalBillingPeriods", (commitment?.totalBillingPeriods).map(JSONValue.integer)),
            (
                "commitmentExpiresDate",
                (commitment?.expiresDate).map { .integer(Int(($0.timeIntervalSince1970 * 1000).rounded())) }
            ),
            ("isUpgraded", isUpgraded.map(JSONValue.bool)),
            ("revocationReason", revocationReason.map(JSONValue.integer)),
            ("revocationType", revocationType.map(JSONValue.string)),
            ("revocationPercentage", revocationPercentage.map(JSONValue.integer)),
            ("previousOriginalTransactionId", previousOriginalID.map(JSONValue.string)),
            ("isAdvancedCommerce", isAdvancedCommerce.map(JSONValue.bool)),
            ("webOrderLineItemId", webOrderLineItemID.map(JSONValue.string)),
            ("subscriptionGroupIdentifier", group.map(JSONValue.string)),
            ("additionalTransactionReason", additionalReason.map(JSONValue.string)),
            ("revokedSeatQuantity", revokedSeats.map(JSONValue.integer)),
            ("bundleProductId", (bundle?.productId).map(JSONValue.string)),
            ("bundleTransactionId", (bundle?.transactionId).map(JSONValue.string)),
            ("bundleOriginalTransactionId", (bundle?.originalTransactionId).map(JSONValue.string)),
            (
                "bundleSubscriptionGroupIdentifier",
                (bundle?.subscriptionGroupIdentifier).map(JSONValue.string)
            ),
        ]
        return JSONValue.object(members.compactMap { name, value in value.map { .init(name, $0) } }).text
    }
}
