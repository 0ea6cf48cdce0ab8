import Encoding
import Foundation
import Ledger
import Postgres
import Purchases
import Settings
import TestServers
import Testing

/// Goal: a backend has its events sent again, learns by name what is wrong with what it asks for, and reads how far it
/// is (B8). Method: real HTTP, events as settling writes them.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(3))) struct ReplayRoutesTests {
    private struct Unexpected: Error { let text: String }

    private static let endpoint = EndpointKey(appID: "game", name: "shop")

    /// Runs with an endpoint of `game` that gets two types of events, and five events of which it gets three.
    private static func run(
        known: Bool = true, _ body: (RunningIntake) async throws -> Void
    ) async throws {
        let secret = Data(repeating: 7, count: 32).base64EncodedString()
        let configuration = try IntakeFixture.configuration(game: [
            "endpoints:",
            "  - {name: shop, url: 'https://backend.example.com', secret: whsec_\(secret), "
                + "types: [purchase.granted, purchase.revoked]}",
        ])
        try await RunningIntake.run(configuration: configuration) { intake in
            try await intake.execute("delete from replays")
            try await intake.execute("delete from events")
            try await intake.execute("delete from endpoints")
            if known { _ = try await intake.ledger.run(Statements.registerEndpoints, [endpoint]) }
            for (app, type, user) in [
                ("game", "purchase.granted", "ann"), ("game", "purchase.revoked", "ann"),
                ("game", "ownership.lost", "ann"), ("game", "purchase.granted", "bob"),
                ("other", "purchase.granted", "ann"),
            ] {
                try await intake.execute(
                    """
                    insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                    values (gen_random_uuid(), '\(app)', '\(type)', '\(user)', 't', gen_random_uuid(), '{"goods": []}')
                    """)
            }
            // Any transaction on this server may hold the feed back for a moment.
            let hidden = "select count(*) from events where xid >= pg_snapshot_xmin(pg_current_snapshot())"
            let deadline = ContinuousClock.now + .seconds(20)
            while try await intake.count(hidden) > 0, ContinuousClock.now < deadline {
                try await Task.sleep(for: .milliseconds(20))
            }
            try await body(intake)
        }
    }

    private static func post(
        _ intake: RunningIntake, _ body: String, key: String = IntakeFixture.backendKey
    ) async throws -> RunningIntake.Answer {
        try await intake.send("POST", "/v1/replays", key: key, body: body)
    }

    private static func id(_ answer: RunningIntake.Answer) throws -> String {
        guard answer.status == 202, case .string(let id)? = answer["replayId"] else {
            throw Unexpected(text: answer.text)
        }
        return id
    }

    @Test("a replay is counted, begins once, tells how far it is, and is cancelled")
    func replay() async throws {
        try await Self.run { intake in
            let dry = try await Self.post(intake, #"{"endpoint":"shop","dryRun":true,"why":1}"#)
            #expect(dry.status == 200 && dry["events"] == .integer(3) && dry["hasMore"] == .bool(false), "\(dry.text)")
            #expect(dry["endpoint"] == .string("shop") && dry["appId"] == .string("game") && dry["replayId"] == nil)
            #expect(dry["ignored"] == .array([.string("why")]))
            #expect(try await intake.count("select count(*) from replays") == 0)
            let body =
                #"{"appId":"game","endpoint":"shop","userId":"ann","types":["purchase.granted","ownership.lost"]}"#
            let begun = try await Self.post(intake, body)
            let id = try Self.id(begun)
            #expect(begun["events"] == .integer(1) && begun["state"] == .string("running"), "\(begun.text)")
            #expect(begun["sent"] == .integer(0) && begun["endedAt"] == nil && begun["from"] == nil)
            let again = try Self.id(try await Self.post(intake, body))
            #expect(again == id)
            try await intake.execute(
                "update replays set sent = 1, attempts = 2, last_error = 'status 500', due_at = now() + interval '1 hour'"
            )
            let read = try await intake.get("/v1/replays/\(id)", key: IntakeFixture.backendKey)
            #expect(read.status == 200 && read["sent"] == .integer(1) && read["attempts"] == .integer(2))
            #expect(read["lastError"] == .string("status 500") && read["nextAt"] != nil)
            for _ in 1...2 {
                let ended = try await intake.send("DELETE", "/v1/replays/\(id)", key: IntakeFixture.backendKey)
                #expect(ended.status == 200 && ended["state"] == .string("cancelled"), "\(ended.text)")
                #expect(ended["endedAt"] != nil && ended["nextAt"] == nil)
            }
            let next = try Self.id(try await Self.post(intake, body))
            #expect(next != id, "the cancelled one stays cancelled")
        }
    }

    @Test("times: from is within, to is not; ids may stand in any spelling of a UUID")
    func choices() async throws {
        try await Self.run { intake in
            // An hour between each two, in the order of the feed.
            try await intake.execute(
                """
                update events set at = timestamptz '2026-11-30T12:00:00Z'
                  + (id - (select id from events where user_id = 'bob')) * interval '1 hour'
                """)
            func count(_ members: String) async throws -> JSONValue? {
                let answer = try await Self.post(intake, #"{"endpoint":"shop","dryRun":true,"# + members + "}")
                guard answer.status == 200 else { throw Unexpected(text: answer.text) }
                return answer["events"]
            }
            #expect(try await count(#""userId":"bob","to":"2026-11-30T12:00:00Z""#) == .integer(0))
            #expect(try await count(#""userId":"bob","to":"2026-11-30T12:00:00.001Z""#) == .integer(1))
            #expect(
                try await count(#""from":"2026-11-30T20:00:00+08:00","to":"2026-11-30T20:00:01+08:00""#) == .integer(1))
            #expect(try await count(#""userId":"ann""#) == .integer(2))
            guard
                case .array(let events)? = try await intake.get("/v1/events", key: IntakeFixture.backendKey)["events"],
                case .string(let id)? = events.first?["id"]
            else { throw Unexpected(text: "no events") }
            #expect(try await count(#""ids":["\#(id.uppercased())","\#(UUID())"]"#) == .integer(1))
        }
    }

    @Test("wrong bodies, unknown endpoints, replays of nothing and too many of them are refused by their field")
    func refusals() async throws {
        try await Self.run { intake in
            let many = (0...ReplayQuestion.idsMax).map { _ in "\"\(UUID())\"" }.joined(separator: ",")
            for (members, status, code, field) in [
                ("", 400, "wrong_type", "endpoint"), (#""endpoint":7"#, 400, "wrong_type", "endpoint"),
                (#""endpoint":"shops""#, 404, "not_found", "endpoint"),
                (#""endpoint":"shop","endpoint":"shop""#, 400, "duplicate_member", "endpoint"),
                (#""endpoint":"shop","appId":7"#, 400, "wrong_type", "appId"),
                (#""endpoint":"shop","from":"yesterday""#, 400, "wrong_type", "from"),
                (#""endpoint":"shop","to":1780000000"#, 400, "wrong_type", "to"),
                (
                    #""endpoint":"shop","from":"2026-11-30T12:00:00Z","to":"2026-11-30T12:00:00Z""#, 400, "wrong_type",
                    "from"
                ),
                (#""endpoint":"shop","types":[]"#, 400, "wrong_type", "types"),
                (#""endpoint":"shop","types":"purchase.granted""#, 400, "wrong_type", "types"),
                (#""endpoint":"shop","types":["purchase.granted","purchase.sold"]"#, 400, "wrong_type", "types[1]"),
                (#""endpoint":"shop","userId":"""#, 400, "wrong_type", "userId"),
                (#""endpoint":"shop","userId":true"#, 400, "wrong_type", "userId"),
                (#""endpoint":"shop","userId":"\#(String(repeating: "u", count: 2000))""#, 400, "too_long", "userId"),
                (#""endpoint":"shop","ids":[]"#, 400, "wrong_type", "ids"),
                (#""endpoint":"shop","ids":["1"]"#, 400, "wrong_type", "ids[0]"),
                (#""endpoint":"shop","ids":[\#(many)]"#, 400, "wrong_type", "ids"),
                (#""endpoint":"shop","dryRun":"yes""#, 400, "wrong_type", "dryRun"),
                (#""endpoint":"shop","userId":"nobody""#, 422, "nothing_to_replay", "userId"),
                (#""endpoint":"shop","types":["ownership.lost"]"#, 422, "nothing_to_replay", "types"),
                (#""endpoint":"shop","ids":["\#(UUID())"]"#, 422, "nothing_to_replay", "ids"),
                (#""endpoint":"shop","to":"2020-01-01T00:00:00Z""#, 422, "nothing_to_replay", "to"),
            ] as [(String, Int, String, String)] {
                let answer = try await Self.post(intake, "{\(members)}")
                #expect(
                    answer.status == status && answer["code"] == .string(code) && answer["field"] == .string(field),
                    "\(members.prefix(80)): \(answer.text.prefix(300))")
            }
            #expect(try await Self.post(intake, "[]")["code"] == .string("not_json"))
            #expect(try await intake.count("select count(*) from replays") == 0)
            for path in ["replays/1", "replays/\(UUID())"] {
                for method in ["GET", "DELETE"] {
                    let answer = try await intake.send(method, "/v1/\(path)", key: IntakeFixture.backendKey)
                    #expect([400, 404].contains(answer.status) && answer["field"] == .string("id"), "\(answer.text)")
                }
            }
            for user in 0..<EventReplay.runningMax {
                let body = #"{"endpoint":"shop","userId":"ann","from":"2020-01-01T00:00:\#(10 + user)Z"}"#
                _ = try Self.id(try await Self.post(intake, body))
            }
            let full = try await Self.post(intake, #"{"endpoint":"shop"}"#)
            #expect(full.status == 409 && full["code"] == .string("too_many_replays"), "\(full.text)")
        }
    }

    @Test("an endpoint that no dispatcher has had yet is unknown")
    func unknownEndpoint() async throws {
        try await Self.run(known: false) { intake in
            let answer = try await Self.post(intake, #"{"endpoint":"shop","dryRun":true}"#)
            #expect(answer.status == 404 && answer["field"] == .string("endpoint"), "\(answer.text)")
        }
    }

    @Test("only a key with the scope asks, of its own apps; no user's token does")
    func callers() async throws {
        try await Self.run { intake in
            let body = #"{"appId":"game","endpoint":"shop"}"#
            for key in [IntakeFixture.key, IntakeFixture.supportKey] {
                #expect(try await Self.post(intake, body, key: key).status == 403)
            }
            let foreign = try await Self.post(intake, #"{"appId":"other","endpoint":"shop"}"#)
            #expect(foreign.status == 403 && foreign["code"] == .string("app_not_allowed"))
            let two = try await Self.post(intake, #"{"endpoint":"shop"}"#, key: IntakeFixture.bothAppsKey)
            #expect(two.status == 422 && two["code"] == .string("no_app"))
            let other = try await Self.post(
                intake, #"{"appId":"other","endpoint":"shop"}"#, key: IntakeFixture.bothAppsKey)
            #expect(other.status == 404 && other["field"] == .string("endpoint"))
            let id = try Self.id(try await Self.post(intake, body, key: IntakeFixture.bothAppsKey))
            try await intake.execute("update replays set app_id = 'other'")
            for method in ["GET", "DELETE"] {
                #expect(try await intake.send(method, "/v1/replays/\(id)", key: IntakeFixture.backendKey).status == 404)
                #expect(try await intake.send(method, "/v1/replays/\(id)", key: IntakeFixture.key).status == 403)
            }
        }
        try await TestGateway.run(scopes: "intake, events") { intake, gateway in
            let token = try gateway.token("ann")
            #expect(try await Self.post(intake, #"{"endpoint":"shop"}"#, key: token).status == 403)
            #expect(try await intake.get("/v1/replays/\(UUID())", key: token).status == 403)
        }
    }
}
