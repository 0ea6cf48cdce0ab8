import Foundation
import Purchases
import TestRandom
import Testing

/// Goal: how a match decides about goods, orders and chains (Ownership, notes; Offers), and what holds for any
/// evidence.
@Suite struct MatcherRuleTests {
    private static let bought = MatcherTableTests.bought
    private static let frozen = [AppPolicy.Goods(item: "coin", amount: 70)]

    private static func judged(
        _ orders: [PlacedOrder], named: UUID? = nil, chain: Evidence.Chain? = nil, registered: String? = nil,
        policy: AppPolicy = DecisionTests.policy(), _ change: (inout Transaction) -> Void = { _ in }
    ) -> Verdict.Entry {
        var evidence = Evidence()
        evidence.orders = orders
        evidence.namedOrderID = named
        evidence.chain = chain
        evidence.registeredUserID = registered
        let transaction = DecisionTests.transaction {
            $0.showsToken = true
            change(&$0)
        }
        let claim = Claim(userID: "me", hasPossession: true, receivedAt: DecisionTests.received)
        return policy.judge(transaction, claim: claim, evidence: evidence)
    }

    private static func order(
        _ user: String = "me", _ minutesBefore: Double = 5, product: String = "coins",
        _ change: (inout PlacedOrder) -> Void = { _ in }
    ) -> PlacedOrder {
        MatcherTableTests.order(user, minutesBefore, product: product) {
            $0.goods = frozen
            change(&$0)
        }
    }

    // MARK: Goods

    @Test(
        "S1-8, B6: the frozen offer counts for what was bought until payBy, later the goods of the day",
        arguments: [0.0, 1])
    func payBy(secondsLate: TimeInterval) throws {
        let order = Self.order { $0.payBy = Self.bought.addingTimeInterval(-secondsLate) }
        let token = Self.judged([order]) { $0.appAccountToken = order.id }
        let isInTime = secondsLate == 0
        #expect(
            token.decision == .grant(goods: isInTime ? Self.frozen : DecisionTests.coins.goods, source: .orderToken))
        #expect(token.match?.order == order, "bound all the same")
        #expect(token.match?.reasons.contains(.offerLapsed) == !isInTime)
        // Row 5 matches it as well; row 7 ignores lapsed orders.
        #expect(Self.judged([order], named: order.id).match?.order == order)
        #expect(Self.judged([order]).match?.order == (isInTime ? order : nil))
    }

    @Test("S3-23: the token of an order that was asked for by another purchase says whose it is, and binds nothing")
    func reservedToken() {
        let order = Self.order { $0.reservedFor = "another" }
        let entry = Self.judged([order]) { $0.appAccountToken = order.id }
        #expect(
            entry.decision == .grant(goods: DecisionTests.coins.goods, source: .orderToken), "of the day, no promise")
        #expect(entry.match?.userID == "me" && entry.match?.order == nil && entry.match?.secondChargeOf == nil)
        // The order is bound by the purchase that it is reserved for.
        let reserved = Self.order { $0.reservedFor = entry.transaction.id }
        #expect(Self.judged([reserved]) { $0.appAccountToken = reserved.id }.match?.order == reserved)
    }

    @Test(
        "S3-3, rows 6 and 7: what was redeemed outside of any order binds none that neither token nor post names",
        arguments: [
            (1, nil), (2, nil), (3, .offerCode), (4, .winBackOffer), (5, nil), (nil, nil),
        ] as [(Int?, MatchReason?)])
    func redeemed(offerType: Int?, reason: MatchReason?) {
        let isRedeemed = reason != nil
        let order = Self.order()
        let open = Self.judged([order]) { $0.offerType = offerType }
        #expect(open.match?.order == (isRedeemed ? nil : order))
        #expect(open.match?.source == (isRedeemed ? .poster : .openOrder))
        #expect(open.match?.reasons == [reason ?? .orderOpen])
        let neighbour = Self.order("you", 1) { $0.isOnProvenInstallation = true }
        let beside = Self.judged([neighbour]) { $0.offerType = offerType }
        #expect(beside.match?.userID == (isRedeemed ? "me" : "you"))
        // What the post or the purchase's own data names is no guess.
        #expect(Self.judged([order], named: order.id) { $0.offerType = offerType }.match?.source == .namedOrder)
        let token = Self.judged([order]) {
            $0.offerType = offerType
            $0.appAccountToken = order.id
        }
        #expect(token.match?.source == .orderToken && token.match?.order == order)
    }

    @Test("S0-8: Apple's quantity multiplies what the order froze; another than was asked for is noted")
    func quantity() {
        let order = Self.order { $0.quantity = 2 }
        let entry = Self.judged([order]) { $0.quantity = 3 }
        #expect(entry.decision == .grant(goods: [.init(item: "coin", amount: 210)], source: .openOrder))
        #expect(entry.match?.reasons == [.orderOpen, .quantityDiffers])
    }

    @Test(
        "an order that froze nothing gives the goods of the day; one of a product that is sold no longer what it froze")
    func unfrozen() {
        let unfrozen = Self.order { $0.goods = nil }
        #expect(Self.judged([unfrozen]).decision == .grant(goods: DecisionTests.coins.goods, source: .openOrder))
        let policy = DecisionTests.policy { $0.products = [:] }
        #expect(Self.judged([Self.order()], policy: policy).decision == .grant(goods: Self.frozen, source: .openOrder))
        #expect(Self.judged([unfrozen], policy: policy).decision == .held(.productUnknown))
    }

    @Test("S3-42: another product than the order's: proven by the token it is corrected, merely claimed it stays open")
    func otherProduct() {
        let order = Self.order("you", product: "gems")
        let proven = Self.judged([order]) { $0.appAccountToken = order.id }
        #expect(proven.decision == .grant(goods: DecisionTests.coins.goods, source: .orderToken))
        #expect(proven.match?.order == order && proven.match?.userID == "you")
        #expect(proven.match?.reasons == [.tokenOfOrder, .productCorrected])
        let mine = Self.order(product: "gems")
        let claimed = Self.judged([mine], named: mine.id)
        #expect(claimed.decision == .grant(goods: DecisionTests.coins.goods, source: .poster))
        #expect(claimed.match?.order == nil)
    }

    @Test("S3-23: an order younger than the purchase is bound, with the goods of the purchase's day")
    func laterOrder() {
        for order in [Self.order("me", -10), Self.order("me", 10) { $0.reservedFor = "1000" }] {
            let entry = Self.judged([order], named: order.id)
            #expect(entry.match?.order == order)
            // Reserved and older than the purchase: the order was placed for it, and fits.
            let isLater = order.reservedFor == nil
            #expect(
                entry.decision
                    == .grant(
                        goods: isLater ? DecisionTests.coins.goods : Self.frozen,
                        source: isLater ? .lateOrder : .namedOrder))
        }
        let reserved = Self.order("me", -10) { $0.reservedFor = "1000" }
        #expect(Self.judged([reserved], named: reserved.id).match?.reasons == [.orderReserved])
    }

    @Test("P6, row 2: a second consumable on one order is given like the first, unbound, and told")
    func secondCharge() {
        let order = Self.order("you") { $0.transactionID = "first" }
        let entry = Self.judged([order]) { $0.appAccountToken = order.id }
        #expect(entry.decision == .grant(goods: Self.frozen, source: .orderToken))
        #expect(entry.match?.order == nil && entry.match?.secondChargeOf == order.id && entry.match?.userID == "you")
        // The purchase that has bound the order is not a second one.
        let own = Self.order("you") { $0.transactionID = "1000" }
        let again = Self.judged([own]) { $0.appAccountToken = own.id }
        #expect(again.match?.secondChargeOf == nil && again.match?.order == own)
    }

    @Test("limits of row 10 hold nothing whose owner an order or a token names")
    func makeUpAge() {
        let old = { (transaction: inout Transaction) in
            transaction.purchasedAt = DecisionTests.received.addingTimeInterval(-8 * 86_400)
        }
        // By default a purchase has no age limit.
        #expect(Self.judged([], old).decision == DecisionTests.granted)
        let policy = DecisionTests.policy { $0.makeUpMaxAge = .seconds(7 * 86_400) }
        #expect(Self.judged([], policy: policy, old).decision == .held(.review))
        #expect(Self.judged([Self.order("me", 9 * 1440)], policy: policy, old).match?.source == .openOrder)
        let token = Self.judged([], registered: "you", policy: policy) {
            old(&$0)
            $0.appAccountToken = UUID()
        }
        #expect(token.decision == .grant(goods: DecisionTests.coins.goods, source: .userToken))
        #expect(token.match?.userID == "you")
    }

    @Test("row 0e: whether a sandbox purchase is given depends on its owner, not on its poster")
    func sandbox() {
        for (tester, isGiven) in [("you", true), ("me", false)] {
            let policy = DecisionTests.policy { $0.testers = [tester] }
            let entry = Self.judged([], registered: "you", policy: policy) {
                $0.appAccountToken = UUID()
                $0.environment = Transaction.sandbox
            }
            #expect(entry.decision.gives == isGiven)
        }
    }

    // MARK: Chains

    @Test("note 3: a chain is taken by its first purchase, moves by a proof, and is told of only then")
    func chains() {
        let period = { (transaction: inout Transaction) in
            transaction.productID = "pass"
            transaction.kind = .autoRenewable
            transaction.reason = "PURCHASE"
        }
        let first = Self.judged([], period)
        #expect(first.match?.takesChain == true && first.match?.chainWasOf == nil)
        let later = { (transaction: inout Transaction) in
            period(&transaction)
            transaction.originalID = "1"
            transaction.appAccountToken = UUID()
        }
        let moved = Self.judged([], chain: .init(userID: "you"), registered: "me", later)
        #expect(moved.match?.takesChain == true && moved.match?.chainWasOf == "you")
        #expect(moved.match?.reasons == [.tokenRegistered, .chainMoved])
        let stays = Self.judged([], chain: .init(userID: "me"), registered: "me", later)
        #expect(stays.match?.takesChain == false && stays.match?.chainWasOf == nil)
        #expect(Self.judged([]).match?.takesChain == false, "a consumable has no chain")
    }

    @Test(
        "row 0a: bought anew after a refund is a purchase of its own, for any known chain owner, while that stands"
    )
    func repurchase() {
        let sword = DecisionTests.transaction("sword", kind: .nonConsumable) { $0.originalID = "1" }
        let claim = Claim(userID: "me", hasPossession: true, receivedAt: DecisionTests.received)
        func judged(_ transaction: Transaction, _ owner: String?, _ refunds: Int) -> Verdict.Entry {
            var evidence = Evidence()
            evidence.chain = owner.map { .init(userID: $0) }
            evidence.revocations = refunds
            return DecisionTests.policy().judge(transaction, claim: claim, evidence: evidence)
        }
        for (owner, source) in [(nil, BindingSource.poster), ("you", .chainOwner)] {
            let entry = judged(sword, owner, 2)
            #expect(entry.match?.source == source && entry.match?.userID == owner ?? "me")
            #expect(entry.decision == .grant(goods: DecisionTests.sword.goods, source: source))
            #expect(entry.transaction.identity == .repurchase(2))
            // Matched again after the refund was reversed.
            #expect(judged(entry.transaction, owner, 0).transaction == sword)
        }
        var period = sword
        period.kind = .autoRenewable
        #expect(judged(period, "you", 2).transaction == period)
    }

    @Test("S3-24, note 4: a renewal of the chain's owner still binds the order that was asked for because of it")
    func renewalWithLaterOrder() {
        let order = Self.order("me", -10, product: "pass")
        let entry = Self.judged([order], named: order.id, chain: .init(userID: "me")) {
            $0.productID = "pass"
            $0.kind = .autoRenewable
            $0.originalID = "1"
            $0.reason = Transaction.renewal
        }
        #expect(entry.match?.source == .chain && entry.match?.order == order)
        #expect(entry.decision == .grant(goods: DecisionTests.pass.goods, source: .chain))
    }

    // MARK: Several purchases

    @Test(
        "note 1: of several entries the named order belongs to the named one, else to the newest ungranted of its product"
    )
    func assigned() {
        var order = Self.order()
        let purchase = { (id: String, product: String, ago: TimeInterval) in
            DecisionTests.transaction(product, ago: ago) {
                $0.id = id
                $0.originalID = id
            }
        }
        let transactions = [purchase("a", "coins", 90), purchase("b", "coins", 60), purchase("c", "gems", 30)]
        func assigned(_ meant: String?, granted: Set<String> = []) -> [String] {
            var evidence: [String: Evidence] = [:]
            for transaction in transactions {
                evidence[transaction.id] = Evidence()
                evidence[transaction.id]?.orders = [order]
                evidence[transaction.id]?.isGranted = granted.contains(transaction.id)
            }
            Evidence.assign(named: order.id, meant: meant, by: "me", to: transactions, &evidence)
            #expect(evidence.values.allSatisfy { $0.orders.isEmpty == ($0.namedOrderID == nil) })
            return evidence.filter { $0.value.namedOrderID != nil }.map(\.key)
        }
        #expect(assigned("a") == ["a"] && assigned("c") == ["c"], "whatever its product: row 5 then says no")
        #expect(assigned(nil) == ["b"] && assigned("unknown") == ["b"])
        #expect(assigned(nil, granted: ["b"]) == ["a"] && assigned(nil, granted: ["a", "b"]) == [])
        // If the post names another user's order, one of the purchases is not the poster's, even if none has the
        // order's product (S1-25).
        order = Self.order("you", product: "sword")
        #expect(assigned(nil) == ["c"] && assigned(nil, granted: ["c"]) == ["b"])
        order = Self.order("me", product: "sword")
        #expect(assigned(nil) == [])
    }

    @Test("S2-15, S2-16, S4-9: each of several purchases of one receipt gets its own order")
    func severalOrders() {
        let orders = [Self.order("me", 40), Self.order("me", 20)]
        let transactions = [30.0, 10].map { minutes in
            DecisionTests.transaction {
                $0.id = "\(minutes)"
                $0.originalID = $0.id
                $0.purchasedAt = Self.bought.addingTimeInterval(-minutes * 60)
            }
        }
        let both = [transactions[0], transactions[1]].map { _ in
            var evidence = Evidence()
            evidence.orders = orders
            return evidence
        }
        let judge = Judge(
            policy: DecisionTests.policy(),
            claim: Claim(userID: "me", hasPossession: true, receivedAt: DecisionTests.received),
            evidence: Dictionary(uniqueKeysWithValues: zip(transactions.map(\.id), both)))
        #expect(judge.judge(transactions).map { $0.match?.order?.id } == orders.map(\.id))
        // Both purchases fit the latest order: the later purchase gets it, the other one the order before.
        let near = orders.map { order in
            var order = order
            order.placedAt = Self.bought.addingTimeInterval(-3600 + (order == orders[0] ? 0 : 1))
            return order
        }
        let again = Judge(
            policy: judge.policy, claim: judge.claim,
            evidence: Dictionary(
                uniqueKeysWithValues: transactions.map { transaction in
                    var evidence = Evidence()
                    evidence.orders = near
                    return (transaction.id, evidence)
                }))
        #expect(again.judge(transactions).map { $0.match?.order?.id } == near.map(\.id))
    }

    // MARK: Any evidence

    @Test(
        "B7: whatever the evidence, an order is bound by one purchase of its user and product that it is not younger than"
    )
    func properties() {
        var random = SeededRandom(announcing: "Matcher")
        let policy = DecisionTests.policy { $0.makeUpMaxAge = .zero }
        for _ in 0..<4000 {
            let (judge, transactions, orders) = Self.situation(policy, &random)
            let entries = judge.judge(transactions)
            let bound = entries.compactMap { $0.match?.order?.id }
            #expect(Set(bound).count == bound.count, "an order is bound twice, seed \(random.seed)")
            for entry in entries {
                guard case .grant(let goods, let source) = entry.decision, let match = entry.match else { continue }
                let transaction = entry.transaction
                let catalogue = policy.products[transaction.productID]?.goods
                let offers = orders.filter { $0.productID == transaction.productID }.compactMap(\.goods)
                #expect(catalogue == goods || offers.contains(goods), "goods of another product, seed \(random.seed)")
                if !judge.claim.hasPossession {
                    #expect([.orderToken, .userToken, .chain].contains(source), "seed \(random.seed)")
                }
                guard let order = match.order else { continue }
                #expect(order.userID == match.userID, "seed \(random.seed)")
                #expect(order.transactionID == nil, "seed \(random.seed)")
                guard transaction.appAccountToken != order.id else { continue }
                #expect(order.productID == transaction.productID, "seed \(random.seed)")
                #expect(order.reservedFor == nil || order.reservedFor == transaction.id, "seed \(random.seed)")
                // Order B never swallows transaction A, unless the client says that it is for it.
                let isYounger = order.placedAt > transaction.purchasedAt + Matcher.placedAfterMax
                #expect(!isYounger || match.reasons.contains(.orderLater) || match.reasons.contains(.orderReserved))
            }
            // The result does not depend on the order of rows.
            #expect(Set(judge.judge(transactions.reversed()).map(Self.word)) == Set(entries.map(Self.word)))
        }
    }

    private static func word(_ entry: Verdict.Entry) -> String {
        "\(entry.transaction.id) \(entry.decision) \(entry.match?.userID ?? "") \(entry.match?.order?.id.uuidString ?? "")"
    }

    private static func situation(
        _ policy: AppPolicy, _ random: inout SeededRandom
    ) -> (Judge, [Transaction], [PlacedOrder]) {
        let users = ["me", "you", "third"]
        let products = ["coins", "pass", "sword"]
        func pick<Element>(_ all: [Element], _ random: inout SeededRandom) -> Element {
            all[Int.random(in: all.indices, using: &random)]
        }
        let orders = (0..<Int.random(in: 0...6, using: &random)).map { index in
            order(
                pick(users, &random), Double.random(in: -30...120, using: &random), product: pick(products, &random)
            ) {
                $0.goods = [.init(item: $0.productID, amount: index)]
                if Int.random(in: 0..<4, using: &random) == 0 { $0.reservedFor = pick(["0", "1", "x"], &random) }
                if Int.random(in: 0..<4, using: &random) == 0 { $0.transactionID = "x" }
                if Int.random(in: 0..<4, using: &random) == 0 { $0.payBy = bought.addingTimeInterval(-1800) }
                $0.isOnProvenInstallation = Bool.random(using: &random)
            }
        }
        let transactions = (0..<Int.random(in: 1...3, using: &random)).map { index in
            let product = pick(products, &random)
            return DecisionTests.transaction(product, kind: policy.products[product]?.kind) {
                $0.id = "\(index)"
                $0.originalID = Int.random(in: 0..<3, using: &random) == 0 ? "first" : $0.id
                $0.purchasedAt = bought.addingTimeInterval(-Double.random(in: 0...3600, using: &random))
                $0.reason = pick([nil, "PURCHASE", "RENEWAL"], &random)
                if Int.random(in: 0..<3, using: &random) == 0 { $0.appAccountToken = orders.first?.id ?? UUID() }
            }
        }
        var all: [String: Evidence] = [:]
        for transaction in transactions {
            var evidence = Evidence()
            evidence.orders = orders
            if Int.random(in: 0..<4, using: &random) == 0 { evidence.registeredUserID = pick(users, &random) }
            if Int.random(in: 0..<3, using: &random) == 0 { evidence.chain = .init(userID: pick(users, &random)) }
            all[transaction.id] = evidence
        }
        let poster = pick([nil, "me", "me", "me"], &random)
        Evidence.assign(
            named: Bool.random(using: &random) ? orders.last?.id : nil, meant: pick([nil, "0", "1"], &random),
            by: poster,
            to: transactions, &all)
        let claim = Claim(
            userID: poster, hasPossession: Int.random(in: 0..<5, using: &random) > 0,
            receivedAt: DecisionTests.received)
        return (Judge(policy: policy, claim: claim, evidence: all), transactions, orders)
    }
}
