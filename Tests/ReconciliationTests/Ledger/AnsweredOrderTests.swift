import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Goal: Apple's answer about a purchase that was granted on trust names the order and the place in the game as the grant
/// did (S0-9, B10). Method: a purchase of an order is granted on trust, and Apple confirms or denies it.
@Suite(.timeLimit(.minutes(2))) struct AnsweredOrderTests {
    private static let target = #"{"ext": null, "role": 12, "zone": {"lines": [1, 2.50]}, "server": "s7"}"#

    @Test(
        "S0-9: the answer repeats the order, its number and the target of the grant, member for member",
        arguments: [true, false])
    func order(isConfirmed: Bool) async throws {
        try await LedgerLab.with { lab in
            let order = try await lab.place("u1", goods: #"[{"item": "coin", "amount": 60}]"#)
            try await lab.run("update orders set target = '\(Self.target)'")
            let posted = try await lab.post("u1", kind: .signedTransaction)
            let matched = try await lab.matched("t1", by: "u1", order: order)
            let places = Statements.PlaceQuestion(
                receiptID: posted.id, appID: "game", transactions: [matched.transaction],
                limits: .init(perUserPerDay: 1, perAppPerDay: 1))
            #expect(try await lab.ledger.run(Statements.takePlaces, places) == ["t1"])
            let onTrust = Verdict.Entry(
                transaction: matched.transaction,
                decision: .provisional(goods: Verdict.Entry.coins, source: .namedOrder), match: matched.match)
            #expect(try await lab.settle(posted, onTrust) == .received)
            let answer =
                isConfirmed
                ? Verdict.Entry.purchase("t1")
                : .purchase("t1", .rejected(.refunded)) { $0.revokedAt = Date(timeIntervalSince1970: 1_800_000_100) }
            #expect(try await lab.settle(posted, answer) == .granted)
            #expect(
                try await lab.texts("select type from events order by id")
                    == ["purchase.granted", isConfirmed ? "purchase.confirmed" : "purchase.revoked"])
            let told = try await lab.texts(
                "select concat_ws(' ', body ->> 'orderId', body ->> 'orderNumber', body -> 'target') from events")
            let id = order.uuidString.lowercased()
            #expect(told == Array(repeating: "\(id) \(id) \(Self.target)", count: 2))
            #expect(
                try await lab.number("select count(*) from events where body ? 'reason' or body ? 'revokedAt'")
                    == (isConfirmed ? 0 : 1))
        }
    }
}
