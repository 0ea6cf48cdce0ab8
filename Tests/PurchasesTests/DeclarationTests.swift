import Foundation
import Purchases
import Testing

/// Goal: a post decides the item of a purchase of a shared product; its other declarations are recorded and never
/// believed. A bonus belongs to the day of the purchase (S3-14, S0-8). Method: one purchase of a catalogue with a
/// shared product, judged with everything that a post can declare about it.
@Suite struct DeclarationTests {
    private static let weekly = Catalogue.Bonus(id: "first", once: .ever, goods: [.init(item: "gem", amount: 5)])
    private static let bought = DecisionTests.received.addingTimeInterval(-60)

    private static func catalogue(default item: String?) -> Catalogue {
        Catalogue(
            products: [
                .init(
                    id: "tier6", kind: .consumable, defaultItem: item,
                    items: [
                        .init(id: "sword", versions: [.init(goods: [.init(item: "sword", amount: 1)])]),
                        .init(
                            id: "shield",
                            versions: [.init(goods: [.init(item: "shield", amount: 2)], bonuses: [weekly])]),
                        .init(
                            id: "gone", versions: [.init(until: .distantPast, goods: [.init(item: "gone", amount: 1)])]),
                    ])
            ], revision: 1)
    }

    private static func judged(
        _ declared: Declaration?, default item: String? = nil, orders: [PlacedOrder] = [],
        _ change: (inout Transaction) -> Void = { _ in }
    ) -> Verdict.Entry {
        let policy = DecisionTests.policy { $0.sold = catalogue(default: item) }
        var claim = DecisionTests.claim
        claim.declared = declared
        var evidence = Evidence()
        evidence.orders = orders
        let transaction = DecisionTests.transaction("tier6") {
            $0.showsToken = true
            change(&$0)
        }
        return policy.judge(transaction, claim: claim, evidence: evidence)
    }

    @Test(
        "S3-14: the item that the post names where it was sold then, else the default, else nobody knows",
        arguments: [
            ("sword", nil, "sword"), ("shield", "sword", "shield"), (nil, "sword", "sword"), (nil, nil, nil),
            ("unknown", nil, nil), ("unknown", "sword", "sword"), ("gone", nil, nil), ("gone", "shield", "shield"),
            ("tier6", nil, nil), ("tier6", "sword", "sword"),
        ] as [(String?, String?, String?)])
    func item(declared: String?, default item: String?, expected: String?) {
        let entry = Self.judged(declared.map { Declaration(item: $0) }, default: item)
        guard let expected else {
            #expect(entry.decision == .held(.itemUnknown))
            #expect(Reason.itemUnknown.holdsFacts, "the debt is ours")
            return
        }
        #expect(
            entry.decision
                == .grant(goods: [.init(item: expected, amount: expected == "sword" ? 1 : 2)], source: .poster))
        #expect(entry.match?.bonuses == (expected == "shield" ? [Self.weekly] : []))
        #expect(
            entry.match?.reasons.contains(.itemDiffers)
                == (declared != nil && declared != expected && declared != "tier6"))
    }

    @Test("S4-24: an order's item goes before the post's; what differs is noted")
    func orderFirst() {
        let order = MatcherTableTests.order("u1", 5, product: "tier6") {
            $0.item = "sword"
            $0.goods = nil
        }
        let entry = Self.judged(Declaration(item: "shield"), orders: [order])
        #expect(entry.match?.order == order)
        #expect(entry.decision == .grant(goods: [.init(item: "sword", amount: 1)], source: .openOrder))
        #expect(entry.match?.reasons == [.orderOpen, .itemDiffers])
    }

    @Test("S3-68: a promotion that a service names counts without an order, if it ran when the purchase was made")
    func promotion() {
        let before = Self.bought.addingTimeInterval(-3600)
        let policy = DecisionTests.policy {
            $0.sold = Catalogue(
                products: [
                    .init(
                        id: "tier6", kind: .consumable, defaultItem: "sword",
                        items: [
                            .init(
                                id: "sword",
                                versions: [
                                    .init(goods: [.init(item: "sword", amount: 1)]),
                                    .init(promotion: "spring", from: before, goods: [.init(item: "sword", amount: 5)]),
                                    .init(promotion: "winter", until: before, goods: [.init(item: "sword", amount: 9)]),
                                ])
                        ])
                ], revision: 1)
        }
        let transaction = DecisionTests.transaction("tier6") { $0.showsToken = true }
        for (named, amount, isNoted) in [
            (nil, 1, false), ("spring", 5, false), ("winter", 1, true), ("summer", 1, true),
        ] as [(String?, Int, Bool)] {
            var claim = DecisionTests.claim
            claim.declared = Declaration(promotion: named)
            let entry = policy.judge(transaction, claim: claim, evidence: .none)
            #expect(
                entry.decision == .grant(goods: [.init(item: "sword", amount: amount)], source: .poster),
                "\(named ?? "none")")
            #expect(entry.match?.reasons.contains(.fieldsDisregarded) == isNoted)
        }
        // The order's promise counts, whatever the post says.
        var claim = DecisionTests.claim
        claim.declared = Declaration(promotion: "spring")
        var evidence = Evidence()
        evidence.orders = [
            MatcherTableTests.order("u1", 5, product: "tier6") {
                $0.item = "sword"
                $0.goods = [.init(item: "sword", amount: 2)]
            }
        ]
        let ordered = policy.judge(transaction, claim: claim, evidence: evidence)
        #expect(ordered.decision == .grant(goods: [.init(item: "sword", amount: 2)], source: .openOrder))
    }

    @Test("which item it was only its owner can say, with possession")
    func itemOfAnother() {
        let policy = DecisionTests.policy { $0.sold = Self.catalogue(default: "shield") }
        let transaction = DecisionTests.transaction("tier6") { $0.appAccountToken = UUID() }
        var claim = DecisionTests.claim
        claim.declared = Declaration(item: "sword")
        for (owner, hasPossession, item) in [
            (claim.userID, true, "sword"), ("another", true, "shield"), (claim.userID, false, "shield"),
        ] {
            var claim = claim
            claim.hasPossession = hasPossession
            var evidence = Evidence()
            evidence.registeredUserID = owner
            let entry = policy.judge(transaction, claim: claim, evidence: evidence)
            guard case .grant(let goods, .userToken) = entry.decision else {
                Issue.record("\(entry.decision)")
                continue
            }
            #expect(goods.map(\.item) == [item])
        }
    }

    @Test("a product that is in no catalogue is the configuration's, whatever item is named; unknown ones wait")
    func configured() {
        var claim = DecisionTests.claim
        claim.declared = Declaration(item: "anything")
        let entry = DecisionTests.policy().judge(DecisionTests.transaction(), claim: claim, evidence: .none)
        #expect(entry.decision == DecisionTests.granted && entry.match?.reasons == [])
        let unknown = DecisionTests.policy().judge(DecisionTests.transaction("no"), claim: claim, evidence: .none)
        #expect(unknown.decision == .held(.productUnknown))
    }

    @Test("S0-8: quantity, price and product that do not fit are noted; Apple's are what counts")
    func contradictions() {
        let facts = #"{"price":6000,"currency":"CNY"}"#
        let cases: [(Declaration, [MatchReason])] = [
            (Declaration(quantity: 2), []),
            (Declaration(quantity: 1), [.quantityDiffers]),
            (Declaration(quantity: 999_999_999), [.quantityDiffers]),
            (Declaration(priceMilliunits: 6000, currency: "CNY"), []),
            (Declaration(priceMilliunits: 3000), []),
            (Declaration(priceMilliunits: 6000, currency: "USD"), [.priceDiffers]),
            (Declaration(priceMilliunits: 1), [.priceDiffers]),
            (Declaration(priceMilliunits: .max), [.priceDiffers]),
            (Declaration(productID: "tier6"), []),
            (Declaration(productID: "tier12"), [.productDiffers]),
            (Declaration(disregarded: ["quantity"]), [.fieldsDisregarded]),
            (
                Declaration(item: "shield", productID: "x", quantity: 9, priceMilliunits: 5, disregarded: ["target"]),
                [.productDiffers, .quantityDiffers, .priceDiffers, .fieldsDisregarded]
            ),
        ]
        for (declared, expected) in cases {
            var declared = declared
            declared.item = "shield"
            let entry = Self.judged(declared) {
                $0.quantity = 2
                $0.facts = facts
            }
            #expect(entry.decision == .grant(goods: [.init(item: "shield", amount: 4)], source: .poster), "\(declared)")
            #expect(entry.match?.reasons == expected, "\(declared)")
        }
        // Apple gives no price in a legacy receipt: there is nothing to compare with.
        #expect(Self.judged(Declaration(item: "shield", priceMilliunits: 1)).match?.reasons == [])
    }

    @Test("note 1: of several purchases the named one is meant, else the newest that fits the post")
    func meant() {
        func purchase(_ id: String, _ product: String, _ minutes: Double) -> Transaction {
            DecisionTests.transaction(product) {
                $0.id = id
                $0.originalID = id
                $0.purchasedAt = Self.bought.addingTimeInterval(-minutes * 60)
            }
        }
        let several = [purchase("1", "tier6", 9), purchase("2", "tier6", 5), purchase("3", "coins", 1)]
        let sold = Self.catalogue(default: nil)
        for (declared, named, expected) in [
            (Declaration(item: "sword"), "1", "1"), (Declaration(item: "sword"), nil, "2"),
            (Declaration(item: "sword"), "unknown", "2"), (Declaration(item: "unknown"), nil, nil),
            (Declaration(item: "tier6"), nil, "2"), (Declaration(productID: "tier6"), nil, "2"),
            (Declaration(quantity: 1), nil, "3"),
        ] as [(Declaration, String?, String?)] {
            #expect(declared.meant(of: several, named: named, sold: sold) == expected, "\(declared) \(named ?? "-")")
        }
        #expect(Declaration(item: "x").meant(of: [several[0]], named: "other", sold: nil) == "1")
        #expect(Declaration(item: "x").meant(of: [], named: nil, sold: nil) == nil)
        // The other purchases are judged as if nothing had been declared.
        let policy = DecisionTests.policy { $0.sold = sold }
        var claim = DecisionTests.claim
        claim.declared = Declaration(item: "sword")
        let entries = Judge(policy: policy, claim: claim, meantID: "2").judge(several)
        #expect(
            entries.map(\.decision) == [
                .held(.itemUnknown), .grant(goods: [.init(item: "sword", amount: 1)], source: .poster),
                DecisionTests.granted,
            ])
    }

    @Test(
        "a bonus is of the day or month of the purchase, in UTC",
        arguments: [
            (0.0, "2026-11-30", "2026-11"), (86_399, "2026-11-30", "2026-11"), (86_400, "2026-12-01", "2026-12"),
            (-29 * 86_400, "2026-11-01", "2026-11"), (-29 * 86_400 - 1, "2026-10-31", "2026-10"),
        ] as [(TimeInterval, String, String)])
    func period(seconds: TimeInterval, day: String, month: String) {
        let date = Date(timeIntervalSince1970: 1_795_996_800 + seconds)
        let periods = [Catalogue.Bonus.Once.day, .month, .ever].map {
            Catalogue.Bonus(id: "b", once: $0, goods: []).period(at: date)
        }
        #expect(periods == [day, month, ""])
    }

    @Test("B6: what an order froze has its own bonus, while the offer counts; later it is the version's of that day")
    func frozenBonus() {
        let spring = Catalogue.Bonus(id: "spring", once: .day, goods: [.init(item: "coin", amount: 9)])
        let order = MatcherTableTests.order("u1", 5, product: "tier6") {
            $0.item = "shield"
            $0.goods = [.init(item: "shield", amount: 3)]
            $0.bonuses = [spring]
        }
        #expect(Self.judged(nil, orders: [order]).match?.bonuses == [spring])
        var lapsed = order
        lapsed.payBy = .distantPast
        let token = Self.judged(nil, orders: [lapsed]) { $0.appAccountToken = lapsed.id }
        #expect(token.match?.bonuses == [Self.weekly] && token.match?.reasons.contains(.offerLapsed) == true)
    }

    @Test("S1-25: an order that the post names and that is not this purchase's is noted; another user's is held")
    func orderAside() {
        func judged(_ named: PlacedOrder?) -> Verdict.Entry {
            var evidence = Evidence()
            evidence.orders = named.map { [$0] } ?? []
            evidence.namedOrderID = named?.id ?? UUID()
            let policy = DecisionTests.policy { $0.sold = Self.catalogue(default: "sword") }
            let transaction = DecisionTests.transaction("tier6") { $0.showsToken = true }
            return policy.judge(transaction, claim: DecisionTests.claim, evidence: evidence)
        }
        for named in [nil, MatcherTableTests.order("u1", 120, product: "gems")] {
            let match = judged(named).match
            #expect(match?.source == .poster && match?.userID == "u1" && match?.reasons == [.orderAside])
        }
        #expect(judged(MatcherTableTests.order("you", 120, product: "tier6")).decision == .held(.foreignOrder))
    }

    @Test("B14: every reason of the matcher has one sentence in both languages, without internal terms")
    func sentences() {
        let words = MatchReason.allCases.map(\.rawValue).filter { $0.contains("_") }
        for sentence in MatchReason.allCases.map(\.sentence) + [
            .ownershipBegan, .ownershipMoved, .possibleDoubleCharge,
        ] {
            #expect(sentence.zh.hasSuffix("。") && sentence.zh.filter { $0 == "。" }.count == 1, "\(sentence.zh)")
            #expect(sentence.en.hasSuffix(".") && sentence.en.filter { $0 == "." }.count == 1, "\(sentence.en)")
            #expect(sentence.zh.contains { !$0.isASCII } && sentence.en.allSatisfy(\.isASCII))
            #expect(!words.contains { sentence.en.contains($0) || sentence.zh.contains($0) }, "\(sentence.en)")
        }
    }
}
