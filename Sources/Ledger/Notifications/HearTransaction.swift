import Foundation
package import Postgres
package import Purchases

/// The hearings of one transaction.
package struct HearBatch: Sendable {
    package var hearings: [Hearing]
    package var schedule: RetrySchedule
    package var headers: ProofHeaders

    package init(hearings: [Hearing], schedule: RetrySchedule, headers: ProofHeaders = ProofHeaders()) {
        self.hearings = hearings
        self.schedule = schedule
        self.headers = headers
    }
}

extension Database {
    /// Writes hearings in one transaction, and returns for each hearing the new receipts. It stores facts, renewals,
    /// receipts that nobody posted and refund requests, and ends or holds the notifications.
    ///
    /// Nothing is written of a hearing whose notification has ended, was changed since it was read, or is locked by
    /// another process.
    ///
    /// Idempotent: a repeated batch finds its notifications ended, the same facts, and receipts that are there.
    package func hear(_ batch: HearBatch) async throws(PostgresError) -> [[Pointer]] {
        try await transact("ledger.hear") { transaction throws(PostgresError) in
            try HearTransaction(batch, in: transaction).run()
        }
    }
}

/// The two rounds in which a batch is heard. Locks are taken in the same order in every batch: notifications, which
/// are passed over if they are locked; facts, as a settle transaction takes them; chains; new receipts; the purchases
/// of refund requests; Apple's customers.
struct HearTransaction {
    private let batch: HearBatch
    private let transaction: DatabaseTransaction

    init(_ batch: HearBatch, in transaction: DatabaseTransaction) {
        self.batch = batch
        self.transaction = transaction
    }

    /// Runs the rounds and commits. Returns the new receipts of each hearing.
    func run() throws(PostgresError) -> [[Pointer]] {
        let heard = try take()
        guard heard.contains(true) else { return batch.hearings.map { _ in [] } }
        let hearings = zip(batch.hearings, heard).filter(\.1).map(\.0)
        transaction.queue(
            forAny: hearings.flatMap { hearing in
                hearing.net.map { net in hearing.transactions.map { (hearing.appID, net, $0) } } ?? []
            }, Statements.noteCatches)
        transaction.queue(forAny: hearings.flatMap(\.heardPurchases), Statements.noteHeardDifferences)
        transaction.queue(
            forAny: hearings.flatMap { hearing in hearing.transactions.map { (hearing.appID, $0) } },
            Statements.storeHeardFacts)
        transaction.queue(
            forAny: hearings.flatMap { hearing in hearing.renewals.map { (hearing.appID, $0) } },
            Statements.storeRenewals)
        let inserted = insertReceipts(hearings)
        let refundRequests = hearings.compactMap(\.refundRequest)
        transaction.queue(forAny: refundRequests, Statements.lockRefundCases)
        transaction.queue(forAny: refundRequests, Statements.insertRefundRequests)
        transaction.queue(forAny: hearings.compactMap(\.askedChain), Statements.reportChains)
        transaction.queue(
            forAny: hearings.compactMap(\.notification).map { ($0, Self.heldFor * batch.schedule.scale) },
            Statements.endHeardNotifications)
        moveCustomers(hearings)
        try transaction.commit()

        var new = Set(inserted?.rows ?? [])
        return zip(batch.hearings, heard).map { hearing, isHeard in
            guard isHeard else { return [] }
            return hearing.submissions.map(\.receiptID).filter { new.remove($0) != nil }
                .map { Pointer(receiptID: $0, attempt: 0) }
        }
    }

    /// After this time a held notification is judged again, though nobody has asked for it.
    private static let heldFor: Duration = .seconds(7 * 86_400)

    /// Locks the notifications that are as they were read. Of two hearings of one notification the first counts.
    private func take() throws(PostgresError) -> [Bool] {
        let taken = transaction.queue(
            forAny: batch.hearings.compactMap(\.notification), Statements.takeNotifications)
        if taken != nil { try transaction.exchange() }
        var free = Set(taken?.rows ?? [])
        return batch.hearings.map { hearing in
            hearing.notification.map { free.remove($0.id) != nil } ?? true
        }
    }

    /// Enters the customers that Apple names, and moves the places of sweeps, last of all.
    private func moveCustomers(_ hearings: [Hearing]) {
        transaction.queue(forAny: hearings.flatMap(\.customers), Statements.nameCustomers)
        let places = hearings.compactMap(\.customerPlace)
        transaction.queue(forAny: places.filter { $0.net == .customer }, Statements.moveCustomers)
        transaction.queue(forAny: places.filter { $0.net == .refund }, Statements.moveRefunds)
    }

    private func insertReceipts(_ hearings: [Hearing]) -> DatabaseTransaction.Reply<UUID>? {
        var seen: Set<UUID> = []
        let submissions = hearings.flatMap(\.submissions).filter { seen.insert($0.receiptID).inserted }
        guard !submissions.isEmpty else { return nil }
        return transaction.queue(
            Statements.insertUnposted,
            .init(submissions: submissions, schedule: batch.schedule, headers: batch.headers))
    }
}

extension Hearing {
    /// The purchases whose stored facts are compared with Apple's answer. Notifications of the past are no such answer.
    fileprivate var heardPurchases: [HeardPurchase] {
        guard let net, [.subscription, .customer, .refund].contains(net) else { return [] }
        let opened = Set(submissions.compactMap(\.transactionID))
        return transactions.map {
            HeardPurchase(appID: appID, net: net, transaction: $0, opensReceipt: opened.contains($0.id))
        }
    }
}
