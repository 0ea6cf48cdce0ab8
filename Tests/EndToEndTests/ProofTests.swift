import AppStoreSimulator
import Foundation
import Purchases
import Testing
import WorkQueue

extension EndToEnd {
    /// Signed transactions, genuine and forged, and how the configuration decides about them.
    @Suite struct Proofs {
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

        /// Goal: a purchase of a product that nobody configured is held for a person and never dropped. It is granted
        /// without further help once the product is configured.
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

        /// A mistake in our configuration that rejects good proofs.
        enum Mistake: String, CaseIterable, Sendable {
            case bundleID, root, environment

            var reason: String {
                switch self {
                case .bundleID: "wrong_app"
                case .root: "untrusted_root"
                case .environment: "wrong_environment"
                }
            }

            func make(in app: inout ConfigurationFile.App) {
                switch self {
                case .bundleID: app.bundleId = "com.example.gmae"
                case .root: app.rootCertificates = []
                case .environment: app.environments = ["Sandbox"]
                }
            }
        }

        /// Goal: no mistake of ours rejects anything for good: a wrong bundle id, a root that is not there, an
        /// environment that is not listed.
        /// Method: with the mistake, 20 signed transactions end rejected for it, and so do 5 receipts, except where a
        /// root is missing, because Apple judges receipts; none is safe to finish. The mistake is corrected and
        /// reloaded (SIGHUP). `support rejudge --dry-run` counts the rejected proofs and changes nothing; `support
        /// rejudge` judges them again. All are granted, and the audit says who did it. A proof that was dropped
        /// meanwhile is counted and stays rejected.
        @Test(arguments: Mistake.allCases) func ourMistakeIsMendedAndEverythingJudgedAgain(_ mistake: Mistake)
            async throws
        {
            try await System.run { system in
                let good = system.file.apps[0]
                try system.configureGame { mistake.make(in: &$0) }
                try await system.startAll()
                let signed = try await system.appStore.sell(20)
                let receipts = mistake == .root ? [] : try await system.appStore.sell(5)
                var answers: [Client.Answer] = []
                for sale in signed { answers.append(try await system.submit(sale, user: "u1", wait: 20)) }
                for sale in receipts { answers.append(try await system.submitReceipt(sale, user: "u1", wait: 20)) }
                for answer in answers {
                    #expect(answer.state == "rejected")
                    #expect(answer.reason == mistake.reason)
                    #expect(answer.safeToFinish == false)
                }
                system.owe(signed + receipts, to: "u1")
                try system.configureGame { $0 = good }
                try await system.reload()

                func rejudge(_ more: String...) async throws -> String {
                    try await system.command(
                        ["support", "rejudge", "--app", "game", "--reason", mistake.reason] + more)
                }
                let count = answers.count
                #expect(try await rejudge("--dry-run").contains("\(count) receipts would be judged again"))
                #expect(try await system.count("select count(*) from grants") == 0)
                #expect(try await system.texts("select action from audits") == [])
                #expect(try await rejudge().contains("\(count) receipts are judged again"))
                try await system.settleDebts()
                #expect(try await rejudge().contains("0 receipts are judged again"))
                #expect(
                    try await system.texts("select action || ' ' || (details ->> 'receipts') from audits order by id")
                        == ["support.rejudge \(count)", "support.rejudge 0"])
            }
        }

        /// Goal: a person who judges again is told what cannot be judged any more.
        /// Method: two proofs are rejected for our mistake, and the payload of one is dropped, as retention does after
        /// half a year; the mistake is corrected: the command judges one, and says that one stays rejected.
        @Test func whatCannotBeJudgedAnyMoreIsSaid() async throws {
            try await System.run { system in
                try system.configureGame { Mistake.bundleID.make(in: &$0) }
                try await system.startAll()
                let sales = try await system.appStore.sell(2)
                let lost = try await system.submit(sales[0], user: "u1", wait: 20)
                try await system.submit(sales[1], user: "u1", wait: 20)
                system.owe(sales[1], to: "u1")
                try await system.execute("delete from stored_payloads where receipt_id = '\(lost.id)'")
                try system.configureGame { $0.bundleId = "com.example.game" }
                try await system.reload()
                for (option, words) in [("--dry-run", "1 receipt would be"), (nil, "1 receipt is")]
                    as [(String?, String)]
                {
                    let said = try await system.command(
                        ["support", "rejudge", "--app", "game"] + [option].compactMap(\.self))
                    #expect(said.contains("\(words) judged again"))
                    #expect(said.contains("1 stays rejected: its payload is gone"))
                }
                try await system.settleDebts()
                #expect(try await system.client.receipt(lost.id).reason == "wrong_app")
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
            // A rescue would ask again: it comes late enough for a machine that pauses.
            try await System.run(.init(timeScale: 0.5)) { system in
                try await system.startAll()
                let sales = try await system.appStore.sell(3)
                system.owe([sales[0], sales[1]], to: "u1")
                #expect(try await system.submit(sales[0], user: "u1", wait: 20).state == "granted")
                #expect(system.appStore.calls().isEmpty)
                try system.configureGame { $0.confirmWithApple = "always" }
                try await system.reload()
                #expect(try await system.submit(sales[1], user: "u1", wait: 20).state == "granted")
                #expect(system.appStore.calls(about: sales[1]).map(\.service) == [.transactionInfo])
                // The receipt went to Apple's queue at once: no worker read it twice.
                #expect(try await system.texts("select lane from receipts order by received_at") == ["local", "apple"])
                try system.appStore.store.refund(sales[2].purchase.transactionId)
                let refunded = try await system.submit(sales[2], user: "u1", wait: 20)
                #expect(refunded.state == "rejected")
                #expect(refunded.reason == "refunded")
                #expect(refunded.safeToFinish == true)
            }
        }

        /// Goal: an old signed transaction is not believed blindly (5.4); for a refunded one see ``Attacks``.
        /// Method: a proof signed two hours ago: Apple is asked once, the purchase stands and is granted.
        @Test func aStaleProofIsConfirmedAtApple() async throws {
            // A rescue would ask again: it comes late enough for a machine that pauses.
            try await System.run(.init(timeScale: 0.5)) { system in
                try await system.startAll()
                let sale = try await system.appStore.sell {
                    $0.purchaseDate = milliseconds(secondsAhead: -7300)
                    $0.signedDate = milliseconds(secondsAhead: -7200)
                }
                system.owe(sale, to: "u1")
                #expect(try await system.submit(sale, user: "u1", wait: 20).state == "granted")
                #expect(system.appStore.calls().count == 1)
            }
        }

        /// Goal: a message that does not decode, or points at nothing, goes to the dead letters and is visible there;
        /// it delays no other message.
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
