import Encoding
import Foundation
import Testing

@testable import Purchases

/// Goal: the entitlements of a user follow from Apple's newest facts, the app's policies, its catalogue and the clock
/// alone. Method: each state with each policy, in tables; several chains of one user in every order.
@Suite struct EntitlementTests {
    private static let start = Date(timeIntervalSince1970: 1_800_000_000)
    private static func days(_ count: Double) -> Date { start + count * 86_400 }
    private static let user = "u1"

    private static let catalogue = Catalogue(products: [
        .init(id: "gold", kind: .autoRenewable, goods: [], terms: .init(group: "pass", level: 1)),
        .init(id: "silver", kind: .autoRenewable, goods: [], terms: .init(group: "pass", level: 2)),
        .init(id: "news", kind: .autoRenewable, goods: [], terms: .init(group: "papers", level: 1)),
        .init(id: "loose", kind: .autoRenewable, goods: []),
        .init(id: "sword", kind: .nonConsumable, goods: []), .init(id: "coins", kind: .consumable, goods: []),
        .init(id: "season", kind: .nonRenewing, goods: [], terms: .init(duration: CalendarPeriod("P30D"))),
        .init(id: "monthly", kind: .nonRenewing, goods: [], terms: .init(duration: CalendarPeriod("P1M"))),
        .init(id: "endless", kind: .nonRenewing, goods: []),
    ])

    /// A month of a subscription, from a day on.
    private static func period(
        _ id: String, of original: String, _ product: String = "gold", from day: Double,
        _ change: (inout Transaction) -> Void = { _ in }
    ) -> ChainFacts.Purchase {
        var transaction = Transaction(
            id: id, originalID: original, productID: product, kind: .autoRenewable, environment: "Production",
            purchasedAt: days(day), expiresAt: days(day + 30), signedAt: days(day), reason: "PURCHASE")
        change(&transaction)
        return ChainFacts.Purchase(transaction: transaction)
    }

    /// A granted purchase that is no period.
    private static func once(
        _ id: String, of original: String? = nil, _ product: String, _ kind: Transaction.Kind? = nil,
        on day: Double = 0,
        isGranted: Bool = true, _ change: (inout Transaction) -> Void = { _ in }
    ) -> ChainFacts.Purchase {
        var transaction = Transaction(
            id: id, originalID: original, productID: product, kind: kind, environment: "Production",
            purchasedAt: days(day), signedAt: days(day))
        change(&transaction)
        let grant = ChainFacts.Grant(receiptID: UUID(), userID: user, goods: [], grantedAt: days(day))
        return ChainFacts.Purchase(transaction: transaction, grant: isGranted ? grant : nil)
    }

    private static func chain(
        _ purchases: ChainFacts.Purchase..., renewal: Renewal? = nil, at day: Double, plus seconds: Double = 0
    ) -> ChainFacts {
        ChainFacts(
            appID: "game", environment: "Production", originalID: purchases[0].transaction.originalID,
            purchases: purchases, renewal: renewal, now: days(day) + seconds)
    }

    private static func entitlements(
        _ chains: ChainFacts..., by change: (inout SubscriptionPolicy) -> Void = { _ in }
    ) -> [Entitlement] {
        var policy = SubscriptionPolicy()
        change(&policy)
        return Entitlements(of: chains, by: policy, catalogue).list
    }

    private static func renewal(
        of original: String, signed day: Double, _ change: (inout Renewal) -> Void
    ) -> Renewal {
        var renewal = Renewal(originalID: original, environment: "Production", signedAt: days(day))
        change(&renewal)
        return renewal
    }

    // MARK: One subscription

    struct Stand: Sendable, CustomTestStringConvertible {
        var name: String
        var facts: ChainFacts
        var grace = true
        var retry = false
        var state: SubscriptionState
        var isActive: Bool
        /// The day on which it ends.
        var until: Double
        var testDescription: String { name }
    }

    static let stands: [Stand] = {
        let bought = period("1", of: "1", from: 0)
        let grace = renewal(of: "1", signed: 30) { ($0.isInBillingRetry, $0.graceUntil) = (true, days(46)) }
        let retry = renewal(of: "1", signed: 30) { $0.isInBillingRetry = true }
        let cancelled = renewal(of: "1", signed: 30) { $0.expirationIntent = 1 }
        let refunded = period("1", of: "1", from: 0) {
            ($0.revokedAt, $0.revocation, $0.signedAt) = (days(3), Revocation(reason: 0), days(3))
        }
        return [
            Stand(name: "runs", facts: chain(bought, at: 29), state: .active, isActive: true, until: 30),
            Stand(
                name: "over by the clock alone, for a moment", facts: chain(bought, at: 30, plus: 299), state: .active,
                isActive: true, until: 30),
            Stand(
                name: "over by the clock alone", facts: chain(bought, at: 30, plus: 300), state: .expired,
                isActive: false, until: 30),
            Stand(
                name: "over by Apple's facts", facts: chain(bought, renewal: cancelled, at: 30, plus: 1),
                state: .expired, isActive: false, until: 30),
            Stand(
                name: "in grace", facts: chain(bought, renewal: grace, at: 40), state: .inGrace, isActive: true,
                until: 46),
            Stand(
                name: "in grace, which gives nothing", facts: chain(bought, renewal: grace, at: 40), grace: false,
                state: .inGrace, isActive: false, until: 30),
            Stand(
                name: "after grace", facts: chain(bought, renewal: grace, at: 47), state: .inRetry, isActive: false,
                until: 30),
            Stand(
                name: "in retry", facts: chain(bought, renewal: retry, at: 40), state: .inRetry, isActive: false,
                until: 30),
            Stand(
                name: "in retry, which entitles", facts: chain(bought, renewal: retry, at: 40), retry: true,
                state: .inRetry, isActive: true, until: 90),
            Stand(
                name: "refunded", facts: chain(refunded, at: 4), state: .revoked, isActive: false, until: 3),
            Stand(
                name: "P42: an earlier period refunded",
                facts: chain(refunded, period("2", of: "1", from: 30), at: 31), state: .active, isActive: true,
                until: 60),
            Stand(
                name: "charged after a lapse",
                facts: chain(bought, period("2", of: "1", from: 50), renewal: cancelled, at: 51), state: .active,
                isActive: true, until: 80),
        ]
    }()

    @Test("S3-62: each state of a subscription, by each policy", arguments: stands)
    func subscription(_ stand: Stand) throws {
        let list = Self.entitlements(stand.facts) { ($0.graceEntitles, $0.retryEntitles) = (stand.grace, stand.retry) }
        let found = try #require(list.first)
        #expect(list.count == 1)
        #expect(found.state == stand.state)
        #expect(found.isActive == stand.isActive)
        #expect(found.isCurrent == stand.isActive)
        #expect(found.until == Self.days(stand.until))
        #expect(found.productID == "gold" && found.group == "pass" && found.level == 1)
        #expect(!found.isShared && found.kind == .autoRenewable)
    }

    @Test("what Apple says of the next period is told, unless it was said before the newest one was bought")
    func next() throws {
        let word = Self.renewal(of: "1", signed: 1) { ($0.renewsAutomatically, $0.nextProductID) = (true, "silver") }
        let told = try #require(
            Self.entitlements(Self.chain(Self.period("1", of: "1", from: 0), renewal: word, at: 2)).first)
        #expect(told.willRenew == true && told.nextProductID == "silver")
        #expect(told.purchases == [.init(transactionID: "1", originalID: "1")])
        let old = try #require(
            Self.entitlements(
                Self.chain(
                    Self.period("1", of: "1", from: 0), Self.period("2", of: "1", from: 30), renewal: word, at: 31)
            ).first)
        #expect(old.willRenew == nil && old.nextProductID == nil)
        #expect(old.purchases == [.init(transactionID: "2", originalID: "1")])
    }

    @Test("an upgrade is one entitlement, of the new product")
    func upgrade() {
        let former = Self.period("1", of: "1", "silver", from: 0) { $0.isUpgraded = true }
        let list = Self.entitlements(Self.chain(former, Self.period("2", of: "1", "gold", from: 10), at: 11))
        #expect(list.map(\.productID) == ["gold"])
        #expect(list.map(\.until) == [Self.days(40)])
        #expect(list.map(\.level) == [1])
    }

    @Test("a chain that another one continues is replaced, in whichever order they are read")
    func bundle() {
        let former = Self.chain(
            Self.period("1", of: "1", from: 0) {
                ($0.revokedAt, $0.revocation) = (Self.days(5), Revocation(reason: 7))
            },
            at: 6)
        let bundle = Self.chain(Self.period("9", of: "9", from: 5) { $0.previousOriginalID = "1" }, at: 6)
        for list in [Self.entitlements(former, bundle), Self.entitlements(bundle, former)] {
            #expect(list.map(\.state) == [.active, .replaced])
            #expect(list.map(\.isActive) == [true, false])
            #expect(list.map(\.purchases.first?.originalID) == ["9", "1"])
        }
    }

    @Test("what another customer shares is told as shared")
    func shared() {
        let list = Self.entitlements(
            Self.chain(Self.period("1", of: "1", from: 0) { $0.ownership = "FAMILY_SHARED" }, at: 1),
            Self.chain(Self.once("2", "sword") { $0.ownership = "ASSIGNED" }, at: 1))
        #expect(list.map(\.isShared) == [true, true])
        #expect(list.map(\.isActive) == [true, true])
        let both = Self.entitlements(
            Self.chain(Self.once("2", "sword") { $0.ownership = "FAMILY_SHARED" }, at: 1),
            Self.chain(Self.once("3", "sword"), at: 1))
        #expect(both.map(\.isShared) == [false])
        #expect(both.first?.purchases.count == 2)
    }

    // MARK: Several of one user

    @Test("P40: of two live subscriptions of a group the highest level counts, both are listed, in every order")
    func highestLevel() {
        let chains = [
            Self.chain(Self.period("1", of: "1", "silver", from: 5), at: 10),
            Self.chain(Self.period("2", of: "2", "gold", from: 0), at: 10),
            Self.chain(Self.period("3", of: "3", "news", from: 0), at: 10),
            Self.chain(Self.period("4", of: "4", "loose", from: 0), at: 10),
        ]
        for order in Self.orders(of: chains) {
            let list = Entitlements(of: order, by: SubscriptionPolicy(), Self.catalogue).list
            #expect(list.map(\.productID) == ["gold", "loose", "news", "silver"])
            #expect(list.map(\.isActive) == [true, true, true, true])
            #expect(list.map(\.isCurrent) == [true, true, true, false])
        }
    }

    @Test("P40: once the higher one is over, the lower one counts; of one level the later end does")
    func lowerLevel() {
        let over = Self.chain(Self.period("2", of: "2", "gold", from: -60), at: 10)
        let lower = Self.chain(Self.period("1", of: "1", "silver", from: 5), at: 10)
        let list = Self.entitlements(over, lower)
        #expect(list.map(\.productID) == ["silver", "gold"])
        #expect(list.map(\.isCurrent) == [true, false])
        let later = Self.chain(Self.period("3", of: "3", "silver", from: 8), at: 10)
        for list in [Self.entitlements(lower, later), Self.entitlements(later, lower)] {
            #expect(list.map(\.isCurrent) == [true, false])
            #expect(list.first?.purchases.first?.originalID == "3")
        }
    }

    private static func orders(of chains: [ChainFacts]) -> [[ChainFacts]] {
        guard chains.count > 1 else { return [chains] }
        return chains.indices.flatMap { place in
            var rest = chains
            let first = rest.remove(at: place)
            return orders(of: rest).map { [first] + $0 }
        }
    }

    // MARK: What is no subscription

    @Test("a non-consumable is active until Apple has taken back every purchase of it, under whatever id")
    func nonConsumable() {
        let bought = Self.once("1", "sword")
        let refund = Self.once("7", of: "1", "sword", on: 1, isGranted: false) {
            ($0.purchasedAt, $0.revokedAt, $0.signedAt) = (Self.days(0), Self.days(2), Self.days(3))
        }
        let reversal = Self.once("1", "sword") { $0.signedAt = Self.days(4) }
        let again = Self.once("8", of: "1", "sword", on: 5)
        for (purchases, state, until) in [
            ([bought], SubscriptionState.active, nil), ([bought, refund], .revoked, Self.days(2)),
            ([reversal, refund], .active, nil), ([bought, refund, again], .active, nil),
        ] as [([ChainFacts.Purchase], SubscriptionState, Date?)] {
            var facts = Self.chain(bought, at: 9)
            facts.purchases = purchases
            let list = Self.entitlements(facts)
            #expect(list.map(\.state) == [state])
            #expect(list.map(\.until) == [until])
            #expect(list.map(\.isActive) == [state == .active])
        }
    }

    @Test("P43: a purchase for nothing by an offer code is no trial: it is granted, and it entitles for ever")
    func free() throws {
        let facts = #"{"price":0,"currency":"USD","offerType":3,"offerDiscountType":"ONE_TIME","reason":"PURCHASE"}"#
        let bought = Self.once("1", "sword", .nonConsumable) {
            ($0.facts, $0.offerType) = (facts, Transaction.offerCode)
        }
        let policy = AppPolicy(
            id: "game", grantFrom: .distantPast,
            products: [.init(id: "sword", kind: .nonConsumable, goods: [.init(item: "sword", amount: 1)])])
        let claim = Claim(userID: Self.user, hasPossession: true, receivedAt: Self.days(0))
        #expect(
            policy.decide(bought.transaction, claim: claim)
                == .grant(goods: [.init(item: "sword", amount: 1)], source: .poster))
        #expect(!PurchaseTerms(bought.transaction).members.contains { $0.key == "trial" })
        let found = try #require(Self.entitlements(Self.chain(bought, at: 4000)).first)
        #expect(found.state == .active && found.isCurrent && found.until == nil)
    }

    struct Sum: Sendable, CustomTestStringConvertible {
        var name: String
        var product = "season"
        /// The day of each purchase.
        var days: [Double]
        var refunded: Set<Int> = []
        var quantity = 1
        var at: Double
        var state: SubscriptionState
        var until: Double?
        var testDescription: String { name }
    }

    static let sums = [
        Sum(name: "one", days: [0], at: 29, state: .active, until: 30),
        Sum(name: "one, over at its end", days: [0], at: 30, state: .expired, until: 30),
        Sum(name: "two add up", days: [0, 10], at: 59, state: .active, until: 60),
        Sum(name: "two with a gap", days: [0, 40], at: 41, state: .active, until: 70),
        Sum(name: "in the gap nothing of the later one is known", days: [0], at: 35, state: .expired, until: 30),
        Sum(name: "read in another order", days: [10, 0], at: 59, state: .active, until: 60),
        Sum(name: "the first refunded", days: [0, 10], refunded: [0], at: 39, state: .active, until: 40),
        Sum(name: "the second refunded", days: [0, 10], refunded: [1], at: 31, state: .expired, until: 30),
        Sum(name: "both refunded", days: [0, 10], refunded: [0, 1], at: 5, state: .revoked, until: 20),
        Sum(name: "two at once", days: [0], quantity: 2, at: 59, state: .active, until: 60),
        Sum(name: "without a duration", product: "endless", days: [0], at: 9000, state: .active, until: nil),
    ]

    @Test("S3-63: non-renewing purchases add up, and what Apple took back gives no time", arguments: sums)
    func nonRenewing(_ sum: Sum) {
        let chains = sum.days.enumerated().map { place, day in
            Self.chain(
                Self.once("\(place)", sum.product, .nonRenewing, on: day) {
                    $0.quantity = sum.quantity
                    guard sum.refunded.contains(place) else { return }
                    ($0.revokedAt, $0.signedAt) = (Self.days(10 + 10 * Double(place)), Self.days(40))
                }, at: sum.at)
        }
        let list = Entitlements(of: chains, by: SubscriptionPolicy(), Self.catalogue).list
        #expect(list.map(\.state) == [sum.state])
        #expect(list.map(\.until) == [sum.until.map(Self.days)])
        #expect(list.map(\.isActive) == [sum.state == .active])
    }

    @Test("a non-renewing purchase under a second id counts once, and what nobody was granted counts not at all")
    func restored() {
        let twice = Self.chain(
            Self.once("1", "season", .nonRenewing),
            Self.once("2", of: "1", "season", .nonRenewing, on: 1, isGranted: false), at: 2)
        #expect(Self.entitlements(twice).map(\.until) == [Self.days(30)])
        #expect(Self.entitlements(Self.chain(Self.once("1", "season", .nonRenewing, isGranted: false), at: 2)) == [])
    }

    @Test("what Apple does not say of the kind, the catalogue says; a consumable entitles nobody")
    func kinds() {
        for (product, kind, expected) in [
            ("sword", nil, Transaction.Kind.nonConsumable), ("sword", .nonConsumable, .nonConsumable),
            ("unknown", .nonConsumable, .nonConsumable), ("season", nil, .nonRenewing), ("unknown", nil, nil),
            ("coins", nil, nil), ("sword", .consumable, nil),
        ] as [(String, Transaction.Kind?, Transaction.Kind?)] {
            let list = Self.entitlements(Self.chain(Self.once("1", product, kind), at: 1))
            #expect(list.map(\.kind) == [expected].compactMap(\.self), "\(product) \(String(describing: kind))")
        }
        let legacy = Self.chain(Self.period("1", of: "1", "unknown", from: 0) { $0.kind = nil }, at: 1)
        #expect(Self.entitlements(legacy).map(\.kind) == [.autoRenewable])
    }

    // MARK: Words

    @Test(
        "periods of the calendar",
        arguments: [
            ("P30D", "P30D"), ("P2W", "P14D"), ("P1M", "P1M"), ("P1Y6M", "P1Y6M"), ("P1Y1M1W1D", "P1Y1M8D"), ("P", nil),
            ("P0D", nil), ("30D", nil), ("P1D2", nil), ("P-1D", nil), ("P1.5M", nil), ("PT1H", nil), ("P12345D", nil),
            ("P1M1Y", nil), ("p1m", nil), ("P\u{0663}D", nil), ("", nil),
        ] as [(String, String?)])
    func periods(_ text: String, _ written: String?) {
        #expect(CalendarPeriod(text)?.description == written)
    }

    @Test("a month has the days of its month, and a month too short ends on its last day")
    func months() throws {
        let read = Date.ISO8601FormatStyle()
        let month = try #require(CalendarPeriod("P1M"))
        for (from, count, to) in [
            ("2027-01-31T10:00:00Z", 1, "2027-02-28T10:00:00Z"), ("2027-01-31T10:00:00Z", 2, "2027-03-31T10:00:00Z"),
            ("2028-01-31T23:59:59Z", 1, "2028-02-29T23:59:59Z"), ("2026-12-15T00:00:00Z", 1, "2027-01-15T00:00:00Z"),
        ] {
            let (begin, end) = (try read.parse(from), try read.parse(to))
            #expect(month.end(from: begin, count: count) == end)
        }
        let (leap, next) = (try read.parse("2028-02-29T00:00:00Z"), try read.parse("2029-02-28T00:00:00Z"))
        #expect(CalendarPeriod("P1Y")?.end(from: leap) == next)
    }
}
