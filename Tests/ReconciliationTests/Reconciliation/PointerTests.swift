import AppStoreSimulator
import Encoding
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Ledger
@testable import Reconciliation

/// Goal: a worker judges a row only for the pointer of the row's own attempt: a stale pointer skips no backoff, and
/// neither does a forged one. Method: a row between attempts, messages written by hand, and a simulator that counts.
@Suite(.timeLimit(.minutes(8))) struct PointerTests {
    @Test("a pointer below or above the row's attempt is passed: no call, no strike, the row as it was")
    func others() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(try lab.configuration(more: ["confirmWithApple: always"]))
            let sale = try await lab.sell()
            let submission = Submission(
                appID: VerifyLab.appID, userID: "u1", proof: .signedTransaction(sale.signedTransaction))
            #expect(try await lab.lab.ledger.insert(submission))
            let id = submission.receiptID
            try await lab.lab.run(
                "update receipts set lane = 'apple', attempt = 2, due_at = now() + interval '10 minutes'")
            let row = "select concat_ws(' ', state, lane, attempt, rescues, due_at, judged_at) from receipts"
            let before = try await lab.lab.texts(row)
            for attempt in [0, 1, 3, 99, 2_147_483_648] {
                for redelivered in [false, true] {
                    let message = Array("receipt \(id.text) \(attempt)".utf8)
                    #expect(await processor.process(message, redelivered: redelivered) == .done)
                }
            }
            #expect(try await lab.lab.texts(row) == before)
            #expect(lab.store.calls().isEmpty)
            let own = Array("receipt \(id.text) 2".utf8)
            #expect(await processor.process(own, redelivered: false) == .done)
            #expect(try await lab.lab.grants == ["\(sale.purchase.transactionId) u1"])
            #expect(lab.store.calls().count == 1)
        }
    }
}
