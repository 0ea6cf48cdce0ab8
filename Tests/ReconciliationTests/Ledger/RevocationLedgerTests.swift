import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: the database and the program read the end of a purchase in the same way (Ownership, rows 0a and 0a'), and a
/// stored end answers older proofs. Method: every combination of Apple's fields as a row; then the rows' text, case by
/// case.
@Suite(.timeLimit(.minutes(8))) struct RevocationLedgerTests {
    @Test("every combination of Apple's values means the same in SQL")
    func agreement() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.run(
                """
                insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, quantity,
                  purchased_at, expires_at, revoked_at, ownership, facts)
                select 't' || row_number() over (), 'game', 'Production', 'o' || row_number() over (), 'pass', 1, now(),
                  now() + interval '30 days', revoked_at, ownership, jsonb_strip_nulls(jsonb_build_object(
                    'revocationReason', reason, 'revocationType', type, 'revocationPercentage', percentage,
                    'isUpgraded', is_upgraded, 'reason', case when is_signed then 'PURCHASE' end))
                from unnest(array[null, 0, 1, 2]) reason,
                  unnest(array[null, 'REFUND_FULL', 'REFUND_PRORATED', 'FAMILY_REVOKE', 'ASSIGNMENT_REVOKE', 'NEW']) type,
                  unnest(array[null, 0, 50000, 100000]) percentage,
                  unnest(array[null, 'PURCHASED', 'FAMILY_SHARED', 'ASSIGNED']) ownership,
                  unnest(array[null, false, true]) is_upgraded, unnest(array[null, now()]) revoked_at,
                  unnest(array[true, false]) is_signed
                """)
            // Another product of the chain followed half of these purchases. It says nothing of another chain's, also where
            // the row is called as its table, as most callers call it.
            try await lab.run(
                """
                insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, quantity,
                  purchased_at, facts)
                select 'next of ' || transaction_id, app_id, environment, original_transaction_id, 'gold', 1,
                  now() + interval '50 seconds', '{}'
                from transactions where hashtext(transaction_id) % 2 = 0
                """)
            let rows = try await lab.database.run(
                Statement<Void, (Transaction, Bool, String?, Bool, String?, Transaction.Ending?)>(
                    "test.endings",
                    """
                    select (\(Statements.takenBack("transactions"))), \(Statements.isRefund("transactions")),
                      exists (select from transactions s where s.transaction_id = 'next of ' || transactions.transaction_id),
                      (select ending from v_ended_purchases e where e.transaction_id = transactions.transaction_id),
                      \(Statements.ending("transactions")), f.*
                    from transactions
                    cross join lateral (select \(Statements.storedFacts) from transactions s
                      where s.transaction_id = transactions.transaction_id) f
                    where transactions.product_id = 'pass'
                    """,
                    read: { row throws(PostgresError) in
                        guard let transaction = try row.transaction(from: 5) else { throw row.undecodable(5) }
                        return (
                            transaction, try row.bool(2), try row.optionalText(0), try row.bool(1),
                            try row.optionalText(3), try row.ending(4)
                        )
                    }))
            #expect(rows.count == 4608)
            var seen: Set<String> = []
            for (stored, isFollowed, takenBack, isRefund, shown, read) in rows {
                var transaction = stored
                transaction.hasSuccessor = isFollowed && stored.mayHaveSuccessor
                let expected: String? =
                    switch transaction.ending {
                    case nil, .upgraded?, .refundedInPart?: nil
                    case .refunded?: "refunded"
                    case .withdrawn?: "withdrawn"
                    case .unknown?: "review"
                    }
                seen.insert("\(String(describing: transaction.ending))")
                #expect(takenBack == expected, "\(transaction)")
                #expect(read == (transaction.ending == .upgraded ? nil : transaction.ending), "\(transaction)")
                let refunds: [Transaction.Ending?] = [.refunded, .refundedInPart, .unknown]
                #expect(isRefund == refunds.contains(transaction.ending), "\(transaction)")
                let ending: String? =
                    switch transaction.ending {
                    case nil: nil
                    case .upgraded?: transaction.revokedAt == nil ? nil : "upgraded"
                    case .withdrawn?: "withdrawn"
                    case .refunded?, .refundedInPart?, .unknown?: "refunded"
                    }
                #expect(shown == ending, "\(transaction)")
            }
            #expect(seen.count == Transaction.Ending.allCases.count + 1)
        }
    }

    private static let endedAt = LedgerLab.bought + 100

    /// A period with the fields that Apple signed at that time.
    private static func period(
        _ id: String, signed seconds: Double,
        _ decision: Decision = .grant(goods: Verdict.Entry.coins, source: .poster),
        isEnded: Bool = false, facts: String = "{}", _ change: (inout Transaction) -> Void = { _ in }
    ) -> Verdict.Entry {
        .purchase(id, kind: .autoRenewable, signedAt: LedgerLab.bought + seconds, decision) {
            $0.expiresAt = $0.purchasedAt + 86_400
            $0.revokedAt = isEnded ? endedAt : nil
            $0.facts = facts
            change(&$0)
        }
    }

    @Test(
        "row 0a: what is on record answers a proof that Apple signed before it, by what it means",
        arguments: [
            (#"{"revocationType": "REFUND_FULL"}"#, "PURCHASED", "rejected refunded"),
            (#"{"revocationType": "FAMILY_REVOKE"}"#, "FAMILY_SHARED", "rejected withdrawn"),
            ("{}", "ASSIGNED", "rejected withdrawn"), (#"{"revocationReason": 2}"#, "PURCHASED", "held review"),
            (#"{"isUpgraded": true}"#, "PURCHASED", "granted"),
            (
                #"{"revocationType": "REFUND_PRORATED", "revocationPercentage": 50000}"#, "PURCHASED", "granted"
            ),
        ])
    func onRecord(facts: String, ownership: String, expected: String) async throws {
        try await LedgerLab.with { lab in
            let told = Self.period("t1", signed: 200, .rejected(.historical), isEnded: true, facts: facts) {
                $0.ownership = ownership
            }
            try await lab.settle(try await lab.post("u1"), told)
            let old = try await lab.post("u2")
            try await lab.settle(old, Self.period("t1", signed: 50) { $0.ownership = ownership })
            #expect(try await lab.outcomes(old) == ["t1": expected])
        }
    }

    @Test("row 0a': the end that a proof shows itself was judged, whatever is on record of it")
    func judgedEnd() async throws {
        try await LedgerLab.with { lab in
            // At that time nothing explained the end of the period.
            try await lab.settle(
                try await lab.post("u1"), Self.period("t1", signed: 200, .rejected(.refunded), isEnded: true))
            try await lab.run("update outcomes set decided_at = now() - interval '1 hour'")
            let posted = try await lab.post("u2")
            let ended = Verdict.Entry.purchase("t1", kind: .autoRenewable) {
                $0.expiresAt = $0.purchasedAt + 86_400
                $0.revokedAt = Self.endedAt
            }
            let explained = Verdict.Entry(
                transaction: ended.transaction, decision: ended.decision,
                match: Match(userID: "u2", source: .poster, reasons: [.endedByUpgrade]))
            try await lab.settle(posted, explained)
            #expect(try await lab.outcomes(posted) == ["t1": "granted"])
            // A grant of a refunded purchase breaks an invariant; a grant of a purchase whose end is explained by now
            // does not.
            try await lab.run("update transactions set signed_at = now() - interval '1 minute'")
            func broken() async throws -> [String] {
                try await Invariant.check(lab.database, span: .all, scale: 0).map(\.invariant)
            }
            #expect(try await broken() == [])
            try await lab.run("update outcomes set reasons = null where state = 'granted'")
            #expect(try await broken() == ["refunds"])
            try await lab.run("update outcomes set reasons = array['ended_by_upgrade'] where state = 'granted'")
        }
    }

    @Test("row 0a: a refund under another id of the purchase is found, unless newer facts undid it or it was before")
    func underAnotherID() async throws {
        try await LedgerLab.with { lab in
            func ask(_ transaction: Transaction) async throws -> Reason? {
                try await lab.evidence(lab.question(transaction))[0].takenBack
            }
            let restore = { (seconds: Double, signed: Double?) in
                Verdict.Entry.purchase(
                    "s2", of: "s1", kind: .nonConsumable, signedAt: signed.map { LedgerLab.bought + $0 }
                ) { $0.purchasedAt += seconds }.transaction
            }
            try await lab.settle(
                try await lab.post("u1"),
                .purchase("s1", kind: .nonConsumable, signedAt: LedgerLab.bought + 200, .rejected(.refunded)) {
                    $0.revokedAt = Self.endedAt
                })
            #expect(try await ask(restore(60, nil)) == .refunded)
            #expect(try await ask(restore(60, 150)) == .refunded)
            #expect(try await ask(restore(60, 300)) == nil, "signed after the refund was told")
            #expect(try await ask(restore(101, nil)) == nil, "bought after the refund")
            // This is another restore; Apple said later that it stands.
            try await lab.settle(
                try await lab.post("u1"),
                .purchase("s3", of: "s1", kind: .nonConsumable, signedAt: LedgerLab.bought + 400, .held(.review)))
            #expect(try await ask(restore(60, nil)) == nil)

            // For a subscription, only the same period counts.
            try await lab.settle(
                try await lab.post("u1"),
                Self.period("p1", signed: 200, .rejected(.refunded), isEnded: true) { $0.originalID = "p0" })
            let same = Self.period("p2", signed: 50) { $0.originalID = "p0" }.transaction
            var next = same
            next.expiresAt = same.purchasedAt + 172_800
            #expect(try await ask(same) == .refunded)
            #expect(try await ask(next) == nil)
        }
    }

    @Test("row 0a': another product of the chain that is on record explains the end of a period")
    func successor() async throws {
        try await LedgerLab.with { lab in
            let basic = Self.period("p1", signed: 200, isEnded: true).transaction
            func isFollowed() async throws -> Bool { try await lab.evidence(lab.question(basic))[0].hasSuccessor }
            let plus = { (id: String, seconds: Double, product: String) in
                Self.period(id, signed: 200) {
                    $0.originalID = "p1"
                    $0.productID = product
                    $0.purchasedAt = Self.endedAt + seconds
                }
            }
            #expect(try await !isFollowed())
            for (id, seconds, product, expected) in [
                ("same", 0.0, "coins", false), ("late", 61, "gold", false), ("next", 60, "gold", true),
            ] {
                try await lab.settle(try await lab.post("u1"), plus(id, seconds, product))
                #expect(try await isFollowed() == expected, "\(id)")
            }
        }
    }

    @Test("F4: what an upgrade ended is no refund, in no answer and in no refund rate; what was withdrawn is called so")
    func told() async throws {
        try await LedgerLab.with { lab in
            for (id, facts, ownership, reason, isRefund) in [
                ("t1", #"{"isUpgraded": true}"#, "PURCHASED", nil, false),
                ("t2", #"{"revocationType": "FAMILY_REVOKE"}"#, "FAMILY_SHARED", "withdrawn", false),
                (
                    "t3", #"{"revocationType": "REFUND_PRORATED", "revocationPercentage": 1}"#, "PURCHASED", nil, true
                ),
                ("t4", "{}", "PURCHASED", "refunded", true),
            ] as [(String, String, String, String?, Bool)] {
                let user = "u of \(id)"
                let posted = try await lab.post(user)
                try await lab.settle(posted, Self.period(id, signed: 50) { $0.ownership = ownership })
                try await lab.run(
                    "update transactions set revoked_at = now(), facts = '\(facts)' where transaction_id = '\(id)'")
                let view = try #require(try await lab.ledger.view(posted.id)?.transactions.first)
                #expect(view.state == "granted" && view.reason == reason, "\(id)")
                let history = try await lab.database.run(
                    Statements.userHistory, .init(appID: "game", userID: user, purchasesMax: 1))
                #expect(history.first?.hasRefund == isRefund, "\(id)")
            }
            #expect(try await lab.number("select count(*) from v_refund_rate_by_user") == 2)
            #expect(
                try await lab.number("select sum(revoked)::bigint from v_goods_by_day") == 3, "what was withdrawn too")
        }
    }
}
