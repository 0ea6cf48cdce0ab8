import Encoding
import Foundation

/// The search for the evidence of one purchase, between reading the rows. First comes whom the purchase names in any
/// way; ``users`` are then asked for open orders, unless ``endsWithToken``.
package struct EvidenceSearch: Sendable {
    /// What was found so far; ``result`` is what it says in the end.
    package var found = Evidence()
    /// Whether the poster's installation was issued by this server, was not revoked, and was seen with one Apple customer
    /// only.
    package var isInstallationProven = false
    /// Whether a grant of the purchase was found. Nil: not looked for.
    package var isGranted: Bool?

    private let transaction: Transaction
    private let posterID: String?
    /// The order that the purchase's token names.
    private var orderOfToken: PlacedOrder?

    package init(for transaction: Transaction, by posterID: String?) {
        self.transaction = transaction
        self.posterID = posterID
    }

    /// Takes an order of the purchase's app. An order that was found in two ways counts once.
    ///
    /// - Parameters:
    ///   - order: its `isOnProvenInstallation` says whether it was placed on the poster's installation.
    ///   - isForgotten: the order is no evidence for a purchase of this chain, because its user was erased after it.
    package mutating func take(_ order: PlacedOrder, isForgotten: Bool) {
        if order.id == transaction.appAccountToken { orderOfToken = order }
        guard !isForgotten, !found.orders.contains(where: { $0.id == order.id }) else { return }
        found.orders.append(order)
    }

    /// Whether row 2 of Ownership decides by the order of the purchase's token: an unbound order, reserved for no other
    /// purchase, where no chain and no person may say otherwise. Then no other user's order or token is evidence.
    package var endsWithToken: Bool {
        guard let order = orderOfToken, !transaction.isOfChain, found.supportDecision == nil else { return false }
        return order.transactionID == nil
            && (order.reservedFor == nil || order.reservedFor.isSameText(as: transaction.id))
    }

    /// The users whose open orders may be for the purchase, each once. Of the users whom the token was granted to, one
    /// counts; several do not, because the token is then nobody's.
    package var users: [String] {
        let remembered = found.rememberedUserIDs.count == 1 ? found.rememberedUserIDs : []
        let named = [
            posterID, found.registeredUserID, orderOfToken?.userID, found.chain?.userID, found.supportDecision?.userID,
            found.recordUserID,
        ]
        return (named.compactMap { $0 } + remembered + found.customerUserIDs).reduce(into: []) { users, user in
            if !users.contains(where: { $0.isSameText(as: user) }) { users.append(user) }
        }
    }

    /// What the search has found. Where the token's order decides, what else is known of the token does not count.
    package var result: Evidence {
        var evidence = found
        evidence.isGranted = isGranted.map { $0 || found.grantedKey != nil } ?? false
        let provesInstallation = isInstallationProven && !endsWithToken
        for index in evidence.orders.indices where !provesInstallation {
            evidence.orders[index].isOnProvenInstallation = false
        }
        if endsWithToken {
            evidence.registeredUserID = nil
            evidence.rememberedUserIDs = []
        }
        return evidence
    }
}
