import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Intake
@testable import Ledger
@testable import Reconciliation

/// Goal: a legacy receipt's purchase on trust ends by Apple's answer, whatever form that answer has (B10). Method: a
/// worker's processor between the simulator over real HTTP and a real ledger: each test posts, lets Apple be away, and
/// reads the ledger after Apple's answer.
@Suite(.timeLimit(.minutes(8))) struct TrustWorkerTests {
    private static let limits = "provisional: {perUserPerDay: 5, perAppPerDay: 5, purchasesMin: 0}"

    @Test(
        "B10: given while Apple is away, confirmed when it is back; another purchase that was not trusted waits for it")
    func confirmed() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(
                try lab.configuration(
                    legacyReceipts: "serverApi",
                    more: ["provisional: {perUserPerDay: 1, perAppPerDay: 5, purchasesMin: 0}"]))
            let ids = try await lab.sell(2)
            let posted = try await lab.post(try lab.receipt(ids))
            try lab.goesDown()
            await processor.process(posted)
            #expect(try await lab.lab.state(posted) == "received unconfirmed")
            #expect(
                try await lab.lab.outcomes(posted).values.sorted() == [
                    "granted unconfirmed", "open apple_unavailable",
                ])
            let view = try #require(try await lab.lab.ledger.view(posted.id))
            #expect(!ReceiptAnswer(view, finishing: .held).safeToFinish, "the neighbour is not")
            #expect(try await lab.lab.number("select attempt from receipts") == 1)
            // The purchase is given once, and the other one has no place.
            await processor.process(posted, attempt: 1)
            #expect(try await lab.lab.grants.count == 1)
            #expect(try await lab.lab.number("select count(*) from provisional_grants") == 1)
            lab.store.clearFaults()
            await processor.process(posted, attempt: 2)
            #expect(try await lab.lab.state(posted) == "granted")
            #expect(try await lab.lab.outcomes(posted) == [ids[0]: "granted", ids[1]: "granted"])
            #expect(try await lab.lab.texts("select state from v_provisional") == ["confirmed"])
            #expect(
                try await lab.lab.texts("select type from events order by 1") == [
                    "purchase.confirmed", "purchase.granted", "purchase.granted",
                ])
        }
    }

    @Test(
        "B10: Apple refuses the receipt as a whole: what it gave is taken back, what it holds with facts stays owed",
        arguments: [(21003, "not_authenticated"), (21010, "account_not_found"), (21199, "apple_refused")])
    func denied(status: Int, reason: String) async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(try lab.configuration(more: [Self.limits]))
            let id = try await lab.sell().purchase.transactionId
            let posted = try await lab.post(try lab.receipt([id]))
            try lab.goesDown()
            await processor.process(posted)
            #expect(try await lab.lab.outcomes(posted) == [id: "granted unconfirmed"])
            let owed = Verdict.Entry.purchase("owed", .held(.productUnknown))
            #expect(
                try await lab.lab.settle(posted, attempt: 1, owed, .purchase("open", .open(.appleAnswer))) == .received)
            lab.store.clearFaults()
            var fault = FaultRequest(.receiptStatus, on: .verifyReceipt)
            fault.status = status
            fault.isRetryable = status == 21199 ? false : nil
            try lab.store.fault(fault)
            await processor.process(posted, attempt: 2)
            #expect(try await lab.lab.state(posted) == "held product_unknown")
            #expect(
                try await lab.lab.outcomes(posted) == [
                    id: "granted \(reason)", "owed": "held product_unknown", "open": "rejected \(reason)",
                ])
            #expect(try await lab.lab.texts("select state from v_provisional") == ["revoked"])
            #expect(
                try await lab.lab.texts("select concat_ws(' ', type, body ->> 'reason') from events order by id") == [
                    "purchase.granted", "purchase.revoked \(reason)",
                ])
        }
    }

    @Test("B10: Apple lists the purchase under another id than it was given by: the same purchase, confirmed")
    func otherID() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(try lab.configuration(more: [Self.limits]))
            let bought = try await lab.sell().purchase
            let id = bought.transactionId
            let posted = try await lab.post(try lab.receipt([id]))
            let restored = Verdict.Entry.purchase("restored", of: id) {
                $0.purchasedAt = Date(timeIntervalSince1970: Double(bought.purchaseDate) / 1000)
            }
            try await lab.give(restored, by: posted)
            await processor.process(posted)
            #expect(try await lab.lab.state(posted) == "granted")
            #expect(try await lab.lab.outcomes(posted) == ["restored": "granted"])
            #expect(try await lab.lab.texts("select state from v_provisional") == ["confirmed"])
        }
    }

    @Test(
        "B10: a refund on record goes before Apple's older answer: taken back with its mark and the refund's own event")
    func refundOnRecord() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(try lab.configuration(more: [Self.limits]))
            let id = try await lab.sell().purchase.transactionId
            let posted = try await lab.post(try lab.receipt([id]))
            try await lab.give(.purchase(id), by: posted)
            try await lab.lab.run(
                """
                update transactions set revoked_at = to_timestamp(1790000000), signed_at = now() + interval '1 minute'
                """)
            await processor.process(posted)
            #expect(try await lab.lab.state(posted) == "granted refunded")
            #expect(try await lab.lab.texts("select state from v_provisional") == ["revoked"])
            let event = DerivedID.event(appID: VerifyLab.appID, transactionID: id, type: .purchaseRevoked)
            #expect(
                try await lab.lab.texts("select upper(event_id::text) from events where type = 'purchase.revoked'")
                    == [event.uuidString])
        }
    }

    @Test("B10: a proof that fails by our own mistake ends nothing, and Apple is asked again soon")
    func ourMistake() async throws {
        try await VerifyLab.with { lab in
            let id = try await lab.sell().purchase.transactionId
            let posted = try await lab.post(try lab.receipt([id]))
            try await lab.give(.purchase(id), by: posted)
            let mistaken = try await lab.processor(
                try lab.configuration(bundleID: "com.example.other", more: [Self.limits]))
            await mistaken.process(posted)
            #expect(try await lab.lab.outcomes(posted) == [id: "granted unconfirmed"])
            let soon = "select extract(epoch from due_at - now())::int from receipts"
            #expect(try await lab.lab.number(soon) < 60)
            // A verdict rejects the receipt, which is held, whatever the reason: Apple is away, and comes back.
            #expect(
                try await lab.lab.settle(lab.lab.verdict(posted, .receipt(.rejected(.untrustedRoot)))) == [
                    posted.id: .held
                ])
            #expect(try await lab.lab.number(soon) > 500)
            let processor = try await lab.processor(try lab.configuration(more: [Self.limits]))
            try lab.goesDown()
            await processor.process(posted)
            #expect(try await lab.lab.state(posted) == "held unconfirmed")
            #expect(try await lab.lab.number(soon) < 60)
            lab.store.clearFaults()
            await processor.process(posted)
            #expect(try await lab.lab.state(posted) == "granted")
        }
    }

    @Test("a limit of a day holds the other purchase, not the one that was given on trust before")
    func limitOfADay() async throws {
        try await VerifyLab.with { lab in
            let processor = try await lab.processor(
                try lab.configuration(more: [Self.limits, "makeUp: {perUserPerDay: 1}"]))
            let ids = try await lab.sell(2)
            let posted = try await lab.post(try lab.receipt(ids))
            try lab.goesDown()
            await processor.process(posted)
            #expect(try await lab.lab.grants.count == 1)
            lab.store.clearFaults()
            await processor.process(posted, attempt: 1)
            #expect(try await lab.lab.outcomes(posted).values.sorted() == ["granted", "held review"])
            #expect(try await lab.lab.state(posted) == "held review")
        }
    }
}

extension ReceiptProcessor {
    /// Processes the receipt as if its message had come.
    fileprivate func process(_ posted: Posted, attempt: Int = 0) async {
        let message = Array(Pointer(receiptID: posted.id, attempt: attempt).text.utf8)
        #expect(await process(message, redelivered: false) == .done)
    }
}

extension VerifyLab {
    fileprivate func post(_ receipt: String) async throws -> Posted {
        let submission = Submission(appID: Self.appID, userID: "u1", proof: .receipt(receipt))
        #expect(try await lab.ledger.insert(submission))
        return Posted(id: submission.receiptID, userID: "u1", appID: Self.appID)
    }

    /// Writes the verdict of a worker while Apple was away.
    fileprivate func give(_ entry: Verdict.Entry, by posted: Posted) async throws {
        let places = Statements.PlaceQuestion(
            receiptID: posted.id, appID: posted.appID, transactions: [entry.transaction],
            limits: .init(perUserPerDay: 9, perAppPerDay: 9))
        #expect(try await lab.ledger.run(Statements.takePlaces, places).count == 1)
        let given = Verdict.Entry(
            transaction: entry.transaction,
            decision: .provisional(goods: Verdict.Entry.coins, source: .poster))
        #expect(try await lab.settle(posted, given) == .received)
    }

    fileprivate func goesDown() throws {
        var down = FaultRequest(.status, on: .all)
        down.status = 503
        try store.fault(down)
    }
}
