import Foundation
import Logging
import Postgres
import Purchases
import TestServers
import Testing

@testable import Encoding
@testable import Ledger
@testable import Settings

/// Goal: a change of the catalogue applies to the next order and to no earlier one; a limit is reported when an order
/// is placed (B6). Method: catalogues applied as the command applies them, orders over real HTTP.
@Suite(.serialized, .timeLimit(.minutes(5))) struct CatalogueOrderTests {
    private static let tier = "com.example.game.tier6"

    /// Each test has a database of its own: a catalogue cannot be taken back.
    private static func withIntake(_ body: (RunningIntake) async throws -> Void) async throws {
        try await LedgerLab.with { lab in try await RunningIntake.run(url: lab.url, body) }
    }

    private static func user() -> String { "u-\(UUID().uuidString.prefix(8))" }

    /// Puts a catalogue of the app `game` in force, and waits until the server has read it.
    private static func apply(
        _ products: String, _ intake: RunningIntake, at now: Date = Date()
    ) async throws -> Int {
        let catalogue = try #require(
            try CatalogueFile.parse(file: "apps:\n  - id: game\n    products: \(products)")["game"])
        let appleGateway = CatalogueEditor(database: intake.ledger.database, actor: "ann")
        let plan = try await appleGateway.plan(catalogue, for: "game", at: now)
        try await appleGateway.apply(plan)
        try await intake.catalogues.refresh()
        return plan.revision
    }

    private static func shared(_ more: String = "", default name: String = "none") -> String {
        """
        [{id: \(tier), type: consumable, default: \(name), items: [
          {id: coins, goods: [{item: coins, amount: 6000}], priceMilliunits: 6000, currency: CNY},
          {id: gems, limits: {day: 2, ever: 3}, versions: [
            {goods: [{item: gems, amount: 60}]\(more)},
            {promotion: spring, goods: [{item: gems, amount: 90}],
             bonuses: [{id: first-charge, once: ever, goods: [{item: coins, amount: 1}]}]}]}]}]
        """
    }

    private static func goods(_ item: String, _ amount: Int) -> JSONValue {
        .array([.object([.init("item", .string(item)), .init("amount", .integer(amount))])])
    }

    @Test("S3-8, B6: the order says which item; goods, bonuses, price and revision are frozen in it")
    func freezing() async throws {
        try await Self.withIntake { intake in
            let revision = try await Self.apply(Self.shared(), intake)
            let user = Self.user()
            let coins = try await intake.order(
                #"{"userId":"\#(user)","productId":"\#(Self.tier)","item":"coins","priceMilliunits":9000,"currency":"CNY"}"#
            )
            #expect(coins.status == 201 && coins["goods"] == Self.goods("coins", 6000))
            #expect(coins["priceMilliunits"] == .number("6000") && coins["currency"] == .string("CNY"))
            #expect(coins["priceDiffers"] == .bool(true), "recorded, never refused")
            // The order names the item alone; the catalogue knows its product.
            let gems = try await intake.order(#"{"userId":"\#(user)","item":"gems","promotion":"spring"}"#)
            #expect(gems.status == 201 && gems["productId"] == .string(Self.tier))
            #expect(gems["goods"] == Self.goods("gems", 90) && gems["bonuses"] != nil)
            let frozen = try await intake.count(
                """
                select count(*) from orders where user_id = '\(user)' and offer = \(revision)
                  and ((item = 'coins' and price_milliunits = 6000 and bonuses = '[]')
                    or (item = 'gems' and goods = '[{"item": "gems", "amount": 90}]' and bonuses =
                      '[{"id": "first-charge", "once": "ever", "goods": [{"item": "coins", "amount": 1}]}]'))
                """)
            #expect(frozen == 2)
            // S1-8: a new catalogue applies to the next order, and to no earlier one. The plan is made from the time
            // that is read here: on a busy machine two seconds may pass before the plan is made.
            let now = Date()
            let soon = now.addingTimeInterval(2)
            _ = try await Self.apply(
                Self.shared("}, {from: \(soon.formatted(.iso8601)), goods: [{item: gems, amount: 70}]"), intake,
                at: now)
            guard case .string(let id)? = gems["id"] else { return }
            try await Task.sleep(for: .seconds(max(0, soon.timeIntervalSinceNow)))
            let next = try await intake.order(#"{"userId":"\#(user)","item":"gems"}"#)
            #expect(next["goods"] == Self.goods("gems", 70))
            #expect(try await intake.get("/v1/orders/\(id)")["goods"] == Self.goods("gems", 90))
        }
    }

    @Test("a promotion is a user's whose token names it; what is paid already is an order without it")
    func promotions() async throws {
        try await LedgerLab.with { lab in
            try await TestGateway.run(url: lab.url) { intake, gateway in
                _ = try await Self.apply(Self.shared(), intake)
                let user = Self.user()
                let named = try gateway.token(user, #","promotions":["winter","spring"]"#)
                let others = try [
                    gateway.token(user), gateway.token(user, #","promotions":null"#),
                    gateway.token(user, #","promotions":["Spring",""]"#),
                ]
                func order(_ more: String, _ token: String) async throws -> RunningIntake.Answer {
                    try await intake.order(#"{"item":"gems",\#(more)}"#, key: token)
                }
                for token in others {
                    let refused = try await order(#""promotion":"spring""#, token)
                    #expect(refused.status == 403 && refused["code"] == .string("promotion_not_allowed"))
                    #expect(refused["field"] == .string("promotion"))
                    let list = try await intake.get("/v1/products?promotion=spring", key: token)
                    #expect(list.status == 403 && list["code"] == .string("promotion_not_allowed"))
                    #expect(try await intake.get("/v1/products", key: token).status == 200)
                }
                #expect(try await intake.count("select count(*) from orders") == 0)
                let spring = try await order(#""promotion":"spring""#, named)
                #expect(spring.status == 201 && spring["goods"] == Self.goods("gems", 90))
                #expect(
                    try await order(#""promotion":"winter""#, named)["code"] == .string("promotion_over"),
                    "the catalogue says what there is")
                let list = try await intake.get("/v1/products?promotion=spring", key: named)
                #expect(list.status == 200 && list.text.contains(#""promotion":"spring""#))
                let paid = try await order(#""promotion":"spring","transactionId":"2000""#, others[0])
                #expect(paid.status == 201 && paid["promotion"] == nil)
                #expect(paid["ignored"] == .array([.string("promotion")]))
            }
        }
    }

    @Test("a shared product without an item, an item of another product, a promotion that is over")
    func refusals() async throws {
        try await Self.withIntake { intake in
            _ = try await Self.apply(Self.shared(), intake)
            for (more, status, code) in [
                (#""productId":"\#(Self.tier)""#, 422, "item_missing"),
                (#""productId":"\#(Self.tier)","item":"swords""#, 422, "item_unknown"),
                (#""productId":"\#(Self.tier)","item":"coins","promotion":"spring""#, 409, "promotion_over"),
                (#""productId":"com.example.game.coins6","item":"gems""#, 422, "item_unknown"),
            ] {
                let answer = try await intake.order(#"{"userId":"u",\#(more)}"#)
                #expect(answer.status == status && answer["code"] == .string(code), "\(more): \(answer.text)")
            }
            // Products that no catalogue names are sold as the configuration says.
            let old = try await intake.order(#"{"userId":"\#(Self.user())","productId":"com.example.game.coins6"}"#)
            #expect(old.status == 201 && old["goods"] == Self.goods("coins", 6000))
        }
    }

    @Test("S2-12: limits are reported when an order is placed; what is paid all the same is no less an order")
    func limits() async throws {
        try await Self.withIntake { intake in
            _ = try await Self.apply(Self.shared(), intake)
            let user = Self.user()
            func order(_ more: String) async throws -> RunningIntake.Answer {
                try await intake.order(#"{"userId":"\#(user)","item":"gems"\#(more)}"#)
            }
            let tooMuch = try await order(#","quantity":3"#)
            #expect(
                tooMuch.status == 409 && tooMuch["code"] == .string("limit_day") && tooMuch["field"] == .string("item"))
            #expect(tooMuch["limit"] == .string("user.itemLimits"))
            let first = try await order(#","quantity":2,"idempotencyKey":"k""#)
            #expect(first.status == 201)
            // An order that nobody paid for does not count.
            #expect(try await order("").status == 201)
            guard case .string(let id)? = first["id"] else { return }
            try await intake.grant(id, "t-\(id)")
            #expect(try await order(#","ext":"r""#)["code"] == .string("limit_day"))
            // The same request again is the same order, whatever became of the order.
            let again = try await order(#","quantity":2,"idempotencyKey":"k""#)
            #expect(again.status == 200 && again["id"] == first["id"])
            #expect(try await order(#","transactionId":"\#(UUID())""#).status == 201, "paid is paid")
            // Another day: the third unit is the last.
            try await intake.execute(
                "update grants set granted_at = granted_at - interval '40 days' where order_id = '\(id)'")
            #expect(try await order(#","ext":"r""#).status == 201)
            #expect(try await order(#","ext":"s","quantity":2"#)["code"] == .string("limit_ever"))
            let account = Self.user()
            #expect(try await intake.order(#"{"userId":"\#(account)","item":"gems"}"#).status == 201)
            // A guest's purchases count for the account that the guest became part of.
            try await intake.execute(
                "insert into merges (app_id, user_id, into_user_id) values ('game', '\(user)', '\(account)')")
            let asAccount = try await intake.order(#"{"userId":"\#(account)","item":"gems","ext":"t","quantity":2}"#)
            #expect(asAccount["code"] == .string("limit_ever"))
            #expect(try await order(#","ext":"u","quantity":2"#)["code"] == .string("limit_ever"))
            // No receipt belongs to this grant, so the grant would violate the invariants.
            try await intake.execute("delete from grants where order_id = '\(id)'")
        }
    }

    @Test("what was bought without an order counts too, by the item that it was, in Apple's numbers")
    func limitsWithoutOrders() async throws {
        try await Self.withIntake { intake in
            _ = try await Self.apply(Self.shared(), intake)
            /// Units of gems that the user may still buy, at most two; a user may have three in all.
            func left(_ user: String) async throws -> Int {
                for quantity in [2, 1] {
                    let answer = try await intake.order(
                        #"{"userId":"\#(user)","item":"gems","quantity":\#(quantity),"ext":"\#(UUID())"}"#)
                    if answer.status == 201 { return quantity }
                    #expect(answer["code"] == .string("limit_ever"), "\(answer.text)")
                }
                return 0
            }
            func bought(_ user: String, item: String?, quantity: Int) async throws {
                let (id, item) = (UUID(), item.map { "'\($0)'" } ?? "null")
                try await intake.execute(
                    """
                    insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
                      quantity, goods, binding_source, granted_at, item)
                    values ('\(id)', '\(id)', 'game', 'Production', '\(user)', '\(id)', '\(Self.tier)', \(quantity), '[]',
                      'poster', now() - interval '40 days', \(item))
                    """)
            }
            let users = (0..<3).map { _ in Self.user() }
            try await bought(users[0], item: "gems", quantity: 2)
            #expect(try await left(users[0]) == 1)
            try await bought(users[1], item: "gems", quantity: 3)
            #expect(try await left(users[1]) == 0)
            // These purchases are of another item, or of no item where the product has no default: no gems were bought.
            try await bought(users[2], item: "coins", quantity: 3)
            try await bought(users[2], item: nil, quantity: 3)
            #expect(try await left(users[2]) == 2)
            // No receipts belong to these grants, so the grants would violate the invariants.
            let all = users.map { "'\($0)'" }.joined(separator: ",")
            try await intake.execute("delete from grants where user_id in (\(all))")
        }
    }

    @Test("S3-6: the list of what is sold maps items to store products, and shows a promotion to who names it")
    func products() async throws {
        try await Self.withIntake { intake in
            _ = try await Self.apply(Self.shared(), intake)
            func list(_ query: String) async throws -> [String: JSONValue] {
                let answer = try await intake.get("/v1/products\(query)")
                guard case .array(let products)? = answer["products"] else { return [:] }
                return Dictionary(
                    products.compactMap { product in
                        if case .string(let item)? = product["item"] { (item, product) } else { nil }
                    }, uniquingKeysWith: { first, _ in first })
            }
            let plain = try await list("")
            #expect(plain.keys.sorted() == ["coins", "com.example.game.coins6", "com.example.game.pass", "gems"])
            #expect(
                plain["gems"]?["productId"] == .string(Self.tier) && plain["gems"]?["goods"] == Self.goods("gems", 60))
            #expect(plain["gems"]?["isDefault"] == .bool(false) && plain["gems"]?["promotion"] == nil)
            #expect(plain["gems"]?["limits"]?["ever"] == .number("3"))
            #expect(plain["com.example.game.pass"]?["type"] == .string("nonConsumable"))
            let spring = try await list("?promotion=spring")
            #expect(
                spring["gems"]?["goods"] == Self.goods("gems", 90) && spring["gems"]?["promotion"] == .string("spring"))
            #expect(spring["coins"] == plain["coins"])
            #expect(try await intake.get("/v1/products?appId=other").status == 403)
            #expect(try await intake.get("/v1/products", key: IntakeFixture.supportKey).status == 403)
            let others = try await intake.get("/v1/products?appId=other", key: IntakeFixture.bothAppsKey)
            #expect(others.text == #"{"products":[]}"#)
        }
    }

    @Test("the list says group and level of a subscription, and how long a non-renewing purchase lasts")
    func terms() async throws {
        try await Self.withIntake { intake in
            _ = try await Self.apply(
                """
                [{id: gold, type: autoRenewable, group: pass, level: 1, goods: []}, {id: plain, type: autoRenewable, goods: []},
                {id: season, type: nonRenewing, duration: P90D, goods: []}]
                """, intake)
            let answer = try await intake.get("/v1/products")
            guard case .array(let products)? = answer["products"] else {
                Issue.record("\(answer.text)")
                return
            }
            let terms = products.reduce(into: [String: [JSONValue?]]()) { terms, product in
                guard case .string(let id)? = product["productId"] else { return }
                terms[id] = [product["group"], product["level"], product["duration"]]
            }
            #expect(terms["gold"] == [.string("pass"), .integer(1), nil])
            #expect(terms["plain"] == [nil, nil, nil])
            #expect(terms["season"] == [nil, nil, .string("P90D")])
        }
    }

    @Test("applying is audited, one at a time, and refuses to take back what was promised")
    func applying() async throws {
        try await LedgerLab.with { lab in
            let appleGateway = CatalogueEditor(database: lab.database, actor: "ann")
            let catalogue = try #require(
                try CatalogueFile.parse(file: "apps: [{id: game, products: \(Self.shared())}]")["game"])
            let plan = try await appleGateway.plan(catalogue, for: "game", at: Date())
            #expect(plan.revision == 1 && !plan.changes.isEmpty)
            try await appleGateway.apply(plan)
            await #expect(throws: ConfigurationError.self) { try await appleGateway.apply(plan) }
            let again = try await appleGateway.plan(catalogue, for: "game", at: Date())
            #expect(again.revision == 2 && again.changes == [])
            var changed = catalogue
            changed.products[Self.tier]?.items["coins"]?.versions[0].goods = []
            let error = await #expect(throws: ConfigurationError.self) {
                try await appleGateway.plan(changed, for: "game", at: Date())
            }
            #expect(error?.key == "game / \(Self.tier) / coins, from ever")
            #expect(try await lab.number("select count(*) from catalogues") == 1)
            #expect(
                try await lab.number(
                    """
                    select count(*) from audits where actor = 'ann' and action = 'catalog.apply'
                      and details ->> 'app' = 'game' and jsonb_array_length(details -> 'changes') = \(plan.changes.count)
                    """) == 1)
            let rows = try await lab.texts(
                "select item || coalesce(' ' || promotion, '') || ' ' || goods::text from v_catalogue order by 1")
            #expect(rows.count == 3 && rows[0] == #"coins [{"item": "coins", "amount": 6000}]"#)
            // Another process notices the new catalogue.
            let board = CatalogueRefresher(ledger: lab.ledger, logger: .silent)
            let app = try #require(try IntakeFixture.configuration().apps["game"])
            #expect(try await board.catalogue(of: app).products[Self.tier]?.items.count == 2)
            changed = catalogue
            changed.products[Self.tier]?.items["coins"]?.limits.day = 9
            try await appleGateway.apply(try await appleGateway.plan(changed, for: "game", at: Date()))
            try await board.refresh()
            let noticed = try await board.catalogue(of: app)
            #expect(noticed.revision == 2 && noticed.products[Self.tier]?.items["coins"]?.limits.day == 9)
        }
    }

    @Test("what this program cannot read promises nothing and gives nothing, also not by what was in force before")
    func unreadable() async throws {
        let app = try #require(try IntakeFixture.configuration().apps["game"])
        try await LedgerLab.with { lab in
            try await lab.run(
                "insert into catalogues (app_id, revision, document, applied_by) values ('game', 1, '{\"products\": []}', 'x')"
            )
            let (board, late) = (
                CatalogueRefresher(ledger: lab.ledger, logger: .silent),
                CatalogueRefresher(ledger: lab.ledger, logger: .silent)
            )
            #expect(try await board.catalogue(of: app).revision == 1)
            try await lab.run(
                "insert into catalogues (app_id, revision, document, applied_by) values ('game', 2, '{\"products\": 1}', 'x')"
            )
            try await board.refresh()
            // A process that starts now fails like a process that knew the catalogue before.
            for board in [board, late] {
                await #expect(throws: LedgerError.unavailable(.unavailable)) { try await board.catalogue(of: app) }
            }
            let other = try #require(try IntakeFixture.configuration().apps["other"])
            #expect(try await late.catalogue(of: other).revision == nil)
            try await lab.run(
                "insert into catalogues (app_id, revision, document, applied_by) values ('game', 3, '{\"products\": []}', 'x')"
            )
            for board in [board, late] {
                try await board.refresh()
                #expect(try await board.catalogue(of: app).revision == 3)
            }
        }
    }
}
