import Foundation
import Purchases
import Testing

/// Goal: rows 2 to 10 of Ownership decide as their text says, in their order (B7). Method: the cross product of the
/// values of each column, more than a hundred thousand cases, against an oracle that was written from the text alone:
/// it collects the answer of every row, and then takes the first.
@Suite struct MatcherTableTests {
    static let bought = DecisionTests.received.addingTimeInterval(-60)
    static let minute: TimeInterval = 60
    static let (me, you, third) = ("me", "you", "third")

    enum Token: CaseIterable {
        case none, myOrder, yourOrder, orderOfAnotherProduct, boundOrder, boundOrderOfAnotherProduct
        case registeredForMe, registeredForYou, rememberedMine, rememberedYours, rememberedYoursWhileIHaveOne
        case grantedToTwo, grantedToTwoWhileIHaveOne, unknownWhileIHaveOne
    }
    enum Kind: CaseIterable { case consumable, firstPeriod, renewal, resubscribed, legacyPeriod, restore }
    enum Chain: CaseIterable { case none, mine, yours, yoursTakenBack, yoursMoved }
    enum Named: CaseIterable {
        case none, mine, mineOfTwoHoursAgo, mineLater, mineReserved, mineReservedForAnother, mineOfAnotherProduct,
            mineBound
        case mineJustAfter, yours, yoursOfAnHourAgo, yoursOfAnotherProduct, yoursBound, yoursLater
    }
    /// The user whom the posted record names.
    enum Record: CaseIterable { case none, yours, unknown }
    enum Age: CaseIterable { case fresh, aDay }
    enum Open: CaseIterable {
        case none, one, lapsed, twoAlike, twoDiffer, twoDifferLatestNear, twoDifferBothNear, oneButOfferCode
    }
    enum Neighbour: CaseIterable { case none, near, far, nearUnproven }
    enum Poster: CaseIterable { case withPossession, without, unnamed }

    struct Case {
        var token: Token
        var kind: Kind
        var chain: Chain
        var named: Named
        var open: Open
        var neighbour: Neighbour
        var poster: Poster
        var record: Record
        var age: Age
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
        case .rememberedMine: evidence.rememberedUserIDs = [me]
        case .rememberedYours, .rememberedYoursWhileIHaveOne: evidence.rememberedUserIDs = [you]
        case .grantedToTwo, .grantedToTwoWhileIHaveOne: evidence.rememberedUserIDs = [you, third]
        default: break
        }
        evidence.posterHasToken = [
            .grantedToTwoWhileIHaveOne, .unknownWhileIHaveOne, .rememberedYoursWhileIHaveOne,
        ].contains(c.token)
        switch c.record {
        case .none: break
        case .yours: evidence.recordUserID = you
        case .unknown: evidence.isRecordOfUnknown = true
        }
        switch c.chain {
        case .none: break
        case .mine: evidence.chain = .init(userID: me)
        case .yours: evidence.chain = .init(userID: you)
        case .yoursMoved: evidence.chain = .init(userID: you, isMoved: true)
        case .yoursTakenBack:
            evidence.chain = .init(userID: you)
            evidence.revocations = 1
        }
        if let named = namedOrder(c.named, transaction.id) {
            evidence.orders.append(named)
            evidence.namedOrderID = named.id
        }
        evidence.orders += openOrders(c.open)
        if c.open == .oneButOfferCode { transaction.offerType = 3 }
        if c.neighbour != .none {
            evidence.orders.append(
                order(third, c.neighbour == .far ? 16 : 1) {
                    $0.isOnProvenInstallation = c.neighbour != .nearUnproven
                })
        }
        let received = DecisionTests.received
        let claim = Claim(
            userID: c.poster == .unnamed ? nil : me, hasPossession: c.poster != .without, receivedAt: received,
            judgedAt: c.age == .fresh ? received : received.addingTimeInterval(86_400))
        return (transaction, claim, evidence)
    }

    private static func namedOrder(_ named: Named, _ id: String) -> PlacedOrder? {
        switch named {
        case .none: nil
        case .mine: order(me, 2)
        case .mineOfTwoHoursAgo: order(me, 120)
        case .mineLater: order(me, -10)
        case .mineJustAfter: order(me, -2)
        case .mineReserved: order(me, -10) { $0.reservedFor = id }
        case .mineReservedForAnother: order(me, 2) { $0.reservedFor = "other" }
        case .mineOfAnotherProduct: order(me, 2, product: "gems")
        case .mineBound: order(me, 2) { $0.transactionID = "other" }
        case .yours: order(you, 3)
        case .yoursOfAnHourAgo: order(you, 61)
        case .yoursOfAnotherProduct: order(you, 3, product: "gems")
        case .yoursBound: order(you, 3) { $0.transactionID = "other" }
        case .yoursLater: order(you, -20)
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
                && bought.timeIntervalSince($0.placedAt) >= 0
        }
        let isRenewal = c.kind == .renewal || c.kind == .legacyPeriod && !justOrdered
        let isRestore = c.kind == .restore && c.chain != .yoursTakenBack
        let open = e.orders.filter {
            $0.productID == "coins" && $0.transactionID == nil && [nil, t.id].contains($0.reservedFor) && !isRenewal
                && !isRestore
        }
        let before = open.filter { $0.placedAt <= bought }
        // "One placed up to 5 min after fits only where its chain is unknown and no order placed before the purchase fits
        // for this user, or for another on this proven installation."
        let after = open.filter { order in
            order.placedAt > bought && order.placedAt.timeIntervalSince(bought) <= 300 && e.chain == nil
                && !before.contains {
                    $0.userID == order.userID
                        || $0.isOnProvenInstallation && bought.timeIntervalSince($0.placedAt) <= 900
                }
        }
        let fitting = before + after
        /// Row 5 for a user.
        func row5(_ user: String) -> PlacedOrder? { named.first { $0.userID == user && fitting.contains($0) } }
        /// Row 7 for a user.
        func row7(_ user: String, among orders: [PlacedOrder]? = nil) -> PlacedOrder? {
            guard t.offerType != 3 else { return nil }
            let all = (orders ?? fitting).filter { $0.userID == user && bought <= $0.payBy }.sorted {
                $0.placedAt > $1.placedAt
            }
            let near = all.filter { bought.timeIntervalSince($0.placedAt) <= 900 }
            if all.count <= 1 || near.count == 1 { return all.first }
            let promises = Set(
                all.map { "\(String(describing: $0.goods)) \($0.item ?? "") \($0.bonuses) \($0.target)" })
            return promises.count == 1 ? all.first : nil
        }
        /// Row 9 for a user.
        func row9(_ user: String) -> PlacedOrder? {
            named.first {
                $0.userID == user && $0.transactionID == nil && $0.productID == "coins"
                    && ($0.reservedFor == t.id || $0.reservedFor == nil && $0.placedAt > bought)
            }
        }
        func any(_ user: String) -> UUID? { (row5(user) ?? row7(user) ?? row9(user))?.id }
        // Row 1: a chain that was moved stays moved, whatever token its renewals carry.
        if c.chain == .yoursMoved, isRenewal { return Expected(row: 4, user: you, order: row9(you)?.id) }
        // S1-25: a post that names another user's order never gives the purchase to its poster for that post.
        let isAnothers = claim.userID != nil && named.contains { $0.userID != claim.userID }
        let isForAnother = isAnothers || e.isRecordOfUnknown

        var rows: [Int: Expected] = [:]
        let isFirst = t.id == t.originalID
        if let order = e.orders.first(where: { $0.id == t.appAccountToken }) {
            let binds = isFirst && order.transactionID == nil
            let isSecond = isFirst && c.kind == .consumable && order.transactionID != nil && order.productID == "coins"
            rows[2] = Expected(
                row: 2, user: order.userID, order: binds ? order.id : isSecond ? nil : any(order.userID))
        }
        if t.appAccountToken != nil {
            if let user = e.registeredUserID {
                rows[3] = Expected(row: 3, user: user, order: any(user))
            } else if e.posterHasToken {
                rows[3] = Expected(row: 3, held: .foreignToken)
            }
            if e.registeredUserID == nil, let user = e.rememberedUserIDs.first, e.rememberedUserIDs.count == 1,
                claim.hasPossession
            {
                let isADayOld = claim.judgedAt.timeIntervalSince(claim.receivedAt) >= 86_400
                if user == claim.userID {
                    rows[3] = Expected(row: 3, user: user, order: any(user))
                } else if e.chain == nil || !isRenewal && !isRestore {
                    // A chain is proof; a token that was merely used before is not.
                    let own = claim.userID.flatMap { poster -> Expected? in
                        guard !isForAnother else { return nil }
                        if let order = named.first(where: { $0.userID == poster && before.contains($0) }) {
                            return Expected(row: 5, user: poster, order: order.id)
                        }
                        return row7(poster, among: before).map { Expected(row: 7, user: poster, order: $0.id) }
                    }
                    if let own {
                        rows[3] = own
                    } else if !isADayOld {
                        rows[3] = Expected(row: 3, held: .tokenDisputed)
                    }
                }
            }
        }
        if let chain = e.chain {
            let match = { Expected(row: $0, user: chain.userID, order: row9(chain.userID)?.id) }
            if isRenewal || isRestore { rows[4] = match(4) }
            if claim.hasPossession { rows[8] = match(8) }
        }
        if let user = claim.userID {
            // Without possession the poster's own order proves nothing (S4).
            if claim.hasPossession, let order = row5(user) {
                rows[5] = Expected(row: 5, user: user, order: order.id)
            }
            // Rows 7, 9 and 10 never give the poster a purchase that is for another user.
            if claim.hasPossession, !isForAnother {
                if let order = row7(user) { rows[7] = Expected(row: 7, user: user, order: order.id) }
                if let order = row9(user) { rows[9] = Expected(row: 9, user: user, order: order.id) }
                rows[10] = Expected(row: 10, user: user)
            }
        }
        // Row 5a stands between rows 5 and 6; here it is row 5 with another source.
        if claim.hasPossession, rows[5] == nil, let user = e.recordUserID, !isAnothers || named.first?.userID == user {
            rows[5] = Expected(row: 5, user: user, order: any(user))
        }
        if claim.hasPossession {
            let own = fitting.filter { $0.userID == claim.userID }.map(\.placedAt)
            // A redeemed purchase was made outside of any order.
            let others = fitting.filter { order in
                t.offerType != 3 && order.userID != claim.userID && order.isOnProvenInstallation
                    && bought.timeIntervalSince(order.placedAt) <= 900 && own.allSatisfy { $0 < order.placedAt }
            }
            if let order = others.sorted(by: { $0.placedAt < $1.placedAt }).last {
                rows[6] = Expected(row: 6, user: order.userID, order: order.id)
            }
        }
        return rows.min { $0.key < $1.key }?.value
            ?? Expected(
                row: 11,
                held: !claim.hasPossession
                    ? .possessionMissing
                    : isAnothers ? .foreignOrder : e.isRecordOfUnknown ? .foreignRecord : .orderUnknown)
    }

    static let rowOf: [BindingSource: Int] = [
        .orderToken: 2, .userToken: 3, .rememberedToken: 3, .chain: 4, .namedOrder: 5, .record: 5, .orderOfAnother: 6,
        .openOrder: 7, .chainOwner: 8,
        .lateOrder: 9, .poster: 10, .customer: 11,
    ]

    @Test(
        "B7: every combination of what can stand in the table's columns", arguments: Token.allCases, Record.allCases)
    func crossProduct(token: Token, record: Record) {
        var seen: Set<Int> = []
        for kind in Kind.allCases {
            for chain in Chain.allCases where chain == .none || kind != .consumable && kind != .firstPeriod {
                for named in Named.allCases {
                    for open in Open.allCases {
                        for neighbour in Neighbour.allCases where Self.isTold(record, token, open, neighbour) {
                            for poster in Poster.allCases {
                                // The age matters only for a token that was used before.
                                for age in Age.allCases where age == .fresh || Self.agesMatter.contains(token) {
                                    let c = Case(
                                        token: token, kind: kind, chain: chain, named: named, open: open,
                                        neighbour: neighbour, poster: poster, record: record, age: age)
                                    seen.insert(Self.judge(c))
                                }
                            }
                        }
                    }
                }
            }
        }
        // Rows higher in the table hide lower ones; without a token every other row is reached. A record of a known
        // user gives the purchase to that user wherever the poster could only claim it.
        if token == .none {
            #expect(
                seen
                    == (record == .none
                        ? [4, 5, 6, 7, 8, 9, 10, 11] : record == .yours ? [4, 5, 11] : [4, 5, 6, 8, 11]))
        }
        if record == .none { #expect(seen.contains(token == .none ? 10 : Self.rowAbove(token))) }
    }

    /// Whether a case is run. Half a million cases prove as much as a million and a half. So a record is crossed only
    /// with the columns that may answer beside it, and an unproven installation only with no open order.
    private static func isTold(_ record: Record, _ token: Token, _ open: Open, _ neighbour: Neighbour) -> Bool {
        guard record == .none else {
            return [.none, .myOrder, .registeredForYou, .rememberedYours, .unknownWhileIHaveOne].contains(token)
                && [.none, .one, .twoDiffer].contains(open) && [.none, .near].contains(neighbour)
        }
        return neighbour != .nearUnproven || open == .none
    }

    private static let agesMatter: [Token] = [.rememberedMine, .rememberedYours, .rememberedYoursWhileIHaveOne]

    private static func judge(_ c: Case) -> Int {
        let (transaction, claim, evidence) = make(c)
        let answer = Matcher(transaction, kind: nil, claim: claim, evidence: evidence).answer
        let expected = expected(c, transaction, claim, evidence)
        if isWrong(answer, expected) { Issue.record("\(c): \(answer), not \(expected)") }
        return expected.row
    }

    private static func rowAbove(_ token: Token) -> Int {
        switch token {
        case .none, .grantedToTwo: 10
        case .myOrder, .yourOrder, .orderOfAnotherProduct, .boundOrder, .boundOrderOfAnotherProduct: 2
        case .registeredForMe, .registeredForYou, .rememberedMine, .rememberedYours, .rememberedYoursWhileIHaveOne,
            .grantedToTwoWhileIHaveOne, .unknownWhileIHaveOne:
            3
        }
    }

    private static func isWrong(_ answer: Matcher.Answer, _ expected: Expected) -> Bool {
        switch answer {
        case .held(let reason, let rival):
            reason != expected.held || (rival == nil) == (reason == .tokenDisputed)
        case .open: true
        case .owner(let match):
            match.userID != expected.user || match.order?.id != expected.order || rowOf[match.source] != expected.row
        }
    }
}
