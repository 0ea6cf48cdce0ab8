import AppleGateway
import Ledger
import Purchases

/// What is different for a receipt that was given something on trust, until Apple has answered: only Apple's answer
/// ends it.
extension StoredReceipt {
    /// Whether Apple is asked about a purchase that would not be granted: the purchase may have been given on trust.
    func needsAnswer(despite decision: Decision) -> Bool { isOnTrust && decision.leavesTrustOpen }

    /// Whether the receipt stays open although its proof fails as a whole: only Apple's own statement takes back what
    /// was given on trust. Nil if nothing was.
    func waitsForAnswer(despite reason: Reason) -> Bool? {
        isOnTrust ? !Reason.takingBack.contains(reason) : nil
    }

    /// The purchase of a signed transaction after Apple's refusal. A purchase that was given on trust before counts as
    /// reached, because the rest is up to Apple.
    func unreached(_ transaction: Transaction, after refusal: AppleRefusal) -> Unreached {
        Unreached(
            entries: [Verdict.Entry(transaction: transaction, decision: .open(.appleUnavailable))],
            ids: refusal.isOutage && !isOnTrust ? [transaction.id] : [])
    }
}

extension Ledger {
    /// The decisions, read as Apple's answer about what the receipt was given on trust, and the ids of those purchases.
    /// The decisions as they are, and no ids, if the receipt was given nothing on trust.
    func answer(
        of decisions: Verdict.Decisions, to receipt: StoredReceipt
    ) async throws(LedgerError) -> (decisions: Verdict.Decisions, given: Set<String>) {
        guard receipt.isOnTrust else { return (decisions, []) }
        let trusted = TrustedReceipt(
            try await patiently { () throws(LedgerError) in try await run(Statements.undecidedPurchases, receipt.id) })
        return (trusted.reading(decisions), trusted.given)
    }
}
