import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: a receipt is parked after 24 hours *and* eight attempts, never for one of them alone, and comes back ever more
/// rarely (RetriesAndRescue). Method: the same rules with every delay scaled, the age made by hand.
@Suite(.timeLimit(.minutes(8))) struct SettleParkingTests {
    /// A scale at which 24 hours have long passed (0.86 ms), and one at which they have not.
    private static let short = Parking(scale: 1e-8)

    private func fail(_ posted: Posted, in lab: LedgerLab, times: Int, from attempt: Int = 0) async throws
        -> [ReceiptState]
    {
        var states: [ReceiptState] = []
        for number in attempt..<attempt + times {
            let verdict = lab.verdict(posted, attempt: number, .receipt(.open(.appleUnavailable)))
            states.append(try #require(try await lab.settle(verdict)[posted.id]))
        }
        return states
    }

    @Test("P15: eight attempts without an answer, and the time is over: parked, not before")
    func eightAttempts() async throws {
        try await LedgerLab.with(parking: Self.short) { lab in
            let posted = try await lab.post()
            let states = try await fail(posted, in: lab, times: 10)
            #expect(states == Array(repeating: .received, count: 7) + [.parked, .parked, .parked])
            #expect(try await lab.state(posted) == "parked apple_unavailable")
            #expect(try await lab.number("select count(*) from attempts") == 10)
            #expect(try await lab.number("select max(attempt) from attempts") == 10)
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', type, user_id, transaction_id, receipt_id, body) from events")
                    == [
                        "receipt.parked u1 \(posted.id.text) \(posted.id.text) "
                            + #"{"reason": "apple_unavailable", "attempts": 8}"#
                    ], "told once, however often it is tried after that")
            let id = DerivedID.event(appID: "game", transactionID: posted.id.text, type: .receiptParked)
            #expect(try await lab.texts("select event_id::text from events") == [id.text])
            #expect(try await lab.settle(posted, attempt: 10, .purchase("t1")) == .granted, "parked is still open")
        }
    }

    @Test("a parked receipt of nobody, and one of an app in shadow, is told to nobody")
    func untold() async throws {
        try await LedgerLab.with(parking: Self.short, endsSound: false) { lab in
            #expect(try await fail(try await lab.post(nil), in: lab, times: 8).last == .parked)
            try await lab.run("insert into apps (app_id, configuration_sha256) values ('game', '\\x01')")
            #expect(try await fail(try await lab.post(), in: lab, times: 8).last == .parked)
            #expect(try await lab.number("select count(*) from events") == 0)
        }
    }

    @Test("S1-3: many attempts within the day do not park")
    func youngReceipt() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            #expect(Set(try await fail(posted, in: lab, times: 20)) == [.received])
        }
    }

    @Test("a receipt a day old with seven attempts is still tried")
    func fewAttempts() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let posted = try await lab.post()
            try await lab.run("update receipts set received_at = now() - interval '25 hours'")
            #expect(try await fail(posted, in: lab, times: 8).last == .parked)
            let other = try await lab.post()
            try await lab.run("update receipts set received_at = now() - interval '25 hours'")
            #expect(try await fail(other, in: lab, times: 7).last == .received)
        }
    }

    @Test(
        "parked comes again after an hour, doubling to a day",
        arguments: [(24.5, 1.0), (25, 1), (26, 2), (28, 4), (40, 16), (48, 24), (200, 24)])
    func again(ageHours: Double, waitHours: Double) async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let posted = try await lab.post()
            _ = try await fail(posted, in: lab, times: 7)
            try await lab.run("update receipts set received_at = now() - make_interval(secs => \(ageHours * 3600))")
            #expect(try await fail(posted, in: lab, times: 1, from: 7) == [.parked])
            let wait = try await lab.number("select extract(epoch from due_at - judged_at)::int from receipts")
            #expect(abs(Double(wait) - waitHours * 3600) < 30)
        }
    }

    @Test("an open receipt is due when its verdict says, a held one too, an ended one never")
    func dueTimes() async throws {
        try await LedgerLab.with { lab in
            let wait = "select coalesce(extract(epoch from due_at - judged_at)::int, -1) from receipts where id = "
            for (decisions, expected) in [
                (Verdict.Decisions.receipt(.open(.appleUnavailable)), 77), (.receipt(.held(.noTransactionYet)), 77),
                (.transactions([.purchase("t1", .held(.productUnknown)), .purchase("t2")]), 77),
                (.transactions([.purchase("t3")]), -1), (.receipt(.rejected(.signature)), -1),
            ] {
                let posted = try await lab.post()
                try await lab.settle(lab.verdict(posted, decisions, dueIn: .seconds(77)))
                #expect(try await lab.number(wait + "'\(posted.id)'") == expected)
            }
        }
    }

    @Test("only a try that counted has a row of attempts")
    func attempts() async throws {
        try await LedgerLab.with { lab in
            for decisions in [
                Verdict.Decisions.receipt(.held(.noTransactionYet)), .receipt(.rejected(.signature)),
                .transactions([.purchase("t1")]), .transactions([.purchase("t2", .held(.review))]),
            ] {
                let call = Verdict.Call(
                    service: "serverApi", environment: "Sandbox", httpStatus: 200, code: 4_040_010, milliseconds: 9)
                try await lab.settle(lab.verdict(try await lab.post(), decisions, call: call))
            }
            let postponed = try await lab.post()
            #expect(
                try await lab.ledger.postpone(
                    Postponement(receiptID: postponed.id, attempt: 0, dueIn: .seconds(60), reason: .halted)))
            #expect(try await lab.number("select count(*) from attempts") == 0)
            #expect(try await lab.number("select max(attempt) from receipts") == 0)
            #expect(try await lab.state(postponed) == "received halted")
            try await lab.settle(lab.verdict(postponed, .receipt(.open(.clockAhead))))
            #expect(try await lab.texts("select concat_ws(' ', attempt, reason) from attempts") == ["1 clock_ahead"])
        }
    }

    @Test("a postponement is guarded like a verdict, keeps a held receipt's reason and frees its rescues")
    func postpone() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            let later = { (attempt: Int) in
                Postponement(receiptID: posted.id, attempt: attempt, dueIn: .seconds(300), reason: .halted)
            }
            #expect(try await lab.ledger.postpone(later(1)) == false)
            try await lab.run("update receipts set rescues = 5")
            #expect(try await lab.ledger.postpone(later(0)))
            #expect(try await lab.number("select rescues from receipts") == 0)
            try await lab.settle(posted, .purchase("t1", .held(.productUnknown)))
            #expect(try await lab.ledger.postpone(later(0)))
            #expect(try await lab.state(posted) == "held product_unknown")
            try await lab.settle(posted, .purchase("t1"))
            #expect(try await lab.ledger.postpone(later(0)) == false, "an ended receipt is never due again")
            #expect(try await lab.number("select count(*) from receipts where due_at is not null") == 0)
        }
    }
}
