import Encoding
import Foundation

extension Matcher {
    var isFirstOfChain: Bool { transaction.isFirstOfChain }

    var isConsumable: Bool { boughtAs == .consumable }
    /// Whether it is a subscription or a non-consumable: the client need say nothing of item or role.
    var lasts: Bool { boughtAs == .autoRenewable || boughtAs == .nonConsumable }
    var boughtAs: Transaction.Kind { kind ?? (transaction.isPeriod ? .autoRenewable : .consumable) }

    /// Whether this is a renewal, as Apple says it. A legacy receipt does not say it: there a later period of a chain
    /// is a renewal, unless the poster ordered it within the hour before.
    var isRenewal: Bool {
        if let reason = transaction.reason { return reason == Transaction.renewal }
        return transaction.isPeriod && !isFirstOfChain && !hasOrderWithinHour
    }

    private var hasOrderWithinHour: Bool {
        evidence.orders.contains {
            $0.userID.isSameText(as: claim.userID) && isOfProduct($0) && isUnbound($0)
                && $0.placedAt >= transaction.purchasedAt - Self.hour && $0.placedAt <= transaction.purchasedAt
        }
    }

    var isRestore: Bool {
        !transaction.isPeriod && !isFirstOfChain && evidence.revocations == 0
    }

    /// Whether this is an upgrade, a cross-grade or a bundle while the chain runs, and nobody posted it.
    var isChangeOfProduct: Bool {
        guard !claim.isPosted, transaction.isPeriod, let productID = evidence.chain?.productID else { return false }
        return productID != transaction.productID && evidence.chain?.runsUntil ?? .distantPast > transaction.purchasedAt
    }

    func ofChain(_ chain: Evidence.Chain, _ source: BindingSource) -> Match {
        var match = Match(userID: chain.userID, source: source, reasons: [.chainKnown])
        bindLateOrder(of: chain.userID, &match)
        return match
    }
}
