import AppStoreSimulator
import Foundation
import Purchases
import Testing

extension EndToEnd {
    /// Timelines of purchases, built from the rows (B14): for support, by HTTP and by command, and for players.
    @Suite struct Timelines {
        /// Goal: a timeline tells a granted purchase, another user's claim to it, and Apple's refund in their order;
        /// the player and the claimant learn nothing of each other.
        /// Method: u1's purchase is granted, player-two posts the same, Apple refunds it, and u1 posts it again: the
        /// worker asks Apple every time, and Apple tells of the refund. The timeline is read by its receipt and by its
        /// transaction: with the key of support, by command, and with the tokens of both players and of a third.
        @Test func grantedClaimedAndRefunded() async throws {
            try await System.run { system in
                try system.configureGame { $0.confirmWithApple = "always" }
                try await system.startAll()
                let sale = try await system.appStore.sell()
                let transaction = sale.purchase.transactionId
                system.owe(sale, to: "player-one-1")
                let first = try await system.submit(sale, user: "player-one-1", wait: 20)
                #expect(first.state == "granted")
                let path = "/v1/transactions/\(transaction)/explain"
                let support = try system.client.with(.support)
                try await system.wait("the timeline of a granted purchase") {
                    let timeline = try await support.get(path)
                    return timeline.status == 200 && timeline.what == ["bought", "posted", "granted", "told"]
                }
                #expect(try await support.get(path).state == "granted")
                #expect(
                    try await support.get("/v1/receipts/\(first.id)/explain").text.contains("granted to player-one-1"))

                #expect(try await system.submit(sale, user: "player-two-2", wait: 20).reason == "owned_by_another_user")
                let claimant = Client(
                    url: try system.client.url, credential: try GatewayKey.token(user: "player-two-2"))
                let masked = try await claimant.get(path)
                #expect(masked.state == "already_granted" && masked.what == ["bought", "posted", "decided"])
                #expect(!masked.text.contains("player-") && !masked.text.contains("goods"))
                #expect(try await claimant.get("/v1/receipts/\(first.id)/explain").status == 404)
                let list = try await claimant.get("/v1/users/player-two-2/purchases")
                #expect(list.text.contains("owned_by_another_user") && !list.text.contains("player-one"))

                try system.appStore.store.refund(transaction)
                let again = Client.Post(
                    userId: "player-one-1", signedTransaction: try system.appStore.store.sign(transaction))
                #expect(try await system.submit(again, wait: 20).state == "already_granted")
                let player = Client(
                    url: try system.client.url, credential: try GatewayKey.token(user: "player-one-1"))
                let own = try await player.get(path)
                #expect(own.state == "granted" && own.reason == "refunded" && own.what.contains("refunded"))
                #expect(!own.text.contains("player-") && own.text.contains("granted to you"))
                let month = String(Date.now.formatted(.iso8601).prefix(7))
                let spend = try await player.get("/v1/users/player-one-1/spend?month=\(month)")
                #expect(spend.status == 200 && spend.text.contains("\"refundedPurchases\":1"))

                let stranger = Client(
                    url: try system.client.url, credential: try GatewayKey.token(user: "player-three-3"))
                #expect(try await stranger.get(path).status == 404)

                for id in [transaction, first.id] {
                    let printed = try await system.command("explain", id)
                    #expect(printed.contains("granted (refunded)") && printed.contains("Apple 已为这笔购买退款"))
                    #expect(printed.contains("player-one-1 posted a signed transaction"))
                }
                let told = try await system.command("explain", "--json", transaction)
                #expect(told.trimmingCharacters(in: .newlines) == (try await support.get(path)).text)
                await #expect(throws: System.Failure.self) { try await system.command("explain", "1") }
            }
        }

        /// Goal: the timeline of a receipt that waits for the operator says what it waits for, and the player is told
        /// that nothing is lost.
        /// Method: a purchase of a product that is not configured is held; its timeline names the step of the operator;
        /// the product is added, the purchase is granted, and the timeline goes on.
        @Test func heldUntilItsProductIsThere() async throws {
            try await System.run { system in
                let gems = try #require(system.file.apps[0].products.first { $0.id == ConfigurationFile.gems })
                try system.configureGame { $0.products.removeAll { $0.id == gems.id } }
                try await system.startAll()
                let sale = try await system.appStore.sell(gems.id)
                system.owe(sale, to: "player-one-1")
                let answer = try await system.submit(sale, user: "player-one-1", wait: 20)
                let path = "/v1/receipts/\(answer.id)/explain"
                let held = try await system.client.with(.support).get(path)
                #expect(held.state == "held" && held.reason == "product_unknown")
                #expect((held.json["next"] as? [String: Any])?["by"] as? String == "operator")
                #expect(held.text.contains("add the product"))
                let token = try GatewayKey.token(user: "player-one-1")
                let player = Client(url: try system.client.url, credential: token)
                let told = try await player.get(path)
                #expect(told.state == "held" && !told.text.contains("add the product"))
                #expect(told.text.contains("已核实并保存"))

                try system.configureGame { $0.products.append(gems) }
                try await system.reload()
                try await system.wait(.granted, 1)
                let granted = try await player.get(path)
                #expect(granted.what == ["bought", "posted", "granted"])
                #expect(try await player.get("/v1/users/player-one-1/purchases").text.contains(#""amount":30"#))
            }
        }

        /// Goal: a worker carries out a support decision, once, for the user whom the person named, and the timeline
        /// says so.
        /// Method: a player has only a transaction's id; it is held, because the player's own post proves nothing.
        /// `support give` names the player: the player gets the goods, the feed tells so once, and a second `give`, to
        /// somebody else, is refused.
        @Test func givenByASupportDecision() async throws {
            try await System.run { system in
                try await system.startAll()
                let sale = try await system.appStore.sell()
                let id = sale.purchase.transactionId
                let answer = try await system.submit(.init(userId: "player-one-1", transactionId: id), wait: 20)
                #expect(answer.state == "held" && answer.reason == "possession_missing" && answer.safeToFinish == false)

                func give(to user: String) async throws -> String {
                    try await system.command(
                        "support", "give", "--app", "game", "--transaction", id, "--user", user, "--because",
                        "ticket 7: the bank's statement")
                }
                system.owe(sale, to: "player-one-1")
                #expect(try await give(to: "player-one-1").contains("a worker gives it"))
                try await system.settleDebts()
                try await system.wait(.granted, 1)
                await #expect(throws: System.Failure.self) { try await give(to: "player-two-2") }
                let support = try system.client.with(.support)
                let granted = try await support.get("/v1/receipts/\(answer.id)/explain")
                #expect(granted.state == "granted" && granted.text.contains("ticket 7: the bank's statement"))
                #expect(
                    try await system.texts("select concat_ws(' ', type, user_id) from events")
                        == ["purchase.granted player-one-1"])
            }
        }

        /// Goal: after an outage of Apple's the timeline of a parked receipt tells of every try, and of the person who
        /// redrove it.
        /// Method: Apple answers 503; the receipt is made a day older by hand, so that it is parked after its eighth
        /// try. Then Apple is back, and `queue redrive` lets it be granted.
        @Test func parkedAfterAnOutage() async throws {
            try await System.run(.init(timeScale: 0.005)) { system in
                try await system.startAll()
                var down = FaultRequest(.status, on: .all)
                down.status = 503
                try system.appStore.store.fault(down)
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "player-one-1")
                let answer = try await system.submitReceipt(sale, user: "player-one-1")
                try await system.execute(
                    """
                    with aged as (update receipts set received_at = received_at - interval '1 day'),
                      moved as (update stored_payloads set received_on = received_on - 1)
                    update tallies set day = day - 1
                    """)
                try await system.wait(.parked, 1)
                let path = "/v1/receipts/\(answer.id)/explain"
                let parked = try await system.client.with(.support).get(path)
                #expect(parked.state == "parked" && parked.what.count { $0 == "attempt" } >= 8)
                #expect(parked.text.contains("HTTP 503"))
                #expect((parked.json["next"] as? [String: Any])?["at"] is String)
                #expect(parked.text.contains("长时间没有确认"))
                #expect(
                    try await system.texts(
                        "select concat_ws(' ', user_id, receipt_id) from events where type = 'receipt.parked'")
                        == ["player-one-1 \(answer.id)"])

                system.appStore.store.clearFaults()
                try await system.command("queue", "redrive", "--app", "game", "--state", "parked")
                try await system.wait(.granted, 1)
                let granted = try await system.client.with(.support).get(path)
                #expect(granted.state == "granted" && granted.what.contains("command"))
                #expect(granted.what.contains("granted") && granted.text.contains("queue.redrive"))
            }
        }
    }
}

extension Client.Answer {
    /// The kinds of the entries, in the timeline's order.
    fileprivate var what: [String] {
        (json["timeline"] as? [[String: Any]] ?? []).compactMap { $0["what"] as? String }
    }
}
