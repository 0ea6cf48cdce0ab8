import AppStoreSimulator
import Foundation
import Purchases
import Reconciliation
import Testing

extension EndToEnd {
    /// Signed transactions, genuine and forged, and what the configuration makes of them.
    @Suite struct Proofs {
        /// Goal: a signed transaction with any single defect is rejected with that reason, and its client keeps it
        /// (P18).
        /// Method: one forgery of each kind the App Store simulator can make is posted; each ends rejected with its
        /// reason and `safeToFinish: false`, and nothing is granted.
        @Test func everySingleDefectIsRejectedWithItsReason() async throws {
            let reasons: [Forgery.Kind: String] = [
                .foreignRoot: "untrusted_root", .signature: "signature", .swappedPayload: "signature",
                .algorithmNone: "algorithm", .wrongBundle: "wrong_app", .expiredLeaf: "expired",
                .missingLeafMarker: "missing_oid", .missingIntermediateMarker: "missing_oid",
                .chainLength: "chain_length",
            ]
            try await System.run { system in
                try await system.startAll()
                for kind in Forgery.Kind.allCases {
                    let forged = try system.appStore.store.forge(
                        ForgeryRequest(kind: kind, app: "game", productId: ConfigurationFile.coins))
                    let answer = try await system.submit(.init(userId: "thief", signedTransaction: forged), wait: 20)
                    #expect(answer.status == 200, "\(kind)")
                    #expect(answer.state == "rejected", "\(kind)")
                    #expect(answer.reason == reasons[kind], "\(kind)")
                    #expect(answer.safeToFinish == false, "\(kind)")
                }
            }
        }

        /// Goal: an environment that the app does not serve is rejected, and the client keeps its proof.
        /// Method: `puzzle` serves Production only; its sandbox purchase ends rejected `wrong_environment`.
        @Test func anEnvironmentThatIsNotServedIsRejected() async throws {
            try await System.run { system in
                try system.configure { $0.apps[1].environments = ["Production"] }
                try await system.startAll()
                let sale = try await system.appStore.sell(ConfigurationFile.riddle, app: "puzzle") {
                    $0.environment = .sandbox
                }
                let answer = try await system.submit(sale, user: "tester", app: "puzzle", wait: 20)
                #expect(answer.state == "rejected")
                #expect(answer.reason == "wrong_environment")
                #expect(answer.safeToFinish == false)
            }
        }

        /// Goal: sandbox purchases are granted to testers only, and marked (P12).
        /// Method: the same product bought in the sandbox by a tester and by another user: granted as Sandbox, and held
        /// `sandbox`.
        @Test func sandboxPurchasesAreForTesters() async throws {
            try await System.run { system in
                try await system.startAll()
                let sales = try await system.appStore.sell(2) { $0.environment = .sandbox }
                system.owe(sales[0], to: "tester")
                #expect(try await system.submit(sales[0], user: "tester", wait: 20).state == "granted")
                let other = try await system.submit(sales[1], user: "u1", wait: 20)
                #expect(other.state == "held")
                #expect(other.reason == "sandbox")
            }
        }

        /// Goal: a product nobody configured is held for a person, never dropped, and granted by itself once it is
        /// configured.
        /// Method: a signed transaction and a legacy receipt of an unknown product are held `product_unknown` and safe
        /// to finish, for their facts are stored; the product is added and reloaded (SIGHUP), and both are granted.
        @Test func anUnknownProductIsGrantedOnceItIsConfigured() async throws {
            try await System.run { system in
                try await system.startAll()
                let product = "com.example.game.new"
                let sales = try await system.appStore.sell(2, product)
                let answers = [
                    try await system.submit(sales[0], user: "u1", wait: 20),
                    try await system.submitReceipt(sales[1], user: "u1", wait: 20),
                ]
                for answer in answers {
                    #expect(answer.status == 202)
                    #expect(answer.state == "held")
                    #expect(answer.reason == "product_unknown")
                    #expect(answer.safeToFinish == true)
                }
                system.owe(sales, to: "u1")
                try system.configureGame {
                    $0.products.append(.init(id: product, goods: [.init(item: "novelties", amount: 7)]))
                }
                try await system.reload()
                try await system.settleDebts()
            }
        }

        /// Goal: a typo of ours in bundleId rejects nothing for good.
        /// Method: with the typo, 20 signed transactions and 5 receipts end rejected `wrong_app`, none safe to finish.
        /// The typo is mended and reloaded; `support reopen --dry-run` counts them, `support reopen` judges them again:
        /// all are granted, and the audit says who did it.
        @Test func aTypoInBundleIdIsMendedAndReopened() async throws {
            try await System.run { system in
                try system.configureGame { $0.bundleId = "com.example.gmae" }
                try await system.startAll()
                let sales = try await system.appStore.sell(25)
                for (index, sale) in sales.enumerated() {
                    let answer =
                        index < 20
                        ? try await system.submit(sale, user: "u1", wait: 20)
                        : try await system.submitReceipt(sale, user: "u1", wait: 20)
                    #expect(answer.reason == "wrong_app")
                    #expect(answer.safeToFinish == false)
                }
                system.owe(sales, to: "u1")
                try system.configureGame { $0.bundleId = "com.example.game" }
                try await system.reload()
                let reopen = ["--app", "game", "--reason", "wrong_app"]
                let plan = try await system.command(
                    "support", "reopen", reopen[0], reopen[1], reopen[2], reopen[3], "--dry-run")
                #expect(plan.contains("25 receipts would be judged again"))
                #expect(try await system.count("select count(*) from grants") == 0)
                let done = try await system.command("support", "reopen", reopen[0], reopen[1], reopen[2], reopen[3])
                #expect(done.contains("25 receipts are judged again"))
                try await system.settleDebts()
                #expect(try await system.texts("select action from audits") == ["support.reopen"])
            }
        }

        /// Goal: purchase dates up to two hours ahead are accepted and granted now (P23).
        /// Method: bought 1 h 55 min ahead: granted; 3 h ahead: held `purchase_ahead`, for a person.
        @Test func purchaseDatesUpToTwoHoursAheadAreGranted() async throws {
            try await System.run { system in
                try await system.startAll()
                let near = try await system.appStore.sell { $0.purchaseDate = milliseconds(secondsAhead: 6900) }
                let far = try await system.appStore.sell { $0.purchaseDate = milliseconds(secondsAhead: 10_800) }
                system.owe(near, to: "u1")
                #expect(try await system.submit(near, user: "u1", wait: 20).state == "granted")
                let answer = try await system.submit(far, user: "u1", wait: 20)
                #expect(answer.state == "held")
                #expect(answer.reason == "purchase_ahead")
            }
        }

        /// Goal: a fresh signed transaction needs no call; `confirmWithApple: always` looks up every one.
        /// Method: by default a purchase is granted without a call to Apple. With `always` a purchase is granted after
        /// exactly one Get Transaction Info, and one that was refunded after it was signed is rejected `refunded`, safe
        /// to finish.
        @Test func confirmWithAppleAlwaysAsks() async throws {
            try await System.run { system in
                try await system.startAll()
                let sales = try await system.appStore.sell(3)
                system.owe([sales[0], sales[1]], to: "u1")
                #expect(try await system.submit(sales[0], user: "u1", wait: 20).state == "granted")
                #expect(system.appStore.store.calls().isEmpty)
                try system.configureGame { $0.confirmWithApple = "always" }
                try await system.reload()
                #expect(try await system.submit(sales[1], user: "u1", wait: 20).state == "granted")
                #expect(system.appStore.calls(about: sales[1]).map(\.service) == [.transactionInfo])
                // It went to Apple's queue at once: no worker read it twice.
                #expect(try await system.texts("select lane from receipts order by received_at") == ["local", "apple"])
                try system.appStore.store.refund(sales[2].purchase.transactionId)
                let refunded = try await system.submit(sales[2], user: "u1", wait: 20)
                #expect(refunded.state == "rejected")
                #expect(refunded.reason == "refunded")
                #expect(refunded.safeToFinish == true)
            }
        }

        /// Goal: an old signed transaction is not believed blindly (5.4): a refunded purchase cannot be replayed.
        /// Method: proofs signed two hours ago: Apple is asked for each; the purchase that stands is granted, the
        /// refunded one is rejected.
        @Test func aStaleProofIsConfirmedAtApple() async throws {
            try await System.run { system in
                try await system.startAll()
                let sales = try await system.appStore.sell(2) {
                    $0.purchaseDate = milliseconds(secondsAhead: -7300)
                    $0.signedDate = milliseconds(secondsAhead: -7200)
                }
                system.owe(sales[0], to: "u1")
                try system.appStore.store.refund(sales[1].purchase.transactionId)
                #expect(try await system.submit(sales[0], user: "u1", wait: 20).state == "granted")
                let refunded = try await system.submit(sales[1], user: "u1", wait: 20)
                #expect(refunded.reason == "refunded")
                #expect(system.appStore.store.calls().count == 2)
            }
        }

        /// Goal: a message that does not decode, or points at nothing, goes to the dead letters and is visible there;
        /// it stops nobody.
        /// Method: noise, a pointer without its number, an unknown kind and a pointer at no row are published into both
        /// verify queues; all lie in the dead-letter queue then, `makegood queue status` says so, and a purchase posted
        /// afterwards is granted by the same worker.
        @Test func messagesThatDoNotDecodeAreDeadLetters() async throws {
            try await System.run { system in
                try await system.startAll()
                let noise = [
                    "", "\u{0}\u{7f}\u{ffff}", "receipt", "order 6f5902ac-237a-8c42-8da9-5e0a3b1e5a55 0",
                    "receipt 6f5902ac-237a-8c42-8da9-5e0a3b1e5a55 0", String(repeating: "x", count: 65),
                ]
                for text in noise {
                    for queue in [system.queues.verify(.local), system.queues.verify(.apple)] {
                        try system.publish(text, to: queue)
                    }
                }
                try await system.wait("12 dead letters") { try await system.depth(of: system.queues.dead) == 12 }
                #expect(try await system.command("queue", "status").contains("\(system.queues.dead): 12"))
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                #expect(try await system.submit(sale, user: "u1", wait: 20).state == "granted")
            }
        }
    }
}
