import Encoding
import Foundation
import Purchases
import Testing

/// Goal: in every rule, two users are the same only if the bytes of their ids are. Method: a poster and another user
/// whose ids String takes for equal; the test asks each rule about the other user.
@Suite struct SameTextTests {
    private static let (me, other) = ("jos\u{e9}", "jose\u{301}")

    @Test("texts are the same where their bytes are; nil is the same as nil alone")
    func texts() {
        #expect(Self.me == Self.other, "the danger is there")
        for (one, another, isSame) in [
            (Self.me, Self.other, false), (Self.me, Self.me, true), ("K", "\u{212A}", false), ("", "", true),
            ("a", "", false), ("a", "ab", false),
        ] {
            #expect(one.isSameText(as: another) == isSame && another.isSameText(as: one) == isSame)
            #expect(String?.some(one).isSameText(as: another) == isSame)
        }
        let nothing: String? = nil
        #expect(!"".isSameText(as: nothing) && !nothing.isSameText(as: "") && nothing.isSameText(as: nil) == true)
    }

    @Test("row 0e: nobody is a tester by another spelling, and both spellings may be testers")
    func testers() {
        let policy = DecisionTests.policy { $0.testers = [Self.other] }
        #expect(policy.isTester(Self.other) && !policy.isTester(Self.me))
        let sandbox = DecisionTests.transaction { $0.environment = Transaction.sandbox }
        #expect(policy.decide(sandbox, claim: Self.claim) == .held(.sandbox))
        let both = DecisionTests.policy { $0.testers = [Self.other, Self.me] }
        #expect(both.isTester(Self.other) && both.isTester(Self.me))
    }

    @Test("rows 5 and 7: another's order is not the poster's, named or open")
    func orders() {
        let order = MatcherTableTests.order(Self.other, 5)
        #expect(Self.judged { $0.orders = [order] }.decision == DecisionTests.granted)
        let named = Self.judged {
            $0.orders = [order]
            $0.namedOrderID = order.id
        }
        #expect(named.decision == .held(.foreignOrder))
    }

    @Test("row 6: another's order on the same installation is another's")
    func orderOfAnother() {
        let entry = Self.judged {
            $0.orders = [MatcherTableTests.order(Self.other, 5) { $0.isOnProvenInstallation = true }]
        }
        #expect(entry.match?.source == .orderOfAnother && Self.isOthers(entry))
    }

    @Test("row 3: a token that another user used before is another's")
    func rememberedToken() {
        let entry = Self.judged({ $0.rememberedUserIDs = [Self.other] }) { $0.appAccountToken = UUID() }
        #expect(entry.decision == .held(.tokenDisputed))
    }

    @Test("row 5a: a record names another user than its poster, and what the post says of the item is the other's")
    func record() {
        let entry = Self.judged { $0.recordUserID = Self.other }
        #expect(entry.match?.source == .record && Self.isOthers(entry))
    }

    @Test("note 3: a chain moves between the two, and on trust nothing is given to another than the poster")
    func chains() {
        let entry = Self.judged({
            $0.chain = .init(userID: Self.other)
            $0.registeredUserID = Self.me
        }) {
            $0.productID = "pass"
            $0.kind = .autoRenewable
            $0.reason = "PURCHASE"
            $0.originalID = "1"
            $0.appAccountToken = UUID()
        }
        #expect(entry.match?.takesChain == true)
        #expect(entry.match?.userID.isSameText(as: Self.me) == true)
        #expect(entry.match?.chainWasOf.isSameText(as: Self.other) == true)
        let policy = AppPolicy(
            id: "game", grantFrom: .distantPast, provisional: .init(perUserPerDay: 1, perAppPerDay: 1),
            products: [.init(id: "pass", kind: .autoRenewable, goods: [], isProvisional: true)])
        #expect(policy.mayBeProvisional(entry, posterID: Self.me))
        #expect(!policy.mayBeProvisional(entry, posterID: Self.other))
    }

    // MARK: Tools

    private static let claim = Claim(userID: me, hasPossession: true, receivedAt: DecisionTests.received)

    private static func judged(
        _ know: (inout Evidence) -> Void, _ change: (inout Transaction) -> Void = { _ in }
    ) -> Verdict.Entry {
        var evidence = Evidence()
        know(&evidence)
        let transaction = DecisionTests.transaction {
            $0.showsToken = true
            change(&$0)
        }
        return DecisionTests.policy().judge(transaction, claim: claim, evidence: evidence)
    }

    private static func isOthers(_ entry: Verdict.Entry) -> Bool { other.isSameText(as: entry.match?.userID) }
}
