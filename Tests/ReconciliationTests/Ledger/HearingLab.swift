import Encoding
import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Facts that Apple tells without a post, as the tests name them.
extension LedgerLab {
    /// Runs one hear transaction without a notification.
    @discardableResult
    func hear(
        _ transactions: Transaction..., renewals: [Renewal] = [], submissions: [Submission] = [],
        on session: Database? = nil
    ) async throws -> [Pointer] {
        var hearing = Hearing(notification: nil, appID: "game")
        (hearing.transactions, hearing.renewals, hearing.submissions) = (transactions, renewals, submissions)
        return try await hear([hearing], on: session)[0]
    }

    func hear(_ hearings: [Hearing], on session: Database? = nil) async throws -> [[Pointer]] {
        try await (session ?? database).hear(HearBatch(hearings: hearings, schedule: RetrySchedule()))
    }

    /// Runs one follow-up transaction.
    @discardableResult
    func followUp(on session: Database? = nil) async throws -> FollowedChains {
        try await (session ?? database).followUpChains(policies: [:], limit: 64)
    }

    /// `transaction ordinal kind reason percentage amount`, in order; of the goods the first amount.
    var revocations: [String] {
        get async throws {
            try await texts(
                """
                select concat_ws(' ', transaction_id, ordinal, kind, reason, percentage, goods -> 0 ->> 'amount')
                from revocations order by transaction_id, ordinal
                """)
        }
    }

    /// `type user transaction` of the events of these types, in their order.
    func told(_ types: String) async throws -> [String] {
        try await texts(
            """
            select concat_ws(' ', type, user_id, transaction_id) from events where type like '\(types)' order by xid, id
            """)
    }

    /// A notification as ingest stores it.
    func notification(_ id: UUID = UUID(), attempt: Int = 0) async throws -> Hearing.Notification {
        try await run(
            """
            insert into notifications (id, version, app_id, type, payload, payload_sha256, due_at, attempt)
            values ('\(id)', 2, 'game', 'REFUND', 'payload', 'x', now(), \(attempt))
            """)
        return Hearing.Notification(id: id, attempt: attempt, ending: .ended)
    }
}

extension Hearing {
    /// Facts that this server asked for.
    static func of(_ transactions: Transaction...) -> Hearing {
        var hearing = Hearing(notification: nil, appID: "game")
        hearing.transactions = transactions
        return hearing
    }
}

extension Transaction {
    static let refundFacts = #"{"reason": "PURCHASE", "revocationReason": 0, "revocationType": "REFUND_FULL"}"#

    /// The purchase as Apple signs it so many seconds after it was bought.
    func signed(_ seconds: Double, _ change: (inout Transaction) -> Void = { _ in }) -> Transaction {
        var transaction = self
        transaction.signedAt = purchasedAt + seconds
        transaction.facts = #"{"reason": "PURCHASE"}"#
        transaction.reason = "PURCHASE"
        change(&transaction)
        return transaction
    }

    /// As ``signed(_:_:)``, ended 50 seconds after it was bought.
    func refunded(
        _ seconds: Double, percentage: Int? = nil, _ change: (inout Transaction) -> Void = { _ in }
    ) -> Transaction {
        signed(seconds) {
            $0.revokedAt = $0.purchasedAt + 50
            $0.facts =
                percentage.map {
                    #"{"reason": "PURCHASE", "revocationType": "REFUND_PRORATED", "revocationPercentage": \#($0)}"#
                } ?? Self.refundFacts
            $0.revocation = Revocation(
                reason: percentage == nil ? 0 : nil, type: percentage == nil ? Revocation.full : Revocation.prorated,
                percentage: percentage)
            change(&$0)
        }
    }
}

extension RightsTests {
    /// Hears Apple and follows up chains as the worker.
    static func workOnChains(
        in lab: LedgerLab,
        _ act: (DatabaseRole, LedgerLab, (Database) async throws -> Void) async throws -> Void
    ) async throws {
        let notification = try await lab.notification()
        try await act(.worker, lab) { database in
            let transaction = Verdict.Entry.purchase("heard", kind: .autoRenewable) {
                $0.expiresAt = $0.purchasedAt + 86_400
            }.transaction.refunded(60)
            let submission = Submission(unposted: transaction, jws: "j", of: "game", source: .notification)
            var hearing = Hearing.of(transaction)
            hearing.notification = notification
            hearing.renewals = [
                Renewal(originalID: "heard", environment: Transaction.production, signedAt: LedgerLab.bought)
            ]
            hearing.submissions = [submission]
            hearing.refundRequest = RefundRequest(
                notificationID: notification.id, appID: "game", environment: Transaction.production,
                transactionID: "heard", originalID: "heard", reason: nil, askedAt: .now)
            #expect(
                try await lab.hear([hearing], on: database) == [[Pointer(receiptID: submission.receiptID, attempt: 0)]])
            #expect(try await lab.followUp(on: database).chains > 0)
            let claim = Statements.ChainClaim(appIDs: ["game"], limit: 1, lease: .seconds(1))
            _ = try await database.run(Statements.claimChains, claim)
            _ = try await database.run(Statements.compareChains, .init(appIDs: ["game"], again: .seconds(1)))
            let chain = Statements.ChainQuestion(
                appID: "game", environment: Transaction.production, originalID: "heard")
            _ = try await database.run(Statements.receiptOfChain, chain)
            _ = try await database.run(Statements.unjudged, ["heard"])
            try await database.transact("test.follow_up") { transaction throws(PostgresError) in
                transaction.queue(Statements.readChainPurchases, [])
                transaction.queue(Statements.readRevocations, [])
                transaction.queue(Statements.holdersBeingErased, [])
                transaction.queue(Statements.takeRejudged, .init(transactions: [], revokedIDs: []))
                transaction.queue(Statements.takeUnposted, [])
                transaction.queue(Statements.writeRevocations, [])
                transaction.queue(Statements.writeChains, [])
                transaction.queue(Statements.reportChains, [])
                transaction.queue(Statements.markContinuedChains, [])
                transaction.queue(Statements.putOffBusy, [])
                transaction.queue(Statements.putOffChain, ())
                transaction.queue(Statements.reopenRefunded, [])
                let woken = transaction.queue(Statements.wakeReceipts, [submission.receiptID])
                let wokenAgain = transaction.queue(
                    Statement<UUID, Bool>(
                        "test.wake", "select wake_unposted($1, 'game')", bind: { [.uuid($0)] },
                        read: { row throws(PostgresError) in try row.bool(0) }), submission.receiptID)
                transaction.queue(Statements.forgetMarks, [])
                try transaction.exchange()
                #expect(woken.rows.count == 1 && wokenAgain.rows == [true])
            }
        }
        try await act(.support, lab) { database in
            #expect(try await FollowUpCheck.run(database, span: .all).violation == nil)
            try await database.transact("test.check_chains", isSnapshot: true) { transaction throws(PostgresError) in
                transaction.queue(Statements.recheckChainPurchases, [])
                transaction.queue(Statements.readRevocations, [])
                try transaction.commit()
            }
        }
    }
}
