import Encoding
import Foundation
import Purchases
import TestServers
import Testing

@testable import Ledger

/// Goal: a backend cannot store a cursor that would lose it events, learns by name what is wrong, and reads the types
/// that it asks for without losing its place (B8). Method: real HTTP, with events as settling writes them.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(3))) struct FeedGroupHTTPTests {
    private struct Unexpected: Error { let text: String }

    private static func tell(
        _ intake: RunningIntake, _ app: String, _ type: String = "purchase.granted", _ transaction: String = "t",
        count: Int = 1
    ) async throws {
        try await intake.execute(
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
            select gen_random_uuid(), '\(app)', '\(type)', 'u', '\(transaction)', gen_random_uuid(), '{"goods": []}'
            from generate_series(1, \(count))
            """)
    }

    private static func page(
        _ intake: RunningIntake, _ query: String, key: String = IntakeFixture.bothAppsKey
    ) async throws -> (transactions: [String], next: String) {
        let answer = try await intake.get("/v1/events?\(query)", key: key)
        guard answer.status == 200, case .array(let events)? = answer["events"],
            case .string(let next)? = answer["next"]
        else { throw Unexpected(text: answer.text) }
        return (events.compactMap { if case .string(let id)? = $0["transactionId"] { id } else { nil } }, next)
    }

    private static func put(
        _ intake: RunningIntake, _ path: String, _ body: String, key: String = IntakeFixture.backendKey
    ) async throws -> RunningIntake.Answer {
        try await intake.send("PUT", "/v1/feed-groups/\(path)", key: key, body: body)
    }

    @Test("a wrong cursor, name, app or caller is refused by its field, and stores nothing")
    func refusals() async throws {
        try await TestGateway.run(scopes: "intake, events") { intake, gateway in
            try await Self.tell(intake, "game")
            try await Self.tell(intake, "other")
            let game = try await Self.page(intake, "appId=game&wait=20").next
            let other = try await Self.page(intake, "appId=other&wait=20").next
            let longest = String(repeating: "x", count: 64)
            for name in ["A", "a_b", "a%20b", "%C3%A9", longest + "x"] {
                for method in ["GET", "PUT", "DELETE"] {
                    let answer = try await intake.send(
                        method, "/v1/feed-groups/\(name)", key: IntakeFixture.backendKey,
                        body: method == "PUT" ? #"{"after":"0-0"}"# : nil)
                    #expect(
                        answer.status == 400 && answer["code"] == .string("bad_parameter")
                            && answer["field"] == .string("name"), "\(method) \(name): \(answer.text)")
                }
                let read = try await intake.get("/v1/events?group=\(name)", key: IntakeFixture.backendKey)
                #expect(read.status == 400 && read["field"] == .string("group"), "\(name): \(read.text)")
            }
            for (body, status, code, field) in [
                ("{}", 400, "wrong_type", "after"), (#"{"after":null}"#, 400, "wrong_type", "after"),
                (#"{"after":7}"#, 400, "wrong_type", "after"), (#"{"after":"yesterday"}"#, 400, "wrong_type", "after"),
                (#"{"after":"0-0","after":"0-0"}"#, 400, "duplicate_member", "after"),
                (#"{"after":"0-0","rewind":1}"#, 400, "wrong_type", "rewind"),
                (#"{"after":"0-1"}"#, 422, "unknown_cursor", "after"),
                (#"{"after":"\#(Int.max)-\#(Int.max)"}"#, 422, "unknown_cursor", "after"),
                (#"{"after":"\#(other)","rewind":true}"#, 422, "unknown_cursor", "after"),
            ] {
                let answer = try await Self.put(intake, "shop", body)
                #expect(
                    answer.status == status && answer["code"] == .string(code) && answer["field"] == .string(field),
                    "\(body): \(answer.text)")
            }
            #expect(try await Self.put(intake, "shop", "[]")["code"] == .string("not_json"))
            #expect(try await intake.count("select count(*) from feed_groups") == 0)

            // Only a key with the scope, and no user's token, speaks for the backend.
            let token = try gateway.token("ann")
            for (key, status) in [(IntakeFixture.key, 403), (token, 403), (IntakeFixture.supportKey, 403)] {
                #expect(try await Self.put(intake, "shop", #"{"after":"0-0"}"#, key: key).status == status)
                #expect(try await intake.get("/v1/feed-groups", key: key).status == status)
                #expect(try await intake.get("/v1/feed-groups/shop", key: key).status == status)
                #expect(try await intake.send("DELETE", "/v1/feed-groups/shop", key: key).status == status)
            }
            let both = IntakeFixture.bothAppsKey
            for answer in [
                try await Self.put(intake, "shop", #"{"after":"0-0"}"#, key: both),
                try await intake.get("/v1/events?group=shop", key: both),
            ] {
                #expect(answer.status == 422 && answer["code"] == .string("no_app"), "\(answer.text)")
            }
            #expect(try await Self.put(intake, "shop?appId=other", #"{"after":"0-0"}"#).status == 403)

            // A caller of several apps may store the place of a feed of all of them.
            let stored = try await Self.put(intake, "shop?appId=game", #"{"after":"\#(other)","why":1}"#, key: both)
            #expect(stored.status == 200 && stored["after"] == .string(other), "\(stored.text)")
            #expect(stored["ignored"] == .array([.string("why")]))
            let behind = try await Self.put(intake, "shop", #"{"after":"\#(game)"}"#)
            #expect(behind.status == 409 && behind["code"] == .string("cursor_behind"), "\(behind.text)")
            #expect(behind["stored"] == .string(other) && behind["field"] == .string("after"))
            let two = try await intake.get("/v1/events?group=shop&after=0-0", key: IntakeFixture.backendKey)
            #expect(two.status == 400 && two["field"] == .string("after"), "\(two.text)")
            try await intake.execute("delete from feed_groups")
        }
    }

    @Test(
        "a group that is not there is 404; an app has a bounded number of them; the list has those of the caller's apps"
    )
    func groups() async throws {
        try await RunningIntake.run { intake in
            let both = IntakeFixture.bothAppsKey
            for (method, path, field) in [
                ("GET", "feed-groups/shop", "name"), ("DELETE", "feed-groups/shop", "name"),
                ("GET", "events?group=shop", "group"),
            ] {
                let answer = try await intake.send(method, "/v1/\(path)", key: IntakeFixture.backendKey)
                #expect(answer.status == 404 && answer["field"] == .string(field), "\(path): \(answer.text)")
            }
            try await intake.execute(
                """
                insert into feed_groups (app_id, name, place, id)
                select 'other', 'g' || n, 0, 0 from generate_series(1, \(FeedGroup.perAppMax)) n
                """)
            let full = try await Self.put(intake, "more?appId=other", #"{"after":"0-0"}"#, key: both)
            #expect(full.status == 409 && full["code"] == .string("too_many_groups"), "\(full.text)")
            #expect(try await Self.put(intake, "g1?appId=other", #"{"after":"0-0"}"#, key: both).status == 200)
            #expect(try await Self.put(intake, "more", #"{"after":"0-0"}"#).status == 200)
            func names(_ key: String, _ query: String = "") async throws -> [JSONValue?] {
                let answer = try await intake.get("/v1/feed-groups\(query)", key: key)
                guard case .array(let groups)? = answer["groups"] else { throw Unexpected(text: answer.text) }
                return groups.map { $0["name"] }
            }
            #expect(try await names(IntakeFixture.backendKey) == [.string("more")])
            #expect(try await names(both).count == FeedGroup.perAppMax + 1)
            #expect(try await names(both, "?appId=other").count == FeedGroup.perAppMax)
            #expect(
                try await intake.send("DELETE", "/v1/feed-groups/more", key: IntakeFixture.backendKey).status == 200)
            #expect(try await names(IntakeFixture.backendKey) == [])
            try await intake.execute("delete from feed_groups")
        }
    }

    @Test("types: only these, in order; the cursor advances over the others, page by page; an unknown type is named")
    func types() async throws {
        try await RunningIntake.run { intake in
            try await intake.execute("delete from events")
            try await Self.tell(intake, "game", "purchase.revoked", "r1")
            try await Self.tell(intake, "game", "purchase.granted", "g", count: 10_000)
            try await Self.tell(intake, "game", "ownership.lost", "l1")
            try await Self.tell(intake, "other", "purchase.revoked", "x")
            try await Self.tell(intake, "game", "purchase.revoked", "r2")
            try await Self.tell(intake, "game", "purchase.granted", "last")
            // Any transaction on this server may hold the feed back for a moment.
            let hidden = "select count(*) from events where xid >= pg_snapshot_xmin(pg_current_snapshot())"
            let deadline = ContinuousClock.now + .seconds(20)
            while try await intake.count(hidden) > 0, ContinuousClock.now < deadline {
                try await Task.sleep(for: .milliseconds(20))
            }
            let first = try await Self.page(intake, "appId=game&types=purchase.revoked&limit=1")
            #expect(first.transactions == ["r1"])
            // One request looks through 10,000 events: none of these has the type, and the next request finds it.
            let passed = try await Self.page(intake, "appId=game&types=purchase.revoked&after=\(first.next)")
            #expect(passed.transactions == [] && passed.next != first.next)
            let found = try await Self.page(
                intake, "appId=game&types=purchase.revoked,ownership.lost&after=\(passed.next)")
            #expect(found.transactions == ["l1", "r2"])
            // The last event is of another type, and the cursor lies behind it.
            let end = try await Self.page(intake, "appId=game&types=purchase.revoked&after=\(found.next)")
            #expect(end.transactions == [] && end.next == found.next)
            #expect(try await Self.page(intake, "appId=game&after=\(found.next)").transactions == [])
            #expect(
                try await Self.page(intake, "appId=game&types=ownership.lost&after=\(passed.next)").transactions == [
                    "l1"
                ])
            // A full page ends at its last event, and passes over nothing that it does not show.
            let one = try await Self.page(
                intake, "appId=game&types=ownership.lost,purchase.revoked&limit=1&after=\(passed.next)")
            #expect(one.transactions == ["l1"])
            #expect(try await Self.page(intake, "appId=game&after=\(one.next)").transactions == ["r2", "last"])
            // A request that waits looks on from where it is.
            let waited = try await Self.page(intake, "appId=game&types=purchase.revoked&wait=20&after=\(first.next)")
            #expect(waited.transactions == ["r2"])
            #expect(
                try await Self.page(intake, "types=purchase.revoked&limit=1000&after=\(passed.next)").transactions == [
                    "x", "r2",
                ])

            // A group reads the same, and its lag counts events of all types.
            #expect(try await Self.put(intake, "shop", #"{"after":"\#(passed.next)"}"#).status == 200)
            let ofGroup = try await Self.page(
                intake, "group=shop&types=purchase.revoked", key: IntakeFixture.backendKey)
            #expect(ofGroup.transactions == ["r2"] && ofGroup.next == found.next)
            let lag = try await intake.get("/v1/feed-groups/shop", key: IntakeFixture.backendKey)
            #expect(lag["eventsBehind"] == .number("3") && lag["hasMore"] == .bool(false), "\(lag.text)")
            #expect(lag["oldestAt"] != nil)
            #expect(try await Self.put(intake, "start", #"{"after":"0-0"}"#).status == 200)
            let far = try await intake.get("/v1/feed-groups/start", key: IntakeFixture.backendKey)
            #expect(far["eventsBehind"] == .number("10000") && far["hasMore"] == .bool(true), "\(far.text)")
            #expect(try await Self.put(intake, "shop", #"{"after":"\#(found.next)"}"#).status == 200)
            let none = try await intake.get("/v1/feed-groups/shop", key: IntakeFixture.backendKey)
            #expect(none["eventsBehind"] == .number("0") && none["lagSeconds"] == .number("0"), "\(none.text)")
            #expect(none["oldestAt"] == nil)

            for types in ["", "purchase.granted,", "purchase.gone", "PURCHASE.GRANTED", "purchase.granted, order.paid"]
            {
                let words = types.replacing(" ", with: "%20")
                let answer = try await intake.get("/v1/events?types=\(words)", key: IntakeFixture.backendKey)
                #expect(answer.status == 400 && answer["field"] == .string("types"), "\(types): \(answer.text)")
                for type in EventType.allCases { #expect(answer.text.contains(type.rawValue), "\(type)") }
            }
            try await intake.execute("delete from feed_groups")
        }
    }
}
