import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// Receipts of StoreKit 1, and every answer that Apple's verifyReceipt may give about them.
    @Suite struct LegacyReceipts {
        /// Goal: of a receipt with years of purchases only the purchases since `grantFrom` are granted.
        /// Method: a receipt with 40 entries from 60 days before `grantFrom` and one fresh entry grants exactly one;
        /// the 40 end `historical`, the receipt ends `granted` and is safe to finish.
        @Test func aReceiptWith40OldEntriesAndOneFreshGrantsExactlyOne() async throws {
            try await System.run { system in
                try await system.startAll()
                let old = try await system.appStore.sell(40) { $0.purchaseDate = milliseconds(daysAgo: 60) }
                let fresh = try await system.appStore.sell { $0.receiptOf = old.map(\.purchase.transactionId) }
                system.owe(fresh, to: "u1")
                let answer = try await system.submitReceipt(fresh, user: "u1", wait: 20)
                #expect(answer.state == "granted")
                #expect(answer.safeToFinish == true)
                #expect(answer.transactions.count == 41)
                #expect(answer.transactions.count { $0["reason"] as? String == "historical" } == 40)
            }
        }

        /// Goal: every entry is judged by its own date and refund (5.1 rows 0a and 0c), and an entry that can be
        /// granted is granted at once, whatever the other entries wait for.
        /// Method: one receipt with a consumable of ten days ago, a refunded purchase and a fresh one: held
        /// `before_cutover`, rejected `refunded`, granted; the receipt is held, and safe to finish.
        @Test func everyEntryIsJudgedByItself() async throws {
            try await System.run { system in
                try await system.startAll()
                let old = try await system.appStore.sell { $0.purchaseDate = milliseconds(daysAgo: 10) }
                let refunded = try await system.appStore.sell()
                try system.appStore.store.refund(refunded.purchase.transactionId)
                let fresh = try await system.appStore.sell {
                    $0.receiptOf = [old, refunded].map(\.purchase.transactionId)
                }
                system.owe(fresh, to: "u1")
                let answer = try await system.submitReceipt(fresh, user: "u1", wait: 20)
                #expect(answer.state == "held")
                #expect(answer.safeToFinish == true)
                #expect(reason(of: old, in: answer) == "before_cutover")
                #expect(reason(of: refunded, in: answer) == "refunded")
                #expect(answer.transactions.count { $0["state"] as? String == "granted" } == 1)
            }
        }

        /// Goal: an empty receipt is genuine and too old. The client is asked for a new one, and a later receipt of
        /// that user takes it over (P19).
        /// Method: an empty `in_app` and a missing one are held `no_transaction_yet` with `refreshReceipt: true`, not
        /// safe to finish; after the same user's next receipt was granted both end `taken_over`.
        @Test func anEmptyReceiptIsHeldUntilALaterOneTakesItOver() async throws {
            try await System.run(.init(timeScale: 0.005)) { system in
                try await system.startAll()
                var missing = ReceiptRequest(app: "game", transactionIds: [])
                missing.omitInApp = true
                for request in [ReceiptRequest(app: "game", transactionIds: []), missing] {
                    let receipt = try system.appStore.store.receipt(request)
                    let answer = try await system.submit(.init(userId: "u1", receipt: receipt), wait: 20)
                    #expect(answer.state == "held")
                    #expect(answer.reason == "no_transaction_yet")
                    #expect(answer.json["refreshReceipt"] as? Bool == true)
                    #expect(answer.safeToFinish == false)
                }
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                try await system.submitReceipt(sale, user: "u1", wait: 20)
                try await system.wait("both empty receipts to be taken over") {
                    try await system.count("select count(*) from receipts where reason = 'taken_over'") == 2
                }
            }
        }

        /// Goal: every period of a subscription in `latest_receipt_info` is granted, whatever the order (P21).
        /// Method: a receipt holds the first of three periods of one subscription, two of them sold after it was made.
        /// Three grants exist, and a second receipt with all of them grants nothing more.
        @Test func everyPeriodOfASubscriptionIsGrantedOnce() async throws {
            try await System.run { system in
                try await system.startAll()
                let first = try await system.appStore.sell(ConfigurationFile.pass) { $0.type = .autoRenewable }
                var periods = [first]
                for days in [30, 60] {
                    periods.append(
                        try await system.appStore.sell(ConfigurationFile.pass) {
                            $0.type = .autoRenewable
                            $0.originalTransactionId = first.purchase.transactionId
                            // Apple charges renewals up to a day ahead; here all of them are charged at once.
                            $0.expiresDate = milliseconds(daysAgo: -days)
                        })
                }
                system.owe(periods, to: "u1")
                #expect(try await system.submitReceipt(first, user: "u1", wait: 20).state == "granted")
                let all = try system.appStore.store.receipt(
                    ReceiptRequest(app: "game", transactionIds: periods.reversed().map(\.purchase.transactionId)))
                let again = try await system.submit(.init(userId: "u1", receipt: all), wait: 20)
                #expect(again.state == "already_granted")
            }
        }

        /// Goal: production first; the sandbox only when production says so (P12).
        /// Method: a tester's sandbox receipt: production answers 21007, the sandbox is asked, the purchase is granted
        /// as Sandbox; the App Store saw exactly these two calls.
        @Test func sandboxReceiptsAreAskedAtProductionFirst() async throws {
            // A rescue would ask again: it comes late enough for a machine that pauses.
            try await System.run(.init(timeScale: 0.5)) { system in
                try await system.startAll()
                let sale = try await system.appStore.sell { $0.environment = .sandbox }
                system.owe(sale, to: "tester")
                #expect(try await system.submitReceipt(sale, user: "tester", wait: 20).state == "granted")
                let calls = system.appStore.calls(about: sale)
                #expect(calls.map(\.environment) == [.production, .sandbox])
                #expect(calls.map(\.code) == [21007, 0])
            }
        }

        /// Goal: the receipt of another app is rejected, and the client keeps it (P25).
        /// Method: a genuine receipt of `puzzle` posted for `game` ends rejected `wrong_app`, not safe to finish;
        /// posted for `puzzle` it is granted.
        @Test func theReceiptOfAnotherAppIsRejected() async throws {
            try await System.run { system in
                try await system.startAll()
                let sale = try await system.appStore.sell(ConfigurationFile.riddle, app: "puzzle")
                let wrong = try await system.submitReceipt(sale, user: "u1", wait: 20)
                #expect(wrong.state == "rejected")
                #expect(wrong.reason == "wrong_app")
                #expect(wrong.safeToFinish == false)
                system.owe(sale, to: "u1")
                #expect(try await system.submitReceipt(sale, user: "u1", app: "puzzle", wait: 20).state == "granted")
            }
        }

        /// Goal: an unreadable answer of Apple's proves nothing (P15).
        /// Method: for each form of nonsense, each status that may pass and each broken connection, one purchase whose
        /// first two calls get it; all are granted in the end, and each failure is a counted attempt.
        @Test func appleAnsweringNonsenseIsTriedAgain() async throws {
            try await System.run { system in
                try await system.startAll()
                var faults: [FaultRequest] = FaultRequest.Form.allCases.map { form in
                    var fault = FaultRequest(.garbage, on: .verifyReceipt)
                    fault.form = form
                    return fault
                }
                for status in [21002, 21005, 21009, 21199, 29999] {
                    var fault = FaultRequest(.receiptStatus, on: .verifyReceipt)
                    fault.status = status
                    fault.isRetryable = status == 21199 ? true : nil
                    faults.append(fault)
                }
                for status in [404, 500, 502] {
                    var fault = FaultRequest(.status, on: .verifyReceipt)
                    fault.status = status
                    faults.append(fault)
                }
                faults.append(FaultRequest(.reset, on: .verifyReceipt))
                for (index, fault) in faults.enumerated() {
                    var fault = fault
                    fault.count = 2
                    try system.appStore.store.fault(fault)
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: "u\(index)")
                    #expect(try await system.submitReceipt(sale, user: "u\(index)").safeToFinish == false)
                    try await system.settleDebts()
                }
                #expect(try await system.count("select count(*) from attempts") >= 2 * faults.count - 1)
                #expect(try await system.count("select count(*) from receipts where state = 'granted'") == faults.count)
            }
        }

        /// Goal: Apple's 429 is neither an attempt nor a failure, and the worker waits for the time that Apple names
        /// (P26).
        /// Method: Apple answers 429 with Retry-After a second ahead, once; the receipt is granted by the second call,
        /// at least that second later, and no attempt is counted.
        @Test func aRateLimitIsWaitedFor() async throws {
            // A rescue would ask again: it comes late enough for a machine that pauses.
            try await System.run(.init(timeScale: 0.5)) { system in
                try await system.startAll()
                var limit = FaultRequest(.status, on: .verifyReceipt, count: 1)
                limit.status = 429
                limit.retryAfterMilliseconds = 1500
                try system.appStore.store.fault(limit)
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                try await system.submitReceipt(sale, user: "u1")
                try await system.settleDebts()
                let calls = system.appStore.calls(about: sale)
                #expect(calls.count == 2)
                if calls.count == 2 { #expect(calls[1].at - calls[0].at >= 1000) }
                #expect(try await system.count("select count(*) from attempts") == 0)
            }
        }

        /// Goal: a wrong secret of ours halts calls, rejects no receipt, and stops nothing that needs no call.
        /// Method: the shared secret is wrong. 50 receipts are posted: one halt row appears, none is rejected, Apple is
        /// asked a few times and not 50; a signed transaction is granted meanwhile. The secret is corrected and
        /// reloaded: all are granted and the halt is gone.
        @Test func ourOwnWrongSecretHaltsAndRejectsNothing() async throws {
            try await System.run { system in
                let secret = try #require(system.file.apps[0].verifyReceipt?.sharedSecret)
                try system.configureGame { $0.verifyReceipt?.sharedSecret = "not the secret" }
                try await system.startAll()
                let sales = try await system.appStore.sell(50)
                system.owe(sales, to: "u1")
                let first = try await system.submitReceipt(sales[0], user: "u1")
                try await system.wait("the halt") { try await system.count("select count(*) from halts") == 1 }
                for sale in sales.dropFirst() { try await system.submitReceipt(sale, user: "u1") }
                let signed = try await system.appStore.sell()
                system.owe(signed, to: "u2")
                #expect(try await system.submit(signed, user: "u2", wait: 20).state == "granted")
                try await system.wait("all receipts to wait for the halt") {
                    try await system.count("select count(*) from receipts where reason = 'halted'") == 50
                }
                let answer = try await system.client.receipt(first.id)
                #expect(answer.state == "received")
                #expect(answer.safeToFinish == false)
                #expect(try await system.count("select count(*) from receipts where state = 'rejected'") == 0)
                #expect(system.appStore.calls().count < 10)
                try system.configureGame { $0.verifyReceipt?.sharedSecret = secret }
                try await system.reload()
                try await system.settleDebts()
                try await system.wait("the halt to be gone") {
                    try await system.count("select count(*) from halts") == 0
                }
            }
        }

        /// Goal: a bare transaction id is a question and shows no possession; a trusted backend vouches for its user
        /// with the scope `claim`.
        /// Method: an id alone is held `possession_missing`; the answer tells nothing about the purchase and is not
        /// safe to finish. From a key with `claim` the same id is looked up at Apple and granted.
        @Test func aBareIdProvesNoPossession() async throws {
            try await System.run { system in
                try await system.startAll()
                let sale = try await system.appStore.sell()
                let bare = Client.Post(userId: "thief", transactionId: sale.purchase.transactionId)
                let answer = try await system.submit(bare, wait: 20)
                #expect(answer.state == "held")
                #expect(answer.reason == "possession_missing")
                #expect(answer.safeToFinish == false)
                #expect(answer.transactions.allSatisfy { $0["productId"] == nil && $0["goods"] == nil })
                system.owe(sale, to: "u1")
                let claim = Client.Post(userId: "u1", transactionId: sale.purchase.transactionId)
                let claimed = try await system.submit(claim, to: system.client.with(.claimant), wait: 20)
                #expect(claimed.state == "granted")
            }
        }

        private func reason(of sale: Sale, in answer: Client.Answer) -> String? {
            answer.transactions.first { $0["transactionId"] as? String == sale.purchase.transactionId }?["reason"]
                as? String
        }
    }
}

/// A time as Apple writes it.
func milliseconds(daysAgo days: Int = 0, secondsAhead seconds: Int = 0) -> Int64 {
    Int64(Date.now.timeIntervalSince1970 * 1000) - Int64(days) * 86_400_000 + Int64(seconds) * 1000
}
