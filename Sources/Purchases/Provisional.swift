import Encoding
package import Foundation

extension AppPolicy {
    /// How much may be given on trust while Apple cannot be reached (B10): how often at most, and to whom.
    package struct Provisional: Sendable, Equatable {
        /// Provisional grants of one user per UTC day. At least 1.
        package var perUserPerDay: Int
        /// Provisional grants of all users of the app per UTC day. At least 1.
        package var perAppPerDay: Int
        /// How many purchases the user must have been granted here before, confirmed and not shared; 0 = none.
        package var purchasesMin: Int
        /// How long ago the user's first receipt must have come; 0 = just now will do.
        package var knownFor: Duration

        package init(
            perUserPerDay: Int, perAppPerDay: Int, purchasesMin: Int = 1, knownFor: Duration = .zero
        ) {
            self.perUserPerDay = perUserPerDay
            self.perAppPerDay = perAppPerDay
            self.purchasesMin = purchasesMin
            self.knownFor = knownFor
        }

        /// Whether a user with this history is given something before Apple has confirmed it.
        ///
        /// - Parameter now: the database's clock.
        package func trusts(_ history: UserHistory, at now: Date) -> Bool {
            guard !history.hasRefund, history.purchases >= purchasesMin else { return false }
            guard knownFor > .zero else { return true }
            return history.firstReceivedAt.map { now.timeIntervalSince($0) >= knownFor.inSeconds } ?? false
        }
    }

    /// Whether this purchase may be given on trust: it would be granted to its poster if Apple confirmed it, it was
    /// paid for, and the operator takes the risk for its product.
    package func mayBeProvisional(_ entry: Verdict.Entry, posterID: String?) -> Bool {
        guard provisional != nil, case .grant(_, let source) = entry.decision, source != .shared else { return false }
        if let match = entry.match, !match.userID.isSameText(as: posterID) { return false }
        return entry.transaction.environment == Transaction.production && entry.transaction.ending == nil
            && products[entry.transaction.productID]?.isProvisional == true
    }
}

/// The history of a user in one app, without sandbox purchases.
package struct UserHistory: Sendable, Equatable {
    /// How many purchases were granted and confirmed, counted no further than the policy asks.
    package var purchases: Int
    /// When the first receipt came. Nil: none is there.
    package var firstReceivedAt: Date?
    /// Whether Apple has taken back anything that this user posted.
    package var hasRefund: Bool

    package init(purchases: Int, firstReceivedAt: Date?, hasRefund: Bool) {
        self.purchases = purchases
        self.firstReceivedAt = firstReceivedAt
        self.hasRefund = hasRefund
    }
}
