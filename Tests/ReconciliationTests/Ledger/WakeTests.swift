import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger
@testable import Reconciliation

/// Goal: a wake begins a new attempt, so that a verdict by what was known before writes nothing, and is no try: it parks
/// no receipt and makes no wait longer. Method: wakes by both statements, then failed tries, the age made by hand.
@Suite(.timeLimit(.minutes(8))) struct WakeTests {
    @Test("P15: eight wakes of a receipt that is a day old park nothing; eight failed tries do")
    func wakesAreNoTries() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let transaction = Verdict.Entry.purchase("w1").transaction
            let submission = Submission(unposted: transaction, jws: "w1", of: "game", source: .sweep)
            try await lab.hear(submissions: [submission])
            try await lab.run("update receipts set received_at = now() - interval '25 hours'")
            let receipt = Posted(id: submission.receiptID, userID: nil, appID: "game")
            for number in 1...4 {
                #expect(try await lab.texts("select wake_unposted(id, 'game')::text from receipts") == ["true"])
                let woken = try await lab.database.run(Statements.wakeReceipts, [receipt.id])
                #expect(woken.map(\.pointer) == [Pointer(receiptID: receipt.id, attempt: 2 * number)])
            }
            let stored = try #require(try await lab.ledger.fetch(receipt.id))
            #expect(stored.attempt == 8 && stored.wakes == 8 && stored.tries == 0)
            let schedule = RetrySchedule()
            #expect(schedule.wait(after: stored) == .row(schedule.delay(ofRetryQueue: 0)))

            let failed = Verdict.Decisions.receipt(.open(.appleUnavailable))
            #expect(try await lab.settle(lab.verdict(receipt, attempt: 0, failed)).isEmpty, "read before the wakes")
            var states: [ReceiptState?] = []
            for attempt in 8..<16 {
                states.append(try await lab.settle(lab.verdict(receipt, attempt: attempt, failed))[receipt.id])
            }
            #expect(states == Array(repeating: .received, count: 7) + [.parked])
            #expect(try #require(try await lab.ledger.fetch(receipt.id)).tries == 8)
        }
    }

    @Test("I13: the wait of a receipt that was woken is the wait of its tries")
    func backoff() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let receipt = try await lab.post()
            for _ in 0..<3 { _ = try await lab.database.run(Statements.wakeReceipts, [receipt.id]) }
            for attempt in 3..<5 {
                let verdict = lab.verdict(receipt, attempt: attempt, .receipt(.open(.appleUnavailable)))
                #expect(try await lab.settle(verdict)[receipt.id] == .received)
            }
            for (seconds, isSound) in [(5.0, true), (4, false)] {
                try await lab.run(
                    "update attempts set at = now() - make_interval(secs => \(seconds) * (5 - attempt))")
                let violations = try await Invariant.check(lab.database).filter { $0.invariant == "backoff" }
                #expect(violations.isEmpty == isSound, "\(seconds)")
            }
        }
    }
}
