package import Purchases

/// What became of a person's word on whose a purchase is (`makegood support give`).
package struct SupportDecisionAnswer: Sendable, Equatable {
    package enum Outcome: String, Sendable, CaseIterable {
        /// It is written down, and a worker gives it.
        case decided
        case granted
        /// Another app's, or another environment's, has its id.
        case collision
        case imported
        case refunded
        case shared
        /// Held for what no person's word replaces.
        case waits
        /// Not verified yet.
        case open
        /// Everything that showed it has ended without giving it.
        case ended
        case unknown
        /// Its proof is not kept any more.
        case gone
        /// Nobody has shown Apple's own proof, and Apple cannot be asked.
        case unasked
        /// Sold as several items, and none was named.
        case itemless
        /// Users are protected, and this one has never been seen here or was erased.
        case stranger
    }

    package let outcome: Outcome
    /// What it is held or rejected for.
    package let reason: Reason?

    package init(outcome: Outcome, reason: Reason?) {
        self.outcome = outcome
        self.reason = reason
    }

    package var isDecided: Bool { outcome == .decided }
}
