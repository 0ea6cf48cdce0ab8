import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: key look-ups find the purchases that a user has now. The list is the current owner's alone, and is right at
/// the moment after the commit: after moves, merges and an erasure, and beside any number of consumables. Method:
/// purchases through the settle transaction, or as rows, and the question itself.
@Suite(.timeLimit(.minutes(8))) struct EntitlementLedgerTests {
    /// The chains that a user has, by their original ids, in order.
    private static func chains(
        _ lab: LedgerLab, _ user: String, isOfPerson: Bool = true, in environment: String = Transaction.production
    ) async throws -> [String] {
        try await facts(lab, user, isOfPerson: isOfPerson, in: environment).map(\.originalID)
    }

    private static func facts(
        _ lab: LedgerLab, _ user: String, isOfPerson: Bool = true, in environment: String = Transaction.production
    ) async throws -> [ChainFacts] {
        try await lab.ledger.ownedChains(
            EntitlementQuestion(
                user: UserName(appID: "game", key: user), isOfPerson: isOfPerson, environment: environment)
        ).sorted { $0.originalID < $1.originalID }
    }

    /// An entry that begins or takes its chain for its owner.
    private static func owned(_ entry: Verdict.Entry, by user: String) -> Verdict.Entry {
        var match = Match(userID: user, source: .poster)
        match.takesChain = true
        return Verdict.Entry(transaction: entry.transaction, decision: entry.decision, match: match)
    }

    private static func shared(_ id: String) -> Verdict.Entry {
        .purchase(id, kind: .nonConsumable, .grant(goods: [], source: .shared)) { $0.ownership = "FAMILY_SHARED" }
    }

    private static func continuing(_ id: String, _ previous: String) -> Verdict.Entry {
        .purchase(id, kind: .autoRenewable) {
            $0.previousOriginalID = previous
            $0.facts = #"{"previousOriginalTransactionId":"\#(previous)"}"#
        }
    }

    @Test("S3-63: subscriptions, non-consumables, non-renewing and shared ones are found, consumables are not")
    func kinds() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.settle(
                try await lab.post("u1"), Self.owned(.period("s1", of: "s1"), by: "u1"),
                Self.owned(.purchase("k1", kind: .nonConsumable), by: "u1"), .purchase("n1", kind: .nonRenewing),
                Self.shared("f1"), .purchase("c1"),
                Self.owned(.purchase("x1", kind: .nonConsumable, in: Transaction.sandbox), by: "u1"))
            try await lab.settle(try await lab.post("u2"), Self.owned(.period("s2", of: "s2"), by: "u2"))
            #expect(try await Self.chains(lab, "u1") == ["f1", "k1", "n1", "s1"])
            #expect(try await Self.chains(lab, "u1", in: Transaction.sandbox) == ["x1"])
            #expect(try await Self.chains(lab, "u2") == ["s2"])
            #expect(try await Self.chains(lab, "nobody") == [])
            // A period's grant decides nothing; of the others the transaction that was granted is known.
            let facts = try await Self.facts(lab, "u1")
            #expect(facts.map { $0.purchases.first?.grant?.userID } == ["u1", "u1", "u1", nil])
            #expect(facts.map(\.appID) == ["game", "game", "game", "game"])
        }
    }

    @Test("a grant is marked where no ownership leads to it, also where a program of the version before writes it")
    func marks() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let entries = [
                Verdict.Entry.period("s1", of: "s1"), .purchase("k1", kind: .nonConsumable), .purchase("c1"),
                .purchase("n1", kind: .nonRenewing), Self.shared("f1"), Self.continuing("b1", "s1"),
            ]
            let posted = try await lab.post("u1")
            try await lab.settle(lab.verdict(posted, .transactions(entries)))
            let marks = "select transaction_id || ' ' || is_entitling from grants order by 1"
            let expected = ["b1 true", "c1 false", "f1 true", "k1 false", "n1 true", "s1 false"]
            #expect(try await lab.texts(marks) == expected)
            try await lab.run("create table former as select * from grants")
            try await lab.run("delete from grants")
            try await lab.run("update former set is_entitling = null")
            try await lab.run("insert into grants select * from former")
            #expect(try await lab.texts(marks) == expected)
        }
    }

    @Test("newer facts, newer facts of the renewal and a new chain count at the moment after their commit")
    func atOnce() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned(.period("s1", of: "s1"), by: "u1"))
            // Heard of, and not granted yet.
            try await lab.run(
                """
                insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, kind,
                  quantity, purchased_at, expires_at, signed_at, facts)
                select 's2', app_id, environment, original_transaction_id, 'gold', kind, 1, expires_at,
                  expires_at + interval '30 days', now(), '{"reason": "RENEWAL"}' from transactions
                """)
            try await lab.run(
                """
                update transactions set revoked_at = now(), facts = '{"revocationReason": 1}' where transaction_id = 's1'
                """)
            let renewal =
                #"{"originalID":"s1","environment":"Production","signedAt":1800000000,"isInBillingRetry":true}"#
            try await lab.run(
                """
                insert into chains (app_id, environment, original_transaction_id, renewal, renewal_signed_at)
                values ('game', 'Production', 's1', '\(renewal)', now())
                on conflict (app_id, environment, original_transaction_id)
                do update set renewal = excluded.renewal, renewal_signed_at = excluded.renewal_signed_at
                """)
            let chain = try #require(try await Self.facts(lab, "u1").first)
            #expect(chain.purchases.map(\.transaction.id).sorted() == ["s1", "s2"])
            #expect(chain.purchases.first { $0.transaction.id == "s1" }?.transaction.ending == .refunded)
            #expect(chain.renewal?.isInBillingRetry == true)
            #expect(chain.renewal?.signedAt == Date(timeIntervalSince1970: 1_800_000_000))
            #expect(!chain.isContinued)
            // The owner has the chain by the ownership of the chain that it continues.
            try await lab.settle(try await lab.post("u1"), Self.continuing("b1", "s1"))
            #expect(try await Self.chains(lab, "u1") == ["b1", "s1"])
            let bundle = try #require(try await Self.facts(lab, "u1").first)
            #expect(bundle.purchases.map(\.transaction.previousOriginalID) == ["s1"])
            try await lab.run(
                """
                insert into chains (app_id, environment, original_transaction_id, previous_original_transaction_id)
                values ('game', 'Production', 'b1', 's1')
                """)
            #expect(try await Self.facts(lab, "u1").map(\.isContinued) == [false, true])
        }
    }

    @Test("P10: after a move the new owner has it, and the former one has it no more")
    func moves() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let entry = Self.owned(.period("s1", of: "s1"), by: "u1")
            try await lab.settle(try await lab.post("u1"), entry)
            try await lab.settle(
                try await lab.post("u2"),
                Verdict.Entry(transaction: entry.transaction, decision: entry.decision, transfer: .transfer))
            #expect(try await Self.chains(lab, "u1") == [])
            #expect(try await Self.chains(lab, "u2") == ["s1"])
            // Bought anew by the former owner: its ownership is later.
            try await lab.settle(
                try await lab.post("u1"), Self.owned(.period("s2", of: "s1", month: 2), by: "u1"))
            #expect(try await Self.chains(lab, "u1") == ["s1"])
            #expect(try await Self.chains(lab, "u2") == [])
        }
    }

    @Test("a merged account is asked by either name; a guest's token has the guest's alone")
    func merges() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("guest"), Self.owned(.period("s1", of: "s1"), by: "guest"))
            try await lab.settle(try await lab.post("account"), Self.owned(.period("s2", of: "s2"), by: "account"))
            try await lab.run("select merge_users('game', 'guest', 'account', 64, 'ann')")
            for name in ["guest", "account"] { #expect(try await Self.chains(lab, name) == ["s1", "s2"]) }
            #expect(try await Self.chains(lab, "guest", isOfPerson: false) == ["s1"])
            #expect(try await Self.chains(lab, "account", isOfPerson: false) == ["s1", "s2"])
        }
    }

    @Test("an erased user has nothing, whether users are protected or not")
    func erasure() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            for user in ["u1", "u2"] {
                try await lab.settle(
                    try await lab.post(user), Self.owned(.period("s-\(user)", of: "s-\(user)"), by: user))
                #expect(try await Self.chains(lab, user) == ["s-\(user)"])
            }
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            #expect(try await erasure.erase(UserName(appID: "game", key: "u1")))
            #expect(try await Self.chains(lab, "u1") == [])
            let tombstone = try #require(
                try await lab.texts("select user_id from ownerships where user_id like 'erased%'").first)
            #expect(try await Self.chains(lab, tombstone) == [])
            // In a protected database the key stays.
            try await lab.run("insert into users (app_id, user_key, erased_at) values ('game', 'u2', now())")
            #expect(try await Self.chains(lab, "u2") == [])
        }
    }

    @Test("what was given on trust and Apple denied is nobody's; what the former system gave is the user's")
    func trustAndImports() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.settle(try await lab.post("u1"), Self.owned(.purchase("k1", kind: .nonConsumable), by: "u1"))
            try await lab.run(
                """
                insert into provisional_grants (transaction_id, receipt_id, app_id, user_id, product_id, event_id,
                  granted_at, revoked_at)
                select transaction_id, receipt_id, app_id, user_id, product_id, gen_random_uuid(), now(), now() from grants
                """)
            #expect(try await Self.chains(lab, "u1") == [])
            try await lab.run("update transactions set signed_at = now() + interval '1 second'")
            #expect(try await Self.chains(lab, "u1") == ["k1"], "Apple has said since that it stands")
            try await lab.run(
                """
                insert into imported_grants (transaction_id, app_id, environment, original_transaction_id, user_id,
                  product_id, purchased_at)
                values ('i1', 'game', 'Production', 'i1', 'u1', 'sword', now())
                """)
            try await lab.run(
                """
                insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
                  binding_source)
                values ('game', 'Production', 'i1', now(), 'i1', 'u1', 'imported')
                """)
            #expect(try await Self.chains(lab, "u1") == ["i1", "k1"])
            let imported = try #require(try await Self.facts(lab, "u1").first?.purchases.first?.transaction)
            #expect(imported.id == "i1" && imported.productID == "sword" && imported.kind == nil)
        }
    }

    @Test("several questions are one statement, and each gets its own user's chains")
    func together() async throws {
        try await LedgerLab.with { lab in
            let users = (0..<20).map { "u\($0)" }
            for user in users {
                try await lab.settle(
                    try await lab.post(user), Self.owned(.period("s-\(user)", of: "s-\(user)"), by: user))
            }
            let questions = users.map {
                EntitlementQuestion(user: UserName(appID: "game", key: $0), isOfPerson: true, environment: "Production")
            }
            let found = try await Ledger.ownedChains(questions, in: lab.database)
            #expect(found.map { $0.map(\.originalID) } == users.map { ["s-\($0)"] })
            let many = try await withThrowingTaskGroup(of: [String].self) { group in
                for user in users { group.addTask { try await Self.chains(lab, user) } }
                return try await group.reduce(into: Set<[String]>()) { $0.insert($1) }
            }
            #expect(many == Set(users.map { ["s-\($0)"] }))
        }
    }

    @Test("ten thousand consumables of a user are not read; plans from empty tables touch few blocks")
    func manyGrants() async throws {
        try await LedgerLab.with(connections: 1, endsSound: false, isAlone: true) { lab in
            for table in ["grants", "transactions", "ownerships", "chains"] {
                try await lab.run("alter table \(table) set (autovacuum_enabled = false)")
            }
            #expect(try await Self.chains(lab, "u1") == [])
            try await lab.run(
                """
                insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, kind,
                  quantity, purchased_at, facts)
                select 'c' || n, 'game', 'Production', 'c' || n, 'coins', 'Consumable', 1, now(), '{}'
                from generate_series(1, 50000) n
                """)
            try await lab.run(
                """
                insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
                  quantity, goods, binding_source, is_entitling)
                select 'c' || n, 'c' || n, 'game', 'Production', case when n <= 10000 then 'u1' else 'o' || n end,
                  gen_random_uuid(), 'coins', 1, '[]', 'poster', false
                from generate_series(1, 50000) n
                """)
            try await lab.run(
                """
                insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, kind,
                  quantity, purchased_at, expires_at, facts)
                select 's' || n || '-' || m, 'game', 'Production', 's' || n, 'pass', 'Auto-Renewable Subscription', 1,
                  now() - m * interval '7 days', now() - (m - 1) * interval '7 days', '{}'
                from generate_series(1, 500) n, generate_series(1, 120) m
                """)
            try await lab.run(
                """
                insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
                  binding_source)
                select 'game', 'Production', 's' || n, now(), 's' || n || '-1', 'u' || n, 'poster'
                from generate_series(1, 500) n
                """)
            // A worker would follow up the chains that the triggers marked.
            try await lab.run("delete from chain_marks")
            #expect(try await Self.chains(lab, "u1") == ["s1"])
            var chains: [ChainFacts] = []
            let blocks = try await lab.touched { chains = try await Self.facts(lab, "u1") }
            print("entitlements: \(blocks) blocks")
            #expect(blocks <= 1000)
            #expect(chains.map(\.purchases.count) == [Statements.purchasesOfChainMax])
            // The newest are read.
            #expect(chains.first?.purchases.contains { $0.transaction.id == "s1-1" } == true)
        }
    }
}
