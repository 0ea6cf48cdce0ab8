import Foundation
import Purchases
import Testing

/// Goal: the limits on what a post alone is granted for hold exactly at their number, and touch nothing else.
@Suite struct BrakesTests {
    private static func policy(_ change: (inout AppPolicy) -> Void) -> AppPolicy {
        var policy = AppPolicy(id: "game", makeUpFree: true)
        change(&policy)
        return policy
    }

    private static func entry(
        _ environment: String = Transaction.production, customer: String? = "c1",
        _ decision: Decision = .grant(goods: [.init(item: "coin", amount: 1)], source: .poster)
    ) -> Verdict.Entry {
        let transaction = Transaction(
            id: "1", originalID: nil, productID: "coins", kind: .consumable, environment: environment,
            purchasedAt: .distantPast, customerID: customer)
        return Verdict.Entry(transaction: transaction, decision: decision)
    }

    private static func counts(user: Int = 0, sandboxUser: Int = 0, sandboxApp: Int = 0, others: Int = 0) -> BrakeCounts
    {
        BrakeCounts(
            ofUserToday: user, sandboxOfUserToday: sandboxUser, sandboxOfAppToday: sandboxApp,
            otherUsersOfCustomer: others)
    }

    @Test("the database is asked only where a limit stands")
    func whenAsked() {
        let free = Self.policy { _ in }
        let perUser = Self.policy { $0.makeUpPerUserPerDay = 1 }
        let perCustomer = Self.policy { $0.makeUpUsersPerCustomer = 1 }
        #expect(!free.needsBrakes(Self.entry(), userID: "u"))
        #expect(perUser.needsBrakes(Self.entry(customer: nil), userID: "u"))
        #expect(perCustomer.needsBrakes(Self.entry(), userID: "u"))
        #expect(!perCustomer.needsBrakes(Self.entry(customer: nil), userID: "u"), "Apple named no customer")
        #expect(!perUser.needsBrakes(Self.entry(), userID: nil))
        for decision in [
            Decision.held(.review), .rejected(.refunded), .open(.appleAnswer), .grant(goods: [], source: .shared),
        ] {
            #expect(!perUser.needsBrakes(Self.entry(Transaction.production, customer: nil, decision), userID: "u"))
        }
    }

    @Test("S1-10: sandbox grants of others than testers are counted, under no other policy")
    func whenSandboxIsAsked() {
        for policy in AppPolicy.SandboxPurchases.allCases {
            let app = Self.policy {
                $0.sandboxPurchases = policy
                $0.testers = ["t"]
            }
            #expect(app.needsBrakes(Self.entry(Transaction.sandbox), userID: "u") == (policy == .testers))
            #expect(!app.needsBrakes(Self.entry(Transaction.sandbox), userID: "t"))
        }
    }

    @Test(
        "perUserPerDay: 0 is no limit",
        arguments: [(0, 1000, true), (1, 0, true), (1, 1, false), (3, 2, true), (3, 3, false)])
    func perUser(limit: Int, today: Int, isGranted: Bool) {
        let policy = Self.policy { $0.makeUpPerUserPerDay = limit }
        let decision = policy.applyBrakes(
            Self.entry(), counts: Self.counts(user: today, sandboxUser: 99, sandboxApp: 99))
        #expect(decision == (isGranted ? Self.entry().decision : .held(.review)))
    }

    @Test(
        "usersPerCustomer: one Apple customer feeds so many users, 0 is no limit",
        arguments: [(0, 99, true), (3, 2, true), (3, 3, false), (1, 1, false), (1, 0, true)])
    func perCustomer(limit: Int, others: Int, isGranted: Bool) {
        let policy = Self.policy { $0.makeUpUsersPerCustomer = limit }
        let decision = policy.applyBrakes(Self.entry(), counts: Self.counts(others: others))
        #expect(decision == (isGranted ? Self.entry().decision : .held(.review)))
    }

    @Test("sandbox: both limits, and neither of production's")
    func sandbox() {
        let policy = Self.policy {
            $0.sandboxPerUserPerDay = 2
            $0.sandboxPerAppPerDay = 3
            $0.makeUpPerUserPerDay = 1
            $0.makeUpUsersPerCustomer = 1
        }
        for user in 0...3 {
            for app in 0...4 {
                let decision = policy.applyBrakes(
                    Self.entry(Transaction.sandbox),
                    counts: Self.counts(user: 9, sandboxUser: user, sandboxApp: app, others: 9))
                #expect(decision == (user < 2 && app < 3 ? Self.entry().decision : .held(.sandbox)))
            }
        }
    }
}

extension AppPolicy {
    /// Without any limit.
    fileprivate init(id: String, makeUpFree: Bool) {
        self.init(
            id: id, grantFrom: .distantPast, makeUpMaxAge: .zero, makeUpUsersPerCustomer: 0, makeUpPerUserPerDay: 0,
            products: [])
    }
}
