import Adversary
import AppStoreSimulator
import Foundation
import Glibc
import TestRandom
import Testing

extension EndToEnd {
    /// What Apple is told about purchases: only after they were decided here, never before (B3, B5, P2).
    @Suite struct AppleUpdates {
        /// Goal: a purchase that was matched with an order carries the order's id at Apple from then on, so that
        /// renewals and refunds name the account, also where another user posts them. A token that we wrote ourselves proves nothing
        /// (B5, Ownership, row 4).
        /// Method: the first period has no token, and is posted with an order by its name. The store records the order
        /// as its token, once. The next period comes with that token and is posted under another login, with an order
        /// of that login's own. Then Apple refunds it and the player's app posts it again. The timeline tells what
        /// Apple was told.
        @Test func anOrderIsWrittenBackAndProvesNothing() async throws {
            try await System.run { system in
                try system.configureGame { $0.writeBackTokens = nil }
                try await system.startAll()
                let pass = ConfigurationFile.pass
                let order = try await system.client.order(["appId": "game", "userId": "payer-1", "productId": pass]).id
                let first = try await system.appStore.sell(pass) { $0.type = .autoRenewable }
                system.owe(first, to: "payer-1")
                try await system.submit(
                    .init(userId: "payer-1", orderId: order, signedTransaction: first.signedTransaction), wait: 20)
                try await system.wait("the token to be set") { !system.appStore.store.filings.isEmpty }
                let filing = system.appStore.store.filings[0]
                #expect(filing.kind == .appAccountToken && filing.transactionId == first.purchase.transactionId)
                #expect(filing.appAccountToken == order && filing.previousAppAccountToken == nil)

                let renewal = try await system.appStore.sell(pass) {
                    $0.type = .autoRenewable
                    $0.originalTransactionId = first.purchase.transactionId
                }
                #expect(renewal.purchase.appAccountToken == order)
                system.owe(renewal, to: "payer-1")
                _ = try await system.client.order(["appId": "game", "userId": "other-2", "productId": pass])
                let other = try await system.submit(renewal, user: "other-2", wait: 20)
                #expect(other.state == "already_granted" && other.reason == "owned_by_another_user")
                #expect(
                    try await system.texts(
                        """
                        select concat_ws(' ', g.user_id, g.binding_source, o.reasons::text) from grants g
                        join outcomes o using (transaction_id, receipt_id)
                        where transaction_id = '\(renewal.purchase.transactionId)'
                        """) == ["payer-1 chain {chain_known,token_written}"])

                try system.appStore.store.refund(renewal.purchase.transactionId)
                let refund = try system.appStore.store.sign(renewal.purchase.transactionId)
                let own = try await system.submit(.init(userId: "payer-1", signedTransaction: refund), wait: 20)
                #expect(own.state == "already_granted" && own.reason == nil)
                #expect(
                    try await system.texts(
                        """
                        select o.user_id from transactions t join orders o on o.id = t.app_account_token
                        where t.transaction_id = '\(renewal.purchase.transactionId)' and t.revoked_at is not null
                        """) == ["payer-1"])
                #expect(system.appStore.store.filings.count == 1, "what the chain carries is not written again")
                let timeline = try await system.client.with(.support).get(
                    "/v1/transactions/\(first.purchase.transactionId)/explain")
                #expect(timeline.text.contains("told_apple") && timeline.text.contains("carry token \(order)"))
            }
        }

        /// Goal: Apple is told that a purchase is finished only once its grant is committed, and the client is told so
        /// no earlier, whichever process is killed in between (B3, P2, P28).
        /// Method: kill -9 at the worst places: ingest when the row is committed and nothing is answered, ingest again
        /// when the receipt is accepted, the worker between Apple's answer and its commit. At each of them the client
        /// reads false and the store has heard nothing. Then a worker dies right after its commit, and the next worker
        /// finds the Apple update that is still open. No scheduler runs.
        @Test func nothingIsFinishedBeforeItsGrantIsCommitted() async throws {
            try await System.run { system in
                try system.configureGame {
                    $0.finishAtApple = "afterGrant"
                    $0.confirmWithApple = "always"
                }
                let store = system.appStore.store
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                let crash = "MAKEGOOD_TEST_CRASH"
                let unanswered = try await system.start(.ingest, [crash: "after_commit_before_publish"])
                let post = Client.Post(userId: "u1", signedTransaction: sale.signedTransaction)
                let lost = try? await system.client.post(post)
                #expect(lost?.safeToFinish != true)
                #expect(try await unanswered.end(within: .seconds(30)) == .signal(SIGKILL))
                #expect(try await system.count("select count(*) from receipts") == 1)

                let ingest = try await system.start(.ingest)
                let accepted = try await system.submit(post)
                #expect(accepted.status == 202 && accepted.safeToFinish == false)
                await ingest.killHard()
                try await system.start(.ingest)
                #expect(try await system.client.receipt(accepted.id).safeToFinish == false)

                let scheduler = try await system.start(.scheduler)
                let dying = try await system.start(.worker, [crash: "after_apple_before_commit"])
                #expect(try await dying.end(within: .seconds(30)) == .signal(SIGKILL))
                await scheduler.killHard()
                #expect(Set(system.appStore.calls(about: sale).map(\.service)) == [.transactionInfo])
                #expect(try await system.count("select count(*) from grants") == 0)
                #expect(try await system.client.receipt(accepted.id).safeToFinish == false)
                #expect(store.filings.isEmpty)

                let committing = try await system.start(.worker, [crash: "after_commit_before_ack"])
                #expect(try await committing.end(within: .seconds(30)) == .signal(SIGKILL))
                #expect(try await system.client.receipt(accepted.id).safeToFinish == true)
                #expect(try await system.count("select count(*) from apple_updates where kind = 'finish'") == 1)
                try await system.start(.worker)
                try await system.wait("Apple to be told") {
                    try await system.texts("select state from v_apple_updates") == ["done"]
                }
                #expect(Set(store.filings.map(\.kind)) == [.finish])
                #expect(store.ledger.allSatisfy { $0.finishedAt != nil })
            }
        }

        /// Goal: the same at random moments: every purchase that the store was told of is granted, and every purchase
        /// that a client may finish is decided (B3, B5, P2).
        /// Method: two workers are killed and started again at random while thirty purchases come in, half of them with
        /// orders. Each time, the test reads the store's record first and the grants after it: every purchase in the
        /// record must be granted. A client asks about its purchases all the while. In the end the store has been told
        /// of all.
        @Test func atRandomKillsAppleHearsOnlyOfGrants() async throws {
            try await System.run { system in
                var random = SeededRandom(announcing: "AppleUpdates")
                try system.configureGame {
                    $0.finishAtApple = "afterGrant"
                    $0.writeBackTokens = nil
                }
                try await system.start(.ingest)
                try await system.start(.scheduler)
                let pass = ConfigurationFile.pass
                var ids: [String: String] = [:]
                for index in 0..<30 {
                    let sale = try await system.appStore.sell(pass) { $0.type = .autoRenewable }
                    let user = "player-\(index)"
                    system.owe(sale, to: user)
                    let order =
                        index.isMultiple(of: 2)
                        ? try await system.client.order(["appId": "game", "userId": user, "productId": pass]).id : nil
                    let post = Client.Post(userId: user, orderId: order, signedTransaction: sale.signedTransaction)
                    ids[sale.purchase.transactionId] = try await system.submit(post).id
                }
                let delays = (0..<6).map { _ in Int.random(in: 0..<700, using: &random) }
                let killer = Task {
                    for delay in delays {
                        let worker = try await system.start(.worker)
                        try await Task.sleep(for: .milliseconds(delay))
                        await worker.killHard()
                    }
                    try await system.start(.worker)
                }
                try await system.wait("every purchase to be told", within: .seconds(90)) {
                    let told = Set(system.appStore.store.filings.compactMap(\.transactionId))
                    guard let (transaction, id) = ids.randomElement(using: &random) else { return false }
                    let isSafe = try await system.client.receipt(id).safeToFinish
                    let granted = Set(try await system.texts("select transaction_id from grants"))
                    #expect(told.isSubset(of: granted), "Apple heard of what is not granted")
                    #expect(isSafe == false || granted.contains(transaction))
                    let done = try await system.count("select count(*) from apple_updates where state = 'done'")
                    return done == 45
                }
                try await killer.value
                let filings = system.appStore.store.filings
                #expect(Set(filings.filter { $0.kind == .finish }.map(\.transactionId)) == Set(ids.keys))
                #expect(Set(filings.compactMap(\.appAccountToken)).count == 15)
            }
        }

        /// Goal: a worker that dies after Apple took an Apple update, and before the worker has recorded that, costs no
        /// more than the same update sent twice.
        /// Method: a debug hook kills -9 the worker right there; the Apple update is open. When the lease has run out a
        /// second worker sends it once more: two records at Apple, one finished purchase.
        @Test func aWorkerKilledAfterItToldAppleTellsItAgain() async throws {
            // Calls of two seconds, and a lease of eight: Apple is not asked once more because a call was slow.
            try await System.run(.init(timeScale: 0.1)) { system in
                try system.configureGame { $0.finishAtApple = "afterGrant" }
                try await system.start(.ingest)
                let dying = try await system.start(.worker, ["MAKEGOOD_TEST_CRASH": "after_apple_update_before_row"])
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                try await system.submit(sale, user: "u1")
                #expect(try await dying.end(within: .seconds(30)) == .signal(SIGKILL))
                #expect(system.appStore.store.filings.map(\.kind) == [.finish])
                let finishedAt = system.appStore.store.ledger.map(\.finishedAt)
                #expect(try await system.texts("select state from v_apple_updates") == ["open"])
                try await system.start(.worker)
                try await system.wait("the Apple update to be done") {
                    try await system.texts("select state from v_apple_updates") == ["done"]
                }
                #expect(system.appStore.store.filings.map(\.kind) == [.finish, .finish])
                #expect(system.appStore.store.ledger.map(\.finishedAt) == finishedAt)
            }
        }

        /// Goal: `afterReceipt` also finishes, once, a held purchase whose facts from Apple are stored. `never`
        /// finishes nothing.
        /// Method: a purchase of a product that is not configured is posted; Apple is told while it is held; then the
        /// product is configured and the purchase is granted. The other app has no policy.
        @Test func afterReceiptFinishesWhatIsHeld() async throws {
            try await System.run { system in
                let gems = try #require(system.file.apps[0].products.first { $0.id == ConfigurationFile.gems })
                try system.configureGame {
                    $0.products.removeAll { $0.id == gems.id }
                    $0.finishAtApple = "afterReceipt"
                }
                try await system.startAll()
                let sale = try await system.appStore.sell(gems.id)
                let riddle = try await system.appStore.sell(ConfigurationFile.riddle, app: "puzzle")
                system.owe(riddle, to: "u2")
                try await system.submit(riddle, user: "u2", app: "puzzle", wait: 20)
                let held = try await system.submit(sale, user: "u1", wait: 20)
                #expect(held.state == "held" && held.safeToFinish == true)
                try await system.wait("Apple to be told") { !system.appStore.store.filings.isEmpty }
                system.owe(sale, to: "u1")
                try system.configureGame { $0.products.append(gems) }
                try await system.reload()
                try await system.settleDebts()
                #expect(system.appStore.store.filings.map(\.transactionId) == [sale.purchase.transactionId])
                #expect(
                    try await system.texts("select concat_ws(' ', kind, state) from apple_updates") == ["finish done"])
            }
        }
    }
}
