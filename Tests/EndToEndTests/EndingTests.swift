import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// Purchases that Apple ended, purchases that are shared and purchases that continue under another id: what each of
    /// them means (Ownership, rows 0a, 0a', 0d, 4 and 8). Over HTTP, with real processes.
    @Suite struct EndingTests {
        /// Goal: a purchase that was paid for and then replaced, or refunded in part, is given. A purchase that was
        /// refunded in full or withdrawn is not given, and is safe to finish (F4).
        /// Method: a subscription that was upgraded, posted as a receipt that marks no upgrade; and purchases that were
        /// refunded in part, in full, and withdrawn, posted as their later signed transactions.
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

        /// Goal: a shared purchase belongs to its chain's owner, also where another user posts it, and gives what the app's policy says
        /// (row 0d).
        /// Method: a family member's period and the next one, posted under another login; then the policies.
        @Test func whatIsSharedHasAnOwner() async throws {
            try await System.run { system in
                try await system.startAll()
                func share(
                    _ product: String, _ ownership: String = "FAMILY_SHARED", of original: Sale? = nil
                ) async throws -> Sale {
                    try await system.appStore.sell(product) {
                        $0.type = .autoRenewable
                        $0.inAppOwnershipType = ownership
                        $0.originalTransactionId = original?.purchase.transactionId
                    }
                }
                let first = try await share(ConfigurationFile.pass)
                system.owe(first, promised: 0, to: "u1")
                let own = try await system.submit(first, user: "u1", wait: 20)
                #expect(own.state == "granted" && own.safeToFinish == true, "\(own.text)")
                #expect((own.transactions[0]["goods"] as? [Any])?.isEmpty == true)
                let next = try await share(ConfigurationFile.pass, of: first)
                system.owe(next, promised: 0, to: "u1")
                let other = try await system.submit(next, user: "u2", wait: 20)
                #expect(other.state == "already_granted" && other.reason == "owned_by_another_user", "\(other.text)")

                try system.configureGame { $0.shared = "goods" }
                try await system.reload()
                let seat = try await share(ConfigurationFile.gold, "ASSIGNED")
                system.owe(seat, to: "u3")
                #expect(try await system.submit(seat, user: "u3", wait: 20).state == "granted")

                try system.configureGame { $0.shared = "reject" }
                try await system.reload()
                let refused = try await system.submit(
                    try await share(ConfigurationFile.gold), user: "u3", wait: 20)
                #expect(refused.state == "rejected" && refused.reason == "shared_not_served")
                #expect(refused.safeToFinish == true)
            }
        }

        /// Goal: a subscription that goes on in a bundle, under an original id of its own, stays its owner's (rows 4
        /// and 8).
        /// Method: the bundle and its renewal are posted under another login than the subscription.
        @Test func aBundleContinuesItsChain() async throws {
            try await System.run { system in
                try await system.startAll()
                func sell(
                    _ product: String, of original: Sale? = nil, after previous: Sale? = nil
                ) async throws -> Sale {
                    try await system.appStore.sell(product) {
                        $0.type = .autoRenewable
                        $0.originalTransactionId = original?.purchase.transactionId
                        $0.previousOriginalTransactionId = previous?.purchase.transactionId
                    }
                }
                let single = try await sell(ConfigurationFile.pass)
                system.owe(single, to: "u1")
                #expect(try await system.submit(single, user: "u1", wait: 20).state == "granted")
                let bundle = try await sell(ConfigurationFile.gold, after: single)
                let renewal = try await sell(ConfigurationFile.gold, of: bundle)
                for sale in [bundle, renewal] {
                    system.owe(sale, to: "u1")
                    let answer = try await system.submit(sale, user: "u2", wait: 20)
                    #expect(answer.state == "already_granted", "\(answer.text)")
                    #expect(answer.reason == "owned_by_another_user")
                }
            }
        }
    }
}
