import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// Purchases of known customers that nobody told, and that Apple's own books list. Real processes ask an App Store
    /// that sends no notification.
    @Suite struct CustomerSweeps {
        /// Goal: a purchase whose post and whose notification were both lost is granted once, a finished consumable
        /// too; a refund that no notification told is taken back once, and its reversal gives it back once (S1-6, P32).
        /// Method: a known customer buys again with an order and posts nothing; the store sends no notification. Then
        /// the store refunds the first purchase, reverses that, and refunds another; a second deployment of the same
        /// settings without the rota of refunds hears of a refund by the customer's history alone.
        @Test func nothingWasTold() async throws {
            try await System.run { system in
                try system.configureGame {
                    $0.finishAtApple = "afterGrant"
                    // With the scale of the tests: every 1.2 s.
                    $0.sweeps = .init(customersEvery: "1m", refundsEvery: "1m")
                }
                try await system.startAll()
                let store = system.appStore.store
                let first = try await system.appStore.sell { $0.customer = "phone" }
                system.owe(first, to: "ann")
                #expect(try await system.submit(first, user: "ann", wait: 20).state == "granted")
                let order = try await system.place("ann")
                let lost = try await system.appStore.sell {
                    $0.customer = "phone"
                    $0.appAccountToken = order
                }
                system.owe(lost, to: "ann")
                try await system.wait(unposted: lost, toBe: "granted")
                #expect(try await system.order(of: lost) == "\(order) order_token")
                #expect(
                    try await system.texts(
                        "select concat_ws(' ', kind, net) from net_catches where transaction_id = '\(id(lost))'")
                        == ["purchase customer"])
                // Apple still lists what is finished there, and it is not given again.
                try await system.wait("the store to be told") {
                    store.filings.contains { $0.transactionId == id(lost) && $0.kind == .finish }
                }

                try store.refund(id(first))
                try await system.wait("the refund to be heard") {
                    try await revocations(of: first, system) == ["revoked"]
                }
                try store.reverseRefund(id(first))
                try await system.wait("the reversal to be heard") {
                    try await revocations(of: first, system) == ["revoked", "reinstated"]
                }
                try system.configureGame { $0.sweeps = .init(customersEvery: "1m", refundsEvery: "off") }
                try await system.reload()
                try store.refund(id(lost))
                try await system.wait("the history to tell the refund") {
                    try await revocations(of: lost, system) == ["revoked"]
                }
                let asked = try await system.texts(
                    "select swept_at::text from history_walks where customer like '700%'")
                try await system.wait("another sweep") {
                    try await system.texts("select swept_at::text from history_walks where customer like '700%'")
                        != asked
                }
                #expect(try await revocations(of: first, system) == ["revoked", "reinstated"])
                #expect(try await revocations(of: lost, system) == ["revoked"])
                try await system.wait("no difference to be open") {
                    try await system.count("select count(*) from differences where ended_at is null") == 0
                }
                #expect(
                    try await system.texts("select distinct category from differences order by 1")
                        == ["end_missing", "end_undone", "purchase_missing"])
            }
        }

        /// Goal: without any rota Apple is asked of a customer where somebody has a reason: support looks a purchase
        /// up, the time to pay an order passes, the app reports that the user was charged (S1-6, B1). Method: three
        /// known customers, each with another purchase that nobody told; one reason each.
        @Test func somebodyWantsIt() async throws {
            try await System.run { system in
                try await system.startAll()
                var lost: [String: Sale] = [:]
                var known: [String: Sale] = [:]
                for user in ["ann", "bob", "cid", "dora"] {
                    let sale = try await system.appStore.sell { $0.customer = user }
                    known[user] = sale
                    system.owe(sale, to: user)
                    #expect(try await system.submit(sale, user: user, wait: 20).state == "granted")
                    let order = try await system.place(user)
                    let other = try await system.appStore.sell {
                        $0.customer = user
                        $0.appAccountToken = order
                    }
                    lost[user] = other
                    if user != "dora" { system.owe(other, to: user) }
                }
                let looked = try #require(known["ann"])
                let answer = try await system.client.with(.support).get("/v1/transactions/\(id(looked))/explain")
                #expect(answer.status == 200)
                try await system.wait(unposted: try #require(lost["ann"]), toBe: "granted")

                let unpaid = try await system.place("bob", .gems)
                try await system.execute(
                    "update orders set pay_by = now() + interval '1 second' where id = '\(unpaid)'")
                try await system.wait(unposted: try #require(lost["bob"]), toBe: "granted")

                let charged = try await system.place("cid", .gems)
                #expect(try await system.client.report("paid_without_proof", of: charged, user: "cid").status < 300)
                try await system.wait(unposted: try #require(lost["cid"]), toBe: "granted")
                #expect(
                    try await system.texts(
                        """
                        select distinct c.net from net_catches c
                        """) == ["customer"])
                #expect(try await system.unposted(try #require(lost["dora"])) == nil, "nobody asked for it")
            }
        }

        private func id(_ sale: Sale) -> String { sale.purchase.transactionId }

        private func revocations(of sale: Sale, _ system: System) async throws -> [String] {
            try await system.texts(
                "select kind from revocations where transaction_id = '\(id(sale))' order by ordinal")
        }
    }
}
