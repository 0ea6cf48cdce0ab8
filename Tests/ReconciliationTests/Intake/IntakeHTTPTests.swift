import AppStoreSimulator
import Crypto
import Encoding
import Foundation
import Purchases
import Service
import Support
import TestServers
import Testing

/// Goal: `POST /v1/receipts` and `GET /v1/receipts/{id}` give a client the right answers over real HTTP on a real
/// database, with the broker down all the time (B12). Method: requests in, answers and rows out; verdicts are written
/// as a worker would leave them.
@Suite(.migratedDatabase, .serialized) struct IntakeHTTPTests {
    private static func body(_ user: String = "u1", _ jws: String = IntakeFixture.signedTransaction()) -> String {
        #"{"userId":"\#(user)","signedTransaction":"\#(jws)"}"#
    }

    @Test(
        "no purchase is refused for its address: what no post can use is passed over and named",
        arguments: [
            ("?platform=ios", #"["?platform"]"#), ("?wait=soon", #"["?wait"]"#), ("?wait=-1", #"["?wait"]"#),
            ("?wait=0&wait=0", #"["?wait","?wait"]"#), ("?wait=0", nil), ("?", nil),
        ] as [(String, String?)])
    func address(_ query: String, _ ignored: String?) async throws {
        try await RunningIntake.run { intake in
            let answer = try await intake.send("POST", "/v1/receipts" + query, body: Self.body())
            #expect(answer.status == 202, "\(answer.text)")
            #expect(answer["ignored"]?.text == ignored)
        }
    }

    @Test("B12, S3-33: accepted without a broker, and the row is there")
    func accepted() async throws {
        try await RunningIntake.run { intake in
            let answer = try await intake.post(Self.body())
            #expect(answer.status == 202)
            #expect(answer["state"] == .string("received"))
            #expect(answer["safeToFinish"] == .bool(false))
            #expect(answer["transactions"] == .array([]))
            #expect(answer["ignored"] == nil)
            guard case .string(let id)? = answer["id"], case .string(let receivedAt)? = answer["receivedAt"],
                case .string(let due)? = answer["nextAttemptAt"]
            else { Issue.record("no id or times: \(answer.text)"); return }
            #expect(UUID(uuidString: id) != nil && id == id.lowercased())
            #expect(
                try Date.ISO8601FormatStyle(includingFractionalSeconds: true).parse(receivedAt).timeIntervalSinceNow
                    .magnitude < 60)
            #expect(due > receivedAt)
            #expect(
                try await intake.count("select count(*) from receipts where id = '\(id)' and state = 'received'") == 1)
            #expect(try await intake.count("select count(*) from payloads where receipt_id = '\(id)'") == 1)
            // GET returns the same answer as POST.
            let read = try await intake.get("/v1/receipts/\(id)")
            #expect(read.status == 200)
            #expect(read.json == answer.json)
        }
    }

    @Test("P5, S1-2: the same submission again is the same id and the current state, never an error")
    func again() async throws {
        try await RunningIntake.run { intake in
            let body = Self.body()
            let first = try await intake.post(body)
            let second = try await intake.post(body)
            #expect(second.status == 202)
            #expect(second["id"] == first["id"])
            guard case .string(let id)? = first["id"] else { return }
            try await intake.execute(
                """
                update receipts set state='rejected', reason='signature', settled_at=now(), due_at=null
                where id='\(id)'
                """
            )
            let third = try await intake.post(body)
            #expect(third.status == 200)
            #expect(third["id"] == first["id"])
            #expect(third["state"] == .string("rejected"))
            #expect(third["reason"] == .string("signature"))
            #expect(third["safeToFinish"] == .bool(false))
            #expect(third["nextAttemptAt"] == nil)
        }
    }

    @Test("S3-33: a hundred posts at once are one row, one tally and one id")
    func parallel() async throws {
        try await RunningIntake.run { intake in
            let body = Self.body("u-parallel")
            let answers = try await withThrowingTaskGroup(of: RunningIntake.Answer.self) { group in
                for _ in 0..<100 { group.addTask { try await intake.post(body) } }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            #expect(Set(answers.map(\.status)) == [202])
            #expect(Set(answers.map { $0["id"]?.text ?? "" }).count == 1)
            #expect(try await intake.count("select count(*) from receipts where user_id = 'u-parallel'") == 1)
            #expect(
                try await intake.count(
                    "select (select count(*) from receipts) - (select sum(received)::int8 from tallies)") == 0)
        }
    }

    @Test("A held receipt that is posted again becomes due, at most once a minute")
    func nudge() async throws {
        try await RunningIntake.run { intake in
            let body = Self.body("u-held")
            guard case .string(let id)? = try await intake.post(body)["id"] else { return }
            for (age, isDue) in [("10 seconds", 0), ("2 minutes", 1)] {
                try await intake.execute(
                    """
                    update receipts set state='held', reason='product_unknown', due_at=now() + interval '1 hour',
                      judged_at = now() - interval '\(age)' where id='\(id)'
                    """)
                let answer = try await intake.post(body)
                #expect(answer.status == 202)
                #expect(answer["state"] == .string("held"))
                #expect(
                    try await intake.count("select count(*) from receipts where id='\(id)' and due_at <= now()")
                        == isDue)
            }
        }
    }

    @Test("Unknown fields are stored with the submission and named, whatever is in them")
    func unknownFields() async throws {
        try await RunningIntake.run { intake in
            let answer = try await intake.post(
                #"{"userId":"u1","receipt":"QUJD","zone":{"a":[1,2.50,1e300,-0.0,"é😀\u0001"]},"#
                    + #""n":123456789012345678901234567890}"#
            )
            #expect(answer.status == 202)
            #expect(answer["ignored"] == .array([.string("zone"), .string("n")]))
            guard case .string(let id)? = answer["id"] else { return }
            #expect(
                try await intake.count(
                    """
                    select count(*) from receipts where id = '\(id)' and details->'n' = '123456789012345678901234567890'
                      and details#>>'{zone,a,4}' = E'é😀\\u0001'
                    """) == 1)
        }
    }

    @Test(
        "refusals over the wire, and nothing is stored",
        arguments: [
            (nil, #"{"userId":"u1","receipt":"QUJD"}"#, 401, "unauthenticated"),
            ("wrong", #"{"userId":"u1","receipt":"QUJD"}"#, 401, "unauthenticated"),
            (IntakeFixture.supportKey, #"{"userId":"u1","receipt":"QUJD"}"#, 403, "missing_scope"),
            (IntakeFixture.key, "{", 400, "not_json"),
            (IntakeFixture.key, #"{"userId":7.5,"receipt":"QUJD"}"#, 400, "wrong_type"),
            (IntakeFixture.key, #"{"userId":"u1","receipt":"Q"}"#, 400, "not_base64"),
            (IntakeFixture.key, #"{"userId":"u1","signedTransaction":"a"}"#, 400, "not_jws"),
            (IntakeFixture.key, #"{"userId":"u1"}"#, 422, "no_proof"),
            (IntakeFixture.key, #"{"receipt":"QUJD"}"#, 422, "no_user"),
            (IntakeFixture.key, #"{"userId":"u1","receipt":"QUJD","signedTransaction":"YQ.YQ.YQ"}"#, 422, "two_proofs"),
            (IntakeFixture.bothAppsKey, #"{"userId":"u1","receipt":"QUJD"}"#, 422, "no_app"),
            (IntakeFixture.key, #"{"appId":"other","userId":"u1","receipt":"QUJD"}"#, 403, "app_not_allowed"),
        ] as [(String?, String, Int, String)])
    func refusals(_ key: String?, _ body: String, _ status: Int, _ code: String) async throws {
        try await RunningIntake.run { intake in
            let before = try await intake.count("select count(*) from receipts")
            // The identity comes from the credential alone.
            let answer = try await intake.post(body, key: key, headers: [("X-User-Id", "u1"), ("X-Scopes", "intake")])
            #expect(answer.status == status)
            #expect(answer["code"] == .string(code))
            #expect(answer["safeToFinish"] == .bool(false))
            #expect(answer.headers["content-type"] == "application/problem+json")
            #expect((answer.headers["www-authenticate"] != nil) == (status == 401))
            #expect(try await intake.count("select count(*) from receipts") == before)
        }
    }

    @Test("Whose receipt: a key reads its apps, others get 404; so does nonsense")
    func reading() async throws {
        try await RunningIntake.run { intake in
            let posted = try await intake.post(
                #"{"appId":"other","userId":"u1","receipt":"QUJD"}"#, key: IntakeFixture.bothAppsKey)
            guard case .string(let id)? = posted["id"] else { Issue.record("\(posted.text)"); return }
            #expect(try await intake.get("/v1/receipts/\(id)", key: IntakeFixture.bothAppsKey).status == 200)
            #expect(
                try await intake.get("/v1/receipts/\(id.uppercased())", key: IntakeFixture.bothAppsKey).status == 200)
            for path in [
                "/v1/receipts/\(id)", "/v1/receipts/\(UUID().uuidString)", "/v1/receipts/x", "/v1/receipts/%00",
            ] {
                let answer = try await intake.get(path)
                #expect(answer.status == 404)
                #expect(answer["code"] == .string("not_found"))
            }
            #expect(try await intake.get("/v1/receipts/\(id)", key: nil).status == 401)
            #expect(try await intake.get("/v1/receipts/\(id)", key: IntakeFixture.backendKey).status == 403)
        }
    }

    @Test("S3-2: a gateway's token posts and reads for its own user only")
    func gatewayToken() async throws {
        let signer = P256.Signing.PrivateKey()
        let directory = URL.temporaryDirectory.appending(
            path: "makegood-gateway-\(UUID().uuidString)", directoryHint: .isDirectory)
        try FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: directory) }
        try signer.publicKey.pemRepresentation.write(
            to: directory.appending(path: "gateway.pem"), atomically: true, encoding: .utf8)
        func token(_ user: String) throws -> String {
            let header = Data(#"{"alg":"ES256"}"#.utf8).base64URL
            let claims = Data(
                #"{"iss":"gw","aud":"makegood","sub":"\#(user)","exp":\#(Int(Date().timeIntervalSince1970) + 60)}"#.utf8
            ).base64URL
            let signature = try signer.signature(for: Data("\(header).\(claims)".utf8)).rawRepresentation.base64URL
            return "\(header).\(claims).\(signature)"
        }
        try await RunningIntake.run(
            gatewayJWT: """
                gatewayJwt: {issuer: gw, audience: makegood, keys: [gateway.pem], scopes: [intake], apps: [game]}
                """, directory: directory
        ) { intake in
            let (one, two) = (try token("u-one"), try token("u-two"))
            let posted = try await intake.post(#"{"receipt":"QUJD"}"#, key: one)
            #expect(posted.status == 202)
            guard case .string(let id)? = posted["id"] else { return }
            #expect(try await intake.count("select count(*) from receipts where id='\(id)' and user_id='u-one'") == 1)
            #expect(try await intake.get("/v1/receipts/\(id)", key: one).status == 200)
            #expect(try await intake.get("/v1/receipts/\(id)", key: two).status == 404)
            #expect(try await intake.get("/v1/receipts/\(id)").status == 200)
            let forged = try await intake.post(#"{"receipt":"QUJD","userId":"u-two"}"#, key: one)
            #expect(forged.status == 403)
            #expect(forged["field"] == .string("userId"))
            #expect(try await intake.get("/v1/events", key: one).status == 403)
            #expect(try await intake.post(#"{"receipt":"QUJD"}"#, key: one + "x").status == 401)
        }
    }

    @Test("A big receipt waits apart from the others, unless it names an order or a transaction that is new here")
    func bigReceipts() async throws {
        try await RunningIntake.run { intake in
            try await intake.execute(
                """
                insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id,
                  quantity, purchased_at, facts)
                values ('big-known', 'other', 'Sandbox', 'big-known', 'coins', 1, '2026-03-01', '{}')
                """)
            let bytes = Lane.bulkBytesMin / 4 * 3
            for (more, length, lane) in [
                ("", bytes, "bulk"), (#","transactionId":"big-known""#, bytes, "bulk"),
                (#","transactionId":"big-new""#, bytes, "local"),
                (#","orderId":"\#(UUID().uuidString.lowercased())""#, bytes, "local"), ("", bytes - 3, "local"),
            ] {
                let receipt = Data((0..<length).map { _ in UInt8.random(in: 0...255) }).base64EncodedString()
                let answer = try await intake.post(
                    #"{"appId":"other","userId":"u-big","receipt":"\#(receipt)"\#(more)}"#,
                    key: IntakeFixture.bothAppsKey)
                guard case .string(let id)? = answer["id"] else {
                    Issue.record("\(answer.status) \(answer.text)")
                    continue
                }
                #expect(
                    try await intake.count("select count(*) from receipts where id = '\(id)' and lane = '\(lane)'")
                        == 1,
                    "\(more), \(length) bytes")
            }
        }
    }

    @Test("A big receipt that lists what was just bought and is new here does not wait behind those that come again")
    func bigReceiptsWithNews() async throws {
        let store = try AppStoreSimulator(.init(seed: 1), logger: .silent)
        func sell(_ count: Int, at date: Date) async throws -> [String] {
            var request = SaleRequest(app: VerifyLab.bundleID, productId: "coins")
            request.count = count
            request.receipts = false
            request.purchaseDate = Int64(date.timeIntervalSince1970 * 1000)
            return try await store.sell(request).map(\.purchase.transactionId)
        }
        let past = try await sell(100, at: Date(timeIntervalSinceNow: -2 * 86_400))
        let new = try await sell(1, at: .now)
        try await RunningIntake.run { intake in
            func waits(_ ids: [String], in lane: Lane) async throws -> Bool {
                let receipt = try store.receipt(ReceiptRequest(app: VerifyLab.bundleID, transactionIds: ids))
                #expect(receipt.utf8.count >= Lane.bulkBytesMin)
                let answer = try await intake.post(
                    #"{"appId":"other","userId":"u-\#(UUID())","receipt":"\#(receipt)"}"#,
                    key: IntakeFixture.bothAppsKey)
                guard case .string(let id)? = answer["id"] else {
                    Issue.record("\(answer.status) \(answer.text)")
                    return false
                }
                return try await intake.count(
                    "select count(*) from receipts where id::text = '\(id)' and lane = '\(lane.rawValue)'") == 1
            }
            #expect(try await waits(past, in: .bulk), "two days old: nobody waits for it")
            #expect(try await waits(past + new, in: .local))
            try await intake.execute(
                """
                insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id,
                  quantity, purchased_at, facts)
                values ('\(new[0])', 'other', 'Production', '\(new[0])', 'coins', 1, now(), '{}')
                """)
            #expect(try await waits(past + new, in: .bulk), "known")
        }
    }

    @Test("A granted receipt shows its goods and is answered 200")
    func granted() async throws {
        try await RunningIntake.run { intake in
            let body = Self.body("u-granted")
            guard case .string(let id)? = try await intake.post(body)["id"] else { return }
            try await intake.execute(
                """
                with t as (insert into transactions (transaction_id, app_id, environment, original_transaction_id,
                    product_id, quantity, purchased_at, facts)
                  values ('t-1', 'game', 'Sandbox', 't-1', 'com.example.game.coins6', 1, '2026-03-01', '{}')),
                g as (insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id,
                    product_id, quantity, goods, binding_source)
                  values ('t-1', 'k-1', 'game', 'Sandbox', 'u-granted', '\(id)', 'com.example.game.coins6', 1,
                    '[{"item":"coins","amount":6000}]', 'poster')),
                o as (insert into outcomes (receipt_id, transaction_id, state) values ('\(id)', 't-1', 'granted'))
                update receipts set state='granted', settled_at=now(), due_at=null where id='\(id)'
                """)
            let answer = try await intake.post(body)
            #expect(answer.status == 200)
            #expect(answer["safeToFinish"] == .bool(true))
            guard case .array(let list)? = answer["transactions"] else { return }
            #expect(
                list.first?.text
                    == #"{"transactionId":"t-1","originalTransactionId":"t-1","productId":"com.example.game.coins6","#
                    + #""quantity":1,"environment":"Sandbox","purchasedAt":"2026-03-01T00:00:00.000Z","#
                    + #""state":"granted","safeToFinish":true,"owner":"you","#
                    + #""goods":[{"item":"coins","amount":6000}],"#
                    + #""orderNumber":"\#(OrderID.ofPurchase("t-1", of: "game").text)","#
                    + #""sentence":\#(PlayerSentence(.granted, nil).json.text)}"#)
        }
    }

    @Test("More than 20 bare ids a day without a purchase: 429; a proof and a known question still pass")
    func questions() async throws {
        try await RunningIntake.run { intake in
            for index in 0..<20 {
                #expect(try await intake.post(#"{"userId":"u-asks","transactionId":"\#(index)"}"#).status == 202)
            }
            // A receipt that is not judged yet counts as one without a grant.
            #expect(try await intake.post(#"{"userId":"u-asks","transactionId":"20"}"#).status == 429)
            try await intake.execute(
                """
                update receipts set state='held', reason='possession_missing', due_at=now() + interval '1 hour'
                where user_id='u-asks'
                """)
            let refused = try await intake.post(#"{"userId":"u-asks","transactionId":"21"}"#)
            #expect(refused.status == 429)
            #expect(refused["code"] == .string("too_many_questions"))
            #expect(Int(refused.headers["retry-after"] ?? "") ?? 0 > 0)
            #expect(try await intake.post(#"{"userId":"u-asks","transactionId":"3"}"#).status == 202)
            #expect(try await intake.post(Self.body("u-asks")).status == 202)
            #expect(try await intake.post(#"{"userId":"u-other","transactionId":"21"}"#).status == 202)
            #expect(
                try await intake.post(#"{"userId":"u-asks","transactionId":"22"}"#, key: IntakeFixture.claimKey).status
                    == 202)
        }
    }

    @Test("What cannot be served is a problem document too")
    func routes() async throws {
        try await RunningIntake.run { intake in
            for (method, path, status, code) in [
                ("GET", "/", 404, "not_found"), ("GET", "/v2/receipts", 404, "not_found"),
                ("GET", "/v1/receipts", 405, "method_not_allowed"),
                ("DELETE", "/v1/receipts/x", 405, "method_not_allowed"),
                ("GET", "/v1/receipts/x?wait=nan", 400, "bad_parameter"),
            ] {
                let answer = try await intake.send(method, path, body: method == "POST" ? Self.body() : nil)
                #expect(answer.status == status, "\(method) \(path)")
                #expect(answer["code"] == .string(code))
                #expect(answer["status"] == .number(String(status)))
                #expect(answer.headers["cache-control"] == "no-store")
                if status == 405 { #expect(answer.headers["allow"]?.isEmpty == false) }
            }
        }
    }

    @Test("X-Request-Id and traceparent are taken over and returned, if they are plain; a bad trace is a new one")
    func correlation() async throws {
        try await RunningIntake.run { intake in
            let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            let answer = try await intake.post(Self.body(), headers: [("X-Request-Id", "r-1"), ("traceparent", trace)])
            #expect(answer.headers["x-request-id"] == "r-1")
            #expect(answer.headers["traceparent"] == trace)
            #expect(answer.headers["cache-control"] == "no-store")
            let long = String(repeating: "r", count: 200)
            let other = try await intake.post(Self.body(), headers: [("X-Request-Id", long), ("traceparent", "00-x")])
            let id = UUID(uuidString: other.headers["x-request-id"] ?? "")
            #expect(id != nil)
            let third = try await intake.post(Self.body())
            #expect(UUID(uuidString: third.headers["x-request-id"] ?? "") != id, "each request has its own")
            let begun = try #require(TraceContext(other.headers["traceparent"] ?? ""))
            #expect(!begun.isSampled)
            let without = try await intake.post(Self.body())
            #expect(without.headers["traceparent"] == nil)
        }
    }
}
