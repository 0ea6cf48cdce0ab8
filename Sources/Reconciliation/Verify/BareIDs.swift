import AppStore
import AppleGateway
import Encoding
import Foundation
import Ledger
import Purchases

/// Examines bare ids. A bare id is only a question to Apple, unless a trusted backend vouches for the user.
extension ReceiptVerifier {
    func examineIdentifier(
        of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        guard let id = receipt.transactionID ?? receipt.originalTransactionID else {
            return .decided(.receipt(.rejected(.malformed)))
        }
        if receipt.isVouched { return try await answer(id, of: receipt, for: app, in: app.lookUpOrder) }
        // Without possession only three things may answer: a grant that this very user already has, an order, or a
        // token (rows 1 to 4).
        let unproven = Examination.decided(.identifier(id, .possessionMissing))
        guard receipt.appHasOrders, app.serverAPI != nil else { return unproven }
        let question = Statements.BareID(
            receiptID: receipt.id, appID: receipt.appID, transactionID: id, isOld: receipt.isOld(by: schedule))
        guard let known = try await query(Statements.knownBareID, question).first, !known.isGranted else {
            return unproven
        }
        if let stored = known.stored {
            let entry = try await judge(of: [stored], in: receipt, for: app).judge(stored)
            guard case .grant(_, let source) = entry.decision else { return unproven }
            // A period is granted by its billing event, and the billing event is not stored.
            if app.policy.confirmWithApple != .always, isFresh(stored.signedAt, by: source, of: receipt),
                !stored.isPeriod
            {
                return .decided(.transactions([entry]))
            }
        }
        guard known.mayBeAsked else { return unproven }
        let entries: [Verdict.Entry]
        do throws(AppleRefusal) {
            let found = try await answer(id, of: receipt, for: app, in: app.lookUpOrder)
            if case .decided(.transactions(let judged)) = found { entries = judged } else { entries = [] }
        } catch {
            // The poster is not told whether there is such a purchase.
            switch error.fate {
            case .reject, .retry(.notFoundYet): entries = []
            // Only a history that exists is read further. Apple has not answered yet, so no answer is counted.
            case .postpone(.historyPending, until: _?): return unproven
            default: throw error
            }
        }
        _ = try await query(Statements.noteAnswer, question)
        guard !entries.isEmpty else { return unproven }
        // Apple's answer is stored, so that Apple is not asked again. The poster learns nothing of what is not given,
        // also where another purchase of the same chain is given.
        return .decided(
            .transactions(
                entries.map { entry in
                    entry.decision.gives
                        ? entry : Verdict.Entry(transaction: entry.transaction, decision: .held(.possessionMissing))
                }))
    }

    /// The purchases that are meant by an id that Apple does not know, from the history of the customer of the
    /// receipt's `originalTransactionId`: the purchase with that id, else the whole chain of that original (StoreKit 1
    /// ids differ by device and by restore). Empty: the receipt names no other id, nobody posted the receipt, or no
    /// environment knows that id.
    ///
    /// - Throws: a postponement until the history is read; a retry if Apple does not answer.
    func history(
        of receipt: StoredReceipt, askedFor id: String, for app: AppServices, in environments: [StoreEnvironment]
    ) async throws(AppleRefusal) -> [Transaction] {
        guard receipt.source == .post, let originalID = receipt.originalTransactionID, !originalID.isSameText(as: id)
        else { return [] }
        for environment in environments {
            let walk = HistoryWalk(
                appleGateway: appleGateway, ledger: ledger, schedule: schedule, app: app, environment: environment,
                customer: originalID, askedID: originalID)
            do throws(AppleRefusal) {
                let chain = try await walk.chain(originalID, for: receipt)
                guard chain.isEmpty else {
                    let named = chain.filter { $0.id.isSameText(as: id) }
                    return named.isEmpty ? chain : named
                }
            } catch {
                guard error.isUnknownID else { throw error }
            }
        }
        return []
    }
}

extension AppleRefusal {
    /// Whether Apple says that there is no such id, now or ever.
    var isUnknownID: Bool { fate == .retry(.notFoundYet) || fate == .reject(.invalidTransactionID) }
}

extension StoredReceipt {
    /// Whether the proof is an id for which nobody vouches.
    var isBareID: Bool { proof == .identifier && !isVouched }

    /// Whether a day has passed since the receipt was posted.
    func isOld(by schedule: RetrySchedule) -> Bool {
        Duration.seconds(readAt.timeIntervalSince(receivedAt)) > ReceiptVerifier.notFoundFor * schedule.scale
    }
}
