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
            let database = lab.ledger.database
            var places = try await PurchaseLists.read(page, in: database).posted
            let blocks = try await lab.touched { places = try await PurchaseLists.read(page, in: database).posted }
            print("purchase list: \(blocks) blocks for \(Self.posts) posts of one purchase")
            #expect(blocks <= Self.blocksOfPostMax * Self.posts)
            #expect(places.map(\.topUps.count) == [1] + Array(repeating: 0, count: 200))
            let listed = try #require(places.first?.topUps.first)
            #expect(listed.transactionId == "t1" && listed.productId == "coins" && listed.state == .rejected)
            #expect(listed.receiptId?.uuidString == "00000000-0000-8000-8000-00000000\(Self.posts)")
            // The next pages also take the newest post into account.
            let last = try #require(places.last?.cursor)
            let next = Statements.PurchasePage(appID: "game", userIDs: ["u1"], before: last, limit: 201)
            let older = try await PurchaseLists.read(next, in: database).posted
            #expect(older.map(\.topUps.count) == Array(repeating: 0, count: 201))
        }
    }

    @Test("each purchase of a page has its own facts, of its app alone; those of one receipt come by Apple's date")
    func facts() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let post = (1...2).map { "00000000-0000-8000-8000-00000000000\($0)" }
            for sql in [
                """
                insert into receipts (id, app_id, user_id, kind, lane, is_vouched, details, payload_sha256, state,
                  received_at, due_at)
                select id::uuid, 'game', 'u1', 'receipt', 'apple', false, '{}', '\\x00', 'held',
                  now() - n * interval '1 hour', now()
                from unnest(array['\(post[0])', '\(post[1])']) with ordinality as i(id, n)
                """,
                """
                insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id,
                  quantity, purchased_at, revoked_at, facts)
                select id, app, 'Production', id, 'product of ' || id, 1,
                  timestamptz '2026-01-01' + day * interval '1 day', case when id = 't6' then now() end, '{}'
                from (values ('t1', 'game', 1), ('t2', 'game', 2), ('t3', 'game', 2), ('t5', 'game', 9),
                  ('t6', 'game', 3), ('t7', 'other', 3), ('t8', 'game', 3), ('t9', 'other', 3)) i(id, app, day)
                """,
                """
                insert into outcomes (receipt_id, transaction_id, state, reason)
                values ('\(post[0])', 't3', 'held', 'product_unknown'), ('\(post[0])', 't1', 'rejected', 'refunded'),
                  ('\(post[0])', 't2', 'open', null), ('\(post[0])', 't4', 'held', 'order_unknown'),
                  ('\(post[0])', 't5', 'held', 'possession_missing'), ('\(post[1])', 't6', 'granted', null)
                """,
                """
                insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
                  quantity, goods, binding_source, granted_at)
                select id, id, 'game', 'Production', 'u1', '\(post[1])', 'coins', 1, '[]', 'poster',
                  now() - n * interval '1 minute'
                from (values ('t6', 1), ('t7', 2)) i(id, n)
                """,
                """
                insert into imported_grants (transaction_id, app_id, environment, original_transaction_id, user_id,
                  product_id, purchased_at)
                select id, 'game', 'Production', id, 'u1', 'old', now() - n * interval '1 minute'
                from (values ('t8', 1), ('t9', 2)) i(id, n)
                """,
                "insert into repeated_posts (receipt_id, posts) values ('\(post[0])', 3)",
            ] { try await lab.run(sql) }
            let page = Statements.PurchasePage(appID: "game", userIDs: ["u1"], before: .newest, limit: 9)
            let lists = try await PurchaseLists.read(page, in: lab.database)
            func words(_ places: [PurchasePlace]) -> [[String]] {
                places.map { place in
                    place.topUps.map {
                        [
                            $0.transactionId ?? "-", $0.state.rawValue, $0.reason ?? "-", $0.productId ?? "-",
                            $0.refundedAt == nil ? "" : "refunded",
                        ].joined(separator: " ")
                    }
                }
            }
            #expect(words(lists.granted) == [["t6 granted refunded product of t6 refunded"], ["t7 granted - - "]])
            #expect(
                words(lists.imported) == [
                    ["t8 already_granted imported product of t8 "], ["t9 already_granted imported old "],
                ])
            #expect(
                words(lists.posted) == [
                    [
                        "t4 held order_unknown - ", "t5 held possession_missing - ", "t2 received - product of t2 ",
                        "t3 held product_unknown product of t3 ", "t1 rejected refunded product of t1 ",
                    ], [],
                ])
            #expect(lists.posted.map(\.cursor.key) == post && lists.granted.map(\.cursor.key) == ["t6", "t7"])
            #expect(lists.posted[0].topUps.allSatisfy { $0.repeats == 3 && $0.repeatedAt != nil })
            #expect(lists.granted.flatMap(\.topUps).allSatisfy { $0.repeats == nil && $0.goods == [] })
        }
    }
}
