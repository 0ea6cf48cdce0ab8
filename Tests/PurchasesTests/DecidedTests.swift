import Foundation
import Purchases
import Testing

/// Goal: a support decision about a held purchase decides its owner and its item, and nothing else: not what Apple took
/// back, not what another rule of the app holds. Method: one purchase with every sign that speaks for another user,
/// judged with a decision beside it.
@Suite struct DecidedTests {
    private static let bought = DecisionTests.received.addingTimeInterval(-60)
    private static let token = UUID()

    private static func judged(
        item: String? = nil, product: String = "coins", claim: Claim = DecisionTests.claim,
        orders: [PlacedOrder] = [], policy: AppPolicy = DecisionTests.policy(), decides: Bool = true,
        _ change: (inout Transaction) -> Void = { _ in }, evidence add: (inout Evidence) -> Void = { _ in }
    ) -> Verdict.Entry {
        var evidence = Evidence()
        evidence.orders = orders
        if decides { evidence.supportDecision = .init(userID: "chosen", item: item, token: token) }
        add(&evidence)
        let transaction = DecisionTests.transaction(product) {
            $0.showsToken = true
            change(&$0)
        }
        return policy.judge(transaction, claim: claim, evidence: evidence)
    }

    private static func order(_ user: String, item: String? = nil, product: String = "coins") -> PlacedOrder {
        MatcherTableTests.order(user, 5, product: product) { $0.item = item }
    }

    @Test("a person's decision goes before tokens, chains, orders and the poster, with or without possession")
    func first() {
        let theirs = Self.order("other")
        let signs: [(inout Evidence) -> Void] = [
            { $0.orders = [theirs] }, { $0.registeredUserID = "other" }, { $0.rememberedUserIDs = ["other"] },
            { $0.posterHasToken = true }, { $0.chain = .init(userID: "other") },
            { $0.chain = .init(userID: "other", isMoved: true) },
            {
                $0.orders = [theirs]
                $0.namedOrderID = theirs.id
            },
        ]
        for sign in signs {
            for (hasPossession, isPosted) in [(true, true), (false, true), (true, false)] {
                for reason in ["PURCHASE", Transaction.renewal] {
                    var claim = DecisionTests.claim
                    (claim.hasPossession, claim.isPosted) = (hasPossession, isPosted)
                    let entry = Self.judged(
                        claim: claim,
                        {
                            $0.appAccountToken = theirs.id
                            $0.reason = reason
                        }, evidence: sign)
                    #expect(entry.decision == .grant(goods: DecisionTests.coins.goods, source: .support))
                    #expect(entry.match?.userID == "chosen" && entry.match?.order == nil)
                    #expect(entry.match?.token == Self.token)
                    #expect(entry.match?.reasons.first == .supportDecided)
                }
            }
        }
    }

    @Test("an order of the named user is bound by it: named, open, or the one that its token is")
    func orders() {
        let his = Self.order("chosen")
        let signs: [(inout Evidence) -> Void] = [{ _ in }, { $0.namedOrderID = his.id }]
        for sign in signs {
            let entry = Self.judged(orders: [his], evidence: sign)
            #expect(entry.match?.order == his)
            #expect(entry.decision == .grant(goods: [.init(item: "a", amount: 1)], source: .support))
        }
        // The order is too late for row 7, but its id is the purchase's token.
        let lapsed = MatcherTableTests.order("chosen", 60 * 72) { $0.payBy = Self.bought.addingTimeInterval(-60) }
        let entry = Self.judged(orders: [lapsed], { $0.appAccountToken = lapsed.id })
        #expect(entry.match?.order == lapsed && entry.match?.reasons.contains(.offerLapsed) == true)
        #expect(entry.decision == .grant(goods: DecisionTests.coins.goods, source: .support))
        let bound = MatcherTableTests.order("chosen", 5) { $0.transactionID = "999" }
        #expect(Self.judged(orders: [bound], { $0.appAccountToken = bound.id }).match?.order == nil)
    }

    private static let shop = DecisionTests.policy {
        $0.sold = Catalogue(
            products: [
                .init(
                    id: "tier6", kind: .consumable, defaultItem: nil,
                    items: [
                        .init(id: "sword", versions: [.init(goods: [.init(item: "sword", amount: 1)])]),
                        .init(id: "shield", versions: [.init(goods: [.init(item: "shield", amount: 2)])]),
                        .init(
                            id: "gone", versions: [.init(until: .distantPast, goods: [.init(item: "gone", amount: 1)])]),
                    ])
            ], revision: 1)
    }

    @Test("the item that was said goes before an order's and the post's; one that was not sold then is never given")
    func items() {
        let ofSword = Self.order("chosen", item: "sword", product: "tier6")
        var claim = DecisionTests.claim
        claim.declared = Declaration(item: "sword")
        func goods(_ item: String?, orders: [PlacedOrder] = [], claim: Claim = DecisionTests.claim) -> Decision {
            Self.judged(item: item, product: "tier6", claim: claim, orders: orders, policy: Self.shop).decision
        }
        let shield = Decision.grant(goods: [.init(item: "shield", amount: 2)], source: .support)
        #expect(goods("shield") == shield)
        #expect(goods("shield", orders: [ofSword]) == shield, "another item's order stays open")
        claim.userID = "chosen"
        #expect(goods("shield", claim: claim) == shield)
        #expect(goods(nil, claim: claim) == .grant(goods: [.init(item: "sword", amount: 1)], source: .support))
        for item in ["gone", "axe", nil] { #expect(goods(item) == .held(.itemUnknown)) }
        // The order froze goods before its product had items; they are not the item of the decision.
        let plain = Self.order("chosen", product: "tier6")
        #expect(goods("shield", orders: [plain]) == shield)
        #expect(Self.judged(item: "axe").decision == .held(.itemUnknown), "a product without items has none")
        #expect(Self.judged(product: "none").decision == .held(.productUnknown))
    }

    @Test("what Apple took back, what is not there yet and what the sandbox's rule holds stays so")
    func bounds() {
        for decides in [true, false] {
            #expect(Self.judged(decides: decides, { $0.revokedAt = Self.bought }).decision == .rejected(.refunded))
            #expect(
                Self.judged(decides: decides, { $0.environment = Transaction.sandbox }).decision == .held(.sandbox))
            let ahead = Self.judged(decides: decides) { $0.purchasedAt = DecisionTests.received + 90_000 }
            #expect(ahead.decision == .held(.purchaseAhead))
            let shared = Self.judged(
                claim: .init(userID: nil, hasPossession: true, receivedAt: DecisionTests.received), decides: decides
            ) { $0.ownership = "FAMILY_SHARED" }
            #expect(shared.decision == .held(.orderUnknown), "whoever posts it may use it")
        }
        let old = DecisionTests.policy { $0.makeUpMaxAge = .seconds(1) }
        #expect(Self.judged(policy: old, decides: false).decision == .held(.review))
        #expect(Self.judged(policy: old).decision.gives)
    }

    @Test("S1-31: a person knows that the former system has not given it: with its goods; what lasts stays without")
    func beforeCutover() {
        let day: TimeInterval = 86_400
        func before(_ days: Double) -> (inout Transaction) -> Void {
            { $0.purchasedAt = DecisionTests.grantFrom - days * day }
        }
        #expect(Self.judged(decides: false, before(3)).decision == .held(.beforeCutover))
        let made = Self.judged(before(3))
        #expect(made.decision == .grant(goods: DecisionTests.coins.goods, source: .support))
        #expect(made.match?.reasons == [.supportDecided])
        #expect(Self.judged(before(40)).decision == .rejected(.historical))
        let sword = Self.judged(
            product: "sword",
            {
                $0.kind = .nonConsumable
                before(40)(&$0)
            }, evidence: { $0.chain = .init(userID: "other") })
        #expect(sword.decision == .grant(goods: [], source: .support))
        #expect(sword.match?.userID == "chosen" && sword.match?.reasons.prefix(2) == [.supportDecided, .beforeCutover])
        #expect(sword.match?.token == Self.token)
        let shared = Self.judged {
            before(3)(&$0)
            $0.ownership = "FAMILY_SHARED"
        }
        #expect(shared.decision == .held(.beforeCutover), "nobody is given goods for it")
    }
}
