import Encoding
import Foundation
import Ledger
import Logging
import Metrics
import Purchases
import Service

/// What metrics, logs and the security log say of verdicts.
struct VerdictReport: Sendable {
    let logger: Logger
    let security: SecurityLog
    private let alarm = RejectionAlarm()
    private let metrics = VerdictMetrics()
    private let grantTimes = GrantTimes()

    init(logger: Logger, security: SecurityLog) {
        self.logger = logger
        self.security = security
    }

    /// Counts and logs a verdict that the database has taken.
    func note(_ verdict: Verdict, _ outcome: ReceiptOutcome, of receipt: StoredReceipt) {
        let reason: Reason? =
            switch verdict.decisions {
            case .receipt(.rejected(let reason)), .receipt(.held(let reason)), .receipt(.open(let reason)): reason
            default: nil
            }
        if let trace = TraceContext.current {
            logger.log(
                level: trace.level, "receipt judged",
                metadata: [
                    "receipt.state": "\(outcome.state.rawValue)", "receipt.reason": "\(reason?.rawValue ?? "")",
                    "receipt.attempt": "\(outcome.attempt)",
                ])
        }
        metrics.count(app: verdict.appID, state: outcome.state, reason: reason)
        if receipt.state != .held { reportUnknownRevocations(verdict) }
        if receipt.state == .received { verdict.countTokens() }
        if outcome.tellsDispute {
            security.note(
                .disputed(appID: verdict.appID), receipt: receipt.id, app: receipt.appID, user: receipt.userID)
        }
        if case .receipt(.rejected(let reason)) = verdict.decisions, reason.isForgery {
            security.note(.proofRefused(reason), receipt: receipt.id, app: receipt.appID, user: receipt.userID)
        }
        // Noted once for each receipt: a held receipt comes back from time to time, and is held again.
        if verdict.decisions.showsSharedToken, receipt.state != .held {
            security.note(.tokenShared, receipt: receipt.id, app: receipt.appID, user: receipt.userID)
        }
        if let limit = outcome.lackingLimit, receipt.state != .held {
            security.note(.limit(Limit(limit)), receipt: receipt.id, app: receipt.appID, user: receipt.userID)
        }
        if let environment = verdict.environmentGiven(by: outcome, of: receipt) {
            grantTimes.record(
                .seconds(outcome.age), app: verdict.appID, environment: environment, lane: receipt.lane)
        }
        guard let reason, let cause = RejectionAlarm.cause(reason), alarm.record(verdict.appID, reason)
        else { return }
        logger.error(
            "many receipts fail in a way that is our mistake as often as an attack",
            metadata: [
                "app.id": "\(verdict.appID)", "receipt.reason": "\(reason.rawValue)", "first.look": "\(cause)",
            ])
    }

    /// Tells the security log of a purchase that very many users show.
    func note(sharedPurchase id: String, users: Int, of receipt: StoredReceipt) {
        security.note(
            .purchaseShared, receipt: receipt.id, app: receipt.appID, user: receipt.userID,
            ["transaction.id": "\(id)", "users": "\(users)"])
    }

    /// Logs revocations for an unknown reason, once for each receipt: a held receipt comes back from time to time, and
    /// is held again.
    private func reportUnknownRevocations(_ verdict: Verdict) {
        guard case .transactions(let entries) = verdict.decisions else { return }
        for entry in entries where entry.heldBy?.reasons.contains(.revocationUnknown) == true {
            let revocation = entry.transaction.revocation
            var metadata = LogKeys.receipt(verdict.receiptID)
            metadata["app.id"] = "\(verdict.appID)"
            metadata["revocation.reason"] = "\(revocation.reason.map(String.init) ?? "")"
            metadata["revocation.type"] = "\(revocation.type ?? "")"
            logger.warning(
                "Apple took a purchase back for a reason that this version does not know; a person decides about it",
                metadata: metadata)
        }
    }

    /// Logs why the database took no verdict.
    func note(_ error: LedgerError, _ receiptID: UUID) {
        switch error {
        case .busy, .unavailable: logger.debug("database is away", metadata: LogKeys.error(error))
        case .refused:
            // Our bug: ingest should have refused these values. The row comes back and ends parked.
            Counter(label: "makegood_refused_verdicts_total").increment()
            logger.error(
                "the database refuses a verdict",
                metadata: LogKeys.receipt(receiptID).merging(LogKeys.error(error)) { first, _ in first })
        }
    }
}

extension Verdict.Decisions {
    fileprivate var showsSharedToken: Bool {
        guard case .transactions(let entries) = self else { return false }
        return entries.contains { $0.decision == .held(.tokenDisputed) }
    }
}

extension Verdict {
    /// The environment of the purchase that the user gets by this verdict. Nil where the user gets nothing by it, or
    /// where the time until now says nothing about us: a held receipt waited for a product, a policy or a person. A
    /// purchase given on trust counts when it is given, not when Apple confirms it.
    fileprivate func environmentGiven(by outcome: ReceiptOutcome, of receipt: StoredReceipt) -> String? {
        guard receipt.state != .held, !receipt.isOnTrust, case .transactions(let entries) = decisions else {
            return nil
        }
        let given = entries.first { entry in
            if case .provisional = entry.decision { return true }
            return outcome.state == .granted && entry.decision.gives
        }
        return given?.transaction.environment
    }
}
