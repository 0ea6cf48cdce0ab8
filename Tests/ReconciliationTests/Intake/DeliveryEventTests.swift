import Encoding
import Foundation
import TestServers
import Testing

/// Goal: the app backend reads every event once, in commit order, whatever other sessions write at the same time.
/// Method: events as settling writes them, by several connections with late commits, read by a cursor over
/// real HTTP.
@Suite(.migratedDatabase, .serialized) struct DeliveryEventTests {
    private static func insert(_ app: String, _ transaction: String, user: String = "u1") -> String {
        """
        insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
        values (gen_random_uuid(), '\(app)', 'purchase.granted', '\(user)', '\(transaction)', gen_random_uuid(),
          '{"goods":[{"item":"coins","amount":6000}]}')
        """
    }

    private static func page(
        _ intake: RunningIntake, after: String?, limit: Int = 100, wait: String? = nil,
        key: String = IntakeFixture.backendKey
    ) async throws -> (transactions: [String], next: String, answer: RunningIntake.Answer) {
        var path = "/v1/events?limit=\(limit)"
        if let after { path += "&after=\(after)" }
        if let wait { path += "&wait=\(wait)" }
        let answer = try await intake.get(path, key: key)
        guard answer.status == 200, case .array(let events)? = answer["events"],
            case .string(let next)? = answer["next"]
        else { throw Unexpected(text: answer.text) }
        return (events.compactMap { if case .string(let id)? = $0["transactionId"] { id } else { nil } }, next, answer)
    }

    private struct Unexpected: Error { let text: String }

    @Test("An event has everything a backend needs, and only the caller's apps show")
    func fields() async throws {
        try await RunningIntake.run { intake in
            try await intake.execute(Self.insert("game", "f-1", user: "u7"))
            try await intake.execute(Self.insert("other", "f-2"))
            // Any transaction on this server, in other databases too, may hold the feed back for a moment.
            let (transactions, next, answer) = try await Self.page(intake, after: nil, wait: "20")
            #expect(transactions == ["f-1"])
            guard case .array(let events)? = answer["events"], let event = events.first else { return }
            #expect(event["type"] == .string("purchase.granted"))
            #expect(event["appId"] == .string("game"))
            #expect(event["userId"] == .string("u7"))
            #expect(event["data"]?["goods"] != nil)
            for name in ["id", "receiptId", "at"] { #expect(event[name] != nil, "\(name)") }
            // Nothing is new: the answer has the same cursor again.
            let (none, same, _) = try await Self.page(intake, after: next)
            #expect(none.isEmpty)
            #expect(same == next)
            let (rest, _, _) = try await Self.page(intake, after: next, wait: "20", key: IntakeFixture.bothAppsKey)
            #expect(rest == ["f-2"])
            let (both, _, _) = try await Self.page(intake, after: "0-0", key: IntakeFixture.bothAppsKey)
            #expect(both == ["f-1", "f-2"])
            // A place that was never given would be silent for ever.
            let place = try #require(next.split(separator: "-").first.flatMap { Int($0) })
            for beyond in ["\(place + 1_000_000_000)-0", "\(Int.max)-0"] {
                let refused = try await intake.get(
                    "/v1/events?after=\(beyond)&wait=20", key: IntakeFixture.backendKey)
                #expect(refused.status == 400 && refused["field"] == .string("after"), "\(refused.text)")
            }
            #expect(try await intake.get("/v1/events").status == 403)
            #expect(try await intake.get("/v1/events", key: nil).status == 401)
        }
    }

    @Test(
        "Bad cursors and limits are named",
        arguments: [
            ("after=abc", "after"), ("after=1", "after"), ("after=-1-2", "after"), ("limit=0", "limit"),
            ("limit=1001", "limit"), ("limit=many", "limit"), ("wait=x", "wait"),
        ])
    func parameters(_ query: String, _ field: String) async throws {
        try await RunningIntake.run { intake in
            let answer = try await intake.get("/v1/events?\(query)", key: IntakeFixture.backendKey)
            #expect(answer.status == 400)
            #expect(answer["field"] == .string(field))
        }
    }

    @Test("No gap and no doubling under eight writers with late commits")
    func concurrentWriters() async throws {
        try await RunningIntake.run { intake in
            try await intake.execute("truncate events")
            let (writers, perWriter) = (8, 40)
            let reader = Task {
                var read: [String] = []
                var cursor = "0-0"
                let deadline = ContinuousClock.now + .seconds(60)
                while read.count < writers * perWriter, ContinuousClock.now < deadline {
                    let (transactions, next, _) = try await Self.page(intake, after: cursor, limit: 7)
                    read += transactions
                    cursor = next
                }
                return read
            }
            try await withThrowingTaskGroup(of: Void.self) { group in
                for writer in 0..<writers {
                    group.addTask {
                        for index in 0..<perWriter {
                            // The row is inserted long before its transaction ends: a cursor by id alone would skip the
                            // row.
                            try await intake.execute(
                                """
                                with late as (\(Self.insert("game", "w\(writer)-\(index)")) returning id)
                                select pg_sleep(random() * 0.02) from late
                                """)
                        }
                    }
                }
                try await group.waitForAll()
            }
            let read = try await reader.value
            #expect(read.count == writers * perWriter)
            #expect(Set(read).count == writers * perWriter)
        }
    }

    @Test("wait=S ends with the first event")
    func waits() async throws {
        try await RunningIntake.run { intake in
            let (_, next, _) = try await Self.page(intake, after: "0-0", limit: 1000)
            let start = ContinuousClock.now
            async let page = Self.page(intake, after: next, wait: "20")
            try await Task.sleep(for: .milliseconds(400))
            try await intake.execute(Self.insert("game", "late-1"))
            #expect(try await page.transactions == ["late-1"])
            // The event ended the wait, not the end of the time; another transaction may hold the feed back for a
            // moment.
            #expect(ContinuousClock.now - start < .seconds(15))
            let (none, _, _) = try await Self.page(intake, after: page.next, wait: "0.5")
            #expect(none.isEmpty)
        }
    }
}
