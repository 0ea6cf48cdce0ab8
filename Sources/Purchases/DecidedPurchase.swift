import Encoding
package import Foundation

/// A subscription or non-consumable as it stood when a person decided its owner anew (`makegood support own`).
package struct DecidedPurchase: Sendable, Equatable {
    /// The owner until now.
    package var holderID: String
    package var environment: String
    /// Whether no later purchase of its chain is granted.
    package var isLatest: Bool
    /// The token that Apple has for it.
    package var token: UUID?

    package init(holderID: String, environment: String, isLatest: Bool, token: UUID? = nil) {
        self.holderID = holderID
        self.environment = environment
        self.isLatest = isLatest
        self.token = token
    }

    /// Whether the purchase has another owner now. Both users are told then.
    package func moves(to userID: String) -> Bool { !holderID.isSameText(as: userID) }

    /// Whether Apple is to be told a token of the new owner: only for a chain's latest purchase, because that purchase
    /// decides the owner of the chain, and only if another person has it now.
    ///
    /// - Parameter ids: all ids of the new owner.
    package func needsToken(of ids: [String]) -> Bool {
        isLatest && [Transaction.production, Transaction.sandbox].contains(environment)
            && !ids.contains { $0.isSameText(as: holderID) }
    }
}
