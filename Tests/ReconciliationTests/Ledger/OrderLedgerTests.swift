import Foundation
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: orders are placed by the batch, and each is one order however often its statement is repeated. Method: the
/// ledger on a real database, without HTTP.
@Suite(.timeLimit(.minutes(5))) struct OrderLedgerTests {
    @Test("a batch whose outcome is unknown is written again: every order is there once, and is its own")
    func repeating() async throws {
        try await LedgerLab.with { lab in
            let orders = (0..<200).map { NewOrder.example($0) }
            for _ in 0..<3 {
                let placed = try await OrderBatch.place(orders, in: lab.database)
                #expect(placed.map(\.?.view.id) == orders.map(\.id))
                #expect(placed.allSatisfy { $0?.isNew == true })
            }
            #expect(try await lab.number("select count(*) from orders") == 200)
        }
    }

    @Test("S3-43: two processes that take the same tap: the later finds the earlier")
    func processes() async throws {
        try await LedgerLab.with { lab in
            let (one, two) = (NewOrder.example(1), NewOrder.example(1))
            #expect(one.id != two.id && one.debounceKey == two.debounceKey)
            try await lab.withSession { session in
                let placed = try await OrderBatch.place([one], in: session)
                #expect(placed[0]?.isNew == true)
            }
            let placed = try await OrderBatch.place([two, NewOrder.example(2)], in: lab.database)
            #expect(placed[0]?.view.id == one.id && placed[0]?.isNew == false && placed[1]?.isNew == true)
            // Two requests with one key at the same time make one order, decided in the database.
            var keyed = [NewOrder.example(3), NewOrder.example(4)]
            for index in keyed.indices { keyed[index].idempotencyKey = "k" }
            let both = try await OrderBatch.place(keyed, in: lab.database)
            #expect(both[0]?.view.id == both[1]?.view.id && both.filter { $0?.isNew == true }.count == 1)
        }
    }

    @Test("what was frozen is read as it was written, and an order without a promise promises nothing")
    func reading() async throws {
        try await LedgerLab.with { lab in
            var order = NewOrder.example(1)
            order.promotion = "spring"
            order.offer = Offer(
                productID: "coins", item: "coins", kind: .consumable, goods: [.init(item: "coin", amount: 60)],
                bonuses: [.init(id: "b", once: .month, goods: [.init(item: "gem", amount: 1)])],
                price: .init(milliunits: 6000, currency: "CNY"), revision: 4)
            var paid = NewOrder.example(2)
            (paid.offer, paid.item, paid.reservedFor) = (nil, nil, "t-9")
            for order in [order, paid] {
                let placed = try #require(try await lab.ledger.place(order))
                var read = try #require(try await lab.ledger.order(order.id))
                #expect(placed.isNew && read.submissions == [])
                read.submissions = nil
                #expect(read == placed.view)
            }
            #expect(try await lab.ledger.order(order.id)?.bonuses == order.offer?.bonuses)
            #expect(try await lab.ledger.order(paid.id)?.goods == nil)
            #expect(try await lab.ledger.order(UUID()) == nil)
        }
    }

    @Test(
        "erasing where nothing is protected: orders and reports have the erased id, tokens and what was sent are gone")
    func erasing() async throws {
        // The test binds an order without a purchase.
        try await LedgerLab.with(endsSound: false) { lab in
            let (waiting, bound) = (NewOrder.example(1), NewOrder.example(2))
            var others = NewOrder.example(3)
            others.userID = "u2"
            for order in [waiting, bound, others] { _ = try await lab.ledger.place(order) }
            try await lab.run(
                """
                insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
                  quantity, goods, binding_source, order_id)
                select 't1', 't1', app_id, 'Sandbox', user_id, gen_random_uuid(), product_id, 1, '[]', 'poster', id
                from orders where id = '\(bound.id)'
                """)
            for user in ["u1", "u2"] {
                let wish = Statements.TokenRequest(appID: "game", userID: user, token: UUID())
                _ = try await lab.ledger.run(Statements.issueToken, wish)
                try await lab.run(
                    """
                    insert into client_reports (id, app_id, user_id, kind, message, details)
                    values (gen_random_uuid(), 'game', '\(user)', 'error', 'I am \(user)', '{"player": "\(user)"}')
                    """)
            }
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            _ = try await erasure.erase(erasure.name(of: "u1", app: "game"))
            for table in ["orders", "user_tokens", "client_reports"] {
                #expect(
                    try await lab.number(
                        "select count(*) from \(table) t where user_id <> 'u2' and t::text like '%u1%'") == 0,
                    "\(table)")
                // Rows of the tombstone remain, except for tokens: a user who comes back uses the same tokens, which
                // belong to nobody until then.
                let buried = try await lab.number(
                    "select count(*) from \(table) where user_id like 'erased\\_%'")
                #expect((buried > 0) == (table != "user_tokens"), "\(table)")
                #expect(try await lab.number("select count(*) from \(table) where user_id = 'u2'") == 1, "\(table)")
            }
            // The waiting order keeps its target; the order that was served does not.
            let targets = try await lab.texts(
                "select target ->> 'server' from orders where user_id like 'erased%' and target <> '{}'")
            #expect(targets == ["s1"])
            #expect(try await lab.number("select count(*) from orders where id = '\(bound.id)' and target = '{}'") == 1)
        }
    }
}

extension NewOrder {
    static var example: NewOrder { example(0) }

    /// An order of `u1` with its own number: another number is another purchase attempt.
    static func example(_ number: Int) -> NewOrder {
        NewOrder(
            id: UUID(), appID: "game", userID: "u1", productID: "coins", item: "coins", quantity: 1, channel: "apple",
            offer: Offer(
                productID: "coins", item: "coins", kind: .consumable, goods: [.init(item: "coin", amount: 60)],
                bonuses: []),
            payBy: .seconds(3600), target: #"{"server": "s1"}"#, details: #"{"uid": "u1"}"#,
            installationTokenSHA256: nil,
            debounceKey: DerivedID.digest(["\(number)"]), debounce: .seconds(5))
    }
}
