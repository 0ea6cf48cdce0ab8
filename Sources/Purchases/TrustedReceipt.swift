import Foundation

/// A receipt that was given something on trust and waits for Apple's word about it: how a finding is read then. Pure.
///
/// | the finding | is read as |
/// | a purchase under another id than it was given by | that of the grant: StoreKit 1 ids are per device and restore |
/// | a grant on trust would be confirmed, or is not named, and a newer refund of it is on record | refunded |
/// | Apple refuses the receipt as a whole | what was given on trust is taken back, what is held with facts stays owed |
/// | anything else | as it is |
package struct TrustedReceipt: Sendable {
    /// One of its purchases that is not decided for good.
    package struct Purchase: Sendable, Equatable {
        /// As it is stored, under the receipt's id.
        package let transaction: Transaction
        /// What the grant on trust is unique by. Nil: nothing was given of this one.
        package let grantKey: String?
        /// What the receipt was told of it, where that was held or open.
        package let before: Decision?

        package init(transaction: Transaction, grantKey: String? = nil, before: Decision? = nil) {
            self.transaction = transaction
            self.grantKey = grantKey
            self.before = before
        }

        /// Whether this is its purchase under another id.
        fileprivate func isSamePurchase(as other: Transaction) -> Bool {
            if let key = transaction.periodKey, key == other.periodKey { return true }
            return other.purchaseKey == grantKey && !transaction.isOtherConsumable(than: other)
        }

        /// Refunded by what is on record, after a word of Apple's from then.
        fileprivate func isRefunded(after entry: Verdict.Entry) -> Bool {
            transaction.isTakenBack
                && transaction.signedAt ?? .distantPast > entry.transaction.signedAt ?? .distantPast
        }

        /// A newer word of Apple's than what was known when it was given, and no refund.
        fileprivate func isConfirmed(by entry: Verdict.Entry) -> Bool {
            !entry.transaction.isTakenBack && entry.transaction.ending != .unknown
                && entry.transaction.signedAt ?? .distantPast > transaction.signedAt ?? .distantPast
        }

        /// Apple does not know the receipt that listed it.
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

    /// The ids of what was given on trust and is neither confirmed nor taken back.
    package var given: Set<String> { Set(trusted.map(\.transaction.id)) }

    private var trusted: [Purchase] { purchases.filter { $0.grantKey != nil } }

    package func reading(_ finding: Verdict.Finding) -> Verdict.Finding {
        switch finding {
        case .transactions(let entries): .transactions(reading(entries))
        case .receipt(.rejected(let reason)) where Reason.takingBack.contains(reason) && !purchases.isEmpty:
            .transactions(purchases.map { $0.denied(reason) })
        case .receipt, .identifier: finding
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
            // Held since by a rule of ours, but Apple's word is there: what was given is confirmed by it.
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
