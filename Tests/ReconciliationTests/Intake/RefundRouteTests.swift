import Foundation
import Purchases
import TestServers
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: only the app's backend says whether a user agreed and how much was used, and a wrong report changes nothing
/// (B11). Method: real HTTP, then the rows.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(3))) struct RefundRouteTests {
    private static func user() -> String { "u-\(UUID().uuidString.prefix(8))" }

    private static func transaction() -> String { "2000000\(UInt32.random(in: 1_000_000...9_999_999))" }

    private static func consent(
        _ user: String, _ body: String, _ intake: RunningIntake, key: String = IntakeFixture.backendKey
    ) async throws -> RunningIntake.Answer {
        try await intake.send("PUT", "/v1/users/\(user)/consent", key: key, body: body)
    }

    private static func report(
        _ transaction: String, _ body: String, _ intake: RunningIntake, key: String = IntakeFixture.backendKey
    ) async throws -> RunningIntake.Answer {
        try await intake.send("POST", "/v1/grants/\(transaction)/consumption", key: key, body: body)
    }

    /// A granted purchase as a worker leaves it.
    private static func grant(
        _ transaction: String, app: String = "game", source: String = "poster", revoked: Bool = false,
        goods: String = #"[{"item":"coins","amount":6000}]"#, quantity: Int = 1, isGranted: Bool = true,
        _ intake: RunningIntake
    ) async throws {
        try await intake.execute(
            """
            insert into transactions (transaction_id, app_id, environment, original_transaction_id, product_id, kind, quantity,
              purchased_at, revoked_at, facts)
            values ('\(transaction)', '\(app)', 'Sandbox', '\(transaction)', 'coins', 'Consumable', \(quantity), now(),
              \(revoked ? "now()" : "null"), '{}')
            """)
        guard isGranted else { return }
        try await intake.execute(
            """
            insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id, quantity,
              goods, binding_source)
            values ('\(transaction)', '\(transaction)', '\(app)', 'Sandbox', 'u1', gen_random_uuid(), 'coins', \(quantity),
              '\(goods)', '\(source)')
            """)
    }

    @Test("consent is stored once, taken back and given again; what the person said last counts")
    func consents() async throws {
        try await RunningIntake.run { intake in
            let (guest, account) = (Self.user(), Self.user())
            for (body, isRepeated) in [
                (#"{"consented":true}"#, false), (#"{"consented":true,"why":"settings"}"#, true),
                (#"{"consented":false}"#, false), (#"{"consented":false}"#, true), (#"{"consented":true}"#, false),
            ] {
                let answer = try await Self.consent(guest, body, intake)
                #expect(answer.status == 200 && answer["isRepeated"] == .bool(isRepeated), "\(answer.text)")
                #expect(answer["consented"] == .bool(body.contains("true")) && answer["at"] != nil)
                #expect(answer["ignored"] == (body.contains("why") ? .array([.string("why")]) : nil))
            }
            #expect(try await intake.count("select count(*) from consents where user_id = '\(guest)'") == 3)
            try await intake.execute(
                "insert into merges (app_id, user_id, into_user_id) values ('game', '\(guest)', '\(account)')")
            // The guest is a part of the account: what the guest agreed to is known.
            #expect(
                try await Self.consent(account, #"{"consented":true}"#, intake)["isRepeated"] == .bool(true))
            #expect(
                try await Self.consent(account, #"{"consented":false}"#, intake)["isRepeated"] == .bool(false))
            #expect(try await Self.consent(guest, #"{"consented":false}"#, intake)["isRepeated"] == .bool(true))
        }
    }

    @Test("a wrong consent is refused by its field; only the app's backend may say it")
    func wrongConsents() async throws {
        try await TestGateway.run(scopes: "intake, events") { intake, gateway in
            let user = Self.user()
            for (body, status, code, field) in [
                ("{}", 400, "wrong_type", "consented"), (#"{"consented":"yes"}"#, 400, "wrong_type", "consented"),
                (#"{"consented":null}"#, 400, "wrong_type", "consented"), ("[]", 400, "not_json", nil),
                (#"{"consented":true,"consented":false}"#, 400, "duplicate_member", "consented"),
                ("{", 400, "not_json", nil),
            ] as [(String, Int, String, String?)] {
                let answer = try await Self.consent(user, body, intake)
                #expect(answer.status == status && answer["code"] == .string(code), "\(body): \(answer.text)")
                #expect(answer["field"] == field.map { .string($0) }, "\(body)")
            }
            let good = #"{"consented":true}"#
            for key in [IntakeFixture.key, IntakeFixture.supportKey, try gateway.token(user)] {
                let answer = try await Self.consent(user, good, intake, key: key)
                #expect(answer.status == 403 && answer["code"] == .string("missing_scope"))
            }
            let placeholder = try await Self.consent("undefined", good, intake)
            #expect(placeholder.status == 422 && placeholder["code"] == .string("user_placeholder"))
            let unnamed = try await Self.consent(user, good, intake, key: IntakeFixture.bothAppsKey)
            #expect(unnamed.status == 422 && unnamed["code"] == .string("no_app"))
            #expect(try await intake.count("select count(*) from consents where user_id = '\(user)'") == 0)
        }
    }

    @Test("a user who was erased has agreed to nothing, and cannot")
    func erased() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            try await intake.execute(
                "insert into users (app_id, user_key, erased_at) values ('game', '\(user)', now())")
            let answer = try await Self.consent(user, #"{"consented":true}"#, intake)
            #expect(answer.status == 409 && answer["code"] == .string("user_erased"))
            #expect(try await intake.count("select count(*) from consents where user_id = '\(user)'") == 0)
        }
    }

    @Test("what was used, in percent or in units of what was granted: stored once, and answered in percent")
    func reports() async throws {
        try await RunningIntake.run { intake in
            let id = Self.transaction()
            try await Self.grant(id, intake)
            for (body, percentage, stored, isRepeated) in [
                (#"{"percentage":40}"#, "40", 40_000, false), (#"{"percentage":40.0}"#, "40", 40_000, true),
                (#"{"units":3000}"#, "50", 50_000, false), (#"{"units":3000,"level":7}"#, "50", 50_000, true),
                (#"{"units":1}"#, "0.016", 16, false), (#"{"units":5999}"#, "99.983", 99_983, false),
                (#"{"units":6000}"#, "100", 100_000, false), (#"{"units":0}"#, "0", 0, false),
                (#"{"percentage":33.3333}"#, "33.333", 33_333, false), (#"{"percentage":0.5}"#, "0.5", 500, false),
            ] {
                let answer = try await Self.report(id, body, intake)
                #expect(answer.status == 200 && answer["percentage"] == .number(percentage), "\(body): \(answer.text)")
                #expect(answer["isRepeated"] == .bool(isRepeated) && answer["isRefunded"] == .bool(false), "\(body)")
                #expect(answer["ignored"] == (body.contains("level") ? .array([.string("level")]) : nil))
                let newest = try await intake.count(
                    """
                    select percentage from consumption_reports where transaction_id = '\(id)'
                    order by at desc, reported_at desc limit 1
                    """)
                #expect(newest == stored, "\(body)")
            }
            // A report of an earlier time is kept, and the newest one counts.
            let earlier = #"{"percentage":90,"at":"2026-01-01T00:00:00Z"}"#
            #expect(try await Self.report(id, earlier, intake)["isRepeated"] == .bool(false))
            #expect(try await Self.report(id, earlier, intake)["isRepeated"] == .bool(true))
            let facts = try await intake.ledger.run(
                Statements.refundFacts,
                .init(
                    .init(
                        notificationID: UUID(), appID: "game", environment: "Sandbox", transactionID: id,
                        originalID: id,
                        reason: nil, askedAt: .now)))
            #expect(facts.map(\.consumed) == [500])
        }
    }

    @Test("a consumption report that is wrong, too large, too early, of another app or of what nobody was granted")
    func wrongReports() async throws {
        try await RunningIntake.run { intake in
            let (id, foreign, ungranted, shared) = (
                Self.transaction(), Self.transaction(), Self.transaction(), Self.transaction()
            )
            try await Self.grant(id, goods: "[]", quantity: 3, intake)
            try await Self.grant(foreign, app: "other", intake)
            try await Self.grant(ungranted, isGranted: false, intake)
            try await Self.grant(shared, source: "shared", intake)
            let ahead = Date.now.addingTimeInterval(3600).rfc3339
            for (body, field) in [
                (#"{"percentage":100.001}"#, "percentage"), (#"{"percentage":-1}"#, "percentage"),
                (#"{"percentage":"40"}"#, "percentage"), ("{}", "percentage"),
                (#"{"percentage":1,"units":1}"#, "percentage"), (#"{"units":4}"#, "units"),
                (#"{"units":-1}"#, "units"), (#"{"units":1.5}"#, "units"), (#"{"percentage":1,"at":"now"}"#, "at"),
                (#"{"percentage":1,"at":"\#(ahead)"}"#, "at"), (#"{"percentage":1,"at":7}"#, "at"),
            ] {
                let answer = try await Self.report(id, body, intake)
                #expect(answer.status == 400 && answer["field"] == .string(field), "\(body): \(answer.text)")
                if body == #"{"units":4}"# { #expect(answer.text.contains("at most 3")) }
            }
            for (transaction, code) in [
                (foreign, "not_found"), ("never-seen", "not_found"), ("a%00b", "not_found"),
                (ungranted, "not_granted"), (shared, "shared_purchase"),
            ] {
                let answer = try await Self.report(transaction, #"{"percentage":1}"#, intake)
                #expect(answer.status == 404 && answer["code"] == .string(code), "\(transaction): \(answer.text)")
            }
            for key in [IntakeFixture.key, IntakeFixture.supportKey] {
                #expect(try await Self.report(id, #"{"percentage":1}"#, intake, key: key).status == 403)
            }
            let stored = try await intake.count(
                "select count(*) from consumption_reports where transaction_id in ('\(id)', '\(foreign)', '\(shared)')")
            #expect(stored == 0)
        }
    }

    @Test("a report after the refund is recorded, and the answer says that the money went back")
    func afterRefund() async throws {
        try await RunningIntake.run { intake in
            let id = Self.transaction()
            try await Self.grant(id, revoked: true, intake)
            let answer = try await Self.report(id, #"{"percentage":60}"#, intake)
            #expect(answer.status == 200 && answer["isRefunded"] == .bool(true), "\(answer.text)")
            #expect(
                try await intake.count(
                    "select percentage from consumption_reports where transaction_id = '\(id)'") == 60_000)
        }
    }
}
