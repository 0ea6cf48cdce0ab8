import Crypto
import Encoding
import Foundation
import Logging
import Service
import TestServers
import Testing

@testable import Intake
@testable import Settings

/// Goal: ingest stores a notification that Apple signed once and answers 200, whatever its content. Ingest answers 401
/// to a notification that Apple did not sign, and stores nothing. A fault of ours is 503 (P24, P25, P44). Method: real
/// HTTP on a real database; notifications that a local authority signs as Apple does, each with one change; answers and
/// rows are looked at.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(4))) struct NotificationRoutesTests {
    private static let path = "/v1/apple/notifications"
    private let apple: TestApple

    init() throws { apple = try TestApple() }

    private func with(
        url: String? = nil, reconnectWait: Duration = .seconds(10), unknownAppsPerDay: Int = 1000,
        security: SecurityLog = .init(secret: [], logger: .silent), _ body: (RunningIntake) async throws -> Void
    ) async throws {
        try await RunningIntake.run(
            url: url, reconnectWait: reconnectWait, security: security, configuration: try apple.configuration(),
            unknownAppsPerDay: unknownAppsPerDay, body)
    }

    private static func body(_ jws: String) -> String { #"{"signedPayload":"\#(jws)"}"# }

    private func send(_ jws: String, to intake: RunningIntake) async throws -> RunningIntake.Answer {
        try await intake.send("POST", Self.path, key: nil, body: Self.body(jws))
    }

    private func stored(_ intake: RunningIntake) async throws -> Int {
        try await intake.count("select count(*) from notifications")
    }

    // MARK: Version 2

    @Test("P24: a notification is a committed row with what was verified in it; the same again is the same row")
    func storedOnce() async throws {
        try await with { intake in
            let notification = TestApple.notification {
                $0.subtype = "BILLING_RECOVERY"
                $0.transaction = try? apple.sign(TestApple.transaction())
                $0.renewal = try? apple.sign(TestApple.renewal())
            }
            let id = try #require(notification.id)
            let jws = try apple.sign(notification.json)
            let answer = try await send(jws, to: intake)
            #expect(answer.status == 200 && answer["outcome"] == .string("stored"), "\(answer.text)")
            #expect(answer["id"] == .string(id))
            let hash = SHA256.hash(data: Data(jws.utf8)).hexadecimal
            let rows = """
                select count(*) from notifications where id = '\(id)' and version = 2 and app_id = 'game'
                  and bundle_id = '\(TestApple.bundleID)' and environment = 'Production' and type = 'DID_RENEW'
                  and subtype = 'BILLING_RECOVERY' and transaction_id = '2000000000000002'
                  and original_transaction_id = '2000000000000001' and payload = '\(jws)'
                  and payload_sha256 = '\\x\(hash)' and state = 'received' and reason is null and attempt = 0
                  and abs(extract(epoch from signed_at) - \(notification.signedAt.timeIntervalSince1970)) < 0.01
                  and due_at > now() + interval '30 s' and settled_at is null and forward_due_at <= now()
                """
            #expect(try await intake.count(rows + " and repeats = 0") == 1)
            // Apple counts a slow answer as none, and sends the same again.
            for _ in 0..<2 {
                let again = try await send(jws, to: intake)
                #expect(again.status == 200 && again["outcome"] == .string("repeated") && again["id"] == answer["id"])
            }
            #expect(try await intake.count(rows + " and repeats = 2") == 1)
        }
    }

    @Test("P24: fifty of one notification at once are one row, each answered 200")
    func atOnce() async throws {
        try await with { intake in
            let notification = TestApple.notification()
            let jws = try apple.sign(notification.json)
            let answers = try await withThrowingTaskGroup(of: RunningIntake.Answer.self) { group in
                for _ in 0..<50 { group.addTask { try await send(jws, to: intake) } }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            #expect(answers.allSatisfy { $0.status == 200 })
            #expect(answers.count { $0["outcome"] == .string("stored") } == 1)
            #expect(
                try await intake.count(
                    "select count(*) from notifications where id = '\(notification.id ?? "")' and repeats = 49") == 1)
        }
    }

    @Test("P25, P44: whatever Apple signed is answered 200 and stored, for the app and environment that it names")
    func genuine() async throws {
        let sandbox = try apple.sign(TestApple.transaction(environment: "Sandbox"))
        let old = Date.now.addingTimeInterval(-2 * 365 * 86_400)
        let cases: [(String, (inout TestApple.Notification) -> Void, row: String)] = [
            (
                "the app's other build", { $0.bundleID = "maccatalyst.com.example.game" },
                "app_id = 'game' and state = 'received'"
            ),
            (
                "an environment that the app is not served in",
                { ($0.environment, $0.appAppleID, $0.transaction) = ("Sandbox", nil, sandbox) },
                """
                app_id = 'game' and environment = 'Sandbox' and state = 'received'
                  and transaction_id like '%2000000000000002'
                """
            ),
            (
                "production of an app that has the sandbox alone",
                { ($0.bundleID, $0.appAppleID) = ("com.example.trial", 7) },
                "app_id = 'trial' and environment = 'Production' and state = 'received' and forward_due_at is null"
            ),
            (
                "another app", { $0.bundleID = "com.example.unknown" },
                """
                app_id is null and bundle_id = 'com.example.unknown' and state = 'held' and reason = 'app_unknown'
                  and due_at > now() + interval '1 day' and forward_due_at is null
                """
            ),
            (
                "another number at Apple", { $0.appAppleID = 8 },
                "app_id is null and state = 'held' and reason = 'app_unknown'"
            ),
            ("no number in production", { $0.appAppleID = nil }, "app_id is null and state = 'held'"),
            (
                "an unknown type", { $0.type = "MOON_PHASE" },
                "app_id = 'game' and type = 'MOON_PHASE' and state = 'received'"
            ),
            (
                "an unknown subtype", { $0.subtype = "FULL" },
                "app_id = 'game' and subtype = 'FULL' and state = 'received'"
            ),
            ("no type", { $0.type = nil }, "app_id = 'game' and type = '' and state = 'received'"),
            (
                "the fifth object", { ($0.type, $0.object) = ("UNCLAIM_SEATS", "unclaimInfo") },
                "app_id = 'game' and type = 'UNCLAIM_SEATS'"
            ),
            (
                "a sixth object", { $0.object = "moonInfo" },
                "app_id = 'game' and bundle_id is null and state = 'received'"
            ),
            (
                "a sixth object of another app", { ($0.object, $0.bundleID) = ("moonInfo", "com.example.unknown") },
                "app_id is null and bundle_id is null and state = 'held'"
            ),
            ("no object", { $0.object = nil }, "app_id is null and environment is null and state = 'held'"),
            (
                "an unreadable object", { ($0.object, $0.more) = (nil, #","data":7"#) },
                "app_id is null and state = 'held'"
            ),
            (
                "no environment", { $0.environment = nil },
                "app_id = 'game' and environment is null and state = 'received'"
            ),
            (
                "a clock a day ahead", { $0.signedAt = .now.addingTimeInterval(86_400) },
                "app_id = 'game' and signed_at > now() + interval '23 h'"
            ),
            (
                "transaction of another app",
                { $0.transaction = try? apple.sign(TestApple.transaction(bundleID: "x.y")) },
                "app_id = 'game' and transaction_id is null"
            ),
            (
                "a transaction that is no JWS", { $0.transaction = "?" },
                "app_id = 'game' and transaction_id is null and state = 'received'"
            ),
            (
                "a renewal alone", { $0.renewal = try? apple.sign(TestApple.renewal()) },
                "transaction_id is null and original_transaction_id = '2000000000000001'"
            ),
            (
                "much that is new", { $0.more = #","new":"\#(String(repeating: "n", count: 120_000))""# },
                "app_id = 'game' and length(payload) > 150000"
            ),
        ]
        try await with { intake in
            for (name, change, condition) in cases {
                let notification = TestApple.notification(change)
                let answer = try await send(try apple.sign(notification.json), to: intake)
                #expect(answer.status == 200, "\(name): \(answer.text)")
                let sql = "select count(*) from notifications where id = '\(notification.id ?? "")' and \(condition)"
                #expect(try await intake.count(sql) == 1, "\(name)")
            }
            // It verifies at its own date, long after its leaf has ended.
            let late = TestApple.notification { $0.signedAt = old }
            let answer = try await send(try apple.signWithEndedLeaf(late.json), to: intake)
            #expect(answer.status == 200 && answer["outcome"] == .string("stored"), "\(answer.text)")
            // Without an id of Apple's the notification itself makes one.
            for id in [nil, "no-uuid"] {
                let jws = try apple.sign(TestApple.notification { $0.id = id }.json)
                let (first, second) = (try await send(jws, to: intake), try await send(jws, to: intake))
                #expect(first.status == 200 && first["outcome"] == .string("stored"), "\(first.text)")
                #expect(second["id"] == first["id"] && second["outcome"] == .string("repeated"))
            }
            // An address with a query, as somebody may have entered it at Apple.
            let jws = try apple.sign(TestApple.notification().json)
            let asked = try await intake.send("POST", Self.path + "?from=apple", key: nil, body: Self.body(jws))
            #expect(asked.status == 200)
        }
    }

    @Test("P18: what Apple did not sign is 401, what is no notification 400 or 413; nothing is stored, each is counted")
    func refused() async throws {
        let good = TestApple.notification().json
        let other = TestApple.notification { $0.bundleID = "com.example.unknown" }.json
        let ended = TestApple.notification().json
        let jws = try apple.sign(good)
        let deep = String(repeating: "[", count: 40) + String(repeating: "]", count: 40)
        let cases: [(String, body: String, status: Int, code: String, detail: String)] = [
            ("forged", Self.body(try apple.forge(good)), 401, "unauthenticated", "untrusted_root"),
            ("forged, of an unknown app", Self.body(try apple.forge(other)), 401, "unauthenticated", "untrusted_root"),
            ("changed signature", Self.body(try apple.signWrongly(good)), 401, "unauthenticated", "signature"),
            ("exchanged payload", Self.body(try apple.swap(other, for: good)), 401, "unauthenticated", "signature"),
            ("ended leaf", Self.body(try apple.signWithEndedLeaf(ended)), 401, "unauthenticated", "expired"),
            ("cut", Self.body(String(jws.dropLast(jws.utf8.count / 2))), 401, "unauthenticated", "malformed"),
            ("no JWS", Self.body("hello"), 401, "unauthenticated", "malformed"),
            ("empty", Self.body(""), 401, "unauthenticated", "malformed"),
            ("a transaction", Self.body(try apple.sign(TestApple.transaction())), 401, "unauthenticated", "malformed"),
            ("no body", "", 400, "not_json", ""), ("no JSON", jws, 400, "not_json", ""),
            ("a list", "[1]", 400, "not_json", ""), ("no payload", "{}", 400, "wrong_type", ""),
            ("a number", #"{"signedPayload":1}"#, 400, "wrong_type", ""),
            ("twice", #"{"signedPayload":"\#(jws)","signedPayload":"\#(jws)"}"#, 400, "duplicate_member", ""),
            ("nested", #"{"signedPayload":\#(deep)}"#, 400, "too_deep", ""),
            ("version 1 at the address of version 2", #"{"notification_type":"CANCEL"}"#, 400, "wrong_type", ""),
            ("huge", Self.body(String(repeating: "a", count: 300_000)), 413, "body_too_large", ""),
        ]
        try await with { intake in
            let before = try await stored(intake)
            for (name, body, status, code, detail) in cases {
                let answer = try await intake.send("POST", Self.path, key: nil, body: body)
                #expect(answer.status == status && answer["code"] == .string(code), "\(name): \(answer.text)")
                #expect(detail.isEmpty || answer.text.contains(detail), "\(name): \(answer.text)")
                #expect(answer.headers["content-type"] == "application/problem+json", "\(name)")
                if status == 400, code != "not_json" { #expect(answer["field"] == .string("signedPayload"), "\(name)") }
            }
            #expect(try await intake.send("GET", Self.path, key: nil).status == 405)
            #expect(try await stored(intake) == before)
        }
    }

    @Test("Data inside that does not hold on its own is stored all the same, because Apple signed the whole")
    func strangeInside() async throws {
        try await with { intake in
            for transaction in [
                try apple.forge(TestApple.transaction()), try apple.signWrongly(TestApple.transaction()),
            ] {
                let jws = try apple.sign(TestApple.notification { $0.transaction = transaction }.json)
                let answer = try await send(jws, to: intake)
                #expect(answer.status == 200 && answer["outcome"] == .string("stored"), "\(answer.text)")
            }
        }
    }

    @Test("A fault of ours is 503 with Retry-After; a forgery is 401 even then")
    func databaseGone() async throws {
        try await with(url: "postgresql://postgres@127.0.0.1:1/none", reconnectWait: .milliseconds(500)) { intake in
            let answer = try await send(try apple.sign(TestApple.notification().json), to: intake)
            #expect(answer.status == 503 && answer["code"] == .string("unavailable"), "\(answer.text)")
            #expect((1...5).contains(Int(answer.headers["retry-after"] ?? "") ?? 0))
            #expect(try await send(try apple.forge(TestApple.notification().json), to: intake).status == 401)
        }
    }

    // MARK: Floods

    @Test("A flood of forged notifications delays no genuine one, and is one line of the log for each reason")
    func flood() async throws {
        let lines = LogLines()
        try await with(security: SecurityLog(secret: [1], logger: lines.logger)) { intake in
            let before = try await stored(intake)
            let genuine = try (0..<20).map { _ in try apple.sign(TestApple.notification().json) }
            let forged = try (0..<300).map { number in
                let json = TestApple.notification().json
                return number.isMultiple(of: 2) ? try apple.forge(json) : try apple.signWrongly(json)
            }
            let answers = try await withThrowingTaskGroup(of: (Bool, Int).self) { group in
                for jws in forged { group.addTask { (false, try await send(jws, to: intake).status) } }
                for jws in genuine { group.addTask { (true, try await send(jws, to: intake).status) } }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            #expect(answers.allSatisfy { isGenuine, status in status == (isGenuine ? 200 : 401) })
            #expect(try await stored(intake) == before + genuine.count)
        }
        let noted = lines.take().map(\.metadata).filter { $0["security.event"] == "notification.refused" }
        #expect(noted.map { "\($0["security.reason"] ?? "")" }.sorted() == ["signature", "untrusted_root"])
    }

    @Test("Genuine notifications of unknown apps are stored up to a bound a day; known apps never reach it")
    func strangers() async throws {
        try await with(unknownAppsPerDay: 3) { intake in
            func stranger() throws -> String {
                try apple.sign(TestApple.notification { $0.bundleID = "com.example.stranger" }.json)
            }
            let before = try await stored(intake)
            let first = try stranger()
            // A repeated one takes no place.
            for (jws, outcome) in [
                (first, "app_unknown"), (first, "repeated"), (try stranger(), "app_unknown"),
                (try stranger(), "app_unknown"), (try stranger(), "over_bound"), (try stranger(), "over_bound"),
                (try apple.sign(TestApple.notification().json), "stored"),
                // Ours, with an object that is new.
                (try apple.sign(TestApple.notification { $0.object = "moonInfo" }.json), "stored"),
            ] {
                let answer = try await send(jws, to: intake)
                #expect(answer.status == 200 && answer["outcome"] == .string(outcome), "\(answer.text)")
            }
            #expect(try await stored(intake) == before + 5)
        }
        let count = DayCount(max: 1)
        let now = Date.now
        #expect(count.take(at: now) && !count.take(at: now) && count.take(at: now.addingTimeInterval(86_400)))
        let minute = OncePerMinute<String>()
        let start = ContinuousClock.now
        #expect(minute.take("a", at: start) == 1 && minute.take("b", at: start) == 1)
        #expect(minute.take("a", at: start + .seconds(59)) == nil && minute.take("a", at: start + .seconds(59)) == nil)
        #expect(minute.take("a", at: start + .seconds(60)) == 3)
    }
}
