import Encoding
import Foundation
import Purchases
import TestServers
import Testing

@testable import Ledger

/// Goal: a backend's report is stored once, a wrong one names its field and stores nothing, and the order says that it
/// was delivered (S0-23). Method: real HTTP, with events as settling writes them.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(3))) struct HandOutRoutesTests {
    /// Returns the event's id.
    static func tell(
        _ intake: RunningIntake, _ transaction: String, _ type: EventType = .purchaseGranted, app: String = "game",
        body: String = #"{"goods": [{"item": "coins", "amount": 5}], "environment": "Sandbox"}"#
    ) async throws -> UUID {
        let id = UUID()
        try await intake.execute(
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
            values ('\(id)', '\(app)', '\(type.rawValue)', 'u', '\(transaction)', gen_random_uuid(), '\(body)')
            """)
        return id
    }

    private static func handle(
        _ intake: RunningIntake, _ event: String, _ body: String, key: String = IntakeFixture.backendKey
    ) async throws -> RunningIntake.Answer {
        try await intake.send("POST", "/v1/events/\(event)/handled", key: key, body: body)
    }

    @Test("S0-23: each outcome is stored once; what contradicts it is 409 and changes nothing")
    func outcomes() async throws {
        try await RunningIntake.run { intake in
            let (granted, order) = (try await Self.tell(intake, "h1"), UUID())
            let revoked = try await Self.tell(intake, "h1", .purchaseRevoked)
            let paid = try await Self.tell(intake, order.text, .orderPaid, body: #"{"quantity": 1}"#)
            for (event, subject, said, status, isRepeated) in [
                (granted, #""transactionId":"h1""#, #""outcome":"refused","reason":"bag full""#, 200, false),
                (granted, #""transactionId":"h1""#, #""outcome":"refused","reason":"bag full""#, 200, true),
                (granted, #""transactionId":"h1""#, #""outcome":"handed_out","at":"2026-01-01T00:00:00Z""#, 200, false),
                (granted, #""transactionId":"h1""#, #""outcome":"handed_out""#, 200, true),
                (granted, #""transactionId":"h1""#, #""outcome":"refused","reason":"late""#, 409, false),
                (revoked, #""transactionId":"h1""#, #""outcome":"taken_back","amount":2"#, 200, false),
                (revoked, #""transactionId":"h1""#, #""outcome":"taken_back","amount":2"#, 200, true),
                (revoked, #""transactionId":"h1""#, #""outcome":"taken_back","amount":3"#, 409, false),
                (paid, #""orderId":"\#(order.uuidString)""#, #""outcome":"handed_out""#, 200, false),
            ] {
                let answer = try await Self.handle(intake, event.uuidString, "{\(subject),\(said),\"more\":1}")
                #expect(answer.status == status, "\(said): \(answer.text)")
                if status == 200 {
                    #expect(answer["isRepeated"] == .bool(isRepeated), "\(said): \(answer.text)")
                    #expect(answer["eventId"] == .string(event.text) && answer["failures"] == .number("0"))
                    #expect(answer["ignored"] == .array([.string("more")]))
                } else {
                    #expect(answer["code"] == .string("other_outcome") && answer["field"] == .string("outcome"))
                }
            }
            #expect(
                try await intake.count("select count(*) from hand_outs where outcome = 'handed_out'") == 2)
            #expect(try await intake.count("select amount from hand_outs where outcome = 'taken_back'") == 2)
            try await intake.execute("delete from hand_outs")
        }
    }

    @Test("a wrong report, event, app or caller is refused by its field, and stores nothing")
    func refusals() async throws {
        try await TestGateway.run(scopes: "intake, events") { intake, gateway in
            let granted = try await Self.tell(intake, "w1")
            let empty = try await Self.tell(intake, "w2", body: #"{"goods": []}"#)
            let foreign = try await Self.tell(intake, "w3", app: "other")
            let revoked = try await Self.tell(intake, "w1", .purchaseRevoked)
            let done = #""outcome":"handed_out""#
            for (event, body, status, code, field) in [
                ("7", #"{"transactionId":"w1",\#(done)}"#, 400, "bad_parameter", "id"),
                (granted.text, "{\(done)}", 400, "wrong_type", "transactionId"),
                (granted.text, #"{"transactionId":7,\#(done)}"#, 400, "wrong_type", "transactionId"),
                (granted.text, #"{"transactionId":"",\#(done)}"#, 400, "wrong_type", "transactionId"),
                (granted.text, #"{"orderId":"w1",\#(done)}"#, 400, "wrong_type", "orderId"),
                (granted.text, #"{"orderId":7,\#(done)}"#, 400, "wrong_type", "orderId"),
                (
                    granted.text, #"{"transactionId":"w1","orderId":"\#(UUID())",\#(done)}"#, 400, "wrong_type",
                    "orderId"
                ),
                (granted.text, #"{"transactionId":"w1"}"#, 400, "wrong_type", "outcome"),
                (granted.text, #"{"transactionId":"w1","outcome":"done"}"#, 400, "wrong_type", "outcome"),
                (granted.text, #"{"transactionId":"w1",\#(done),\#(done)}"#, 400, "duplicate_member", "outcome"),
                (granted.text, #"{"transactionId":"w1",\#(done),"amount":1}"#, 400, "wrong_type", "amount"),
                (granted.text, #"{"transactionId":"w1","outcome":"refused"}"#, 400, "wrong_type", "reason"),
                (
                    granted.text, #"{"transactionId":"w1",\#(done),"at":"2200-01-01T00:00:00Z"}"#, 400, "wrong_type",
                    "at"
                ),
                (granted.text, #"{"transactionId":"w2",\#(done)}"#, 404, "not_found", "transactionId"),
                (UUID().text, #"{"transactionId":"w1",\#(done)}"#, 404, "not_found", "transactionId"),
                (foreign.text, #"{"transactionId":"w3",\#(done)}"#, 404, "not_found", "transactionId"),
                (granted.text, #"{"orderId":"\#(UUID())",\#(done)}"#, 404, "not_found", "orderId"),
                (empty.text, #"{"transactionId":"w2",\#(done)}"#, 422, "no_goods", "id"),
                (granted.text, #"{"transactionId":"w1","outcome":"taken_back"}"#, 422, "contradiction", "outcome"),
                (revoked.text, #"{"transactionId":"w1",\#(done)}"#, 422, "contradiction", "outcome"),
            ] {
                let answer = try await Self.handle(intake, event, body)
                #expect(
                    answer.status == status && answer["code"] == .string(code) && answer["field"] == .string(field),
                    "\(body): \(answer.text)")
            }
            #expect(try await Self.handle(intake, granted.text, "[]")["code"] == .string("not_json"))
            let body = #"{"transactionId":"w1",\#(done)}"#
            for key in [IntakeFixture.key, IntakeFixture.supportKey, try gateway.token("ann")] {
                #expect(try await Self.handle(intake, granted.text, body, key: key).status == 403)
            }
            #expect(try await intake.count("select count(*) from hand_outs") == 0)
            // The key of both apps handles the other app's event.
            let both = try await Self.handle(
                intake, foreign.text, #"{"transactionId":"w3",\#(done)}"#, key: IntakeFixture.bothAppsKey)
            #expect(both.status == 200, "\(both.text)")
            try await intake.execute("delete from hand_outs")
        }
    }
}
