import Encoding
import Foundation
import Ledger
import Purchases
import TestServers
import Testing

@testable import Intake

/// Goal: a purchase is found and told in the ways beside a post of one's own: by an open order, by an order number, by
/// the trace of repeated posts, by a masked owner, and by the report of another way of payment. Method: real HTTP, then
/// the rows; the tests write a worker's rows by SQL.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(5))) struct OtherWaysTests {
    private static let product = "com.example.game.coins6"
    private static let paymentKey = "payments-key-6"
    private static let access = IntakeFixture.entry("payments", paymentKey, "orders", "game")

    private static func user() -> String { "u-\(UUID().uuidString.prefix(8))" }

    private static func id(_ answer: RunningIntake.Answer) throws -> String {
        guard case .string(let id)? = answer["id"] else { throw Missing(answer: answer.text) }
        return id
    }

    private struct Missing: Error {
        let answer: String
    }

    private static func first(_ answer: RunningIntake.Answer, _ list: String) throws -> JSONValue {
        guard case .array(let values)? = answer[list], let value = values.first else {
            throw Missing(answer: answer.text)
        }
        return value
    }

    // MARK: The open order

    @Test("S2-21: the answer to a new order names the open order of the same user and product, the newest one")
    func openOrder() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            func place(_ more: String, _ name: String? = nil) async throws -> RunningIntake.Answer {
                try await intake.order(#"{"userId":"\#(name ?? user)","productId":"\#(Self.product)"\#(more)}"#)
            }
            let first = try await place("")
            #expect(first.status == 201 && first["openOrder"] == nil)
            #expect(try await place("")["openOrder"] == nil, "the same tap is the order itself")
            let second = try await place(#","quantity":2"#)
            #expect(second.status == 201)
            #expect(second["openOrder"]?["orderId"] == .string(try Self.id(first)))
            #expect(second["openOrder"]?["placedAt"] == first["placedAt"])
            let third = try await place(#","quantity":3"#)
            #expect(third["openOrder"]?["orderId"] == .string(try Self.id(second)))
            // Bound, expired and reserved orders are not open, nor are those of another user or product.
            try await intake.grant(try Self.id(second), "t-\(try Self.id(second))")
            try await intake.execute("update orders set pay_by = now() where id = '\(try Self.id(third))'")
            let reserved = try await place(#","quantity":4,"transactionId":"t-r-\#(user)""#)
            #expect(reserved.status == 201 && reserved["openOrder"] == nil, "its purchase is made")
            let fourth = try await place(#","quantity":5"#)
            #expect(fourth["openOrder"]?["orderId"] == .string(try Self.id(first)))
            #expect(try await place("", Self.user())["openOrder"] == nil)
            let other = try await intake.order(#"{"userId":"\#(user)","productId":"com.example.game.pass"}"#)
            #expect(other.status == 201 && other["openOrder"] == nil)
        }
    }

    // MARK: Another way of payment

    @Test(
        "S3-70: the service of another way of payment reports its orders; each state is told once; Apple's end not so")
    func payments() async throws {
        try await RunningIntake.run(access: Self.access) { intake in
            func place(_ channel: String) async throws -> String {
                try Self.id(
                    try await intake.order(
                        #"{"userId":"\#(Self.user())","productId":"\#(Self.product)","quantity":2,"channel":"\#(channel)"}"#
                    ))
            }
            func report(
                _ id: String, _ state: String, key: String? = Self.paymentKey
            ) async throws -> RunningIntake.Answer {
                try await intake.send(
                    "POST", "/v1/orders/\(id)/payment", key: key, body: #"{"state":"\#(state)","reference":"wx-1"}"#)
            }
            func told(_ id: String) async throws -> Int {
                try await intake.count("select count(*) from events where transaction_id = '\(id)'")
            }
            let order = try await place("wechat")
            for (state, status, isRepeated, events) in [
                ("refunded", 409, false, 0), ("closed", 200, false, 1), ("closed", 200, true, 1),
                // The user has paid all the same.
                ("paid", 200, false, 2), ("paid", 200, true, 2), ("closed", 409, false, 2),
                ("refunded", 200, false, 3), ("refunded", 200, true, 3), ("paid", 409, false, 3),
            ] {
                let answer = try await report(order, state)
                #expect(answer.status == status, "\(state): \(answer.text)")
                if status == 200 {
                    #expect(answer["state"] == .string(state) && answer["endedAt"] != nil)
                    #expect((answer["repeated"] == .bool(true)) == isRepeated)
                } else {
                    #expect(answer["code"] == .string("order_ended"))
                }
                #expect(try await told(order) == events, "\(state)")
            }
            #expect(try await intake.get("/v1/orders/\(order)")["state"] == .string("refunded"))
            let body = try await intake.count(
                """
                select count(*) from events where transaction_id = '\(order)' and type = 'order.paid'
                  and body @> '{"channel": "wechat", "quantity": 2, "reference": "wx-1",
                    "goods": [{"item": "coins", "amount": 12000}]}'
                """)
            #expect(body == 1, "the goods of both units")
            var paid: [JSONValue] = []
            // Transactions elsewhere on this server hold the feed back for a moment.
            for _ in 0..<500 where paid.isEmpty {
                let feed = try await intake.get("/v1/events?limit=1000", key: IntakeFixture.backendKey)
                guard case .array(let events)? = feed["events"] else { throw Missing(answer: feed.text) }
                paid = events.filter {
                    $0["type"] == .string("order.paid") && $0["data"]?["orderId"] == .string(order)
                }
                if paid.isEmpty { try await Task.sleep(for: .milliseconds(10)) }
            }
            #expect(paid.count == 1 && paid[0]["transactionId"] == nil && paid[0]["receiptId"] == nil)

            for channel in ["apple", "App_Store"] {
                let apple = try await report(try await place(channel), "paid")
                #expect(apple.status == 409 && apple["code"] == .string("order_of_apple"))
            }
            let bound = try await place("alipay")
            try await intake.grant(bound, "t-\(bound)")
            let granted = try await report(bound, "paid")
            #expect(granted.status == 409 && granted["code"] == .string("order_ended"))
            #expect(try await told(bound) == 0)
            // Else the user would keep the goods of a payment that was given back.
            let both = try await place("alipay")
            #expect(try await report(both, "paid").status == 200)
            try await intake.grant(both, "t-\(both)")
            #expect(try await report(both, "refunded").status == 200)
            #expect(try await told(both) == 2)
            let open = try await place("alipay")
            #expect(try await report(open, "paid", key: IntakeFixture.key).status == 403, "needs the scope")
            #expect(try await report(open, "done").status == 422)
            #expect(try await report(UUID().uuidString, "paid").status == 404)
            #expect(try await told(open) == 0)
        }
    }

    @Test("S3-70: a user's own token reports no payment, whatever its scopes say")
    func ownPayment() async throws {
        try await TestGateway.run(scopes: "intake, orders") { intake, gateway in
            let token = try gateway.token(Self.user())
            let body = #"{"productId":"\#(Self.product)","channel":"wechat"}"#
            let order = try Self.id(try await intake.send("POST", "/v1/orders", key: token, body: body))
            let paid = try await intake.send(
                "POST", "/v1/orders/\(order)/payment", key: token, body: #"{"state":"paid"}"#)
            #expect(paid.status == 403 && paid["code"] == .string("missing_scope"))
            #expect(try await intake.count("select count(*) from events where transaction_id = '\(order)'") == 0)
        }
    }

    // MARK: Numbers, repeats and hints

    /// Posts a purchase and writes what a worker would have written.
    private static func granted(
        _ transaction: String, _ owner: String, _ intake: RunningIntake
    ) async throws -> (receipt: String, body: String) {
        let body = #"{"userId":"\#(owner)","signedTransaction":"\#(IntakeFixture.signedTransaction())"}"#
        let receipt = try id(try await intake.post(body))
        try await intake.execute(
            """
            with g as (
              insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id, quantity,
                goods, binding_source)
              values ('\(transaction)', '\(transaction)', 'game', 'Sandbox', '\(owner)', '\(receipt)', '\(product)', 1, '[]',
                'poster')),
            o as (insert into outcomes (receipt_id, transaction_id, state) values ('\(receipt)', '\(transaction)', 'granted'))
            update receipts set state = 'granted', settled_at = now(), due_at = null where id = '\(receipt)'
            """)
        return (receipt, body)
    }

    @Test("S3-69, S1-32: a number for what has no order, found again; how often and when it was posted again")
    func numbers() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            let transaction = "2000000\(UInt32.random(in: 1_000_000...9_999_999))"
            let number = OrderID.ofPurchase(transaction, of: "game").uuidString.lowercased()
            let (receipt, body) = try await Self.granted(transaction, user, intake)
            for _ in 0..<3 {
                let answer = try await intake.post(body)
                #expect(try Self.first(answer, "transactions")["orderNumber"] == .string(number))
            }
            let story = try await intake.get("/v1/orders/\(number)/explain", key: IntakeFixture.supportKey)
            #expect(story.status == 200 && story["id"] == .string(transaction))
            #expect(try await intake.get("/v1/orders/\(UUID())/explain", key: IntakeFixture.supportKey).status == 404)
            // The trace is written beside the answers.
            for _ in 0..<500 {
                if try await intake.count("select posts from repeated_posts where receipt_id = '\(receipt)'") == 3 {
                    break
                }
                try await Task.sleep(for: .milliseconds(10))
            }
            let list = try Self.first(try await intake.get("/v1/users/\(user)/purchases"), "purchases")
            #expect(list["orderNumber"] == .string(number) && list["repeats"] == .number("3"))
            #expect(list["repeatedAt"] != nil)
            let told = try await intake.get("/v1/receipts/\(receipt)/explain", key: IntakeFixture.supportKey)
            #expect(try Self.first(told, "receipts")["repeats"] == .number("3"))
            #expect(told.text.contains("posted receipt \(receipt) again, 3 times so far"))
        }
    }

    @Test("S3-71: a second account that shows the purchase is told the masked owner; an id alone tells nothing")
    func hints() async throws {
        for (id, mask) in [
            ("u1234", "u***4"), ("13800138000", "1***0"), ("abcd", nil), ("", nil), ("张三李四王", "张***王"),
        ] as [(String, String?)] { #expect(OwnerHints.mask(id) == mask) }
        try await RunningIntake.run { intake in
            let owner = Self.user()
            let transaction = "2000000\(UInt32.random(in: 1_000_000...9_999_999))"
            _ = try await Self.granted(transaction, owner, intake)
            let mask = try #require(OwnerHints.mask(owner))
            for (proof, isTold) in [
                (#""signedTransaction":"\#(IntakeFixture.signedTransaction())""#, true),
                (#""transactionId":"\#(transaction)""#, false),
            ] {
                let answer = try await intake.post(#"{"userId":"\#(Self.user())",\#(proof)}"#)
                let receipt = try Self.id(answer)
                try await intake.execute(
                    """
                    with o as (insert into outcomes (receipt_id, transaction_id, state, reason)
                      values ('\(receipt)', '\(transaction)', 'already_granted', 'owned_by_another_user'))
                    update receipts set state = 'already_granted', reason = 'owned_by_another_user', settled_at = now(),
                      due_at = null where id = '\(receipt)'
                    """)
                let told = try await intake.get("/v1/receipts/\(receipt)")
                let purchase = try Self.first(told, "transactions")
                #expect(purchase["ownerHint"] == (isTold ? .string(mask) : nil), "\(told.text)")
                #expect(purchase["orderNumber"] == nil && !told.text.contains(owner))
            }
        }
    }
}
