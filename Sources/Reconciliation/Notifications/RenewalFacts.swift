import AppStore
import Foundation
import Purchases

extension Renewal {
    /// Nil where Apple left out when it signed the facts, or where they count: without the date nothing says which
    /// facts are newer.
    ///
    /// - Parameter environment: where the data came from, for data that name no environment.
    init?(_ signed: SignedRenewalInfo, from environment: StoreEnvironment?) {
        guard let signedAt = signed.signedDate, let environment = signed.environment ?? environment else { return nil }
        self.init(
            originalID: Transaction.storedID(signed.originalTransactionId, in: environment.rawValue),
            environment: environment.rawValue, signedAt: signedAt, productID: signed.productId,
            nextProductID: signed.autoRenewProductId, renewsAutomatically: signed.autoRenewStatus.map { $0 == 1 },
            expirationIntent: signed.expirationIntent, isInBillingRetry: signed.isInBillingRetryPeriod ?? false,
            graceUntil: signed.gracePeriodExpiresDate, renewsAt: signed.renewalDate,
            priceConsent: signed.priceIncreaseStatus.flatMap(PriceConsent.init(status:)),
            offerType: signed.offerType, offerIdentifier: signed.offerIdentifier, quantity: signed.renewalQuantity,
            commitment: signed.commitment.map {
                Commitment(renewsAutomatically: $0.autoRenewStatus.map { $0 == 1 }, renewsAt: $0.renewalDate)
            })
    }
}

extension Renewal {
    /// verifyReceipt's word on a renewal, of the moment of the answer. Nil where the answer names no moment.
    init?(_ pending: PendingRenewal, in receipt: VerifiedReceipt) {
        guard let signedAt = receipt.requestDate else { return nil }
        let environment = receipt.environment.rawValue
        let isCode = pending.offerCodeRefName != nil
        self.init(
            originalID: Transaction.storedID(pending.originalTransactionId, in: environment), environment: environment,
            signedAt: signedAt, productID: pending.productId, nextProductID: pending.autoRenewProductId,
            renewsAutomatically: pending.autoRenewStatus.map { $0 == 1 }, expirationIntent: pending.expirationIntent,
            isInBillingRetry: pending.isInBillingRetryPeriod ?? false, graceUntil: pending.gracePeriodExpiresDate,
            priceConsent: pending.priceConsentStatus.flatMap(PriceConsent.init(status:)),
            offerType: isCode
                ? Transaction.offerCode : pending.promotionalOfferId.map { _ in Transaction.promotionalOffer },
            offerIdentifier: pending.offerCodeRefName ?? pending.promotionalOfferId)
    }
}

extension Renewal.PriceConsent {
    /// Nil for a number that is newer than this program.
    fileprivate init?(status: Int) {
        switch status {
        case 0: self = .pending
        case 1: self = .accepted
        default: return nil
        }
    }
}
