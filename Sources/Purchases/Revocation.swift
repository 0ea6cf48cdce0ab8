import Foundation

/// What Apple says about the end of a purchase, beside the date. Each is nil where Apple does not say it.
package struct Revocation: Sendable, Equatable {
    /// Apple's types of a refund.
    package static let full = "REFUND_FULL"
    package static let prorated = "REFUND_PRORATED"
    /// Apple's types for a purchase that another customer shared and shares no longer: no money went back.
    package static let withdrawals = ["FAMILY_REVOKE", "ASSIGNMENT_REVOKE"]
    package static let otherReason = 0
    package static let issueInApp = 1
    /// Apple's reasons that are refunds.
    package static let refundReasons = [otherReason, issueInApp]
    /// Everything, in thousandths of a percent.
    package static let whole = 100_000

    package var reason: Int?
    package var type: String?
    /// Of the price, in thousandths of a percent.
    package var percentage: Int?

    package init(reason: Int? = nil, type: String? = nil, percentage: Int? = nil) {
        self.reason = reason
        self.type = type
        self.percentage = percentage
    }

    var isWithdrawal: Bool { type.map { Self.withdrawals.contains($0) } ?? false }
    fileprivate var isInPart: Bool { type == Self.prorated && percentage.map { $0 < Self.whole } ?? false }
    /// Whether Apple gives a reason or a type that is newer than this program.
    var isUnknown: Bool {
        reason.map { !Self.refundReasons.contains($0) } ?? false
            || type.map { $0 != Self.full && $0 != Self.prorated && !Self.withdrawals.contains($0) } ?? false
    }
}

extension Transaction {
    /// What it means that Apple ended a purchase (rows 0a and 0a').
    package enum Ending: Sendable, Equatable, CaseIterable {
        /// The money went back.
        case refunded
        /// A part of the money went back. The purchase is granted together with its revocation.
        case refundedInPart
        /// Another customer shared the purchase and shares it no longer.
        case withdrawn
        /// Another product of the chain took its place: the period was paid for, and is over.
        case upgraded
        /// For a reason that this program does not know.
        case unknown
    }

    /// How long before or after a purchase's end, in seconds, another product was bought at most that took its place.
    package static let successorWithin = 60.0

    /// The transaction without its end, which Apple has undone since.
    var standing: Transaction {
        var transaction = self
        transaction.revokedAt = nil
        transaction.revocation = Revocation()
        return transaction
    }

    /// Whether nothing of the purchase is left to give.
    package var isTakenBack: Bool { ending == .refunded || ending == .withdrawn }

    /// How Apple ended the purchase. Nil: it stands.
    package var ending: Ending? {
        if revokedAt != nil, isShared || revocation.isWithdrawal { return .withdrawn }
        if isUpgraded ? !isRefundedBesideUpgrade : revokedAt != nil && hasSuccessor { return .upgraded }
        guard revokedAt != nil else { return nil }
        if revocation.isInPart { return .refundedInPart }
        return revocation.isUnknown ? .unknown : .refunded
    }

    /// Whether Apple gave money back for an upgraded period for a reason of its own. A legacy receipt has the reason 0
    /// for the upgrade itself.
    private var isRefundedBesideUpgrade: Bool {
        guard revokedAt != nil else { return false }
        if revocation.type == Revocation.full || revocation.reason == Revocation.issueInApp { return true }
        return revocation.reason == Revocation.otherReason && reason != nil
    }

    /// Whether another product of the chain may explain the purchase's end: true for an entry of a legacy receipt, and
    /// for a reason of Apple's that is newer than this program. All other signed data says itself that a purchase was
    /// upgraded.
    package var mayHaveSuccessor: Bool {
        guard isPeriod, !isUpgraded, !isShared, revokedAt != nil, !revocation.isWithdrawal else { return false }
        return revocation.isUnknown || reason == nil && revocation.type == nil
    }

    /// Whether this purchase took the other one's place: another product of its chain, bought within a minute of its
    /// end.
    package func follows(_ other: Transaction) -> Bool {
        guard let endedAt = other.revokedAt, productID != other.productID, environment == other.environment else {
            return false
        }
        return isOfChain(of: other) && abs(purchasedAt.timeIntervalSince(endedAt)) <= Self.successorWithin
    }

    private func isOfChain(of other: Transaction) -> Bool {
        [other.originalID, other.previousOriginalID].contains(originalID) || previousOriginalID == other.originalID
    }
}
