import Encoding
import Foundation
import Purchases
import TestRandom
import TestSchemas
import Testing

/// Goal: the final state of a purchase or subscription does not depend on the order in which Apple's notifications
/// arrive (P22). Method: life cycles as data, each in every order; longer ones made at random, in random orders and at
/// random moments. The newest signed facts count, and each arrival is followed up.
@Suite struct LifeCycleTests {
    /// After the end of a life cycle: a lapse has been looked at twice by then.
    private static let patience: TimeInterval = 15 * 60

    /// What is left: the goods, and where each chain stands by its facts.
    private static func outcome(of chains: FollowedChains, at now: Date) -> String {
        let originals = Set(chains.known.values.map(\.facts.originalID)).sorted()
        let states = originals.map { original in
            "\(original): \(status(chains, original, now).map { text($0) } ?? "none")"
        }
        return "\(chains.goods.sorted { $0.key < $1.key }) \(states)"
    }

    private static func status(_ chains: FollowedChains, _ original: String, _ now: Date) -> SubscriptionStatus? {
        chains.facts(of: original, at: now).status(by: SubscriptionPolicy())
    }

    /// Without the period's id: of a period with several ids any of them may be the granted one.
    private static func text(_ status: SubscriptionStatus) -> String {
        "\(status.state.rawValue) \(status.productID) \(status.accessUntil.timeIntervalSince1970) \(status.isEntitled)"
    }

    /// That the app's backend was told what stands, of every chain that somebody has.
    private static func told(_ chains: FollowedChains, at now: Date, in order: String) {
        for (original, chain) in chains.chains {
            guard let told = chain.told, let status = status(chains, original, now) else { continue }
            let words =
                "\(told.state.rawValue) \(told.productID) \(told.accessUntil.timeIntervalSince1970) \(told.isEntitled)"
            if words != text(status) { Issue.record("\(order): told \(words), stands \(text(status))") }
        }
    }

    private static let schemas = try? EventSchemas.all()

    private static func end(_ chains: FollowedChains, _ cycle: LifeCycle, in order: String) -> String {
        var chains = chains
        let now = LifeCycle.day(cycle.end).addingTimeInterval(patience)
        chains.wait(until: now)
        told(chains, at: now, in: "\(cycle.name) \(order)")
        for event in chains.events {
            let faults = schemas?.faults(ofBody: .object(event.body), of: event.type.rawValue) ?? ["no schemas"]
            if !faults.isEmpty { Issue.record("\(cycle.name) \(order): \(faults)") }
        }
        if chains.repetitions > 0 { Issue.record("\(cycle.name) \(order): a second follow-up wrote something") }
        return outcome(of: chains, at: now)
    }

    @Test(
        "P22, P32, P42, P45: each life cycle ends alike in every order of its notifications", arguments: LifeCycle.all)
    func everyOrder(cycle: LifeCycle) {
        let count = cycle.notifications.count
        #expect((2...7).contains(count))
        let now = LifeCycle.day(cycle.end)
        // Orders that lead to one state of the database go on together, so few states stand for all orders.
        var reached: [String: (arrived: Int, path: [Int], chains: FollowedChains)] = ["": (0, [], FollowedChains())]
        for _ in 0..<count {
            var next: [String: (arrived: Int, path: [Int], chains: FollowedChains)] = [:]
            for (arrived, path, chains) in reached.values {
                for index in 0..<count where arrived & 1 << index == 0 {
                    var chains = chains
                    chains.hear(cycle.notifications[index], at: now)
                    let all = arrived | 1 << index
                    let key = "\(all) \(chains.key)"
                    if next[key] == nil { next[key] = (all, path + [index], chains) }
                }
            }
            reached = next
        }
        for (_, path, chains) in reached.values {
            let outcome = Self.end(chains, cycle, in: "\(path)")
            var expected = chains.goods == cycle.goods
            let later = now.addingTimeInterval(Self.patience)
            for (original, state) in cycle.states {
                expected = expected && Self.status(chains, original, later)?.state == state
            }
            if !expected { Issue.record("\(cycle.name) in the order \(path) ends with \(outcome)") }
        }
        let outcomes = Set(reached.values.map { Self.end($0.chains, cycle, in: "\($0.path)") })
        #expect(outcomes.count == 1, "\(cycle.name): \(outcomes)")
    }

    @Test("S3-50, S3-62: what is told of a life cycle whose notifications arrive at once")
    func tellsInOrder() {
        let expected: [String: [String]] = [
            "renewals, switched off, expired": [
                "started", "renewed", "changed", "changed", "renewed", "changed", "expired cancelled",
            ],
            "lapse of which Apple says nothing": ["started", "renewed", "expired other"],
            "grace and recovery": ["started", "in_grace", "recovered"],
            "grace, retry, expiry, resubscription": [
                "started", "in_grace", "in_retry", "expired billing_error", "started", "changed",
            ],
            "retry and expiry": ["started", "in_retry", "expired billing_error"],
            "a price that nobody agreed to": [
                "started", "renewed", "price_consent", "price_consent", "price_consent", "expired price_not_accepted",
            ],
            "a product that is not for sale any more": ["started", "renewed", "expired product_unavailable"],
            "downgrade at the next period": ["started", "changed", "renewed", "changed", "renewed"],
            "downgrade that was taken back": ["started", "changed", "changed", "renewed"],
            "refund of the running period": ["started", "renewed", "changed", "revoked refunded"],
            "refund of an earlier period": ["started", "renewed", "renewed", "renewed"],
            "family sharing and its end": ["started", "renewed", "revoked withdrawn"],
        ]
        for cycle in LifeCycle.all {
            guard let expected = expected[cycle.name] else { continue }
            var chains = FollowedChains()
            for heard in cycle.notifications.sorted(by: { $0.signedAt < $1.signedAt }) {
                chains.wait(until: heard.signedAt)
                chains.hear(heard, at: heard.signedAt)
            }
            _ = Self.end(chains, cycle, in: "in order")
            chains.wait(until: LifeCycle.day(cycle.end).addingTimeInterval(Self.patience))
            let told = chains.events.filter { $0.type.rawValue.hasPrefix("subscription.") }.map { event in
                var words = String(event.type.rawValue.dropFirst("subscription.".count))
                if case .string(let reason)? = JSONValue.object(event.body)["reason"] { words += " " + reason }
                return words
            }
            #expect(told == expected, "\(cycle.name)")
            #expect(
                Set(chains.events.map { "\($0.type.rawValue) \($0.transactionID) \($0.distinction)" }).count
                    == chains.events.count, "\(cycle.name)")
        }
    }

    @Test("P22: longer life cycles end alike in random orders and at random moments")
    func longOnes() {
        var random = SeededRandom(announcing: "longOnes")
        for round in 0..<30 {
            let notifications = Self.life(&random)
            let end = (notifications.map(\.signedAt).max() ?? LifeCycle.origin).addingTimeInterval(3600)
            var outcomes: Set<String> = []
            for turn in 0..<8 {
                let arrivals = notifications.map { heard in
                    let delay = turn == 0 ? 0 : Double.random(in: 0...20, using: &random) * 86_400
                    return (at: min(end, heard.signedAt.addingTimeInterval(delay)), heard: heard)
                }
                var chains = FollowedChains()
                for (at, heard) in arrivals.shuffled(using: &random).sorted(by: { $0.at < $1.at }) {
                    chains.wait(until: at)
                    chains.hear(heard, at: at)
                }
                let now = end.addingTimeInterval(Self.patience)
                chains.wait(until: now)
                Self.told(chains, at: now, in: "seed \(random.seed), round \(round), turn \(turn)")
                #expect(chains.repetitions == 0, "seed \(random.seed), round \(round), turn \(turn)")
                outcomes.insert(Self.outcome(of: chains, at: now))
            }
            #expect(outcomes.count == 1, "seed \(random.seed), round \(round): \(outcomes)")
        }
    }

    /// A subscription of some periods: of changing products, refunded, reversed, with facts about the renewals.
    private static func life(_ random: inout SeededRandom) -> [LifeCycle.Heard] {
        var notifications: [LifeCycle.Heard] = []
        var start = 0.0
        var product = "gold"
        for number in 1...Int.random(in: 2...8, using: &random) {
            let period = LifeCycle.Heard.period(number == 1 ? "S" : "S\(number)", product, start, start + 30)
            notifications.append(period)
            var at = start + Double.random(in: 1...9, using: &random)
            switch Int.random(in: 0..<6, using: &random) {
            case 0:
                notifications.append(period.ended(at))
                if Bool.random(using: &random) { notifications.append(period.changed(at + 1)) }
            case 1:
                for percentage in [10_000, 40_000, 90_000].prefix(Int.random(in: 1...3, using: &random)) {
                    at += 1
                    notifications.append(period.ended(at, type: "REFUND_PRORATED", percentage: percentage))
                }
            case 2: notifications.append(.renewal(at) { $0.renewsAutomatically = false })
            case 3:
                notifications.append(
                    .renewal(start + 30) {
                        $0.isInBillingRetry = true
                        $0.graceUntil = LifeCycle.day(start + 36)
                    })
                start += 5
            case 4:
                // Another product from now on.
                notifications.append(period.changed(at) { $0.isUpgraded = true })
                product = product == "gold" ? "silver" : "gold"
                start = at - 30
            default: start += Bool.random(using: &random) ? 0 : 40
            }
            start += 30
        }
        return notifications
    }
}
