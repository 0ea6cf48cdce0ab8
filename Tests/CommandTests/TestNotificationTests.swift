import Crypto
import Foundation
import Logging
import Postgres
import TestServers
import Testing

/// Goal: `makegood apple test-notification` says whether Apple's notifications arrive, and where they stop (P38,
/// S3-52). Method: the built program, a scripted App Store Server API, and a real database that gets the notification
/// or does not.
@Suite(.timeLimit(.minutes(5))) struct TestNotificationTests {
    private static func answer(_ status: String, _ body: String) -> ScriptedServer.Answer {
        .bytes(
            "HTTP/1.1 \(status)\r\nContent-Type: application/json\r\nContent-Length: \(body.utf8.count)\r\n\r\n\(body)")
    }

    private static let taken = answer("200 OK", #"{"testNotificationToken": "token-1"}"#)

    private static func sent(_ result: String) -> ScriptedServer.Answer {
        answer(
            "200 OK", #"{"sendAttempts": [{"attemptDate": 1800000000000, "sendAttemptResult": "\#(result)"}]}"#)
    }

    /// Runs the command against an Apple that gives these answers in turn, the last one again and again.
    private static func run(
        _ answers: [ScriptedServer.Answer], _ more: [String] = [], database: String? = nil,
        whileRunning: @Sendable (RunningProgram) async throws -> Void = { _ in }
    ) async throws -> BuiltProgram.Outcome {
        let server = ScriptedServer { answers[min($0, answers.count - 1)] }
        return try await server.serve { port in
            try await withFolder { folder in
                _ = try P256.Signing.PrivateKey().pemRepresentation.written(to: folder, as: "key.p8")
                let file = try """
                apps:
                  - id: game
                    bundleId: com.example.game
                    environments: [Sandbox]
                    products: [{id: coins, type: consumable, goods: [{item: coin, amount: 6}]}]
                    serverApi: {issuerId: i, keyId: k, privateKeyFile: key.p8, \
                productionUrl: "http://127.0.0.1:\(port)", sandboxUrl: "http://127.0.0.1:\(port)"}
                  - id: mute
                    bundleId: com.example.mute
                    environments: [Sandbox]
                    products: [{id: coins, type: consumable, goods: [{item: coin, amount: 6}]}]
                """.written(to: folder, as: "makegood.yaml")
                var environment = ["MAKEGOOD_CONFIG": file]
                environment["MAKEGOOD_POSTGRES_URL"] = database
                let app = more.contains("--app") ? [] : ["--app", "game"]
                return try await BuiltProgram(
                    arguments: ["apple", "test-notification", "--environment", "Sandbox"] + app + more,
                    environment: environment
                ).run(whileRunning: whileRunning)
            }
        }
    }

    @Test("P38: without a database Apple's answer decides; no URL, no answer and no request are told apart")
    func withoutDatabase() async throws {
        let arrived = try await Self.run([Self.taken, Self.sent("SUCCESS")])
        #expect(arrived.status == 0, "\(arrived.complaint)")
        #expect(
            arrived.output == """
                Apple was asked for a test notification of game in Sandbox
                Apple sent it and got a good answer

                """)
        let vain = try await Self.run([Self.taken, Self.sent("NO_RESPONSE")], ["--json"])
        #expect(vain.status == 1)
        #expect(vain.json["outcome"] as? String == "not_taken" && vain.json["app"] as? String == "game")
        #expect((vain.json["steps"] as? [[String: Any]])?.map { $0["step"] as? String } == ["asked", "sent"])

        let noURL = try await Self.run([
            Self.answer("404 Not Found", #"{"errorCode": 4040007, "errorMessage": "no"}"#)
        ])
        #expect(noURL.status == 1 && noURL.output.hasPrefix("App Store Connect has no URL"))
        let refused = try await Self.run([Self.answer("401 Unauthorized", "")], ["--json"])
        #expect(refused.status == 1 && refused.json["outcome"] as? String == "refused")
        // Apple does not know the test yet, and the command does not wait longer than it may.
        let unknown = try await Self.run(
            [Self.taken, Self.answer("404 Not Found", #"{"errorCode": 4040008, "errorMessage": "no"}"#)],
            ["--wait", "1", "--json"])
        #expect(unknown.status == 1 && unknown.json["outcome"] as? String == "missing")

        for nonsense in [["--app", "none"], ["--app", "mute"], ["--wait", "0"], ["--environment", "Xcode"]] {
            #expect(try await Self.run([Self.taken], nonsense).status == 64, "\(nonsense)")
        }
    }

    @Test("P38: with a database the notification counts that is stored after the request, and no older one")
    func withDatabase() async throws {
        let test = try await TestDatabase.make()
        let database = Database(
            PostgresConfiguration(url: test.url, applicationName: "makegood-tests"), connections: 1,
            logger: Logger(label: "tests"))
        let result: Result<Void, any Error>
        do {
            try await check(test.url, database)
            result = .success(())
        } catch {
            result = .failure(error)
        }
        await database.close()
        await test.drop()
        try result.get()
    }

    private func check(_ url: String, _ database: Database) async throws {
        let migrated = try await BuiltProgram(arguments: ["migrate"], environment: ["MAKEGOOD_POSTGRES_URL": url]).run()
        #expect(migrated.status == 0, "\(migrated.complaint)")
        @Sendable func store(_ type: String, at time: String = "now()") async throws {
            try await database.run(
                Statement<Void, Void>(
                    "test.store",
                    """
                    insert into notifications (id, version, app_id, environment, type, payload_sha256, due_at, received_at)
                    values (gen_random_uuid(), 2, 'game', 'Sandbox', '\(type)', '', now(), \(time))
                    """))
        }
        try await store("TEST", at: "now() - interval '1 minute'")
        let missing = try await Self.run([Self.taken], ["--wait", "1"], database: url)
        #expect(missing.status == 1)
        #expect(missing.output.contains("nothing came within 1 s"))

        let arrived = try await Self.run([Self.taken], database: url) { program in
            _ = try await program.prints("Apple was asked")
            try await store("DID_RENEW")
            try await store("TEST")
        }
        #expect(arrived.status == 0, "\(arrived.complaint)")
        #expect(arrived.output.contains("it is stored as notification ") && arrived.output.contains("(received)"))
    }
}
