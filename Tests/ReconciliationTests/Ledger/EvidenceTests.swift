import Foundation
import Postgres
import Purchases
import Testing

@testable import Reconciliation

/// Goal: the evidence that a match rests on is what the tables say, one statement for a batch, and never reads a table
/// as a whole. Method: rows of every kind beside rows of other apps, users and products; the plan on filled tables.
@Suite(.timeLimit(.minutes(8))) struct EvidenceTests {
    private static func transaction(
        _ id: String = "t1", _ change: (inout Transaction) -> Void = { _ in }
    ) -> Transaction {
        var transaction = Verdict.Entry.purchase(id).transaction
        change(&transaction)
        return transaction
    }

    @Test("B7: orders by token, by name, of the poster, of the installation; each once, nobody else's")
    func orders() async throws {
        try await LedgerLab.with { lab in
            let token = try await lab.place("u2", product: "gems")
            let named = try await lab.place("u3")
            let own = try await lab.place("u1", goods: #"[{"item": "coin", "amount": 7}]"#)
            let near = try await lab.place("u4", installation: "device")
            // What may not be seen: another app's, product's, user's; too late, too early, bound.
            try await lab.place("u1", app: "other")
            try await lab.place("u1", product: "gems")
            try await lab.place("u9")
            try await lab.place("u1", minutesBefore: -6)
            try await lab.place("u4", minutesBefore: 16, installation: "device")
            let bound = try await lab.place("u1")
            try await lab.settle(try await lab.post(), try await lab.matched("t0", by: "u1", order: bound))
            let transaction = Self.transaction {
                $0.appAccountToken = token
                // A later one of its chain: its token does not say all.
                $0.originalID = "t0"
            }
            let evidence = try await lab.evidence(
                lab.question(transaction, named: named, installation: "device"),
                lab.question(Self.transaction("t2"), by: "u7"), lab.question(Self.transaction("t3"), named: own),
                lab.question(Self.transaction("t4"), by: "u1", app: "other"))
            #expect(Set(evidence[0].orders.map(\.id)) == [token, named, own, near] && evidence[0].orders.count == 4)
            #expect(evidence[0].orders.filter(\.isOfInstallation).map(\.id) == [near])
            #expect(evidence[0].orders.first { $0.id == own }?.goods == [.init(item: "coin", amount: 7)])
            // An unbound order that the token names decides: nobody else is looked for.
            let decided = try await lab.evidence(
                lab.question(Self.transaction { $0.appAccountToken = own }, installation: "device"))
            #expect(decided[0].orders.map(\.id) == [own])
            #expect(evidence[1] == .none)
            #expect(evidence[2].orders.map(\.id) == [own], "named and open is one order")
            #expect(evidence[3].orders.map(\.userID) == ["u1"] && evidence[3].orders[0].id != own)
        }
    }

    @Test("row 3: whom a token is registered for, or was granted to; orders of that user come with it")
    func tokens() async throws {
        try await LedgerLab.with { lab in
            let (registered, granted, shared) = (UUID(), UUID(), UUID())
            try await lab.run(
                """
                insert into user_tokens (app_id, token, user_id, source)
                values ('game', '\(registered)', 'u2', 'registered'), ('other', '\(granted)', 'u3', 'registered')
                """)
            for (user, token, id) in [
                ("u4", granted, "a"), ("u5", shared, "b"), ("u6", shared, "c"), ("u4", granted, "d"),
            ] {
                try await lab.settle(try await lab.post(user), .purchase(id) { $0.appAccountToken = token })
            }
            let order = try await lab.place("u2")
            let ofGranted = try await lab.place("u4")
            func ask(_ token: UUID, by user: String = "u1") async throws -> Evidence {
                try await lab.evidence(lab.question(Self.transaction { $0.appAccountToken = token }, by: user))[0]
            }
            let one = try await ask(registered)
            #expect(one.registeredUserID == "u2" && one.orders.map(\.id) == [order] && !one.posterHasToken)
            let other = try await ask(granted, by: "u2")
            #expect(other.tokenUserIDs == ["u4"] && other.posterHasToken)
            #expect(Set(other.orders.map(\.id)) == [ofGranted, order])
            #expect(try await Set(ask(shared).tokenUserIDs) == ["u5", "u6"])
            #expect(try await ask(UUID(), by: "u9") == .none)
            #expect(try await lab.number("select count(*) from granted_tokens") == 3)
        }
    }

    @Test("rows 4, 8: the chain's owner, by what was written down or granted before it was; its refund")
    func chains() async throws {
        try await LedgerLab.with { lab in
            let period = { (id: String, day: Double) in
                Self.transaction(id) {
                    $0.originalID = "first"
                    $0.kind = .autoRenewable
                    $0.purchasedAt = LedgerLab.bought.addingTimeInterval(day * 86_400)
                    $0.expiresAt = $0.purchasedAt.addingTimeInterval(86_400)
                    $0.signedAt = $0.purchasedAt
                }
            }
            func grant(_ transaction: Transaction, to user: String, takes: Bool) async throws {
                var match = Match(userID: user, source: .poster)
                match.takesChain = takes
                try await lab.settle(
                    try await lab.post(user),
                    Verdict.Entry(
                        transaction: transaction, decision: .grant(goods: Verdict.Entry.coins, source: .poster),
                        match: match))
            }
            func owner() async throws -> String? {
                try await lab.evidence(lab.question(period("new", 9)))[0].chain?.userID
            }
            #expect(try await owner() == nil)
            try await grant(period("p2", 2), to: "u2", takes: false)
            try await grant(period("p1", 1), to: "u1", takes: false)
            #expect(try await owner() == "u2", "the latest, whatever came last")
            try await grant(period("p3", 3), to: "u3", takes: true)
            try await grant(period("p4", 4), to: "u4", takes: false)
            #expect(try await owner() == "u3")
            try await grant(period("p0", 0), to: "u5", takes: true)
            #expect(try await owner() == "u3", "an older purchase takes nothing from a later one")

            let sword = Self.transaction("s1") { $0.kind = .nonConsumable }
            try await grant(sword, to: "u1", takes: true)
            let restore = Self.transaction("s2") {
                $0.originalID = "s1"
                $0.kind = .nonConsumable
            }
            #expect(try await lab.evidence(lab.question(restore))[0].chain == .init(userID: "u1"))
            try await lab.run("update transactions set revoked_at = purchased_at where transaction_id = 's1'")
            #expect(
                try await lab.evidence(lab.question(restore))[0].chain
                    == .init(userID: "u1", revokedAt: LedgerLab.bought))
        }
    }

    @Test("note 1: whether something is granted is told where an order is named")
    func granted() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post(), .purchase("t1"))
            for (named, expected) in [(UUID?.none, false), (UUID(), true)] {
                #expect(
                    try await lab.evidence(lab.question(Self.transaction("t1"), named: named))[0].isGranted == expected)
            }
            let again = Self.transaction("t2") { $0.originalID = "t1" }
            #expect(try await lab.evidence(lab.question(again, named: UUID()))[0].isGranted, "the same purchase")
        }
    }

    @Test("an app without orders and tokens is known to have none")
    func appsWithOrders() async throws {
        try await LedgerLab.with { lab in
            for app in ["game", "tokens", "none"] {
                try await lab.run("insert into apps (app_id, configuration_sha256) values ('\(app)', '')")
            }
            try await lab.place("u1")
            try await lab.run(
                "insert into user_tokens (app_id, token, user_id, source) values ('tokens', '\(UUID())', 'u', 'issued')"
            )
            let board = OrderBoard(ledger: lab.ledger)
            #expect(board.mayHaveOrders("none"), "until it was read")
            await board.refresh()
            #expect(["game", "tokens", "none"].map(board.mayHaveOrders) == [true, true, false])
        }
    }

    @Test("S9: on filled tables, also behind old statistics, no question reads a table", arguments: [true, false])
    func plan(isAnalyzed: Bool) async throws {
        try await LedgerLab.with(connections: 1, endsSound: false) { lab in
            for table in Self.tables { try await lab.run("alter table \(table) set (autovacuum_enabled = false)") }
            if !isAnalyzed { try await lab.run("analyze") }
            try await Self.fill(lab)
            if isAnalyzed { try await lab.run("analyze") }
            let types =
                "text[], text[], text[], text[], text[], text[], text[], text[], text[], timestamptz[], text[], bool[], bool[]"
            try await lab.run("set plan_cache_mode = force_generic_plan")
            try await lab.run("prepare evidence (\(types)) as \(Statements.evidence.sql)")
            let one = "array['%']::text[]"
            let texts = ["game", "u7", UUID().uuidString, "i7", "t7", "k7", "Production", "o7", "coins"].map {
                one.replacing("%", with: $0)
            }
            let arguments =
                texts + ["array[now()]", one.replacing("%", with: UUID().uuidString), "array[true]", "array[false]"]
            let plan = try await lab.texts("explain execute evidence(\(arguments.joined(separator: ", ")))")
            #expect(plan.count > 20)
            #expect(plan.filter { $0.contains("Seq Scan") } == [], "\(plan.joined(separator: "\n"))")
            for index in [
                "orders_open", "orders_of_installation", "orders_pkey", "user_tokens_pkey", "granted_tokens_pkey",
                "ownerships_pkey", "transactions_chain",
            ] {
                #expect(plan.contains { $0.contains(index) }, "\(index) is not used:\n\(plan.joined(separator: "\n"))")
            }
            let apps = try await lab.texts("explain \(Statements.appsWithOrders.sql)")
            #expect(apps.filter { $0.contains("Seq Scan on orders") || $0.contains("Seq Scan on user_tokens") } == [])
        }
    }

    private static let tables = ["orders", "user_tokens", "granted_tokens", "ownerships", "transactions", "grants"]

    private static func fill(_ lab: LedgerLab) async throws {
        try await lab.run(
            """
            insert into orders (id, app_id, user_id, product_id, placed_at, installation_id)
            select gen_random_uuid(), 'game', 'u' || n % 1000, 'coins', now() - n * interval '1 second', 'i' || n % 1000
            from generate_series(1, 30000) n
            """)
        try await lab.run(
            """
            insert into user_tokens (app_id, token, user_id, source)
            select 'game', gen_random_uuid(), 'u' || n % 1000, 'registered' from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into granted_tokens (app_id, token, user_id)
            select 'game', gen_random_uuid(), 'u' || n % 1000 from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
              binding_source)
            select 'game', 'Production', 'o' || n, now(), 't' || n, 'u1', 'poster' from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, quantity,
              purchased_at, facts)
            select 't' || n, 'game', 'Production', 'o' || n, 'coins', 1, now(), '{}' from generate_series(1, 20000) n
            """)
        try await lab.run(
            """
            insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id, quantity,
              goods, binding_source)
            select 't' || n, 'k' || n, 'game', 'Production', 'u' || n % 1000, gen_random_uuid(), 'coins', 1, '[]', 'poster'
            from generate_series(1, 20000) n
            """)
    }
}
