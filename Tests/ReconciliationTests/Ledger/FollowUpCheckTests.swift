import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Goal: `makegood check` finds each chain whose told state is not what its facts say, and no other (I16). Method: a
/// ledger with a chain of each kind, one mutation by SQL, and the violations that the mutation must cause.
@Suite(.timeLimit(.minutes(8))) struct FollowUpCheckTests {
    /// A subscription that runs, a coin purchase that was refunded in part, one that stands, an imported sword.
    private static func seed(_ lab: LedgerLab) async throws {
        let period = Verdict.Entry.purchase("2000000777", of: "2000000777", kind: .autoRenewable) {
            ($0.purchasedAt, $0.expiresAt) = (Date(timeIntervalSinceNow: -3600), Date(timeIntervalSinceNow: 7200))
        }
        try await lab.settle(try await lab.post(), period)
        for id in ["refunded", "standing"] {
            try await lab.settle(try await lab.post(), .purchase(id, signedAt: LedgerLab.bought + 10))
        }
        try await lab.hear(Verdict.Entry.purchase("refunded").transaction.refunded(60, percentage: 30_000))
        try await lab.run(
            """
            insert into imported_grants (transaction_id, app_id, environment, original_transaction_id, user_id, product_id,
              purchased_at)
            values ('imported', 'game', 'Production', 'imported', 'u1', 'coins', to_timestamp(1800000000))
            """)
        try await lab.hear(Verdict.Entry.purchase("imported", kind: .nonConsumable).transaction.refunded(60))
        while try await lab.followUp().chains > 0 {}
        // The second look, which a chain with an end gets.
        try await lab.run("update chains set due_at = null where state is null")
    }

    private static func check(
        _ lab: LedgerLab, _ span: Invariant.Span = .all
    ) async throws -> (count: Int, chains: Int) {
        let found = try await FollowUpCheck.run(lab.database, span: span)
        #expect(found.violation?.invariant ?? FollowUpCheck.name == FollowUpCheck.name)
        #expect(found.violation?.examples.allSatisfy { !$0.contains("2000000777") } ?? true, "no whole id")
        return (found.violation?.count ?? 0, found.chains)
    }

    private static let damages = [
        "delete from revocations where transaction_id = 'refunded'",
        "update revocations set percentage = 20000 where transaction_id = 'refunded'",
        "delete from revocations where transaction_id = 'imported'",
        #"update chains set told = told || '{"state": "expired", "isEntitled": false}' where state is not null"#,
        #"update chains set told = told || '{"productID": "another"}' where state is not null"#,
        "update chains set told_user_id = 'u2' where state is not null",
        "update chains set told = null, told_user_id = null where state is not null",
        """
        do $$ begin
          update transactions set revoked_at = now() where transaction_id = '2000000777';
          delete from chain_marks;
        end $$
        """,
    ]

    @Test("each damage is one violation, unless the chain is marked or due; sound chains are none", arguments: damages)
    func damage(_ sql: String) async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.seed(lab)
            #expect(try await Self.check(lab) == (0, 3))
            try await lab.run(sql)
            #expect(try await Self.check(lab) == (1, 3))
            #expect(try await Self.check(lab, .recent) == (1, 3))
            try await lab.run("update chains set due_at = now() + interval '5 minutes'")
            #expect(try await Self.check(lab) == (0, 0))
            try await lab.run("update chains set due_at = now() + interval '1 hour'")
            #expect(try await Self.check(lab) == (1, 3))
            try await lab.run(
                """
                insert into chain_marks (app_id, environment, original_transaction_id)
                select app_id, environment, original_transaction_id from chains
                """)
            #expect(try await Self.check(lab) == (0, 0))
        }
    }

    @Test("what was told by another policy holds; what was followed up long ago is read by the full check alone")
    func policies() async throws {
        try await LedgerLab.with { lab in
            let period = Verdict.Entry.purchase("s", of: "s", kind: .autoRenewable) {
                ($0.purchasedAt, $0.expiresAt) = (Date(timeIntervalSinceNow: -7200), Date(timeIntervalSinceNow: -3600))
            }
            try await lab.settle(try await lab.post(), period)
            try await lab.hear(
                renewals: [
                    Renewal(
                        originalID: "s", environment: Transaction.production,
                        signedAt: Date(timeIntervalSinceNow: -1800),
                        isInBillingRetry: true)
                ])
            var policy = SubscriptionPolicy()
            policy.retryEntitles = true
            while try await lab.database.followUpChains(policies: ["game": policy], limit: 64).chains > 0 {}
            #expect(try await lab.texts("select told ->> 'isEntitled' from chains") == ["true"])
            #expect(try await Self.check(lab) == (0, 1))
            try await lab.run("update chains set followed_at = now() - interval '3 days'")
            #expect(try await Self.check(lab, .recent) == (0, 0))
            #expect(try await Self.check(lab) == (0, 1))
        }
    }

    @Test("more chains than one page are read, each once")
    func pages() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.run(
                """
                insert into chains (app_id, environment, original_transaction_id, followed_at)
                select 'game', case n % 2 when 0 then 'Production' else 'Sandbox' end, 'c' || n, now()
                from generate_series(1, 600) n
                """)
            #expect(try await Self.check(lab) == (0, 600))
        }
    }
}
