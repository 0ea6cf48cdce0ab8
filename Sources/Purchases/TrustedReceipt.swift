import Foundation

/// Reads the decisions about a receipt that was given something on trust and waits for Apple's answer. Pure.
///
/// | the decision | is read as |
/// | a purchase under another id than its grant's | under the grant's id: StoreKit 1 ids are per device and restore |
/// | a grant on trust would be confirmed, or is not named, and a newer refund of it is on record | refunded |
/// | Apple refuses the receipt as a whole | purchases on trust are taken back, those held with facts stay owed |
/// | anything else | as it is |
package struct TrustedReceipt: Sendable {
    /// One of its purchases that is not decided for good.
    package struct Purchase: Sendable, Equatable {
        /// As it is stored, under the receipt's id.
        package let transaction: Transaction
        /// The key by which the grant on trust is unique. Nil: this purchase was not given.
        package let grantKey: String?
        /// The receipt's earlier decision about the purchase, if that was held or open.
        package let before: Decision?

        package init(transaction: Transaction, grantKey: String? = nil, before: Decision? = nil) {
            self.transaction = transaction
            self.grantKey = grantKey
            self.before = before
        }

        /// Whether the other transaction is this purchase under another id.
        fileprivate func isSamePurchase(as other: Transaction) -> Bool {
            if let key = transaction.periodKey, key == other.periodKey { return true }
            return other.purchaseKey == grantKey && !transaction.isOtherConsumable(than: other)
        }

        /// Whether the stored transaction is refunded or withdrawn, and Apple signed it after the entry's transaction.
        fileprivate func isRefunded(after entry: Verdict.Entry) -> Bool {
            transaction.isTakenBack
                && transaction.signedAt ?? .distantPast > entry.transaction.signedAt ?? .distantPast
        }

        /// Whether Apple signed the entry's transaction after the stored one, and the entry shows no refund.
        fileprivate func isConfirmed(by entry: Verdict.Entry) -> Bool {
            !entry.transaction.isTakenBack && entry.transaction.ending != .unknown
                && entry.transaction.signedAt ?? .distantPast > transaction.signedAt ?? .distantPast
        }

        /// The entry of the purchase if Apple refuses the receipt that lists it.
        fileprivate func denied(_ reason: Reason) -> Verdict.Entry {
            if transaction.isTakenBack { return refund }
            if grantKey == nil, case .held(let held) = before, held.holdsFacts {
                return Verdict.Entry(transaction: transaction, decision: .held(held))
            }
            return Verdict.Entry(transaction: transaction, decision: .rejected(reason))
        }

        fileprivate var refund: Verdict.Entry {
            Verdict.Entry(
                transaction: transaction,
                decision: .rejected(transaction.ending == .withdrawn ? .withdrawn : .refunded))
        }
    }

    private let purchases: [Purchase]

    package init(_ purchases: [Purchase]) {
        self.purchases = purchases
    }

    /// The ids of the purchases that were given on trust and are neither confirmed nor taken back.
    package var given: Set<String> { Set(trusted.map(\.transaction.id)) }

    private var trusted: [Purchase] { purchases.filter { $0.grantKey != nil } }

    package func reading(_ decisions: Verdict.Decisions) -> Verdict.Decisions {
        switch decisions {
        case .transactions(let entries): .transactions(reading(entries))
        case .receipt(.rejected(let reason)) where Reason.takingBack.contains(reason) && !purchases.isEmpty:
            .transactions(purchases.map { $0.denied(reason) })
        case .receipt, .identifier: decisions
        }
    }

    private func reading(_ entries: [Verdict.Entry]) -> [Verdict.Entry] {
        var entries = entries
        for purchase in trusted {
            let id = purchase.transaction.id
            let place =
                entries.firstIndex { $0.transaction.id == id }
                ?? entries.firstIndex { purchase.isSamePurchase(as: $0.transaction) }
            guard let place else {
                if purchase.transaction.isTakenBack { entries.append(purchase.refund) }
                continue
            }
            var entry = entries[place]
            // A rule of ours holds the purchase by now, but Apple has answered: that confirms the grant on trust.
            if case .held = entry.decision, purchase.isConfirmed(by: entry) {
                entry = entry.with(.grant(goods: [], source: .poster))
                entries[place] = entry
            }
            if case .grant = entry.decision, purchase.isRefunded(after: entry) {
                entries[place] = purchase.refund
            } else if entry.transaction.id != id {
                var transaction = entry.transaction
                transaction.id = id
                entries[place] = Verdict.Entry(
                    transaction: transaction, decision: entry.decision, match: entry.match, heldBy: entry.heldBy)
            }
        }
        return entries
    }
}
