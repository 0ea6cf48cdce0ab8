import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// The scenarios of the source document S4 that a client plays: what the server answers to each step of a client
    /// that follows the document, and of a client that does not. Real processes, a real App Store simulator; the test
    /// plays the client.
    @Suite struct ClientScenarios {
        /// Goal: a client that posts what it finds at its start settles it in one request, before it buys anew. A
        /// client that skips this loses nothing either (S4-1, S4-2, S4-3, S4-4, S4-5, S4-6, S4-7, S4-12).
        /// Method: the answers to three purchases were lost when the app was killed. At the next start an observer that
        /// was added twice posts all of them, and a restored receipt that lists them; then a new order is bought, and
        /// one more without looking at the queue at all.
        @Test func theQueueIsEmptiedBeforeTheNextPurchase() async throws {
            try await System.run { system in
                try await system.startAll()
                let user = "player"
                let found = try await system.appStore.sell(3) { $0.purchaseDate = .minutesAgo(30) }
                system.owe(found, to: user)
                // The app is killed: nobody reads these answers.
                try await system.submit(found[0], user: user)
                // S4-1, S4-2, S4-3: everything in the queue, in one request; S4-5: by both observers, at the same time.
                let posts = found.map { Client.Post(userId: user, signedTransaction: $0.signedTransaction) }
                async let first = system.client.postBatch(posts)
                async let second = system.client.postBatch(posts)
                let (one, other) = (try await first, try await second)
                #expect(one.count == 3 && one.allSatisfy(\.isAccepted) && other.allSatisfy(\.isAccepted))
                #expect(one.map(\.id) == other.map(\.id), "the same post is the same receipt")
                for answer in one {
                    let settled = try await system.client.receipt(answer.id, wait: 20)
                    #expect(settled.state == "granted" && settled.safeToFinish == true)
                }
                // S4-4, S4-12: StoreKit 1 restores before a payment, and lists unfinished purchases once more.
                let restore = try await system.appStore.sell(ConfigurationFile.gems) {
                    $0.receiptOf = found.map(\.purchase.transactionId)
                }
                system.owe(restore, to: user)
                let restored = try await system.submitReceipt(restore, user: user, wait: 20)
                #expect(restored.state == "granted" && restored.transactions.count == 4)
                #expect(restored.transactions.allSatisfy { $0["safeToFinish"] as? Bool == true })
                // S4-6: the queue is empty: order, pay, post.
                let order = try await system.client.order([
                    "appId": "game", "userId": user, "productId": ConfigurationFile.coins,
                ])
                #expect(order.status == 201)
                let bought = try await system.appStore.sell { $0.appAccountToken = order.id }
                system.owe(bought, to: user)
                #expect(try await system.submit(bought, user: user, order: order.id, wait: 20).state == "granted")
                #expect(try await system.order(of: bought) == "\(order.id) order_token")
                // S4-7: a client that never looked: an old purchase lies in the queue while a new one is ordered and
                // bought.
                let old = try await system.appStore.sell { $0.purchaseDate = .minutesAgo(10) }
                let newOrder = try await system.client.order([
                    "appId": "game", "userId": user, "productId": ConfigurationFile.coins,
                ])
                let new = try await system.appStore.sell { $0.appAccountToken = newOrder.id }
                system.owe([old, new], to: user)
                for sale in [new, old] {
                    let answer = try await system.submit(sale, user: user, order: newOrder.id, wait: 20)
                    #expect(answer.state == "granted" && answer.safeToFinish == true)
                }
                #expect(try await system.order(of: new) == "\(newOrder.id) order_token")
                #expect(try await system.order(of: old) == "- poster")
            }
        }

        /// Goal: a client that keeps the order id from the order until it is told that it may finish gets its purchase
        /// matched with the order, whichever process dies in between (S4-14, S4-15, S4-23, S4-24).
        /// Method: the user orders and pays, and the app is killed at once. Restarted, it posts with the order id of
        /// its Keychain while no worker runs, is not told to finish, and keeps the id; the same with a second order
        /// that overwrote it.
        @Test func theOrderIsKeptUntilItMayBeFinished() async throws {
            try await System.run { system in
                _ = try await system.start(.ingest)
                _ = try await system.start(.scheduler)
                let order = try await system.client.order([
                    "appId": "game", "userId": "player", "productId": ConfigurationFile.coins,
                ])
                // S4-15: the client reports "paid" only after a restart, and StoreKit 1 has lost the token (S4-13).
                let paid = try await system.appStore.sell()
                system.owe(paid, to: "player")
                let posted = try await system.submit(paid, user: "player", order: order.id)
                #expect(posted.status == 202 && posted.safeToFinish == false, "S4-23: the id stays in the Keychain")
                #expect(try await system.client.get("/v1/orders/\(order.id)").state == "open")
                _ = try await system.start(.worker)
                let settled = try await system.client.receipt(posted.id, wait: 20)
                #expect(settled.state == "granted" && settled.safeToFinish == true)
                #expect(try await system.order(of: paid) == "\(order.id) named_order")

                // S4-24: a newer order has overwritten the older order's id; the purchase was made before the newer
                // order was placed.
                let overwritten = try await system.place("player", minutesAgo: 20)
                let older = try await system.appStore.sell { $0.purchaseDate = .minutesAgo(19) }
                let kept = try await system.client.order([
                    "appId": "game", "userId": "player", "productId": ConfigurationFile.coins,
                ])
                system.owe(older, to: "player")
                let answer = try await system.submit(older, user: "player", order: kept.id, wait: 20)
                #expect(answer.state == "granted" && answer.safeToFinish == true)
                #expect(try await system.order(of: older) == "\(overwritten) open_order")
                #expect(try await system.isOpen(kept.id))
            }
        }

        /// Goal: a client may fail to finish a purchase, and StoreKit may report a failure again and again: neither
        /// gives twice, and neither closes an order (S4-16, S4-17, S4-18, S4-21, S4-22, S4-25).
        /// Method: a granted purchase whose `finish` failed is posted at three starts. The client reports a payment
        /// that really failed at each start until it is finished; then the same order is paid.
        @Test func finishingFails() async throws {
            try await System.run { system in
                try await system.startAll()
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "player")
                #expect(try await system.submit(sale, user: "player", wait: 20).state == "granted")
                for _ in 0..<3 {
                    // S4-16, S4-17: Apple signs it anew at each start.
                    let again = try await system.submit(
                        .init(
                            userId: "player",
                            signedTransaction: try system.appStore.store.sign(sale.purchase.transactionId)), wait: 20)
                    #expect(again.safeToFinish == true && ["granted", "already_granted"].contains(again.state))
                }
                // S4-18, S4-25: StoreKit reports a failed payment until it is finished; the client reports it at each
                // start.
                let order = try await system.client.order([
                    "appId": "game", "userId": "player", "productId": ConfigurationFile.gems,
                ])
                for (start, status) in [201, 200, 200].enumerated() {
                    let report = try await system.client.report("failed", of: order.id, user: "player")
                    #expect(report.status == status, "start \(start)")
                }
                #expect(try await system.client.get("/v1/orders/\(order.id)").state == "open")
                // S4-21, S4-22: the user was charged all the same, or pays at the next try.
                let paid = try await system.appStore.sell(ConfigurationFile.gems) { $0.appAccountToken = order.id }
                system.owe(paid, to: "player")
                #expect(try await system.submit(paid, user: "player", wait: 20).safeToFinish == true)
                #expect(try await system.client.get("/v1/orders/\(order.id)").state == "granted")
            }
        }
    }
}
