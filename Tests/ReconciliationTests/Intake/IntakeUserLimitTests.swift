import Encoding
import Foundation
import HTTPTypes
import Service
import Settings
import TestServers
import Testing

/// Goal: one user gets no more than a user's share of ingest, and the answer names the limit. Method: tokens of a
/// gateway and service keys over real HTTP, with limits that are small enough to reach.
@Suite(.migratedDatabase, .serialized) struct IntakeUserLimitTests {
    private static func proof() -> String { #"{"signedTransaction":"\#(IntakeFixture.signedTransaction())"}"# }

    private static func refused(_ answer: RunningIntake.Answer, by limit: String) {
        #expect(answer.status == 429)
        #expect(answer["limit"] == .string(limit))
        #expect(answer["safeToFinish"] == .bool(false))
        #expect(answer.headers["retry-after"] != nil)
    }

    @Test("A user's own rate refuses the user first: what it refuses costs the others nothing")
    func rate() async throws {
        try await TestGateway.run(
            more: ", rate: {perSecond: 1, burst: 220}", limits: "{rate: {perSecond: 1, burst: 200}}"
        ) { intake, gateway in
            let flooder = try gateway.token("flooder")
            let entries = (0..<150).map { _ in Self.proof() }.joined(separator: ",")
            let batch = #"{"receipts":[\#(entries)]}"#
            #expect(try await intake.send("POST", "/v1/receipts/batch", key: flooder, body: batch).status == 200)
            let rows = "select count(*) from receipts where user_id = 'flooder'"
            #expect(try await intake.count(rows) == 150)
            // The rate does not allow 150 more: nothing of the batch is stored.
            Self.refused(
                try await intake.send("POST", "/v1/receipts/batch", key: flooder, body: batch), by: "user.rate")
            #expect(try await intake.count(rows) == 150)
            // The user can still use the rest, one request at a time.
            var statuses: [Int] = []
            for _ in 0..<70 { statuses.append(try await intake.get("/v1/receipts/\(UUID())", key: flooder).status) }
            #expect((48...60).contains(statuses.count { $0 == 404 }), "\(statuses)")
            #expect(statuses.last == 429)
            // The bucket of all users held 220, of which this user took 200 and the requests that came back.
            #expect(try await intake.post(Self.proof(), key: gateway.token("other")).status == 202)
        }
    }

    @Test("Entries that cannot be stored count once together")
    func wrongEntries() async throws {
        try await TestGateway.run(limits: "{rate: {perSecond: 1, burst: 200}}") { intake, gateway in
            let token = try gateway.token("clumsy")
            let batch = #"{"receipts":[\#(Array(repeating: "{}", count: 200).joined(separator: ","))]}"#
            for _ in 0..<20 {
                #expect(try await intake.send("POST", "/v1/receipts/batch", key: token, body: batch).status == 200)
            }
            #expect(try await intake.post(Self.proof(), key: token).status == 202)
        }
    }

    @Test("After batches at once a user waits for the time of one batch, not of all of them")
    func batchesAtOnce() async throws {
        let limiter = RateLimiter()
        let share = RateLimiter.Share(.gateway, name: "test", Rate(perSecond: 50, burst: 100))
        let now = ContinuousClock.now
        for _ in 0..<95 { try limiter.take(share, at: now) }
        for _ in 0..<95 { limiter.owe(share, 199, at: now) }
        var wait: Int?
        do { try limiter.take(share, at: now) } catch { wait = error.headers[.retryAfter].flatMap { Int($0) } }
        // 200 entries at 50 a second.
        #expect(wait == 5)
    }

    @Test("New receipts of a day: beyond them 429 with the limit's name, also by a service key; what is stored passes")
    func receipts() async throws {
        try await TestGateway.run(limits: "{receiptsPerDay: 80}") { intake, _ in
            let known = #"{"userId":"busy",\#(Self.proof().dropFirst())"#
            #expect(try await intake.post(known).status == 202)
            var answers: [RunningIntake.Answer] = []
            for _ in 0..<110 {
                answers.append(try await intake.post(#"{"userId":"busy",\#(Self.proof().dropFirst())"#))
            }
            let stored = answers.count { $0.status == 202 }
            // The database is asked from the 64th receipt on, and again after each 32 receipts.
            #expect((79...110).contains(stored), "\(stored)")
            Self.refused(try #require(answers.last), by: "user.receiptsPerDay")
            #expect(try await intake.post(known).status == 202)
            #expect(try await intake.post(#"{"userId":"else",\#(Self.proof().dropFirst())"#).status == 202)
            #expect(
                try await intake.count("select count(*) from receipts where user_id = 'busy'") == stored + 1)
        }
    }

    @Test("One proof under ever new orders is one receipt; beyond its lines 429 with the limit's name, also in a batch")
    func lines() async throws {
        try await TestGateway.run(limits: "{lines: 4}") { intake, gateway in
            let token = try gateway.token("namer")
            let proof = Self.proof()
            let post = { (order: Int) in #"{"orderId":"order-\#(order)",\#(proof.dropFirst())"# }
            var ids: Set<String> = []
            for order in 0..<4 {
                let answer = try await intake.post(post(order), key: token)
                #expect(answer.status == 202)
                ids.insert(answer["id"]?.text ?? "")
            }
            #expect(ids.count == 1)
            let refused = try await intake.post(post(4), key: token)
            Self.refused(refused, by: "user.lines")
            #expect(refused["code"] == .string("too_many_lines"))
            let batch = [0, 5, 2, 6].map(post).joined(separator: ",")
            let answers = try await intake.send(
                "POST", "/v1/receipts/batch", key: token, body: #"{"receipts":[\#(batch)]}"#)
            guard case .array(let entries)? = answers["receipts"] else {
                Issue.record("\(answers.text)")
                return
            }
            #expect(entries.map { $0["status"]?.text } == ["202", "429", "202", "429"])
            // The posts are taken in order: the receipt has the order id of the last post that was accepted.
            #expect(
                try await intake.count(
                    "select count(*) from receipts where user_id = 'namer' and order_id = 'order-2'") == 1)
            #expect(try await intake.count("select count(*) from receipts where user_id = 'namer'") == 1)
            #expect(
                try await intake.count(
                    "select count(*) from receipt_lines where receipt_id in (select id from receipts where user_id = 'namer')"
                )
                    == 4)
            // The same proof of another user is another receipt.
            #expect(try await intake.post(post(4), key: gateway.token("other-namer")).status == 202)
        }
    }

    @Test("The answer is about the transaction that this post names, also of what has ended")
    func meant() async throws {
        try await TestGateway.run(limits: "{rate: {perSecond: 100, burst: 400}}") { intake, gateway in
            let token = try gateway.token("asker")
            let proof = Self.proof()
            let post = { (transaction: String) in #"{"transactionId":"\#(transaction)",\#(proof.dropFirst())"# }
            guard case .string(let id)? = try await intake.post(post("t1"), key: token)["id"] else { return }
            try await intake.execute(
                "update receipts set state = 'rejected', reason = 'refunded', due_at = null, settled_at = now() where id = '\(id)'"
            )
            try await intake.execute(
                "insert into outcomes (receipt_id, transaction_id, state, reason) values "
                    + "('\(id)', 't1', 'rejected', 'refunded'), ('\(id)', 't2', 'rejected', 'wrong_app')")
            for (transaction, isSafe) in [("t1", true), ("t2", false), ("t1", true)] {
                let answer = try await intake.post(post(transaction), key: token)
                #expect(answer.status == 200 && answer["safeToFinish"] == .bool(isSafe))
                #expect(try await intake.get("/v1/receipts/\(id)", key: token)["safeToFinish"] == .bool(isSafe))
            }
        }
    }

    @Test("Bytes of a day: the body that passes them is read, the next is not; others are")
    func bytes() async throws {
        try await TestGateway.run(limits: "{bytesPerDay: 1048576}") { intake, gateway in
            let large =
                #"{"details":{"note":"\#(String(repeating: "x", count: 400_000))"},\#(Self.proof().dropFirst())"#
            let token = try gateway.token("large")
            for _ in 0..<3 { #expect(try await intake.post(large, key: token).status == 202) }
            Self.refused(try await intake.post(Self.proof(), key: token), by: "user.bytesPerDay")
            #expect(try await intake.post(Self.proof(), key: gateway.token("small")).status == 202)
            #expect(try await intake.get("/v1/receipts/\(UUID())", key: token).status == 404)
        }
    }

    @Test("Receipts without a verdict: who has too many waits until they are judged")
    func open() async throws {
        try await TestGateway.run(limits: "{openReceipts: 70}") { intake, _ in
            var last: RunningIntake.Answer?
            for _ in 0..<110 { last = try await intake.post(#"{"userId":"open",\#(Self.proof().dropFirst())"#) }
            Self.refused(try #require(last), by: "user.openReceipts")
            try await intake.execute(
                """
                update receipts set state = 'rejected', reason = 'signature', due_at = null, settled_at = now()
                where user_id = 'open'
                """)
            try await Task.sleep(for: .seconds(1.1))
            #expect(try await intake.post(#"{"userId":"open",\#(Self.proof().dropFirst())"#).status == 202)
        }
    }

    @Test("Of one user 64 receipts a second are published at once; more are due in a second and come by the scheduler")
    func turns() async throws {
        try await RunningIntake.run { intake in
            let entries = (["patient"] + Array(repeating: "eager", count: 100)).map {
                #"{"userId":"\#($0)",\#(Self.proof().dropFirst())"#
            }
            let batch = #"{"receipts":[\#(entries.joined(separator: ","))]}"#
            let answer = try await intake.send("POST", "/v1/receipts/batch", body: batch)
            #expect(answer.status == 200)
            let due = { (user: String, isSoon: Bool) in
                try await intake.count(
                    """
                    select count(*) from receipts
                    where user_id = '\(user)' and due_at - received_at \(isSoon ? "=" : ">") interval '1 second'
                    """)
            }
            #expect(try await due("eager", false) == 64)
            #expect(try await due("eager", true) == 36)
            #expect(try await due("patient", false) == 1)
        }
    }

    @Test("A list that the database needs too long for is 503 with the limit's name, and posts go on beside it")
    func listTime() async throws {
        try await RunningIntake.run { intake in
            let path = "/v1/orders?userId=u1"
            #expect(try await intake.get(path).status == 200)
            let slow = Task {
                try await intake.execute(
                    "do $$ begin lock table orders in access exclusive mode; perform pg_sleep(4); end $$")
            }
            try await Task.sleep(for: .milliseconds(500))
            let start = ContinuousClock.now
            async let list = intake.get(path)
            #expect(try await intake.post(#"{"userId":"u2",\#(Self.proof().dropFirst())"#).status == 202)
            #expect(ContinuousClock.now - start < .seconds(1))
            let refused = try await list
            #expect(refused.status == 503)
            #expect(refused["limit"] == .string("request.listTime"))
            #expect(refused.headers["retry-after"] != nil)
            try await slow.value
            #expect(try await intake.get(path).status == 200)
        }
    }

    @Test("Installation tokens of a user and day are places: twenty of thirty that are asked for at once")
    func installations() async throws {
        try await TestGateway.run(limits: "{rate: {perSecond: 100, burst: 400}}") { intake, gateway in
            let token = try gateway.token("collector")
            let answers = try await withThrowingTaskGroup(of: RunningIntake.Answer.self) { group in
                for _ in 0..<30 {
                    group.addTask { try await intake.send("POST", "/v1/installations", key: token, body: "{}") }
                }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            #expect(answers.count { $0.status == 201 } == 20)
            for answer in answers where answer.status != 201 {
                Self.refused(answer, by: "user.installationsPerDay")
            }
            #expect(try await intake.count("select count(*) from installations") == 20)
            // A service key whose request names no user is a backend, which has a rate of its own.
            #expect(try await intake.send("POST", "/v1/installations", body: "{}").status == 201)
        }
    }

    @Test(
        "What one user may take is read strictly",
        arguments: [
            ("rate: {perSecond: 10, burst: 199}", "limits.user.rate"),
            ("receiptsPerDay: 0", "limits.user.receiptsPerDay"),
            ("bytesPerDay: 1", "limits.user.bytesPerDay"), ("lines: 0", "limits.user.lines"),
            ("posts: 3", "limits.user.posts"),
        ])
    func configuration(_ text: String, _ key: String) throws {
        let error = #expect(throws: ConfigurationError.self) {
            try IntakeFixture.configuration(gatewayJWT: "limits: {user: {\(text)}}")
        }
        #expect(error?.key == key)
        #expect(try IntakeFixture.configuration().userLimits == UserLimits())
    }
}
