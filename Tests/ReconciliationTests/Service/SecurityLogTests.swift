import AppStoreSimulator
import Encoding
import Foundation
import Logging
import Postgres
import Purchases
import Testing

@testable import AppleGateway
@testable import Intake
@testable import Ledger
@testable import Reconciliation
@testable import Service
@testable import Settings

/// Goal: each refusal, each reached limit and each post of another user's purchase is logged in one line and counted,
/// no line contains a secret or identifies a user, and a flood of refusals is no flood of lines. Method: real HTTP, a
/// worker's processor on a real ledger, and the lines and counters as they are kept and read.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(4))) struct SecurityLogTests {
    private let lines = LogLines()
    private let registry = PrometheusRegistry()
    private let log: SecurityLog

    init() {
        log = SecurityLog(secret: Array("a secret of this test".utf8), logger: lines.logger, metrics: registry)
    }

    /// The members of each line.
    private func take() -> [[String: String]] { lines.take().map { $0.metadata.mapValues { "\($0)" } } }

    private func isCounted(_ series: String) -> Bool {
        registry.text.split(separator: "\n").contains { $0 == series }
    }

    @Test(
        "each refused request is one line, with its reason, its caller and its user's hash; an accepted one is none")
    func refusals() async throws {
        try await TestGateway.run(security: log) { intake, gateway in
            let ann = try gateway.token("ann")
            let expired = try gateway.token("ann", validFor: -120)
            let bobs = try await intake.post(#"{"userId":"bob","receipt":"QUJD"}"#)
            #expect(bobs.status == 202)
            guard case .string(let id)? = bobs["id"] else { return }
            let mine = try await intake.post(#"{"receipt":"QUJE"}"#, key: ann)
            #expect(mine.status == 202)
            #expect(try await intake.get("/v1/receipts/\(UUID())", key: ann).status == 404)
            #expect(try await intake.post("no JSON").status == 400)
            #expect(try await intake.send("DELETE", "/v1/receipts").status == 405)
            #expect(take() == [])
            let foreign = #"{"appId":"other","userId":"u1","receipt":"QUJD"}"#
            for (method, path, key, body, status, event, reason, caller) in [
                ("GET", "/v1/events", nil, nil, 401, "credential", "noCredential", nil),
                ("GET", "/v1/events", "wrong-key", nil, 401, "credential", "unknownKey", nil),
                ("GET", "/v1/events", "a.b.c", nil, 401, "credential", "token.malformed", nil),
                ("GET", "/v1/events", expired, nil, 401, "credential", "token.expired", nil),
                ("GET", "/v1/events", IntakeFixture.key, nil, 403, "access", "scope", "gateway"),
                ("GET", "/v1/events", ann, nil, 403, "access", "scope", "gatewayJwt"),
                ("POST", "/v1/receipts", IntakeFixture.key, foreign, 403, "access", "app", "gateway"),
                (
                    "POST", "/v1/receipts", ann, #"{"userId":"bob","receipt":"QUJD"}"#, 403, "access", "otherUser",
                    "gatewayJwt"
                ),
                ("GET", "/v1/receipts/\(id)", ann, nil, 404, "access", "notYours", "gatewayJwt"),
                ("GET", "/v1/users/bob/purchases", ann, nil, 404, "access", "notYours", "gatewayJwt"),
                ("POST", "/v1/users/bob/token", ann, nil, 404, "access", "notYours", "gatewayJwt"),
                ("PUT", "/v1/users/ann/tokens/\(UUID())", ann, nil, 403, "access", "needsKey", "gatewayJwt"),
            ] as [(String, String, String?, String?, Int, String, String, String?)] {
                let answer = try await intake.send(method, path, key: key, body: body)
                #expect(answer.status == status, "\(path) \(reason)")
                let lines = take()
                #expect(lines.count == 1, "\(path) \(reason)")
                let line = lines.first ?? [:]
                #expect(line["security.event"] == "\(event).refused", "\(path) \(reason)")
                #expect(line["security.reason"] == reason)
                #expect(line["caller"] == caller)
                #expect(line["user.hash"] == (caller == "gatewayJwt" ? log.hash("ann") : nil))
                #expect(line["request.id"] == answer.headers["x-request-id"])
                #expect(line["http.route"]?.hasPrefix("/v1/") == true)
                #expect(line["network.peer.address"] == "127.0.0.1")
                for secret in ["ann", "bob", "wrong-key", IntakeFixture.key, ann, expired] {
                    #expect(!line.values.contains { $0.contains(secret) }, "\(line)")
                }
            }
            #expect(
                isCounted(
                    #"makegood_security_events_total{caller="gatewayJwt",event="access.refused",reason="notYours"} 3"#))
        }
    }

    @Test("a limit that is reached is a line and a count by its name")
    func limits() async throws {
        let access = IntakeFixture.entry("slow", "slow-key", "intake", "game", ", rate: {perSecond: 1, burst: 1}")
        try await RunningIntake.run(access: access, security: log) { intake in
            var refused = 0
            for _ in 0..<6 where try await intake.get("/v1/receipts/\(UUID())", key: "slow-key").status == 429 {
                refused += 1
            }
            #expect(refused > 0)
            let lines = take()
            #expect(lines.count == refused)
            for line in lines {
                #expect(line["security.event"] == "limit.reached")
                #expect(line["security.reason"] == "caller.rate")
                #expect(line["caller"] == "slow")
            }
            #expect(isCounted(#"makegood_limits_reached_total{limit="caller.rate"} \#(refused)"#))
        }
    }

    @Test("what is wrong with the entries of a batch is a line for each kind of it")
    func batches() async throws {
        try await RunningIntake.run(security: log) { intake in
            let foreign = Array(repeating: #"{"appId":"other","userId":"u1","receipt":"QUJD"}"#, count: 199)
            let body = (foreign + [#"{"userId":"u1","receipt":"QUJD"}"#]).joined(separator: ",")
            let answer = try await intake.send("POST", "/v1/receipts/batch", body: #"{"receipts":[\#(body)]}"#)
            #expect(answer.status == 200)
            let lines = take()
            #expect(lines.count == 1)
            #expect(lines.first?["security.reason"] == "app")
            #expect(lines.first?["security.count"] == "199")
            #expect(
                isCounted(#"makegood_security_events_total{caller="gateway",event="access.refused",reason="app"} 199"#))
        }
    }

    @Test("so many lines of one event in a second and no more; all are counted, and the next line says what is missing")
    func floods() {
        let start = ContinuousClock.now
        for number in 0..<5000 {
            log.note(.refused(.unknownKey), at: start + .microseconds(number * 100))
        }
        #expect(take().count == SecurityLog.linesPerSecondMax)
        log.note(.limit(.userRate), at: start)
        #expect(take().map { $0["security.unwritten"] } == [nil])
        for _ in 0..<2 { log.note(.refused(.noCredential), at: start + .seconds(1)) }
        #expect(take().map { $0["security.unwritten"] } == ["\(5000 - SecurityLog.linesPerSecondMax)", nil])
        #expect(
            isCounted(
                #"makegood_security_events_total{caller="",event="credential.refused",reason="unknownKey"} 5000"#))
    }

    @Test("a user has one name in all processes of a database, which SQL finds, and another one in the next database")
    func hashes() async throws {
        var names: Set<String> = []
        for _ in 0..<2 {
            try await LedgerLab.with { lab in
                try await UserProtection.agree(nil, in: lab.database)
                let log = try await SecurityLog(in: lab.database, logger: .silent)
                let other = try await SecurityLog(in: lab.ledger.database, logger: .silent)
                #expect(log.hash("änn") == other.hash("änn"))
                #expect(log.hash("änn").count == 16 && log.hash("änn") != log.hash("bob"))
                // This is the runbook's query.
                #expect(
                    try await lab.texts(
                        """
                        select left(encode(sha256(log_secret || convert_to('änn', 'UTF8')), 'hex'), 16)
                        from user_protection where octet_length(log_secret) = 32
                        """) == [log.hash("änn")])
                names.insert(log.hash("änn"))
            }
        }
        #expect(names.count == 2)
    }

    @Test("the user of a protected database is named as in its tables")
    func protectedUsers() throws {
        let keys = try #require(UserKeys(file: String(repeating: "0123456789abcdef", count: 4)))
        for (apps, user) in [(["game"], keys.key(of: "ann", app: "game")), (["game", "other"], "ann")] {
            let identity = Requester.Identity(caller: "gatewayJwt", userID: "ann", apps: Set(apps), keys: keys)
            #expect(identity.user == user)
        }
    }

    @Test("accounts that become one are logged once, by hashes; a token that is another user's is refused by name")
    func merges() async throws {
        let access = IntakeFixture.entry("login", "login-key", "merge", "game")
        try await RunningIntake.run(access: access, security: log) { intake in
            let body = #"{"into":"ann"}"#
            for round in 0..<2 {
                let answer = try await intake.send("POST", "/v1/users/guest/merge", key: "login-key", body: body)
                #expect(answer.status == 200)
                let lines = take()
                #expect(lines.count == (round == 0 ? 1 : 0))
                guard let line = lines.first else { continue }
                #expect(line["security.event"] == "users.merged" && line["caller"] == "login")
                #expect(line["user.hash"] == log.hash("guest") && line["into.hash"] == log.hash("ann"))
            }
            #expect(
                isCounted(#"makegood_security_events_total{caller="login",event="users.merged",reason=""} 1"#))
            let token = UUID()
            #expect(try await intake.send("PUT", "/v1/users/bob/tokens/\(token)").status == 201)
            #expect(take() == [])
            #expect(try await intake.send("PUT", "/v1/users/eve/tokens/\(token)").status == 409)
            #expect(take().map { $0["security.reason"] } == ["tokenTaken"])
        }
    }

    @Test("a configuration that is read again is logged, whether it is taken or not, with the digests")
    func configurations() async throws {
        let file = URL.temporaryDirectory.appending(path: "makegood-\(UUID().uuidString).yaml")
        defer { try? FileManager.default.removeItem(at: file) }
        let yaml = "apps:\n  - {id: game, bundleId: com.example.game, environments: [Sandbox]}\n"
        try Data(yaml.utf8).write(to: file)
        let settings = try Settings(environment: ["MAKEGOOD_CONFIG": file.path])
        let holder = ConfigurationHolder(try settings.loadConfiguration())
        try await VerifyLab.with { lab in
            let reloader = ConfigurationReloader(
                settings: settings, holder: holder, apps: AppDirectory(http: lab.http), ledger: lab.lab.ledger,
                logger: .silent, security: log, check: GatewayVerifier.check)
            let old = holder.current.hash
            try Data((yaml + "retention: {payloads: 80d}\n").utf8).write(to: file)
            await reloader.reload()
            #expect(holder.current.hash != old)
            #expect(
                take() == [
                    [
                        "security.event": "configuration.reloaded", "security.reason": "taken",
                        "configuration.sha256": holder.current.hash, "configuration.sha256.before": old,
                    ]
                ])
            try Data("apps: []".utf8).write(to: file)
            await reloader.reload()
            #expect(
                take() == [
                    [
                        "security.event": "configuration.reloaded", "security.reason": "refused",
                        "configuration.sha256": holder.current.hash,
                    ]
                ])
        }
    }

    @Test("what waits for its turn with others' receipts is logged by its limit and counted")
    func turns() async throws {
        try await RunningIntake.run(security: log) { intake in
            let posts = (0..<SubmissionBatch.entriesMax).map { _ in
                #"{"userId":"u1","signedTransaction":"\#(IntakeFixture.signedTransaction())"}"#
            }
            let answer = try await intake.send(
                "POST", "/v1/receipts/batch", body: #"{"receipts":[\#(posts.joined(separator: ","))]}"#)
            #expect(answer.status == 200)
            let waiting = posts.count - UserShares.receiptsAtOnce.most
            let told = take()
            #expect(told.map { $0["security.reason"] } == ["user.receiptsAtOnce"])
            #expect(told.map { $0["security.count"] } == ["\(waiting)"])
            #expect(told.map { $0["user.hash"] } == [log.hash("u1")])
            #expect(told.map { $0["http.route"] } == ["/v1/receipts/batch"])
            #expect(isCounted(#"makegood_limits_reached_total{limit="user.receiptsAtOnce"} \#(waiting)"#))
        }
    }

    @Test("what waits for Apple behind others is logged by its limit and counted")
    func calls() async throws {
        try await VerifyLab.with { lab in
            let appleGateway = AppleGateway(halts: lab.halts, governor: lab.governor(), security: log)
            for _ in 0..<UserShares.calls.most { #expect(appleGateway.lane(of: lab.row(.identifier)) == .fresh) }
            #expect(take() == [])
            let row = lab.row(.identifier)
            #expect(appleGateway.lane(of: row) == .repair)
            let user = try #require(row.userID)
            #expect(
                take() == [
                    [
                        "security.event": "limit.reached", "security.reason": "user.callsToApple", "app.id": "game",
                        "user.hash": log.hash(user), "receipt.id": row.id.text,
                    ]
                ])
            #expect(isCounted(#"makegood_limits_reached_total{limit="user.callsToApple"} 1"#))
        }
    }

    @Test("a connection that says nothing is logged with its address, and counted")
    func silence() async throws {
        try await RunningIntake.run(requestLimit: .milliseconds(300), security: log) { intake in
            let text = try await RawConnection.exchange(intake.port, "")
            #expect(text == "")
            let lines = take()
            #expect(lines.map { $0["security.reason"] } == ["connection.silent"])
            #expect(lines.map { $0["network.peer.address"] } == ["127.0.0.1"])
            #expect(isCounted(#"makegood_limits_reached_total{limit="connection.silent"} 1"#))
        }
    }

    /// Posts a signed transaction and judges it once.
    private func judge(_ proof: String, of user: String, _ processor: ReceiptProcessor, in lab: VerifyLab) async throws
        -> UUID
    {
        let submission = Submission(appID: VerifyLab.appID, userID: user, proof: .signedTransaction(proof))
        _ = try await lab.lab.ledger.insert(submission)
        let row = try #require(try await lab.lab.ledger.fetch(submission.receiptID))
        let message = Array(Pointer(receiptID: row.id, attempt: row.attempt).text.utf8)
        #expect(await processor.process(message, redelivered: false) == .done)
        return row.id
    }

    @Test("a worker logs a proof that is not Apple's by its reason, and a token that two users show")
    func proofsAndTokens() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(try lab.configuration(), security: log)
            let parts = try await lab.sell().signedTransaction.split(separator: ".")
            let others = try await lab.sell().signedTransaction.split(separator: ".")
            let id = try await judge("\(parts[0]).\(parts[1]).\(others[2])", of: "eve", processor, in: lab)
            #expect(
                take() == [
                    [
                        "security.event": "proof.refused", "security.reason": "signature", "app.id": "game",
                        "user.hash": log.hash("eve"), "receipt.id": id.text,
                    ]
                ])
            #expect(
                isCounted(#"makegood_security_events_total{caller="",event="proof.refused",reason="signature"} 1"#))
            let token = UUID().text
            let sales = [
                try await lab.sell { $0.appAccountToken = token }, try await lab.sell { $0.appAccountToken = token },
            ]
            _ = try await judge(sales[0].signedTransaction, of: "ann", processor, in: lab)
            #expect(take() == [])
            for round in 0..<2 {
                _ = try await judge(sales[1].signedTransaction, of: "bob", processor, in: lab)
                let told = take().filter { $0["security.event"] == "token.shared" }
                #expect(told.map { $0["user.hash"] } == (round == 0 ? [log.hash("bob")] : []))
            }
        }
    }

    @Test("a worker logs a dispute, and a limit that holds a purchase, once")
    func workers() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(
                try lab.configuration(
                    environments: ["Production", "Sandbox"],
                    more: ["testers: {others: {perUserPerDay: 1, perAppPerDay: 9}}"]), security: log)
            func judge(_ sale: Sale, of user: String) async throws -> UUID {
                try await self.judge(sale.signedTransaction, of: user, processor, in: lab)
            }
            let bought = try await lab.sell()
            _ = try await judge(bought, of: "ann")
            #expect(take() == [])
            for round in 0..<2 {
                let id = try await judge(bought, of: "bob")
                let expected = [
                    "security.event": "ownership.disputed", "app.id": "game", "user.hash": log.hash("bob"),
                    "receipt.id": id.text,
                ]
                #expect(take() == (round == 0 ? [expected] : []))
            }
            #expect(isCounted(#"makegood_ownership_disputes_total{app="game"} 1"#))
            _ = try await judge(try await lab.sell { $0.environment = .sandbox }, of: "ann")
            #expect(take() == [])
            let second = try await lab.sell { $0.environment = .sandbox }
            for round in 0..<2 {
                let id = try await judge(second, of: "ann")
                #expect(
                    try await lab.lab.texts("select state || ' ' || reason from receipts where id = '\(id)'")
                        == ["held sandbox"])
                let expected = [
                    "security.event": "limit.reached", "security.reason": "user.sandboxPurchasesPerDay",
                    "app.id": "game", "user.hash": log.hash("ann"), "receipt.id": id.text,
                ]
                #expect(take() == (round == 0 ? [expected] : []))
            }
            #expect(isCounted(#"makegood_limits_reached_total{limit="user.sandboxPurchasesPerDay"} 1"#))
        }
    }
}
