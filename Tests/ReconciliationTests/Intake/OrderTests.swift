import Encoding
import Foundation
import Ledger
import Postgres
import Service
import TestServers
import Testing

/// Goal: an order is stored before the payment, freezes its promise, and tells its user its outcome (S2-5, B6, S3-29).
/// Method: real HTTP, then the rows as they are in the database; the test writes a worker's rows by SQL.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(5))) struct OrderTests {
    private static let product = "com.example.game.coins6"

    /// A user that no other test uses.
    private static func user() -> String { "u-\(UUID().uuidString.prefix(8))" }

    private static func body(_ user: String, _ more: String = "") -> String {
        #"{"userId":"\#(user)","productId":"\#(product)"\#(more)}"#
    }

    private static func id(_ answer: RunningIntake.Answer) throws -> String {
        guard case .string(let id)? = answer["id"] else { throw Missing(answer: answer.text) }
        return id
    }

    private struct Missing: Error {
        let answer: String
    }

    // MARK: Placing

    @Test("S1-9, S2-5, S2-11: the answer has the id, the product to buy, the environment and what is promised")
    func placing() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            let answer = try await intake.order(Self.body(user))
            #expect(answer.status == 201)
            #expect(UUID(uuidString: try Self.id(answer)) != nil, "S3-59: it travels as appAccountToken")
            #expect(answer["state"] == .string("open"))
            #expect(answer["productId"] == .string(Self.product))
            #expect(answer["environment"] == .string("Sandbox"))
            #expect(answer["channel"] == .string("apple"))
            #expect(
                answer["goods"]
                    == .array([.object([.init("item", .string("coins")), .init("amount", .integer(6000))])]))
            #expect(answer["repeated"] == nil)
            let hours = try await intake.count(
                """
                select extract(epoch from pay_by - placed_at)::int / 3600 from orders where user_id = '\(user)'
                  and goods = '[{"item": "coins", "amount": 6000}]'
                """)
            #expect(hours == 48)
        }
    }

    @Test("S0-1, S0-9, S0-10: the old clients' columns are taken; server and role are where the goods go")
    func columns() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            let answer = try await intake.order(
                """
                {"userId":"\(user)","token":"secret-session","uid":"8001","item":"\(Self.product)","itemnum":6,
                 "appsid":12,"vtime":1712000000,"country":"CN","ext":"role-7","transactionId":null,"receipt":"QUJD",
                 "finishTransaction":false,"future":[1]}
                """)
            #expect(answer.status == 201)
            #expect(answer["ignored"] == .array([.string("receipt"), .string("future")]))
            #expect(answer["target"]?["server"] == .number("12"))
            let stored = try await intake.count(
                """
                select count(*) from orders where user_id = '\(user)' and product_id = '\(Self.product)'
                  and target = '{"server": 12, "role": "role-7", "country": "CN"}'
                  and details @> '{"uid": "8001", "itemnum": 6, "appsid": 12, "vtime": 1712000000, "ext": "role-7",
                    "country": "CN", "finishTransaction": false, "future": [1]}'
                  and details ? 'tokenSha256' and not details ? 'token' and not details ? 'receipt'
                """)
            #expect(stored == 1)
            #expect(try await intake.count("select count(*) from orders where details::text like '%secret%'") == 0)
        }
    }

    @Test("S3-43, S2-12: frequent taps are one order; another order, and a later one, is an order of its own")
    func debounce() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            let answers = try await withThrowingTaskGroup(of: RunningIntake.Answer.self) { group in
                for _ in 0..<50 { group.addTask { try await intake.order(Self.body(user)) } }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            #expect(answers.filter { $0.status == 201 }.count == 1)
            #expect(answers.filter { $0.status == 200 && $0["repeated"] == .bool(true) }.count == 49)
            let first = try Self.id(answers[0])
            #expect(try answers.allSatisfy { try Self.id($0) == first })
            var ids: Set = [first]
            for more in [
                #","quantity":2"#, #","target":{"server":"s1"}"#, #","target":{"server":"s1","role":"r1"}"#,
                #","appsid":"s2""#, #","channel":"wechat""#, #","transactionId":"2000000000000001""#,
            ] {
                let answer = try await intake.order(Self.body(user, more))
                #expect(answer.status == 201, "\(more)")
                ids.insert(try Self.id(answer))
            }
            #expect(ids.count == 7)
            let other = try await intake.order(Self.body(Self.user()))
            #expect(try other.status == 201 && ids.insert(Self.id(other)).inserted)
            // The order is bound: the next request is the next purchase.
            try await intake.grant(first, "t-\(first)")
            let second = try await intake.order(Self.body(user))
            #expect(try second.status == 201 && ids.insert(Self.id(second)).inserted)
            // Some seconds later a new order is possible: there is never a hard block.
            try await intake.execute("update orders set placed_at = placed_at - interval '10 s'")
            let third = try await intake.order(Self.body(user))
            #expect(try third.status == 201 && ids.insert(Self.id(third)).inserted)
        }
    }

    @Test("an idempotency key is one order, whenever it comes again, and never two different ones")
    func idempotency() async throws {
        try await RunningIntake.run { intake in
            let (user, key) = (Self.user(), #","idempotencyKey":"k-1""#)
            let first = try await intake.order(Self.body(user, key))
            try await intake.execute("update orders set placed_at = placed_at - interval '1 day'")
            let again = try await intake.order(Self.body(user, key))
            #expect(try first.status == 201 && again.status == 200 && Self.id(first) == Self.id(again))
            let changed = try await intake.order(Self.body(user, key + #","quantity":3"#))
            #expect(changed.status == 409 && changed["code"] == .string("idempotency_key"))
            #expect(changed["field"] == .string("idempotencyKey"))
            let others = try await intake.order(Self.body(Self.user(), key))
            #expect(try others.status == 201 && Self.id(others) != Self.id(first), "another user's key is another key")
        }
    }

    @Test("S2-17, S3-23: an order for a purchase that came without one is reserved, promises nothing, and is one")
    func reserved() async throws {
        try await RunningIntake.run { intake in
            let (user, transaction) = (Self.user(), UUID().uuidString)
            let first = try await intake.order(Self.body(user, #","transactionId":"\#(transaction)""#))
            #expect(first.status == 201 && first["reservedFor"] == .string(transaction) && first["goods"] == nil)
            try await intake.execute("update orders set placed_at = placed_at - interval '1 day'")
            let again = try await intake.order(Self.body(user, #","transactionId":"\#(transaction)""#))
            #expect(try again.status == 200 && Self.id(again) == Self.id(first))
            // A paid purchase is always accepted: a product that is no longer sold gets an order all the same.
            let unknown =
                #"{"userId":"\#(user)","productId":"com.example.gone","quantity":3,"transactionId":"\#(UUID())"}"#
            #expect(try await intake.order(unknown).status == 201)
            // The purchase was bound to another order in the meantime: the answer is that order.
            let bound = try await intake.order(Self.body(user, #","quantity":5"#))
            let late = UUID().uuidString
            try await intake.grant(try Self.id(bound), late)
            let told = try await intake.order(Self.body(user, #","transactionId":"\#(late)""#))
            #expect(try told.status == 200 && Self.id(told) == Self.id(bound) && told["state"] == .string("granted"))
            // The answer is the same with a key that was never used.
            let keyed = #","transactionId":"\#(late)","idempotencyKey":"\#(UUID())""#
            let toldAgain = try await intake.order(Self.body(user, keyed))
            #expect(try toldAgain.status == 200 && Self.id(toldAgain) == Self.id(bound))
            // Another user does not get this user's order.
            let stranger = try await intake.order(Self.body(Self.user(), #","transactionId":"\#(late)""#))
            #expect(try stranger.status == 201 && Self.id(stranger) != Self.id(bound))
        }
    }

    @Test("S3-23: an order that is asked for after its purchase was given without one has ended, with what was given")
    func reservedTooLate() async throws {
        try await RunningIntake.run { intake in
            let (user, guest, transaction) = (Self.user(), Self.user(), UUID().uuidString)
            try await intake.execute(
                "insert into merges (app_id, user_id, into_user_id) values ('game', '\(guest)', '\(user)')")
            try await intake.execute(
                """
                insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
                  quantity, goods, binding_source)
                values ('\(transaction)', '\(transaction)', 'game', 'Production', '\(guest)', gen_random_uuid(),
                  '\(Self.product)', 1, '[{"item": "coins", "amount": 6000}]', 'poster')
                """)
            let first = try await intake.order(Self.body(user, #","transactionId":"\#(transaction)""#))
            #expect(first.status == 201 && first["state"] == .string("granted"))
            #expect(first["transactionId"] == .string(transaction))
            let id = try Self.id(first)
            try await intake.execute("update orders set placed_at = placed_at - interval '1 day'")
            for key in ["", #","idempotencyKey":"\#(UUID())""#] {
                let again = try await intake.order(Self.body(user, #","transactionId":"\#(transaction)"\#(key)"#))
                #expect(try again.status == 200 && Self.id(again) == id && again["state"] == .string("granted"))
            }
            let polled = try await intake.get("/v1/orders/\(id)?wait=20")
            #expect(polled["state"] == .string("granted") && polled["granted"] == first["granted"])
            #expect(polled["granted"] != nil)
            let listed = try await intake.get("/v1/orders?userId=\(user)&state=granted")
            #expect(listed.text.contains(id))
            let timeline = try await intake.get("/v1/orders/\(id)/explain", key: IntakeFixture.supportKey)
            #expect(timeline["state"] == .string("granted"), "\(timeline.text)")
            // A user to whom the purchase was not given has an open order.
            let stranger = try await intake.order(Self.body(Self.user(), #","transactionId":"\#(transaction)""#))
            #expect(stranger.status == 201 && stranger["state"] == .string("open"))
            // The dashboards see each order as it is; after the erasure of its user, nothing says where the user plays.
            let strangers = try Self.id(stranger)
            #expect(
                try await intake.count(
                    """
                    select count(*) from v_orders where id = '\(id)' and transaction_id = '\(transaction)'
                      or id = '\(strangers)' and transaction_id is null
                    """) == 2)
            try await intake.execute("update orders set target = '{\"server\": \"s1\"}' where id = '\(id)'")
            let erasure = UserErasure(database: intake.ledger.database, keys: nil, actor: "ann")
            #expect(try await erasure.erase(UserName(appID: "game", key: user)))
            #expect(try await intake.count("select count(*) from orders where id = '\(id)' and target = '{}'") == 1)
            // No receipt belongs to this grant, so the grant would violate the invariants.
            try await intake.execute("delete from grants where transaction_id = '\(transaction)'")
        }
    }

    @Test("one user may place a thousand orders a day")
    func tooMany() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            try await intake.execute(
                """
                insert into orders (id, app_id, user_id, product_id, placed_on, place)
                select gen_random_uuid(), 'game', '\(user)', 'p', (now() at time zone 'UTC')::date, n
                from generate_series(1, \(Statements.ordersPerUserMax - 1)) n
                """)
            #expect(try await intake.order(Self.body(user)).status == 201)
            let refused = try await intake.order(Self.body(user, #","quantity":2"#))
            #expect(refused.status == 429 && refused["code"] == .string("too_many_orders"))
            #expect(refused.headers["retry-after"] != nil)
            #expect(try await intake.order(Self.body(Self.user())).status == 201)
        }
    }

    // MARK: Bad input

    struct Refusal: Sendable, CustomTestStringConvertible {
        let more: String
        let status: Int
        let code: String
        let field: String?
        var testDescription: String { "\(status) \(code) \(more.prefix(60))" }

        init(_ more: String, _ status: Int, _ code: String, _ field: String? = nil) {
            self.more = more
            self.status = status
            self.code = code
            self.field = field
        }
    }

    static let refusals: [Refusal] = [
        Refusal("[]", 400, "not_json"),
        Refusal("{}", 422, "no_user", "userId"),
        Refusal(#"{"userId":"u"}"#, 422, "no_product"),
        Refusal(#"{"userId":"u","productId":"com.example.unknown"}"#, 422, "product_unknown", "productId"),
        Refusal(#"{"userId":"u","item":"unknown"}"#, 422, "item_unknown", "item"),
        Refusal(#"{"userId":"u","productId":"\#(product)","item":"gems"}"#, 422, "item_unknown", "item"),
        Refusal(#"{"userId":"u","productId":"\#(product)","quantity":0}"#, 400, "wrong_type", "quantity"),
        Refusal(#"{"userId":"u","productId":"\#(product)","quantity":-1}"#, 400, "wrong_type", "quantity"),
        Refusal(#"{"userId":"u","productId":"\#(product)","quantity":11}"#, 400, "wrong_type", "quantity"),
        Refusal(#"{"userId":"u","productId":"\#(product)","quantity":"2"}"#, 400, "wrong_type", "quantity"),
        Refusal(#"{"userId":"u","productId":"com.example.game.pass","quantity":2}"#, 422, "quantity", "quantity"),
        Refusal(#"{"userId":"u","productId":"\#(product)","promotion":"spring"}"#, 409, "promotion_over", "promotion"),
        Refusal(
            #"{"userId":"u","productId":"\#(product)","target":{"server":"s1"},"appsid":"s2"}"#, 422, "contradiction",
            "appsid"),
        Refusal(
            #"{"userId":"u","productId":"\#(product)","target":{"role":"r"},"ext":"q"}"#, 422, "contradiction", "ext"),
        Refusal(
            #"{"userId":"u","productId":"\#(product)","priceMilliunits":1.5}"#, 400, "wrong_type", "priceMilliunits"),
        Refusal(
            #"{"userId":"u","productId":"\#(product)","priceMilliunits":-1}"#, 400, "wrong_type", "priceMilliunits"),
        Refusal(#"{"userId":"u","userId":"v","productId":"\#(product)"}"#, 400, "duplicate_member", "userId"),
        Refusal(
            #"{"userId":"u","productId":"\#(product)","quantity":1,"quantity":2}"#, 400, "duplicate_member", "quantity"),
        Refusal(
            #"{"userId":"u","productId":"\#(product)","promotion":"a","promotion":"b"}"#, 400, "duplicate_member",
            "promotion"),
        Refusal(
            #"{"userId":"u","productId":"\#(product)","target":{"server":"a","server":"b"}}"#, 400, "duplicate_member",
            "target.server"),
        Refusal(#"{"userId":"u\u0000","productId":"\#(product)"}"#, 400, "zero_character", "userId"),
        Refusal(
            #"{"userId":"u","productId":"\#(product)","client":{"x":"\#(String(repeating: "x", count: 65_536))"}}"#,
            400,
            "too_long"),
        Refusal(#"{"appId":"other","userId":"u","productId":"\#(product)"}"#, 403, "app_not_allowed", "appId"),
    ]

    @Test("before a payment, what makes no sense is refused by its field, and nothing is stored")
    func refused() async throws {
        try await RunningIntake.run { intake in
            let before = try await intake.count("select count(*) from orders")
            for refusal in Self.refusals {
                let answer = try await intake.order(refusal.more)
                #expect(answer.status == refusal.status, "\(refusal.testDescription): \(answer.text)")
                #expect(answer["code"] == .string(refusal.code), "\(refusal.testDescription)")
                #expect(answer["field"] == refusal.field.map { .string($0) }, "\(refusal.testDescription)")
            }
            #expect(try await intake.count("select count(*) from orders") == before)
        }
    }

    @Test("S1-9: an environment that the app does not have is no expectation, and no reason to refuse")
    func environment() async throws {
        try await RunningIntake.run { intake in
            let answer = try await intake.order(Self.body(Self.user(), #","environment":"Production""#))
            #expect(answer.status == 201 && answer["environment"] == .string("Sandbox"))
            #expect(answer["ignored"] == .array([.string("environment")]))
        }
    }

    // MARK: Reading

    @Test("S3-29, S3-16: open, expired and still to be found, bound, granted with its goods")
    func states() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            let id = try Self.id(try await intake.order(Self.body(user)))
            #expect(try await intake.get("/v1/orders/\(id)")["state"] == .string("open"))
            try await intake.execute("update orders set pay_by = now() - interval '1 s' where id = '\(id)'")
            #expect(try await intake.get("/v1/orders/\(id)")["state"] == .string("expired"))
            // A worker grants the purchase while a client waits.
            async let waiting = intake.get("/v1/orders/\(id)?wait=20")
            try await Task.sleep(for: .milliseconds(300))
            try await intake.grant(id, "t-\(id)")
            let granted = try await waiting
            #expect(granted["state"] == .string("granted") && granted["transactionId"] == .string("t-\(id)"))
            #expect(
                granted["granted"]
                    == .array([.object([.init("item", .string("coins")), .init("amount", .integer(6000))])]))
        }
    }

    @Test("the submissions that named it, and the order each was bound to")
    func submissions() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            let named = try Self.id(try await intake.order(Self.body(user)))
            let right = try Self.id(try await intake.order(Self.body(user, #","quantity":2"#)))
            let transaction = "t-\(right)"
            var receipts: [String] = []
            // S1-18: one post names the order alone, one also names the user; a client may write the id in capitals.
            for body in [
                #"{"orderId":"\#(named)","receipt":"QUJD"}"#,
                #"{"userId":"\#(user)","orderId":"\#(named.uppercased())","receipt":"REVG"}"#,
                #"{"userId":"\#(Self.user())","orderId":"\#(named)","receipt":"R0hJ"}"#,
            ] {
                receipts.append(try Self.id(try await intake.post(body)))
            }
            try await intake.grant(right, transaction)
            try await intake.execute(
                """
                insert into outcomes (receipt_id, transaction_id, state)
                values ('\(receipts[0])', '\(transaction)', 'granted'), ('\(receipts[0])', 't-other-\(right)', 'held')
                """)
            let answer = try await intake.get("/v1/orders/\(named)")
            #expect(answer["state"] == .string("open"))
            guard case .array(let submissions)? = answer["submissions"] else { throw Missing(answer: answer.text) }
            #expect(submissions.map { $0["id"] } == receipts.prefix(2).map { .string($0) }, "not the stranger's")
            #expect(submissions.map { $0["state"] } == [.string("received"), .string("received")])
            guard case .array(let transactions)? = submissions[0]["transactions"] else {
                throw Missing(answer: answer.text)
            }
            #expect(transactions.first { $0["transactionId"] == .string(transaction) }?["orderId"] == .string(right))
            #expect(transactions.first { $0["state"] == .string("held") }?["orderId"] == nil)
        }
    }

    @Test("what a client forgot: a user's orders, by product and state, the newest first")
    func search() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            var ids: [String] = []
            for quantity in 1...4 {
                ids.append(try Self.id(try await intake.order(Self.body(user, #","quantity":\#(quantity)"#))))
            }
            _ = try await intake.order(#"{"userId":"\#(user)","productId":"com.example.game.pass"}"#)
            try await intake.execute("update orders set pay_by = now() - interval '1 s' where id = '\(ids[0])'")
            try await intake.grant(ids[1], "t-\(ids[1])")
            func found(_ query: String) async throws -> [String] {
                let answer = try await intake.get("/v1/orders?\(query)")
                guard answer.status == 200, case .array(let orders)? = answer["orders"] else {
                    throw Missing(answer: answer.text)
                }
                return orders.compactMap { if case .string(let id)? = $0["id"] { id } else { nil } }
            }
            let query = "userId=\(user)&productId=\(Self.product)"
            #expect(try await found(query) == ids.reversed())
            #expect(try await found(query + "&state=open") == [ids[3], ids[2]])
            #expect(try await found(query + "&state=expired") == [ids[0]])
            for state in ["granted", "bound"] {
                #expect(try await found(query + "&state=\(state)") == [ids[1]])
            }
            #expect(try await found(query + "&limit=2") == [ids[3], ids[2]])
            #expect(try await found("userId=\(user)").count == 5)
            for (filter, all) in [("", 5), ("&productId=\(Self.product)", 4), ("&state=open", 3)] {
                for limit in 1...5 {
                    var (pages, cursor): ([Int], String?) = ([], "")
                    while let after = cursor {
                        let page = try await intake.get(
                            "/v1/orders?userId=\(user)\(filter)&limit=\(limit)"
                                + (after.isEmpty ? "" : "&after=\(after)"))
                        guard case .array(let orders)? = page["orders"] else { throw Missing(answer: page.text) }
                        pages.append(orders.count)
                        if case .string(let next)? = page["next"] { cursor = next } else { cursor = nil }
                    }
                    let full = Array(repeating: limit, count: (all - 1) / limit)
                    #expect(pages == full + [all - full.count * limit], "\(filter), pages of \(limit)")
                }
            }
            #expect(try await found("userId=\(Self.user())") == [])
            for bad in [
                "userId=\(user)&state=ended", "userId=\(user)&after=then", "userId=\(user)&limit=0",
                "userId=\(user)&limit=201",
                "userId=\(user)&userId=\(user)", "userId=\(user)&productId=a&productId=b",
                "userId=\(user)&state=open&state=open", "userId=\(user)&limit=1&limit=2",
                "userId=\(user)&appId=game&appId=other",
            ] {
                #expect(try await intake.get("/v1/orders?\(bad)").status == 400, "\(bad)")
            }
        }
    }

    @Test("an order of another user or app is not found; a token acts for its own user")
    func access() async throws {
        try await TestGateway.run { intake, gateway in
            let (owner, stranger) = (Self.user(), Self.user())
            let placed = try await intake.order(
                #"{"productId":"\#(Self.product)"}"#, key: gateway.token(owner))
            let id = try Self.id(placed)
            #expect(placed.status == 201)
            #expect(try await intake.count("select count(*) from orders where user_id = '\(owner)'") == 1)
            #expect(try await intake.get("/v1/orders/\(id)", key: gateway.token(owner)).status == 200)
            #expect(try await intake.get("/v1/orders/\(id)").status == 200)
            let nothing = try await intake.get("/v1/orders/\(UUID())", key: gateway.token(owner))
            #expect(nothing.status == 404)
            let foreign = try await intake.get("/v1/orders/\(id)?wait=5", key: gateway.token(stranger))
            #expect(foreign.status == 404 && foreign.text == nothing.text)
            #expect(try await intake.get("/v1/orders/no-uuid").status == 404)
            try await intake.execute("update orders set app_id = 'other' where id = '\(id)'")
            #expect(try await intake.get("/v1/orders/\(id)").status == 404)
            #expect(try await intake.order(Self.body(stranger), key: gateway.token(owner)).status == 403)
            #expect(try await intake.get("/v1/orders?userId=\(stranger)", key: gateway.token(owner)).status == 403)
            #expect(try await intake.get("/v1/orders?appId=other&userId=\(owner)").status == 403)
            #expect(try await intake.get("/v1/orders", key: gateway.token(owner)).status == 200)
            #expect(try await intake.order(Self.body(owner), key: IntakeFixture.backendKey).status == 403)
            #expect(try await intake.order(Self.body(owner), key: nil).status == 401)
        }
    }
}

extension RunningIntake {
    func order(_ body: String, key: String? = IntakeFixture.key) async throws -> Answer {
        try await send("POST", "/v1/orders", key: key, body: body)
    }

    /// Grants a purchase by this order, which binds it.
    func grant(_ order: String, _ transaction: String) async throws {
        try await execute(
            """
            insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id, quantity,
              goods, binding_source, order_id)
            select '\(transaction)', '\(transaction)', app_id, 'Sandbox', user_id, gen_random_uuid(), product_id, quantity,
              '[{"item": "coins", "amount": 6000}]', 'poster', id from orders where id = '\(order)'
            """)
    }
}
