import Encoding
import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Goal: a chain is one chain under both of its original ids, and a shared purchase has an owner of its own (Ownership,
/// rows 0d, 4 and 8). Method: purchases through the ledger, and the evidence for the purchases that continue them.
@Suite(.timeLimit(.minutes(8))) struct ChainEvidenceTests {
    private static func period(
        _ id: String, of original: String, day: Double, _ change: (inout Transaction) -> Void = { _ in }
    ) -> Transaction {
        Verdict.Entry.purchase(id, of: original, kind: .autoRenewable) {
            $0.purchasedAt += day * 86_400
            $0.expiresAt = $0.purchasedAt + 30 * 86_400
            $0.signedAt = $0.purchasedAt
            $0.reason = "PURCHASE"
            change(&$0)
        }.transaction
    }

    private static func give(
        _ transaction: Transaction, to user: String, by source: BindingSource = .poster, takes: Bool = false,
        in lab: LedgerLab
    ) async throws {
        var match = Match(userID: user, source: source)
        match.takesChain = takes
        try await lab.settle(
            try await lab.post(user),
            Verdict.Entry(
                transaction: transaction,
                decision: .grant(goods: source == .shared ? [] : Verdict.Entry.coins, source: source), match: match))
    }

    @Test("row 4: a chain that goes on under another original id is its owner's, whose is the latest of both")
    func previous() async throws {
        try await LedgerLab.with { lab in
            let bundle = Self.period("b1", of: "b1", day: 10) { $0.previousOriginalID = "p1" }
            func owner(_ transaction: Transaction) async throws -> String? {
                try await lab.evidence(lab.question(transaction))[0].chain?.userID
            }
            #expect(try await owner(bundle) == nil)
            // One period was granted without an ownership, the other one with one.
            try await Self.give(Self.period("p1", of: "p1", day: 0), to: "u1", in: lab)
            #expect(try await owner(bundle) == "u1")
            try await Self.give(Self.period("p2", of: "p1", day: 1), to: "u2", takes: true, in: lab)
            #expect(try await owner(bundle) == "u2")
            try await Self.give(bundle, to: "u3", takes: true, in: lab)
            let renewal = Self.period("b2", of: "b1", day: 40)
            #expect(try await owner(renewal) == "u3")
            var linked = renewal
            linked.previousOriginalID = "p1"
            #expect(try await owner(linked) == "u3", "the later of both names")
            // The customer goes back to the subscription: the transaction names the bundle.
            let again = Self.period("p3", of: "p3", day: 41) { $0.previousOriginalID = "b1" }
            #expect(try await owner(again) == "u3")
            #expect(try await owner(Self.period("x", of: "x", day: 41)) == nil)
        }
    }

    @Test("row 4: the product before and its end are evidence where nobody posted the purchase")
    func productBefore() async throws {
        try await LedgerLab.with { lab in
            try await Self.give(Self.period("p1", of: "p1", day: 0), to: "u1", in: lab)
            try await Self.give(
                Self.period("p2", of: "p1", day: 20) { $0.productID = "plus" }, to: "u1", in: lab)
            func chain(_ transaction: Transaction, isPosted: Bool = false) async throws -> Evidence.Chain? {
                try await lab.evidence(lab.question(transaction, by: nil, isPosted: isPosted))[0].chain
            }
            let bundle = Self.period("b1", of: "b1", day: 30) { $0.previousOriginalID = "p1" }
            let expected = Evidence.Chain(
                userID: "u1", productID: "plus", runsUntil: LedgerLab.bought + 50 * 86_400)
            #expect(try await chain(bundle) == expected)
            #expect(try await chain(bundle, isPosted: true) == .init(userID: "u1"))
            // The evidence has the product of the purchase, not the chain's product now.
            let upgrade = Self.period("p2", of: "p1", day: 20) { $0.productID = "plus" }
            #expect(try await chain(upgrade)?.productID == "coins")
            let policy = AppPolicy(
                id: "game", grantFrom: .distantPast,
                products: [.init(id: "coins", kind: .autoRenewable, goods: Verdict.Entry.coins)])
            let claim = Claim(userID: nil, hasPossession: true, receivedAt: bundle.purchasedAt, isPosted: false)
            let entry = policy.judge(
                bundle, claim: claim,
                evidence: try await lab.evidence(lab.question(bundle, by: nil, isPosted: false))[0])
            #expect(entry.decision == .grant(goods: Verdict.Entry.coins, source: .chain))
            #expect(entry.match?.userID == "u1")
        }
    }

    @Test("row 0d: the owner of what is shared is found by it alone, and says nothing of what was bought")
    func shared() async throws {
        try await LedgerLab.with { lab in
            let share = { (id: String, day: Double) in
                Self.period(id, of: "s1", day: day) { $0.ownership = "FAMILY_SHARED" }
            }
            try await Self.give(share("s1", 0), to: "u1", by: .shared, in: lab)
            let next = share("s2", 30)
            let evidence = try await lab.evidence(lab.question(next, by: "u2"))[0]
            #expect(evidence.chain == .init(userID: "u1"))
            let bought = Self.period("s3", of: "s1", day: 30)
            #expect(try await lab.evidence(lab.question(bought, by: "u2"))[0].chain == nil)

            let policy = AppPolicy(
                id: "game", grantFrom: .distantPast,
                products: [.init(id: "coins", kind: .autoRenewable, goods: Verdict.Entry.coins)])
            let posted = try await lab.post("u2")
            let claim = Claim(userID: "u2", hasPossession: true, receivedAt: next.purchasedAt)
            try await lab.settle(posted, policy.judge(next, claim: claim, evidence: evidence))
            #expect(try await lab.grants == ["s1 u1", "s2 u1"])
            #expect(try await lab.outcomes(posted) == ["s2": "granted owned_by_another_user"])
            // The poster keeps the client's copy for a day; nobody is told of a dispute about a purchase that is shared
            // in a family.
            #expect(try await lab.number("select count(*) from outcomes where safe_at is not null") == 1)
            #expect(try await lab.number("select count(*) from events where type = 'ownership.disputed'") == 0)
        }
    }
}
