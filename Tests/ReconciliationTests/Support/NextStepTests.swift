import Foundation
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Support

/// Goal: every answer about a receipt names who has to do what, and when (B14). Method: every state with every reason.
@Suite struct NextStepTests {
    @Test("every state with every reason has a next step that is true of it")
    func nextSteps() throws {
        let now = Date.now
        for state in ReceiptState.allCases {
            for reason in [nil] + Reason.allCases.map({ Optional($0.rawValue) }) + ["something_new"] {
                let dueAt = state.isEnded ? nil : now.addingTimeInterval(60)
                let step = NextStep(
                    Self.receipt(state, reason, dueAt: dueAt), app: "game", halts: [], now: now)
                #expect((step.by == .nobody) == state.isEnded, "\(state) \(reason ?? "-")")
                #expect(step.at == dueAt && !step.text.isEmpty)
            }
        }
        let late = NextStep(
            Self.receipt(.received, nil, dueAt: now.addingTimeInterval(-1)), app: "game", halts: [], now: now)
        #expect(late.text.contains("makegood queue status"))
        let halt = TimelineRows.Halt(
            service: "serverApi", environment: "Production", reason: "unauthorized", since: now, probeAt: now)
        let dueAt = now.addingTimeInterval(60)
        let halted = NextStep(Self.receipt(.received, "halted", dueAt: dueAt), app: "game", halts: [halt], now: now)
        #expect(halted.by == .operator && halted.text.contains("serverApi in Production is halted"))
        // A halt that the receipt does not wait for does not matter.
        let other = NextStep(Self.receipt(.received, nil, dueAt: dueAt), app: "game", halts: [halt], now: now)
        #expect(other.by == .makegood)
    }

    private static func receipt(_ state: ReceiptState, _ reason: String?, dueAt: Date?) -> TimelineRows.Receipt {
        TimelineRows.Receipt(
            id: UUID(), userId: "u1", orderId: nil, kind: "receipt", lane: "apple", transactionId: nil,
            originalTransactionId: nil, isVouched: false, state: state, reason: reason, attempt: 0, receivedAt: .now,
            judgedAt: nil, dueAt: dueAt, settledAt: nil, claimedAt: nil, target: nil, declared: nil, purchases: 0)
    }
}
