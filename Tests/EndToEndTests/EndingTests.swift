import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// What Apple ended is told by what it means: refunded, withdrawn, upgraded (design.md 5.1, rows 0a and 0a'). Over HTTP,
    /// with real processes.
    @Suite struct EndingTests {
        /// Goal: what was paid for and replaced or refunded in part is given; what was given back or withdrawn is not, and is
        /// safe to finish (F4).
        /// Method: a subscription that was upgraded, by a receipt that marks no upgrade, and purchases that were refunded in
        /// part, in full, and withdrawn, by their signed transactions of afterwards.
        @Test func whatAppleEndedIsToldApart() async throws {
            try await System.run { system in
                try await system.startAll()
                let store = system.appStore.store
                let basic = try await system.appStore.sell(ConfigurationFile.pass) { $0.type = .autoRenewable }
                let plus = try await system.appStore.sell(ConfigurationFile.gold) {
                    $0.type = .autoRenewable
                    $0.originalTransactionId = basic.purchase.transactionId
                    $0.transactionReason = "PURCHASE"
                }
                try store.refund(
                    basic.purchase.transactionId, RefundRequest(revocationDate: plus.purchase.purchaseDate))
                system.owe([basic, plus], to: "u1")
                let upgraded = try await system.submitReceipt(plus, user: "u1", wait: 20)
                #expect(upgraded.state == "granted" && upgraded.safeToFinish == true, "\(upgraded.text)")
                #expect(upgraded.transactions.count == 2)
                #expect(upgraded.transactions.allSatisfy { $0["reason"] == nil }, "\(upgraded.text)")

                for (type, percentage, ownership, state, reason) in [
                    ("REFUND_PRORATED", 50_000, "PURCHASED", "granted", nil),
                    ("REFUND_FULL", nil, "PURCHASED", "rejected", "refunded"),
                    ("FAMILY_REVOKE", nil, "FAMILY_SHARED", "rejected", "withdrawn"),
                    ("ASSIGNMENT_REVOKE", nil, "ASSIGNED", "rejected", "withdrawn"),
                ] as [(String, Int?, String, String, String?)] {
                    let sale = try await system.appStore.sell(ConfigurationFile.sword) {
                        $0.type = .nonConsumable
                        $0.inAppOwnershipType = ownership
                    }
                    var refund = RefundRequest()
                    (refund.revocationType, refund.revocationPercentage) = (type, percentage)
                    try store.refund(sale.purchase.transactionId, refund)
                    if state == "granted" { system.owe(sale, to: "u2") }
                    let answer = try await system.submit(
                        .init(userId: "u2", signedTransaction: try store.sign(sale.purchase.transactionId)), wait: 20)
                    #expect(answer.state == state && answer.reason == reason, "\(answer.text)")
                    #expect(answer.safeToFinish == true)
                }
                #expect(
                    Set(try await system.texts("select unnest(reasons) from outcomes where state = 'granted'"))
                        .isSuperset(of: ["ended_by_upgrade", "refund_prorated"]))
            }
        }
    }
}
