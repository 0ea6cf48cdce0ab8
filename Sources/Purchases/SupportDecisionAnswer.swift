import Encoding

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

/// What stands about a purchase when a person decides who its owner is.
package struct UndecidedPurchase: Sendable, Equatable {
    /// What became of it in one receipt, which did not grant it.
    package struct Showing: Sendable, Equatable {
        package var state: PurchaseOutcome.State
        package var reason: Reason?
        /// As ``PurchaseOutcome/grantedAs``.
        package var grantedAs: String?
        /// Whether the receipt is still judged.
        package var isOpen: Bool
        /// Whether the receipt is a bare id, for which Apple is asked.
        package var isBareID: Bool
        /// Whether the receipt can be judged again; always, if it is a bare id.
        package var hasProof: Bool

        package init(
            state: PurchaseOutcome.State, reason: Reason?, grantedAs: String? = nil, isOpen: Bool = true,
            isBareID: Bool = false, hasProof: Bool = true
        ) {
            self.state = state
            self.reason = reason
            self.grantedAs = grantedAs
            self.isOpen = isOpen
            self.isBareID = isBareID
            self.hasProof = hasProof
        }

        /// Whether it waits here for what a person can decide.
        package var waitsForPerson: Bool {
            guard isOpen, state == .held, let reason else { return false }
            return Reason.givenByPerson.contains(reason) || reason == .idCollision && grantedAs != nil
        }
    }

    /// Open receipts first, and of these the ones that hold it.
    package var showings: [Showing]
    /// Whether the grant under its id is of this app. Nil: nothing is granted under its id.
    package var isGrantOfApp: Bool?
    package var isImported = false
    /// Whether Apple's newest facts leave nothing to give.
    package var isTakenBack = false
    package var isShared = false
    /// Whether users are protected and the named user is unknown or erased.
    package var isForStranger = false

    package init(showings: [Showing]) {
        self.showings = showings
    }

    /// The id by which a person gives a purchase: behind its environment, if a purchase of another environment is granted
    /// under its own (``Transaction/idBehindEnvironment``).
    ///
    /// - Parameter id: the id that Apple gave the purchase.
    package func idToGive(_ id: String) -> String {
        let known = showings.filter { showing in
            let isBehind = ["Production", "Sandbox"].contains { "\($0)/\(id)".isSameText(as: showing.grantedAs) }
            return isBehind || showing.waitsForPerson
        }
        return known.first?.grantedAs ?? id
    }

    /// The answer to a decision about it. The first reason against the decision counts, in the order of the cases.
    ///
    /// - Parameters:
    ///   - namesItem: whether the decision names one of the items that are sold as the purchase's product.
    ///   - canAsk: whether Apple can be asked about a bare id.
    package func answer(namesItem: Bool, canAsk: Bool) -> SupportDecisionAnswer {
        SupportDecisionAnswer(outcome: outcome(namesItem: namesItem, canAsk: canAsk), reason: showings.first?.reason)
    }

    private func outcome(namesItem: Bool, canAsk: Bool) -> SupportDecisionAnswer.Outcome {
        if let isGrantOfApp { return isGrantOfApp ? .granted : .collision }
        if isImported { return .imported }
        if isTakenBack { return .refunded }
        if isShared { return .shared }
        let held = showings.filter(\.waitsForPerson)
        guard !held.isEmpty else {
            guard let first = showings.first else { return .unknown }
            return !first.isOpen ? .ended : first.state == .held ? .waits : .open
        }
        let judgeable = held.filter(\.hasProof)
        if judgeable.isEmpty { return .gone }
        if !canAsk, judgeable.allSatisfy(\.isBareID) { return .unasked }
        if !namesItem, held.allSatisfy({ $0.reason == .itemUnknown }) { return .itemless }
        return isForStranger ? .stranger : .decided
    }
}
