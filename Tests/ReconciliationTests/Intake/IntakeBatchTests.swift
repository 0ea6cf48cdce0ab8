import Encoding
import Foundation
import Ledger
import Purchases
import TestServers
import Testing

/// Goal: `POST /v1/receipts/batch` takes the proofs from a device's history, each as if it had been posted alone, and
/// an error in one proof refuses none of the others (S3-61). Method: real HTTP on a real database, without a broker.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(5))) struct IntakeBatchTests {
    private static func batch(_ entries: [String], _ more: String = #","userId":"u1""#) -> String {
        #"{"appId":"game"\#(more),"receipts":[\#(entries.joined(separator: ","))]}"#
    }

    private static func entry(more: String) -> String { entry(IntakeFixture.signedTransaction(), more) }

    private static func entry(_ jws: String = IntakeFixture.signedTransaction(), _ more: String = "") -> String {
        #"{"signedTransaction":"\#(jws)"\#(more)}"#
    }

    private static func answers(_ answer: RunningIntake.Answer) throws -> [JSONValue] {
        guard case .array(let list)? = answer["receipts"] else { throw Missing(answer: answer.text) }
        return list
    }

    private struct Missing: Error {
        let answer: String
    }

    @Test("S3-61: two hundred proofs, two hundred answers, in one statement; the same again is the same")
    func full() async throws {
        try await RunningIntake.run { intake in
            let user = "batch-\(UUID())"
            let body = Self.batch((0..<200).map { _ in Self.entry() }, #","userId":"\#(user)""#)
            let first = try await intake.send("POST", "/v1/receipts/batch", body: body)
            #expect(first.status == 200)
            let answers = try Self.answers(first)
            #expect(answers.count == 200 && Set(answers.map { $0["id"]?.text ?? "" }).count == 200)
            #expect(
                answers.allSatisfy {
                    $0["status"] == .integer(202) && $0["state"] == .string("received")
                        && $0["safeToFinish"] == .bool(false)
                })
            let rows = try await intake.count("select count(*) from receipts where user_id = '\(user)'")
            #expect(rows == 200)
            #expect(
                try await intake.count(
                    "select count(distinct received_at) from receipts where user_id = '\(user)'") == 1)
            let again = try await intake.send("POST", "/v1/receipts/batch", body: body)
            #expect(try Self.answers(again).map { $0["id"] } == answers.map { $0["id"] })
            #expect(try await intake.count("select count(*) from receipts where user_id = '\(user)'") == 200)
            // An entry's answer is the answer to the same proof alone.
            guard case .string(let id)? = answers[7]["id"] else { return }
            let alone = try await intake.get("/v1/receipts/\(id)")
            #expect(alone["state"] == answers[7]["state"] && alone["receivedAt"] == answers[7]["receivedAt"])
        }
    }

    @Test("each entry has its own answer: refused ones, odd ones, the same twice, one that has ended, another's")
    func mixed() async throws {
        try await RunningIntake.run { intake in
            let (user, ended, twice) = (
                "mixed-\(UUID())", IntakeFixture.signedTransaction(), IntakeFixture.signedTransaction()
            )
            let known = try await intake.post(#"{"userId":"\#(user)","signedTransaction":"\#(ended)"}"#)
            guard case .string(let id)? = known["id"] else { return }
            try await intake.execute(
                "update receipts set state='rejected', reason='refunded', settled_at=now(), due_at=null where id='\(id)'"
            )
            let entries = [
                Self.entry(twice), #"{"signedTransaction":"abc"}"#, Self.entry(twice), Self.entry(ended), "7", "{}",
                Self.entry(IntakeFixture.signedTransaction(), #","quantity":0,"userId":"\#(user)-2""#),
                Self.entry(IntakeFixture.signedTransaction(), #","appId":"other""#),
                #"{"receipt":"QUJD","surprise":1}"#, Self.entry(IntakeFixture.signedTransaction(), #","userId":"""#),
            ]
            let answer = try await intake.send(
                "POST", "/v1/receipts/batch", body: Self.batch(entries, #","userId":"\#(user)""#))
            let answers = try Self.answers(answer)
            #expect(
                answers.map { $0["status"]?.text } == [
                    "202", "400", "202", "200", "400", "422", "202", "403", "202", "202",
                ])
            #expect(answers[0]["id"] == answers[2]["id"])
            #expect(answers[1]["code"] == .string("not_jws") && answers[1]["safeToFinish"] == .bool(false))
            #expect(answers[3]["state"] == .string("rejected") && answers[3]["safeToFinish"] == .bool(true))
            #expect(answers[5]["code"] == .string("no_proof"))
            #expect(answers[9]["state"] == .string("received"), "an entry with an empty user is nobody's")
            #expect(answers[6]["disregarded"] == .array([.string("quantity")]))
            #expect(answers[7]["code"] == .string("app_not_allowed"))
            #expect(answers[8]["ignored"] == .array([.string("surprise")]))
            #expect(try await intake.count("select count(*) from receipts where user_id = '\(user)'") == 3)
            #expect(try await intake.count("select count(*) from receipts where user_id = '\(user)-2'") == 1)
        }
    }

    @Test(
        "S3-61: U+0000, too deep, too large a number: the one entry is refused, by its field, and the others are not"
    )
    func unstorable() async throws {
        try await RunningIntake.run { intake in
            let user = "unstorable-\(UUID())"
            let deep = String(repeating: "[", count: 40) + String(repeating: "]", count: 40)
            let entries = [
                Self.entry(), Self.entry(more: #","item":"a\u0000""#), Self.entry(more: #","ext":\#(deep)"#),
                Self.entry(more: #","price":1e999"#), Self.entry(),
            ]
            let answer = try await intake.send(
                "POST", "/v1/receipts/batch", body: Self.batch(entries, #","userId":"\#(user)""#))
            #expect(answer.status == 200)
            let answers = try Self.answers(answer)
            #expect(answers.map { $0["status"]?.text } == ["202", "400", "400", "400", "202"])
            #expect(
                answers.dropFirst().prefix(3).map { "\($0["code"]?.text ?? "") \($0["field"]?.text ?? "")" } == [
                    #""zero_character" "item""#, #""too_deep" "ext""#, #""number_range" "price""#,
                ])
            #expect(try await intake.count("select count(*) from receipts where user_id = '\(user)'") == 2)
        }
    }

    @Test("what is no batch is refused whole: no list, none, 201, too many bytes, no right")
    func wholes() async throws {
        try await RunningIntake.run { intake in
            let before = try await intake.count("select count(*) from receipts")
            for (key, body, status, code) in [
                (IntakeFixture.key, "[]", 400, "not_json"), (IntakeFixture.key, "{}", 400, "wrong_type"),
                (IntakeFixture.key, #"{"receipts":{}}"#, 400, "wrong_type"),
                (
                    IntakeFixture.key, Self.batch([Self.entry()], #","userId":"a","userId":"b""#), 400,
                    "duplicate_member"
                ),
                (IntakeFixture.key, Self.batch([Self.entry()], #","a\u0070pId":"game""#), 400, "duplicate_member"),
                (
                    IntakeFixture.key, Self.batch([Self.entry()], #","userId":"a","receipts":[]"#), 400,
                    "duplicate_member"
                ),
                (IntakeFixture.key, Self.batch([]), 422, "batch_size"),
                (IntakeFixture.key, Self.batch((0..<201).map { _ in Self.entry() }), 422, "batch_size"),
                (IntakeFixture.supportKey, Self.batch([Self.entry()]), 403, "missing_scope"),
                ("wrong", Self.batch([Self.entry()]), 401, "unauthenticated"),
            ] {
                let answer = try await intake.send("POST", "/v1/receipts/batch", key: key, body: body)
                #expect(answer.status == status && answer["code"] == .string(code), "\(body.prefix(60))")
            }
            // The server refuses the request because of the announced size; a client that sends the body all the same
            // may find the connection closed.
            let refused = try await RawConnection.exchange(
                intake.port,
                "POST /v1/receipts/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \(IntakeFixture.key)\r\n"
                    + "Content-Length: 9000000\r\n\r\n")
            #expect(refused.hasPrefix("HTTP/1.1 413") && refused.contains("body_too_large"))
            #expect(try await intake.send("GET", "/v1/receipts/batch").status == 405)
            #expect(try await intake.count("select count(*) from receipts") == before)
            // The batch is larger than a single post may be.
            let large = String(repeating: "QUJD", count: 200_000)
            let several = (0..<3).map { #"{"receipt":"\#(large)","transactionId":"\#($0)"}"# }
            let taken = try await intake.send("POST", "/v1/receipts/batch", body: Self.batch(several))
            #expect(try Self.answers(taken).map { $0["status"] } == [.integer(202), .integer(202), .integer(202)])
        }
    }

    @Test(
        "a batch of bare ids is as many questions: those beyond the day's limit are refused, the proofs beside them not"
    )
    func questions() async throws {
        try await RunningIntake.run { intake in
            let user = "curious-\(UUID())"
            let ids = (0..<30).map { _ in #"{"transactionId":"\#(UUID())"}"# }
            let answer = try await intake.send(
                "POST", "/v1/receipts/batch", body: Self.batch(ids + [Self.entry()], #","userId":"\#(user)""#))
            let statuses = try Self.answers(answer).map { $0["status"]?.text }
            let taken = Statements.questionsPerUserMax
            #expect(statuses.prefix(taken).allSatisfy { $0 == "202" })
            #expect(statuses.dropFirst(taken).dropLast().allSatisfy { $0 == "429" } && statuses.last == "202")
            #expect(
                try await intake.count("select count(*) from receipts where user_id = '\(user)'") == taken + 1)
        }
    }

    @Test("S3-14: a repeated post that names the item of what waits for one makes it due at once")
    func item() async throws {
        try await RunningIntake.run { intake in
            let jws = IntakeFixture.signedTransaction()
            let body = { (more: String) in #"{"userId":"item-1","signedTransaction":"\#(jws)"\#(more)}"# }
            guard case .string(let id)? = try await intake.post(body(""))["id"] else { return }
            try await intake.execute(
                """
                update receipts set state='held', reason='item_unknown', due_at=now() + interval '1 hour', judged_at=now()
                where id='\(id)'
                """)
            let due = "select count(*) from receipts where id='\(id)' and due_at <= now()"
            let again = try await intake.post(body(""))
            #expect(again["id"] == .string(id))
            #expect(try await intake.count(due) == 0)
            let named = try await intake.post(body(#","item":"sword""#))
            #expect(named["id"] == .string(id), "the same proof")
            #expect(try await intake.count(due) == 1)
            #expect(
                try await intake.count(
                    "select count(*) from receipts where id='\(id)' and declared ->> 'item' = 'sword'") == 1)
        }
    }
}
