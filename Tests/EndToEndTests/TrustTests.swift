import Adversary
import AppStoreSimulator
import Foundation
import Glibc
import Purchases
import Testing

extension EndToEnd {
    /// Apple cannot be reached, and the operator takes a risk for the player (B10). The invariants check that every
    /// grant on trust was told as one, and was confirmed or taken back by the end.
    @Suite struct Trust {
        /// Goal: the player has the goods within seconds of an outage, and Apple confirms them when it is back.
        /// Method: Apple answers 503; a signed transaction that Apple must confirm is posted with `?wait=`: before five
        /// seconds are over it is granted, provisional and safe to finish, its receipt open. Apple comes back: the
        /// receipt ends granted, and the feed has told of the grant and of its confirmation.
        @Test func grantedWithinSecondsAndConfirmedLater() async throws {
            try await System.run { system in
                try system.trust(purchasesMin: 0)
                try await system.startAll()
                try system.appleGoesDown()
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                let start = ContinuousClock.now
                let answer = try await system.submit(sale, user: "u1", wait: 20)
                #expect(ContinuousClock.now - start < .seconds(5))
                #expect(answer.status == 202 && answer.state == "received" && answer.reason == "unconfirmed")
                #expect(answer.safeToFinish == true)
                let transaction = try #require((answer.json["transactions"] as? [[String: Any]])?.first)
                #expect(transaction["state"] as? String == "granted" && transaction["provisional"] as? Bool == true)
                #expect((transaction["goods"] as? [[String: Any]])?.first?["amount"] as? Int == 6000)
                try await system.wait("Apple to be asked again in vain") {
                    try await system.count("select count(*) from attempts") >= 2
                }
                #expect(try await system.count("select count(*) from receipts where state = 'received'") == 1)
                system.appStore.store.clearFaults()
                try await system.wait(.granted, 1)
                let later = try await system.client.receipt(answer.id)
                #expect(later.status == 200 && later.state == "granted" && later.safeToFinish == true)
                #expect(!later.text.contains("provisional"))
                #expect(try await system.told(of: sale) == ["purchase.granted", "purchase.confirmed"])
            }
        }

        /// Goal: a legacy receipt that was verified here is given on trust as well, whichever of Apple's services must
        /// confirm it.
        /// Method: as in the test above, with a receipt and either strategy alone.
        @Test(arguments: ["serverApi", "verifyReceipt"]) func aLegacyReceiptToo(_ strategy: String) async throws {
            try await System.run { system in
                try system.trust(purchasesMin: 0)
                try system.configureGame { $0.legacyReceipts = [strategy] }
                try await system.startAll()
                try system.appleGoesDown()
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                let answer = try await system.submitReceipt(sale, user: "u1", wait: 20)
                #expect(answer.state == "received" && answer.reason == "unconfirmed" && answer.safeToFinish == true)
                system.appStore.store.clearFaults()
                try await system.wait(.granted, 1)
                #expect(try await system.told(of: sale) == ["purchase.granted", "purchase.confirmed"])
            }
        }

        /// Goal: Apple's answer confirms a purchase that was given on trust, even if its product is sold no more.
        /// Method: as in the tests above, with a signed transaction and with a receipt; the product leaves the
        /// catalogue before Apple comes back.
        @Test(arguments: [nil, "serverApi", "verifyReceipt"] as [String?])
        func confirmedThoughItsProductIsSoldNoMore(_ strategy: String?) async throws {
            try await System.run { system in
                try system.trust(purchasesMin: 0)
                try system.configureGame { $0.legacyReceipts = strategy.map { [$0] } }
                try await system.startAll()
                try system.appleGoesDown()
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                let answer =
                    strategy == nil
                    ? try await system.submit(sale, user: "u1", wait: 20)
                    : try await system.submitReceipt(sale, user: "u1", wait: 20)
                #expect(answer.reason == "unconfirmed")
                let products = system.file.apps[0].products
                try system.configureGame { $0.products.removeAll { $0.id == ConfigurationFile.coins } }
                try await system.reload()
                system.appStore.store.clearFaults()
                try await system.wait(.granted, 1)
                #expect(try await system.told(of: sale) == ["purchase.granted", "purchase.confirmed"])
                // The invariants look up here what was to be given.
                try system.configureGame { $0.products = products }
            }
        }

        /// Goal: a purchase that Apple later calls refunded is taken back, once, and the grant stays on record.
        /// Method: as in the first test, but the purchase is refunded during the outage. The receipt ends granted with
        /// the reason `refunded`, one event takes the goods back; the next purchase of this user is not given on trust.
        @Test func takenBackWhereAppleRefundedMeanwhile() async throws {
            try await System.run { system in
                try system.trust(purchasesMin: 0)
                try await system.startAll()
                try system.appleGoesDown()
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                let answer = try await system.submit(sale, user: "u1", wait: 20)
                #expect(answer.reason == "unconfirmed")
                try system.appStore.store.refund(sale.purchase.transactionId)
                system.appStore.store.clearFaults()
                try await system.wait(.granted, 1)
                #expect(try await system.client.receipt(answer.id).reason == "refunded")
                #expect(try await system.told(of: sale) == ["purchase.granted", "purchase.revoked"])

                try system.appleGoesDown()
                let next = try await system.appStore.sell()
                system.owe(next, to: "u1")
                let second = try await system.submit(next, user: "u1", wait: 3)
                #expect(second.state == "received" && second.safeToFinish == false)
                #expect(try await system.count("select count(*) from grants") == 1)
                system.appStore.store.clearFaults()
            }
        }

        /// Goal: the limits and the trust rule bound the risk; beyond them a purchase waits for Apple, as without
        /// trust.
        /// Method: two a day for a user, three for the app, one confirmed purchase before. Two users with a confirmed
        /// purchase post three and two more, one of them also another product, and a stranger posts one: the first
        /// three that the rules allow are given on trust. Apple comes back: all are granted.
        @Test func beyondTheLimitsItWaits() async throws {
            try await System.run { system in
                try system.trust(purchasesMin: 1)
                try await system.startAll()
                for user in ["u1", "u2"] {
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: user)
                    #expect(try await system.submit(sale, user: user, wait: 20).state == "granted")
                }
                try system.appleGoesDown()
                for (user, isGiven) in [
                    ("stranger", false), ("u1", true), ("u1", true), ("u1", false), ("u2", true), ("u2", false),
                ] {
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: user)
                    let answer = try await system.submit(sale, user: user, wait: isGiven ? 20 : 2)
                    #expect((answer.reason == "unconfirmed") == isGiven, "\(user)")
                    #expect(answer.safeToFinish == isGiven)
                }
                // This purchase is not one of the three: its product may not be given on trust.
                let gems = try await system.appStore.sell(ConfigurationFile.gems)
                system.owe(gems, to: "u2")
                #expect(try await system.submit(gems, user: "u2", wait: 2).safeToFinish == false)
                #expect(try await system.count("select count(*) from provisional_grants") == 3)
                system.appStore.store.clearFaults()
                try await system.settleDebts()
            }
        }

        /// Goal: a worker that dies after it gave on trust, and before it wrote the failed attempt, gives once.
        /// Method: a debug hook kills -9 the worker right there; the purchase is granted, its receipt open. A second
        /// worker and a scheduler take over: one grant, two events.
        @Test func aWorkerKilledAfterItGaveOnTrustGivesOnce() async throws {
            try await System.run { system in
                try system.trust(purchasesMin: 0)
                try await system.start(.ingest)
                let crashing = try await system.start(.worker, ["MAKEGOOD_TEST_CRASH": "after_trust_before_row"])
                try system.appleGoesDown()
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                try await system.submit(sale, user: "u1")
                #expect(try await crashing.end(within: .seconds(30)) == .signal(SIGKILL))
                #expect(try await system.count("select count(*) from grants") == 1)
                #expect(try await system.count("select count(*) from attempts") == 0)
                try await system.start(.worker)
                try await system.start(.scheduler)
                try await system.wait("a failed attempt") {
                    try await system.count("select count(*) from attempts") >= 1
                }
                system.appStore.store.clearFaults()
                try await system.wait(.granted, 1)
                #expect(try await system.told(of: sale) == ["purchase.granted", "purchase.confirmed"])
            }
        }

        /// Goal: a known outage keeps nobody waiting, although Apple's queue is not worked on then.
        /// Method: 40 purchases of another product open the breaker; then ten are posted that may be given on trust:
        /// each is, within five seconds. Apple comes back: all are granted.
        @Test func grantedWithinSecondsWhileTheBreakerIsOpen() async throws {
            try await System.run(.init(timeScale: 0.2)) { system in
                try system.trust(purchasesMin: 0, perUserPerDay: 20, perAppPerDay: 20)
                try await system.start(.ingest)
                let worker = try await system.start(.worker)
                try await system.start(.scheduler)
                try system.appleGoesDown()
                for sale in try await system.appStore.sell(40, ConfigurationFile.gems) {
                    system.owe(sale, to: "u1")
                    try await system.submit(sale, user: "u1")
                }
                try await system.wait("the breaker to open") { worker.log.contains("breaker changed") }
                for sale in try await system.appStore.sell(10) {
                    system.owe(sale, to: "u2")
                    let start = ContinuousClock.now
                    let answer = try await system.submit(sale, user: "u2", wait: 20)
                    #expect(answer.reason == "unconfirmed" && answer.safeToFinish == true)
                    #expect(ContinuousClock.now - start < .seconds(5))
                }
                system.appStore.store.clearFaults()
                try await system.settleDebts(within: .seconds(120))
                try await system.wait(.granted, 50, within: .seconds(120))
            }
        }
    }
}

extension System {
    /// Sets that Apple must confirm every signed transaction, and that coins may be given before.
    fileprivate func trust(purchasesMin: Int, perUserPerDay: Int = 2, perAppPerDay: Int = 3) throws {
        try configureGame {
            $0.confirmWithApple = "always"
            $0.provisional = .init(
                perUserPerDay: perUserPerDay, perAppPerDay: perAppPerDay, purchasesMin: purchasesMin)
            for index in $0.products.indices where $0.products[index].id == ConfigurationFile.coins {
                $0.products[index].provisional = true
            }
        }
    }

    fileprivate func appleGoesDown() throws {
        var down = FaultRequest(.status, on: .all)
        down.status = 503
        try appStore.store.fault(down)
    }

    /// The types of a purchase's events, in the order in which they were told.
    fileprivate func told(of sale: Sale) async throws -> [String] {
        try await texts(
            "select type from events where transaction_id = '\(sale.purchase.transactionId)' order by xid, id")
    }
}
