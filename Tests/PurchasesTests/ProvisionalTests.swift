import Foundation
import Purchases
import Testing

/// Goal: which purchases may be given before Apple has confirmed them, and to which users (B10). Method: the rules
/// against tables of every combination, written a second time.
@Suite struct ProvisionalTests {
    private static let now = Date(timeIntervalSince1970: 1_800_000_000)

    @Test("B10: trust is a number of purchases, a time since the first, and no refund; each at its exact limit")
    func trust() {
        for purchasesMin in 0...2 {
            for knownFor in [0.0, 60, 86_400] {
                let limits = AppPolicy.Provisional(
                    perUserPerDay: 1, perAppPerDay: 1, purchasesMin: purchasesMin, knownFor: .seconds(knownFor))
                for purchases in 0...3 {
                    for age in [nil, 0.0, 59, 60, 86_399, 86_400, -5] {
                        for hasRefund in [false, true] {
                            let history = UserHistory(
                                purchases: purchases, firstReceivedAt: age.map { Self.now - $0 }, hasRefund: hasRefund)
                            let isKnown = knownFor == 0 || (age ?? -1) >= knownFor
                            #expect(
                                limits.trusts(history, at: Self.now)
                                    == (!hasRefund && purchases >= purchasesMin && isKnown),
                                "\(purchasesMin) \(knownFor) \(history)")
                        }
                    }
                }
            }
        }
    }

    @Test("B10: a paid purchase that would be granted, of a product the operator takes the risk for; nothing else")
    func purchases() {
        let limits = AppPolicy.Provisional(perUserPerDay: 1, perAppPerDay: 1)
        let goods = [AppPolicy.Goods(item: "coin", amount: 1)]
        let decisions: [Decision] = [
            .grant(goods: goods, source: .poster), .grant(goods: goods, source: .shared), .held(.review),
            .rejected(.refunded), .open(.appleUnavailable), .provisional(goods: goods, source: .poster),
        ]
        for provisional in [nil, limits] {
            for marked in [true, false] {
                let policy = AppPolicy(
                    id: "game", grantFrom: .distantPast, provisional: provisional,
                    products: [.init(id: "coins", kind: .consumable, goods: goods, isProvisional: marked)])
                for product in ["coins", "unknown"] {
                    for environment in [Transaction.production, Transaction.sandbox, "Xcode"] {
                        for (index, decision) in decisions.enumerated() {
                            let transaction = Transaction(
                                id: "1", originalID: nil, productID: product, kind: .consumable,
                                environment: environment, purchasedAt: Self.now)
                            let entry = Verdict.Entry(transaction: transaction, decision: decision)
                            #expect(
                                policy.mayBeProvisional(entry, posterID: "u1")
                                    == (provisional != nil && marked && product == "coins"
                                        && environment == "Production" && index == 0),
                                "\(marked) \(product) \(environment) \(decision)")
                        }
                    }
                }
            }
        }
    }

    @Test("what was given on trust may be finished: a loss is ours")
    func safeToFinish() {
        #expect(SafeToFinish.judge(state: "granted", reason: Reason.unconfirmed.rawValue, hasFacts: true))
        #expect(SafeToFinish.judge(state: "granted", reason: Reason.refunded.rawValue, hasFacts: true))
        #expect(!SafeToFinish.judge(state: "received", reason: Reason.unconfirmed.rawValue, hasFacts: false))
    }

    @Test("only Apple's own answer takes back; what may be our mistake does not")
    func takingBack() {
        #expect(Reason.takingBack == [.refunded, .withdrawn, .notAuthenticated, .accountNotFound, .appleRefused])
    }
}
