import Adversary
import AppStoreSimulator
import Foundation
import Glibc
import Testing

extension EndToEnd {
    /// Legacy receipts without verifyReceipt: they are read here, and then either the App Store Server API is asked
    /// about them, or they are believed as they are.
    @Suite struct LegacyStrategies {
        /// Goal: a receipt with a thousand purchases is granted in full, with one call per twenty of them. From then on
        /// these purchases cost no call at all, from a post of any user (B9).
        /// Method: the default strategies; 1,000 purchases of one customer in one receipt are granted to its poster.
        /// The same purchases in another receipt, from the same user and from another, end `already_granted` without a
        /// call; the other user is told that somebody else is the owner.
        @Test func aThousandPurchasesAreGrantedOnceAndThenCostNoCall() async throws {
            // The worker repeats a call that took too long: six seconds are enough for a slow machine.
            try await System.run(.init(timeScale: 0.3)) { system in
                try system.configureGame { $0.legacyReceipts = nil }
                try await system.startAll()
                let sales = try await system.appStore.sell(1000) {
                    $0.customer = "collector"
                    $0.receipts = false
                }
                system.owe(sales, to: "u1")
                let ids = sales.map(\.purchase.transactionId)
                let first = try await system.submit(
                    .init(userId: "u1", receipt: try receipt(ids, in: system)), wait: 20)
                try await system.settleDebts()
                try await system.wait("the receipt to end") {
                    try await system.client.receipt(first.id).state == "granted"
                }
                let calls = system.appStore.calls()
                #expect(Set(calls.map(\.service)) == [.transactionInfo, .history])
                #expect(calls.count { $0.service == .history } == 50)
                #expect(calls.count { $0.service == .transactionInfo } <= 50)
                for user in ["u1", "u2"] {
                    let again = try receipt(ids.reversed(), in: system)
                    let answer = try await system.submit(.init(userId: user, receipt: again), wait: 20)
                    #expect(answer.state == "already_granted")
                    // If only the first post speaks for the owner, the purchase is disputed for a day.
                    #expect(answer.safeToFinish == (user == "u1"))
                    #expect(answer.transactions.count == 1000)
                    #expect(
                        answer.transactions.allSatisfy { $0["owner"] as? String == (user == "u1" ? "you" : "another") })
                }
                #expect(system.appStore.calls().count == calls.count)
            }
        }

        /// Goal: players who post their big receipts again and again do not delay a fresh purchase (B9).
        /// Method: 20 players own 40 purchases each, all granted. Each posts a new receipt of them, 5 times. Meanwhile
        /// a new purchase is posted in a receipt with 40 known ones. It is granted while its poster waits, and Apple
        /// was asked about it alone, once. Rescues come late enough for a slow build: each would ask again.
        @Test func bigReceiptsDoNotDelayAFreshPurchase() async throws {
            try await System.run(.init(timeScale: 0.5)) { system in
                try system.configureGame { $0.legacyReceipts = ["serverApi"] }
                try await system.startAll()
                var collections: [[String]] = []
                for player in 0..<20 {
                    let sales = try await system.appStore.sell(40) {
                        $0.customer = "player-\(player)"
                        $0.receipts = false
                    }
                    system.owe(sales, to: "p\(player)")
                    let ids = sales.map(\.purchase.transactionId)
                    collections.append(ids)
                    try await system.submit(.init(userId: "p\(player)", receipt: try receipt(ids, in: system)))
                }
                try await system.settleDebts()
                try await system.wait("every receipt to end") {
                    try await system.count("select count(*) from receipts where due_at is not null") == 0
                }
                let before = system.appStore.store.calls().count
                try await withThrowingTaskGroup(of: Void.self) { group in
                    for player in 0..<20 {
                        let ids = collections[player]
                        group.addTask {
                            for _ in 0..<5 {
                                let again = try receipt(ids.shuffled(), in: system)
                                try await system.submit(.init(userId: "p\(player)", receipt: again))
                            }
                        }
                    }
                    let sale = try await system.appStore.sell {
                        $0.customer = "player-0"
                        $0.receiptOf = collections[0]
                    }
                    system.owe(sale, to: "p0")
                    #expect(try await system.submitReceipt(sale, user: "p0", wait: 25).state == "granted")
                    try await group.waitForAll()
                }
                try await system.wait("every receipt to end") {
                    try await system.count("select count(*) from receipts where due_at is not null") == 0
                }
                #expect(system.appStore.calls(after: before).map(\.service) == [.transactionInfo])
            }
        }

        /// Goal: many waiting big receipts whose purchases are all known do not delay new purchases (B9), even if each
        /// new one needs a call to Apple.
        /// Method: a player owns 200 purchases. While no worker runs, the player posts them again 60 times, each time
        /// in another order, and then three new purchases, one of them in a receipt. Then a worker starts. A purchase
        /// that waited behind all the big receipts would end after them; each of the three must end before half of
        /// them.
        @Test func aHeapOfBigReceiptsDoesNotStandBeforeFreshPurchases() async throws {
            try await System.run(.init(timeScale: 0.5)) { system in
                try system.configureGame {
                    $0.legacyReceipts = ["serverApi"]
                    $0.confirmWithApple = "always"
                }
                try await system.start(.ingest)
                try await system.start(.scheduler)
                let worker = try await system.start(.worker)
                let sales = try await system.appStore.sell(200) {
                    $0.customer = "collector"
                    $0.receipts = false
                }
                system.owe(sales, to: "collector")
                let ids = sales.map(\.purchase.transactionId)
                try await system.submit(.init(userId: "collector", receipt: try receipt(ids, in: system)))
                try await system.settleDebts()
                try await system.wait("the receipt to end") {
                    try await system.count("select count(*) from receipts where due_at is not null") == 0
                }
                worker.send(SIGTERM)
                #expect(try await worker.end(within: .seconds(60)) == .exit(0))

                for _ in 0..<60 {
                    let again = try receipt(ids.shuffled(), in: system)
                    try await system.submit(.init(userId: "collector", receipt: again))
                }
                var fresh: [String] = []
                for user in ["u1", "u2", "u3"] {
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: user)
                    let answer =
                        try await user == "u3"
                        ? system.submitReceipt(sale, user: user) : system.submit(sale, user: user)
                    fresh.append(answer.id)
                }
                try await system.start(.worker)
                try await system.wait("every receipt to end") {
                    try await system.count("select count(*) from receipts where due_at is not null") == 0
                }
                for id in fresh {
                    let before = try await system.count(
                        """
                        select count(*) from receipts where state = 'already_granted'
                          and settled_at < (select settled_at from receipts where id = '\(id)')
                        """)
                    #expect(before < 30, "\(before) of 60 ended before it")
                }
            }
        }

        /// Goal: with `local` a receipt is judged without any call, so that it is granted while Apple cannot be
        /// reached.
        /// Method: the App Store resets every connection. A fresh purchase's receipt is granted, one that was altered
        /// is rejected; not one call was made.
        @Test func aLocalProofNeedsNoApple() async throws {
            try await System.run { system in
                try system.configureGame { $0.legacyReceipts = ["local"] }
                try await system.startAll()
                try system.appStore.store.fault(FaultRequest(.reset, on: .all))
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                #expect(try await system.submitReceipt(sale, user: "u1", wait: 20).state == "granted")
                var bytes = try #require(Data(base64Encoded: sale.receipt))
                bytes[bytes.count - 1] ^= 1
                let forged = try await system.submit(
                    .init(userId: "u2", receipt: bytes.base64EncodedString()), wait: 20)
                #expect(forged.state == "rejected" && forged.reason == "signature")
                #expect(forged.safeToFinish == false)
                #expect(system.appStore.calls().isEmpty)
            }
        }

        /// Goal: the services are asked in the order of the list. While the App Store Server API is down, verifyReceipt
        /// is asked; when the API is back, the API is asked again.
        /// Method: the API answers 503; receipts are granted by verifyReceipt. Then it answers; the next is granted by
        /// the API alone.
        @Test func theNextServiceTakesOver() async throws {
            // A rescue would ask again: it comes late enough for a machine that pauses.
            try await System.run(.init(timeScale: 0.5)) { system in
                try system.configureGame { $0.legacyReceipts = ["serverApi", "verifyReceipt"] }
                try await system.startAll()
                var fault = FaultRequest(.status, on: .transactionInfo)
                fault.status = 503
                try system.appStore.store.fault(fault)
                for user in ["u1", "u2"] {
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: user)
                    #expect(try await system.submitReceipt(sale, user: user, wait: 20).state == "granted")
                    #expect(system.appStore.calls(about: sale).map(\.service) == [.transactionInfo, .verifyReceipt])
                }
                system.appStore.store.clearFaults()
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u3")
                #expect(try await system.submitReceipt(sale, user: "u3", wait: 20).state == "granted")
                #expect(system.appStore.calls(about: sale).map(\.service) == [.transactionInfo])
            }
        }

        /// Goal: a purchase that waits for a product stays owed while Apple cannot be reached, and is granted when the
        /// product is configured and Apple answers.
        /// Method: a receipt with a purchase of an unknown product is held, safe to finish. The product is configured
        /// while Apple answers 503: the receipt stays held and safe to finish. Apple is back: granted.
        @Test func aHeldPurchaseStaysOwedWhileAppleIsAway() async throws {
            try await System.run { system in
                try system.configureGame { $0.legacyReceipts = ["serverApi"] }
                try await system.startAll()
                let sale = try await system.appStore.sell("com.example.game.new")
                let answer = try await system.submitReceipt(sale, user: "u1", wait: 20)
                #expect(answer.state == "held" && answer.safeToFinish == true)
                #expect(system.appStore.calls().isEmpty, "there is nothing to grant yet")
                var fault = FaultRequest(.status, on: .transactionInfo)
                fault.status = 503
                try system.appStore.store.fault(fault)
                try system.configureGame {
                    $0.products.append(.init(id: "com.example.game.new", goods: [.init(item: "new", amount: 1)]))
                }
                try await system.reload()
                try await system.wait("Apple to be asked") { !system.appStore.calls().isEmpty }
                let meanwhile = try await system.client.receipt(answer.id)
                #expect(meanwhile.state == "held" && meanwhile.safeToFinish == true)
                system.owe(sale, to: "u1")
                system.appStore.store.clearFaults()
                try await system.settleDebts()
            }
        }

        private func receipt(_ ids: [String], in system: System) throws -> String {
            try system.appStore.store.receipt(ReceiptRequest(app: "game", transactionIds: ids))
        }
    }
}
