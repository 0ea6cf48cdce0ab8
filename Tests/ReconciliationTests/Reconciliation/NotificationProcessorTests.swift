import AppStoreSimulator
import Foundation
import Postgres
import Purchases
import RabbitMQ
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Settings
@testable import WorkQueue

/// Goal: a worker takes the facts that Apple signed out of a notification, and nothing else. A notification that the
/// worker cannot judge is held or comes again, and is never lost. Method: notifications that the simulator signed, as
/// rows of a real database.
@Suite(.timeLimit(.minutes(8))) struct NotificationProcessorTests {
    /// A worker's processor of notifications. Its broker is away.
    private static func processor(_ lab: VerifyLab, _ configuration: Configuration) async throws
        -> NotificationProcessor
    {
        try lab.store.register(RegisteredApp(app: VerifyLab.bundleID, appAppleId: 1))
        let apps = AppDirectory(http: lab.http)
        try await apps.update(configuration, ledger: lab.lab.ledger)
        let queues = Queues()
        let publisher = Publisher(
            try BrokerConfiguration(url: "amqp://127.0.0.1:1"), topology: queues.topology, logger: .silent)
        await publisher.close()
        return NotificationProcessor(
            ledger: lab.lab.ledger, apps: apps, workQueue: WorkQueue(publisher: publisher, queues: queues),
            followUps: FollowUpSignal(), logger: .silent)
    }

    /// Stores a notification that the simulator signs, as ingest does, and has a worker take its message.
    private static func hear(
        _ request: NotificationRequest, by processor: NotificationProcessor, in lab: VerifyLab
    ) async throws -> UUID {
        try await hear(
            try lab.store.hold(request).signedPayload, type: request.notificationType, by: processor, in: lab)
    }

    private static func hear(
        _ payload: String, type: String, version: Int = 2, by processor: NotificationProcessor, in lab: VerifyLab,
        app: String? = VerifyLab.appID
    ) async throws -> UUID {
        let id = try await lab.lab.notify(type, app: app, payload: payload.replacing("'", with: "''"))
        try await lab.lab.run("update notifications set version = \(version) where id = '\(id)'")
        #expect(await processor.process(Pointer(notificationID: id, attempt: 0), redelivered: false) == .done)
        return id
    }

    private static func request(
        _ type: String, about sale: Sale? = nil, _ change: (inout NotificationRequest) -> Void = { _ in }
    ) -> NotificationRequest {
        var request = NotificationRequest(
            app: VerifyLab.bundleID, notificationType: type, transactionId: sale?.purchase.transactionId)
        change(&request)
        return request
    }

    private static func standing(_ id: UUID, _ lab: VerifyLab) async throws -> String? {
        try await lab.lab.texts(
            "select concat_ws(' ', state, reason, attempt) from notifications where id = '\(id)'"
        ).first
    }

    /// The renewal facts of a notification about this sale, as Apple signed them.
    private static func renewal(of sale: Sale, in lab: VerifyLab) throws -> String {
        let payload = try lab.store.hold(request("DID_RENEW", about: sale)).signedPayload
        let part = try #require(payload.split(separator: ".").dropFirst().first)
        let json = try JSONValue(parsing: try #require(Base64.decodeURL(Array(part.utf8)[...])))
        guard case .string(let renewal)? = json["data"]?["signedRenewalInfo"] else {
            throw CancellationError()
        }
        return renewal
    }

    private static func sign(
        _ data: [String: Any], as object: String = "data", type: String, in lab: VerifyLab
    ) throws -> String {
        let payload: [String: Any] = [
            "notificationType": type, "notificationUUID": UUID().uuidString, "version": "2.0",
            "signedDate": Int64(Date.now.timeIntervalSince1970 * 1000), object: data,
        ]
        return try lab.store.sign(Array(JSONSerialization.data(withJSONObject: payload)))
    }

    @Test("facts, renewal and a receipt come out of it; a refund opens none, a question about a refund is one")
    func facts() async throws {
        try await VerifyLab.with { lab in
            let processor = try await Self.processor(lab, try lab.configuration())
            let period = try await lab.sell { $0.type = .autoRenewable }
            let renewed = try await Self.hear(Self.request("DID_RENEW", about: period), by: processor, in: lab)
            #expect(try await Self.standing(renewed, lab) == "ended 0")
            #expect(
                try await lab.lab.texts("select transaction_id from transactions") == [period.purchase.transactionId])
            #expect(
                try await lab.lab.texts("select original_transaction_id from chains where renewal is not null")
                    == [period.purchase.transactionId])
            #expect(
                try await lab.lab.texts(
                    "select concat_ws(' ', source, lane, kind, state, user_id, transaction_id) from receipts")
                    == ["notification unposted signed_transaction received \(period.purchase.transactionId)"])

            // However often: one receipt.
            _ = try await Self.hear(
                Self.request("SUBSCRIBED", about: period) { $0.subtype = "INITIAL_BUY" }, by: processor, in: lab)
            #expect(try await lab.lab.number("select count(*) from receipts") == 1)

            let refunded = try await lab.sell()
            try lab.store.refund(refunded.purchase.transactionId)
            let refund = try await Self.hear(Self.request("REFUND", about: refunded), by: processor, in: lab)
            #expect(try await Self.standing(refund, lab) == "ended 0")
            #expect(try await lab.lab.number("select count(*) from transactions where revoked_at is not null") == 1)
            #expect(try await lab.lab.number("select count(*) from receipts") == 1)

            let asked = try await lab.sell()
            let question = try await Self.hear(
                Self.request("CONSUMPTION_REQUEST", about: asked) { $0.consumptionRequestReason = "LEGAL" },
                by: processor, in: lab)
            #expect(
                try await lab.lab.texts(
                    "select concat_ws(' ', notification_id, transaction_id, request_reason) from refund_requests")
                    == ["\(question.uuidString.lowercased()) \(asked.purchase.transactionId) LEGAL"])
            #expect(try await lab.lab.number("select count(*) from receipts") == 2)
            let test = try await Self.hear(Self.request("TEST"), by: processor, in: lab)
            #expect(try await Self.standing(test, lab) == "ended 0")
        }
    }

    @Test("facts about a renewal name no app: they count beside a transaction of their chain, or for a known chain")
    func renewals() async throws {
        try await VerifyLab.with { lab in
            let processor = try await Self.processor(lab, try lab.configuration())
            let period = try await lab.sell { $0.type = .autoRenewable }
            let data: [String: Any] = [
                "appAppleId": 1, "bundleId": VerifyLab.bundleID, "environment": "Production",
                "signedRenewalInfo": try Self.renewal(of: period, in: lab),
            ]
            func tell() async throws -> String? {
                let payload = try Self.sign(data, type: "PRICE_CHANGE", in: lab)
                return try await Self.standing(
                    try await Self.hear(payload, type: "PRICE_CHANGE", by: processor, in: lab), lab)
            }
            #expect(try await tell() == "ended 0")
            #expect(try await lab.lab.number("select count(*) from chains where renewal is not null") == 0)
            try await lab.lab.run(LedgerLab.bought(period))
            #expect(try await tell() == "ended 0")
            #expect(try await lab.lab.number("select count(*) from chains where renewal is not null") == 1)
        }
    }

    @Test("what is new to this program is held, and what Apple signed inside is stored all the same")
    func unknown() async throws {
        try await VerifyLab.with { lab in
            let processor = try await Self.processor(lab, try lab.configuration())
            let sale = try await lab.sell()
            let data: [String: Any] = [
                "appAppleId": 1, "bundleId": VerifyLab.bundleID, "environment": "Production",
                "signedTransactionInfo": sale.signedTransaction,
            ]
            let id = try await Self.hear(
                try Self.sign(data, type: "BRAND_NEW", in: lab), type: "BRAND_NEW", by: processor, in: lab)
            #expect(try await Self.standing(id, lab) == "held type_unknown 0")
            #expect(try await lab.lab.number("select count(*) from transactions") == 1)
            #expect(try await lab.lab.number("select count(*) from receipts where lane = 'unposted'") == 1)
            let ofNobody = try await Self.hear(
                Self.request("TEST"), by: try await Self.processor(lab, try lab.configuration(bundleID: "com.other")),
                in: lab)
            #expect(try await Self.standing(ofNobody, lab) == "held wrong_app 0")
            let unnamed = try await Self.hear("jws", type: "TEST", by: processor, in: lab, app: "gone")
            #expect(try await Self.standing(unnamed, lab) == "held app_unknown 0")

            // The version that stored it did not know its object, so the row names no bundle id.
            let nameless = try await lab.lab.notify(
                "BRAND_NEW", app: nil, payload: try Self.sign(data, type: "BRAND_NEW", in: lab))
            try await lab.lab.run("update notifications set bundle_id = null where id = '\(nameless)'")
            #expect(await processor.process(Pointer(notificationID: nameless, attempt: 0), redelivered: false) == .done)
            #expect(try await Self.standing(nameless, lab) == "held type_unknown 0")
            // Its object is new, so nothing in it names an app that this program can read.
            let newer = try Self.sign(["bundleId": VerifyLab.bundleID], as: "moonInfo", type: "REFUND", in: lab)
            #expect(
                try await Self.standing(try await Self.hear(newer, type: "REFUND", by: processor, in: lab), lab)
                    == "held type_unknown 0")
        }
    }

    @Test("P18: of a notification whose inside Apple did not sign nothing is believed, and a person sees it")
    func forgedInside() async throws {
        try await VerifyLab.with { lab in
            let processor = try await Self.processor(lab, try lab.configuration())
            let sale = try await lab.sell()
            let forged = String(sale.signedTransaction.dropLast(4)) + "AAAA"
            let data: [String: Any] = [
                "appAppleId": 1, "bundleId": VerifyLab.bundleID, "environment": "Production",
                "signedTransactionInfo": forged,
            ]
            let id = try await Self.hear(
                try Self.sign(data, type: "DID_RENEW", in: lab), type: "DID_RENEW", by: processor, in: lab)
            #expect(try await Self.standing(id, lab) == "held signature 0")
            #expect(try await lab.lab.number("select count(*) from transactions") == 0)
            #expect(try await lab.lab.number("select count(*) from receipts where lane = 'unposted'") == 0)
        }
    }

    @Test("what is of an unknown app ends after thirty days; of an app that was configured once at the second look")
    func unknownAppEnds() async throws {
        try await VerifyLab.with { lab in
            let processor = try await Self.processor(lab, try lab.configuration())
            for (app, days, before, standing) in [
                (nil, 29, "app_unknown", "held app_unknown 0"), (nil, 31, "app_unknown", "ended app_unknown 0"),
                ("gone", 31, "type_unknown", "held app_unknown 0"), ("gone", 29, "app_unknown", "held app_unknown 0"),
                ("gone", 31, "app_unknown", "ended app_unknown 0"),
            ] as [(String?, Int, String, String)] {
                let id = try await lab.lab.notify("TEST", app: app)
                try await lab.lab.run(
                    """
                    update notifications set bundle_id = 'com.stranger', received_at = now() - interval '\(days) days',
                      state = 'held', reason = '\(before)' where id = '\(id)'
                    """)
                #expect(await processor.process(Pointer(notificationID: id, attempt: 0), redelivered: false) == .done)
                #expect(try await Self.standing(id, lab) == standing, "\(days)")
            }
        }
    }

    @Test("what no app had the bundle id of is judged once a process that judges has the app in its configuration")
    func appComes() async throws {
        try await VerifyLab.with { lab in
            let sale = try await lab.sell()
            let stranger = try await Self.processor(lab, try lab.configuration(bundleID: "com.other"))
            let payload = try lab.store.hold(Self.request("ONE_TIME_CHARGE", about: sale)).signedPayload
            func store(bundleID: String?, reason: String = "app_unknown") async throws -> UUID {
                let id = try await lab.lab.notify("ONE_TIME_CHARGE", app: nil, payload: payload)
                try await lab.lab.run(
                    """
                    update notifications set bundle_id = \(bundleID.map { "'\($0)'" } ?? "null"), state = 'held',
                      reason = '\(reason)', due_at = now() + interval '7 days' where id = '\(id)'
                    """)
                return id
            }
            let ours = try await store(bundleID: VerifyLab.bundleID)
            let nameless = try await store(bundleID: nil)
            let theirs = try await store(bundleID: "com.stranger")
            let newer = try await store(bundleID: VerifyLab.bundleID, reason: "type_unknown")
            #expect(await stranger.process(Pointer(notificationID: ours, attempt: 0), redelivered: false) == .done)
            #expect(try await Self.standing(ours, lab) == "held app_unknown 0")
            func due() async throws -> Set<UUID> {
                Set(
                    try await lab.lab.texts("select id::text from notifications where due_at <= now()").compactMap {
                        UUID(uuidString: $0)
                    })
            }
            // A process that judges nothing wakes nothing.
            try await AppDirectory(http: lab.http, judges: false)
                .update(try lab.configuration(), ledger: lab.lab.ledger)
            #expect(try await due() == [])
            let processor = try await Self.processor(lab, try lab.configuration())
            #expect(try await due() == [ours, nameless])
            #expect(try await Self.standing(theirs, lab) == "held app_unknown 0")
            #expect(try await Self.standing(newer, lab) == "held type_unknown 0")
            #expect(await processor.process(Pointer(notificationID: ours, attempt: 1), redelivered: false) == .done)
            #expect(try await Self.standing(ours, lab) == "ended 1")
            #expect(try await lab.lab.number("select count(*) from receipts where lane = 'unposted'") == 1)
        }
    }

    @Test("roots that changed hold it; an environment that is not served ends it; a date ahead of our clock waits")
    func notNow() async throws {
        try await VerifyLab.with { lab in
            let processor = try await Self.processor(lab, try lab.configuration())
            let sandbox = try await lab.sell { $0.environment = .sandbox }
            let ended = try await Self.hear(
                Self.request("ONE_TIME_CHARGE", about: sandbox) { $0.environment = .sandbox }, by: processor, in: lab)
            #expect(try await Self.standing(ended, lab) == "ended wrong_environment 0")
            let sale = try await lab.sell()
            let ahead = try await Self.hear(
                Self.request("ONE_TIME_CHARGE", about: sale) { $0.signedDate = .inHours(1) }, by: processor, in: lab)
            #expect(try await Self.standing(ahead, lab) == "received clock_ahead 0")
            let rootless = try await Self.processor(lab, try lab.configuration(hasRoot: false))
            let held = try await Self.hear(Self.request("ONE_TIME_CHARGE", about: sale), by: rootless, in: lab)
            #expect(try await Self.standing(held, lab) == "held untrusted_root 0")
            #expect(try await lab.lab.number("select count(*) from receipts") == 0)
            #expect(try await lab.lab.number("select count(*) from transactions") == 0)
            // Of another attempt than the row's, and of no row.
            #expect(await processor.process(Pointer(notificationID: held, attempt: 1), redelivered: false) == .done)
            #expect(try await Self.standing(held, lab) == "held untrusted_root 0")
            #expect(
                await processor.process(Pointer(notificationID: UUID(), attempt: 0), redelivered: false)
                    == .undeliverable)
            // After eight deaths it is parked, and not read again.
            let deadly = try await lab.lab.notify("TEST", payload: "jws")
            try await lab.lab.run("update notifications set rescues = 8 where id = '\(deadly)'")
            #expect(await processor.process(Pointer(notificationID: deadly, attempt: 0), redelivered: true) == .done)
            #expect(try await Self.standing(deadly, lab) == "parked never_worked 1")
        }
    }

    @Test("of version 1 only the receipt counts, whatever the JSON says; an unknown type is held beside it")
    func versionOne() async throws {
        try await VerifyLab.with { lab in
            let processor = try await Self.processor(lab, try lab.configuration())
            let sale = try await lab.sell()
            func body(_ type: String, _ receipt: String?) throws -> String {
                var unified: [String: Any] = ["status": 0]
                unified["latest_receipt"] = receipt
                let json: [String: Any] = [
                    "notification_type": type, "bid": VerifyLab.bundleID, "unified_receipt": unified,
                    "original_transaction_id": 77,
                    "latest_receipt_info": ["transaction_id": "666", "cancellation_date_ms": "1"],
                ]
                return String(decoding: try JSONSerialization.data(withJSONObject: json), as: UTF8.self)
            }
            let cancel = try await Self.hear(
                try body("CANCEL", sale.receipt), type: "CANCEL", version: 1, by: processor, in: lab)
            #expect(try await Self.standing(cancel, lab) == "ended 0")
            #expect(
                try await lab.lab.texts(
                    "select concat_ws(' ', kind, lane, source, transaction_id, original_transaction_id) from receipts")
                    == ["receipt unposted notification 77"])
            #expect(
                try await lab.lab.number("select count(*) from transactions") == 0, "nothing else of it is believed")
            let strange = try await Self.hear(
                try body("NEWEST", nil), type: "NEWEST", version: 1, by: processor, in: lab)
            #expect(try await Self.standing(strange, lab) == "held type_unknown 0")
            #expect(try await lab.lab.number("select count(*) from receipts") == 1)
        }
    }
}

extension Int64 {
    fileprivate static func inHours(_ hours: Double) -> Int64 {
        Int64((Date.now.timeIntervalSince1970 + hours * 3600) * 1000)
    }
}

extension LedgerLab {
    /// SQL that stores a sold period as Apple's fact.
    fileprivate static func bought(_ sale: Sale) -> String {
        let id = sale.purchase.transactionId
        return """
            insert into transactions (transaction_id, original_transaction_id, app_id, environment, product_id, kind,
              quantity, purchased_at, facts)
            values ('\(id)', '\(id)', 'game', 'Production', 'coins', 'Auto-Renewable Subscription', 1, now(), '{}')
            """
    }
}
