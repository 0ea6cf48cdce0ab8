import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: compared with the data of the clients and the App Store, every false row is found and named, and no true row
/// is. Method: a sound ledger with its journal, sales and calls; one change by SQL; exactly the violations that the
/// change must cause.
@Suite(.timeLimit(.minutes(8))) struct WitnessTests {
    typealias FalseRow = InvariantTests.Damage

    static let falseRows = [
        FalseRow(
            "an acknowledged post without a row",
            """
            insert into witness.journal values ('lost', gen_random_uuid(), 202, 'game', 'u1', null, sha256('lost'))
            """, "acknowledged"),
        FalseRow(
            "a valid purchase is not granted", "update witness.sales set is_valid = true where transaction_id = 'held'",
            "owed"),
        FalseRow(
            "a refund that was posted is not known",
            "update witness.sales set is_valid = false where transaction_id = 'refunded'", "refunds_known"),
        FalseRow(
            "a refund that Apple told of takes nothing back",
            """
            with told as (
              insert into witness.journal (submission, status, app_id, user_id, transaction_id, is_notification)
              values ('notification', 200, 'game', '', 'mine', true))
            update witness.sales set revoked_at = now() where transaction_id = 'mine'
            """, "refunds_told"),
        FalseRow(
            "a grant of something that was never sold", "delete from witness.sales where transaction_id = 'mine'",
            "phantoms"),
        FalseRow(
            "a grant of something forged", "update witness.sales set is_valid = false where transaction_id = 'mine'",
            "phantoms"),
        FalseRow(
            "a grant of another product", "update witness.sales set product_id = 'x' where transaction_id = 'mine'",
            "phantoms"),
        FalseRow(
            "a grant in another environment",
            "update witness.sales set environment = 'Sandbox' where transaction_id = 'mine'", "phantoms"),
        FalseRow("a grant to the wrong user", "update witness.sales set user_id = 'u9'", "owed_to"),
        FalseRow(
            "a grant to somebody else than the order's user",
            """
            with placed as (
              insert into orders (id, app_id, user_id, product_id) values (gen_random_uuid(), 'game', 'u9', 'coins')
              returning id)
            update witness.sales set order_id = placed.id from placed where transaction_id = 'mine'
            """, "owed_to"),
        FalseRow(
            "an order that was lost",
            "update witness.sales set order_id = gen_random_uuid() where transaction_id = 'mine'",
            "owed_to"),
        FalseRow(
            "a valid purchase is not granted, and its receipt says that it was, to somebody else",
            """
            with told as (
              update outcomes set state = 'already_granted', reason = 'owned_by_another_user', decided_at = now()
              where transaction_id = 'held' returning receipt_id),
            ended as (
              update receipts set state = 'already_granted', due_at = null, settled_at = now(), judged_at = now()
              where id in (select receipt_id from told))
            update witness.sales set is_valid = true where transaction_id = 'held'
            """, "grants_behind"),
        FalseRow(
            "something due waits", "update receipts set due_at = now() - interval '3 minutes' where state = 'received'",
            "at_rest"),
        FalseRow(
            "a row that nobody posted",
            "delete from witness.journal where receipt_id in (select id from receipts where state = 'rejected')",
            "unexpected"),
        FalseRow(
            "a row of a post that was refused",
            """
            update witness.journal set status = 422, receipt_id = null
            where receipt_id in (select id from receipts where state = 'rejected')
            """, "unexpected"),
        FalseRow("too many calls at once", "update witness.limits set calls_at_once = 1", "apple_budget"),
        FalseRow(
            "too many calls about one receipt",
            """
            insert into witness.calls select subject, started_at + interval '1 minute' * n, ended_at + interval '1 minute' * n
            from (select * from witness.calls limit 1) c, generate_series(1, 2) n
            """, "apple_budget"),
        FalseRow(
            "a call before Apple said",
            """
            update witness.calls set http_status = 429, retry_at = ended_at + interval '1 hour'
            where started_at = (select min(started_at) from witness.calls)
            """, "apple_budget"),
        FalseRow(
            "one submission, two rows",
            """
            insert into witness.journal
            select a.submission, b.receipt_id, 202, b.app_id, b.user_id, null, b.body_sha256
            from witness.journal a, witness.journal b where a.receipt_id < b.receipt_id limit 1
            """, "one_row"),
        FalseRow(
            "two proofs, one row",
            """
            insert into witness.journal
            select 'other', receipt_id, 202, app_id, 'somebody else', null, body_sha256 from witness.journal limit 1
            """, "one_row"),
        FalseRow(
            "a proof was changed on its way",
            """
            update witness.journal set body_sha256 = sha256('other')
            where receipt_id in (select id from receipts where state = 'rejected')
            """, "posted_payloads"),
    ]

    /// Stores the rows of `InvariantTests`, with a refund of a purchase that was granted before, a post whose answer
    /// was lost, and one that was refused. Apple was asked twice at the same time about the first receipt: production,
    /// then sandbox.
    private func seed(_ lab: LedgerLab) async throws -> Witness {
        try await lab.settle(try await lab.post(), .purchase("mine"))
        try await lab.settle(try await lab.post(), .purchase("mine"))
        try await lab.settle(try await lab.post(), .purchase("refunded", .rejected(.refunded)))
        try await lab.settle(try await lab.post(), .purchase("taken back"))
        try await lab.settle(try await lab.post(), .purchase("held", .held(.productUnknown)))
        let silent = try await lab.post()
        var journal = try await lab.journal()
        for index in journal.indices {
            if journal[index].receiptID == silent.id {
                journal[index].receiptID = nil
                journal[index].status = 0
            } else {
                journal.append(journal[index])  // Posted again, answered alike.
            }
        }
        journal.append(
            Witness.JournalEntry(
                submission: "refused", receiptID: nil, status: 422, appID: "game", userID: "u1", transactionID: nil,
                bodySHA256: nil))
        let sale = { (id: String, isValid: Bool, revokedAt: Date?) in
            Witness.Sale(
                transactionID: id, appID: "game", environment: "Production", productID: "coins", quantity: 1,
                userID: id == "mine" ? "u1" : nil, isValid: isValid, revokedAt: revokedAt)
        }
        let start = Date(timeIntervalSince1970: 1_800_000_000)
        let calls = (0..<2).map { number in
            Witness.Call(
                subject: journal[0].bodySHA256!.prefix(8).map { String(format: "%02x", $0) }.joined(),
                startedAt: start + Double(number), endedAt: start + Double(number) + 0.5, httpStatus: 200)
        }
        let other = Witness.Call(
            subject: "mine", startedAt: start + 0.2, endedAt: start + 0.3, httpStatus: 200)
        let witness = Witness(database: lab.database)
        try await witness.load(
            journal: journal,
            ledger: [
                sale("mine", true, nil), sale("refunded", true, .now), sale("taken back", true, .now),
                sale("held", false, nil), sale("never posted", true, nil),
            ], calls: calls + [other], limits: Witness.Limits(callsAtOnce: 2))
        #expect(try await Invariant.check(lab.database, witness: true) == [])
        return witness
    }

    @Test("I1 to I16: each false row is found, by its invariant", arguments: falseRows)
    func isFound(_ row: FalseRow) async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            _ = try await seed(lab)
            try await lab.run(row.sql)
            let found = try await Invariant.check(lab.database, witness: true)
            #expect(Set(found.map(\.invariant)) == Set(row.violations))
        }
    }

    @Test("a witness is replaced by the next one and leaves nothing behind")
    func replaced() async throws {
        try await LedgerLab.with { lab in
            let witness = try await seed(lab)
            let entries = (0..<12_000).map { number in
                Witness.JournalEntry(
                    submission: "s\(number)", receiptID: nil, status: 503, appID: "game", userID: "u",
                    transactionID: nil, bodySHA256: nil)
            }
            try await witness.load(journal: entries, ledger: [])
            #expect(try await lab.number("select count(*) from witness.journal") == 12_000)
            #expect(try await lab.number("select count(*) from witness.sales") == 0)
            try await witness.drop()
            #expect(try await lab.number("select count(*) from pg_namespace where nspname = 'witness'") == 0)
        }
    }
}

extension LedgerLab {
    /// The journal that clients would have written, in the order of the posts, had they posted the stored receipts.
    fileprivate func journal() async throws -> [Witness.JournalEntry] {
        try await database.run(
            Statement<Void, Witness.JournalEntry>(
                "test.journal",
                """
                select id, app_id, user_id, payload_sha256,
                  (select min(transaction_id) from outcomes where receipt_id = id) from receipts order by received_at
                """,
                read: { row throws(PostgresError) in
                    let id = try row.uuid(0)
                    return Witness.JournalEntry(
                        submission: "of \(id)", receiptID: id, status: 202, appID: try row.text(1),
                        userID: try row.text(2), transactionID: try row.optionalText(4),
                        bodySHA256: try row.optionalBytes(3))
                }))
    }
}
