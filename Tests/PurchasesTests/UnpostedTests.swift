import Foundation
import Purchases
import Testing

/// Goal: a purchase that nobody posted (a notification, a sweep, an offer code redeemed outside of the app) gets the
/// owner that the text of rows 2 to 4, 8 and 11 of Ownership names (S3-3, P11). Method: the cross product of the values
/// of their columns, against an oracle written from the text alone.
@Suite struct UnpostedTests {
    private typealias Table = MatcherTableTests
    private static let (you, third) = ("you", "third")

    enum Token: CaseIterable { case none, order, boundOrder, registered, rememberedOfOne, grantedToTwo, unknown }
    enum Customer: CaseIterable { case unknown, onlyYou, youAndThird }
    enum Orders: CaseIterable {
        case none, yours, lapsed, twoAlike, twoDiffer, twoDifferLatestNear, ofEach, ofEachOneNear, oneButOfferCode
        case ofNobodyKnown
    }
    enum Age: CaseIterable { case fresh, almostADay, aDay }
    /// What the chain's purchase before this one was, and whether it was running.
    enum Before: CaseIterable { case unknown, sameProduct, another, anotherThatEnded }

    private static func orders(_ orders: Orders) -> [PlacedOrder] {
        switch orders {
        case .none: []
        case .yours, .oneButOfferCode: [Table.order(you, 30)]
        case .lapsed: [Table.order(you, 4000) { $0.payBy = Table.bought.addingTimeInterval(-1) }]
        case .twoAlike: [Table.order(you, 40), Table.order(you, 30)]
        case .twoDiffer: [Table.order(you, 40), Table.order(you, 30, item: "b")]
        case .twoDifferLatestNear: [Table.order(you, 40), Table.order(you, 5, item: "b")]
        case .ofEach: [Table.order(third, 40), Table.order(you, 30)]
        case .ofEachOneNear: [Table.order(you, 40), Table.order(third, 5)]
        case .ofNobodyKnown: [Table.order("stranger", 5)]
        }
    }

    private struct Expected: Equatable {
        var row: Int
        var user: String?
        var order: UUID?
        var reason: Reason?
    }

    private static func expected(
        _ token: Token, _ kind: Table.Kind, _ chain: Table.Chain, _ before: Before, _ customer: Customer, _ age: Age,
        _ t: Transaction, _ e: Evidence
    ) -> Expected {
        // Nobody ordered it "just now", because there is no poster.
        let isRenewal = kind == .renewal || kind == .legacyPeriod
        let isRestore = kind == .restore && chain != .yoursTakenBack
        // "nobody having posted, a change of product while the chain runs".
        let isChange = before == .another && kind != .restore && kind != .consumable
        /// "as row 7": the latest that fits; of different promises, or of different users, only if it alone is near.
        func row7(_ users: [String]) -> PlacedOrder? {
            guard t.offerType != 3, !isRenewal, !isRestore else { return nil }
            let all = e.orders.filter {
                users.contains($0.userID) && $0.productID == "coins" && $0.transactionID == nil
                    && $0.payBy >= Table.bought
            }.sorted { $0.placedAt > $1.placedAt }
            let promises = Set(
                all.map { "\($0.userID) \(String(describing: $0.goods)) \($0.item ?? "") \($0.bonuses) \($0.target)" })
            let near = all.filter { Table.bought.timeIntervalSince($0.placedAt) <= 900 }
            return promises.count <= 1 || near.count == 1 ? all.first : nil
        }
        if chain == .yoursMoved, isRenewal || isChange { return Expected(row: 4, user: you) }
        if token == .order || token == .boundOrder {
            let order = e.orders.first { $0.id == t.appAccountToken }
            let isFirst = t.id == t.originalID
            let binds = isFirst && token == .order
            let isSecond = isFirst && token == .boundOrder && kind == .consumable
            return Expected(row: 2, user: you, order: binds ? order?.id : isSecond ? nil : row7([you])?.id)
        }
        let lasts = kind != .consumable
        if token == .registered {
            // Only the post names item, server and role of a consumable, unless exactly one order does.
            let fitting = e.orders.filter { $0.userID == you && $0.transactionID == nil && $0.payBy >= Table.bought }
            guard lasts || age == .aDay || fitting.count == 1 && !isRestore else {
                return Expected(row: 11, reason: .unclaimedYet)
            }
            return Expected(row: 3, user: you, order: row7([you])?.id)
        }
        // A known chain is proof; a token that was merely used before waits for its user.
        if token == .rememberedOfOne, chain == .none || !isRenewal && !isRestore && !isChange {
            guard age == .aDay else { return Expected(row: 11, reason: .unclaimedYet) }
            return Expected(row: 3, user: you, order: row7([you])?.id)
        }
        if chain != .none, isRenewal || isRestore || isChange { return Expected(row: 4, user: you) }
        // The 24 hours of rows 8 and 11.
        guard age == .aDay else { return Expected(row: 11, reason: .unclaimedYet) }
        if chain != .none { return Expected(row: 8, user: you) }
        let users = customer == .unknown ? [] : customer == .onlyYou ? [you] : [you, third]
        if let order = row7(users) { return Expected(row: 11, user: order.userID, order: order.id) }
        if users.count == 1 { return Expected(row: 11, user: you) }
        return Expected(row: 11, reason: .unclaimed)
    }

    @Test("P11: every combination of what can be known of a purchase that nobody posted", arguments: Token.allCases)
    func crossProduct(token: Token) {
        for kind in Table.Kind.allCases {
            for chain in Table.Chain.allCases
            where chain != .mine && (chain == .none || kind != .consumable && kind != .firstPeriod) {
                for before in Before.allCases where chain != .none || before == .unknown {
                    for customer in Customer.allCases {
                        for orders in Orders.allCases {
                            for age in Age.allCases { judge(token, kind, chain, before, customer, orders, age) }
                        }
                    }
                }
            }
        }
    }

    private func judge(
        _ token: Token, _ kind: Table.Kind, _ chain: Table.Chain, _ before: Before, _ customer: Customer,
        _ orders: Orders, _ age: Age
    ) {
        var transaction = Table.transaction(kind)
        if orders == .oneButOfferCode { transaction.offerType = 3 }
        if token != .none { transaction.appAccountToken = UUID() }
        var evidence = Evidence()
        evidence.orders = Self.orders(orders)
        if token == .order || token == .boundOrder {
            evidence.orders.append(
                Table.order(Self.you, 5000) {
                    $0.id = transaction.appAccountToken ?? $0.id
                    $0.payBy = Table.bought.addingTimeInterval(-1)
                    $0.transactionID = token == .boundOrder ? "other" : nil
                })
        }
        if token == .registered { evidence.registeredUserID = Self.you }
        if token == .rememberedOfOne { evidence.rememberedUserIDs = [Self.you] }
        if token == .grantedToTwo { evidence.rememberedUserIDs = [Self.you, Self.third] }
        if chain != .none {
            evidence.chain = .init(
                userID: Self.you, isMoved: chain == .yoursMoved,
                productID: before == .unknown ? nil : before == .sameProduct ? "coins" : "basic",
                runsUntil: before == .anotherThatEnded ? Table.bought : Table.bought.addingTimeInterval(1))
        }
        if chain == .yoursTakenBack { evidence.revocations = 1 }
        evidence.customerUserIDs =
            customer == .unknown ? [] : customer == .onlyYou ? [Self.you] : [Self.you, Self.third]
        let found = DecisionTests.received
        let claim = Claim(
            userID: nil, hasPossession: true, receivedAt: found,
            judgedAt: found.addingTimeInterval(age == .fresh ? 1 : age == .almostADay ? 86_399 : 86_400),
            isPosted: false)
        let answer = Matcher(transaction, kind: nil, claim: claim, evidence: evidence).answer
        let expected = Self.expected(token, kind, chain, before, customer, age, transaction, evidence)
        let seen: Expected =
            switch answer {
            case .owner(let match):
                Expected(row: Table.rowOf[match.source] ?? 0, user: match.userID, order: match.order?.id)
            case .held(let reason, _): Expected(row: 11, reason: reason == .unclaimed ? reason : nil)
            case .open(let reason): Expected(row: 11, reason: reason == .unclaimedYet ? reason : nil)
            }
        if seen != expected {
            Issue.record("\(token) \(kind) \(chain) \(before) \(customer) \(orders) \(age): \(answer), not \(expected)")
        }
        // Beside an open post of the same purchase only proof gives the purchase: an order's token, a registered one, a
        // known chain.
        evidence.isPostedByUser = true
        let beside = Matcher(transaction, kind: nil, claim: claim, evidence: evidence).answer
        let isProof = [2, 4].contains(expected.row) || token == .registered
        if beside != (isProof ? answer : .open(.unclaimedYet)) {
            Issue.record("\(token) \(kind) \(chain) \(before) \(customer) \(orders) \(age), posted: \(beside)")
        }
    }

    @Test("row 4: what begins a chain of its own is a change of product too, where it continues one that runs")
    func bundle() {
        let bundle = Table.transaction(.firstPeriod)
        let found = DecisionTests.received
        var claim = Claim(userID: nil, hasPossession: true, receivedAt: found, isPosted: false)
        var evidence = Evidence()
        evidence.chain = .init(userID: Self.you, productID: "basic", runsUntil: Table.bought.addingTimeInterval(60))
        var answer: Matcher.Answer { Matcher(bundle, kind: nil, claim: claim, evidence: evidence).answer }
        guard case .owner(let match) = answer, match.source == .chain else {
            Issue.record("\(answer)")
            return
        }
        #expect(match.userID == Self.you && !match.takesChain)
        // A post adds knowledge: the purchase may be another user's.
        claim = Claim(userID: "poster", hasPossession: true, receivedAt: found)
        guard case .owner(let posted) = answer else {
            Issue.record("\(answer)")
            return
        }
        #expect(posted.source == .chainOwner)
    }

    @Test("a day later the goods are those of the order that was found, else of the day it was bought")
    func decision() throws {
        let policy = DecisionTests.policy()
        let bought = DecisionTests.transaction { $0.showsToken = true }
        var claim = Claim(
            userID: nil, hasPossession: true, receivedAt: DecisionTests.received, isPosted: false)
        var evidence = Evidence()
        evidence.customerUserIDs = [Self.you]
        #expect(policy.judge(bought, claim: claim, evidence: evidence).decision == .open(.unclaimedYet))
        claim.judgedAt += Matcher.unpostedFor
        let make = policy.judge(bought, claim: claim, evidence: evidence)
        guard case .grant(_, .customer) = make.decision else {
            Issue.record("\(make.decision)")
            return
        }
        #expect(make.match?.userID == Self.you && make.match?.reasons.first == .customerKnown)
        evidence.isPostedByUser = true
        #expect(policy.judge(bought, claim: claim, evidence: evidence).decision == .open(.unclaimedYet))
        evidence.isPostedByUser = false
        evidence.customerUserIDs = []
        #expect(policy.judge(bought, claim: claim, evidence: evidence).decision == .held(.unclaimed))
        claim.unpostedFor = Matcher.unpostedFor + 1
        #expect(policy.judge(bought, claim: claim, evidence: evidence).decision == .open(.unclaimedYet))
    }

    @Test("P11: what another shares, and what was bought before the cut-over, waits beside an open post too")
    func beside() {
        var evidence = Evidence()
        evidence.customerUserIDs = [Self.you]
        evidence.isPostedByUser = true
        let found = DecisionTests.received
        let claim = Claim(
            userID: nil, hasPossession: true, receivedAt: found, judgedAt: found + 2 * Matcher.unpostedFor,
            isPosted: false)
        let matcher = { Matcher(Table.transaction(.consumable), kind: nil, claim: claim, evidence: $0) }
        #expect(matcher(evidence).answerOfShared == .open(.unclaimedYet))
        #expect(matcher(evidence).answerBeforeCutover == .open(.unclaimedYet))
        evidence.isPostedByUser = false
        guard case .owner(let match) = matcher(evidence).answerOfShared else {
            Issue.record("\(matcher(evidence).answerOfShared)")
            return
        }
        #expect(match.userID == Self.you)
        #expect(matcher(evidence).answerBeforeCutover == .held(.unclaimed))
    }
}
