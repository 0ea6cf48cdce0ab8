import Foundation
import Purchases
import Testing

/// Goal: an app may give a subscription's goods at its start alone; then a renewal is granted without goods, and every
/// other purchase as before. Method: each kind of period with each policy, in a table.
@Suite struct GoodsAtStartTests {
    private static let start = Date(timeIntervalSince1970: 1_800_000_000)
    private static let goods = [AppPolicy.Goods(item: "pass", amount: 1)]

    struct Bought: Sendable, CustomTestStringConvertible {
        var name: String
        var original = "1"
        var reason: String?
        var product = "pass"
        var decisions: [SubscriptionPolicy.Goods: Decision]
        var testDescription: String { name }
    }

    private static func both(_ decision: Decision) -> [SubscriptionPolicy.Goods: Decision] {
        [.everyPeriod: decision, .atStart: decision]
    }

    static let bought: [Bought] = {
        let given = Decision.grant(goods: goods, source: .poster)
        let renewed = [
            SubscriptionPolicy.Goods.everyPeriod: given, .atStart: Decision.grant(goods: [], source: .poster),
        ]
        return [
            Bought(name: "the first period", original: "2", reason: "PURCHASE", decisions: both(given)),
            Bought(name: "a renewal", reason: "RENEWAL", decisions: renewed),
            Bought(name: "bought again after a lapse", reason: "PURCHASE", decisions: both(given)),
            Bought(name: "a later period of a legacy receipt", decisions: renewed),
            Bought(name: "the first period of a legacy receipt", original: "2", decisions: both(given)),
            Bought(
                name: "a renewal of what is not sold here", reason: "RENEWAL", product: "unknown",
                decisions: both(.held(.productUnknown))),
        ]
    }()

    @Test("S3-24: what each period gives, by each policy", arguments: bought)
    func period(_ bought: Bought) {
        for goods in SubscriptionPolicy.Goods.allCases {
            var policy = AppPolicy(
                id: "game", grantFrom: .distantPast,
                products: [.init(id: "pass", kind: .autoRenewable, goods: Self.goods)])
            policy.subscriptions.goods = goods
            let transaction = Transaction(
                id: "2", originalID: bought.original, productID: bought.product, kind: nil,
                environment: Transaction.production, purchasedAt: Self.start, expiresAt: Self.start + 86_400,
                reason: bought.reason)
            let claim = Claim(userID: "u1", hasPossession: true, receivedAt: Self.start)
            #expect(policy.decide(transaction, claim: claim) == bought.decisions[goods], "\(goods)")
        }
    }

    @Test("what is no period gives its goods by each policy")
    func others() {
        for goods in SubscriptionPolicy.Goods.allCases {
            var policy = AppPolicy(
                id: "game", grantFrom: .distantPast,
                products: [.init(id: "coins", kind: .consumable, goods: Self.goods)])
            policy.subscriptions.goods = goods
            let transaction = Transaction(
                id: "2", originalID: "1", productID: "coins", kind: .consumable, environment: Transaction.production,
                purchasedAt: Self.start, reason: "PURCHASE")
            let claim = Claim(userID: "u1", hasPossession: true, receivedAt: Self.start)
            #expect(policy.decide(transaction, claim: claim) == .grant(goods: Self.goods, source: .poster))
        }
    }
}
