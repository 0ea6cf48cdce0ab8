import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// Purchases that pass from one account to another: by the app's policy, by a merge, or because Apple's signed
    /// transaction shows an owner that a legacy receipt does not show (P10). Real processes and a real App Store
    /// simulator.
    @Suite struct Accounts {
        /// Goal: under `transfer` a subscription passes to the user who shows it. No goods are given with it, both
        /// users are told, and it does not bounce back. Its renewals follow it. Under `hold` a person decides (P10).
        /// Method: u2 posts u1's subscription, which carries u1's token, and u1 posts it again; then the next renewal,
        /// which carries u1's token, is posted; then the policy becomes hold, and u3 posts the subscription.
        @Test func aSubscriptionPassesOnByPolicyOnly() async throws {
            try await System.run { system in
                try system.configureGame { $0.transfer = "transfer" }
                let token = try await system.place("u1")
                try await system.startAll()
                let pass = ConfigurationFile.pass
                func show(_ sale: Sale, by user: String) async throws -> Client.Answer {
                    // StoreKit signs it anew each time.
                    let proof = try system.appStore.store.sign(sale.purchase.transactionId)
                    return try await system.submit(.init(userId: user, signedTransaction: proof), wait: 20)
                }
                let first = try await system.appStore.sell(pass) {
                    $0.type = .autoRenewable
                    $0.appAccountToken = token
                    $0.purchaseDate = .minutesAgo(60)
                }
                system.owe(first, to: "u1")
                #expect(try await show(first, by: "u1").state == "granted")
                let moved = try await show(first, by: "u2")
                #expect(moved.state == "already_granted" && moved.safeToFinish == true)
                #expect(moved.transactions[0]["owner"] as? String == "you")
                #expect(moved.transactions[0]["reason"] as? String == "transferred")
                #expect(moved.transactions[0]["goods"] == nil && !moved.text.contains("u1"))
                let back = try await show(first, by: "u1")
                #expect(back.state == "already_granted" && back.reason == "owned_by_another_user")
                let renewal = try await system.appStore.sell(pass) {
                    $0.type = .autoRenewable
                    $0.originalTransactionId = first.purchase.transactionId
                    $0.appAccountToken = token
                }
                system.owe(renewal, to: "u2")
                #expect(try await show(renewal, by: "u2").state == "granted")
                #expect(try await system.order(of: renewal) == "- chain")
                // A consumable stays with its owner, whatever the policy.
                let coins = try await system.appStore.sell()
                system.owe(coins, to: "u1")
                #expect(try await show(coins, by: "u1").state == "granted")
                #expect(try await show(coins, by: "u2").reason == "owned_by_another_user")

                try system.configureGame { $0.transfer = "hold" }
                try await system.reload()
                let held = try await show(renewal, by: "u3")
                #expect(held.state == "held" && held.reason == "transfer_review" && held.safeToFinish == true)
                try await system.wait("both to be told") {
                    let events = try await system.client.events().filter {
                        ["ownership.lost", "ownership.gained"].contains($0["type"] as? String)
                    }
                    return Set(events.map { "\($0["type"] ?? "") \($0["userId"] ?? "")" })
                        == ["ownership.lost u1", "ownership.gained u2"]
                }
            }
        }

        /// Goal: a guest who registers keeps everything, also what the guest's app posts under the old id during and
        /// after the merge.
        /// Method: a guest has purchases, an order and a subscription. Twenty more of the guest's purchases are in
        /// flight when the guest is merged into an account; then the account and the guest's app go on posting.
        @Test func aGuestBecomesAnAccount() async throws {
            try await System.run { system in
                let order = try await system.place("guest", .gems)
                try await system.startAll()
                let period = try await system.appStore.sell(ConfigurationFile.pass) {
                    $0.type = .autoRenewable
                    $0.purchaseDate = .minutesAgo(60)
                }
                system.owe(period, to: "guest")
                #expect(try await system.submit(period, user: "guest", wait: 20).state == "granted")
                let sales = try await system.appStore.sell(20)
                for sale in sales { system.owe(sale, to: "guest", "account") }
                try await withThrowingTaskGroup(of: Void.self) { group in
                    for (number, sale) in sales.enumerated() {
                        group.addTask {
                            try await Task.sleep(for: .milliseconds(10 * number))
                            try await system.submit(sale, user: "guest")
                        }
                    }
                    group.addTask {
                        try await Task.sleep(for: .milliseconds(100))
                        #expect(try await system.client.merge("guest", into: "account").status == 200)
                    }
                    try await group.waitForAll()
                }
                #expect(try await system.client.merge("guest", into: "account").json["isRepeated"] as? Bool == true)
                #expect(try await system.client.merge("account", into: "guest").status == 409)
                #expect(try await system.client.merge("guest", into: "guest").status == 422)
                try await system.settleDebts()

                // Later posts under either id belong to the account, and what either id had belongs to both.
                let gems = try await system.appStore.sell(ConfigurationFile.gems)
                let renewal = try await system.appStore.sell(ConfigurationFile.pass) {
                    $0.type = .autoRenewable
                    $0.originalTransactionId = period.purchase.transactionId
                }
                system.owe([gems, renewal], to: "account")
                let late = try await system.submit(gems, user: "guest", wait: 20)
                #expect(late.state == "granted" && late.transactions[0]["owner"] as? String == "you")
                #expect(try await system.order(of: gems) == "\(order) open_order")
                #expect(try await system.submit(renewal, user: "account", wait: 20).state == "granted")
                for user in ["guest", "account"] {
                    let proof = try system.appStore.store.sign(period.purchase.transactionId)
                    let again = try await system.submit(.init(userId: user, signedTransaction: proof), wait: 20)
                    #expect(again.state == "already_granted" && again.transactions[0]["owner"] as? String == "you")
                    let list = try await system.client.get("/v1/users/\(user)/purchases?appId=game&limit=200")
                    let ids = Set(
                        (list.json["purchases"] as? [[String: Any]] ?? []).compactMap { $0["transactionId"] as? String }
                    )
                    #expect(ids == Set((sales + [gems, renewal, period]).map(\.purchase.transactionId)))
                }
                #expect(try await system.count("select count(*) from audits where action = 'users.merge'") == 1)
                let refusal = await #expect(throws: System.Failure.self) {
                    try await system.command("users", "erase", "guest", "--app", "game", "--yes")
                }
                #expect(refusal?.description.contains("part of the account account") == true)
            }
        }

        /// Goal: a legacy receipt shows no token. Where Apple can be asked, its poster is given nothing before a worker
        /// has seen the signed transaction. Where Apple cannot be asked, the decision says so, and a later proof of
        /// another owner is told (Ownership, note 2).
        /// Method: bob posts purchases with the token of alice's order as receipts, with and without credentials of the
        /// Server API; then alice posts what Apple signed.
        @Test func aTokenThatAReceiptDoesNotShow() async throws {
            try await System.run { system in
                let (one, two) = (try await system.place("alice"), try await system.place("alice", .gems))
                try await system.startAll()
                let seen = try await system.appStore.sell { $0.appAccountToken = one }
                system.owe(seen, to: "alice")
                let answer = try await system.submitReceipt(seen, user: "bob", wait: 20)
                #expect(answer.state == "already_granted" && answer.reason == "owned_by_another_user")
                #expect(try await system.order(of: seen) == "\(one) order_token")

                try system.configureGame { $0.serverApi = nil }
                try await system.reload()
                let unseen = try await system.appStore.sell(ConfigurationFile.gems) { $0.appAccountToken = two }
                let open = try await system.place("bob", .gems, minutesAgo: 2)
                system.owe(unseen, to: "bob")
                #expect(try await system.submitReceipt(unseen, user: "bob", wait: 20).state == "granted")
                #expect(try await system.order(of: unseen) == "\(open) open_order")
                #expect(try await system.reasons(of: unseen) == "order_open,token_unseen")
                let proof = try await system.submit(unseen, user: "alice", wait: 20)
                #expect(proof.state == "already_granted" && proof.reason == "owned_by_another_user")
                #expect(
                    try await system.texts(
                        "select user_id || ' ' || (body ->> 'isOwner') from events where type = 'ownership.disputed' order by 1"
                    ) == ["alice false", "bob true"])
            }
        }
    }
}
