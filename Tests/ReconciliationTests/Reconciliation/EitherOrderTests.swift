import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation

/// Goal: a submission without a user (as a notification brings it) and the client's post of the same purchase, in
/// either order and at the same time, end with one grant, to the right account, by its order (P11, S3-3, B7). Method:
/// two submissions of one signed transaction, one of them without a user, through two workers' benches on a real
/// ledger, many rounds; a receipt that stays open is judged again as the scheduler would have it judged.
@Suite(.timeLimit(.minutes(8))) struct EitherOrderTests {
    fileprivate enum Turn: CaseIterable { case clientFirst, clientLast, together, bothAtOnceTwice }

    /// The evidence that ties the purchase to its user.
    fileprivate enum Tie: CaseIterable { case token, openOrder, nothing }

    @Test("P11: a purchase that nobody posted and its client's post: one grant, to its owner, in whatever order")
    func eitherOrder() async throws {
        try await VerifyLab.with { lab in
            let benches = [
                try await lab.processor(try lab.configuration()), try await lab.processor(try lab.configuration()),
            ]
            for tie in Tie.allCases {
                for turn in Turn.allCases {
                    // Races need several rounds; submissions in turn always end in the same way.
                    for round in 0..<(turn == .together || turn == .bothAtOnceTwice ? 12 : 2) {
                        try await lab.check(tie, turn, benches, "\(tie) \(turn) \(round)")
                    }
                }
            }
        }
    }
}

extension VerifyLab {
    fileprivate func check(
        _ tie: EitherOrderTests.Tie, _ turn: EitherOrderTests.Turn, _ benches: [ReceiptProcessor], _ comment: Comment
    ) async throws {
        let user = "u-\(UUID().uuidString.prefix(8))"
        let order = UUID()
        if tie == .token || tie == .openOrder {
            try await lab.run(
                """
                insert into orders (id, app_id, user_id, product_id, goods)
                values ('\(order)', 'game', '\(user)', 'coins', '[{"item": "coin", "amount": 77}]')
                """)
        }
        let sale = try await sell { $0.appAccountToken = tie == .token ? order.uuidString.lowercased() : nil }
        let proof = Proof.signedTransaction(sale.signedTransaction)
        // The first submission has no user: it names an order that this server does not know.
        let found = Submission(appID: Self.appID, userID: nil, orderID: "none-\(UUID())", proof: proof)
        let posted = Submission(appID: Self.appID, userID: user, proof: proof)
        for submission in [found, posted] { #expect(try await lab.ledger.insert(submission)) }
        switch turn {
        case .clientFirst:
            await benches[0].judge(posted.receiptID, 0)
            await benches[1].judge(found.receiptID, 0)
        case .clientLast:
            await benches[0].judge(found.receiptID, 0)
            await benches[1].judge(posted.receiptID, 0)
        case .together, .bothAtOnceTwice:
            await withTaskGroup(of: Void.self) { group in
                for number in 0..<(turn == .together ? 1 : 2) {
                    group.addTask { await benches[number % 2].judge(found.receiptID, 0) }
                    group.addTask { await benches[(number + 1) % 2].judge(posted.receiptID, 0) }
                }
            }
        }
        // A receipt that waits is judged again, as the scheduler would have it judged.
        for submission in [found, posted] {
            let row = try #require(try await lab.ledger.fetch(submission.receiptID))
            if !row.state.isEnded { await benches[0].judge(row.id, row.attempt) }
        }
        let id = sale.purchase.transactionId
        #expect(
            try await lab.texts("select user_id from grants where transaction_id = '\(id)'") == [user], comment)
        let hasOrder = tie == .token || tie == .openOrder
        #expect(
            try await lab.texts(
                "select concat(goods -> 0 ->> 'amount', ' ', order_id) from grants where transaction_id = '\(id)'")
                == [hasOrder ? "77 \(order.uuidString.lowercased())" : "60 "], comment)
        #expect(
            try await lab.number(
                "select count(*) from events where transaction_id = '\(id)' and type = 'purchase.granted'")
                == 1, comment)
        let client = try #require(try await lab.ledger.view(posted.receiptID))
        #expect(client.state.isEnded && client.transactions.map(\.isOwn) == [true], comment)
        let nobody = try #require(try await lab.ledger.view(found.receiptID))
        #expect(nobody.state.isEnded && nobody.transactions.map(\.isOwn) == [false], comment)
    }
}

extension ReceiptProcessor {
    fileprivate func judge(_ id: UUID, _ attempt: Int) async {
        #expect(
            await process(Array(Pointer(receiptID: id, attempt: attempt).text.utf8), redelivered: false) == .done)
    }
}
