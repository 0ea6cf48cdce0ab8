import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: the owner of a held purchase is told, once for each reason, and nobody else is (B8). Method: settle
/// transactions against a real database.
@Suite(.timeLimit(.minutes(8))) struct HoldEventTests {
    private static func held(_ id: String, _ reason: Reason, owner: String?) -> Verdict.Entry {
        Verdict.Entry(
            transaction: Verdict.Entry.purchase(id).transaction, decision: .held(reason),
            heldBy: .init(.orderToken, owner: owner))
    }

    private static func told(in lab: LedgerLab) async throws -> [String] {
        try await lab.texts(
            """
            select concat_ws(' ', type, user_id, transaction_id, body ->> 'reason') from events order by id
            """)
    }

    @Test("once for each reason, whoever posts and however often it is looked at; the grant follows")
    func onceForEachReason() async throws {
        try await LedgerLab.with { lab in
            let (posted, other) = (try await lab.post("u1"), try await lab.post("u2"))
            for _ in 0..<2 {
                #expect(try await lab.settle(posted, Self.held("t1", .productUnknown, owner: "u1")) == .held)
            }
            #expect(try await lab.settle(other, Self.held("t1", .productUnknown, owner: "u1")) == .held)
            #expect(try await Self.told(in: lab) == ["purchase.held u1 t1 product_unknown"])
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', receipt_id, body ->> 'productId', body ->> 'quantity',
                      body ->> 'environment', body ->> 'originalTransactionId', body ->> 'purchasedAt') from events
                    """) == ["\(posted.id.text) coins 1 Production t1 2027-01-15T08:00:00.000Z"])
            #expect(try await lab.settle(posted, Self.held("t1", .itemUnknown, owner: "u1")) == .held)
            #expect(try await lab.settle(posted, .purchase("t1")) == .granted)
            #expect(
                try await Self.told(in: lab) == [
                    "purchase.held u1 t1 product_unknown", "purchase.held u1 t1 item_unknown",
                    "purchase.granted u1 t1",
                ])
        }
    }

    @Test("the owner is told who is not the poster; where no owner is known, or for another reason, nobody is")
    func owners() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post("u1")
            #expect(try await lab.settle(posted, Self.held("t1", .purchaseAhead, owner: "u2")) == .held)
            #expect(try await Self.told(in: lab) == ["purchase.held u2 t1 purchase_ahead"])
            for (number, (reason, owner)) in [
                (Reason.productUnknown, nil), (.beforeCutover, "u1"), (.tokenDisputed, "u1"), (.shadow, "u1"),
                (.transferReview, "u1"), (.unclaimed, "u1"),
            ].enumerated() {
                let posted = try await lab.post("u1")
                let entry = Self.held("x\(number)", reason, owner: owner)
                #expect(try await lab.settle(posted, entry) == .held)
            }
            #expect(try await lab.number("select count(*) from events") == 1)
        }
    }

    @Test("decided otherwise, as in shadow, a held purchase is told to nobody")
    func otherwise() {
        #expect(Self.held("t1", .review, owner: "u1").with(.held(.review)).heldBy == .init(.orderToken))
    }
}
