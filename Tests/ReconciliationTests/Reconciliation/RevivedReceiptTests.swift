import Foundation
import Purchases
import Testing

@testable import Ledger
@testable import Reconciliation

/// Goal: a reversal of a refund gives what nobody posted, also after retention has emptied its payload (S3-46a).
/// Method: the transactions of the real database, and a worker's verifier, with a payload that no verifier could read.
@Suite(.timeLimit(.minutes(5))) struct RevivedReceiptTests {
    @Test(
        "a receipt that nobody posted is judged by Apple's stored facts once its payload is gone; a posted one is not")
    func revived() async throws {
        try await VerifyLab.with { verify in
            let lab = verify.lab
            let token = UUID()
            try await lab.run(
                "insert into user_tokens (app_id, token, user_id, source) values ('game', '\(token)', 'u1', 'registered')"
            )
            let transaction = Verdict.Entry.purchase("t1", kind: .nonConsumable) {
                $0.purchasedAt = Date(timeIntervalSinceNow: -3600)
                $0.appAccountToken = token
            }.transaction
            let refunded = transaction.refunded(60)
            let submission = Submission(unposted: transaction, jws: "h.b.s", of: "game", source: .notification)
            try await lab.hear(refunded, submissions: [submission])
            let unposted = Posted(id: submission.receiptID, userID: nil, appID: "game")
            let posted = try await lab.post("u2", kind: .signedTransaction, transactionID: "t1")
            for receipt in [unposted, posted] {
                try await lab.settle(receipt, Verdict.Entry(transaction: refunded, decision: .rejected(.refunded)))
                #expect(try await lab.state(receipt) == "rejected refunded")
            }
            try await lab.run("delete from stored_payloads")
            try await lab.hear(transaction.signed(90))
            #expect(try await lab.followUp().woken.map(\.pointer) == [Pointer(receiptID: unposted.id, attempt: 1)])
            #expect(try await lab.state(unposted) == "received")
            #expect(try await lab.state(posted) == "rejected refunded")
            #expect(
                try await Invariant.check(lab.database, scale: 0) == [], "an open receipt without a payload is sound")

            let stored = try #require(try await lab.ledger.fetch(unposted.id))
            #expect(!stored.hasPayload)
            let app = try await verify.app(hasServerAPI: false)
            let examination = await verify.receiptVerifier().examine(stored, for: app)
            guard case .entries(let entries) = Seen(examination), case .grant? = entries["t1"] else {
                Issue.record("\(Seen(examination))")
                return
            }
            guard case .decided(let decisions) = examination else { return }
            try await lab.settle(lab.verdict(unposted, attempt: 1, decisions))
            #expect(try await lab.grants == ["t1 u1"])

            // Nobody has stored what such a receipt is about: a person looks.
            let unknown = verify.row(.signedTransaction(""), transactionID: "t1", hasPayload: false)
            #expect(Seen(await verify.receiptVerifier().examine(unknown, for: app)) == .whole(.held(.review)))
        }
    }
}
