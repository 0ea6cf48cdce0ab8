import Encoding
import Foundation

/// Decides about the purchases of one receipt, by the evidence of who owns them.
package struct Judge: Sendable {
    package let policy: AppPolicy
    package let claim: Claim
    /// By transaction id. A transaction without an entry has ``Evidence/none``.
    private let evidence: [String: Evidence]
    /// The id of the purchase that the post's declaration is about.
    private let meantID: String?
    /// What earlier posts say of the other purchases, by transaction id.
    private let lines: [String: ReceiptLine]

    package init(
        policy: AppPolicy, claim: Claim, evidence: [String: Evidence] = [:], meantID: String? = nil,
        lines: [String: ReceiptLine] = [:]
    ) {
        self.policy = policy
        self.claim = claim
        self.evidence = evidence
        self.meantID = meantID
        self.lines = lines
    }

    package func judge(_ transaction: Transaction) -> Verdict.Entry { judge(transaction, taken: [:]) }

    /// One entry for each transaction. No two entries take the same order.
    package func judge(_ transactions: [Transaction]) -> [Verdict.Entry] { settled(transactions.map(judge)) }

    /// The entries, with those that would be given matched again, the newest purchase first: each order goes to one
    /// purchase, and the latest order to the latest purchase. A provisional entry stays provisional if it would still
    /// be granted to the same owner; otherwise it becomes open. Entries that are rejected, held or open stay as they
    /// were.
    package func settled(_ entries: [Verdict.Entry]) -> [Verdict.Entry] {
        guard !evidence.isEmpty else { return entries }
        var entries = entries
        var taken: [UUID: String] = [:]
        let newestFirst = entries.indices.sorted {
            let (one, other) = (entries[$0].transaction, entries[$1].transaction)
            return (one.purchasedAt, one.id) > (other.purchasedAt, other.id)
        }
        for index in newestFirst {
            let entry = entries[index]
            let isProvisional: Bool
            switch entry.decision {
            case .grant: isProvisional = false
            case .provisional: isProvisional = true
            case .rejected, .held, .open: continue
            }
            var matched = judge(entry.transaction, taken: taken)
            if isProvisional {
                // The place within the limits was taken for this owner, so nobody else gets the purchase on trust.
                if case .grant(let goods, let source) = matched.decision,
                    (matched.match?.userID).isSameText(as: entry.match?.userID)
                {
                    matched = matched.with(.provisional(goods: goods, source: source))
                } else {
                    matched = matched.with(.open(.appleUnavailable))
                }
            }
            if let order = matched.match?.order { taken[order.id] = entry.transaction.id }
            entries[index] = matched
        }
        return entries
    }

    private func judge(_ transaction: Transaction, taken: [UUID: String]) -> Verdict.Entry {
        let evidence = evidence[transaction.id] ?? .none
        var claim = claim
        let line = lines[transaction.id]
        if let line {
            claim.declared = line.declared
        } else if transaction.id != meantID {
            claim.declared = nil
        }
        var entry = policy.judge(transaction, claim: claim, evidence: evidence.with(taken: taken))
        entry.target = line?.target
        return entry
    }
}
