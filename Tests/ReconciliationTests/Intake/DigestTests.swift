import Crypto
import Encoding
import Foundation
import Purchases
import TestServers
import Testing

@testable import Ledger

/// Goal: a backend proves that it has every event of a day, and learns which it misses (L3). Method: real HTTP; the digest
/// is computed here apart from the server.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(3))) struct DigestTests {
    private static func tell(
        _ intake: RunningIntake, at time: String, app: String = "game"
    ) async throws -> UUID {
        let id = UUID()
        try await intake.execute(
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body, at)
            values ('\(id)', '\(app)', 'purchase.granted', 'u', '\(id)', gen_random_uuid(), '{"goods": []}', '\(time)')
            """)
        return id
    }

    private static func hash(_ ids: [UUID]) -> String {
        let text = ids.map(\.text).sorted().joined(separator: "\n")
        return SHA256.hash(data: Data(text.utf8)).hexadecimal
    }

    /// The sums of arrivals say that all before now is complete.
    private static func complete(_ intake: RunningIntake) async throws {
        try await intake.execute("update arrivals_progress set summed_to = now(), complete_to = now()")
    }

    private static func get(
        _ intake: RunningIntake, _ query: String, key: String = IntakeFixture.backendKey
    ) async throws -> RunningIntake.Answer {
        try await intake.get("/v1/events/digest?\(query)", key: key)
    }

    private static func compare(
        _ intake: RunningIntake, _ body: String, key: String = IntakeFixture.backendKey
    ) async throws -> RunningIntake.Answer {
        try await intake.send("POST", "/v1/events/digest", key: key, body: body)
    }

    private static func list(_ answer: RunningIntake.Answer, _ name: String) -> [String] {
        guard case .array(let values)? = answer[name] else { return [] }
        return values.compactMap { if case .string(let id) = $0 { id } else { nil } }
    }

    @Test("L3: the digest of a day, an hour and a minute; the ids that differ are named on both sides")
    func digests() async throws {
        try await RunningIntake.run { intake in
            var ids: [UUID] = []
            for time in ["2026-10-01T00:00:00Z", "2026-10-01T13:05:59.999Z", "2026-10-01T23:59:59.999Z"] {
                ids.append(try await Self.tell(intake, at: time))
            }
            for time in ["2026-09-30T23:59:59.999Z", "2026-10-02T00:00:00Z"] {
                _ = try await Self.tell(intake, at: time)
            }
            _ = try await Self.tell(intake, at: "2026-10-01T13:05:00Z", app: "other")
            try await Self.complete(intake)
            for (day, of) in [
                ("2026-10-01", ids), ("2026-10-01T13", [ids[1]]), ("2026-10-01T13:05", [ids[1]]),
                ("2026-10-01T13:06", []), ("2020-01-01", []),
            ] {
                let answer = try await Self.get(intake, "day=\(day)")
                #expect(answer.status == 200 && answer["count"] == .number("\(of.count)"), "\(day): \(answer.text)")
                #expect(answer["sha256"] == .string(Self.hash(of)) && answer["day"] == .string(day))
            }
            let right = #"{"day":"2026-10-01","count":3,"sha256":"\#(Self.hash(ids).uppercased())"}"#
            #expect(try await Self.compare(intake, right)["matches"] == .bool(true))
            let wrong = #"{"day":"2026-10-01","count":2,"sha256":"\#(Self.hash(ids))","why":1}"#
            let answer = try await Self.compare(intake, wrong)
            #expect(answer["matches"] == .bool(false) && answer["missing"] == nil, "\(answer.text)")
            #expect(answer["ignored"] == .array([.string("why")]))

            let all = #"{"day":"2026-10-01","ids":["\#(ids.map(\.uuidString).joined(separator: #"",""#))"]}"#
            let same = try await Self.compare(intake, all)
            #expect(same["matches"] == .bool(true) && Self.list(same, "missing") == [], "\(same.text)")
            let strange = UUID()
            let partly = #"{"day":"2026-10-01","ids":["\#(ids[0].text)","\#(strange.text)","\#(strange.text)"]}"#
            let differs = try await Self.compare(intake, partly)
            #expect(differs["matches"] == .bool(false) && differs["count"] == .number("3"), "\(differs.text)")
            #expect(Self.list(differs, "missing") == ids[1...].map(\.text).sorted())
            #expect(Self.list(differs, "unknown") == [strange.text])
            #expect(differs["missingCount"] == .number("2") && differs["unknownCount"] == .number("1"))
        }
    }

    @Test("a day that may still get events needs a cursor; up to it the digest has exactly what the feed gave")
    func openDays() async throws {
        try await RunningIntake.run { intake in
            try await intake.execute("update arrivals_progress set summed_to = now() - interval '2 days'")
            let today = String(Date.now.rfc3339.prefix(10))
            let first = try await Self.tell(intake, at: "\(today)T00:00:00Z")
            let page = try await intake.get("/v1/events?wait=20&limit=1000", key: IntakeFixture.backendKey)
            guard case .string(let cursor)? = page["next"] else {
                Issue.record("\(page.text)")
                return
            }
            let second = try await Self.tell(intake, at: "\(today)T00:00:00.001Z")
            let open = try await Self.get(intake, "day=\(today)")
            #expect(open.status == 409 && open["code"] == .string("day_open"), "\(open.text)")
            #expect(open["field"] == .string("day"))
            let bounded = try await Self.get(intake, "day=\(today)&upTo=\(cursor)")
            #expect(bounded["sha256"] == .string(Self.hash([first])), "\(bounded.text)")
            let ids = #"{"day":"\#(today)","upTo":"\#(cursor)","ids":["\#(second.text)"]}"#
            let compared = try await Self.compare(intake, ids)
            #expect(Self.list(compared, "missing") == [first.text], "\(compared.text)")
            #expect(Self.list(compared, "unknown") == [second.text])
            let start = try await Self.get(intake, "day=\(today)&upTo=0-0")
            #expect(start["count"] == .number("0"), "\(start.text)")
        }
    }

    @Test("a wrong day, cursor, hash, list or caller is refused by its field")
    func refusals() async throws {
        try await TestGateway.run(scopes: "intake, events") { intake, gateway in
            try await Self.complete(intake)
            for day in [
                "", "today", "2026-13-01", "2026-02-30", "2026-10-1", "2026-10-01T24", "2026-10-01T1:00", "2026",
            ] {
                let answer = try await Self.get(intake, "day=\(day)")
                #expect(answer.status == 400 && answer["field"] == .string("day"), "\(day): \(answer.text)")
            }
            for (query, field) in [
                ("", "day"), ("day=2026-10-01&upTo=x", "upTo"),
                ("day=2026-10-01&upTo=\(Int.max)-1", "upTo"), ("day=2026-10-01&hour=3", "hour"),
            ] {
                let answer = try await Self.get(intake, query)
                #expect(answer.status == 400 && answer["field"] == .string(field), "\(query): \(answer.text)")
            }
            let hash = Self.hash([])
            let many = Array(repeating: #""\#(UUID().text)""#, count: 100_001).joined(separator: ",")
            for (body, field) in [
                ("{}", "count"), (#"{"day":7,"ids":[]}"#, "day"), (#"{"day":"2026-10-01"}"#, "count"),
                (#"{"day":"2026-10-01","upTo":7,"ids":[]}"#, "upTo"), (#"{"day":"x","ids":[]}"#, "day"),
                (#"{"day":"2026-10-01","count":-1,"sha256":"\#(hash)"}"#, "count"),
                (#"{"day":"2026-10-01","count":0,"sha256":"abc"}"#, "sha256"),
                (#"{"day":"2026-10-01","count":0,"sha256":7}"#, "sha256"),
                (#"{"day":"2026-10-01","count":0,"ids":[]}"#, "count"),
                (#"{"day":"2026-10-01","sha256":"\#(hash)","ids":[]}"#, "sha256"),
                (#"{"day":"2026-10-01","ids":{}}"#, "ids"), (#"{"day":"2026-10-01","ids":["\#(UUID())",7]}"#, "ids[1]"),
                (#"{"day":"2026-10-01","ids":["x"]}"#, "ids[0]"), (#"{"day":"2026-10-01","ids":[\#(many)]}"#, "ids"),
            ] {
                let answer = try await Self.compare(intake, body)
                #expect(
                    answer.status == 400 && answer["field"] == .string(field), "\(body.prefix(90)): \(answer.text)")
            }
            for key in [IntakeFixture.key, IntakeFixture.supportKey, try gateway.token("ann")] {
                #expect(try await Self.get(intake, "day=2026-10-01", key: key).status == 403)
                #expect(try await Self.compare(intake, #"{"day":"2026-10-01","ids":[]}"#, key: key).status == 403)
            }
            let both = try await Self.get(intake, "day=2026-10-01", key: IntakeFixture.bothAppsKey)
            #expect(both.status == 422 && both["code"] == .string("no_app"), "\(both.text)")
            #expect(try await Self.get(intake, "day=2026-10-01&appId=other").status == 403)
        }
    }
}
