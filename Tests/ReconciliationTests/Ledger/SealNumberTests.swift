import Foundation
import Logging
import Postgres
import Purchases
import Testing

@testable import Ledger
@testable import Reconciliation
@testable import Service

/// Goal: a row whose owner gave it a number that no transaction has, or none, is named (L2), and a sealer leaves any
/// backlog.
/// Method: rows written by hand beside sealed ones; plans over many transactions that wrote nothing.
@Suite(.timeLimit(.minutes(4))) struct SealNumberTests {
    @Test("L2: an outcome or a grant with a number of the future is named, and no row whose number is taken")
    func future() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.settle(try await lab.post(), .purchase("t1"))
            try await lab.sealAll()
            #expect(try await lab.sealFindings() == [])
            let head = try #require(try await lab.database.run(Statements.sealHeads, 1).first).number
            let sealed = try #require(try await lab.sealedBlocks().first { $0.names.contains("grant t1") }).number
            let outcome = try #require(
                try await lab.texts("select 'outcome ' || receipt_id || ' t1' from outcomes").first)

            try await lab.run("alter table outcomes disable trigger outcomes_place")
            try await lab.run("update outcomes set state = 'rejected', xid = 1000000000000")
            try await lab.run("alter table outcomes enable trigger outcomes_place")
            let edited = try await lab.sealFindings()
            #expect(edited.contains(SealFinding(block: sealed, what: .deleted, row: outcome)))
            #expect(edited.contains(SealFinding(block: head, what: .inserted, row: outcome)))
            #expect(edited.count == 2)
            try await lab.run("delete from outcomes")

            let forged = #"{"transaction_id": "forged", "purchase_key": "f", "order_id": null, "xid": 1000000000000}"#
            try await lab.run(
                """
                insert into grants
                select (jsonb_populate_record(g, '\(forged)')).* from grants g where transaction_id = 't1'
                """)
            #expect(try await lab.sealFindings().contains { $0.what == .inserted && $0.row == "grant forged" })
            // What was written a moment ago and is in no block yet is no finding.
            try await lab.run("delete from grants where transaction_id = 'forged'")
            try await lab.settle(try await lab.post(), .purchase("t2"))
            #expect(try await lab.sealFindings().map(\.what) == [.deleted], "the outcome")
        }
    }

    @Test("L2: a back-dated row of each table that names no transaction is named, and so is a sealed one that lost it")
    func unnumbered() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.settle(try await lab.post(), .purchase("t1"))
            try await lab.sealAll()
            #expect(try await lab.sealFindings() == [])
            let head = try #require(try await lab.database.run(Statements.sealHeads, 1).first).number
            let outcome = try #require(
                try await lab.texts("select 'outcome ' || receipt_id || ' forged' from outcomes").first)
            let grant = """
                {"transaction_id": "forged", "purchase_key": "f", "order_id": null, "granted_at": "2020-01-01", "xid": null}
                """
            for sql in [
                "insert into grants select (jsonb_populate_record(g, '\(grant)')).* from grants g",
                """
                insert into outcomes (receipt_id, transaction_id, state, decided_at, xid)
                select receipt_id, 'forged', 'granted', '2020-01-01', null from outcomes
                """,
                """
                insert into revocations (transaction_id, ordinal, app_id, environment, user_id, kind, reason, takes_back,
                  percentage, goods, at, recorded_at, xid)
                values ('forged', 1, 'game', 'Production', 'u1', 'revoked', 'refunded', true, 100000, '[]', '2020-01-01',
                  '2020-01-01', null)
                """,
                "insert into audits (at, actor, action, details, xid) values ('2020-01-01', 'nobody', 'x', '{}', null)",
            ] { try await lab.run(sql) }
            let audit = try #require(
                try await lab.texts("select 'audit ' || id from audits where actor = 'nobody'").first)
            let findings = try await lab.sealFindings()
            #expect(findings.allSatisfy { $0.block == head && $0.what == .unnumbered })
            #expect(
                findings.compactMap(\.row).sorted() == [audit, "grant forged", outcome, "revocation forged 1"].sorted())

            try await lab.run("delete from grants where transaction_id = 'forged'")
            try await lab.run("delete from outcomes where transaction_id = 'forged'")
            try await lab.run("delete from revocations")
            try await lab.run("delete from audits where actor = 'nobody'")
            #expect(try await lab.sealFindings() == [])
            try await lab.run("update grants set xid = null")
            #expect(Set(try await lab.sealFindings().map(\.what)) == [.deleted, .unnumbered])
        }
    }

    @Test("a plan that finds no row looks at twice as many transactions, and each failure at a quarter")
    func backlog() async throws {
        func next(_ rows: Int, _ span: Int, isMore: Bool = true) -> Int? {
            SealPlan(
                number: 1, previousHash: [], firstXID: 1000, endXID: 1000 + span, rows: rows, isMore: isMore,
                behindSeconds: 0, readAt: .now
            ).nextTransactions
        }
        #expect(next(4096, 300) == 600 && next(1, 2) == 256)
        #expect(next(0, 256) == 512 && next(0, 1 << 20) == 1 << 21)
        #expect(next(10, 5000, isMore: false) == nil && next(0, 5000, isMore: false) == nil)
        var memory = Sealer.Memory()
        var seen: [Int] = []
        for _ in 0..<8 {
            memory.lookAtFewer()
            seen.append(memory.transactions ?? 0)
        }
        #expect(seen == [262_144, 65_536, 16_384, 4096, 1024, 256, 256, 256])

        try await LedgerLab.with(endsSound: false) { lab in
            // Transactions that write nothing to seal.
            for _ in 0..<300 { try await lab.run("select pg_current_xact_id()") }
            try await lab.settle(try await lab.post(), .purchase("t1"))
            memory = Sealer.Memory(transactions: 2)
            let sealer = Sealer(ledger: lab.ledger, logger: .silent, pause: 0)
            try await lab.until("the purchase is not sealed") {
                try await sealer.sealAll(&memory)
                return try await lab.sealedBlocks().flatMap(\.names).contains("grant t1")
            }
            #expect(try await lab.sealFindings() == [])
        }
    }
}
