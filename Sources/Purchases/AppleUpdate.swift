import Encoding
package import Foundation

/// Something to be done at Apple for a purchase after it was decided here, never before: told once the decision is
/// committed, again until Apple has taken it, and harmless to tell twice.
package struct AppleUpdate: Sendable, Equatable {
    /// The raw value is the word in SQL.
    package enum Kind: String, Sendable, CaseIterable {
        /// Set App Account Token: what is bought in the purchase's chain carries our order from then on (B5).
        case setToken = "set_token"
        /// Finish Transaction: it leaves the queue of the customer's devices (B3).
        case finish
    }

    package let kind: Kind
    package let transaction: Transaction
    /// Of ``Kind/setToken``.
    package let token: UUID?
    /// It is written only if this is what becomes of the purchase when the verdict is.
    package let outcome: Outcome

    package enum Outcome: String, Sendable {
        case granted, held
    }
}

extension AppPolicy {
    /// When Apple is told that a purchase is finished.
    package enum FinishAtApple: String, Sendable, CaseIterable {
        /// The app does it, on its device.
        case never
        /// Once it is granted.
        case afterGrant
        /// Once it is granted, or held with Apple's facts stored: the debt is ours then (P2).
        case afterReceipt
    }

    /// What a verdict leaves to be done at Apple. Nothing for purchases that are shared: they are another customer's; and
    /// nothing in shadow, where they are another system's.
    package func appleUpdates(of finding: Verdict.Finding, claim: Claim) -> [AppleUpdate] {
        guard mode == .live, writesBackTokens || finishAtApple != .never, case .transactions(let entries) = finding
        else { return [] }
        var appleUpdates: [AppleUpdate] = []
        for entry in entries where !entry.transaction.isShared && Self.isKnownToApple(entry.transaction) {
            if let token = tokenToWrite(entry) {
                appleUpdates.append(
                    AppleUpdate(kind: .setToken, transaction: entry.transaction, token: token, outcome: .granted))
            }
            if let outcome = outcomeToFinish(entry, claim) {
                appleUpdates.append(
                    AppleUpdate(kind: .finish, transaction: entry.transaction, token: nil, outcome: outcome))
            }
        }
        return appleUpdates
    }

    /// The order, where an order found the owner and not the purchase's own data (rows 5 to 7). A token that the app
    /// gave stays, and so does one that may be there unseen: Apple would replace it without asking. Not where a person
    /// has decided: then whatever token it has led nowhere, or to the wrong one.
    private func tokenToWrite(_ entry: Verdict.Entry) -> UUID? {
        guard writesBackTokens, case .grant = entry.decision, let match = entry.match else { return nil }
        switch match.source {
        case .namedOrder, .orderOfAnother, .openOrder: break
        case .support:
            let token = match.order?.id ?? match.token
            return token == entry.transaction.appAccountToken ? nil : token
        case .orderToken, .userToken, .rememberedToken, .chain, .record, .chainOwner, .lateOrder, .poster, .customer,
            .shared, .transfer:
            return nil
        }
        guard let order = match.order else { return nil }
        let hasNone = entry.transaction.showsToken && entry.transaction.appAccountToken == nil
        return hasNone || match.reasons.contains(.tokenWritten) ? order.id : nil
    }

    /// Not what less than proof gives to another user than its poster: the poster's client was told to keep it.
    private func outcomeToFinish(_ entry: Verdict.Entry, _ claim: Claim) -> AppleUpdate.Outcome? {
        if let match = entry.match, claim.isPosted, !match.userID.isSameText(as: claim.userID), !match.source.isProof {
            return nil
        }
        return switch (finishAtApple, entry.decision) {
        case (.afterGrant, .grant), (.afterReceipt, .grant): .granted
        case (.afterReceipt, .held(let reason)) where reason.holdsFacts && claim.hasPossession: .held
        // Given on trust: once Apple has confirmed it, which is a grant.
        case (.never, _), (.afterGrant, _), (.afterReceipt, _): nil
        }
    }

    private static func isKnownToApple(_ transaction: Transaction) -> Bool {
        transaction.environment == Transaction.production || transaction.environment == Transaction.sandbox
    }
}
