import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// The remaining scenarios of the source document S4, by their ids, and what Apple does by itself: purchases that
    /// are posted again, renewed, shared, taken back and bought anew; and which order belongs to which purchase (B7).
    /// Real processes and a real App Store simulator.
    @Suite struct Scenarios {
        /// Goal: a purchase that is posted again keeps its decision, and a client's report of a failure closes no order
        /// (S4-10, S4-11, S4-12, S4-17, S4-19, S4-20, S4-22).
        /// Method: an order that the client calls failed is bound by its purchase. The purchase is posted again newly
        /// signed, in a receipt beside another one, and after it was finished. It binds no order that differs in
        /// product, user or time; where the quantity differs, Apple's counts.
        @Test func whatComesAgainIsWhatItWas() async throws {
            try await System.run { system in
                let failed = try await system.place("u1", minutesAgo: 3)
                let others = [
                    try await system.place("u1", .gems, minutesAgo: 3), try await system.place("u2", minutesAgo: 3),
                    try await system.place("u1", minutesAgo: -30),
                ]
                try await system.startAll()
                for word in ["failed", "deferred", "cancelled"] {
                    #expect(try await system.client.report(word, of: failed, user: "u1").status == 201)
                }
                let sale = try await system.appStore.sell { $0.quantity = 3 }
                let id = sale.purchase.transactionId
                system.owe(sale, to: "u1")
                let first = try await system.submit(sale, user: "u1", wait: 20)
                #expect(first.state == "granted" && first.safeToFinish == true)
                #expect(try await system.order(of: sale) == "\(failed) open_order")
                #expect(try await system.reasons(of: sale) == "order_open,quantity_differs")
                for order in others { #expect(try await system.isOpen(order)) }

                // S4-19, S4-20: a second verification; S4-17: the entry stays in the client's queue after it was finished.
                for _ in 0..<2 {
                    let jws = try system.appStore.store.sign(id)
                    let again = try await system.submit(
                        .init(userId: "u1", signedTransaction: jws, transactionId: UUID().uuidString), wait: 20)
                    #expect(again.state == "already_granted" && again.safeToFinish == true)
                    #expect(again.transactions[0]["goods"] != nil && again.transactions[0]["owner"] as? String == "you")
                }
                // S4-12: a restore brings consumables that were not finished, here with one that is new.
                let fresh = try await system.appStore.sell(ConfigurationFile.gems) { $0.receiptOf = [id] }
                system.owe(fresh, to: "u1")
                let restored = try await system.submitReceipt(fresh, user: "u1", wait: 20)
                #expect(restored.state == "granted" && restored.transactions.count == 2)
                #expect(
                    Set(restored.transactions.compactMap { $0["state"] as? String }) == ["granted", "already_granted"])
                #expect(try await system.order(of: fresh) == "\(others[0]) open_order")
            }
        }

        /// Goal: a subscription or non-consumable stays its owner's, also where another user posts it under another id, and each
        /// period is given once. The owner may buy anew what was taken back (restores, family sharing, renewals,
        /// upgrade, crossgrade with an old token, one period from two devices, refund then repurchase).
        /// Method: one subscription and one non-consumable of u1 go through all of it, posted by u1 and by u2.
        @Test func whatRunsOnIsItsOwners() async throws {
            try await System.run { system in
                let order = try await system.place("u1")
                try await system.startAll()
                let pass = ConfigurationFile.pass
                func show(_ sale: Sale, by user: String) async throws -> String {
                    let answer = try await system.submit(
                        .init(
                            userId: user, signedTransaction: sale.signedTransaction, transactionId: UUID().uuidString),
                        wait: 20)
                    return "\(answer.state) \(answer.transactions.first?["owner"] as? String ?? "-")"
                }
                let first = try await system.appStore.sell(pass) {
                    $0.type = .autoRenewable
                    $0.purchaseDate = .minutesAgo(300)
                    $0.appAccountToken = order
                }
                system.owe(first, to: "u1")
                #expect(try await show(first, by: "u1") == "granted you")
                let chain = first.purchase.transactionId
                func period(_ product: String, minutesAgo: Double, _ change: (inout SaleRequest) -> Void = { _ in })
                    async throws -> Sale
                {
                    try await system.appStore.sell(product) {
                        $0.type = .autoRenewable
                        $0.originalTransactionId = chain
                        $0.purchaseDate = .minutesAgo(minutesAgo)
                        change(&$0)
                    }
                }
                // A renewal with the token of the first period, posted under another login and again by its owner.
                let renewal = try await period(pass, minutesAgo: 240) { $0.appAccountToken = order }
                system.owe(renewal, to: "u1")
                #expect(try await show(renewal, by: "u2") == "already_granted another")
                #expect(try await show(renewal, by: "u1") == "already_granted you")
                // One period, posted by two devices under two ids.
                let devices = [
                    try await period(pass, minutesAgo: 180) { $0.webOrderLineItemId = "7001" },
                    try await period(pass, minutesAgo: 180) { $0.webOrderLineItemId = "7001" },
                ]
                system.owe(devices[0], to: "u1")
                #expect(try await show(devices[0], by: "u1") == "granted you")
                #expect(try await show(devices[1], by: "u2") == "already_granted another")
                #expect(try await show(devices[1], by: "u1") == "already_granted you")
                // The same period by a third device, with another billing event (F12).
                let third = try await period(pass, minutesAgo: 180) {
                    $0.webOrderLineItemId = "7002"
                    $0.expiresDate = devices[0].purchase.expiresDate
                }
                #expect(try await show(third, by: "u1") == "already_granted you")
                // An upgrade with an order of its own, and a crossgrade with the token of an old order.
                let upgradeOrder = try await system.place("u1", .gold, minutesAgo: 121)
                let upgrade = try await period(ConfigurationFile.gold, minutesAgo: 120) {
                    $0.transactionReason = "PURCHASE"
                }
                system.owe(upgrade, to: "u1")
                #expect(try await show(upgrade, by: "u1") == "granted you")
                #expect(try await system.order(of: upgrade) == "\(upgradeOrder) open_order")
                let crossgrade = try await period(pass, minutesAgo: 60) {
                    $0.transactionReason = "PURCHASE"
                    $0.appAccountToken = order
                }
                system.owe(crossgrade, to: "u1")
                #expect(try await show(crossgrade, by: "u2") == "already_granted another")
                #expect(try await system.order(of: crossgrade) == "- order_token")
                // Resubscribed in Settings (S3-3): no order, no token, and another login.
                let settings = try await period(pass, minutesAgo: 30) { $0.transactionReason = "PURCHASE" }
                system.owe(settings, to: "u1")
                #expect(try await show(settings, by: "u2") == "already_granted another")
                #expect(try await system.order(of: settings) == "- chain_owner")

                // A non-consumable: restored, shared, taken back, bought anew.
                func sword(_ change: (inout SaleRequest) -> Void) async throws -> Sale {
                    try await system.appStore.sell(ConfigurationFile.sword) {
                        $0.type = .nonConsumable
                        change(&$0)
                    }
                }
                let bought = try await sword {
                    $0.purchaseDate = .minutesAgo(200)
                    $0.family = ["sister"]
                }
                system.owe(bought, to: "u1")
                #expect(try await show(bought, by: "u1") == "granted you")
                let restore = try await sword {
                    $0.originalTransactionId = bought.purchase.transactionId
                    $0.purchaseDate = .minutesAgo(100)
                }
                #expect(try await show(restore, by: "u1") == "already_granted you")
                #expect(try await show(restore, by: "u2") == "already_granted another")
                let share = try #require(bought.family.first)
                system.owe(share, promised: 0, to: "sister")
                #expect(try await show(share, by: "sister") == "granted you")
                #expect(try await system.order(of: share) == "- shared")
                let id = bought.purchase.transactionId
                _ = try system.appStore.store.refund(id)
                let refund = try await system.submit(
                    .init(userId: "u1", signedTransaction: try system.appStore.store.sign(id)), wait: 20)
                #expect(refund.state == "already_granted")
                let again = try await sword {
                    $0.originalTransactionId = id
                    $0.purchaseDate = Int64(Date.now.timeIntervalSince1970 * 1000) + 60_000
                }
                let anew = try await sword { $0.purchaseDate = .minutesAgo(1) }
                system.owe([again, anew], to: "u1")
                #expect(try await show(again, by: "u1") == "granted you", "the same original id")
                #expect(try await show(anew, by: "u1") == "granted you", "a new one")
            }
        }

        /// Goal: each purchase gets the right order: charged twice, hoarded, redeemed by a code, approved a day later,
        /// of another user (P6, S1-8, S1-25; offer codes, Ask to Buy, hoarded promotional orders, grey-market
        /// receipts).
        /// Method: one purchase of each kind beside orders that look alike.
        @Test func whichOrderIsWhose() async throws {
            try await System.run { system in
                let promise = #"[{"item": "coins", "amount": 9000}]"#
                let twice = try await system.place("u1", minutesAgo: 5)
                let hoarded = try await system.place("hoarder", minutesAgo: 3000, goods: promise, payBy: "47 hours")
                let asked = try await system.place("child", minutesAgo: 1200, goods: promise)
                let coded = try await system.place("coder", minutesAgo: 2)
                let anothers = try await system.place("owner", minutesAgo: 40)
                try await system.startAll()

                // A second charge on one order: both purchases are given, and the double charge is recorded.
                let charged = try await system.appStore.sell(2) { $0.appAccountToken = twice }
                system.owe(charged, to: "u1")
                for sale in charged { #expect(try await system.submit(sale, user: "u1", wait: 20).state == "granted") }
                #expect(
                    try await system.texts("select order_id::text from double_charges where user_id = 'u1'").first
                        == twice)
                // Bought after the promotion lapsed: the order is bound, the goods are today's.
                let late = try await system.appStore.sell { $0.appAccountToken = hoarded }
                system.owe(late, to: "hoarder")
                try await system.submit(late, user: "hoarder", wait: 20)
                #expect(try await system.order(of: late) == "\(hoarded) order_token")
                #expect(try await system.reasons(of: late) == "token_of_order,offer_lapsed")
                // Ask to Buy: approved 19 hours later, and delivered while nobody has the app open.
                #expect(try await system.client.report("deferred", of: asked, user: "child").status == 201)
                let approved = try await system.appStore.sell { $0.purchaseDate = .minutesAgo(30) }
                system.owe(approved, promised: 9000, to: "child")
                #expect(try await system.submit(approved, user: "child", wait: 20).state == "granted")
                #expect(try await system.order(of: approved) == "\(asked) open_order")
                // An offer code is redeemed outside of any order (S3-3).
                let redeemed = try await system.appStore.sell { $0.offerType = 3 }
                system.owe(redeemed, to: "coder")
                try await system.submit(redeemed, user: "coder", wait: 20)
                #expect(try await system.order(of: redeemed) == "- poster")
                #expect(try await system.reasons(of: redeemed) == "offer_code")
                #expect(try await system.isOpen(coded))
                // S1-25: a visitor posts the owner's purchase under the owner's order; that post never gives it to the
                // visitor.
                let record = try await system.appStore.sell()
                let held = try await system.submit(record, user: "visitor", order: anothers, wait: 20)
                #expect(held.state == "held" && held.reason == "foreign_order" && held.safeToFinish == false)
                #expect(!held.text.contains("owner\":\"you"))
                system.owe(record, to: "owner")
                #expect(try await system.submit(record, user: "owner", order: anothers, wait: 20).state == "granted")
                try await system.wait("the visitor's post to be answered") {
                    try await system.count(
                        "select count(*) from outcomes where reason = 'owned_by_another_user'") == 1
                }
            }
        }

        /// Goal: one Apple account may have several app accounts, and the reverse. A customer whose purchases are
        /// posted by many users (grey market) is held.
        /// Method: customers and users in both directions; more users of one customer than makeUp allows are held for a
        /// person, unless an order speaks for them.
        @Test func oneCustomerAndManyUsers() async throws {
            try await System.run { system in
                let order = try await system.place("grey-5")
                try await system.startAll()
                for user in ["main", "alt"] {
                    let own = try await system.appStore.sell { $0.customer = "one apple account" }
                    system.owe(own, to: user)
                    #expect(try await system.submit(own, user: user, wait: 20).state == "granted")
                }
                for customer in ["phone", "tablet"] {
                    let own = try await system.appStore.sell { $0.customer = customer }
                    system.owe(own, to: "traveller")
                    #expect(try await system.submit(own, user: "traveller", wait: 20).state == "granted")
                }
                for number in 1...5 {
                    let resold = try await system.appStore.sell { $0.customer = "grey" }
                    let isGiven = number != 4
                    if isGiven { system.owe(resold, to: "grey-\(number)") }
                    let answer = try await system.submit(resold, user: "grey-\(number)", wait: 20)
                    #expect(answer.state == (isGiven ? "granted" : "held"), "\(number)")
                    #expect(answer.reason == (isGiven ? nil : "review"))
                }
                #expect(try await system.isOpen(order) == false)
            }
        }
    }
}

extension System {
    /// The reasons for the match, comma-separated; nil where nothing was granted.
    func reasons(of sale: Sale) async throws -> String? {
        try await texts(
            """
            select array_to_string(reasons, ',') from outcomes
            where transaction_id = '\(sale.purchase.transactionId)' and state = 'granted'
            """
        ).first
    }
}
