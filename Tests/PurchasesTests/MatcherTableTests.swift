import Foundation
import Purchases
import Testing

/// Goal: rows 2 to 10 of design.md 5.1 decide as their text says, in their order (B7). Method: the cross product of what
/// can stand in each column, more than a hundred thousand cases, against an oracle that was written from the text alone:
/// it collects what every row says, and then takes the first.
@Suite struct MatcherTableTests {
    static let bought = DecisionTests.received.addingTimeInterval(-60)
    static let minute: TimeInterval = 60
    static let (me, you, third) = ("me", "you", "third")

    enum Token: CaseIterable {
        case none, myOrder, yourOrder, orderOfAnotherProduct, boundOrder, boundOrderOfAnotherProduct
        case registeredForMe, registeredForYou, grantedToYou, grantedToTwo, grantedToTwoWhileIHaveOne,
            unknownWhileIHaveOne
    }
    enum Kind: CaseIterable { case consumable, firstPeriod, renewal, resubscribed, legacyPeriod, restore }
    enum Chain: CaseIterable { case none, mine, yours, yoursTakenBack, yoursMoved }
    enum Named: CaseIterable {
        case none, mine, mineOfTwoHoursAgo, mineLater, mineReserved, mineReservedForAnother, mineOfAnotherProduct,
            mineBound
        case yours, yoursOfAnHourAgo
    }
    enum Open: CaseIterable {
        case none, one, lapsed, twoAlike, twoDiffer, twoDifferLatestNear, twoDifferBothNear, oneButOfferCode
    }
    enum Neighbour: CaseIterable { case none, near, far }
    enum Poster: CaseIterable { case withPossession, without, nobody }

    struct Case {
        var token: Token
        var kind: Kind
        var chain: Chain
        var named: Named
        var open: Open
        var neighbour: Neighbour
        var poster: Poster
    }

    static func order(
        _ user: String, _ minutesBefore: Double, product: String = "coins", item: String = "a",
        _ change: (inout PlacedOrder) -> Void = { _ in }
    ) -> PlacedOrder {
        let placedAt = bought.addingTimeInterval(-minutesBefore * minute)
        var order = PlacedOrder(
            id: UUID(), userID: user, productID: product, placedAt: placedAt,
            payBy: bought.addingTimeInterval(86_400), goods: [.init(item: item, amount: 1)])
        change(&order)
        return order
    }

    static func transaction(_ kind: Kind) -> Transaction {
        DecisionTests.transaction(
            kind: kind == .consumable ? .consumable : kind == .restore ? .nonConsumable : .autoRenewable
        ) {
            $0.showsToken = true
            switch kind {
            case .consumable, .firstPeriod: $0.reason = "PURCHASE"
            case .renewal:
                $0.originalID = "1"
                $0.reason = "RENEWAL"
            case .resubscribed:
                $0.originalID = "1"
                $0.reason = "PURCHASE"
            case .legacyPeriod, .restore: $0.originalID = "1"
            }
        }
    }

    static func make(_ c: Case) -> (Transaction, Claim, Evidence) {
        var transaction = Self.transaction(c.kind)
        var evidence = Evidence()
        let token = UUID()
        if c.token != .none { transaction.appAccountToken = token }
        let tokenOrder: PlacedOrder? =
            switch c.token {
            case .myOrder: order(me, 120)
            case .yourOrder: order(you, 120)
            case .orderOfAnotherProduct: order(you, 120, product: "gems")
            case .boundOrder: order(you, 120) { $0.transactionID = "other" }
            case .boundOrderOfAnotherProduct: order(you, 120, product: "gems") { $0.transactionID = "other" }
            default: nil
            }
        if var tokenOrder {
            tokenOrder.id = token
            evidence.orders.append(tokenOrder)
        }
        switch c.token {
        case .registeredForMe: evidence.registeredUserID = me
        case .registeredForYou: evidence.registeredUserID = you
        case .grantedToYou: evidence.tokenUserIDs = [you]
        case .grantedToTwo, .grantedToTwoWhileIHaveOne: evidence.tokenUserIDs = [you, third]
        default: break
        }
        evidence.posterHasToken = c.token == .grantedToTwoWhileIHaveOne || c.token == .unknownWhileIHaveOne
        switch c.chain {
        case .none: break
        case .mine: evidence.chain = .init(userID: me)
        case .yours: evidence.chain = .init(userID: you)
        case .yoursMoved: evidence.chain = .init(userID: you, isMoved: true)
        case .yoursTakenBack:
            evidence.chain = .init(userID: you)
            evidence.revokedAt = bought.addingTimeInterval(-1)
        }
        if let named = namedOrder(c.named, transaction.id) {
            evidence.orders.append(named)
            evidence.namedOrderID = named.id
        }
        evidence.orders += openOrders(c.open)
        if c.open == .oneButOfferCode { transaction.offerType = 3 }
        if c.neighbour != .none {
            evidence.orders.append(order(third, c.neighbour == .near ? 1 : 16) { $0.isOfInstallation = true })
        }
        let claim = Claim(
            userID: c.poster == .nobody ? nil : me, hasPossession: c.poster != .without,
            receivedAt: DecisionTests.received)
        return (transaction, claim, evidence)
    }

    private static func namedOrder(_ named: Named, _ id: String) -> PlacedOrder? {
        switch named {
        case .none: nil
        case .mine: order(me, 2)
        case .mineOfTwoHoursAgo: order(me, 120)
        case .mineLater: order(me, -10)
        case .mineReserved: order(me, -10) { $0.reservedFor = id }
        case .mineReservedForAnother: order(me, 2) { $0.reservedFor = "other" }
        case .mineOfAnotherProduct: order(me, 2, product: "gems")
        case .mineBound: order(me, 2) { $0.transactionID = "other" }
        case .yours: order(you, 3)
        case .yoursOfAnHourAgo: order(you, 61)
        }
    }

    private static func openOrders(_ open: Open) -> [PlacedOrder] {
        switch open {
        case .none: []
        case .one, .oneButOfferCode: [order(me, 30)]
        case .lapsed: [order(me, 4000) { $0.payBy = bought.addingTimeInterval(-1) }]
        case .twoAlike: [order(me, 40), order(me, 30)]
        case .twoDiffer: [order(me, 40), order(me, 30, item: "b")]
        case .twoDifferLatestNear: [order(me, 40), order(me, 5, item: "b")]
        case .twoDifferBothNear: [order(me, 6), order(me, 5, item: "b")]
        }
    }

    // MARK: The oracle

    struct Expected: Equatable, CustomStringConvertible {
        var row: Int
        var user: String? = nil
        var order: UUID? = nil
        var held: Reason? = nil

        var description: String {
            "row \(row) \(user ?? "-") \(order?.uuidString.prefix(4) ?? "-") \(held?.rawValue ?? "")"
        }
    }

    static func expected(_ c: Case, _ t: Transaction, _ claim: Claim, _ e: Evidence) -> Expected {
        let named = e.orders.filter { $0.id == e.namedOrderID }
        // "unless the poster just ordered it": legacy periods with an order of the poster within the hour before.
        let justOrdered = e.orders.contains {
            $0.userID == claim.userID && $0.productID == "coins" && $0.transactionID == nil
                && [nil, t.id].contains($0.reservedFor) && bought.timeIntervalSince($0.placedAt) <= 3600
                && bought.timeIntervalSince($0.placedAt) >= -300
        }
        let isRenewal = c.kind == .renewal || c.kind == .legacyPeriod && !justOrdered
        let isRestore = c.kind == .restore && c.chain != .yoursTakenBack
        let fitting = e.orders.filter {
            $0.productID == "coins" && $0.transactionID == nil && [nil, t.id].contains($0.reservedFor)
                && $0.placedAt.timeIntervalSince(bought) <= 300 && !isRenewal && !isRestore
        }
        /// Row 5 of a user.
        func row5(_ user: String) -> PlacedOrder? { named.first { $0.userID == user && fitting.contains($0) } }
        /// Row 7 of a user.
        func row7(_ user: String) -> PlacedOrder? {
            guard t.offerType != 3 else { return nil }
            let all = fitting.filter { $0.userID == user && bought <= $0.payBy }.sorted { $0.placedAt > $1.placedAt }
            let promises = Set(
                all.map { "\(String(describing: $0.goods)) \($0.item ?? "") \($0.bonuses) \($0.target)" })
            let near = all.filter { bought.timeIntervalSince($0.placedAt) <= 900 }
            return promises.count <= 1 || near.count == 1 ? all.first : nil
        }
        /// Row 9 of a user.
        func row9(_ user: String) -> PlacedOrder? {
            named.first {
                $0.userID == user && $0.transactionID == nil && $0.productID == "coins"
                    && ($0.reservedFor == t.id || $0.reservedFor == nil && $0.placedAt > bought)
            }
        }
        func any(_ user: String) -> UUID? { (row5(user) ?? row7(user) ?? row9(user))?.id }
        // Row 1: what was moved stays moved, whatever token its renewals carry.
        if c.chain == .yoursMoved, isRenewal { return Expected(row: 4, user: you, order: row9(you)?.id) }
        // S1-25: never the poster's because he posted it.
        let isAnothers =
            claim.userID != nil && named.contains { $0.userID != claim.userID && fitting.contains($0) }

        var rows: [Int: Expected] = [:]
        let isFirst = t.id == t.originalID
        if let order = e.orders.first(where: { $0.id == t.appAccountToken }) {
            let binds = isFirst && order.transactionID == nil
            let isSecond = isFirst && c.kind == .consumable && order.transactionID != nil && order.productID == "coins"
            rows[2] = Expected(
                row: 2, user: order.userID, order: binds ? order.id : isSecond ? nil : any(order.userID))
        }
        if t.appAccountToken != nil {
            if let user = e.registeredUserID ?? (e.tokenUserIDs.count == 1 ? e.tokenUserIDs.first : nil) {
                rows[3] = Expected(row: 3, user: user, order: any(user))
            } else if e.posterHasToken {
                rows[3] = Expected(row: 3, held: .foreignToken)
            }
        }
        if let chain = e.chain {
            let match = { Expected(row: $0, user: chain.userID, order: row9(chain.userID)?.id) }
            if isRenewal || isRestore { rows[4] = match(4) }
            if claim.hasPossession { rows[8] = match(8) }
        }
        if let user = claim.userID {
            if let order = row5(user), claim.hasPossession || bought.timeIntervalSince(order.placedAt) <= 3600 {
                rows[5] = Expected(row: 5, user: user, order: order.id)
            }
            if claim.hasPossession {
                if let order = row7(user) { rows[7] = Expected(row: 7, user: user, order: order.id) }
                if let order = row9(user) { rows[9] = Expected(row: 9, user: user, order: order.id) }
                if !isAnothers { rows[10] = Expected(row: 10, user: user) }
            }
        }
        if claim.hasPossession {
            let own = fitting.filter { $0.userID == claim.userID }.map(\.placedAt)
            let others = fitting.filter { order in
                order.userID != claim.userID && (named.contains(order) || order.isOfInstallation)
                    && bought.timeIntervalSince(order.placedAt) <= 900 && own.allSatisfy { $0 < order.placedAt }
            }
            if let order = others.sorted(by: { $0.placedAt < $1.placedAt }).last {
                rows[6] = Expected(row: 6, user: order.userID, order: order.id)
            }
        }
        return rows.min { $0.key < $1.key }?.value
            ?? Expected(
                row: 11, held: !claim.hasPossession ? .possessionMissing : isAnothers ? .foreignOrder : .orderUnknown)
    }

    static let rowOf: [BindingSource: Int] = [
        .orderToken: 2, .userToken: 3, .chain: 4, .namedOrder: 5, .orderOfAnother: 6, .openOrder: 7, .chainOwner: 8,
        .lateOrder: 9, .poster: 10, .customer: 11,
    ]

    @Test("B7: every combination of what can stand in the table's columns", arguments: Token.allCases)
    func crossProduct(token: Token) {
        var seen: Set<Int> = []
        for kind in Kind.allCases {
            for chain in Chain.allCases where chain == .none || kind != .consumable && kind != .firstPeriod {
                for named in Named.allCases {
                    for open in Open.allCases {
                        for neighbour in Neighbour.allCases {
                            for poster in Poster.allCases {
                                let c = Case(
                                    token: token, kind: kind, chain: chain, named: named, open: open,
                                    neighbour: neighbour, poster: poster)
                                let (transaction, claim, evidence) = Self.make(c)
                                let answer = Matcher(transaction, kind: nil, claim: claim, evidence: evidence).answer
                                let expected = Self.expected(c, transaction, claim, evidence)
                                seen.insert(expected.row)
                                if Self.isWrong(answer, expected) { Issue.record("\(c): \(answer), not \(expected)") }
                            }
                        }
                    }
                }
            }
        }
        // What stands above in the table hides what stands below; without a token every other row is reached.
        if token == .none { #expect(seen == [4, 5, 6, 7, 8, 9, 10, 11]) }
        #expect(seen.contains(token == .none ? 10 : Self.rowAbove(token)))
    }

    private static func rowAbove(_ token: Token) -> Int {
        switch token {
        case .none, .grantedToTwo: 10
        case .myOrder, .yourOrder, .orderOfAnotherProduct, .boundOrder, .boundOrderOfAnotherProduct: 2
        case .registeredForMe, .registeredForYou, .grantedToYou, .grantedToTwoWhileIHaveOne, .unknownWhileIHaveOne: 3
        }
    }

    private static func isWrong(_ answer: Matcher.Answer, _ expected: Expected) -> Bool {
        switch answer {
        case .held(let reason): reason != expected.held
        case .open: true
        case .owner(let match):
            match.userID != expected.user || match.order?.id != expected.order || rowOf[match.source] != expected.row
        }
    }
}
