import Foundation
import Purchases
import Testing

/// Goal: Apple's answer is recognized as the answer about a purchase that was given on trust, under whatever id and in
/// whatever form it comes (B10). Method: the rules one by one, on receipts of a few purchases.
@Suite struct TrustedReceiptTests {
    private static let date = Date(timeIntervalSince1970: 1_800_000_000)
    private static let grant = Decision.grant(goods: [.init(item: "coin", amount: 60)], source: .poster)

    private static func transaction(
        _ id: String, of original: String? = nil, signedAt: Date? = nil, revokedAt: Date? = nil
    ) -> Transaction {
        Transaction(
            id: id, originalID: original, productID: "coins", kind: .consumable, environment: Transaction.production,
            purchasedAt: date, revokedAt: revokedAt, signedAt: signedAt)
    }

    private static func entry(_ transaction: Transaction, _ decision: Decision = grant) -> Verdict.Entry {
        Verdict.Entry(transaction: transaction, decision: decision)
    }

    private static func given(_ transaction: Transaction) -> TrustedReceipt.Purchase {
        TrustedReceipt.Purchase(transaction: transaction, grantKey: transaction.purchaseKey)
    }

    private static func reading(
        _ decisions: Verdict.Decisions, by purchases: TrustedReceipt.Purchase...
    ) -> [Verdict.Entry]? {
        if case .transactions(let entries) = TrustedReceipt(purchases).reading(decisions) { entries } else { nil }
    }

    @Test("by its id, or by its purchase under another id: then under the id it was given by")
    func ids() {
        let trusted = Self.given(Self.transaction("t1", of: "o1"))
        let neighbour = Self.entry(Self.transaction("t2"))
        // A rule of ours holds it, but Apple's answer is there: confirmed.
        let confirmed = Decision.grant(goods: [], source: .poster)
        for (decision, read) in [
            (Self.grant, Self.grant), (.rejected(.refunded), .rejected(.refunded)),
            (.held(.productUnknown), confirmed),
        ] {
            let renamed = Self.entry(Self.transaction("t1", of: "o1", signedAt: Self.date), read)
            for id in ["t1", "t9"] {
                let named = Self.entry(Self.transaction(id, of: "o1", signedAt: Self.date), decision)
                #expect(Self.reading(.transactions([neighbour, named]), by: trusted) == [neighbour, renamed])
            }
        }
        // An answer that was already known when the purchase was given confirms nothing.
        let waits = Self.entry(Self.transaction("t1", of: "o1"), .held(.productUnknown))
        #expect(Self.reading(.transactions([waits]), by: trusted) == [waits])
        // Both ids are there: each purchase keeps its own.
        let both = [Self.entry(Self.transaction("t9", of: "o1")), Self.entry(Self.transaction("t1", of: "o1"))]
        #expect(Self.reading(.transactions(both), by: trusted) == both)
        // This purchase was not given.
        let open = TrustedReceipt.Purchase(
            transaction: Self.transaction("t1", of: "o1"), before: .open(.appleAnswer))
        let other = [Self.entry(Self.transaction("t9", of: "o1"))]
        #expect(Self.reading(.transactions(other), by: open) == other)
        #expect(TrustedReceipt([trusted, open]).given == ["t1"])
    }

    @Test(
        "F12, F13: a period by its end, where its billing event is not named; another consumable's facts prove nothing"
    )
    func otherIDs() {
        func period(_ id: String, lineItem: String?) -> Transaction {
            Transaction(
                id: id, originalID: "o1", productID: "pass", kind: .autoRenewable, environment: Transaction.production,
                purchasedAt: Self.date, expiresAt: Self.date + 86_400, webOrderLineItemID: lineItem)
        }
        let word = Self.entry(period("t9", lineItem: "77"))
        let read = Self.entry(period("t1", lineItem: "77"))
        #expect(Self.reading(.transactions([word]), by: Self.given(period("t1", lineItem: nil))) == [read])
        var later = Self.transaction("t9", of: "o1")
        later.purchasedAt += 60
        let other = Self.entry(later)
        #expect(Self.reading(.transactions([other]), by: Self.given(Self.transaction("t1", of: "o1"))) == [other])
    }

    @Test("a refund on record answers a confirmation that Apple signed before it, and a silence; nothing else")
    func refunds() {
        let stored = Self.transaction("t1", signedAt: Self.date, revokedAt: Self.date - 60)
        let refund = Self.entry(stored, .rejected(.refunded))
        for (signedAt, isAnswered) in [
            (Date?.none, true), (Self.date - 1, true), (Self.date, false), (Self.date + 1, false),
        ] {
            let word = Self.entry(Self.transaction("t1", signedAt: signedAt))
            #expect(Self.reading(.transactions([word]), by: Self.given(stored)) == [isAnswered ? refund : word])
        }
        let open = Self.entry(Self.transaction("t1"), .open(.appleAnswer))
        #expect(Self.reading(.transactions([open]), by: Self.given(stored)) == [open])
        let neighbour = Self.entry(Self.transaction("t2"))
        #expect(Self.reading(.transactions([neighbour]), by: Self.given(stored)) == [neighbour, refund])
        let unnamed = Self.given(Self.transaction("t1"))
        #expect(Self.reading(.transactions([neighbour]), by: unnamed) == [neighbour])
    }

    @Test(
        "Apple refuses the whole receipt: taken back, but what is held with facts; what is our mistake is read as it is"
    )
    func denials() {
        let purchases = [
            Self.given(Self.transaction("t1")),
            Self.given(Self.transaction("t2", signedAt: Self.date, revokedAt: Self.date)),
            .init(transaction: Self.transaction("t3"), before: .held(.productUnknown)),
            .init(transaction: Self.transaction("t4"), before: .held(.possessionMissing)),
            .init(transaction: Self.transaction("t5"), before: .open(.appleAnswer)),
        ]
        let trusted = TrustedReceipt(purchases)
        for reason in Reason.allCases {
            let decisions = trusted.reading(.receipt(.rejected(reason)))
            guard Reason.takingBack.contains(reason) else {
                guard case .receipt(.rejected(reason)) = decisions else {
                    Issue.record("\(reason) is read otherwise")
                    continue
                }
                continue
            }
            guard case .transactions(let entries) = decisions else {
                Issue.record("\(reason) takes nothing back")
                continue
            }
            #expect(entries.map(\.transaction) == purchases.map(\.transaction))
            #expect(
                entries.map(\.decision) == [
                    .rejected(reason), .rejected(.refunded), .held(.productUnknown), .rejected(reason),
                    .rejected(reason),
                ])
        }
        for decision in [Decision.open(.appleAnswer), .held(.credentialsMissing)] {
            guard case .receipt(decision) = trusted.reading(.receipt(decision)) else {
                Issue.record("\(decision) is read otherwise")
                continue
            }
        }
        // It was confirmed a moment ago: the ledger decides about the other purchases.
        guard case .receipt = TrustedReceipt([]).reading(.receipt(.rejected(.notAuthenticated))) else {
            Issue.record("nothing is left to name")
            return
        }
    }
}
