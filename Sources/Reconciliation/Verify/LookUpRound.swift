import AppleGateway
import Foundation
import Purchases

/// The result of one round of questions to Apple for a receipt.
struct LookUpRound {
    /// Purchases that were judged without a question.
    private let judged: [Verdict.Entry]
    /// Apple's current answers, by the receipt's ids.
    private(set) var found: [Transaction] = []
    private var waiting: [ListedPurchase]
    /// Purchases that are still open after a question.
    private var unanswered: [(purchase: ListedPurchase, refusal: AppleRefusal)] = []
    private(set) var customerID: String?
    /// What the purchases wait for that the history did not contain.
    var historyRest: Examination.Rest?

    init(_ plan: ReceiptPlan) {
        judged = plan.judged
        waiting = plan.waiting
        customerID = plan.judged.lazy.compactMap(\.transaction.customerID).first
    }

    /// The purchases about which Apple could not be reached, each by its own refusal.
    func unreached(by judge: Judge) -> Unreached {
        let ids = unanswered.filter { $0.refusal.isOutage && $0.purchase.isUnreached }.map(\.purchase.listed.id)
        return Unreached(entries: entries(by: judge) + open, ids: Set(ids))
    }

    /// The purchases that stay open. Only a question to Apple counts as an attempt, and only an attempt climbs the
    /// retry schedule.
    private var open: [Verdict.Entry] {
        let historyReason = if case .retry(let reason, _) = historyRest { reason } else { Reason.historyPending }
        return unanswered.map { purchase, refusal in
            purchase.waiting(refusal.isTry ? refusal.reason : .historyPending)
        } + waiting.map { $0.waiting(historyReason) }
    }

    /// Whether Apple answered every question, even if Apple did not find everything.
    var isAnswered: Bool { unanswered.allSatisfy { $0.refusal.fate == .retry(.notFoundYet) } }

    mutating func take(
        _ result: Result<Transaction, AppleRefusal>, for purchase: ListedPurchase
    ) {
        switch result {
        case .success(let found): enter(found, for: purchase)
        case .failure(let refusal): unanswered.append((purchase, refusal))
        }
    }

    mutating func take(_ history: [Transaction]) {
        let byID = Dictionary(history.map { ($0.id, $0) }, uniquingKeysWith: Self.newer)
        let byPurchase = Dictionary(history.map { ($0.purchaseKey, $0) }, uniquingKeysWith: Self.newer)
        let byEnd = Dictionary(
            history.compactMap { found in found.periodKey.map { ($0, found) } }, uniquingKeysWith: Self.newer)
        let wanted = waiting
        waiting = []
        for purchase in wanted {
            let listed = purchase.listed
            if let found = byID[listed.id] ?? byPurchase[listed.purchaseKey] ?? listed.periodKey.flatMap({ byEnd[$0] })
            {
                enter(found, for: purchase)
            } else {
                waiting.append(purchase)
            }
        }
    }

    private mutating func enter(_ found: Transaction, for purchase: ListedPurchase) {
        guard let transaction = purchase.listed.updated(by: found) else {
            waiting.append(purchase)
            return
        }
        customerID = customerID ?? transaction.customerID
        self.found.append(transaction)
    }

    private static func newer(_ one: Transaction, _ other: Transaction) -> Transaction {
        other.signedAt ?? .distantPast > one.signedAt ?? .distantPast ? other : one
    }

    private func entries(by judge: Judge) -> [Verdict.Entry] {
        judge.settled(judged + found.map { judge.judge($0) })
    }

    func examination(by judge: Judge) throws(AppleRefusal) -> Examination {
        let entries = entries(by: judge)
        let isGrant = { (entry: Verdict.Entry) in if case .grant = entry.decision { true } else { false } }
        let first = unanswered.first { $0.refusal.isTry } ?? unanswered.first
        // Nothing new to write: another strategy may do better.
        if let first, found.isEmpty, !entries.contains(where: isGrant) {
            var refusal = first.refusal
            refusal.unreached = unreached(by: judge)
            throw refusal
        }
        let open = open
        let isOpen = { (entry: Verdict.Entry) in if case .open = entry.decision { true } else { false } }
        guard open.contains(where: isOpen) else { return .decided(.transactions(entries + open)) }
        let isTry = open.contains { $0.decision != .open(.historyPending) && isOpen($0) }
        let rest: Examination.Rest =
            switch first?.refusal.fate {
            case .retry(let reason) where isTry: .retry(reason, call: first?.refusal.calls.last.map(Verdict.Call.init))
            case .postpone(let reason, let until): .postpone(reason, until: until)
            case .halt(let reason), .hold(let reason), .reject(let reason): .postpone(reason, until: nil)
            case .retry, nil: historyRest ?? .postpone(.historyPending, until: nil)
            }
        return .partly(entries + open, rest)
    }
}

extension AppleRefusal {
    var isTry: Bool { if case .retry = fate { true } else { false } }

    var reason: Reason {
        switch fate {
        case .retry(let reason), .postpone(let reason, _), .reject(let reason), .hold(let reason), .halt(let reason):
            reason
        }
    }
}
