import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// What was promised is what is given (B6): from the order over HTTP to the grant, with real processes.
    @Suite struct CatalogueTests {
        private static let catalogue = """
            apps:
              - id: game
                products:
                  - id: \(ConfigurationFile.coins)
                    type: consumable
                    versions:
                      - {until: UNTIL, goods: [{item: coins, amount: 6000}]}
                      - {from: UNTIL, goods: [{item: coins, amount: 7000}]}
                      - {promotion: spring, goods: [{item: coins, amount: 9000}]}
            """

        /// Goal: an order freezes its promise, and the purchase is granted by it. Without an order the catalogue
        /// version of the day of the purchase counts, however late the purchase is posted (S1-8, S3-9, S3-14, S3-15).
        /// Method: a catalogue whose version changed an hour ago. One purchase is from before, one from now. A third is
        /// on an order with a promotion, placed over HTTP; its id comes back as Apple's token in another user's post.
        @Test func whatWasPromisedIsGiven() async throws {
            try await System.run { system in
                _ = try await system.start(.ingest)
                _ = try await system.start(.scheduler)
                let hourAgo = Date(timeIntervalSinceNow: -3600).formatted(.iso8601)
                let file = "\(system.directory)/catalogue.yaml"
                try Self.catalogue.replacingOccurrences(of: "UNTIL", with: hourAgo)
                    .write(toFile: file, atomically: true, encoding: .utf8)
                try await system.command("catalog", "apply", file)
                _ = try await system.start(.worker)

                let (before, now) = (
                    try await system.appStore.sell {
                        $0.purchaseDate = Int64(Date(timeIntervalSinceNow: -5400).timeIntervalSince1970 * 1000)
                    }, try await system.appStore.sell()
                )
                system.owe(before, promised: 6000, to: "u1")
                system.owe(now, promised: 7000, to: "u1")
                try await system.submit(before, user: "u1", wait: 20)
                try await system.submit(now, user: "u1", wait: 20)
                let client = try system.client
                try await system.wait("ingest to have read the catalogue") {
                    let list = try await client.get("/v1/products?appId=game&promotion=spring")
                    return String(decoding: list.body, as: UTF8.self).contains("9000")
                }
                let order = try await client.order([
                    "appId": "game", "userId": "u2", "productId": ConfigurationFile.coins, "promotion": "spring",
                ])
                #expect(order.status == 201, "\(order.json)")
                let id = try #require(order.json["id"] as? String)
                let promised = try await system.appStore.sell { $0.appAccountToken = id.lowercased() }
                system.owe(promised, promised: 9000, to: "u2")
                try await system.submit(promised, user: "u3", wait: 20)
                let answer = try await client.get("/v1/orders/\(id)?wait=10")
                #expect(answer.json["state"] as? String == "granted", "\(answer.json)")
                #expect(answer.json["transactionId"] as? String == promised.purchase.transactionId, "\(answer.json)")
            }
        }

        /// Goal: a user who pays first and names the item afterwards loses nothing (S3-14): a purchase of a shared
        /// store product waits for its item, and the next post of the same proof that names the item settles it.
        /// Method: a catalogue with two items under one product and no default. Over HTTP, with real processes, one
        /// purchase is posted with its item, another one without and then with it.
        @Test func theItemIsSaidAfterwards() async throws {
            try await System.run { system in
                _ = try await system.start(.ingest)
                _ = try await system.start(.scheduler)
                let file = "\(system.directory)/shared.yaml"
                let product = ConfigurationFile.coins
                try """
                apps:
                  - id: game
                    products:
                      - id: \(product)
                        type: consumable
                        default: none
                        items:
                          - {id: small, goods: [{item: coins, amount: 6000}]}
                          - {id: large, goods: [{item: coins, amount: 9000}]}
                """.write(toFile: file, atomically: true, encoding: .utf8)
                try await system.command("catalog", "apply", file)
                _ = try await system.start(.worker)

                let (named, unnamed) = (try await system.appStore.sell(), try await system.appStore.sell())
                system.owe(named, promised: 9000, to: "u1")
                system.owe(unnamed, promised: 6000, to: "u1")
                let first = try await system.submit(
                    Client.Post(userId: "u1", signedTransaction: named.signedTransaction, item: "large"), wait: 20)
                #expect(first.state == "granted", "\(first.text)")
                let held = try await system.submit(unnamed, user: "u1", wait: 20)
                #expect(held.state == "held" && held.reason == "item_unknown", "\(held.text)")
                #expect(held.safeToFinish == true, "P2: its facts are stored")
                let again = try await system.submit(
                    Client.Post(userId: "u1", signedTransaction: unnamed.signedTransaction, item: "small"))
                #expect(again.id == held.id)
                try await system.wait("the item to settle it") {
                    try await system.client.receipt(held.id).state == "granted"
                }
            }
        }
    }
}
