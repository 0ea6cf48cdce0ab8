import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    @Suite(.serialized) struct Limits {
        /// Goal: a receipt that waits for the limit of one of Apple's services asks the other service once, however
        /// often its message comes again (I12).
        /// Method: the legacy receipts of an app with orders need verifyReceipt and then the signed transaction, of
        /// which Apple allows one a second; a dozen receipts at once, each of which comes several times.
        @Test func whatWaitsForALimitAsksNobodyTwice() async throws {
            try await System.run(.init(timeScale: 0.1)) { system in
                try system.configureGame { $0.serverApi?.callsPerSecond = 1 }
                try await system.place("somebody", .gems)
                try await system.startAll()
                let sales = try await system.appStore.sell(12)
                system.owe(sales, to: "u1")
                try await withThrowingDiscardingTaskGroup { group in
                    for sale in sales { group.addTask { try await system.submitReceipt(sale, user: "u1") } }
                }
                try await system.settleDebts(within: .seconds(90))
                let calls = system.appStore.calls()
                #expect(calls.count { $0.service == .transactionInfo } == sales.count)
                let asked = calls.count { $0.service == .verifyReceipt }
                #expect(asked == sales.count, "\(asked) calls of verifyReceipt")
            }
        }

        /// Goal: one proof of one user is one row, however many orders are named beside it: a flood of names adds no
        /// row, no line beyond sixteen and no call to Apple.
        /// Method: one purchase posted under 400 orders, twenty posts at a time, before workers judge it. A refusal
        /// names its limit; the purchase is granted once; from then on every name is answered with the grant.
        @Test func oneProofUnderManyOrdersIsOneRow() async throws {
            try await System.run { system in
                try system.configureGame { $0.confirmWithApple = "always" }
                try await system.start(.ingest)
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                let post = { (order: Int) in
                    Client.Post(userId: "u1", orderId: "order-\(order)", signedTransaction: sale.signedTransaction)
                }
                let first = try await system.submit(post(0))
                var answers: [Client.Answer] = []
                for start in stride(from: 0, to: 400, by: 20) {
                    answers += try await system.client.postBatch((start..<start + 20).map(post))
                }
                let taken = answers.filter(\.isAccepted)
                #expect(taken.allSatisfy { $0.id == first.id } && taken.count >= 16)
                let refused = answers.filter { !$0.isAccepted }
                #expect(refused.count == 400 - taken.count && refused.count > 300)
                #expect(
                    refused.allSatisfy {
                        $0.status == 429 && $0.code == "too_many_lines" && $0.json["limit"] as? String == "user.lines"
                    })
                try await system.start(.worker)
                try await system.start(.scheduler)
                try await system.settleDebts()
                #expect(try await system.count("select count(*) from receipts") == 1)
                #expect(try await system.count("select count(*) from receipt_lines") == 16)
                #expect(system.appStore.calls().count { $0.service == .transactionInfo } == 1)
                // A settled receipt needs no further line.
                for order in [0, 399] {
                    let again = try await system.client.post(post(order))
                    #expect(again.status == 200 && again.state == "granted" && again.safeToFinish == true)
                }
            }
        }

        /// Goal: all workers together keep to Apple's limit (P26, B9): Apple refuses none of them, nothing is lost, and
        /// a user who buys after a rush does not wait for all of it.
        /// Method: eight workers, an app whose every purchase needs a call, an App Store that enforces Apple's own 50 a
        /// second. 100 purchases a second for twelve seconds, 25 to a post; then one each quarter of a second, and the
        /// test waits for each. In the end everything is granted, and hardly a call was answered 429: where processes
        /// stand still for want of a core, calls that were let through one after the other arrive together.
        @Test(.timeLimit(.minutes(4))) func eightWorkersShareApplesLimit() async throws {
            try await System.run(.init(timeScale: 0.2, isPolite: true)) { system in
                try system.configureGame {
                    $0.confirmWithApple = "always"
                    $0.serverApi?.callsPerSecond = 50
                }
                _ = try system.appStore.store.set(SettingsRequest(rateLimits: .apple))
                _ = try await system.start(.ingest)
                _ = try await system.start(.scheduler)
                for _ in 0..<8 { _ = try await system.start(.worker) }

                let rush = try await system.appStore.sell(1200) { $0.receipts = false }
                system.owe(rush, to: "u1")
                let clock = ContinuousClock()
                let start = clock.now
                try await withThrowingDiscardingTaskGroup { group in
                    // Posts one by one would take the simulator's time, and calls would then reach it in bunches.
                    for first in stride(from: 0, to: rush.count, by: 25) {
                        try await Task.sleep(until: start + .milliseconds(10) * first, clock: .continuous)
                        group.addTask { try await system.submit(Array(rush[first..<first + 25]), user: "u1") }
                    }
                }
                let open = try await system.count("select count(*) from receipts where settled_at is null")
                // If the test posts more slowly than planned, Apple has the time to answer more calls.
                let seconds = (clock.now - start) / .seconds(1)
                let most = Int(50 * (seconds + 1))
                #expect(open > min(300, rush.count - most), "the rush is still there: \(open) after \(seconds) s")
                let late = try await system.appStore.sell(20) { $0.receipts = false }
                system.owe(late, to: "u2")
                var waits: [Duration] = []
                for sale in late {
                    let posted = clock.now
                    let answer = try await system.submit(sale, user: "u2", wait: 20)
                    waits.append(clock.now - posted)
                    try await Task.sleep(for: .milliseconds(250))
                    guard answer.state != "granted" else { continue }
                    let row = try await system.texts(
                        """
                        select concat_ws(' ', state, reason, lane, attempt, rescues, judged_at - received_at,
                          due_at - received_at) from receipts where id = '\(answer.id)'
                        """)
                    Issue.record("after \(waits.last ?? .zero) \(row)")
                }
                #expect(waits.sorted()[18] < .seconds(10), "\(waits.sorted())")
                try await system.settleDebts(within: .seconds(120))

                let calls = system.appStore.calls().filter { $0.service == .transactionInfo }
                let stopped = calls.filter { $0.status == 429 }.count
                #expect(stopped * 50 <= calls.count, "\(stopped) of \(calls.count)")
                // A message that waited longer than its scaled rescue delay comes twice, and a worker may ask Apple
                // about it twice.
                let again = calls.count - rush.count - late.count - stopped
                #expect((0...calls.count / 50).contains(again), "\(again) of \(calls.count)")
                #expect(calls.allSatisfy { [200, 429].contains($0.status) })
            }
        }
    }
}
