import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: a user who posts one proof over and over does not make lists expensive. Method: 2,000 receipts of one
/// purchase, the newest written last, and the blocks that the server touches for the largest page of them.
@Suite(.serialized, .timeLimit(.minutes(4))) struct PurchaseListTests {
    private static let posts = 2000
    /// About five are needed: an outcome, a receipt by its key. If each post were compared with each of the page, it
    /// would be a hundred times that.
    private static let blocksOfPostMax = 15

    @Test("what was posted 2,000 times is listed once, with the newest post, at the price of one look each")
    func oneProof() async throws {
        try await LedgerLab.with(connections: 1, endsSound: false, isAlone: true) { lab in
            for sql in [
                """
                insert into receipts (id, app_id, user_id, order_id, kind, lane, is_vouched, details, payload_sha256, state,
                  reason, received_at, settled_at)
                select ('00000000-0000-8000-8000-' || lpad(n::text, 12, '0'))::uuid, 'game', 'u1', null,
                  'signed_transaction', 'local', false, '{}', '\\x00', 'rejected', 'refunded',
                  now() - (\(Self.posts) - n) * interval '1 second', now()
                from generate_series(1, \(Self.posts)) n
                """,
                """
                insert into outcomes (receipt_id, transaction_id, state, reason, decided_at)
                select id, 't1', 'rejected', 'refunded', received_at from receipts order by received_at
                """,
                """
                insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, quantity,
                  purchased_at, facts)
                values ('t1', 'game', 'Production', 't1', 'coins', 1, now(), '{}')
                """,
                "vacuum (analyze) receipts", "vacuum (analyze) outcomes",
            ] { try await lab.run(sql) }
            let page = Statements.PurchasePage(appID: "game", userIDs: ["u1"], before: .newest, limit: 201)
            var places = try await lab.ledger.run(Statements.postedPurchases, page)
            let blocks = try await lab.touched { places = try await lab.ledger.run(Statements.postedPurchases, page) }
            print("purchase list: \(blocks) blocks for \(Self.posts) posts of one purchase")
            #expect(blocks <= Self.blocksOfPostMax * Self.posts)
            #expect(places.map(\.topUps.count) == [1] + Array(repeating: 0, count: 200))
            let listed = try #require(places.first?.topUps.first)
            #expect(listed.transactionId == "t1" && listed.productId == "coins" && listed.state == .rejected)
            #expect(listed.receiptId?.uuidString == "00000000-0000-8000-8000-00000000\(Self.posts)")
            // The next pages also take the newest post into account.
            let last = try #require(places.last?.cursor)
            let next = Statements.PurchasePage(appID: "game", userIDs: ["u1"], before: last, limit: 201)
            let older = try await lab.ledger.run(Statements.postedPurchases, next)
            #expect(older.map(\.topUps.count) == Array(repeating: 0, count: 201))
        }
    }
}
