import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Support

/// Goal: a timeline tells the six steps of a refund and its reversal, and a player learns only what concerns the player
/// (S3-45). Method: one purchase with a row of each kind, at times of its own, read by support and by its user.
@Suite(.timeLimit(.minutes(4))) struct TimelineHearingTests {
    @Test("S3-45: bought, asked, decided, notified, recorded, told; then given back; each in its place")
    func refund() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let posted = try await lab.post("u1", kind: .signedTransaction)
            try await lab.settle(
                posted,
                .purchase("t1") {
                    $0.purchasedAt = .now.addingTimeInterval(-86_400)
                    $0.signedAt = $0.purchasedAt
                })
            try await lab.run("update receipts set received_at = now() - interval '1 day'")
            try await lab.run("update grants set granted_at = now() - interval '1 day'")
            try await lab.run("update events set at = now() - interval '1 day'")
            func ago(_ hours: Int) -> String { "now() - interval '\(hours) hours'" }
            try await lab.run(
                """
                insert into client_reports (id, app_id, user_id, transaction_id, kind, details, reported_at)
                values (gen_random_uuid(), 'game', 'u1', 't1', 'refund_requested', '{}', \(ago(10)))
                """)
            try await lab.run(
                """
                insert into refund_requests (notification_id, case_id, app_id, environment, transaction_id,
                  original_transaction_id, request_reason, asked_at, state, reason, ended_at)
                select id, id, 'game', 'Production', 't1', 't1', 'UNINTENDED_PURCHASE', \(ago(9)), 'unanswered',
                  'no_consent', \(ago(8)) from (select gen_random_uuid() as id) n
                """)
            try await lab.run(
                """
                insert into consumption_reports (transaction_id, reported_at, app_id, percentage, at)
                values ('t1', \(ago(11)), 'game', 33333, now())
                """)
            try await lab.run("update transactions set revoked_at = \(ago(7)) where transaction_id = 't1'")
            try await lab.run(
                """
                insert into notifications (id, version, app_id, environment, type, transaction_id, payload_sha256, state,
                  received_at, settled_at, due_at, reason, repeats)
                values (gen_random_uuid(), 2, 'game', 'Production', 'REFUND', 't1', '', 'ended', \(ago(6)), \(ago(6)), null,
                    null, 3),
                  (gen_random_uuid(), 2, 'game', 'Production', 'NEW_TYPE', 't1', '', 'held', \(ago(2)), null, now(),
                    'unknown', 0),
                  (gen_random_uuid(), 2, 'other', 'Production', 'REFUND', 't1', '', 'ended', \(ago(6)), \(ago(6)), null,
                    null, 0)
                """)
            try await lab.run(
                """
                insert into revocations (transaction_id, ordinal, app_id, environment, user_id, kind, reason, takes_back,
                  percentage, goods, at, recorded_at)
                values ('t1', 1, 'game', 'Production', 'u1', 'revoked', 'refunded', true, 50000,
                    '[{"item": "coin", "amount": 30}]', \(ago(7)), \(ago(5))),
                  ('t1', 2, 'game', 'Production', 'u1', 'reinstated', 'refunded', true, 0,
                    '[{"item": "coin", "amount": 30}]', \(ago(3)), \(ago(3)))
                """)
            try await lab.run(
                """
                insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body, at)
                values (gen_random_uuid(), 'game', 'purchase.revoked', 'u1', 't1', '\(posted.id)', '{}', \(ago(4)))
                """)
            try await lab.run(
                """
                insert into chains (app_id, environment, original_transaction_id, state, product_id, transaction_id,
                  expires_at, told_user_id, followed_at)
                values ('game', 'Production', 't1', 'revoked', 'coins', 't1', now(), 'u1', \(ago(1)))
                """)

            let explainer = Explainer(database: lab.database, keys: nil)
            let support = TimelineReader.support(apps: ["game"])
            for subject in [TimelineSubject.receipt(posted.id), .transaction("t1")] {
                let whole = try #require(try await explainer.timeline(of: subject, for: support))
                #expect(
                    whole.lines.map(\.what.rawValue).drop { $0 != "used" } == [
                        "used", "reported", "refund_asked", "answered_apple", "refunded", "notified", "revoked", "told",
                        "reinstated", "notified", "subscription",
                    ])
                for words in [
                    "the app backend said that 33.333 % of transaction t1 was used",
                    "Apple was asked for a refund of transaction t1 (UNINTENDED_PURCHASE)",
                    "Apple was not told how much of transaction t1 was used, because no_consent",
                    "Apple sent the notification REFUND about transaction t1, and 3 more times",
                    "Apple took transaction t1 back: refunded, 50 %; 30 coin to be taken back from u1",
                    "may read purchase.revoked of transaction t1",
                    "Apple gave transaction t1 back; 30 coin to be given again to u1",
                    "notification NEW_TYPE about transaction t1; it is held, because unknown",
                    "subscription t1 is revoked, with coins",
                ] {
                    #expect(whole.text.contains(words), "\(words)")
                }
                // Every line is what openapi.yaml describes: names of facts, and numbers as numbers.
                #expect(whole.json.text.contains(#""percentage":33.333"#) && whole.json.text.contains(#""ordinal":2"#))

                let own = try #require(try await explainer.timeline(of: subject, for: .player(["game": "u1"])))
                #expect(
                    own.lines.map(\.what.rawValue).drop { $0 != "reported" } == [
                        "reported", "refund_asked", "refunded", "revoked", "reinstated", "subscription",
                    ])
                #expect(own.text.contains("30 coin to be taken back from you"))
                for word in ["u1", "UNINTENDED", "no_consent", "caseId", "33.333", "NEW_TYPE"] {
                    #expect(!own.json.text.contains(word), "\(word)")
                }
                #expect(
                    own.lines.filter { $0.what == .revoked || $0.what == .refundAsked }.allSatisfy {
                        $0.sentence != nil
                    })
            }
            #expect(try await explainer.timeline(of: .transaction("t1"), for: .player(["game": "u2"])) == nil)
        }
    }

    @Test("B14: a receipt that nobody posted says who brought it")
    func sources() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let posted = try await lab.post("u1", kind: .signedTransaction)
            let explainer = Explainer(database: lab.database, keys: nil)
            for (source, words) in [
                ("post", "somebody posted a signed transaction as receipt"),
                ("notification", "Apple told of a signed transaction that nobody had posted, as receipt"),
                ("sweep", "Makegood asked Apple, and got a signed transaction that nobody had posted, as receipt"),
            ] {
                try await lab.run("update receipts set user_id = null, order_id = null, source = '\(source)'")
                let timeline = try #require(try await explainer.timeline(of: .receipt(posted.id), for: .people))
                #expect(timeline.text.contains(words), "\(timeline.text)")
                #expect(timeline.json.text.contains("\"source\":\"\(source)\""))
            }
        }
    }
}
