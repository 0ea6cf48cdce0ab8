import Encoding
package import Foundation

/// A call that tells Apple about a purchase after it was decided here, never before. It is made once the decision is
/// committed, repeated until Apple has accepted it, and harmless if Apple gets it twice.
package struct AppleUpdate: Sendable, Equatable {
    /// The raw value is the word in SQL.
    package enum Kind: String, Sendable, CaseIterable {
        /// Set App Account Token: later purchases of the chain carry our order from then on (B5).
        case setToken = "set_token"
        /// Finish Transaction: the purchase leaves the queue of the customer's devices (B3).
        case finish
    }

    package let kind: Kind
    package let transaction: Transaction
    /// The token to set, for ``Kind/setToken`` only.
    package let token: UUID?
    /// The outcome that the verdict must give the purchase; otherwise the update is not stored.
    package let outcome: Outcome

    package enum Outcome: String, Sendable {
        case granted, held
    }
}

extension AppPolicy {
    /// When Apple is told that a purchase is finished.
    package enum FinishAtApple: String, Sendable, CaseIterable {
        /// Never: the app finishes it, on the device.
        case never
        /// Once it is granted.
        case afterGrant
        /// Once it is granted, or held with Apple's facts stored: then this server owes the purchase (P2).
        case afterReceipt
    }

    /// The Apple updates that follow from a verdict. There are none for shared purchases, which are another customer's,
    /// and none in shadow, where purchases are the former system's.
    package func appleUpdates(of decisions: Verdict.Decisions, claim: Claim) -> [AppleUpdate] {
        guard mode == .live, writesBackTokens || finishAtApple != .never, case .transactions(let entries) = decisions
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

    /// The token to set at Apple: the order, if an order found the owner and not the purchase's own data (rows 5 to 7).
    /// A token from the app stays, and so does a token that the proof may not show, because Apple would replace either
    /// without asking. After a support decision the purchase's token is replaced: it led to nobody, or to the wrong
    /// user.
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

    /// The outcome after which this server finishes the purchase at Apple; nil: it does not. Nil too if less than proof
    /// gives the purchase to another user than its poster: the poster's client was told to keep its copy.
    private func outcomeToFinish(_ entry: Verdict.Entry, _ claim: Claim) -> AppleUpdate.Outcome? {
        if let match = entry.match, claim.isPosted, !match.userID.isSameText(as: claim.userID), !match.source.isProof {
            return nil
        }
        return switch (finishAtApple, entry.decision) {
        case (.afterGrant, .grant), (.afterReceipt, .grant): .granted
        case (.afterReceipt, .held(let reason)) where reason.holdsFacts && claim.hasPossession: .held
        // A purchase on trust is finished once Apple has confirmed it, because then it is granted.
        case (.never, _), (.afterGrant, _), (.afterReceipt, _): nil
        }
    }

    private static func isKnownToApple(_ transaction: Transaction) -> Bool {
        transaction.environment == Transaction.production || transaction.environment == Transaction.sandbox
    }
}
