package import AppStoreSimulator
import Foundation

/// The plan of a simulated year: the actions of its customers, the losses and the failures. The plan follows from its
/// terms alone.
///
/// Times are minutes from the start. The actions of a customer stand in the order in which they happen.
package struct YearPlan: Sendable, Equatable {
    package struct Terms: Sendable, Equatable {
        package var customers: Int
        package var days: Int
        package var seed: UInt64
        /// How many posts in a hundred never reach the server.
        package var lossPercent = 30

        package init(customers: Int, days: Int, seed: UInt64) {
            self.customers = customers
            self.days = days
            self.seed = seed
        }
    }

    /// The products for sale.
    package enum Product: String, Sendable, CaseIterable {
        case coins = "com.example.game.coins6"
        case map = "com.example.game.map"
        case pass = "com.example.game.pass"
        case vip = "com.example.game.vip"
        case gold = "com.example.game.gold"
        case silver = "com.example.game.silver"
        case bundle = "com.example.game.bundle"

        package var type: ProductType {
            switch self {
            case .coins: .consumable
            case .map: .nonConsumable
            case .pass: .nonRenewing
            case .vip, .gold, .silver, .bundle: .autoRenewable
            }
        }

        /// How much of its item one unit, or one period, gives.
        package var amount: Int {
            switch self {
            case .coins: 6000
            case .map: 1
            case .pass: 10
            case .vip: 30
            case .gold: 60
            case .silver: 31
            case .bundle: 40
            }
        }

        /// The rank in the group of subscriptions, from 1; nil: it is no subscription.
        package var level: Int? {
            switch self {
            case .gold: 1
            case .vip, .silver: 2
            case .bundle: 3
            case .coins, .map, .pass: nil
            }
        }
    }

    /// What becomes of the app's post.
    package enum Post: Sendable, Equatable {
        /// No post ever comes.
        case lost
        case once
        /// The same post comes twice at the same time.
        case twice
        case late(minutes: Int)
    }

    package enum Kind: Sendable, Equatable {
        case buy(Product, units: Int)
        /// Begins the customer's subscription.
        case subscribe(Product, period: String)
        /// The app is opened, and posts the newest period of the subscription.
        case open
        /// Apple takes back the one-time purchase with this place in the customer's list, or a share of the price.
        case refund(Int, percent: Int?)
        case reverseRefund(Int)
        /// Apple takes back the newest period of the subscription.
        case refundPeriod
        /// Apple asks how much was consumed of this purchase.
        case askConsumption(Int)
        case billingFails, billingRecovers
        case cancel, resubscribe
        case raisePrice, acceptPrice
        case change(SubscriptionRequest.Change, to: Product)
        case joinBundle, leaveBundle
        /// The first member of the family leaves.
        case withdrawMember
        /// From now on another user is logged in on the customer's device.
        case switchUser
        /// From now on nothing is posted.
        case deleteApp
    }

    package struct Action: Sendable, Equatable {
        package let minute: Int
        package let kind: Kind
        package let post: Post
    }

    package struct Customer: Sendable, Equatable {
        /// From 0.
        package let number: Int
        /// Whether the app names its user at each purchase by a token that the backend has registered.
        package let hasToken: Bool
        /// The members of the family who share subscriptions and non-consumables.
        package let members: Int
        package let actions: [Action]
    }

    /// A process that is killed with kill -9 and started again.
    package struct Kill: Sendable, Equatable {
        package let minute: Int
        package let role: KilledRole
    }

    package enum KilledRole: String, Sendable, CaseIterable { case ingest, worker, scheduler }

    package let terms: Terms
    package let customers: [Customer]
    /// When no ingest runs; three days, or nothing in a run of less than ten days.
    package let outage: Range<Int>
    package let kills: [Kill]
    /// When Apple answers the questions of the sweeps with 429; a day, or nothing in a run of less than ten days.
    package let limited: Range<Int>
    /// When some users are erased, and when what was rejected is judged again; the first minute of the last third.
    package let repairsAt: Int

    package static let minutesPerDay = 1440

    package var minutes: Int { terms.days * Self.minutesPerDay }

    package init(_ terms: Terms) {
        self.terms = terms
        customers = (0..<terms.customers).map { number in
            // Each customer has random numbers of its own: one customer's year does not depend on how many there are.
            var story = Story(terms, random: SplitMix64(seed: terms.seed &+ UInt64(number) &* 0x5851_F42D_4C95_7F2D))
            return story.customer(number)
        }
        var random = SplitMix64(seed: terms.seed ^ 0xA5A5_A5A5)
        let end = terms.days * Self.minutesPerDay
        let length = 3 * Self.minutesPerDay
        let begin = terms.days < 10 ? 0 : Int.random(in: end / 4...end / 2, using: &random)
        outage = begin..<(terms.days < 10 ? begin : begin + length)
        kills = (0..<max(3, terms.days / 12)).map { index in
            let roles = KilledRole.allCases
            return Kill(minute: Int.random(in: 0..<max(1, end), using: &random), role: roles[index % roles.count])
        }.sorted { $0.minute < $1.minute }
        repairsAt = end / 3 * 2
        let limit = end / 4 * 3
        limited = limit..<(terms.days < 10 ? limit : limit + Self.minutesPerDay)
    }

    /// How many users are erased: one of 25, and at least one.
    package var erasures: Int { max(1, terms.customers / 25) }

    /// All actions, in their order, each with the place of its customer.
    package var timeline: [(customer: Int, action: Action)] {
        customers.flatMap { customer in customer.actions.map { (customer.number, $0) } }
            .enumerated()
            .sorted { ($0.element.1.minute, $0.offset) < ($1.element.1.minute, $1.offset) }
            .map { ($0.element.0, $0.element.1) }
    }
}

extension YearPlan {
    /// The products as the configuration of an app lists them.
    static var products: [[String: Any]] {
        Product.allCases.map { product in
            var entry: [String: Any] = [
                "id": product.rawValue, "goods": [["item": "\(product)", "amount": product.amount]],
            ]
            switch product.type {
            case .consumable: entry["type"] = "consumable"
            case .nonConsumable: entry["type"] = "nonConsumable"
            case .nonRenewing:
                entry["type"] = "nonRenewing"
                entry["duration"] = "P30D"
            case .autoRenewable:
                entry["type"] = "autoRenewable"
                entry["group"] = "club"
                entry["level"] = product.level
            }
            return entry
        }
    }
}

/// The writer of one customer's year.
private struct Story {
    private let terms: YearPlan.Terms
    private var random: SplitMix64
    private var actions: [YearPlan.Action] = []
    /// From this minute on nothing is posted.
    private var deletedAt = Int.max

    init(_ terms: YearPlan.Terms, random: SplitMix64) {
        self.terms = terms
        self.random = random
    }

    private var end: Int { terms.days * YearPlan.minutesPerDay }

    mutating func customer(_ number: Int) -> YearPlan.Customer {
        let hasToken = chance(60)
        let members = chance(15) ? 1 + below(3) : 0
        // The first purchase comes within the first third of the time.
        let begin = below(max(1, end / 3))
        if chance(4) {
            // Right after the first purchase, before the app has posted it.
            deletedAt = begin
            add(begin + 1, .deleteApp)
        } else if chance(10) {
            deletedAt = begin + below(max(1, end / 2))
            add(deletedAt, .deleteApp)
        }
        if chance(10) { add(begin + below(max(1, end / 2)), .switchUser) }
        buyThings(from: begin)
        if chance(55) { subscribe(at: begin + below(max(1, end / 4)), members: members) }
        // Of actions at one minute the one that was told first happens first.
        let ordered = actions.enumerated().sorted { ($0.element.minute, $0.offset) < ($1.element.minute, $1.offset) }
        return YearPlan.Customer(
            number: number, hasToken: hasToken, members: members,
            actions: Self.renumbered(ordered.map(\.element)).filter { $0.minute < end })
    }

    // MARK: Purchases

    /// One-time purchases all over the time; refunds name them by the minute of the purchase until the list is sorted.
    private mutating func buyThings(from begin: Int) {
        var minute = begin
        while minute < end {
            let dice = below(100)
            let product: YearPlan.Product = dice < 70 ? .coins : dice < 85 ? .map : .pass
            // A customer has a non-consumable once.
            let isThere = product == .map && actions.contains { $0.kind == .buy(.map, units: 1) }
            let bought = isThere ? .coins : product
            let units = bought == .coins ? 1 + below(3) : 1
            add(minute, .buy(bought, units: units))
            takeBack(minute)
            minute += 1 + below(2 * 60 * YearPlan.minutesPerDay)
        }
    }

    private mutating func takeBack(_ purchase: Int) {
        if chance(6) { add(purchase + 1 + below(20 * YearPlan.minutesPerDay), .askConsumption(purchase)) }
        guard chance(15) else { return }
        let at = purchase + 1 + below(40 * YearPlan.minutesPerDay)
        add(at, .refund(purchase, percent: chance(35) ? 10 + below(80) : nil))
        if chance(35) { add(at + 1 + below(30 * YearPlan.minutesPerDay), .reverseRefund(purchase)) }
    }

    /// Gives each refund the place of its purchase in the list of purchases, in place of the purchase's minute.
    private static func renumbered(_ actions: [YearPlan.Action]) -> [YearPlan.Action] {
        var places: [Int: Int] = [:]
        for action in actions {
            if case .buy = action.kind { places[action.minute] = places.count }
        }
        return actions.map { action in
            let kind: YearPlan.Kind =
                switch action.kind {
                case .refund(let minute, let percent): .refund(places[minute] ?? 0, percent: percent)
                case .reverseRefund(let minute): .reverseRefund(places[minute] ?? 0)
                case .askConsumption(let minute): .askConsumption(places[minute] ?? 0)
                default: action.kind
                }
            return YearPlan.Action(minute: action.minute, kind: kind, post: action.post)
        }
    }

    // MARK: Subscriptions

    private mutating func subscribe(at begin: Int, members: Int) {
        let period = ["P1W", "P1M", "P1M", "P1M", "P1Y"][below(5)]
        add(begin, .subscribe(.vip, period: period))
        var visit = begin
        while true {
            visit += 1 + below(30 * YearPlan.minutesPerDay)
            guard visit < end else { break }
            add(visit, .open)
        }
        if members > 0, chance(30) { add(later(than: begin, days: 60), .withdrawMember) }
        let first = later(than: begin, days: 50)
        switch below(10) {
        case 0:
            add(first, .billingFails)
            add(later(than: first, days: 45), .billingRecovers)
        case 1: add(first, .billingFails)
        case 2:
            add(first, .cancel)
            if chance(60) { add(later(than: first, days: 80, least: 35), .resubscribe) }
        case 3:
            add(first, .change(.upgrade, to: .gold))
            add(later(than: first, days: 60), .change(.downgrade, to: .vip))
        case 4: add(first, .change(.crossgrade, to: .silver))
        case 5:
            add(first, .joinBundle)
            if chance(50) { add(later(than: first, days: 80), .leaveBundle) }
        case 6:
            add(first, .refundPeriod)
            if chance(50) { add(later(than: first, days: 40), .resubscribe) }
        case 7:
            add(first, .raisePrice)
            if chance(70) { add(later(than: first, days: 4), .acceptPrice) }
        default: break
        }
    }

    // MARK: Chance

    private mutating func add(_ minute: Int, _ kind: YearPlan.Kind) {
        actions.append(.init(minute: minute, kind: kind, post: minute < deletedAt ? post() : .lost))
    }

    private mutating func post() -> YearPlan.Post {
        if chance(terms.lossPercent) { return .lost }
        let dice = below(100)
        if dice < 15 { return .twice }
        return dice < 35 ? .late(minutes: 60 + below(20 * 60)) : .once
    }

    private mutating func later(than minute: Int, days: Int, least: Int = 0) -> Int {
        minute + 1 + (least + below(days)) * YearPlan.minutesPerDay
    }

    private mutating func chance(_ percent: Int) -> Bool { below(100) < percent }

    private mutating func below(_ bound: Int) -> Int { Int(random.next() % UInt64(max(1, bound))) }
}
