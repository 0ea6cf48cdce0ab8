import AppStoreSimulator
import Foundation
import Purchases
import Testing

extension EndToEnd {
    /// Bad input, case by case, against one running system. What ingest refuses is not stored.
    @Suite(.serialized, .system) struct Authentication {
        private let system = System.current

        /// Goal: a post with no key or a wrong one is answered 401, and the answer says how to authenticate.
        /// Method: a good post without credentials, with a wrong key, with a key that is cut, and with the name of
        /// another scheme. Each is answered 401 with a challenge and `safeToFinish: false`, and nothing is stored.
        @Test func noOrWrongKeyIs401() async throws {
            try await refusing { client in
                for credential in [nil, "wrong", String(ConfigurationFile.Caller.gateway.rawValue.dropLast()), "a.b.c"]
                {
                    let answer = try await Client(url: client.url, credential: credential).post(try await good())
                    #expect(answer.status == 401)
                    #expect(answer.code == "unauthenticated")
                    #expect(answer.header("www-authenticate")?.hasPrefix("Bearer") == true)
                    #expect(answer.safeToFinish == false)
                }
            }
        }

        /// Goal: a key that lacks the scope or the app is answered 403.
        /// Method: the backend's key posts, the gateway's reads the feed, the key of `game` posts for `puzzle`.
        @Test func missingScopeAndForeignAppAre403() async throws {
            try await refusing { client in
                var post = try await good()
                let missing = try await client.with(.backend).post(post)
                #expect(missing.status == 403)
                #expect(missing.code == "missing_scope")
                #expect(try await client.get("/v1/events").status == 403)
                post.appId = "puzzle"
                let foreign = try await client.with(.game).post(post)
                #expect(foreign.status == 403)
                #expect(foreign.code == "app_not_allowed")
                #expect(foreign.field == "appId")
            }
        }

        /// Goal: a body that is no JSON object is answered 400; a field of the wrong type is answered 400, and the
        /// answer names the field.
        /// Method: texts that are no JSON, JSON that is no object, and one wrong type for each field.
        @Test func notJSONAndWrongTypesAre400() async throws {
            try await refusing { client in
                for body in ["", "{", "not json", "[]", "\"text\"", "{\"userId\":\"u1\"}}", "\u{feff}[]", "null"] {
                    let answer = try await client.postBody(Data(body.utf8))
                    #expect(answer.status == 400, "\(body)")
                    #expect(answer.code == "not_json", "\(body)")
                    #expect(answer.safeToFinish == false)
                }
                for (field, value) in [
                    ("appId", "1.5"), ("userId", #"{"id": "u1"}"#), ("orderId", "[]"), ("signedTransaction", "true"),
                    ("receipt", "7"),
                    ("transactionId", "2000000000000001.0"), ("originalTransactionId", "{}"),
                ] {
                    let answer = try await client.postBody(Data("{\"\(field)\": \(value)}".utf8))
                    #expect(answer.status == 400, "\(field): \(value)")
                    #expect(answer.code == "wrong_type", "\(field): \(value)")
                    #expect(answer.field == field, "\(field): \(value)")
                }
            }
        }

        /// Goal: a post that names nobody to give to, or that carries two proofs or none, is answered 422.
        /// Method: neither user nor order, two different proofs, neither proof nor id; each has its own code.
        @Test func incompletePostsAre422() async throws {
            try await refusing { client in
                let sale = try await system.appStore.sell()
                for (code, post) in [
                    ("no_user", Client.Post(signedTransaction: sale.signedTransaction)),
                    (
                        "two_proofs",
                        Client.Post(userId: "u1", signedTransaction: sale.signedTransaction, receipt: sale.receipt)
                    ),
                    ("no_proof", Client.Post(userId: "u1")),
                    ("no_app", Client.Post(appId: nil, userId: "u1", signedTransaction: sale.signedTransaction)),
                ] {
                    let answer = try await client.post(post)
                    #expect(answer.status == 422, "\(code)")
                    #expect(answer.code == code)
                    #expect(answer.safeToFinish == false)
                }
            }
        }

        /// Goal: a body over the limit (8 MiB by default) is 413, and the answer names limit and field.
        /// Method: bodies of one byte more than 8 MiB and of 20 MiB; the answer comes before most of the body was sent.
        @Test func aBodyOverTheLimitIs413() async throws {
            try await refusing { client in
                for bytes in [8_388_609, 20 << 20] {
                    let answer = try await client.postSlowly(
                        Data(repeating: UInt8(ascii: "A"), count: bytes), over: .seconds(5))
                    #expect(answer.status == 413)
                    #expect(answer.code == "body_too_large")
                    #expect(answer.field == "body" && answer.json["limit"] as? String == "request.bodyBytes")
                }
            }
        }

        /// Goal: a proof that is not base64, or does not have the shape of a JWS, is answered 400, and the answer names
        /// the field; so is U+0000.
        /// Method: receipts and signed transactions with one misspelling each.
        @Test func proofsThatAreMisspeltAre400() async throws {
            try await refusing { client in
                let sale = try await system.appStore.sell()
                for receipt in ["not base64!", "A", "AAAA=AAA", "AA==A", "+_AA", "Ä"] {
                    let answer = try await client.post(.init(userId: "u1", receipt: receipt))
                    #expect(answer.status == 400, "\(receipt)")
                    #expect(answer.code == "not_base64", "\(receipt)")
                    #expect(answer.field == "receipt")
                }
                let parts = sale.signedTransaction.split(separator: ".").map(String.init)
                for jws in [
                    parts[0], "\(parts[0]).\(parts[1])", "\(sale.signedTransaction).more", "a b.c.d",
                    "\(parts[0])=.\(parts[1]).\(parts[2])", "..",
                ] {
                    let answer = try await client.post(.init(userId: "u1", signedTransaction: jws))
                    #expect(answer.status == 400)
                    #expect(answer.code == "not_jws")
                    #expect(answer.field == "signedTransaction")
                }
                let zero = try await client.postBody(Data(#"{"userId": "u\u0000", "transactionId": "1"}"#.utf8))
                #expect(zero.status == 400)
                #expect(zero.code == "zero_character")
            }
        }

        /// Goal: unknown fields are stored with the submission, and the answer names them: a newer app loses nothing,
        /// and a typo cannot hide.
        /// Method: a good post with two unknown fields is granted, its answer names both in `ignored`, and the row
        /// holds them.
        @Test func unknownFieldsAreStoredAndNamed() async throws {
            let sale = try await system.appStore.sell()
            system.owe(sale, to: "u1")
            let body =
                #"{"appId": "game", "userId": "u1", "signedTransaction": "\#(sale.signedTransaction)", "#
                + #""tragnsactionId": "1", "mood": {"is": ["good", 1.50]}}"#
            let answer = try await system.client.postBody(Data(body.utf8), wait: 20)
            #expect(answer.state == "granted")
            #expect(Set(answer.json["ignored"] as? [String] ?? []) == ["tragnsactionId", "mood"])
            let stored = try await system.texts(
                """
                select concat_ws(' ', details->>'tragnsactionId', details->'mood'->'is'->>1)
                from receipts where id = '\(answer.id)'
                """
            )
            #expect(stored == ["1 1.50"])
        }

        /// Goal: an unknown receipt id, a malformed one and one of another app's receipt are all answered 404, so that
        /// nobody can find out which ids exist.
        /// Method: GET with each; the receipt's own key reads it.
        @Test func strangersReceiptsAre404() async throws {
            let sale = try await system.appStore.sell(ConfigurationFile.riddle, app: "puzzle")
            system.owe(sale, to: "u1")
            let answer = try await system.submit(sale, user: "u1", app: "puzzle", wait: 20)
            let client = try system.client
            #expect(try await client.receipt(answer.id).state == "granted")
            for id in [UUID().uuidString, "nonsense", "%00", "1"] {
                #expect(try await client.receipt(id).status == 404, "\(id)")
            }
            #expect(try await client.with(.game).receipt(answer.id).status == 404)
        }

        /// Goal: a gateway's token speaks for its user and nobody else.
        /// Method: a JWT of u1 posts without userId and is granted to u1; the same token with another userId is 403 and
        /// names the field; an expired one, one for another audience and one whose signature is cut are 401; u2's token
        /// does not see u1's receipt.
        @Test func aGatewayTokenSpeaksForItsUser() async throws {
            let client = try system.client
            func caller(_ token: String) -> Client { Client(url: client.url, credential: token) }
            let sale = try await system.appStore.sell()
            system.owe(sale, to: "jwt-1")
            let own = caller(try GatewayKey.token(user: "jwt-1"))
            let answer = try await own.post(.init(signedTransaction: sale.signedTransaction), wait: 20)
            #expect(answer.state == "granted")
            try await refusing { _ in
                let other = try await own.post(.init(userId: "jwt-2", signedTransaction: sale.signedTransaction))
                #expect(other.status == 403)
                #expect(other.code == "other_user")
                #expect(other.field == "userId")
                for token in [
                    try GatewayKey.token(user: "jwt-1", validFor: -120),
                    try GatewayKey.token(user: "jwt-1", audience: "somebody-else"),
                    String(try GatewayKey.token(user: "jwt-1").dropLast(2)),
                ] {
                    #expect(
                        try await caller(token).post(.init(signedTransaction: sale.signedTransaction)).status == 401)
                }
            }
            #expect(try await own.receipt(answer.id).state == "granted")
            #expect(try await caller(GatewayKey.token(user: "jwt-2")).receipt(answer.id).status == 404)
        }

        /// Goal: a wrong method, path or parameter is the caller's error and never ours.
        /// Method: methods and paths that do not exist, waits and cursors that are no numbers.
        @Test func whatDoesNotExistIsTheCallersError() async throws {
            try await refusing { client async throws in
                #expect(try await client.get("/v1/receipts").status == 405)
                #expect(try await client.get("/v2/receipts").status == 404)
                #expect(try await client.get("/v1/receipts/\(UUID().uuidString)?wait=soon").status == 400)
                #expect(try await client.with(.backend).get("/v1/events?after=yesterday").status == 400)
                #expect(try await client.with(.backend).get("/v1/events?limit=0").status == 400)
            }
        }

        private func good() async throws -> Client.Post {
            Client.Post(userId: "u1", signedTransaction: try await system.appStore.sell().signedTransaction)
        }

        /// Checks that `body` stores no receipt.
        private func refusing(_ body: (Client) async throws -> Void) async throws {
            let before = try await system.count("select count(*) from receipts")
            try await body(try system.client)
            #expect(try await system.count("select count(*) from receipts") == before)
        }
    }
}

/// One running system for a whole suite: `@Suite(.system)`; the tests read it as `System.current`.
struct SystemTrait: SuiteTrait, TestScoping {
    func provideScope(
        for test: Test, testCase: Test.Case?, performing function: @concurrent @Sendable () async throws -> Void
    ) async throws {
        try await System.run { system in
            try await system.startAll()
            try await System.$scoped.withValue(system) { try await function() }
        }
    }
}

extension Trait where Self == SystemTrait {
    static var system: Self { Self() }
}

extension System {
    @TaskLocal fileprivate static var scoped: System?

    static var current: System {
        guard let scoped else { preconditionFailure("the suite lacks the trait .system") }
        return scoped
    }
}
