import Foundation
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: a payload that kills its worker is parked, and a row that no worker had a chance to judge is not. Method:
/// strikes and claims against a real database, as a worker and a scheduler make them.
@Suite struct StrikeTests {
    @Test("P28: eight killed workers park the row and move its attempt on; a verdict in between resets the count")
    func deaths() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            let pointer = Pointer(receiptID: posted.id, attempt: 0)
            #expect(try await lab.ledger.strike(pointer) == 1)
            try await lab.settle(lab.verdict(posted, .receipt(.open(.appleUnavailable))))
            #expect(try await lab.ledger.strike(pointer) == nil, "the row has moved on")
            let next = Pointer(receiptID: posted.id, attempt: 1)
            for death in 1...Statements.rescuesMax { #expect(try await lab.ledger.strike(next) == death) }
            #expect(try await lab.ledger.strike(next) == 0)
            #expect(try await lab.state(posted) == "parked never_worked")
            #expect(
                try await lab.texts("select type || ' ' || (body ->> 'reason') from events")
                    == ["receipt.parked never_worked"])
            #expect(try await lab.ledger.strike(next) == nil, "old messages kill nobody")
            // After the row is woken, one more death parks it, not eight.
            #expect(try await lab.ledger.strike(Pointer(receiptID: posted.id, attempt: 2)) == 0)
            #expect(try await lab.number("select attempt from receipts") == 3)
        }
    }

    @Test("a settled row and another row get no strike; the same pointer twice in a batch counts once")
    func neighbours() async throws {
        try await LedgerLab.with { lab in
            let (settled, open) = (try await lab.post(), try await lab.post())
            try await lab.settle(settled, .purchase("t1"))
            #expect(try await lab.ledger.strike(Pointer(receiptID: settled.id, attempt: 0)) == nil)
            #expect(try await lab.ledger.strike(Pointer(receiptID: UUID(), attempt: 0)) == nil)
            #expect(try await lab.number("select sum(rescues) from receipts") == 0)
            #expect(try await lab.ledger.strike(Pointer(receiptID: open.id, attempt: 0)) == 1)
        }
    }

    @Test("P1: hours without a worker or behind an open breaker park nothing")
    func nobodyTakes() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            for _ in 1...20 {
                try await lab.run("update receipts set due_at = now()")
                let claim = Statements.Claim(
                    lane: .apple, apps: ["game"], limit: 10, rescueDelay: .seconds(60), rescueDelayMax: .seconds(3600),
                    mayPark: false)
                let local = Statements.Claim(
                    lane: .local, apps: ["game"], limit: 10, rescueDelay: .seconds(10), rescueDelayMax: .seconds(3600),
                    mayPark: false)
                let rows =
                    try await lab.ledger.run(Statements.claim, claim)
                    + lab.ledger.run(Statements.claim, local)
                #expect(rows == [ClaimedReceipt(id: posted.id, attempt: 0, isNewlyParked: false)])
            }
            #expect(try await lab.state(posted) == "received")
            // While the row's message lies in a queue without consumers, the scheduler does not publish the row again;
            // it publishes a new row.
            let new = try await lab.post()
            try await lab.run("update receipts set due_at = now()")
            var rows: [UUID] = []
            for lane in Lane.allCases {
                let claim = Statements.Claim(
                    lane: lane, apps: ["game"], limit: 10, rescueDelay: .seconds(10), rescueDelayMax: .seconds(3600),
                    repeats: false)
                rows += try await lab.ledger.run(Statements.claim, claim).map(\.id)
            }
            #expect(rows == [new.id])
            #expect(try await lab.settle(posted, .purchase("t1")) == .granted)
        }
    }
}
