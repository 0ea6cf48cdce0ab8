import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// A mere claim of one user never takes a purchase from another user who shows Apple's own data. Over HTTP, with
    /// real processes; the thief comes first wherever possible.
    @Suite struct OwnershipTests {
        /// Goal: an order that names the victim's installation takes nothing (S1), whatever the installation is called,
        /// and whether the order was placed before the purchase or just after.
        /// Method: the thief's order carries the text that the victim's device sends, the text of every device, and the
        /// zero UUID; then the victim posts. Every purchase is the victim's.
        @Test func aNamedInstallationTakesNothing() async throws {
            try await System.run { system in
                try await system.startAll()
                for text in [
                    "unknown", "iPhone15,2", UUID(uuid: (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)).uuidString,
                ] {
                    for isLate in [false, true] {
                        let installation = ["installationId": text]
                        if !isLate { try await system.order(of: "thief", installation) }
                        let sale = try await system.appStore.sell()
                        if isLate { try await system.order(of: "thief", installation) }
                        system.owe(sale, to: "victim")
                        let post = Client.Post(
                            userId: "victim", signedTransaction: sale.signedTransaction, installationId: text)
                        #expect(try await system.submit(post, wait: 20).state == "granted", "\(text)")
                    }
                }
                #expect(try await system.texts("select distinct user_id from grants") == ["victim"])
            }
        }

        /// Goal: a token that the thief used first takes no purchase from the victim (S2). A sandbox purchase and a
        /// refunded one do not count for the thief; one that stands only makes the victim wait a day.
        /// Method: the thief buys with the victim's token, which nobody registered; then the victim posts purchases
        /// with the same token. If the victim has an order from before the purchase, it is granted at once; without one
        /// it is held, and both users are told.
        @Test func aTokenUsedFirstTakesNothing() async throws {
            try await System.run { system in
                try system.configureGame { $0.sandboxPurchases = "grant" }
                try await system.startAll()
                let (free, refunded, standing) = (UUID().uuidString, UUID().uuidString, UUID().uuidString)
                func buy(_ token: String, _ environment: StoreEnvironment = .production) async throws -> Sale {
                    try await system.appStore.sell {
                        $0.appAccountToken = token
                        $0.environment = environment
                    }
                }
                let sandbox = try await buy(free, .sandbox)
                let taken = try await buy(refunded)
                let paid = try await buy(standing)
                system.owe([sandbox, taken, paid], to: "thief")
                for sale in [sandbox, taken, paid] {
                    #expect(try await system.submit(sale, user: "thief", wait: 20).state == "granted")
                }
                try await system.execute(
                    """
                    update transactions set revoked_at = now(), signed_at = now()
                    where transaction_id = '\(taken.purchase.transactionId)'
                    """)
                for token in [free, refunded] {
                    let sale = try await buy(token)
                    system.owe(sale, to: "victim")
                    #expect(try await system.submit(sale, user: "victim", wait: 20).state == "granted")
                }
                try await system.place("victim")
                let ordered = try await buy(standing)
                system.owe(ordered, to: "victim")
                #expect(try await system.submit(ordered, user: "victim", wait: 20).state == "granted")
                // By now two users' purchases carry the first token, so that it says nothing. A token that only the
                // thief's purchase carries makes the victim's wait.
                let other = UUID().uuidString
                let first = try await buy(other)
                system.owe(first, to: "thief")
                try await system.submit(first, user: "thief", wait: 20)
                let waiting = try await buy(other)
                let held = try await system.submit(waiting, user: "victim", wait: 20)
                #expect(held.state == "held" && held.reason == "token_disputed" && held.safeToFinish == false)
                let told = try await system.client.events().filter { $0["type"] as? String == "ownership.disputed" }
                #expect(Set(told.compactMap { $0["userId"] as? String }) == ["victim", "thief"])
                #expect(
                    try await system.texts("select claimant || ' ' || reason from v_disputes where state = 'held'")
                        == ["victim token_disputed"])
                // A person who looks may decide at once.
                system.owe(waiting, to: "victim")
                try await system.command(
                    "support", "give", "--app", "game", "--transaction", waiting.purchase.transactionId, "--user",
                    "victim",
                    "--because", "ticket 44")
                try await system.settleDebts()
            }
        }

        /// Goal: a bare id beside the poster's own order shows no possession (S4). A captured proof that the thief
        /// posts first does not tell the real buyer to finish (S14).
        @Test func aBareIdGivesNothingAndACapturedProofIsDisputed() async throws {
            try await System.run { system in
                try await system.startAll()
                let asked = try await system.appStore.sell()
                let order = try await system.place("thief")
                let bare = try await system.submit(
                    .init(userId: "thief", orderId: order, transactionId: asked.purchase.transactionId), wait: 20)
                #expect(bare.state == "held" && bare.reason == "possession_missing" && bare.safeToFinish == false)
                system.owe(asked, to: "victim")
                #expect(try await system.submit(asked, user: "victim", wait: 20).state == "granted")

                let captured = try await system.appStore.sell(ConfigurationFile.gems)
                system.owe(captured, to: "thief")
                #expect(try await system.submit(captured, user: "thief", wait: 20).state == "granted")
                let answer = try await system.submit(captured, user: "victim", wait: 20)
                #expect(answer.state == "already_granted" && answer.reason == "owned_by_another_user")
                #expect(answer.safeToFinish == false && answer.json["nextAttemptAt"] != nil)
                // If the victim posts it again, in whatever copy, the day still counts from the first post.
                let again = try await system.submit(
                    .init(
                        userId: "victim", signedTransaction: captured.signedTransaction,
                        transactionId: captured.purchase.transactionId), wait: 20)
                #expect(again.json["nextAttemptAt"] as? String == answer.json["nextAttemptAt"] as? String)
                let told = try await system.client.events().filter { $0["type"] as? String == "ownership.disputed" }
                #expect(told.compactMap { $0["userId"] as? String }.sorted() == ["thief", "victim"])
                // The test ends the day.
                try await system.execute("update outcomes set safe_at = now() where safe_at is not null")
                #expect(try await system.client.receipt(answer.id).safeToFinish == true)
            }
        }

        /// Goal: a post that names another user's order never gives its purchase to the poster for that post alone,
        /// whether the order fits or not (S1-25).
        /// Method: the other user's order is for another product, younger than the purchase, or paid before; the same
        /// with a receipt. Without the order's name the poster gets the purchase.
        @Test func aNamedOrderOfAnotherIsNobodysProof() async throws {
            try await System.run { system in
                try await system.startAll()
                let ofAnotherProduct = try await system.place("ann", .gems)
                let younger = try await system.place("ann", minutesAgo: 1)
                let bound = try await system.place("ann")
                let paid = try await system.appStore.sell { $0.appAccountToken = bound }
                system.owe(paid, to: "ann")
                try await system.submit(paid, user: "ann", wait: 20)
                for order in [ofAnotherProduct, younger, bound] {
                    for isReceipt in [false, true] {
                        let sale = try await system.appStore.sell { $0.purchaseDate = .minutesAgo(30) }
                        var post = Client.Post(userId: "bob", orderId: order)
                        if isReceipt {
                            post.receipt = sale.receipt
                        } else {
                            post.signedTransaction = sale.signedTransaction
                        }
                        let held = try await system.submit(post, wait: 20)
                        #expect(held.state == "held" && held.reason == "foreign_order", "\(held.text)")
                        #expect(held.safeToFinish == false)
                        system.owe(sale, to: "bob")
                        post.orderId = nil
                        #expect(try await system.submit(post).id == held.id)
                        try await system.wait("it to be bob's without that name") {
                            try await system.client.receipt(held.id).state == "granted"
                        }
                    }
                }
            }
        }

        /// Goal: an order that is younger than the purchase is not bound by it, neither within one account (S4-8) nor
        /// across a switch of accounts on one phone (S3-38, note 6).
        @Test func aYoungerOrderTakesNothing() async throws {
            try await System.run { system in
                try await system.startAll()
                let phone = try await system.client.installationToken()
                let a = try await system.place("ann", minutesAgo: 1.7, installation: phone)
                let switched = try await system.appStore.sell { $0.purchaseDate = .minutesAgo(1.3) }
                let b = try await system.order(of: "bob", ["installationToken": phone])
                system.owe(switched, to: "ann")
                let answer = try await system.submit(
                    .init(
                        userId: "bob", orderId: b, signedTransaction: switched.signedTransaction,
                        installationToken: phone),
                    wait: 20)
                #expect(answer.reason == "owned_by_another_user" && answer.safeToFinish == true, "by proof")
                #expect(try await system.order(of: switched) == "\(a) order_of_another")
                #expect(try await system.isOpen(b))

                let first = try await system.place("mei", minutesAgo: 1)
                let own = try await system.appStore.sell { $0.purchaseDate = .minutesAgo(0.5) }
                let second = try await system.order(of: "mei", [:])
                system.owe(own, to: "mei")
                try await system.submit(own, user: "mei", order: second, wait: 20)
                #expect(try await system.order(of: own) == "\(first) open_order")
                #expect(try await system.isOpen(second))
            }
        }

        /// Goal: an installation proves only while its token is issued and unrevoked and while it was seen with one
        /// Apple customer. Its next token proves too.
        @Test func anInstallationProvesWhileItIsOneCustomers() async throws {
            try await System.run { system in
                try await system.startAll()
                func post(_ token: String, customer: String, expecting source: String) async throws {
                    let order = try await system.order(
                        of: "ann-\(UUID().uuidString.prefix(8))", ["installationToken": token])
                    let sale = try await system.appStore.sell { $0.customer = customer }
                    try await system.execute(
                        "update orders set placed_at = placed_at - interval '1 minute' where id = '\(order)'")
                    let owner = try #require(
                        try await system.texts("select user_id from orders where id = '\(order)'").first)
                    system.owe(sale, to: source == "poster" ? "bob" : owner)
                    try await system.submit(
                        .init(userId: "bob", signedTransaction: sale.signedTransaction, installationToken: token),
                        wait: 20)
                    #expect(try await system.order(of: sale)?.hasSuffix(source) == true, "\(source)")
                }
                let phone = try await system.client.installationToken()
                try await post(phone, customer: "c1", expecting: "order_of_another")
                let next = try await system.client.installationToken(after: phone)
                #expect(next != phone)
                try await post(next, customer: "c1", expecting: "order_of_another")
                try await post(phone, customer: "c1", expecting: "order_of_another")
                // A stranger's purchase was posted with it.
                try await post(next, customer: "c2", expecting: "poster")

                let lost = try await system.client.installationToken()
                #expect(try await system.client.revokeInstallation(lost).status == 200)
                try await post(lost, customer: "c3", expecting: "poster")
                // A device that shows a token that counts no more gets a new installation, and is not told which one it
                // had.
                let fresh = try await system.client.installationToken(after: lost)
                try await post(fresh, customer: "c3", expecting: "order_of_another")
                try await post("guessed-token", customer: "c4", expecting: "poster")
                #expect(
                    try await system.count(
                        "select count(*) from installation_tokens where octet_length(token_sha256) = 32") == 4)
            }
        }

        /// Goal: an installation token says nothing of an order that was placed before the token was issued.
        /// Method: two users place orders with one token, the first of them before this server knows the token, which
        /// no client can bring about; a third user posts with it before and after the second order.
        @Test func aTokenSaysNothingOfEarlierOrders() async throws {
            try await System.run { system in
                try await system.startAll()
                let token = "issued-later-\(UUID().uuidString)"
                func place(_ user: String) async throws -> String {
                    let order = try await system.order(of: user, ["installationToken": token])
                    try await system.execute(
                        "update orders set placed_at = placed_at - interval '1 minute' where id = '\(order)'")
                    return order
                }
                func post() async throws -> Sale {
                    let sale = try await system.appStore.sell { $0.customer = "c1" }
                    try await system.submit(
                        .init(userId: "bob", signedTransaction: sale.signedTransaction, installationToken: token),
                        wait: 20)
                    return sale
                }
                let early = try await place("ann")
                try await system.execute("insert into installations (id, app_id) values ('device', 'game')")
                try await system.execute(
                    """
                    insert into installation_tokens (token_sha256, installation_id, app_id)
                    values (sha256(convert_to('\(token)', 'UTF8')), 'device', 'game')
                    """)
                let first = try await post()
                system.owe(first, to: "bob")
                #expect(try await system.order(of: first) == "- poster")
                let late = try await place("mei")
                let second = try await post()
                system.owe(second, to: "mei")
                #expect(try await system.order(of: second) == "\(late) order_of_another")
                #expect(try await system.isOpen(early))
            }
        }

        /// Goal: a record that names another user gives the purchase to that user, and never silently to its poster
        /// (S0-24, S0-9).
        @Test func aRecordIsItsUsers() async throws {
            try await System.run { system in
                try await system.startAll()
                func record(_ sale: Sale, by user: String, uid: String) async throws -> Client.Answer {
                    try await system.submit(
                        .init(
                            userId: user, receipt: sale.receipt, transactionId: sale.purchase.transactionId,
                            item: ConfigurationFile.coins, uid: uid, appsid: "s1", ext: "r1"), wait: 20)
                }
                // A granted record shows that users of this app have names of this form.
                let own = try await system.appStore.sell()
                system.owe(own, to: "ann")
                #expect(try await record(own, by: "ann", uid: "ann").state == "granted")
                let anns = try await system.appStore.sell()
                system.owe(anns, to: "ann")
                let answer = try await record(anns, by: "bob", uid: "ann")
                #expect(answer.reason == "owned_by_another_user" && answer.safeToFinish == false)
                #expect(try await system.order(of: anns) == "- record")
                #expect(try await system.target(of: anns) == #"{"role": "r1", "server": "s1"}"#)
                let nobodys = try await system.appStore.sell()
                let held = try await record(nobodys, by: "bob", uid: "nobody")
                #expect(held.state == "held" && held.reason == "foreign_record" && held.safeToFinish == false)
                system.owe(nobodys, to: "nobody")
                #expect(try await record(nobodys, by: "nobody", uid: "nobody").state == "granted")
            }
        }

        /// Goal: server and role reach the goods, whether the order, the post or the record says them (S0-9, S0-16,
        /// S0-17, P6).
        @Test func serverAndRoleAreNotLost() async throws {
            try await System.run { system in
                try await system.startAll()
                // Charged twice on one order: both go to the order's role.
                let order = try await system.order(of: "mei", target: ["server": "s1", "role": "r1"])
                let twice = [
                    try await system.appStore.sell { $0.appAccountToken = order },
                    try await system.appStore.sell { $0.appAccountToken = order },
                ]
                system.owe(twice, to: "mei")
                for sale in twice {
                    try await system.submit(sale, user: "mei", wait: 20)
                    #expect(try await system.target(of: sale) == #"{"role": "r1", "server": "s1"}"#)
                }
                // The order says nothing, or a part; the post says the rest.
                for (said, expected) in [
                    ([:], #"{"role": "r8", "server": "s4"}"#), (["server": "s9"], #"{"role": "r8", "server": "s9"}"#),
                ] {
                    let partly = try await system.order(of: "mei", target: said)
                    let sale = try await system.appStore.sell()
                    system.owe(sale, to: "mei")
                    try await system.submit(
                        .init(userId: "mei", orderId: partly, receipt: sale.receipt, appsid: "s4", ext: "r8"), wait: 20)
                    #expect(try await system.target(of: sale) == expected)
                }
                // A role that Bob posts is never used for Ann's purchase.
                let anns = try await system.order(of: "ann", [:])
                let posted = try await system.appStore.sell { $0.appAccountToken = anns }
                system.owe(posted, to: "ann")
                try await system.submit(
                    .init(userId: "bob", signedTransaction: posted.signedTransaction, appsid: "s6", ext: "r6"), wait: 20
                )
                #expect(try await system.target(of: posted) == "{}")
                // A person gives a purchase whose record no user posted.
                let lost = try await system.appStore.sell()
                let held = try await system.submit(
                    .init(orderId: "lost-1", signedTransaction: lost.signedTransaction, appsid: "s6", ext: "r6"),
                    wait: 20)
                #expect(held.state == "held" && held.reason == "order_unknown")
                system.owe(lost, to: "mei")
                try await system.command(
                    "support", "give", "--app", "game", "--transaction", lost.purchase.transactionId, "--user", "mei",
                    "--because", "ticket 18")
                try await system.settleDebts()
                #expect(try await system.target(of: lost) == #"{"role": "r6", "server": "s6"}"#)
            }
        }
    }
}

extension System {
    /// Places an order over HTTP; returns its id.
    @discardableResult
    fileprivate func order(
        of user: String, product: String = ConfigurationFile.coins, _ fields: [String: String] = [:],
        target: [String: String]? = nil
    ) async throws -> String {
        var body: [String: Any] = [
            "appId": "game", "userId": user, "productId": product, "idempotencyKey": UUID().uuidString,
        ]
        body.merge(fields) { _, field in field }
        if let target { body["target"] = target }
        let answer = try await client.placeOrder(try JSONSerialization.data(withJSONObject: body))
        // 200: a second order within the debounce counts as the same tap.
        #expect([200, 201].contains(answer.status), "\(answer.text)")
        return try #require(answer.json["id"] as? String)
    }

    /// The target of a purchase's goods, as the feed tells it.
    fileprivate func target(of sale: Sale) async throws -> String? {
        try await texts(
            """
            select coalesce((body -> 'target')::text, '-') from events
            where type = 'purchase.granted' and transaction_id = '\(sale.purchase.transactionId)'
            """
        ).first
    }
}
