import Crypto
import Encoding
import Foundation
import TestServers
import Testing

/// Goal: the data of an app or of a session is not open to others. Keys belong to apps: one app's key neither posts nor
/// reads for another. The session string of a stored record is a secret that is not ours (S0-1, S0-11). Method: real
/// HTTP, then the rows as they are in the database.
@Suite(.migratedDatabase, .serialized) struct IntakeOwnershipTests {
    private static let otherKey = "key-of-the-other-app"

    private static func run(_ body: (RunningIntake) async throws -> Void) async throws {
        try await RunningIntake.run(
            access: IntakeFixture.entry("other", otherKey, "intake, claim, events", "other"), body)
    }

    private static func body(_ app: String?, _ proof: String = IntakeFixture.signedTransaction()) -> String {
        let app = app.map { #""appId":"\#($0)","# } ?? ""
        return #"{\#(app)"userId":"u1","signedTransaction":"\#(proof)"}"#
    }

    // MARK: Apps

    @Test("A key posts for its own app only: 403, as for an app that does not exist, and nothing is stored")
    func posting() async throws {
        try await Self.run { intake in
            let before = try await intake.count("select count(*) from receipts")
            for (key, app) in [
                (IntakeFixture.key, "other"), (IntakeFixture.claimKey, "other"), (Self.otherKey, "game"),
                (Self.otherKey, "Other"), (Self.otherKey, "other\u{301}"), (Self.otherKey, "no-such-app"),
                (Self.otherKey, "*"), (IntakeFixture.bothAppsKey, "no-such-app"),
            ] {
                let answer = try await intake.post(Self.body(app), key: key)
                #expect(answer.status == 403, "\(app)")
                #expect(answer["code"] == .string("app_not_allowed"))
                #expect(answer["field"] == .string("appId"))
                #expect(answer["safeToFinish"] == .bool(false))
                #expect(!answer.text.contains(app) || app == "*")
            }
            #expect(try await intake.count("select count(*) from receipts") == before)
            // If a body names no app, a key with one app means that app; if a body names two apps, neither counts.
            #expect(try await intake.post(Self.body(nil), key: Self.otherKey).status == 202)
            let twice = #"{"appId":"other","appId":"game","userId":"u1","receipt":"QUJD"}"#
            #expect(try await intake.post(twice, key: Self.otherKey).status == 400)
            #expect(
                try await intake.count("select count(*) from receipts where app_id = 'other'")
                    == intake.count("select count(*) from receipts") - before)
        }
    }

    @Test("A key reads its own app's receipts: another's are 404, byte for byte as one that does not exist")
    func reading() async throws {
        try await Self.run { intake in
            let proof = IntakeFixture.signedTransaction()
            guard case .string(let game)? = try await intake.post(Self.body("game", proof))["id"],
                case .string(let other)? = try await intake.post(Self.body("other", proof), key: Self.otherKey)["id"]
            else {
                Issue.record("not accepted")
                return
            }
            #expect(game != other)
            for (key, own, foreign) in [(IntakeFixture.key, game, other), (Self.otherKey, other, game)] {
                #expect(try await intake.get("/v1/receipts/\(own)", key: key).status == 200)
                let none = try await intake.get("/v1/receipts/\(UUID())", key: key)
                for path in [foreign, foreign.uppercased(), foreign + "?wait=5"] {
                    let start = ContinuousClock.now
                    let answer = try await intake.get("/v1/receipts/\(path)", key: key)
                    #expect(answer.status == 404)
                    #expect(answer.text == none.text)
                    // The server does not let a caller wait on another app's receipt: the wait would tell that the
                    // receipt exists.
                    #expect(ContinuousClock.now - start < .seconds(3))
                }
            }
            // The other app's key posts the same proof for its own app: that is a submission of its own, and shows
            // nothing of the first app's.
            let again = try await intake.post(Self.body("other", proof), key: Self.otherKey)
            #expect(again["id"] == .string(other))
            #expect(!again.text.contains(game))
        }
    }

    @Test("A key sees its own app's events, wherever its cursor stands")
    func events() async throws {
        try await Self.run { intake in
            for (app, transaction) in [("game", "own-1"), ("other", "own-2"), ("game", "own-3")] {
                try await intake.execute(
                    """
                    insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                    values (gen_random_uuid(), '\(app)', 'purchase.granted', 'u1', '\(transaction)',
                      gen_random_uuid(), '{}')
                    """)
            }
            for (key, app) in [(IntakeFixture.backendKey, "game"), (Self.otherKey, "other")] {
                let answer = try await intake.get("/v1/events?limit=1000&wait=20", key: key)
                #expect(answer.status == 200)
                guard case .array(let events)? = answer["events"] else { continue }
                #expect(!events.isEmpty)
                #expect(events.allSatisfy { $0["appId"] == .string(app) })
                let all = try await intake.get("/v1/events?after=0-0", key: key)
                #expect(try await intake.get("/v1/events?after=0-0&appId=\(app)", key: key).text == all.text)
                let foreign = app == "game" ? "other" : "game"
                let refused = try await intake.get("/v1/events?after=0-0&appId=\(foreign)", key: key)
                #expect(refused.status == 403 && refused["code"] == .string("app_not_allowed"))
                for unknown in ["apps", "app", "APPID"] {
                    let answer = try await intake.get("/v1/events?after=0-0&\(unknown)=\(app)", key: key)
                    #expect(answer.status == 400 && answer["field"] == .string(unknown), "\(answer.text)")
                }
            }
            #expect(try await intake.get("/v1/events", key: IntakeFixture.key).status == 403)
        }
    }

    // MARK: Sessions

    private static func sha256(_ text: String) -> String {
        SHA256.hash(data: Data(text.utf8)).map { String(format: "%02x", $0) }.joined()
    }

    @Test("S0-1, S0-11: a session string is neither checked nor stored, wherever in the record it stands")
    func sessionToken() async throws {
        try await Self.run { intake in
            let session = "expired-session-\(UUID())"
            let proof = IntakeFixture.signedTransaction()
            let bare = try await intake.post(Self.body("game", proof))
            var ids: Set<String> = []
            for more in [
                #""token":"\#(session)""#, #""token":"first","token":"\#(session)""#,
                #""client":{"token":"\#(session)","os":"17.4"}"#, #""record":{"old":[{"token":"\#(session)"}]}"#,
                #""to\u006ben":"\#(session)""#, #""client":{"token":{"value":"\#(session)"}}"#,
                #""target":{"token":"\#(session)"}"#,
            ] {
                let body = #"{"appId":"game","userId":"u1",\#(more),"signedTransaction":"\#(proof)"}"#
                let answer = try await intake.post(body)
                // The server accepts the purchase whatever the session is worth, and it is the same submission.
                #expect(answer.status == 202, "\(more)")
                #expect(answer["id"] == bare["id"], "\(more)")
                #expect(!answer.text.contains(session))
                // The same body is stored once more, for another user: the row holds the hash.
                let user = "s-\(UUID())"
                let stored = try await intake.post(body.replacing(#""u1""#, with: #""\#(user)""#))
                guard case .string(let id)? = stored["id"] else { continue }
                ids.insert(id)
                let hash = more.contains("value") ? Self.sha256(#"{"value":"\#(session)"}"#) : Self.sha256(session)
                #expect(
                    try await intake.count(
                        "select count(*) from receipts where id = '\(id)' and details::text like '%\"tokenSha256\": \"\(hash)\"%'"
                    ) == 1, "\(more)")
            }
            #expect(ids.count == 7)
            #expect(
                try await intake.count(
                    """
                    select count(*) from receipts r join payloads p on p.receipt_id = r.id
                    where strpos(r::text || p::text, '\(session)') > 0
                    """) == 0)
            // A session of a wrong type is worth as much, and does not refuse the proof beside it.
            let odd = try await intake.post(#"{"userId":"u1","token":["\#(session)"],"receipt":"QUJD"}"#)
            #expect(odd.status == 202)
            #expect(odd["disregarded"] == .array([.string("token")]))
            #expect(!odd.text.contains(session))
            #expect(
                try await intake.count("select count(*) from receipts r where strpos(r::text, '\(session)') > 0") == 0)
        }
    }

    @Test("The gateway's credential is another matter: 401, and the same post is right after a new login")
    func gatewayCredential() async throws {
        try await Self.run { intake in
            let body =
                #"{"userId":"late","token":"expired","signedTransaction":"\#(IntakeFixture.signedTransaction())"}"#
            let before = try await intake.count("select count(*) from receipts")
            let refused = try await intake.post(body, key: "yesterday's key")
            #expect(refused.status == 401)
            #expect(refused["safeToFinish"] == .bool(false))
            #expect(try await intake.count("select count(*) from receipts") == before)
            #expect(try await intake.post(body).status == 202)
            #expect(try await intake.count("select count(*) from receipts") == before + 1)
        }
    }
}
