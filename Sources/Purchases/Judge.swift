import Encoding
import Foundation

/// Judges the purchases of one receipt by what is known about whose they are.
package struct Judge: Sendable {
    package let policy: AppPolicy
    package let claim: Claim
    /// By transaction id; what is missing has ``Evidence/none``.
    private let evidence: [String: Evidence]
    /// The purchase that the post's own words are about.
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

    /// All of them, no order for two.
    package func judge(_ transactions: [Transaction]) -> [Verdict.Entry] { settled(transactions.map(judge)) }

    /// Those that would be given are matched again, the newest first: each order goes to one of them, and the latest
    /// order to the latest purchase. What is given on trust stays so. The others are as they were.
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
                // On trust only to whom its place was taken for.
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
