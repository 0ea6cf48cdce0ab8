import AppleGateway
import Ledger
import Metrics
import Purchases
import Service

/// Gives purchases that may be given before Apple has confirmed them. It stands before the decision, and passes on what
/// it does not touch.
struct TrustPass: Sendable {
    let ledger: Ledger
    let receiptVerifier: ReceiptVerifier
    let writer: VerdictWriter

    /// The receipt and the examination with which the receipt goes on.
    func pass(
        _ examination: Examination, of receipt: StoredReceipt, for app: AppServices
    ) async throws(LedgerError) -> (StoredReceipt, Examination) {
        guard case .unreached(let unreached, let otherwise) = examination else { return (receipt, examination) }
        let judge = try await ledger.patiently { () throws(LedgerError) in
            try await receiptVerifier.freshJudge(of: unreached.entries.map(\.transaction), in: receipt, for: app)
        }
        let candidates = TrustCandidates(unreached, by: judge)
        guard !candidates.wanted.isEmpty else { return (receipt, otherwise) }
        var receipt = receipt
        if try await give(candidates, of: receipt, for: app) { receipt.isOnTrust = true }
        CrashPoint.afterTrustBeforeRow.reached()
        return (receipt, otherwise)
    }

    /// Gives purchases that may be given before Apple has confirmed them, where the user is trusted and the day's
    /// limits have room (B10). The worker takes the places first, so that its death in between gives nothing beyond the
    /// limits. The receipt stays open, and its tries at Apple are not counted here.
    ///
    /// - Parameter candidates: the verdict names the receipt's other purchases too, so that nobody takes the receipt for
    ///   safe to finish because of what was given.
    /// - Returns: whether anything was given.
    private func give(
        _ candidates: TrustCandidates, of receipt: StoredReceipt, for app: AppServices
    ) async throws(LedgerError) -> Bool {
        guard let limits = app.policy.provisional, let userID = receipt.userID else { return false }
        let question = Statements.HistoryQuestion(
            appID: receipt.appID, userID: userID, purchasesMax: limits.purchasesMin)
        let histories = try await ledger.patiently { () throws(LedgerError) in
            try await ledger.run(Statements.userHistory, question)
        }
        guard let history = histories.first, limits.trusts(history, at: receipt.readAt) else {
            countTrust(receipt.appID, "untrusted")
            return false
        }
        let places = Statements.PlaceQuestion(
            receiptID: receipt.id, appID: receipt.appID,
            transactions: candidates.wanted.filter { app.policy.mayBeProvisional($0, posterID: userID) }.map(
                \.transaction),
            limits: limits)
        let placed = Set(
            try await ledger.patiently { () throws(LedgerError) in
                try await ledger.run(Statements.takePlaces, places)
            })
        var trusted: [Verdict.Entry] = []
        var rest = candidates.others
        for entry in candidates.wanted {
            if case .grant(let goods, let source) = entry.decision, placed.contains(entry.transaction.id) {
                trusted.append(entry.with(.provisional(goods: goods, source: source)))
            } else {
                rest.append(Verdict.Entry(transaction: entry.transaction, decision: .open(.appleUnavailable)))
            }
        }
        guard !trusted.isEmpty else {
            countTrust(receipt.appID, "no_place")
            return false
        }
        let outcome = try await writer.write(
            prepared: .transactions(trusted + rest), for: receipt, of: app,
            dueIn: ledger.schedule.rescueDelay(.apple))
        countTrust(receipt.appID, "given")
        return outcome != nil
    }

    private func countTrust(_ appID: String, _ answer: String) {
        Counter(label: "makegood_trust_total", dimensions: [("app", appID), ("answer", answer)]).increment()
    }
}
