import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// What became of a subscription is found by asking Apple, where neither a notification nor a post told it. Real
    /// processes, and subscriptions of the simulated App Store that live by themselves; it has no URL to tell anybody.
    @Suite struct SubscriptionSweepTests {
        /// Goal: a renewal, a recovery after a billing failure, an upgrade and an end that nobody told are found, each
        /// period is granted once to its owner, and the told states are Apple's (S3-54, S3-55, P39).
        /// Method: four users post the first period of a subscription and nothing more; Apple is asked for statuses.
        @Test func whatNobodyTellsIsFound() async throws {
            try await System.run { system in
                try await system.startAll()
                let renewed = try await Self.live(in: system) { try await system.submit($0, user: $1, wait: 20) }
                #expect(
                    Set(system.appStore.store.calls().map(\.service)).isSuperset(of: [.subscriptionStatuses]))

                // The post and the notification come late: the period was given.
                let proof = try system.appStore.store.sign(renewed)
                let late = try await system.submit(.init(userId: "u1", signedTransaction: proof), wait: 20)
                #expect(late.state == "already_granted" && late.safeToFinish == true)
                let (notification, payload) = try system.appStore.store.hold(
                    NotificationRequest(
                        app: "game", notificationType: "DID_RENEW", subtype: nil, transactionId: renewed))
                try await system.notify(AppleNotice(id: notification.notificationUUID, signedPayload: payload))
                try await system.hearAll()
            }
        }

        /// Goal: the same without credentials for the App Store Server API.
        /// Method: the users post app receipts; verifyReceipt is asked with the stored ones.
        @Test func aReceiptAsksAsWell() async throws {
            try await System.run { system in
                try system.configureGame { $0.serverApi = nil }
                try await system.startAll()
                _ = try await Self.live(in: system) { try await system.submitReceipt($0, user: $1, wait: 20) }
                // The other app has credentials.
                #expect(Set(system.appStore.calls().map(\.service)) == [.verifyReceipt])
                #expect(
                    try await system.count(
                        "select count(*) from receipts where source = 'sweep' and kind = 'receipt' and state = 'granted'"
                    )
                        > 0)
            }
        }

        private static let hour: Int64 = 3_600_000

        /// Lets four subscriptions live, of which only the first period is posted. Returns the transaction of the period
        /// that renewed by itself.
        private static func live(
            in system: System, post: (Sale, String) async throws -> Client.Answer
        ) async throws -> String {
            let store = system.appStore.store
            /// Sells a first period of an hour that ends in some seconds, and posts it.
            func begin(
                _ user: String, _ change: (inout SubscriptionRequest) -> Void = { _ in }
            ) async throws -> String {
                let sale = try await system.appStore.sell(ConfigurationFile.pass) {
                    ($0.type, $0.period) = (.autoRenewable, "PT1H")
                    let end = Int64.minutesAgo(-20.0 / 60)
                    ($0.purchaseDate, $0.expiresDate) = (end - hour, end)
                }
                let id = sale.purchase.transactionId
                var request = SubscriptionRequest()
                change(&request)
                try store.change(request, of: id)
                system.owe(sale, to: user)
                #expect(try await post(sale, user).state == "granted", "\(user)")
                return id
            }
            func chain(_ id: String) async throws -> String? {
                try await system.texts(
                    "select state || ' ' || product_id from chains where original_transaction_id = '\(id)'"
                ).first
            }
            func wait(_ id: String, toBe state: String, _ product: String = ConfigurationFile.pass) async throws {
                try await system.wait("the chain to be \(state)") { try await chain(id) == "\(state) \(product)" }
            }
            /// The newest period, which the App Store made by itself. Nil: there is none yet.
            func newest(_ id: String) -> String? {
                store.ledger.last { $0.originalTransactionId == id && $0.transactionId != id }?.transactionId
            }

            let upgrades = try await begin("u3")
            let renews = try await begin("u1")
            let fails = try await begin("u2") { $0.billing = .fails }
            let ends = try await begin("u4") { $0.autoRenew = false }
            var upgrade = SubscriptionRequest()
            (upgrade.nextProductId, upgrade.change) = (ConfigurationFile.gold, .upgrade)
            try store.change(upgrade, of: upgrades)
            let upgraded = try #require(newest(upgrades))
            system.owe(upgraded, to: "u3")
            try await system.wait("the first period to end") { newest(renews) != nil }
            let renewed = try #require(newest(renews))
            system.owe(renewed, to: "u1")
            try await system.settleDebts()
            try await wait(renews, toBe: "active")
            try await wait(upgrades, toBe: "active", ConfigurationFile.gold)
            // Apple's answer: by the clock alone this would take minutes.
            try await wait(ends, toBe: "expired")
            try await wait(fails, toBe: "in_retry")

            var recovery = SubscriptionRequest()
            recovery.billing = .recovers
            try store.change(recovery, of: fails)
            let recovered = try #require(newest(fails))
            system.owe(recovered, to: "u2")
            // A day passes.
            try await system.execute("update chains set ask_at = now() where state = 'in_retry'")
            try await system.settleDebts()
            try await wait(fails, toBe: "active")

            let sources = try await system.texts("select distinct source from receipts where source <> 'post'")
            #expect(sources == ["sweep"])
            let caught = try await system.texts(
                "select transaction_id from net_catches where kind = 'purchase' order by transaction_id")
            #expect(Set(caught).isSuperset(of: [renewed, upgraded, recovered]))
            try await system.wait("the ended chain to rest") {
                try await system.count(
                    """
                    select count(*) from chains where original_transaction_id = '\(ends)'
                      and (ask_at = 'infinity' or ask_at > now() + interval '1 hour')
                    """) == 1
            }
            #expect(
                try await system.count(
                    "select count(*) from differences where category = 'state_differs' and ended_at is null") == 0)
            return renewed
        }
    }
}
