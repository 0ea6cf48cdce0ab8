package import AppleGateway
package import Purchases

/// The purchases of a receipt that may be given before Apple has confirmed them (B10). Pure.
package struct TrustCandidates: Sendable {
    /// The purchases that Apple could not be asked about and that would be granted to the poster.
    package let wanted: [Verdict.Entry]
    /// The receipt's other purchases as they stand; none of them is a grant.
    package let others: [Verdict.Entry]

    /// - Parameter judge: of all purchases of the receipt.
    package init(_ unreached: Unreached, by judge: Judge) {
        var wanted: [Verdict.Entry] = []
        var others: [Verdict.Entry] = []
        for entry in unreached.entries {
            let judged = judge.judge(entry.transaction)
            if unreached.ids.contains(entry.transaction.id),
                judge.policy.mayBeProvisional(judged, posterID: judge.claim.userID)
            {
                wanted.append(judged)
            } else if case .grant = entry.decision {
                // Left open for the next verdict, which checks all that a grant has to pass.
                others.append(Verdict.Entry(transaction: entry.transaction, decision: .open(.appleUnavailable)))
            } else {
                others.append(entry)
            }
        }
        self.wanted = judge.settled(wanted)
        self.others = others
    }
}

extension Examination {
    /// The examination, together with the purchases about which Apple could not be reached, if the app's policy may
    /// give any of them.
    func with(_ unreached: Unreached, for app: AppServices) -> Examination {
        app.policy.provisional == nil || unreached.ids.isEmpty ? self : .unreached(unreached, otherwise: self)
    }
}
