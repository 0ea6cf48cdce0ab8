import AppleGateway
import Ledger
import Metrics
import Purchases

extension ReceiptProcessor {
    /// Gives purchases that may be given before Apple has confirmed them, where the user is trusted and the day's
    /// limits have room (B10). The worker takes the places first, so that its death in between gives nothing beyond the
    /// limits. The receipt stays open, and its tries at Apple are not counted here.
    ///
    /// - Parameter others: the receipt's other purchases. The verdict names them, so that nobody takes the receipt for
    ///   safe to finish because of what was given.
    /// - Returns: whether anything was given.
    func trust(
        _ entries: [Verdict.Entry], beside others: [Verdict.Entry], of receipt: StoredReceipt, for app: AppServices
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
            transactions: entries.filter { app.policy.mayBeProvisional($0, posterID: userID) }.map(\.transaction),
            limits: limits)
        let placed = Set(
            try await ledger.patiently { () throws(LedgerError) in
                try await ledger.run(Statements.takePlaces, places)
            })
        var trusted: [Verdict.Entry] = []
        var rest = others
        for entry in entries {
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
        let settlement = try await write(
            .transactions(trusted + rest), for: receipt, of: app, dueIn: ledger.schedule.rescueDelay(.apple))
        countTrust(receipt.appID, "given")
        return settlement != nil
    }

    private func countTrust(_ appID: String, _ answer: String) {
        Counter(label: "makegood_trust_total", dimensions: [("app", appID), ("answer", answer)]).increment()
    }
}
