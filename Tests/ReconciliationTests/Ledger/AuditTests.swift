import Foundation
import Purchases
import Testing

@testable import Ledger

/// Goal: the audit by sample compares both directions, counts what was there before Apple was asked and nothing else, and
/// keeps the bound as a series (L5). Method: a real database in which a walk is written as the sweep of customers leaves
/// it.
@Suite(.timeLimit(.minutes(2))) struct AuditTests {
    private static let draw = Statements.AuditDraw(appID: "game", environment: "Production", size: 100)

    /// What is stored of the customer: `listed` is granted and Apple lists it; `kept` is granted and Apple does not; the
    /// sweep itself found `found`, and `young` was bought while it read.
    private static func store(in lab: LedgerLab) async throws {
        for id in ["listed", "kept"] { try await lab.settle(try await lab.post(), .purchase(id)) }
        for id in ["found", "young"] {
            try await lab.settle(try await lab.post(), .purchase(id, .held(.review)))
        }
        try await lab.run(
            """
            update transactions set customer_id = 'c1', purchased_at = now() - interval '2 days',
              signed_at = now() - interval '1 day'
            """)
        try await lab.run(
            """
            insert into history_walks (app_id, environment, customer, asked_id, begun_at, busy_until, due_at)
            values ('game', 'Production', 'c1', 'listed', now(), now(), now() + interval '9 days')
            """)
    }

    /// The sweep reads the customer's whole list.
    private static func walk(in lab: LedgerLab) async throws {
        try await lab.run(
            "update history_walks set wanted_by = null, whole_at = now(), swept_at = now() + interval '1 second'")
        try await lab.run("update transactions set signed_at = now() where transaction_id <> 'kept'")
        try await lab.run(
            "update transactions set purchased_at = now() + interval '1 s' where transaction_id = 'young'")
    }

    private static func sum(in lab: LedgerLab) async throws -> [String] {
        let sums = try await lab.ledger.run(Statements.auditSums, ())
        if !sums.isEmpty { _ = try await lab.ledger.run(Statements.keepAuditSums, sums) }
        return try await lab.texts(
            """
            select concat_ws(' ', population, drawn, compared, differences, explained, round(bound::numeric, 3))
            from audit_days order by day
            """)
    }

    @Test("a drawn customer is compared once Apple's list was read; each direction counts")
    func bothDirections() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.store(in: lab)
            for _ in 0..<2 { _ = try await lab.ledger.run(Statements.drawSample, [Self.draw]) }
            #expect(try await lab.texts("select wanted_by from history_walks") == ["sample"])
            #expect(try await lab.ledger.run(Statements.compareSample, ()) == [0], "Apple was not asked yet")
            #expect(try await Self.sum(in: lab) == ["1 1 0 0 0"])

            try await Self.walk(in: lab)
            for id in ["found", "young"] {
                try await lab.run(
                    """
                    insert into differences (category, subject, app_id, environment, net)
                    values ('purchase_missing', '\(id)', 'game', 'Production', 'customer')
                    """)
            }
            #expect(try await lab.ledger.run(Statements.compareSample, ()) == [1])
            #expect(try await lab.ledger.run(Statements.compareSample, ()) == [0])
            #expect(try await Self.sum(in: lab) == ["1 1 1 2 0 6.296"])
            #expect(
                try await lab.texts("select subject from differences where category = 'grant_unlisted'") == ["kept"])

            // On the next day a person has closed the grant, and the purchase has healed.
            try await lab.run("update audit_days set day = day - 1")
            try await lab.run("update audit_samples set day = day - 1")
            try await lab.run(
                "update differences set ended_at = now(), ended_by = 'ann' where category = 'grant_unlisted'")
            try await lab.run("update differences set seen_at = now() - interval '1 hour'")
            _ = try await lab.ledger.run(Statements.drawSample, [Self.draw])
            try await Self.walk(in: lab)
            #expect(try await lab.ledger.run(Statements.compareSample, ()) == [1])
            #expect(try await Self.sum(in: lab) == ["1 1 1 2 0 6.296", "1 1 1 1 1 2.996"])
        }
    }

    @Test("a draw is of one place, once a day; a sweep that is under way does not end the wish for the whole history")
    func underWay() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.customer("c1", dueIn: "-1 minute")
            for revision in ["r1", "r2"] {
                let claimed = try #require(try await lab.claim().first)
                if revision == "r2" {
                    #expect(claimed.revision == "r1")
                    let places = [Self.draw, .init(appID: "game", environment: "Sandbox", size: 100)]
                    var drawn: [Int] = []
                    for _ in 0..<3 { drawn += try await lab.ledger.run(Statements.drawSample, places) }
                    #expect(drawn.sorted() == [0, 1])
                }
                try await lab.move(claimed, revision, .end(dueIn: .seconds(600)))
                if revision == "r1" { try await lab.run("update history_walks set due_at = now()") }
            }
            let whole = try #require(try await lab.claim().first, "the customer is still wanted")
            #expect(whole.revision == nil)
        }
    }

    @Test("a list with entries that do not verify, or that is still being read, compares nobody")
    func incomplete() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.store(in: lab)
            _ = try await lab.ledger.run(Statements.drawSample, [Self.draw])
            for change in ["passed_over = 1", "passed_over = 0, swept_begun_at = now()"] {
                try await Self.walk(in: lab)
                try await lab.run("update history_walks set \(change)")
                #expect(try await lab.ledger.run(Statements.compareSample, ()) == [0])
            }
            #expect(try await lab.number("select count(*) from differences") == 0)
            #expect(try await Self.sum(in: lab) == ["1 1 0 0 0"])
        }
    }

    @Test("a grant without facts, and one with facts that nobody signed, are compared too")
    func unsigned() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.store(in: lab)
            for id in ["bare", "first", "legacy", "restored"] {
                try await lab.settle(try await lab.post(), .purchase(id))
            }
            _ = try await lab.ledger.run(Statements.drawSample, [Self.draw])
            try await Self.walk(in: lab)
            try await lab.run("update grants set granted_at = now() - interval '1 day'")
            try await lab.run(
                "update transactions set signed_at = now(), customer_id = 'c1' where transaction_id = 'kept'")
            // Grants that name the customer and have no facts; one was made after the reading.
            try await lab.run("delete from transactions where transaction_id in ('bare', 'first')")
            try await lab.run("update grants set customer_id = 'c1' where transaction_id in ('bare', 'first')")
            try await lab.run("update grants set granted_at = now() where transaction_id = 'first'")
            // Facts of legacy receipts. Apple lists one of the purchases under its original id.
            try await lab.run(
                """
                update transactions set signed_at = null, customer_id = 'c1', purchased_at = now() - interval '2 days'
                where transaction_id in ('legacy', 'restored')
                """)
            try await lab.run(
                "update transactions set original_transaction_id = 'listed' where transaction_id = 'restored'")
            #expect(try await lab.ledger.run(Statements.compareSample, ()) == [1])
            #expect(
                try await lab.texts("select subject from differences where category = 'grant_unlisted' order by 1")
                    == ["bare", "legacy"])
        }
    }
}
