import AppStoreSimulator
import Foundation
import Testing

extension EndToEnd {
    /// Purchases under an id that another purchase has.
    @Suite struct Collisions {
        /// Goal: Production and Sandbox number their transactions apart, so one id may be two purchases. The second one
        /// is held, and a person gives it, once, without a change of the first one; what is not another environment's
        /// can be given to nobody.
        /// Method: a purchase of Production, then Apple's signed data of the sandbox with the same id, by another user.
        /// `support give` in the wrong ways: before a post, in another app, for a dry run, for an app's purchase in the
        /// same environment, and a second time. Then both proofs are posted again, by their users and by a thief, and
        /// the second purchase is refunded.
        @Test func aPersonGivesWhatCollides() async throws {
            try await System.run { system in
                try system.configureGame {
                    $0.sandboxPurchases = "grant"
                    // The simulator sells no id in both environments, so its sandbox knows nothing of the second one.
                    $0.confirmWithApple = "never"
                }
                try await system.startAll()
                let store = system.appStore.store
                let sale = try await system.appStore.sell()
                let id = sale.purchase.transactionId
                func signed(isSandbox: Bool, for bundleID: String, _ productID: String) throws -> String {
                    // Genuine in every way, for the bundle id that is named.
                    let other = bundleID == "com.example.game" ? "puzzle" : "game"
                    var request = ForgeryRequest(kind: .wrongBundle, app: other, productId: productID)
                    request.transactionId = id
                    request.bundleId = bundleID
                    request.environment = isSandbox ? .sandbox : .production
                    return try store.forge(request)
                }
                func give(_ app: String, to user: String, _ more: String...) async throws -> String {
                    try await system.command(
                        ["support", "give", "--app", app, "--transaction", id, "--user", user, "--because", "ticket 9"]
                            + more)
                }
                func refusal(_ app: String, to user: String) async -> String {
                    let failure = await #expect(throws: System.Failure.self) { try await give(app, to: user) }
                    return failure?.description ?? ""
                }
                #expect(await refusal("game", to: "u2").contains("nobody has posted it"))

                system.owe(sale, to: "u1")
                #expect(try await system.submit(sale, user: "u1", wait: 20).state == "granted")
                let sandbox = Client.Post(
                    userId: "u2",
                    signedTransaction: try signed(isSandbox: true, for: "com.example.game", ConfigurationFile.gems))
                let held = try await system.submit(sandbox, wait: 20)
                #expect(held.state == "held" && held.reason == "id_collision", "\(held.text)")
                #expect(held.safeToFinish == false && !held.text.contains("coins"), "nothing of the other purchase")
                let elsewhere = Client.Post(
                    appId: "puzzle", userId: "u4",
                    signedTransaction: try signed(isSandbox: false, for: "com.example.puzzle", ConfigurationFile.riddle)
                )
                let stuck = try await system.submit(elsewhere, wait: 20)
                #expect(stuck.state == "held" && stuck.reason == "id_collision", "\(stuck.text)")
                #expect(await refusal("puzzle", to: "u4").contains("it can be given to nobody"))
                #expect(try await give("game", to: "u2", "--dry-run").contains("nothing stands against it"))
                #expect(try await system.count("select count(*) from support_decisions") == 0)

                system.owe("Sandbox/\(id)", of: ConfigurationFile.gems, in: "Sandbox", to: "u2")
                #expect(try await give("game", to: "u2").contains("a worker gives it"))
                try await system.wait("what was held to be given") {
                    try await system.client.receipt(held.id).state == "granted"
                }
                let given = try await system.client.receipt(held.id)
                #expect(given.safeToFinish == true && given.transactions.count == 1, "\(given.text)")
                #expect(given.transactions.first?["transactionId"] as? String == id)
                #expect(given.transactions.first?["environment"] as? String == "Sandbox")
                #expect(given.transactions.first?["productId"] as? String == ConfigurationFile.gems)
                #expect(await refusal("game", to: "u3").contains("it is granted already"))

                #expect(try await system.submit(sandbox, wait: 20).id == held.id)
                var copy = sandbox
                copy.userId = "thief"
                let stolen = try await system.submit(copy, wait: 20)
                #expect(
                    stolen.state == "already_granted" && stolen.reason == "owned_by_another_user", "\(stolen.text)")
                #expect(stolen.transactions.allSatisfy { $0["goods"] == nil })
                let first = try await system.submit(sale, user: "u1", wait: 20)
                #expect(first.state == "granted" && first.transactions.count == 1)
                #expect(try await system.client.receipt(stuck.id).state == "held")

                try await system.notify(refund(of: try #require(sandbox.signedTransaction), in: system))
                try await system.wait("the refund to be told") {
                    try await system.client.events().contains {
                        $0["type"] as? String == "purchase.revoked" && $0["transactionId"] as? String == "Sandbox/\(id)"
                    }
                }
                #expect(try await system.texts("select transaction_id from revocations") == ["Sandbox/\(id)"])
                #expect(
                    try await system.texts("select transaction_id || ' ' || user_id from grants order by 1")
                        == ["\(id) u1", "Sandbox/\(id) u2"])
            }
        }

        /// A refund of what this data sold in the sandbox.
        private func refund(of jws: String, in system: System) throws -> AppleNotice {
            let part = jws.split(separator: ".")[1].replacing("-", with: "+").replacing("_", with: "/")
            let padded = String(part) + String(repeating: "=", count: (4 - part.count % 4) % 4)
            let bytes = try #require(Data(base64Encoded: padded))
            var payload = try #require(try JSONSerialization.jsonObject(with: bytes) as? [String: Any])
            let now = Int64(Date.now.timeIntervalSince1970 * 1000)
            payload["revocationDate"] = now
            payload["revocationReason"] = 0
            payload["signedDate"] = now
            let store = system.appStore.store
            let refunded = try store.sign(Array(JSONSerialization.data(withJSONObject: payload)))
            let id = UUID().uuidString.lowercased()
            let notification: [String: Any] = [
                "notificationType": "REFUND", "notificationUUID": id, "version": "2.0", "signedDate": now,
                "data": [
                    "bundleId": "com.example.game", "environment": "Sandbox", "signedTransactionInfo": refunded,
                ],
            ]
            return AppleNotice(
                id: id, signedPayload: try store.sign(Array(JSONSerialization.data(withJSONObject: notification))))
        }
    }
}
