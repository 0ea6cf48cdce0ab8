import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// An app that moves in from a former system: this server knows what the former system gave, and a person can
    /// compare the two systems before this one gives anything. Real processes, over HTTP.
    @Suite struct MovingInTests {
        /// Goal: what was given elsewhere is never given again, and later purchases of its chain belong to its owner
        /// (rows 0c, 1 and 4). A refund of what was given elsewhere is told (P32).
        /// Method: the program imports purchases, a subscription and a token into a running system. Then they are
        /// posted by their users and by others, and the next period under another login. Purchases from before the
        /// cut-over that nobody imported are posted too.
        @Test func whatWasGivenElsewhereIsKnown() async throws {
            try await System.run { system in
                try system.configureGame { $0.grantFrom = Date.now.addingTimeInterval(-3600).formatted(.iso8601) }
                try await system.startAll()
                let old = Date.now.addingTimeInterval(-7200)
                let milliseconds = Int64(old.timeIntervalSince1970 * 1000)
                let coins = try await system.appStore.sell { $0.purchaseDate = milliseconds }
                let period = try await system.appStore.sell(ConfigurationFile.pass) {
                    $0.type = .autoRenewable
                    $0.purchaseDate = milliseconds
                }
                let token = UUID().uuidString
                try await system.movesIn(
                    "grants",
                    ["transactionId,userId,productId,purchasedAt"]
                        + [coins, period].map {
                            "\($0.purchase.transactionId),owner,\($0.purchase.productId),\(milliseconds)"
                        })
                try await system.movesIn("tokens", ["token,userId", "\(token),owner"])

                let own = try await system.submit(coins, user: "owner", wait: 20)
                #expect(own.status == 200 && own.state == "already_granted" && own.safeToFinish == true)
                #expect(own.reason == "imported" && own.transactions[0]["owner"] as? String == "you")
                let other = try await system.submit(coins, user: "other", wait: 20)
                // The owner is known from a file and not from Apple: for a day a person may look.
                #expect(other.state == "already_granted" && other.safeToFinish == false)
                #expect(other.reason == "owned_by_another_user")
                let legacy = try await system.submitReceipt(period, user: "owner", wait: 20)
                #expect(legacy.state == "already_granted" && legacy.safeToFinish == true, "\(legacy.text)")

                // The next period, and a purchase with the imported token.
                let renewal = try await system.appStore.sell(ConfigurationFile.pass) {
                    $0.type = .autoRenewable
                    $0.originalTransactionId = period.purchase.transactionId
                }
                system.owe(renewal, to: "owner")
                let next = try await system.submit(renewal, user: "other", wait: 20)
                #expect(next.state == "already_granted" && next.reason == "owned_by_another_user", "\(next.text)")
                let bought = try await system.appStore.sell { $0.appAccountToken = token }
                system.owe(bought, to: "owner")
                try await system.submit(bought, user: "other", wait: 20)

                // From before the cut-over and not imported: a consumable waits for a person, a subscription belongs to
                // its owner.
                let unknown = try await system.appStore.sell { $0.purchaseDate = milliseconds }
                let held = try await system.submit(unknown, user: "owner", wait: 20)
                #expect(held.state == "held" && held.reason == "before_cutover" && held.safeToFinish == true)
                let running = try await system.appStore.sell(ConfigurationFile.pass) {
                    $0.type = .autoRenewable
                    $0.purchaseDate = milliseconds
                }
                system.owe(running, promised: 0, to: "u2")
                let entitled = try await system.submit(running, user: "u2", wait: 20)
                #expect(entitled.state == "granted", "\(entitled.text)")
                #expect((entitled.transactions[0]["goods"] as? [Any])?.isEmpty == true)

                // S2-11: an order of the former system, with the number that its clients post.
                try await system.movesIn(
                    "orders",
                    [
                        "orderId,userId,productId,placedAt,priceMilliunits,currency",
                        "20261101-coins-7,owner,\(ConfigurationFile.coins),\(Int64.minutesAgo(5)),6000,CNY",
                    ])
                let ordered = try await system.appStore.sell()
                system.owe(ordered, to: "owner")
                let answer = try await system.submit(
                    .init(userId: "owner", orderId: "20261101-coins-7", signedTransaction: ordered.signedTransaction),
                    wait: 20)
                #expect(answer.state == "granted", "\(answer.text)")
                #expect(try await system.order(of: ordered)?.hasSuffix(" named_order") == true)

                // A person finds out that the purchase was given, and imports it as well.
                try await system.movesIn(
                    "grants",
                    [
                        "transactionId,userId,productId,purchasedAt",
                        "\(unknown.purchase.transactionId),owner,\(ConfigurationFile.coins),\(milliseconds)",
                    ])
                try await system.command("queue", "redrive", "--app", "game", "--state", "held")
                try await system.wait("what was imported to end") {
                    try await system.client.receipt(held.id).state == "already_granted"
                }

                // Apple takes back what the former system gave: the backend learns of it, and takes its own goods back.
                try system.appStore.store.refund(coins.purchase.transactionId)
                try await system.notify("REFUND", about: coins)
                try await system.wait("the refund to be told") {
                    try await system.client.events().contains { event in
                        let data = event["data"] as? [String: Any]
                        return event["type"] as? String == "purchase.revoked" && event["userId"] as? String == "owner"
                            && event["transactionId"] as? String == coins.purchase.transactionId
                            && data?["imported"] as? Bool == true && (data?["goods"] as? [Any])?.isEmpty == true
                    }
                }
            }
        }

        /// Goal: in shadow everything is decided and nothing is given, and a person sees where the two systems differ
        /// before this one goes live. Afterwards nothing that the former system gave is given again.
        /// Method: an app in shadow; purchases posted to it, some of which the other system gave, to the same user or
        /// to another; `shadow diff`; import, live by SIGHUP, redrive.
        @Test func fromShadowToLive() async throws {
            try await System.run { system in
                try system.configureGame { $0.mode = "shadow" }
                try await system.startAll()
                let sales = try await system.appStore.sell(3)
                var posts: [Client.Answer] = []
                for sale in sales { posts.append(try await system.submit(sale, user: "u1", wait: 20)) }
                for answer in posts {
                    #expect(answer.state == "held" && answer.reason == "shadow" && answer.safeToFinish == false)
                    #expect(answer.transactions.allSatisfy { $0["safeToFinish"] as? Bool == false })
                }
                #expect(try await system.client.events().isEmpty)

                // The former system gave the first to the same user, the second to another user, and missed the third.
                let theirs = { (sale: Sale, user: String) in
                    "\(sale.purchase.transactionId),\(user),\(ConfigurationFile.coins),\(sale.purchase.purchaseDate)"
                }
                let rows = zip(sales, ["u1", "u2"]).map(theirs)
                let header = "transactionId,userId,productId,purchasedAt"
                let file = try system.write([header] + rows, to: "theirs.csv")
                await #expect(throws: System.Failure.self) {
                    try await system.command("shadow", "diff", file, "--app", "game")
                }
                let all = zip(sales, ["u1", "u1", "u1"]).map(theirs)
                let agreed = try system.write([header] + all, to: "agreed.csv")
                let same = try await system.command("shadow", "diff", agreed, "--app", "game", "--json")
                #expect(same.contains(#""same":3"#), "\(same)")

                try await system.command(["import", "grants", file, "--app", "game"], as: nil)
                try system.configureGame { $0.mode = nil }
                try await system.reload()
                #expect(try await system.count("select count(*) from receipts where due_at < now()") == 0)
                try await system.command("queue", "redrive", "--app", "game", "--state", "held", "--reason", "shadow")
                // The configuration file says that goods are given from yesterday on, so the purchase that the former
                // system missed is granted.
                system.owe(sales[2], to: "u1")
                try await system.settleDebts()
                try await system.wait("the others to end") {
                    try await system.count("select count(*) from receipts where settled_at is null") == 0
                }
                for (post, expected) in zip(posts, ["imported", "owned_by_another_user", nil]) {
                    let answer = try await system.client.receipt(post.id)
                    #expect(answer.reason == expected, "\(answer.text)")
                    #expect(answer.safeToFinish == (expected != "owned_by_another_user"), "\(answer.text)")
                }
            }
        }
    }
}

extension System {
    /// Writes lines into a file of the test's own; returns its path.
    fileprivate func write(_ lines: [String], to name: String) throws -> String {
        let path = "\(directory)/\(name)"
        try (lines.joined(separator: "\n") + "\n").write(toFile: path, atomically: true, encoding: .utf8)
        return path
    }

    /// Imports as the schema's owner, twice: the second import changes nothing.
    fileprivate func movesIn(_ kind: String, _ lines: [String]) async throws {
        let path = try write(lines, to: "\(kind).csv")
        for words in [" imported, 0 already there", "0 imported, \(lines.count - 1) already there"] {
            let output = try await command(["import", kind, path, "--app", "game"], as: nil)
            #expect(output.contains(words), "\(output)")
        }
    }
}
