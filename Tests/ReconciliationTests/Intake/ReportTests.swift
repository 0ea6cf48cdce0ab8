import Foundation
import Postgres
import TestServers
import Testing

@testable import Encoding
@testable import Ledger
@testable import Support

/// Goal: any failure that an app reports is kept and closes nothing (S0-20, P3, S4-22). Method: real HTTP, then the
/// rows.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(3))) struct ReportTests {
    private static func user() -> String { "u-\(UUID().uuidString.prefix(8))" }

    private static func order(_ user: String, _ intake: RunningIntake) async throws -> String {
        let answer = try await intake.order(#"{"userId":"\#(user)","productId":"com.example.game.coins6"}"#)
        guard case .string(let id)? = answer["id"] else { throw Missing() }
        return id
    }

    private struct Missing: Error {}

    @Test("P3, S4-21: an order reported failed, cancelled or deferred stays open, and its purchase still finds it")
    func closesNothing() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            let id = try await Self.order(user, intake)
            for kind in ClientReport.Kind.allCases.map(\.rawValue) {
                let body =
                    #"{"kind":"\#(kind)","transactionId":"t-1","message":"SKErrorDomain 0","appVersion":"1.2.3","#
                    + #""device":{"model":"iPhone12,1","os":"17.4","network":"none"},"token":"session"}"#
                let answer = try await intake.report(body, order: id)
                #expect(answer.status == 201 && answer["orderId"] == .string(id))
                #expect(answer["isHeld"] == (kind == "paid_without_proof" ? .bool(true) : nil))
                let again = try await intake.report(body, order: id)
                #expect(again.status == 200 && again["id"] == answer["id"], "the same report is the same row")
            }
            #expect(try await intake.get("/v1/orders/\(id)")["state"] == .string("open"))
            let stored = try await intake.count(
                """
                select count(*) from client_reports where order_id = '\(id)' and user_id = '\(user)' and app_id = 'game'
                  and transaction_id = 't-1' and message = 'SKErrorDomain 0' and app_version = '1.2.3'
                  and details @> '{"device": {"network": "none"}}' and not details ? 'token'
                """)
            #expect(stored == ClientReport.Kind.allCases.count)
            #expect(
                try await intake.count(
                    "select count(*) from v_client_reports where kind = 'paid_without_proof' and order_id = '\(id)'")
                    == 1)
        }
    }

    @Test("S0-20: without an order too; an order of another user or app is not linked, and the report is kept")
    func withoutOrder() async throws {
        try await RunningIntake.run { intake in
            let (user, stranger) = (Self.user(), Self.user())
            let own = try await Self.order(user, intake)
            let foreign = try await Self.order(stranger, intake)
            func send(_ more: String, key: String = IntakeFixture.key) async throws -> RunningIntake.Answer {
                try await intake.send(
                    "POST", "/v1/client-reports", key: key, body: #"{"kind":"paid_without_proof"\#(more)}"#)
            }
            let linked = try await send(#","userId":"\#(user)","orderId":"\#(own.uppercased())""#)
            #expect(linked.status == 201 && linked["orderId"] == .string(own))
            for id in [foreign, UUID().uuidString, "old order number 17"] {
                let answer = try await send(#","userId":"\#(user)","orderId":"\#(id)""#)
                #expect(answer.status == 201 && answer["orderId"] == nil, "\(id)")
            }
            // The order alone names the user.
            let byOrder = try await send(#","orderId":"\#(own)""#)
            #expect(byOrder.status == 201 && byOrder["orderId"] == .string(own))
            #expect(try await send(#","transactionId":"2000000123""#).status == 201)
            let otherApp = try await send(#","appId":"other","orderId":"\#(own)""#, key: IntakeFixture.bothAppsKey)
            #expect(otherApp.status == 201 && otherApp["orderId"] == nil)
            #expect(try await intake.count("select count(*) from client_reports where user_id = '\(user)'") == 5)
            #expect(try await intake.count("select count(*) from client_reports where user_id = '\(stranger)'") == 0)
        }
    }

    @Test("a report is bounded, as is what one user sends in a day; another user's order is not found")
    func bounds() async throws {
        try await TestGateway.run { intake, gateway in
            let user = Self.user()
            let id = try await Self.order(user, intake)
            for (body, status, field) in [
                ("{}", 422, "kind"), (#"{"kind":"exploded"}"#, 422, "kind"), (#"{"kind":7}"#, 400, "kind"),
                (#"{"kind":"failed","message":"\#(String(repeating: "m", count: 4097))"}"#, 400, "message"),
                (#"{"kind":"failed","device":"\#(String(repeating: "d", count: 16_384))"}"#, 400, nil),
            ] as [(String, Int, String?)] {
                let answer = try await intake.report(body, order: id)
                #expect(answer.status == status && answer["field"] == field.map { .string($0) }, "\(body.prefix(40))")
            }
            let account = Self.user()
            let foreign = try await intake.report(#"{"kind":"failed"}"#, order: id, key: gateway.token(account))
            #expect(foreign.status == 404)
            // It works once the user has become part of that account.
            try await intake.execute(
                "insert into merges (app_id, user_id, into_user_id) values ('game', '\(user)', '\(account)')")
            let own = try await intake.report(#"{"kind":"cancelled"}"#, order: id, key: gateway.token(account))
            #expect(own.status == 201 && own["orderId"] == .string(id))
            let linked = try await intake.send(
                "POST", "/v1/client-reports", body: #"{"kind":"failed","userId":"\#(account)","orderId":"\#(id)"}"#)
            #expect(linked.status == 201 && linked["orderId"] == .string(id))
            try await intake.execute("delete from merges where user_id = '\(user)'")
            try await intake.execute("delete from client_reports where order_id = '\(id)'")
            #expect(try await intake.report(#"{"kind":"failed"}"#, order: "no-uuid").status == 404)
            try await intake.execute(
                """
                insert into client_reports (id, app_id, user_id, kind, details)
                select gen_random_uuid(), 'game', '\(user)', 'error', '{}'
                from generate_series(1, \(Statements.reportsPerUserMax - 1))
                """)
            #expect(try await intake.report(#"{"kind":"failed"}"#, order: id, key: gateway.token(user)).status == 201)
            let tooMany = try await intake.report(#"{"kind":"error"}"#, order: id)
            #expect(tooMany.status == 429 && tooMany.headers["retry-after"] != nil)
            #expect(try await intake.report(#"{"kind":"failed"}"#, order: id).status == 200, "known is known")
            // Reports without a user share a bound of their own, by app.
            try await intake.execute(
                """
                insert into client_reports (id, app_id, kind, details)
                select gen_random_uuid(), 'other', 'error', '{}' from generate_series(1, \(Statements.reportsOfNobodyMax))
                """)
            for (app, status) in [("other", 429), ("game", 201)] {
                let nobody = try await intake.send(
                    "POST", "/v1/client-reports", key: IntakeFixture.bothAppsKey,
                    body: #"{"appId":"\#(app)","kind":"failed","transactionId":"\#(UUID())"}"#)
                #expect(nobody.status == status, "\(app): \(nobody.text)")
            }
            try await intake.execute("delete from client_reports where app_id = 'other'")
        }
    }

    @Test(
        "S0-20: who paid and had no proof waits for a person, until one has seen to it; other reports wait for nobody")
    func waiting() async throws {
        try await LedgerLab.with { lab in
            func report(_ kind: ClientReport.Kind, _ app: String, _ user: String) async throws {
                try await lab.database.run(
                    Statements.storeReport,
                    ClientReport(appID: app, userID: user, kind: kind, message: "paid", details: "{}"))
            }
            for kind in ClientReport.Kind.allCases { try await report(kind, "game", "u1") }
            try await report(.paidWithoutProof, "other", "u2")
            let appleGateway = Repairs(database: lab.database, actor: "ann")
            #expect(try await appleGateway.waitingReports(nil).map(\.userID) == ["u1", "u2"])
            let report = try #require(try await appleGateway.waitingReports("game").first)
            #expect(report.message == "paid" && report.appID == "game")
            #expect(try await appleGateway.handleReport(report.id))
            #expect(try await !appleGateway.handleReport(report.id), "once")
            #expect(try await !appleGateway.handleReport(UUID()))
            #expect(try await appleGateway.waitingReports(nil).map(\.userID) == ["u2"])
            #expect(
                try await lab.texts(
                    "select actor || ' ' || (details ->> 'user') from audits where action = 'support.handled'")
                    == ["ann u1"])
        }
    }
}

extension RunningIntake {
    func report(_ body: String, order: String, key: String = IntakeFixture.key) async throws -> Answer {
        try await send("POST", "/v1/orders/\(order)/reports", key: key, body: body)
    }
}
