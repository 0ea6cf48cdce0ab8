import Encoding
package import Foundation

/// What became of one purchase of a receipt, or of the receipt where nothing is known of its purchases.
package struct PurchaseOutcome: Sendable, Equatable {
    package enum State: String, Sendable, CaseIterable {
        /// Nothing is written: whose it is must be asked again.
        case again
        case open, held, granted
        case alreadyGranted = "already_granted"
        case rejected
    }

    /// What the verdict changes of a grant on trust.
    package enum TrustMark: String, Sendable { case given, confirmed, revoked }

    package var state: State
    package var reason: String?
    package var binding: BindingSource?
    package var reasons: [String]?
    /// The id under which it is granted, or, of a collision with another environment, may be given by a person, where
    /// that is another one.
    package var grantedAs: String?
    /// Until when the poster keeps a copy: another user has it by less than proof.
    package var keepsCopyUntil: Date?
    package var mark: TrustMark?
    /// The user who has it although the purchase's own token names another one.
    package var disputedHolder: String?
    /// The other user for whom less than proof speaks.
    package var rival: String?
    /// The owner who is told that the purchase is held.
    package var heldOwner: String?

    /// Whether it is granted and Apple has not confirmed it.
    package var isUnconfirmed: Bool { reason == "unconfirmed" }

    /// By how much it decides its receipt: the smallest counts.
    func rank(asked: Decision) -> Int {
        if state == .again { return 0 }
        if state == .open || mark == .given { return 1 }
        if isUnconfirmed { return asked.isProvisional ? 1 : 2 }
        switch state {
        case .held: return 2
        case .granted: return 3
        case .alreadyGranted: return 4
        case .again, .open, .rejected: return 5
        }
    }
}

/// What becomes of the transfer of a purchase that the poster claims and another user has, by the app's policy.
package enum TransferOutcome: Sendable, Equatable {
    /// It moves to this poster.
    case moves
    /// Another claim of the batch moves it.
    case losesToAnother
    /// A person decides.
    case held
    /// The chain has moved as often as it may.
    case limited
}

extension VerdictRow {
    /// Whether the poster claims what another user has, and what the policy says to it; nil: it stays where it is.
    ///
    /// - Parameter claimedAt: when the receipt was posted so that a claim in it counts.
    package func transfer(by standing: Standing, decision: Decision, claimedAt: Date) -> AppPolicy.TransferDecision? {
        guard let transfer = entry?.transfer, let chain = standing.chain, let holding = standing.holding,
            let transaction,
            holding.receiptID != nil, holding.appID == verdict.appID, holding.environment == transaction.environment
        else { return nil }
        switch decision {
        case .grant, .held: break
        case .provisional, .rejected, .open: return nil
        }
        guard let poster, !chain.holderID.isSameText(as: poster), chain.movedAt.map({ claimedAt > $0 }) ?? true,
            !chain.hasLaterGrant
        else { return nil }
        if transfer == .hold { return .hold }
        return chain.movesOfDay < AppPolicy.movesPerDayMax && chain.movesOfMonth < AppPolicy.movesPerMonthMax
            ? .move : .limit
    }

    /// What became of it.
    ///
    /// - Parameters:
    ///   - decision: as carried out (``decision(behind:)``).
    ///   - isWon: whether its grant was inserted for this receipt.
    ///   - transfer: what becomes of the poster's claim on it; nil: the poster makes none, or the purchase stays.
    ///   - now: by the database's clock.
    package func outcome(
        _ decision: Decision, behind gate: Gate, isWon: Bool, standing: Standing, transfer: TransferOutcome?, now: Date,
        disputedFor: TimeInterval
    ) -> PurchaseOutcome {
        // Judged anew, by the facts that say so (`Evidence.standsAgain`).
        if gate.standsAgain { return PurchaseOutcome(state: .again) }
        let had = isWon ? nil : standing.holding
        let moved = isWon ? nil : standing.moved
        let holder = moved?.userID ?? had?.userID
        let isOwnGrant =
            isWon || had != nil && had?.transactionID == transactionID && had?.receiptID == verdict.receiptID
        let collides = had.map { self.collides(with: $0) } ?? false
        let isOther = had.map { isAnotherConsumable(than: $0) } ?? false
        let isApart = isOther && !collides && (decision.gives || decision.reason == .review)
        let state = state(
            decision, isWon: isWon, had: had, holder: holder, collides: collides, isOther: isOther,
            isOwnGrant: isOwnGrant, isOutdated: standing.isOutdated, transfer: transfer)
        var outcome = PurchaseOutcome(state: state)
        let isOnTrust = isOwnGrant && !isWon && standing.isOnTrust
        outcome.mark = mark(decision, state: state, isWon: isWon, isOnTrust: isOnTrust)
        let isUnconfirmed = state == .granted && (outcome.mark == .given || isOnTrust && outcome.mark == nil)

        let proof = if let moved { moved.source } else if let had { had.source } else { binding }
        // The app that has lost its user keeps its copy too: its user may be another one than the holder.
        if state == .granted || state == .alreadyGranted, hasPossession, transfer != .moves,
            poster != nil || verdict.claim.isOfPlaceholder,
            !(holder ?? owner).isSameText(as: poster), proof?.isProof != true
        {
            let until = now + disputedFor
            outcome.keepsCopyUntil = standing.keepsCopyUntil.map { min($0, until) } ?? until
        }
        outcome.reason = reason(
            decision, state, had: had, holder: holder, collides: collides, isApart: isApart, transfer: transfer,
            isUnconfirmed: isUnconfirmed, mark: outcome.mark)
        outcome.binding =
            switch state {
            case .granted: had?.source ?? binding
            case .held where isHeld(decision) || isApart: binding
            default: nil
            }
        if state == .alreadyGranted, let had, had.transactionID != transactionID {
            outcome.grantedAs = had.transactionID
        }
        if outcome.reason == Reason.idCollision.rawValue, let transaction, let had,
            transaction.environment != had.environment
        {
            outcome.grantedAs = transaction.idBehindEnvironment
        }
        outcome.reasons = reasons(decision, state, behind: gate, had: had, isApart: isApart, transfer: transfer)
        let isDisputed = provesOwner && had != nil && !(had?.userID).isSameText(as: owner)
        if state == .granted || state == .alreadyGranted, isDisputed { outcome.disputedHolder = had?.userID }
        outcome.rival = rival(
            state, decision, outcome.keepsCopyUntil, isWon: isWon, had: had, holder: holder, isDisputed: isDisputed,
            recordPoster: standing.granteeReceiptPoster)
        if state == .held, let reason = outcome.reason, Reason.toldToOwner.contains(where: { $0.rawValue == reason }) {
            outcome.heldOwner = isHeld(asked) ? entry?.heldBy?.owner : match?.userID
        }
        return outcome
    }

    private func isHeld(_ decision: Decision) -> Bool { if case .held = decision { true } else { false } }

    /// The second of a time as PostgreSQL stores it, to the microsecond.
    private static func second(of time: Date) -> Double {
        ((time.timeIntervalSince1970 * 1_000_000).rounded() / 1_000_000).rounded(.down)
    }

    /// Whether the purchase is known under another app or environment.
    private func collides(with had: Standing.Holding) -> Bool {
        had.appID != verdict.appID || transaction.map { $0.environment != had.environment } ?? false
    }

    /// Two consumables that were bought at different times are two purchases. Where nothing says the kind of this one,
    /// the kind of the granted one counts.
    private func isAnotherConsumable(than had: Standing.Holding) -> Bool {
        guard let entry, entry.mayBeConsumable, had.transactionID != transactionID, let boughtAt = had.purchasedAt,
            (entry.kind ?? had.kind ?? .consumable) == .consumable
        else { return false }
        return Self.second(of: boughtAt) != Self.second(of: entry.transaction.purchasedAt)
    }

    private func state(
        _ decision: Decision, isWon: Bool, had: Standing.Holding?, holder: String?, collides: Bool, isOther: Bool,
        isOwnGrant: Bool, isOutdated: Bool, transfer: TransferOutcome?
    ) -> PurchaseOutcome.State {
        let said = PurchaseOutcome.State(decision)
        if transactionID == nil { return said }
        // Nobody posted the purchase: where a user has it, nothing is left to decide, also while the receipt waits for
        // its owner.
        if isKnownOfUnposted(had, isWon: isWon, collides: collides, isOther: isOther, isOwnGrant: isOwnGrant) {
            return .alreadyGranted
        }
        if case .open = decision { return said }
        if isWon { return .granted }
        if isOutdated { return .again }
        // Somebody's order has it, or its receipt is not seen yet.
        guard had != nil else { return decision.gives ? .again : said }
        // Without possession: no hint of what others were given.
        let unproven = decision.gives ? .held : said
        if collides { return hasPossession ? .held : unproven }
        if isOther { return unproven }
        if isOwnGrant { return .granted }
        switch transfer {
        case .held: return .held
        case .losesToAnother: return .again
        case .moves, .limited, nil: break
        }
        return holder.isSameText(as: poster) || hasPossession ? .alreadyGranted : unproven
    }

    /// Whether nobody posted the purchase and a user has it by another receipt.
    private func isKnownOfUnposted(
        _ had: Standing.Holding?, isWon: Bool, collides: Bool, isOther: Bool, isOwnGrant: Bool
    ) -> Bool {
        !verdict.claim.isPosted && had != nil && !isWon && !collides && !isOther && !isOwnGrant
    }

    private func mark(
        _ decision: Decision, state: PurchaseOutcome.State, isWon: Bool, isOnTrust: Bool
    ) -> PurchaseOutcome.TrustMark? {
        guard state == .granted else { return nil }
        if decision.isProvisional, isWon { return .given }
        guard isOnTrust else { return nil }
        if case .grant = asked, case .grant = decision { return .confirmed }
        if case .rejected(let reason) = asked, Reason.takingBack.contains(reason) { return .revoked }
        return nil
    }

    private func reason(
        _ decision: Decision, _ state: PurchaseOutcome.State, had: Standing.Holding?, holder: String?, collides: Bool,
        isApart: Bool, transfer: TransferOutcome?, isUnconfirmed: Bool, mark: PurchaseOutcome.TrustMark?
    ) -> String? {
        switch state {
        case .alreadyGranted:
            // The user who has it is the only user who is told of it.
            if !verdict.claim.isPosted { return had?.receiptID == nil ? "imported" : nil }
            if transfer == .moves { return "transferred" }
            if !holder.isSameText(as: poster) { return "owned_by_another_user" }
            if !(had?.userID).isSameText(as: poster) { return "transferred" }
            return had?.receiptID == nil ? "imported" : nil
        case .held:
            if collides, hasPossession { return "id_collision" }
            if isApart { return Reason.review.rawValue }
            if transfer == .held { return Reason.transferReview.rawValue }
            return decision.gives ? Reason.possessionMissing.rawValue : decision.reason?.rawValue
        case .granted:
            if isUnconfirmed { return "unconfirmed" }
            if mark == .revoked { return decision.reason?.rawValue }
            if !verdict.claim.isPosted { return nil }
            return !(had?.userID ?? owner).isSameText(as: poster) ? "owned_by_another_user" : nil
        case .again, .open, .rejected: return decision.reason?.rawValue
        }
    }

    private func reasons(
        _ decision: Decision, _ state: PurchaseOutcome.State, behind gate: Gate, had: Standing.Holding?, isApart: Bool,
        transfer: TransferOutcome?
    ) -> [String]? {
        if state == .held, isApart { return [MatchReason.keyInUse.rawValue] }
        // What it was granted by, also where the receipt was not written then for a neighbour's sake.
        let isByThis = state == .granted && !isHeld(decision) && (had == nil || had?.source == binding)
        if isByThis || state == .held && isHeld(decision) {
            if let limit = gate.holdingLimit, isHeld(decision) {
                return (matchReasons ?? []) + ["limit_\(limit.rawValue)"]
            }
            guard state == .granted, !gate.exceededLimits.isEmpty else { return matchReasons }
            return (matchReasons ?? []) + gate.exceededLimits.map { "limit_\($0.rawValue)" }
        }
        guard state == .alreadyGranted else { return nil }
        if transfer == .moves { return [MatchReason.transferred.rawValue] }
        return transfer == .limited ? [MatchReason.transferLimit.rawValue] : nil
    }

    private func rival(
        _ state: PurchaseOutcome.State, _ decision: Decision, _ keepsCopyUntil: Date?, isWon: Bool,
        had: Standing.Holding?, holder: String?, isDisputed: Bool, recordPoster: String?
    ) -> String? {
        if state == .held, decision.reason == .tokenDisputed { return entry?.rival }
        // Where the claimant has proof, that is told as a dispute.
        guard keepsCopyUntil != nil, poster != nil, isWon || had?.receiptID != nil, !isDisputed,
            let source = had?.source ?? binding
        else { return nil }
        switch source {
        case .shared: return nil
        // Whose own post brought the other user's record takes nothing from the poster.
        case .record where had?.source != .record || recordPoster.isSameText(as: poster): return nil
        default: return holder ?? owner
        }
    }
}

extension AppPolicy {
    /// What the app's policy answers to a claim on a purchase that another user has.
    package enum TransferDecision: Sendable, Equatable { case move, hold, limit }
}

extension PurchaseOutcome.State {
    fileprivate init(_ decision: Decision) {
        self =
            switch decision {
            case .grant, .provisional: .granted
            case .rejected: .rejected
            case .held: .held
            case .open: .open
            }
    }
}
