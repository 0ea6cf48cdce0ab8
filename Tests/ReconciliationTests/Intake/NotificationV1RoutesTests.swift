import Encoding
import Foundation
import Logging
import Service
import TestServers
import Testing

@testable import Intake
@testable import Settings

/// Goal: of version 1, which is not signed, ingest stores only notifications with the app's shared secret, once, and
/// without the secret (S3-48). Method: real HTTP on a real database, bodies as Apple writes them with one change each.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(4))) struct NotificationV1RoutesTests {
    private static let path = "/v1/apple/notifications/v1"
    private let apple: TestApple

    init() throws { apple = try TestApple() }

    private func with(
        security: SecurityLog = .init(secret: [], logger: .silent), _ body: (RunningIntake) async throws -> Void
    ) async throws {
        try await RunningIntake.run(security: security, configuration: try apple.configuration(), body)
    }

    /// - Parameter password: nil: there is none.
    private static func body(
        type: String = "DID_RENEW", password: String? = TestApple.secret, bundleID: String = TestApple.bundleID,
        environment: String = "PROD", receipt: String = "QUJD", purchasedAt: Int = 1_779_000_000_000
    ) -> String {
        let secret = password.map { #""password":"\#($0)","# } ?? ""
        return #"{"notification_type":"\#(type)",\#(secret)"environment":"\#(environment)","bid":"\#(bundleID)","#
            + #""original_transaction_id":1000000000000001,"auto_renew_product_id":"s","unified_receipt":"#
            + #"{"environment":"Production","status":0,"latest_receipt":"\#(receipt)","latest_receipt_info":"#
            + #"[{"product_id":"s","transaction_id":"2","original_transaction_id":"1","#
            + #""purchase_date_ms":"\#(purchasedAt)"}]}}"#
    }

    private func send(_ body: String, to intake: RunningIntake) async throws -> RunningIntake.Answer {
        try await intake.send("POST", Self.path, key: nil, body: body)
    }

    /// The answer to a head whose sender waits to be asked for the body.
    private func announce(_ bytes: Int, to intake: RunningIntake) async throws -> String {
        try await RawConnection.exchange(
            intake.port,
            """
            POST \(Self.path) HTTP/1.1\r
            Host: localhost\r
            Content-Length: \(bytes)\r
            Expect: 100-continue\r
            \r

            """)
    }

    @Test("it is stored once, without the password; a retry is the same row, another notification another one")
    func stored() async throws {
        try await with { intake in
            let body = Self.body()
            let first = try await send(body, to: intake)
            #expect(first.status == 200 && first["outcome"] == .string("stored"), "\(first.text)")
            guard case .string(let id)? = first["id"] else { Issue.record("no id"); return }
            #expect(
                try await intake.count(
                    """
                    select count(*) from notifications where id = '\(id)' and version = 1 and app_id = 'game'
                      and environment = 'Production' and type = 'DID_RENEW' and transaction_id is null
                      and original_transaction_id = '1000000000000001' and signed_at is null and state = 'received'
                      and payload not like '%\(TestApple.secret)%' and payload not like '%password%'
                      and (payload::jsonb -> 'unified_receipt' ->> 'latest_receipt') = 'QUJD'
                      and payload_sha256 = sha256(payload::bytea) and forward_due_at is not null
                    """) == 1)
            let again = try await send(body, to: intake)
            #expect(again["id"] == first["id"] && again["outcome"] == .string("repeated"), "\(again.text)")
            var ids: Set = [id]
            for other in [
                Self.body(type: "CANCEL"), Self.body(receipt: "QUJE"), Self.body(environment: "Sandbox"),
                Self.body(purchasedAt: 1_779_000_000_001), Self.body(type: "SOMETHING_NEW"),
            ] {
                let answer = try await send(other, to: intake)
                #expect(answer.status == 200 && answer["outcome"] == .string("stored"), "\(answer.text)")
                if case .string(let id)? = answer["id"] { ids.insert(id) }
            }
            #expect(ids.count == 6)
            #expect(try await intake.count("select count(*) from notifications where environment = 'Sandbox'") == 1)
        }
    }

    @Test("a wrong password and an unknown app are 401, an app without a secret is 503, what is no notification is 400")
    func refused() async throws {
        let lines = LogLines()
        let body = Self.body()
        let number = body.replacing(#""\#(TestApple.secret)""#, with: "1")
        let longer = Self.body(password: TestApple.secret + "x")
        let empty = Self.body(password: "")
        let cases: [(String, body: String, status: Int, word: String)] = [
            ("wrong", Self.body(password: "guess"), 401, "password"), ("longer", longer, 401, "password"),
            ("empty", empty, 401, "password"), ("missing", Self.body(password: nil), 401, "password"),
            ("a number", number, 401, "password"),
            ("no secret here", Self.body(bundleID: "com.example.trial"), 503, "unavailable"),
            ("unknown app", Self.body(bundleID: "com.example.unknown"), 401, "app_unknown"),
            ("no JSON", "hello", 400, "not_json"), ("a list", "[]", 400, "not_json"),
            ("no type", #"{"bid":"com.example.game"}"#, 400, "notification_type"),
            ("no app", #"{"notification_type":"CANCEL"}"#, 400, #""field":"bid""#),
            ("twice", "{\(body.dropFirst().dropLast()),\(body.dropFirst())", 400, "duplicate_member"),
            ("version 2", #"{"signedPayload":"a.b.c"}"#, 400, "notification_type"),
        ]
        try await with(security: SecurityLog(secret: [1], logger: lines.logger)) { intake in
            let before = try await intake.count("select count(*) from notifications")
            for (name, body, status, word) in cases {
                let answer = try await send(body, to: intake)
                #expect(answer.status == status && answer.text.contains(word), "\(name): \(answer.text)")
                #expect(!answer.text.contains(TestApple.secret))
                #expect((answer.headers["retry-after"] != nil) == (status == 503), "\(name)")
            }
            let huge = try await announce(8 << 20 | 1, to: intake)
            #expect(huge.hasPrefix("HTTP/1.1 413") && huge.contains("body_too_large"), "\(huge)")
            let short = Self.body(receipt: "TE9ORw")
            let long = short + String(repeating: " ", count: 2 << 20)
            let stored = try await send(long, to: intake)
            #expect(stored["outcome"] == .string("stored"), "\(stored.status) \(stored.text)")
            #expect(try await intake.count("select count(*) from notifications") == before + 1)
        }
        let noted = lines.take().map(\.metadata).filter { $0["security.event"] == "notification.refused" }
        #expect(
            noted.map { "\($0["security.reason"] ?? "")" }.sorted() == ["app_unknown", "no_secret", "password"])
        let secretless = noted.first { $0["security.reason"] == "no_secret" }
        #expect(secretless?["setting"] == "verifyReceipt.sharedSecret" && secretless?["app.id"] == "trial")
    }

    @Test(
        "where no app has a secret, nothing of a body is read: whatever it is, it is 503, and the log names the setting"
    )
    func noSecretAtAll() async throws {
        let lines = LogLines()
        let security = SecurityLog(secret: [1], logger: lines.logger)
        // No app of the suite's usual configuration has one.
        try await RunningIntake.run(security: security) { intake in
            let unread = try await announce(100, to: intake)
            #expect(unread.hasPrefix("HTTP/1.1 503"), "\(unread)")
            for body in [Self.body(), Self.body(bundleID: "com.example.unknown"), "hello"] {
                let answer = try await send(body, to: intake)
                #expect(answer.status == 503 && answer.headers["retry-after"] != nil, "\(answer.text)")
            }
        }
        let noted = lines.take().map(\.metadata).filter { $0["security.event"] == "notification.refused" }
        #expect(noted.map { $0["security.reason"] } == ["no_secret"])
        #expect(noted.first?["setting"] == "verifyReceipt.sharedSecret" && noted.first?["app.id"] == nil)
    }
}
