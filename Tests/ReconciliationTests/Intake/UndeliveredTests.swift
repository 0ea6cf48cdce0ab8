import Encoding
import Foundation
import Ledger
import Postgres
import Purchases
import Settings
import TestServers
import Testing

/// Goal: a backend reads what an endpoint has yet to take, and the number of each event (B8). Method: real HTTP;
/// events, numbers and deliveries as dispatchers write them.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(3))) struct UndeliveredTests {
    private static let endpoint = EndpointFilter(
        key: EndpointKey(appID: "game", name: "shop"), types: ["purchase.granted"], environments: ["Production"])

    /// Runs with two endpoints of `game`, one of which gets purchases of Production alone.
    private static func run(_ body: (RunningIntake) async throws -> Void) async throws {
        let secret = Data(repeating: 7, count: 32).base64EncodedString()
        let configuration = try IntakeFixture.configuration(game: [
            "endpoints:",
            "  - {name: shop, url: 'https://backend.example.com', secret: whsec_\(secret), "
                + "types: [purchase.granted], environments: [Production]}",
            "  - {name: mail, url: 'https://mail.example.com', secret: whsec_\(secret)}",
        ])
        try await RunningIntake.run(configuration: configuration) { intake in
            for table in ["deliveries", "event_sequences", "event_users", "endpoints", "events"] {
                try await intake.execute("delete from \(table)")
            }
            try await body(intake)
        }
    }

    private static func tell(
        _ names: String..., user: String, type: String = "purchase.granted", environment: String = "Production",
        in intake: RunningIntake
    ) async throws {
        for name in names {
            try await intake.execute(
                """
                insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                values (gen_random_uuid(), 'game', '\(type)', '\(user)', '\(name)', gen_random_uuid(),
                  '{"goods": [], "environment": "\(environment)"}')
                """)
        }
    }

    private static func number(_ filters: [EndpointFilter], in intake: RunningIntake) async throws {
        let left = "select count(*) from events e, event_progress p where (e.xid, e.id) > (p.xid, p.id)"
        let deadline = ContinuousClock.now + .seconds(20)
        repeat {
            _ = try await intake.ledger.numberEvents(limit: 100, for: filters)
            guard ContinuousClock.now < deadline else { break }
        } while try await intake.count(left) > 0
    }

    /// `name number` of each event, in order.
    private static func read(_ query: String, of intake: RunningIntake) async throws -> [String] {
        let answer = try await intake.get("/v1/events?appId=game&\(query)", key: IntakeFixture.backendKey)
        guard case .array(let events)? = answer["events"] else {
            Issue.record("\(answer.text)")
            return []
        }
        return events.map { event in
            var words: [String] = []
            if case .string(let name)? = event["transactionId"] { words.append(name) }
            if case .number(let number)? = event["sequence"] { words.append(number) }
            return words.joined(separator: " ")
        }
    }

    @Test(
        "what an endpoint has yet to take: behind a failure, parked, not yet numbered, and nothing that it never gets"
    )
    func undelivered() async throws {
        try await Self.run { intake in
            let mail = EndpointFilter(key: EndpointKey(appID: "game", name: "mail"))
            _ = try await intake.ledger.run(Statements.registerEndpoints, [Self.endpoint.key, mail.key])
            try await Self.tell("a1", "a2", "a3", user: "ann", in: intake)
            try await Self.tell("b1", user: "bob", in: intake)
            try await Self.tell("s1", user: "bob", environment: "Sandbox", in: intake)
            try await Self.tell("r1", user: "bob", type: "purchase.revoked", in: intake)
            #expect(try await Self.read("limit=1", of: intake) == ["a1"], "nobody has numbered it")
            try await Self.number([Self.endpoint, mail], in: intake)
            #expect(try await Self.read("limit=10", of: intake) == ["a1 1", "a2 2", "a3 3", "b1 1", "s1 2", "r1 3"])
            #expect(try await Self.read("undelivered=shop", of: intake) == ["a1 1", "a2 2", "a3 3", "b1 1"])
            #expect(try await Self.read("undelivered=mail", of: intake).count == 6)

            // Ann's second event fails for good; Bob's only one is taken.
            for (name, outcome) in [
                ("a1", DeliveryResult.Outcome.delivered), ("b1", .delivered),
                ("a2", .failed(reason: "status 500", retryIn: nil)),
            ] {
                let due = try await intake.ledger.run(
                    Statements.dueEvents, .init(filter: Self.endpoint, limit: 10, except: []))
                let event = try #require(due.first { $0.event?.transactionID == name })
                let result = DeliveryResult(
                    endpoint: Self.endpoint.key.id, stream: event.stream, sequence: event.sequence,
                    eventID: event.event?.id, outcome: outcome)
                _ = try await intake.ledger.run(Statements.storeResults, [result])
            }
            #expect(try await Self.read("undelivered=shop", of: intake) == ["a2 2", "a3 3"])
            #expect(try await Self.read("undelivered=shop&limit=1", of: intake) == ["a2 2"])
            #expect(try await Self.read("undelivered=mail&types=purchase.revoked", of: intake) == ["r1 3"])
            try await Self.tell("b2", user: "bob", in: intake)
            try await Self.tell("s2", user: "bob", environment: "Sandbox", in: intake)
            #expect(try await Self.read("undelivered=shop&wait=5&types=purchase.granted", of: intake).first == "a2 2")
            try await Self.number([Self.endpoint, mail], in: intake)
            #expect(try await Self.read("undelivered=shop", of: intake) == ["a2 2", "a3 3", "b2 4"])
        }
    }

    @Test("an endpoint that the app does not have, and a group beside it, are refused by name")
    func refused() async throws {
        try await Self.run { intake in
            for (query, field) in [
                ("undelivered=nobody", "undelivered"), ("undelivered=", "undelivered"),
                ("undelivered=shop&group=g", "group"), ("undelivered=shop&after=x", "after"),
            ] {
                let answer = try await intake.get("/v1/events?appId=game&\(query)", key: IntakeFixture.backendKey)
                #expect(answer.status == 400 && answer["field"] == .string(field), "\(query): \(answer.text)")
            }
        }
    }
}
