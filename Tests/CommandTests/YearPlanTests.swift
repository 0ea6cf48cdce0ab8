import AppStoreSimulator
import Foundation
import TestRandom
import Testing

@testable import Adversary

/// Goal: a simulated year is worth something only if everything happens in it that it promises, and if its seed repeats
/// it. Method: plans as values, from fixed seeds and from one at random.
@Suite struct YearPlanTests {
    private static let seed = SeededRandom(announcing: "year plan").seed % 1_000_000

    private static func plan(_ customers: Int, days: Int = 365, seed: UInt64 = seed) -> YearPlan {
        YearPlan(.init(customers: customers, days: days, seed: seed))
    }

    @Test func theSeedRepeatsTheYear() {
        #expect(Self.plan(50) == Self.plan(50))
        #expect(Self.plan(50) != Self.plan(50, seed: Self.seed &+ 1))
        // A customer that a report names lives the same year in a smaller run.
        #expect(Self.plan(5).customers == Array(Self.plan(50).customers.prefix(5)), "seed \(Self.seed)")
    }

    @Test(arguments: [7, 365]) func actionsStandInTheirOrderWithinTheTime(_ days: Int) {
        let plan = Self.plan(300, days: days)
        for customer in plan.customers {
            let minutes = customer.actions.map(\.minute)
            #expect(minutes == minutes.sorted(), "seed \(Self.seed), customer \(customer.number)")
            #expect(minutes.allSatisfy { (0..<plan.minutes).contains($0) })
        }
        let timeline = plan.timeline
        #expect(timeline.count == plan.customers.map(\.actions.count).reduce(0, +))
        #expect(timeline.map(\.action.minute) == timeline.map(\.action.minute).sorted())
        for customer in plan.customers {
            let own = timeline.filter { $0.customer == customer.number }.map(\.action)
            #expect(own == customer.actions, "seed \(Self.seed)")
        }
    }

    /// Each refund, reversal and question names a purchase that was made before, and a reversal follows a refund.
    @Test func whatIsTakenBackWasBoughtBefore() {
        for customer in Self.plan(500).customers {
            var bought = 0
            var refunded: Set<Int> = []
            for action in customer.actions {
                switch action.kind {
                case .buy: bought += 1
                case .refund(let place, let percent):
                    #expect(place < bought, "seed \(Self.seed), customer \(customer.number)")
                    #expect(percent.map { (1...99).contains($0) } ?? true)
                    refunded.insert(place)
                case .reverseRefund(let place):
                    #expect(refunded.contains(place), "seed \(Self.seed), customer \(customer.number)")
                case .askConsumption(let place): #expect(place < bought)
                default: break
                }
            }
        }
    }

    /// In a year of a thousand customers everything happens; about 30 % of the posts are lost.
    @Test func everythingHappens() {
        let plan = Self.plan(1000)
        let actions = plan.customers.flatMap(\.actions)
        func count(_ matches: (YearPlan.Kind) -> Bool) -> Int { actions.count { matches($0.kind) } }
        let kinds: [(String, Int)] = [
            ("whole refunds", count { if case .refund(_, nil) = $0 { true } else { false } }),
            ("refunds in part", count { if case .refund(_, .some) = $0 { true } else { false } }),
            ("reversals", count { if case .reverseRefund = $0 { true } else { false } }),
            ("questions", count { if case .askConsumption = $0 { true } else { false } }),
            ("visits", count { $0 == .open }), ("refunds of periods", count { $0 == .refundPeriod }),
            ("failures", count { $0 == .billingFails }), ("recoveries", count { $0 == .billingRecovers }),
            ("cancellations", count { $0 == .cancel }), ("returns", count { $0 == .resubscribe }),
            ("prices", count { $0 == .raisePrice }), ("consents", count { $0 == .acceptPrice }),
            ("upgrades", count { $0 == .change(.upgrade, to: .gold) }),
            ("downgrades", count { $0 == .change(.downgrade, to: .vip) }),
            ("crossgrades", count { $0 == .change(.crossgrade, to: .silver) }),
            ("bundles", count { $0 == .joinBundle }), ("bundles left", count { $0 == .leaveBundle }),
            ("members who leave", count { $0 == .withdrawMember }), ("other users", count { $0 == .switchUser }),
            ("deleted apps", count { $0 == .deleteApp }),
            (
                "apps deleted at once",
                plan.customers.count { customer in
                    let deleted = customer.actions.first { $0.kind == .deleteApp }?.minute
                    return deleted == customer.actions[0].minute + 1 && customer.actions.allSatisfy { $0.post == .lost }
                }
            ),
        ]
        for (what, count) in kinds { #expect(count >= 5, "\(what), seed \(Self.seed)") }
        for product in [YearPlan.Product.coins, .map, .pass] {
            #expect(count { if case .buy(product, _) = $0 { true } else { false } } > 100)
        }
        #expect(plan.customers.contains { $0.members > 0 })
        #expect(plan.customers.count(where: \.hasToken) > 400 && !plan.customers.allSatisfy(\.hasToken))
        let lost = Double(actions.count { $0.post == .lost }) / Double(actions.count)
        #expect((0.27...0.44).contains(lost), "\(lost), seed \(Self.seed)")
        #expect((plan.repairsAt, plan.erasures) == (365 * YearPlan.minutesPerDay / 3 * 2, 40))
        #expect(plan.outage.count == 3 * YearPlan.minutesPerDay)
        #expect(plan.limited.count == YearPlan.minutesPerDay && plan.limited.upperBound < plan.minutes)
        #expect(!plan.limited.overlaps(plan.outage))
        #expect(Set(plan.kills.map(\.role)).count == YearPlan.KilledRole.allCases.count)
    }

    /// What Apple's last statement about a purchase leaves of its goods, for each kind of end.
    @Test(arguments: [
        ("", 100), (#","revocationDate":1,"revocationReason":0"#, 0),
        (#","revocationDate":1,"revocationReason":1,"revocationType":"REFUND_FULL""#, 0),
        (#","revocationDate":1,"revocationType":"REFUND_PRORATED","revocationPercentage":33000"#, 67),
        (#","revocationDate":1,"revocationType":"REFUND_PRORATED","revocationPercentage":100000"#, 0),
        (#","revocationDate":1,"revocationReason":2"#, 100),
        (#","revocationDate":1,"revocationType":"FAMILY_REVOKE""#, 100), (#","isUpgraded":true"#, 100),
    ])
    func whatAWordLeavesOfTheGoods(_ end: String, _ left: Int) throws {
        let json = Data(#"{"transactionId":"1","signedDate":2\#(end)}"#.utf8)
        let word = try #require(AppleWord(json: json))
        #expect(word.left(of: 100) == left)
        let payload = json.base64EncodedString().replacing("+", with: "-").replacing("/", with: "_").replacing(
            "=", with: "")
        #expect(AppleWord(jws: "head.\(payload).signature") == word)
        #expect(word.saysTheSame(as: word))
    }

    @Test func aShortRunHasNoOutage() { #expect(Self.plan(3, days: 9).outage.isEmpty) }
}
