import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// The right goods to the right account and order (B7): the source documents' scenarios by their ids, with orders
    /// as rows of the database, real processes and a real App Store simulator.
    @Suite struct MatchingTests {
        /// Goal: a user who taps several products, or whose client caches the wrong order, gets what was paid for, and
        /// no order is bound by another order's purchase (S3-17, S3-42, S4-8, S4-9, S4-24, P7).
        /// Method: purchases name a wrong order, by claim and by token, beside the right ones. Apple's product is
        /// granted, the order that fits is bound, every other order stays open.
        @Test func noOrderTakesAnotherPurchase() async throws {
            try await System.run { system in
                let (coins, gems) = (try await system.place("tapper"), try await system.place("tapper", .gems))
                let wrong = try await system.place("prover", .gems)
                try await system.startAll()

                // S3-17, S3-42: only the post names the order. The order of the other product stays open.
                let tapped = try await system.appStore.sell()
                system.owe(tapped, to: "tapper")
                let first = try await system.submit(tapped, user: "tapper", order: gems, wait: 20)
                #expect(first.state == "granted" && first.transactions[0]["owner"] as? String == "you")
                #expect(try await system.order(of: tapped) == "\(coins) open_order")
                #expect(try await system.isOpen(gems))

                // S3-42: Apple's token proves the user. The order is corrected.
                let proven = try await system.appStore.sell { $0.appAccountToken = wrong }
                system.owe(proven, to: "prover")
                try await system.submit(proven, user: "prover", wait: 20)
                #expect(try await system.order(of: proven) == "\(wrong) order_token")
                #expect(
                    try await system.texts("select product_id from v_orders where id = '\(wrong)'")
                        == [ConfigurationFile.coins])

                // S4-8, S4-24: A was paid an hour ago and is posted again under the order that was placed since.
                let a = try await system.place("waiter", minutesAgo: 62)
                let b = try await system.place("waiter", minutesAgo: 10)
                let paid = try await system.appStore.sell { $0.purchaseDate = .minutesAgo(60) }
                system.owe(paid, to: "waiter")
                try await system.submit(paid, user: "waiter", order: b, wait: 20)
                #expect(try await system.order(of: paid) == "\(a) open_order")
                #expect(try await system.isOpen(b))

                // P7: the same proof again, under the newest order: the answer is its own old grant, and the order
                // stays open.
                let replayed = try await system.submit(
                    .init(userId: "waiter", orderId: b, signedTransaction: paid.signedTransaction, transactionId: "x"),
                    wait: 20)
                #expect(replayed.status == 200 && replayed.state == "granted" && replayed.safeToFinish == true)
                #expect(try await system.isOpen(b))

                // S4-9: A(6) pending, B(12) done, C(6) created; then A's purchase appears.
                let (one, twelve) = (
                    try await system.place("third", minutesAgo: 30),
                    try await system.place("third", .gems, minutesAgo: 20)
                )
                let c = try await system.place("third", minutesAgo: 5)
                let twelfth = try await system.appStore.sell(ConfigurationFile.gems) {
                    $0.purchaseDate = .minutesAgo(19)
                }
                let sixth = try await system.appStore.sell { $0.purchaseDate = .minutesAgo(29) }
                system.owe([twelfth, sixth], to: "third")
                try await system.submit(twelfth, user: "third", order: twelve, wait: 20)
                try await system.submit(sixth, user: "third", order: c, wait: 20)
                #expect(try await system.order(of: twelfth) == "\(twelve) named_order")
                #expect(try await system.order(of: sixth) == "\(one) open_order")
                #expect(try await system.isOpen(c))
            }
        }

        /// Goal: one Apple account, several app accounts: a purchase belongs to exactly one, and the other learns only
        /// that it is somebody's (S3-38, S3-53, P10).
        /// Method: one user's purchases are posted by another user: with an order's token, from the same installation
        /// with the token that this server issued to it, with a registered token, and a renewal under another login.
        /// Then the owner posts and is told to be the owner. The order's name alone gives the purchase to nobody
        /// (S1-25), and a client's text for an installation proves nothing.
        @Test func switchingAccountsMovesNothing() async throws {
            try await System.run { system in
                let (token, named) = (try await system.place("alice"), try await system.place("alice", minutesAgo: 2))
                let registered = UUID().uuidString
                try await system.execute(
                    """
                    insert into user_tokens (app_id, token, user_id, source)
                    values ('game', '\(registered)', 'alice', 'registered'), ('game', gen_random_uuid(), 'thief', 'issued')
                    """)
                try await system.startAll()
                func hold(_ sale: Sale, owner: String, source: String, _ post: Client.Post) async throws {
                    system.owe(sale, to: owner)
                    let answer = try await system.submit(post, wait: 20)
                    #expect(answer.state == "already_granted" && answer.reason == "owned_by_another_user")
                    #expect(answer.safeToFinish == true)
                    #expect(
                        answer.transactions.allSatisfy { $0["owner"] as? String == "another" && $0["goods"] == nil })
                    #expect(!answer.text.contains(owner))
                    #expect(try await system.order(of: sale)?.hasSuffix(source) == true)
                    let own = try await system.submit(sale, user: owner, wait: 20)
                    #expect(own.state == "already_granted" && own.transactions[0]["owner"] as? String == "you")
                }
                let byToken = try await system.appStore.sell { $0.appAccountToken = token }
                try await hold(
                    byToken, owner: "alice", source: "\(token) order_token",
                    .init(userId: "other", signedTransaction: byToken.signedTransaction))
                let byName = try await system.appStore.sell()
                system.owe(byName, to: "alice")
                let unproven = try await system.submit(
                    .init(userId: "other", orderId: named, signedTransaction: byName.signedTransaction), wait: 20)
                #expect(
                    unproven.state == "held" && unproven.reason == "foreign_order" && unproven.safeToFinish == false)
                #expect(try await system.submit(byName, user: "alice", wait: 20).state == "granted")
                #expect(try await system.order(of: byName) == "\(named) open_order")
                let phone = try await system.client.installationToken()
                try await system.place("player", .gems, minutesAgo: 1, installation: phone)
                let byDevice = try await system.appStore.sell(ConfigurationFile.gems)
                try await hold(
                    byDevice, owner: "player", source: "order_of_another",
                    .init(userId: "other", signedTransaction: byDevice.signedTransaction, installationToken: phone))
                let byUser = try await system.appStore.sell { $0.appAccountToken = registered }
                try await hold(
                    byUser, owner: "alice", source: "user_token",
                    .init(userId: "other", signedTransaction: byUser.signedTransaction))

                // A purchase with a token that nobody registered, posted by a user who has another token, waits for a
                // person.
                let foreign = try await system.appStore.sell { $0.appAccountToken = UUID().uuidString }
                let held = try await system.submit(foreign, user: "thief", wait: 20)
                #expect(held.state == "held" && held.reason == "foreign_token" && held.safeToFinish == false)

                // S3-53: the next period, posted under another login, belongs to the chain's owner.
                let period = try await system.appStore.sell(ConfigurationFile.pass) { $0.type = .autoRenewable }
                system.owe(period, to: "alice")
                try await system.submit(period, user: "alice", wait: 20)
                let renewal = try await system.appStore.sell(ConfigurationFile.pass) {
                    $0.type = .autoRenewable
                    $0.originalTransactionId = period.purchase.transactionId
                }
                try await hold(
                    renewal, owner: "alice", source: "chain",
                    .init(userId: "other", signedTransaction: renewal.signedTransaction))
                #expect(try await system.texts("select user_id from ownerships") == ["alice"])
            }
        }

        /// Goal: neither token nor order is needed, but each is used if it is there (S0-15, S0-16, S0-17, S2-17, S3-22,
        /// S3-23, S4-13, S4-21, S4-26, P8, P9).
        /// Method: a purchase whose order the client lost is matched with the open one; a purchase without any order
        /// belongs to its poster; an order that the client asked for afterwards is bound by the purchase that it was
        /// asked for.
        @Test func aLostOrderIsFoundOrMadeUp() async throws {
            try await System.run { system in
                let lost = try await system.place("forgetful")
                try await system.startAll()
                let found = try await system.appStore.sell()
                let bare = try await system.appStore.sell(ConfigurationFile.gems)
                system.owe([found, bare], to: "forgetful")
                try await system.submit(found, user: "forgetful", wait: 20)
                try await system.submit(bare, user: "forgetful", wait: 20)
                #expect(try await system.order(of: found) == "\(lost) open_order")
                #expect(try await system.order(of: bare) == "- poster")

                // S2-17, S3-23: a payment succeeded without an order; the client asks for one, with or without the
                // purchase's id.
                let late = try await system.appStore.sell(2) { $0.purchaseDate = .minutesAgo(20) }
                system.owe(late, to: "late")
                let orders = [
                    try await system.place("late", minutesAgo: 1),
                    try await system.place("late", minutesAgo: 1, reservedFor: late[1]),
                ]
                for (sale, order) in zip(late, orders) {
                    let answer = try await system.submit(sale, user: "late", order: order, wait: 20)
                    #expect(answer.state == "granted")
                    #expect(try await system.order(of: sale) == "\(order) late_order")
                }

                // A purchase that was given before the client asked has ended its order too, and nothing waits for that
                // order any more.
                let asked = try await system.client.order([
                    "appId": "game", "userId": "forgetful", "productId": ConfigurationFile.gems,
                    "transactionId": bare.purchase.transactionId,
                ])
                #expect(asked.status == 201 && asked.state == "granted", "\(asked.text)")
                #expect(asked.json["transactionId"] as? String == bare.purchase.transactionId)
                let polled = try await system.client.get("/v1/orders/\(asked.id)?wait=20")
                #expect(polled.state == "granted" && polled.json["granted"] != nil)
                let next = try await system.appStore.sell(ConfigurationFile.gems)
                system.owe(next, to: "forgetful")
                try await system.submit(next, user: "forgetful", wait: 20)
                #expect(try await system.order(of: next) == "- poster", "it is no order for another purchase")
                // The same over HTTP from order to grant, for a purchase that was not given yet.
                let unposted = try await system.appStore.sell(ConfigurationFile.gems) {
                    $0.purchaseDate = .minutesAgo(20)
                }
                system.owe(unposted, to: "forgetful")
                let wanted = try await system.client.order([
                    "appId": "game", "userId": "forgetful", "productId": ConfigurationFile.gems,
                    "transactionId": unposted.purchase.transactionId,
                ])
                #expect(wanted.status == 201 && wanted.state == "open")
                try await system.submit(unposted, user: "forgetful", order: wanted.id, wait: 20)
                #expect(try await system.order(of: unposted) == "\(wanted.id) late_order")
                #expect(try await system.client.get("/v1/orders/\(wanted.id)").state == "granted")

                // If the post names no user, its order does (S1-18).
                let named = try await system.place("named")
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "named")
                let answer = try await system.submit(
                    .init(orderId: named, signedTransaction: sale.signedTransaction), wait: 20)
                #expect(answer.state == "granted")
                #expect(try await system.order(of: sale) == "\(named) named_order")
            }
        }

        /// Goal: each purchase of a receipt is compared with the orders by itself (S2-15, S2-16).
        /// Method: two purchases of one product in one legacy receipt, two orders, one of them named.
        @Test func everyPurchaseOfAReceiptHasItsOwnOrder() async throws {
            try await System.run { system in
                let early = try await system.place("u1", minutesAgo: 31)
                let late = try await system.place("u1", minutesAgo: 11)
                try await system.startAll()
                let first = try await system.appStore.sell { $0.purchaseDate = .minutesAgo(30) }
                let second = try await system.appStore.sell {
                    $0.purchaseDate = .minutesAgo(10)
                    $0.receiptOf = [first.purchase.transactionId]
                }
                system.owe([first, second], to: "u1")
                let answer = try await system.submit(
                    .init(userId: "u1", orderId: late, receipt: second.receipt), wait: 20)
                #expect(answer.state == "granted" && answer.transactions.count == 2)
                #expect(try await system.order(of: first) == "\(early) open_order")
                #expect(try await system.order(of: second) == "\(late) named_order")
            }
        }

        /// Goal: with many posts at once each order is bound once, and each purchase is given once, to one user. A
        /// purchase that was perhaps charged twice is given, and the backend is told (P4, P5, P6).
        /// Method: two workers; twenty purchases that name one order, and ten purchases claimed by two users with an
        /// order each, all in flight together.
        @Test func manyPurchasesForOneOrder() async throws {
            try await System.run { system in
                let contested = try await system.place("u1")
                let sales = try await system.appStore.sell(20)
                let claimed = try await system.appStore.sell(10)
                for _ in claimed {
                    for user in ["u2", "u3"] { try await system.place(user) }
                }
                try await system.startAll()
                try await system.start(.worker)
                for sale in sales { system.owe(sale, to: "u1") }
                for sale in claimed { system.owe(sale, to: "u2", "u3") }
                try await withThrowingTaskGroup(of: Void.self) { group in
                    for sale in sales {
                        group.addTask { try await system.submit(sale, user: "u1", order: contested) }
                    }
                    for sale in claimed {
                        for user in ["u2", "u3"] { group.addTask { try await system.submit(sale, user: user) } }
                    }
                    try await group.waitForAll()
                }
                try await system.settleDebts()
                #expect(try await system.count("select count(*) from grants where order_id = '\(contested)'") == 1)
                #expect(
                    try await system.count(
                        "select count(*) from v_orders where user_id <> 'u1' and transaction_id is not null")
                        == 10)
                // P6: nineteen of u1's purchases were bought before the one before them was given.
                try await system.wait("the double charges to be flagged") {
                    try await system.count("select count(*) from double_charges where user_id = 'u1'") == 19
                }
                // P5: posted again, the answer is 200 with its state and goods.
                let again = try await system.submit(
                    .init(userId: "u1", signedTransaction: sales[0].signedTransaction, transactionId: "again"), wait: 20
                )
                #expect(again.status == 200 && again.state == "granted")
                #expect(again.transactions[0]["goods"] != nil)
            }
        }
    }
}

// MARK: Orders

enum OrderedProduct {
    case coins, gems, gold

    var id: String {
        switch self {
        case .coins: ConfigurationFile.coins
        case .gems: ConfigurationFile.gems
        case .gold: ConfigurationFile.gold
        }
    }
}

extension System {
    /// Places an order of `game` as a row of the database; returns its id.
    ///
    /// - Parameter goods: the goods promised for one unit; nil: those of the catalogue at the time of the purchase.
    @discardableResult
    func place(
        _ user: String, _ product: OrderedProduct = .coins, minutesAgo: Double = 1, installation token: String? = nil,
        reservedFor sale: Sale? = nil, goods: String? = nil, payBy: String = "48 hours"
    ) async throws -> String {
        let id = UUID().uuidString.lowercased()
        let quoted = { (text: String?) in text.map { "'\($0)'" } ?? "null" }
        try await execute(
            """
            insert into orders (id, app_id, user_id, product_id, placed_at, pay_by, installation_id, reserved_for, goods)
            select '\(id)', 'game', '\(user)', '\(product.id)', at, at + interval '\(payBy)',
              (select installation_id from installation_tokens where token_sha256 = sha256(\(quoted(token)))),
              \(quoted(sale?.purchase.transactionId)), \(quoted(goods))::jsonb
            from (select now() - interval '\(minutesAgo) minutes' as at) t
            """)
        return id
    }

    @discardableResult
    func submit(
        _ sale: Sale, user: String, order: String, wait seconds: Int? = nil
    ) async throws -> Client.Answer {
        try await submit(
            .init(userId: user, orderId: order, signedTransaction: sale.signedTransaction), wait: seconds)
    }

    /// `order source`, or `- source` for a make-up order; nil where nothing was granted.
    func order(of sale: Sale) async throws -> String? {
        try await texts(
            """
            select coalesce(order_id::text, '-') || ' ' || binding_source from grants
            where transaction_id = '\(sale.purchase.transactionId)'
            """
        ).first
    }

    func isOpen(_ order: String) async throws -> Bool {
        try await count("select count(*) from v_orders where id = '\(order)' and transaction_id is null") == 1
    }
}

extension Int64 {
    static func minutesAgo(_ minutes: Double) -> Int64 {
        Int64((Date.now.timeIntervalSince1970 - minutes * 60) * 1000)
    }
}
