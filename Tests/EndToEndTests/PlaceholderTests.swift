import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// Users and tokens that are none, and proofs that everybody has. Over HTTP, with real processes.
    @Suite struct PlaceholderTests {
        /// Goal: a purchase that an app posts after it has lost its user is stored, is nobody's, and is the real user's
        /// as soon as that user posts it (F9). No placeholder learns anything, and none takes anything.
        /// Method: one purchase under many placeholders; then its user posts it, and then a placeholder again. An order
        /// inside Apple's data, an order that the post names, and a gateway's token of nobody. In the end the user is
        /// erased: nothing stays beside the posts of nobody.
        @Test(arguments: [false, true]) func aPlaceholderOwnsNothing(isProtected: Bool) async throws {
            try await System.run { system in
                if isProtected { try system.configure { $0.users = .init() } }
                try await system.startAll()
                let client = try system.client
                let sale = try await system.appStore.sell()
                let held = try await system.submit(sale, user: "undefined", wait: 20)
                for user in [" NULL ", "(null)", "[object Object]", "\u{feff}", "\"nil\"", ""] {
                    let again = try await system.submit(sale, user: user)
                    #expect(again.id == held.id && again.state == "held", "\(user)")
                }
                let read = try await client.receipt(held.id)
                for answer in [held, read] {
                    #expect(answer.state == "held" && answer.reason == "user_placeholder")
                    #expect(answer.safeToFinish == false && answer.transactions.count == 1)
                    #expect(answer.transactions[0]["productId"] as? String == ConfigurationFile.coins)
                }
                #expect(
                    try await system.texts("select details ->> 'userId' from receipts where user_id is null")
                        == ["undefined"])
                #expect(try await system.command("explain", held.id).contains("the app has lost its user"))
                #expect(
                    try await client.get("/metrics").text.contains("makegood_placeholder_posts_total{app=\"game\"}"))
                let refusal = await #expect(throws: System.Failure.self) {
                    try await system.command(
                        "support", "give", "--app", "game", "--transaction", sale.purchase.transactionId, "--user",
                        "null", "--because", "ticket 9")
                }
                #expect(refusal?.description.contains("is a placeholder and names nobody") == true)
                #expect(try await system.count("select count(*) from grants") == 0)

                system.owe(sale, to: "real-1")
                let granted = try await system.submit(sale, user: "real-1", wait: 20)
                #expect(granted.state == "granted" && granted.transactions[0]["owner"] as? String == "you")
                try await system.wait("the post of nobody to end") {
                    try await client.receipt(held.id).state == "already_granted"
                }
                let told = try await system.submit(sale, user: "null", wait: 20)
                #expect(told.id == held.id && told.reason == "owned_by_another_user" && told.safeToFinish == false)
                #expect(told.transactions[0]["owner"] as? String == "another" && told.transactions[0]["goods"] == nil)
                #expect(!told.text.contains("real-1"))
                let types = try await client.events().compactMap { $0["type"] as? String }
                #expect(Set(types).isSubset(of: ["purchase.granted"]), "nobody is told of a dispute with nobody")

                // An order inside Apple's data, and an order that the backend's post names.
                let (inside, beside, open) = (
                    try await system.place(system.stored("real-2")), try await system.place(system.stored("real-2")),
                    try await system.place(system.stored("real-2"))
                )
                let ordered = try await system.appStore.sell { $0.appAccountToken = inside }
                let named = try await system.appStore.sell()
                if isProtected {
                    // The register knows a user of the tables once the user has posted.
                    let own = try await system.appStore.sell(ConfigurationFile.gems)
                    system.owe(own, to: "real-2")
                    try await system.submit(own, user: "real-2", wait: 20)
                }
                system.owe([ordered, named], to: "real-2")
                let proven = try await system.submit(ordered, user: "undefined", wait: 20)
                #expect(proven.state == "already_granted" && proven.reason == "owned_by_another_user")
                #expect(try await system.order(of: ordered) == "\(inside) order_token")
                try await system.submit(named, user: "undefined", order: beside, wait: 20)
                #expect(try await system.order(of: named) == "\(beside) named_order")

                // The gateway has signed a token of nobody: neither its body's user nor its body's order counts.
                func caller(_ user: String) throws -> Client {
                    Client(url: client.url, credential: try GatewayKey.token(user: user))
                }
                let (nobody, somebody) = (try caller("undefined"), try caller("real-3"))
                let signed = try await system.appStore.sell()
                let posted = try await nobody.post(
                    .init(userId: "real-3", orderId: open, signedTransaction: signed.signedTransaction), wait: 20)
                #expect(posted.state == "held" && posted.reason == "user_placeholder")
                #expect(posted.json["disregarded"] as? [String] == ["userId", "orderId"])
                #expect(try await nobody.receipt(posted.id).state == "held")
                #expect(try await somebody.receipt(posted.id).status == 404)
                #expect(try await nobody.get("/v1/users/undefined/purchases").status == 422)
                let refused = try await nobody.order(["productId": ConfigurationFile.coins])
                #expect(refused.status == 422 && refused.code == "user_placeholder" && refused.field == "userId")
                #expect(try await client.merge("undefined", into: "real-3").code == "user_placeholder")
                #expect(try await client.merge("real-3", into: "undefined").field == "into")
                system.owe(signed, to: "real-3")
                let own = try await somebody.post(
                    .init(userId: "undefined", signedTransaction: signed.signedTransaction), wait: 20)
                #expect(own.state == "granted" && own.transactions[0]["owner"] as? String == "you")
                #expect(try await system.isOpen(open))

                guard !isProtected else { return }
                try await system.command("users", "erase", "real-1", "--app", "game", "--yes")
                #expect(
                    try await system.texts("select details::text from receipts where id = '\(held.id)'") == ["{}"])
                let owner = try await system.texts(
                    "select user_id from grants where transaction_id = '\(sale.purchase.transactionId)'")
                system.owe(sale, to: try #require(owner.first))
            }
        }

        /// Goal: a token of zeros or ones names nobody (F10), and a token that the client library derives from the
        /// user's name is the user's where the app says so (F11): a stranger who shows the purchase first takes nothing.
        /// Method: two users buy with the same empty token, and nothing is disputed. Then the app derives its tokens by
        /// MD5: each user's purchase is posted by the other one after both have posted once.
        @Test func tokensThatAreNoneAndTokensOfAName() async throws {
            try await System.run { system in
                try system.configureGame { $0.accountTokens = .init(derivedFrom: "md5") }
                try await system.startAll()
                for token in ["00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"] {
                    for user in ["hello", "world"] {
                        let sale = try await system.appStore.sell { $0.appAccountToken = token }
                        system.owe(sale, to: user)
                        #expect(try await system.submit(sale, user: user, wait: 20).state == "granted", "\(token)")
                    }
                }
                #expect(try await system.count("select count(*) from granted_tokens") == 0)
                #expect(
                    try await system.texts("select user_id || ' ' || token from user_tokens order by 1")
                        == [
                            "hello 5d41402a-bc4b-2a76-b971-9d911017c592", "world 7d793037-a076-0186-574b-0282f2f435e7",
                        ])
                let sale = try await system.appStore.sell {
                    $0.appAccountToken = "5d41402a-bc4b-2a76-b971-9d911017c592"
                }
                system.owe(sale, to: "hello")
                let shown = try await system.submit(sale, user: "world", wait: 20)
                #expect(shown.state == "already_granted" && shown.transactions[0]["owner"] as? String == "another")
                #expect(try await system.order(of: sale) == "- user_token")
                #expect(
                    try await system.submit(sale, user: "hello", wait: 20).transactions[0]["owner"] as? String == "you")
                // What the library made of a name that nobody here has.
                let strange = try await system.appStore.sell { $0.appAccountToken = UUID().uuidString }
                let doubted = try await system.submit(strange, user: "world", wait: 20)
                #expect(doubted.state == "held" && doubted.reason == "foreign_token")
            }
        }

        /// Goal: a proof that everybody posts has one owner, one alarm that names the purchase and the number of users,
        /// and hardly costs a call at Apple (F20).
        /// Method: 60 users post the same signed transaction, and 60 the same receipt with a subscription, about which
        /// Apple is asked each time.
        @Test func aProofOfEverybody() async throws {
            try await System.run { system in
                try await system.startAll()
                let sale = try await system.appStore.sell()
                let period = try await system.appStore.sell(ConfigurationFile.pass) { $0.type = .autoRenewable }
                system.owe(sale, to: "first-1")
                system.owe(period, to: "first-1")
                #expect(try await system.submit(sale, user: "first-1", wait: 20).state == "granted")
                #expect(
                    try await system.submit(
                        .init(userId: "first-1", receipt: period.receipt), wait: 20
                    ).state == "granted")
                let posts = (0..<60).flatMap { user in
                    [
                        Client.Post(userId: "many-\(user)", signedTransaction: sale.signedTransaction),
                        Client.Post(userId: "many-\(user)", receipt: period.receipt),
                    ]
                }
                let answers = try await system.client.postBatch(posts)
                #expect(answers.count == posts.count && answers.allSatisfy(\.isAccepted))
                try await system.wait("every user to be told") {
                    try await system.count(
                        "select count(*) from receipts where reason = 'owned_by_another_user' and settled_at is not null"
                    ) == posts.count
                }
                #expect(try await system.count("select count(*) from grants") == 2)
                #expect(system.appStore.calls(about: sale).isEmpty, "Apple signed it")
                let asked = system.appStore.calls().count { $0.service == .verifyReceipt }
                // A message may come twice, and then a receipt that is asked about is asked about twice.
                #expect((1...16).contains(asked), "\(asked) calls of verifyReceipt")
                let lines = system.logs.flatMap { $0.text.split(separator: "\n") }.filter {
                    $0.contains("purchase.shared") && $0.contains(sale.purchase.transactionId)
                }
                #expect((1...2).contains(lines.count) && lines.allSatisfy { $0.contains("users") })
            }
        }
    }
}
