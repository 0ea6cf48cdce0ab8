import AppleGateway
import Foundation
import Ledger
import Purchases

/// Reads evidence about the owners of purchases from the database, only for purchases where evidence could decide.
extension ReceiptVerifier {
    /// Purchases of one statement; further purchases take further statements.
    private static let questionsMax = 512

    /// The judge of these purchases, which are all that the receipt is known to hold.
    ///
    /// - Throws: a postponement, if the database is away for longer than the worker waits for it.
    func judge(
        of transactions: [Transaction], in receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Judge {
        do {
            return try await ledger.patiently { () throws(LedgerError) in
                try await freshJudge(of: transactions, in: receipt, for: app)
            }
        } catch {
            throw AppleRefusal(.postpone(.historyPending, until: nil))
        }
    }

    /// Asks for the evidence as of now, once.
    func freshJudge(
        of transactions: [Transaction], in receipt: StoredReceipt, for app: AppServices
    ) async throws(LedgerError) -> Judge {
        let claim = self.claim(receipt)
        let named = receipt.orderID.map { OrderID.named($0, of: receipt.appID) }
        // For a single purchase only the newest post counts.
        let lines = transactions.count > 1 ? receipt.linesOfOthers(among: transactions) : [:]
        func recordUserID(of transaction: Transaction) -> String? {
            guard app.policy.recordsNameUsers else { return nil }
            return (lines[transaction.id].map(\.declared) ?? receipt.declared)?.uid
        }
        let asked = transactions.filter {
            $0.isOfChain || !claim.isPosted || $0.revokedAt != nil
                || !$0.isShared && (receipt.appHasOrders || recordUserID(of: $0) != nil || $0.appAccountToken != nil)
        }
        if let id = receipt.installationID, claim.hasPossession {
            try await installations.show(id, asked, in: ledger)
        }
        func orderID(of transaction: Transaction) -> UUID? {
            guard let line = lines[transaction.id] else { return named }
            return line.orderID.map { OrderID.named($0, of: receipt.appID) }
        }
        let questions = asked.map {
            EvidenceQuestion(
                appID: receipt.appID, userID: receipt.userID, namedOrderID: orderID(of: $0),
                installationID: receipt.installationID, recordUserID: recordUserID(of: $0), transaction: $0,
                isOnTrust: receipt.isOnTrust,
                isPosted: claim.isPosted, isOneOfSeveral: transactions.count > 1,
                soldAs: app.policy.kind(of: $0.productID))
        }
        var answers: [Evidence] = []
        if questions.count == 1 {
            answers = [try await ledger.evidence(questions[0])]
        } else {
            for start in stride(from: 0, to: questions.count, by: Self.questionsMax) {
                let batch = Array(questions[start..<min(start + Self.questionsMax, questions.count)])
                answers += try await ledger.evidence(batch)
            }
        }
        if app.policy.mode == .shadow { answers = try await ledger.shadowed(answers, of: questions) }
        var evidence = Dictionary(zip(asked.map(\.id), answers), uniquingKeysWith: { first, _ in first })
        let spokenOf = Set(lines.keys)
        Evidence.assign(
            named: named, meant: receipt.transactionID, by: receipt.userID, to: transactions, except: spokenOf,
            &evidence)
        for (id, line) in lines {
            let named = line.orderID.map { OrderID.named($0, of: receipt.appID) }
            Evidence.assign(named: named, meant: id, by: receipt.userID, to: transactions, &evidence)
        }
        Evidence.explain(transactions, &evidence)
        return Judge(
            policy: app.policy, claim: claim, evidence: evidence,
            meantID: receipt.declared?.meant(
                of: transactions.filter { !spokenOf.contains($0.id) }, named: receipt.transactionID,
                sold: app.policy.sold),
            lines: lines)
    }
}

extension Ledger {
    /// Waits for a while, with jitter, for a database that is away. In-flight work is bounded, so the worker stops
    /// consuming.
    func patiently<Value: Sendable>(
        _ body: () async throws(LedgerError) -> Value
    ) async throws(LedgerError) -> Value {
        let start = ContinuousClock.now
        while true {
            do throws(LedgerError) {
                return try await body()
            } catch {
                guard error.isRetryable, ContinuousClock.now - start < VerifyWorker.databasePatience else {
                    throw error
                }
                guard (try? await Task.sleep(for: .milliseconds(Int.random(in: 200...1500)))) != nil else {
                    throw error
                }
            }
        }
    }
}
