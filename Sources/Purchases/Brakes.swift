/// What was granted already, where a limit of the policy asks.
package struct BrakeCounts: Sendable, Equatable {
    /// Today's grants of this user, sandbox apart, by the database's clock in UTC.
    package var ofUserToday: Int
    package var sandboxOfUserToday: Int
    package var sandboxOfAppToday: Int
    /// Other users that this Apple customer's purchases went to.
    package var otherUsersOfCustomer: Int

    package init(ofUserToday: Int, sandboxOfUserToday: Int, sandboxOfAppToday: Int, otherUsersOfCustomer: Int) {
        self.ofUserToday = ofUserToday
        self.sandboxOfUserToday = sandboxOfUserToday
        self.sandboxOfAppToday = sandboxOfAppToday
        self.otherUsersOfCustomer = otherUsersOfCustomer
    }
}

extension AppPolicy {
    /// Whether a decision has to be held against what was granted before: of row 10, and of a sandbox purchase whoever
    /// its owner is.
    ///
    /// - Parameter userID: the owner.
    package func needsBrakes(_ entry: Verdict.Entry, userID: String?) -> Bool {
        guard case .grant(_, let source) = entry.decision, source != .shared, let userID else { return false }
        if entry.transaction.environment != Transaction.production {
            return sandboxPurchases == .testers && !testers.contains(userID)
        }
        guard source == .poster else { return false }
        return makeUpPerUserPerDay > 0 || makeUpUsersPerCustomer > 0 && entry.transaction.customerID != nil
    }

    /// The limits on what a post alone is granted for. Beyond them a person looks; nothing is dropped.
    /// Limits are brakes, not invariants: two purchases judged at the same moment may both pass.
    package func applyBrakes(_ entry: Verdict.Entry, counts: BrakeCounts) -> Decision {
        if entry.transaction.environment != Transaction.production {
            let isWithin =
                counts.sandboxOfUserToday < sandboxPerUserPerDay && counts.sandboxOfAppToday < sandboxPerAppPerDay
            return isWithin ? entry.decision : .held(.sandbox)
        }
        if makeUpPerUserPerDay > 0, counts.ofUserToday >= makeUpPerUserPerDay { return .held(.review) }
        if makeUpUsersPerCustomer > 0, counts.otherUsersOfCustomer >= makeUpUsersPerCustomer { return .held(.review) }
        return entry.decision
    }
}
