import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: facts that Apple tells without a post are written once, and the newest statement counts in any order of
/// arrival (S3-46). Method: the hear transaction on the real database; every order of three statements; a second
/// hearing of everything.
@Suite(.timeLimit(.minutes(8))) struct HearTests {
    private static let bought = Verdict.Entry.purchase("t1").transaction

    private static func renewal(_ seconds: Double, _ change: (inout Renewal) -> Void = { _ in }) -> Renewal {
        var renewal = Renewal(
            originalID: "o1", environment: Transaction.production, signedAt: LedgerLab.bought + seconds)
        change(&renewal)
        return renewal
    }

    @Test("a notification is heard once: its facts, its renewal, its receipt and its refund request")
    func once() async throws {
        try await LedgerLab.with { lab in
            let transaction = Self.bought.signed(10) {
                $0.customerID = "c1"
                $0.revokedAt = nil
            }
            let submission = Submission(unposted: transaction, jws: "h.b.s", of: "game", source: .notification)
            var hearing = Hearing(notification: try await lab.notification(), appID: "game")
            hearing.transactions = [transaction]
            hearing.renewals = [Self.renewal(10)]
            hearing.submissions = [submission]
            let asked = try #require(hearing.notification)
            hearing.refundRequest = RefundRequest(
                notificationID: asked.id, appID: "game", environment: "Production", transactionID: "t1",
                originalID: "t1", reason: "UNINTENDED_PURCHASE", askedAt: .now)
            // A message came twice, and its hearings share a batch.
            let pointer = Pointer(receiptID: submission.receiptID, attempt: 0)
            #expect(try await lab.hear([hearing, hearing]) == [[pointer], []])
            #expect(try await lab.hear([hearing]) == [[]])
            #expect(try await lab.ledger.hear(hearing) == [])
            #expect(
                try await lab.texts("select concat_ws(' ', state, settled_at is not null) from notifications")
                    == ["ended t"])
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', r.state, lane, source, customer_id, transaction_id, user_id, p.body)
                    from receipts r join payloads p on p.receipt_id = r.id
                    """) == ["received unposted notification c1 t1 h.b.s"])
            #expect(try await lab.texts("select source || ' ' || received from tallies") == ["notification 1"])
            #expect(
                try await lab.texts(
                    "select original_transaction_id || ' ' || (renewal ->> 'isInBillingRetry') from chains")
                    == ["o1 false"])
            #expect(try await lab.texts("select original_transaction_id from chain_marks") == ["o1"])
            #expect(
                try await lab.number(
                    """
                    select count(*) from refund_requests where state = 'open' and case_id = notification_id
                      and due_at between now() + interval '9 hours' and now() + interval '10 hours'
                    """) == 1)
        }
    }

    @Test("no receipt is stored of what somebody has been granted")
    func granted() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post(), .purchase("t1"))
            let submissions = ["t1", "t2"].map {
                Submission(
                    unposted: Verdict.Entry.purchase($0).transaction, jws: "j", of: "game", source: .sweep)
            }
            #expect(
                try await lab.hear(submissions: submissions)
                    == [Pointer(receiptID: submissions[1].receiptID, attempt: 0)])
            #expect(try await lab.hear(submissions: submissions) == [])
            #expect(
                try await lab.texts("select source || ' ' || received from tallies order by 1") == [
                    "post 1", "sweep 1",
                ])
        }
    }

    @Test(
        "a notification that was changed since it was read is not heard; one that is held is heard later"
    )
    func guarded() async throws {
        try await LedgerLab.with { lab in
            var hearing = Hearing(notification: try await lab.notification(attempt: 1), appID: "game")
            hearing.transactions = [Self.bought.signed(10)]
            hearing.notification?.attempt = 0
            _ = try await lab.hear([hearing])
            #expect(try await lab.number("select count(*) from transactions") == 0)
            hearing.notification?.attempt = 1
            hearing.notification?.ending = .held(reason: "type_unknown")
            _ = try await lab.hear([hearing])
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', state, reason, due_at > now() + interval '6 days') from notifications")
                    == ["held type_unknown t"])
            #expect(try await lab.number("select count(*) from transactions") == 1, "what it proves is stored")
            hearing.notification?.ending = .ended
            _ = try await lab.hear([hearing])
            #expect(try await lab.texts("select concat_ws(' ', state, reason) from notifications") == ["ended"])
        }
    }

    @Test("a notification is heard although ingest counts at the same moment that Apple sent it again")
    func repeatedMeanwhile() async throws {
        try await LedgerLab.with { lab in
            var hearing = Hearing(notification: try await lab.notification(), appID: "game")
            hearing.transactions = [Self.bought.signed(10)]
            let heard = hearing
            try await lab.withSession { session in
                try await session.run(.begin)
                try await session.run(Statement<Void, Void>("test.lock", "select from notifications for update"))
                async let hears = lab.hear([heard], on: lab.ledger.database)
                try await lab.untilBlocked()
                try await session.run(.commit)
                _ = try await hears
            }
            #expect(try await lab.texts("select state from notifications") == ["ended"])
        }
    }

    @Test("S3-46: of three statements the newest counts, in every order")
    func everyOrder() async throws {
        try await LedgerLab.with { lab in
            let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
            for (number, order) in orders.enumerated() {
                let bought = Verdict.Entry.purchase("t\(number)").transaction
                let undone = Verdict.Entry.purchase("u\(number)").transaction
                for place in order {
                    try await lab.hear([bought.signed(10), bought.signed(20), bought.refunded(60)][place])
                    try await lab.hear([undone.signed(10), undone.refunded(60), undone.signed(90)][place])
                }
            }
            #expect(
                try await lab.number(
                    """
                    select count(*) from transactions where transaction_id like 't%' and revoked_at is not null
                      and facts ->> 'revocationType' = 'REFUND_FULL'
                    """) == orders.count)
            #expect(
                try await lab.number(
                    """
                    select count(*) from transactions where transaction_id like 'u%' and revoked_at is null
                      and not facts ? 'revocationType'
                    """) == orders.count)
        }
    }

    @Test("a field that the later statement cannot show keeps its value; what was said of an end goes with the end")
    func merged() async throws {
        try await LedgerLab.with { lab in
            /// As an app receipt lists it: the end to the second, and hardly any field.
            func listed(_ id: String, at seconds: Double, isEnded: Bool) -> Transaction {
                Verdict.Entry.purchase(id).transaction.signed(seconds) {
                    $0.kind = nil
                    $0.revokedAt = isEnded ? $0.purchasedAt + 50 : nil
                    $0.facts = "{}"
                }
            }
            func full(_ id: String, _ seconds: Double, isEnded: Bool) -> Transaction {
                let bought = Verdict.Entry.purchase(id).transaction
                var signed = isEnded ? bought.refunded(seconds) : bought.signed(seconds)
                if isEnded { signed.revokedAt = signed.revokedAt.map { $0 + 0.25 } }
                (signed.ownership, signed.customerID, signed.expiresAt) = ("PURCHASED", "c1", bought.purchasedAt + 900)
                return signed
            }
            for (id, before, after) in [("same", true, true), ("ends", false, true), ("stands", true, false)] {
                try await lab.hear(full(id, 60, isEnded: before))
                try await lab.hear(listed(id, at: 70, isEnded: after))
            }
            #expect(
                try await lab.texts(
                    """
                    select concat_ws(' ', transaction_id, ownership, customer_id, kind, expires_at is not null,
                      extract(milliseconds from revoked_at)::int % 1000, facts)
                    from transactions order by 1
                    """) == [
                        #"ends PURCHASED c1 Consumable t 0 {}"#,
                        "same PURCHASED c1 Consumable t 250 "
                            + #"{"reason": "PURCHASE", "revocationType": "REFUND_FULL", "revocationReason": 0}"#,
                        #"stands PURCHASED c1 Consumable t {}"#,
                    ])
            // Two statements of one moment, in both orders: the end counts.
            for (id, first) in [("a", true), ("b", false)] {
                let bought = Verdict.Entry.purchase(id).transaction
                try await lab.hear(first ? bought.refunded(60) : bought.signed(60))
                try await lab.hear(first ? bought.signed(60) : bought.refunded(60))
            }
            #expect(
                try await lab.number(
                    "select count(*) from transactions where transaction_id in ('a', 'b') and revoked_at is not null")
                    == 2)
        }
    }

    @Test("of the facts of a renewal the newest count, to the microsecond of their dates")
    func renewals() async throws {
        try await LedgerLab.with { lab in
            let until = LedgerLab.bought + 86_400.123
            let newest = Self.renewal(30) {
                $0.graceUntil = until
                $0.priceConsent = .pending
            }
            try await lab.hear(renewals: [Self.renewal(10), Self.renewal(20)])
            try await lab.run("delete from chain_marks")
            for renewal in [newest, Self.renewal(20), Self.renewal(30)] { try await lab.hear(renewals: [renewal]) }
            #expect(try await lab.number("select count(*) from chain_marks") == 1, "only what is new marks the chain")
            let stored = try await lab.database.run(
                Statement<Void, (Renewal?, Date)>(
                    "test.renewal",
                    "select renewal, timestamptz 'epoch' + interval '1800086400.123 seconds' from chains",
                    read: { row throws(PostgresError) in (try row.renewal(0), try row.date(1)) }))
            #expect(stored.map(\.0) == [newest])
            #expect(stored.first?.0?.graceUntil == stored.first?.1, "as a column would hold it")
        }
    }

    @Test("requests about one purchase are one case; one that came too late is not answered")
    func refundRequests() async throws {
        try await LedgerLab.with { lab in
            func request(_ transaction: String, hoursAgo: Double) async throws -> UUID {
                let notification = try await lab.notification()
                var hearing = Hearing(notification: notification, appID: "game")
                hearing.refundRequest = RefundRequest(
                    notificationID: notification.id, appID: "game", environment: "Production",
                    transactionID: transaction, originalID: transaction, reason: nil,
                    askedAt: .now - hoursAgo * 3600)
                _ = try await lab.hear([hearing])
                return notification.id
            }
            let old = try await request("t1", hoursAgo: 15 * 24)
            let first = try await request("t1", hoursAgo: 11)
            let second = try await request("t1", hoursAgo: 1)
            let other = try await request("t2", hoursAgo: 12.1)
            let rows = try await lab.texts(
                """
                select concat_ws(' ', notification_id, case_id, state, reason, due_at <= now()) from refund_requests
                order by asked_at
                """)
            #expect(
                rows == [
                    "\(old.text) \(old.text) unanswered too_late", "\(other.text) \(other.text) unanswered too_late",
                    "\(first.text) \(first.text) open t", "\(second.text) \(first.text) open f",
                ])
        }
    }

    @Test("two requests about one purchase that are heard at the same moment are one case")
    func refundRequestsAtOnce() async throws {
        try await LedgerLab.with { lab in
            func hearing(hoursAgo: Double) async throws -> Hearing {
                var hearing = Hearing(notification: try await lab.notification(), appID: "game")
                hearing.refundRequest = RefundRequest(
                    notificationID: try #require(hearing.notification?.id), appID: "game", environment: "Production",
                    transactionID: "t1", originalID: "t1", reason: nil, askedAt: .now - hoursAgo * 3600)
                return hearing
            }
            let (first, second) = (try await hearing(hoursAgo: 2), try await hearing(hoursAgo: 1))
            try await lab.withSession { session in
                try await session.run(.begin)
                _ = try await lab.hear([first], on: session)
                async let blocked = lab.ledger.hear(second)
                try await lab.untilBlocked()
                try await session.run(.commit)
                _ = try await blocked
            }
            let caseID = try #require(first.notification?.id).text
            #expect(try await lab.texts("select distinct case_id::text from refund_requests") == [caseID])
            #expect(try await lab.number("select count(*) from refund_requests") == 2)
        }
    }
}
