import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// What a user may use now is right at the moment after the answer to a post: over HTTP, with real processes.
    @Suite struct EntitlementTests {
        private struct Listed: Decodable, Equatable {
            var productId: String
            var state: String
            var isActive: Bool
            var isCurrent: Bool
            var until: Date?
            var purchases: [Purchase]

            struct Purchase: Decodable, Equatable {
                var transactionId: String
                var originalTransactionId: String
            }
        }

        private struct Answer: Decodable {
            var entitlements: [Listed]
        }

        private static func entitlements(of user: String, _ system: System) async throws -> [Listed] {
            let answer = try await system.client.get("/v1/users/\(user)/entitlements?appId=game")
            #expect(answer.status == 200, "\(answer.text)")
            let decoder = JSONDecoder()
            decoder.dateDecodingStrategy = .custom { decoder in
                let text = try decoder.singleValueContainer().decode(String.self)
                return try Date.ISO8601FormatStyle(includingFractionalSeconds: true).parse(text)
            }
            return try decoder.decode(Answer.self, from: answer.body).entitlements
        }

        private static func date(_ milliseconds: Int64) -> Date {
            Date(timeIntervalSince1970: Double(milliseconds) / 1000)
        }

        /// Goal: a grant, a renewal, the refund of one period and the refund of the last one count at once (P42); of
        /// two subscriptions of a group the highest level counts (P40); what another user shows does not count for that
        /// user. Method: one user posts signed transactions and asks after each answer.
        @Test func everyChangeCountsAtOnce() async throws {
            try await System.run { system in
                try system.configureGame { game in
                    for (place, product) in game.products.enumerated() {
                        guard let level = [ConfigurationFile.gold: 1, ConfigurationFile.pass: 2][product.id] else {
                            continue
                        }
                        (game.products[place].group, game.products[place].level) = ("pass", level)
                    }
                }
                try await system.startAll()
                #expect(try await Self.entitlements(of: "e1", system) == [])
                let day: Int64 = 86_400_000
                // Whole seconds, which every reader of times reads as the same.
                let now = Int64(Date().timeIntervalSince1970) * 1000
                let first = try await system.appStore.sell(ConfigurationFile.pass) {
                    ($0.type, $0.purchaseDate, $0.expiresDate) = (.autoRenewable, .minutesAgo(60), now + 10 * day)
                }
                let original = first.purchase.transactionId
                system.owe(first, to: "e1")
                #expect(try await system.submit(first, user: "e1", wait: 20).state == "granted")
                func pass(_ state: String, _ end: Int64, by transaction: String, isCurrent: Bool) -> Listed {
                    Listed(
                        productId: ConfigurationFile.pass, state: state, isActive: state == "active",
                        isCurrent: isCurrent, until: Self.date(end),
                        purchases: [.init(transactionId: transaction, originalTransactionId: original)])
                }
                #expect(
                    try await Self.entitlements(of: "e1", system)
                        == [pass("active", now + 10 * day, by: original, isCurrent: true)])

                let renewal = try await system.appStore.sell(ConfigurationFile.pass) {
                    ($0.type, $0.originalTransactionId) = (.autoRenewable, original)
                    ($0.transactionReason, $0.purchaseDate, $0.expiresDate) = (
                        "RENEWAL", .minutesAgo(30), now + 20 * day
                    )
                }
                system.owe(renewal, to: "e1")
                #expect(try await system.submit(renewal, user: "e1", wait: 20).state == "granted")
                #expect(
                    try await Self.entitlements(of: "e1", system)
                        == [pass("active", now + 20 * day, by: renewal.purchase.transactionId, isCurrent: true)])

                // Another level of the group, and what never ends.
                let gold = try await system.appStore.sell(ConfigurationFile.gold) { $0.type = .autoRenewable }
                let sword = try await system.appStore.sell(ConfigurationFile.sword) { $0.type = .nonConsumable }
                for sale in [gold, sword] {
                    system.owe(sale, to: "e1")
                    #expect(try await system.submit(sale, user: "e1", wait: 20).state == "granted")
                }
                let all = try await Self.entitlements(of: "e1", system)
                #expect(
                    all.map(\.productId) == [ConfigurationFile.gold, ConfigurationFile.pass, ConfigurationFile.sword])
                #expect(all.map(\.isActive) == [true, true, true])
                #expect(all.map(\.isCurrent) == [true, false, true])
                #expect(all.last?.until == nil)
                _ = try await system.submit(sword, user: "e2", wait: 20)
                #expect(try await Self.entitlements(of: "e2", system) == [])

                func refund(_ sale: Sale) async throws {
                    try system.appStore.store.refund(sale.purchase.transactionId)
                    let proof = try system.appStore.store.sign(sale.purchase.transactionId)
                    _ = try await system.submit(.init(userId: "e1", signedTransaction: proof), wait: 20)
                }
                try await refund(gold)
                try await refund(renewal)
                let left = try await Self.entitlements(of: "e1", system)
                #expect(left.first == pass("active", now + 10 * day, by: original, isCurrent: true))
                #expect(left.map(\.state) == ["active", "active", "revoked"])
                #expect(left.last?.productId == ConfigurationFile.gold)
                try await refund(first)
                try await refund(sword)
                let none = try await Self.entitlements(of: "e1", system)
                #expect(none.map(\.state) == ["revoked", "revoked", "revoked"])
                #expect(none.map(\.isCurrent) == [false, false, false])
            }
        }
    }
}
