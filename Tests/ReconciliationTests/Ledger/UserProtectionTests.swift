import Crypto
import Foundation
import Postgres
import Purchases
import TestServers
import Testing

@testable import Encoding
@testable import Ledger
@testable import Settings

/// Goal: with `users.protect` only one table holds a user's id, the feed still contains the id, and its erasure takes
/// nothing from paid purchases (S1-12; S0-1 for `uid`).
///
/// Method: purchases over real HTTP on a real database, granted by the statement that workers use; then every column of
/// every table is searched for the id.
@Suite(.timeLimit(.minutes(5))) struct UserProtectionTests {
    private static let secret = "0123456789abcdef0123456789abcdef"

    // MARK: Keys

    @Test("the key of a user: stable, by app, by secret, and no id can be read from it")
    func keys() throws {
        let keys = try #require(UserKeys(file: Self.secret))
        let key = keys.key(of: "u1", app: "game")
        #expect(key == UserKeys(file: "\n \(Self.secret) \n")?.key(of: "u1", app: "game"))
        #expect(key.count == 48 && key.hasPrefix("user_"))
        #expect(
            key.utf8.allSatisfy {
                $0 == 0x2D || $0 == 0x5F || Character(UnicodeScalar($0)).isLetter
                    || Character(UnicodeScalar($0)).isNumber
            })
        let others = [
            keys.key(of: "u2", app: "game"), keys.key(of: "u1", app: "other"), keys.key(of: "u", app: "1game"),
            try #require(UserKeys(file: Self.secret + "x")).key(of: "u1", app: "game"),
        ]
        #expect(Set(others + [key]).count == 5)
        #expect(UserKeys(file: "") == nil && UserKeys(file: "\n") == nil && UserKeys(file: "short") == nil)
        #expect(UserKeys(file: "\(Self.secret)\nshort") == nil, "no line is too short")
        #expect(!"\(keys)".contains("0123") && !String(reflecting: keys).contains("0123"))
    }

    @Test("a sealed id opens for its user only, and a new line takes over the sealing alone")
    func sealing() throws {
        let old = try #require(UserKeys(file: Self.secret))
        let new = try #require(UserKeys(file: "\(Self.secret)\n\(Self.secret.reversed())second"))
        #expect(old.fingerprint == new.fingerprint && old.sealingID != new.sealingID)
        let key = old.key(of: "ü1", app: "game")
        #expect(new.key(of: "ü1", app: "game") == key)
        let (before, after) = (old.seal("ü1", key: key, app: "game"), new.seal("ü1", key: key, app: "game"))
        #expect(before != old.seal("ü1", key: key, app: "game"), "equal ids do not look equal")
        #expect(new.open(before, key: key, app: "game") == "ü1" && new.open(after, key: key, app: "game") == "ü1")
        #expect(old.open(after, key: key, app: "game") == nil, "a key that is not there")
        #expect(old.open(before, key: key, app: "other") == nil && old.open(before, key: "user_x", app: "game") == nil)
        for index in before.bytes.indices {
            var bytes = before.bytes
            bytes[index] ^= 1
            #expect(old.open(.init(bytes: bytes, keyID: before.keyID), key: key, app: "game") == nil)
        }
    }

    @Test("details: the id as a value at any depth, and the old clients' uid of any user")
    func details() throws {
        let keys = try #require(UserKeys(file: Self.secret))
        let key = keys.key(of: "4711", app: "game")
        let submission = Submission(
            appID: "game", userID: "4711", proof: .receipt("x"),
            details: #"{"client":{"who":["4711",4711,"47112"]},"item":"coins","uid":"4712"}"#)
        let protected = keys.protecting(submission)
        #expect(protected.userID == key && protected.receiptID != submission.receiptID)
        #expect(
            protected.details
                == #"{"client":{"who":["\#(key)","\#(key)","47112"]},"item":"coins","uid":"\#(keys.key(of: "4712", app: "game"))"}"#
        )
        let plain = Submission(appID: "game", userID: nil, orderID: "o", proof: .receipt("x"))
        #expect(keys.protecting(plain) == plain)
    }

    @Test("configuration: the file or the variable, testers by their keys, and no secret shows")
    func configuration() throws {
        try Self.withKeyFile { directory in
            let configuration = try IntakeFixture.configuration(gatewayJWT: Self.section, directory: directory)
            let keys = try #require(configuration.userKeys)
            #expect(!String(reflecting: configuration).contains(Self.secret))
            let tested = try Configuration.parse(
                """
                apps: [{id: game, bundleId: com.example.game, environments: [Sandbox], testers: {users: [u1]}}]
                \(Self.section)
                """, directory: directory)
            #expect(tested.apps["game"]?.policy.testers == [keys.key(of: "u1", app: "game")])
            for (section, key) in [
                ("{protect: missing.key}", "users.protect"), ("{protect: short.key}", "users.protect"),
                ("{protectEnv: MAKEGOOD_TEST_NO_SUCH}", "users.protectEnv"),
                ("{protect: users.key, protectEnv: HOME}", "users.protect"), ("{guard: users.key}", "users.guard"),
            ] {
                let error = #expect(throws: ConfigurationError.self) {
                    try IntakeFixture.configuration(gatewayJWT: "users: \(section)", directory: directory)
                }
                #expect(error?.key == key)
            }
        }
    }

    // MARK: Over HTTP

    @Test("from post to feed: no table holds the id, the backend reads it, erasing leaves what was paid")
    func wholeWay() async throws {
        let user = "clear-user-\(UUID().uuidString)"
        try await Self.withIntake { intake, keys in
            let key = keys.key(of: user, app: "game")
            let body = #"{"userId":"\#(user)","receipt":"QUJD","uid":"\#(user)","client":{"player":"\#(user)"}}"#
            let posted = try await intake.post(body)
            #expect(posted.status == 202)
            let again = try await intake.post(body)
            #expect(again["id"] == posted["id"], "the same submission is the same row")
            #expect(try await intake.count("select count(*) from users where user_key = '\(key)'") == 1)
            try await intake.grant(try #require(posted.uuid), "t1")
            let order = try await intake.order(
                #"{"userId":"\#(user)","productId":"com.example.game.coins6","uid":"\#(user)","ext":"\#(user)"}"#)
            #expect(order.status == 201)
            #expect(try await intake.get("/v1/orders?userId=\(user)").text.contains(key), "no id in what is read back")
            #expect(try await intake.send("POST", "/v1/users/\(user)/token").status == 201)
            let report = #"{"userId":"\#(user)","kind":"error","client":{"player":"\#(user)"}}"#
            #expect(try await intake.send("POST", "/v1/client-reports", body: report).status == 201)
            #expect(try await Self.tablesHolding(user, intake) == [], "nothing holds the id")
            #expect(try await intake.post(body).status == 200)

            let event = try await Self.event("t1", intake)
            #expect(event["userId"] == .string(user) && event["erased"] == nil)

            let erasure = UserErasure(database: intake.ledger.database, keys: keys, actor: "ann")
            let name = erasure.name(of: user, app: "game")
            #expect(name.key == key)
            #expect(try await erasure.look(name).standing == .known)
            for _ in 0..<2 { #expect(try await erasure.erase(name)) }
            #expect(try await erasure.look(name).standing == .erased)
            #expect(try await erasure.look(name).traces.text == "1 0 1 1 1 1")
            #expect(try await !erasure.erase(erasure.name(of: "nobody", app: "game")))
            #expect(try await !erasure.erase(erasure.name(of: user, app: "other")), "one app's user is no other's")
            #expect(try await intake.count("select count(*) from receipts where details = '{}'") == 1)
            #expect(try await intake.count("select count(*) from grants") == 1)
            #expect(
                try await intake.count(
                    "select count(*) from audits where action = 'users.erase' and details ->> 'user' = '\(key)'") == 2)
            let erased = try await Self.event("t1", intake)
            #expect(erased["userId"] == .string(key) && erased["erased"] == .bool(true))

            // The user posts again, also to a process that never saw the user: the purchase counts, the id is not
            // stored.
            let later = try await intake.post(#"{"userId":"\#(user)","receipt":"REVG"}"#)
            #expect(later.status == 202)
            try await intake.grant(try #require(later.uuid), "t2")
            let register = UserRegister(ledger: intake.ledger)
            try await register.enter(user, key: key, app: "game", keys)
            #expect(try await Self.event("t2", intake)["erased"] == .bool(true))
            #expect(try await intake.count("select count(*) from grants where user_id = '\(key)'") == 2)
            #expect(try await Self.tablesHolding(user, intake) == [])

            // The id stays away until a person readmits the user.
            #expect(try await erasure.readmit(user, app: "game"))
            #expect(try await !erasure.readmit(user, app: "game"))
            #expect(try await Self.event("t2", intake)["userId"] == .string(user))
        }
    }

    @Test("erasing deletes where in the game the user plays, but not of an order that may still be delivered")
    func targets() async throws {
        let user = "clear-user-\(UUID().uuidString)"
        try await Self.withIntake { intake, keys in
            let posted = try await intake.post(#"{"userId":"\#(user)","receipt":"QUJD"}"#)
            try await intake.grant(try #require(posted.uuid), "given-before")
            for (quantity, reserved) in [(1, ""), (2, #","transactionId":"given-before""#), (4, "")] {
                let order = try await intake.order(
                    #"{"userId":"\#(user)","productId":"com.example.game.coins6","quantity":\#(quantity)\#(reserved)}"#)
                #expect(order.status == 201)
                #expect(order["state"] == .string(reserved.isEmpty ? "open" : "granted"))
                if quantity == 1 { try await intake.grant(try #require(order.uuid).uuidString, "given-by-it") }
            }
            try await intake.execute(#"update orders set target = '{"server": "s1"}'"#)
            let erasure = UserErasure(database: intake.ledger.database, keys: keys, actor: "ann")
            #expect(try await erasure.erase(erasure.name(of: user, app: "game")))
            let kept = "select coalesce(sum(quantity), 0)::bigint from orders where target "
            #expect(try await intake.count(kept + "= '{}'") == 3)
            #expect(try await intake.count(kept + "<> '{}'") == 4)
        }
    }

    @Test("a gateway's user reads that user's posts alone; 20 bare ids are counted by key")
    func gateway() async throws {
        let signer = P256.Signing.PrivateKey()
        func token(_ user: String) throws -> String {
            let header = Data(#"{"alg":"ES256"}"#.utf8).base64URL
            let claims = Data(
                #"{"iss":"gw","aud":"makegood","sub":"\#(user)","exp":\#(Int(Date().timeIntervalSince1970) + 60)}"#.utf8
            ).base64URL
            let signature = try signer.signature(for: Data("\(header).\(claims)".utf8)).rawRepresentation.base64URL
            return "\(header).\(claims).\(signature)"
        }
        try await Self.withIntake(gateway: signer.publicKey.pemRepresentation) { intake, keys in
            let (one, two) = (try token("u-one"), try token("u-two"))
            let posted = try await intake.post(#"{"receipt":"QUJD"}"#, key: one)
            let id = try #require(posted.uuid)
            #expect(try await intake.get("/v1/receipts/\(id)", key: one).status == 200)
            #expect(try await intake.get("/v1/receipts/\(id)", key: two).status == 404)
            #expect(try await intake.get("/v1/receipts/\(id)").status == 200)
            #expect(try await intake.post(#"{"receipt":"QUJD","userId":"u-two"}"#, key: one).status == 403)
            // A caller that knows a user's key is not that user.
            let thief = try token(keys.key(of: "u-one", app: "game"))
            #expect(try await intake.get("/v1/receipts/\(id)", key: thief).status == 404)

            for number in 0..<Statements.questionsPerUserMax {
                #expect(try await intake.post(#"{"userId":"u-asks","transactionId":"\#(number)"}"#).status == 202)
            }
            try await intake.execute("update receipts set reason = 'possession_missing' where kind = 'identifier'")
            #expect(try await intake.post(#"{"userId":"u-asks","transactionId":"99"}"#).status == 429)
            #expect(try await intake.post(#"{"userId":"u-other","transactionId":"99"}"#).status == 202)
        }
    }

    @Test("no user's name, no receipt: a post that cannot enter its user stores nothing and is right later")
    func nothingLost() async throws {
        try await Self.withIntake { intake, _ in
            try await intake.execute("alter table users rename to users_away")
            let body = #"{"userId":"u1","receipt":"QUJD"}"#
            #expect(try await intake.post(body).status == 503)
            #expect(try await intake.count("select count(*) from receipts") == 0)
            try await intake.execute("alter table users_away rename to users")
            #expect(try await intake.post(body).status == 202)
            #expect(try await intake.count("select count(*) from users") == 1)
        }
    }

    @Test("a feed whose key is missing waits, rather than give goods to a key")
    func missingKey() async throws {
        try await Self.withIntake { intake, keys in
            let posted = try await intake.post(#"{"userId":"u1","receipt":"QUJD"}"#)
            try await intake.grant(try #require(posted.uuid), "t1")
            _ = try await Self.event("t1", intake)
            try await intake.execute("update users set key_id = 'another'")
            #expect(try await intake.get("/v1/events", key: IntakeFixture.backendKey).status == 503)
        }
    }

    // MARK: The database and its mode

    @Test("all processes of a database name its users alike, or do not start")
    func agreement() async throws {
        let keys = try #require(UserKeys(file: Self.secret))
        let rotated = try #require(UserKeys(file: "\(Self.secret)\n\(Self.secret)2"))
        let other = try #require(UserKeys(file: "\(Self.secret)2"))
        try await LedgerLab.with(connections: 8) { lab in
            let started = await withTaskGroup(of: Bool.self) { group in
                for number in 0..<8 {
                    group.addTask {
                        let ours = number.isMultiple(of: 2) ? keys : other
                        return (try? await UserProtection.agree(ours, in: lab.ledger.database)) != nil
                    }
                }
                return await group.reduce(0) { $0 + ($1 ? 1 : 0) }
            }
            #expect(started == 4, "those of one key, whichever was first")
        }
        try await LedgerLab.with { lab in
            try await UserProtection.agree(keys, in: lab.database)
            try await UserProtection.agree(rotated, in: lab.database)
            try await UserProtection.check(keys, in: lab.database)
            for wrong in [nil, other] {
                let error = await #expect(throws: ConfigurationError.self) {
                    try await UserProtection.agree(wrong, in: lab.database)
                }
                #expect(error?.key == "users.protect")
            }
        }
        // Clear ids are stored, because the first process agreed to clear ids.
        try await LedgerLab.with { lab in
            try await UserProtection.agree(nil, in: lab.database)
            _ = try await lab.post()
            let error = await #expect(throws: ConfigurationError.self) {
                try await UserProtection.agree(keys, in: lab.database)
            }
            #expect(error?.problem.contains("clear user ids") == true)
            try await UserProtection.agree(nil, in: lab.database)
        }
    }

    @Test("erasing where nothing is protected: the erased id everywhere, and no verdict under way writes the old one")
    func clear() async throws {
        try await LedgerLab.with { lab in
            let granted = try await lab.post("u1")
            try await lab.settle(granted, .purchase("t1"))
            let open = try await lab.post("u1")
            let other = try await lab.post("u2")
            try await lab.settle(other, .purchase("t2"))
            let foreign = try await lab.post("u1", app: "other")
            try await lab.run("update receipts set details = '{\"uid\": \"u1\", \"item\": \"coins\"}'")
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            let name = erasure.name(of: "u1", app: "game")
            #expect(try await erasure.look(name).standing == .clear)
            #expect(try await erasure.erase(name))
            #expect(try await erasure.look(name).standing == .unknown)
            #expect(try await !erasure.erase(name))
            // A worker had read the open receipt before the erasure: its verdict is stale, and the next worker reads no
            // id.
            #expect(try await lab.settle(open, .purchase("t3")) == nil)
            let row = try #require(try await lab.ledger.fetch(open.id))
            let tombstone = try #require(row.userID)
            #expect(tombstone.hasPrefix("erased_"))
            let posted = Posted(id: open.id, userID: tombstone, appID: "game")
            #expect(try await lab.settle(posted, attempt: row.attempt, .purchase("t3")) == .granted)
            #expect(try await lab.grants == ["t1 \(tombstone)", "t2 u2", "t3 \(tombstone)"])
            #expect(try await lab.number("select count(*) from events where user_id = 'u1'") == 0)
            #expect(
                try await lab.number("select count(*) from receipts where app_id = 'game' and details ? 'uid'") == 1)
            #expect(
                try await lab.texts("select user_id from receipts where id = '\(foreign.id)'") == ["u1"],
                "another app's user")
            #expect(try await lab.number("select count(*) from audits where details::text like '%u1%'") == 0)
            #expect(try await lab.number("select count(*) from audits where action = 'users.erase'") == 2)
        }
    }

    @Test(
        "erasing a clear id: a verdict that found the user before, by a chain or an order, does not write it; a later may"
    )
    func clearInFlight() async throws {
        try await LedgerLab.with(connections: 4, writers: 2) { lab in
            let order = try await lab.place("u1")
            let entry = try await lab.matched("t1", by: "u1", order: order)
            // The verdict is matched for u1, and another user posted the receipt: its row contains nothing of u1.
            let late = lab.verdict(try await lab.post("u2"), .transactions([entry]))
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            // The erasure waits for a statement that has begun.
            try await lab.withSession { session in
                let writing = lab.verdict(try await lab.post("u1"), .transactions([.purchase("t2")]))
                try await session.run(Statement<Void, Void>("test.begin", "begin"))
                #expect(try await lab.settle(writing, on: session) == [writing.receiptID: .granted])
                let erasing = Task { try await erasure.erase(UserName(appID: "game", key: "u1")) }
                try await lab.until("the erasure did not begin") {
                    try await lab.number("select count(*) from erasures") == 1
                }
                try await Task.sleep(for: .milliseconds(100))
                try await session.run(Statement<Void, Void>("test.commit", "commit"))
                #expect(try await erasing.value)
            }
            #expect(try await lab.settle(late) == [:], "it is judged anew")
            for table in ["grants", "events", "orders", "receipts"] {
                #expect(try await lab.number("select count(*) from \(table) where user_id = 'u1'") == 0, "\(table)")
            }
            // A user who comes back is a customer like any other.
            try await lab.settle(try await lab.post("u1"), .purchase("t3"))
            #expect(try await lab.grants.last == "t3 u1")
            #expect(try await lab.number("select count(*) from erasures where user_sha256 = sha256('u1')") == 1)
        }
    }

    // MARK: Tools

    private static let section = "users: {protect: users.key}"

    private static func withKeyFile<Result>(_ body: (URL) async throws -> Result) async throws -> Result {
        let directory = try makeKeyFile()
        defer { try? FileManager.default.removeItem(at: directory) }
        return try await body(directory)
    }

    private static func withKeyFile<Result>(_ body: (URL) throws -> Result) throws -> Result {
        let directory = try makeKeyFile()
        defer { try? FileManager.default.removeItem(at: directory) }
        return try body(directory)
    }

    private static func makeKeyFile() throws -> URL {
        let directory = URL.temporaryDirectory.appending(
            path: "makegood-users-\(UUID().uuidString)", directoryHint: .isDirectory)
        try FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
        for (name, text) in [("users.key", "\(secret)\n"), ("short.key", "short")] {
            try text.write(to: directory.appending(path: name), atomically: true, encoding: .utf8)
        }
        return directory
    }

    private static func withIntake(
        gateway: String? = nil, _ body: @escaping (RunningIntake, UserKeys) async throws -> Void
    ) async throws {
        let keys = try #require(UserKeys(file: secret))
        let database = try await TestDatabase.migrated()
        do {
            try await withKeyFile { directory in
                var section = section
                if let gateway {
                    try gateway.write(to: directory.appending(path: "gateway.pem"), atomically: true, encoding: .utf8)
                    section += "\ngatewayJwt: {issuer: gw, audience: makegood, keys: [gateway.pem], "
                    section += "scopes: [intake], apps: [game]}"
                }
                try await RunningIntake.run(url: database.url, gatewayJWT: section, directory: directory) { intake in
                    try await body(intake, keys)
                }
            }
        } catch {
            await database.drop()
            throw error
        }
        await database.drop()
    }

    /// Returns the event of a transaction as the backend reads it.
    private static func event(_ transaction: String, _ intake: RunningIntake) async throws -> JSONValue {
        for _ in 0..<100 {
            let answer = try await intake.get("/v1/events", key: IntakeFixture.backendKey)
            if case .array(let events)? = answer["events"],
                let event = events.first(where: { $0["transactionId"] == .string(transaction) })
            {
                return event
            }
            // Transactions of other tests on this server may hold the feed back.
            try await Task.sleep(for: .milliseconds(100))
        }
        throw Missing()
    }

    private struct Missing: Error {}

    /// Returns `table.column` for every column whose text contains `word`.
    private static func tablesHolding(_ word: String, _ intake: RunningIntake) async throws -> [String] {
        let columns = try await intake.ledger.database.run(
            Statement<Void, (String, String)>(
                "test.columns",
                """
                select c.table_name::text, c.column_name::text from information_schema.columns c
                join information_schema.tables t using (table_schema, table_name)
                where c.table_schema = 'public' and t.table_type = 'BASE TABLE'
                """, read: { row throws(PostgresError) in (try row.text(0), try row.text(1)) }))
        #expect(columns.count > 80)
        var found: [String] = []
        for (table, column) in columns {
            // Bytes are searched as well, by their text.
            let sql = """
                select count(*) from "\(table)" where "\(column)"::text like '%\(word)%'
                  or "\(column)"::text like '%\(Data(word.utf8).map { String(format: "%02x", $0) }.joined())%'
                """
            if try await intake.count(sql) > 0 { found.append("\(table).\(column)") }
        }
        return found
    }
}

extension RunningIntake {
    /// Grants a purchase as a worker does.
    fileprivate func grant(_ id: UUID, _ transaction: String) async throws {
        let row = try #require(try await ledger.fetch(id))
        let verdict = Verdict(
            receiptID: id, attempt: row.attempt, appID: row.appID,
            claim: Claim(userID: row.userID, hasPossession: true, receivedAt: row.receivedAt),
            decisions: .transactions([.purchase(transaction)]), dueIn: .seconds(600))
        #expect(try await ledger.settle(verdict)?.state == .granted)
    }
}

extension Statements.UserTraces {
    fileprivate var text: String { "\(receipts) \(openReceipts) \(grants) \(orders) \(tokens) \(reports)" }
}

extension RunningIntake.Answer {
    /// The receipt's id.
    fileprivate var uuid: UUID? {
        if case .string(let text)? = self["id"] { UUID(uuidString: text) } else { nil }
    }
}
