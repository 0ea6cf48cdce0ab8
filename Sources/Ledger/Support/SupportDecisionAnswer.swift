package import Purchases

/// The answer to a support decision about the owner of a purchase (`makegood support give`).
package struct SupportDecisionAnswer: Sendable, Equatable {
    package enum Outcome: String, Sendable, CaseIterable {
        /// The decision is stored, and a worker grants the purchase by it.
        case decided
        case granted
        /// A purchase of another app in the same environment has this id and is granted.
        case collision
        case imported
        case refunded
        case shared
        /// Held for a reason that no support decision removes.
        case waits
        /// Not verified yet.
        case open
        /// Every receipt that showed it has ended without granting it.
        case ended
        case unknown
        /// Its proof is not kept any more.
        case gone
        /// Only bare ids show it, no proof signed by Apple, and Apple cannot be asked.
        case unasked
        /// Its product is sold as several items, and the decision names none.
        case itemless
        /// Users are protected, and this user has never been seen here or was erased.
        case stranger
    }

    package let outcome: Outcome
    /// Why the purchase is held or rejected.
    package let reason: Reason?

    package init(outcome: Outcome, reason: Reason?) {
        self.outcome = outcome
        self.reason = reason
    }

    package var isDecided: Bool { outcome == .decided }
}
