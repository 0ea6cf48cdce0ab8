import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Goal: a client learns the outcome of each of its transactions, in full if the transaction is its user's, and nothing
/// about another user's goods.
@Suite(.timeLimit(.minutes(8))) struct AnswerTests {
    private static let bought = Date(timeIntervalSince1970: 1_800_000_000.5)

    private static func entry(_ id: String, _ decision: Decision? = nil) -> Verdict.Entry {
        Verdict.Entry.purchase(
            id, of: "o\(id)", in: Transaction.production,
            decision ?? .grant(goods: Verdict.Entry.coins, source: .poster)
        ) {
            $0.purchasedAt = bought
            $0.quantity = 3
        }
    }

    @Test("S1-20: every transaction with its facts, its state and, where it is the poster's, its goods")
    func view() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post("u1", transactionID: "t1")
            try await lab.settle(posted, Self.entry("t1"), Self.entry("t2", .held(.productUnknown)))
            let view = try #require(try await lab.ledger.view(posted.id))
            #expect(view.state == .held && view.reason == "product_unknown" && view.transactionID == "t1")
            #expect(view.appID == "game" && view.userID == "u1" && view.kind == .receipt && view.dueAt != nil)
            let granted = ReceiptView.TransactionView(
                transactionId: "t1", originalTransactionId: "ot1", productId: "coins", quantity: 3,
                environment: "Production", purchasedAt: "2027-01-15T08:00:00.500Z", state: "granted", reason: nil,
                isOwn: true, goods: Verdict.Entry.coins, grantedAs: "t1")
            let held = ReceiptView.TransactionView(
                transactionId: "t2", originalTransactionId: "ot2", productId: "coins", quantity: 3,
                environment: "Production", purchasedAt: "2027-01-15T08:00:00.500Z", state: "held",
                reason: "product_unknown", isOwn: nil, goods: nil)
            #expect(view.transactions == [granted, held])
            #expect(try await lab.ledger.view(UUID()) == nil)
        }
    }

    @Test("P5, P10: granted before: the owner sees the goods again, another user nothing of them")
    func owners() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.entry("t1"))
            for (user, isOwn) in [("u1", true), ("u2", false)] {
                let posted = try await lab.post(user)
                try await lab.settle(posted, Self.entry("t1"))
                let view = try #require(try await lab.ledger.view(posted.id))
                let transaction = try #require(view.transactions.first)
                #expect(view.state == .alreadyGranted && view.dueAt == nil)
                #expect(transaction.isOwn == isOwn)
                #expect(transaction.goods == (isOwn ? Verdict.Entry.coins : nil))
                #expect(transaction.grantedAs == (isOwn ? "t1" : nil), "S3-69")
                #expect(transaction.holder == (isOwn ? nil : "u1"), "S3-71: masked by ingest")
            }
        }
    }

    @Test("what Apple took back since: its owner is told so, in each of the owner's receipts; the state stays")
    func refundedSince() async throws {
        try await LedgerLab.with { lab in
            let first = try await lab.post("u1")
            try await lab.settle(first, Self.entry("t1"))
            let again = try await lab.post("u1")
            try await lab.settle(again, Self.entry("t1"))
            let stranger = try await lab.post("u2")
            try await lab.settle(stranger, Self.entry("t1"))
            try await lab.run("update transactions set revoked_at = now()")
            for (posted, state, reason, isOwn) in [
                (first, "granted", "refunded", true), (again, "already_granted", "refunded", true),
                (stranger, "already_granted", "owned_by_another_user", false),
            ] {
                let transaction = try #require(try await lab.ledger.view(posted.id)?.transactions.first)
                #expect(transaction.state == state && transaction.reason == reason && transaction.isOwn == isOwn)
                #expect(transaction.goods == (isOwn ? Verdict.Entry.coins : nil))
            }
        }
    }

    @Test("a collision shows nothing of the other app's purchase")
    func collision() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.entry("t1"))
            let other = try await lab.post("u1", app: "other")
            try await lab.settle(other, Self.entry("t1"))
            let transaction = try #require(try await lab.ledger.view(other.id)?.transactions.first)
            #expect(transaction.state == "held" && transaction.reason == "id_collision")
            #expect(transaction.productId == nil && transaction.goods == nil && transaction.isOwn == nil)
        }
    }

    @Test("note 5: a bare id that leads nowhere shows no facts of a purchase that others have posted")
    func bareID() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), Self.entry("t1"))
            let question = try await lab.post("u2", kind: .identifier, transactionID: "t1")
            try await lab.settle(lab.verdict(question, .identifier("t1", .possessionMissing)))
            let transaction = try #require(try await lab.ledger.view(question.id)?.transactions.first)
            #expect(transaction.state == "held" && transaction.reason == "possession_missing")
            #expect(transaction.productId == nil, "its existence is a hint")
            #expect(transaction.holder == nil && transaction.grantedAs == nil)
            #expect(
                transaction.purchasedAt == nil && transaction.originalTransactionId == nil && transaction.goods == nil)
        }
    }

    @Test("a receipt without transactions answers an empty list")
    func empty() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post()
            #expect(try await lab.ledger.view(posted.id)?.transactions == [])
            try await lab.settle(lab.verdict(posted, .receipt(.held(.noTransactionYet))))
            let view = try #require(try await lab.ledger.view(posted.id))
            #expect(view.transactions == [] && view.reason == "no_transaction_yet")
        }
    }

    @Test("a long poll ends with any state but received")
    func finished() async throws {
        try await LedgerLab.with { lab in
            let waiting = try await lab.post()
            let held = try await lab.post()
            try await lab.settle(held, .purchase("t1", .held(.review)))
            let granted = try await lab.post()
            try await lab.settle(granted, .purchase("t2"))
            let finished = try await lab.ledger.run(
                Statements.finishedReceipts, [waiting.id, held.id, granted.id, UUID()])
            #expect(Set(finished) == [held.id, granted.id])
        }
    }
}
