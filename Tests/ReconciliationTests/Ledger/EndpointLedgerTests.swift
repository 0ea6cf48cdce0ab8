import Encoding
import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Goal: one dispatcher at a time has the turn of an endpoint, and a change of its health is told once (B8). Method:
/// two holders on real PostgreSQL, turns that end by themselves, and the events that are written.
@Suite(.timeLimit(.minutes(4))) struct EndpointLedgerTests {
    private static func take(
        _ lab: LedgerLab, _ filter: EndpointFilter, _ holder: UUID, for length: Duration = .seconds(60)
    ) async throws -> EndpointTurn? {
        let request = TurnRequest(endpoint: filter.key.id, holder: holder, length: length)
        return try await lab.ledger.run(Statements.takeTurn, request).first
    }

    private static func change(
        _ lab: LedgerLab, _ filter: EndpointFilter, _ holder: UUID, _ state: EndpointState, failures: Int,
        probes: Int = 0, since: Date? = nil, probeIn: Duration? = nil, reason: String? = nil, status: Int? = nil,
        error: String? = nil
    ) async throws -> Bool {
        let change = EndpointHealthChange(
            endpoint: filter.key.id, holder: holder, state: state, failures: failures, probes: probes,
            failingSince: since, probeIn: probeIn, reason: reason, lastStatus: status, lastError: error)
        return try await lab.ledger.run(Statements.storeHealth, change) == [true]
    }

    /// `type body`, in order.
    private static func told(_ lab: LedgerLab) async throws -> [String] {
        try await lab.texts(
            "select type || ' ' || (body - 'since')::text from events where type like 'endpoint.%' order by xid, id")
    }

    @Test("the id of an endpoint follows from app and name alone")
    func ids() {
        let shop = EndpointKey(appID: "game", name: "shop")
        #expect(shop.id == EndpointKey(appID: "game", name: "shop").id)
        for other in [EndpointKey(appID: "game", name: "shop2"), .init(appID: "games", name: "hop")] {
            #expect(shop.id != other.id)
        }
    }

    @Test("a turn has one holder, who renews it; it ends by itself or is given back, and only its holder gives it back")
    func turns() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint()
            let (one, two) = (UUID(), UUID())
            let fresh = EndpointTurn(state: .working, failures: 0, probes: 0, failingSince: nil, isOpen: true)
            #expect(try await Self.take(lab, shop, one) == fresh)
            #expect(try await Self.take(lab, shop, two) == nil)
            #expect(try await Self.take(lab, shop, one) == fresh, "renewed")
            let end = TurnRequest(endpoint: shop.key.id, holder: two, length: .zero)
            _ = try await lab.ledger.run(Statements.endTurn, end)
            #expect(try await Self.take(lab, shop, two) == nil, "not theirs to give back")
            _ = try await lab.ledger.run(Statements.endTurn, .init(endpoint: shop.key.id, holder: one, length: .zero))
            #expect(try await Self.take(lab, shop, two, for: .milliseconds(1)) == fresh)
            try await lab.until("the turn ends by itself") { try await Self.take(lab, shop, one) == fresh }
            #expect(try await Self.take(lab, shop, two) == nil)
            let unknown = EndpointFilter(key: EndpointKey(appID: "game", name: "nowhere"))
            #expect(try await Self.take(lab, unknown, one) == nil)
        }
    }

    @Test("of many who ask for a turn at once, one gets it")
    func exclusive() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            let shop = try await lab.endpoint()
            for _ in 0..<10 {
                let takers = try await withThrowingTaskGroup(of: UUID?.self) { group in
                    for _ in 0..<8 {
                        group.addTask {
                            let holder = UUID()
                            return try await Self.take(lab, shop, holder) == nil ? nil : holder
                        }
                    }
                    return try await group.reduce(into: [UUID]()) { takers, taker in
                        if let taker { takers.append(taker) }
                    }
                }
                #expect(takers.count == 1)
                let holder = try #require(takers.first)
                _ = try await lab.ledger.run(
                    Statements.endTurn, .init(endpoint: shop.key.id, holder: holder, length: .zero))
            }
        }
    }

    @Test("each new state is told once, and what is not new is not told; whoever lost the turn changes nothing")
    func health() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint()
            let (one, two) = (UUID(), UUID())
            _ = try await Self.take(lab, shop, one)
            #expect(try await Self.change(lab, shop, two, .failing, failures: 8, probeIn: .zero) == false)
            #expect(try await Self.change(lab, shop, one, .working, failures: 3, status: 500))
            #expect(try await Self.told(lab) == [])
            let since = Date(timeIntervalSince1970: 1_700_000_000.5)
            for _ in 0..<2 {
                #expect(
                    try await Self.change(
                        lab, shop, one, .failing, failures: 8, since: since, probeIn: .seconds(60), status: 500,
                        error: "status 500"))
            }
            let failing = #"endpoint.failing {"error": "status 500", "status": 500, "endpoint": "shop", "failures": 8}"#
            #expect(try await Self.told(lab) == [failing])
            // The holder keeps the turn for what is in flight; nobody else takes it before the probe is due.
            let turn = try #require(try await Self.take(lab, shop, one, for: .milliseconds(1)))
            #expect(turn.state == .failing && turn.failures == 8 && turn.failingSince == since && !turn.isOpen)
            try await Task.sleep(for: .milliseconds(20))
            #expect(try await Self.take(lab, shop, two) == nil)
            try await lab.run("update endpoints set probe_at = now()")
            #expect(try await Self.take(lab, shop, two)?.isOpen == true)
            #expect(try await Self.change(lab, shop, one, .working, failures: 0) == false, "the turn is lost")
            #expect(try await Self.change(lab, shop, two, .working, failures: 0, status: 200))
            #expect(try await Self.told(lab) == [failing, #"endpoint.recovered {"endpoint": "shop"}"#])
            #expect(
                try await lab.texts("select distinct body ->> 'since' from events where type like 'endpoint.%'")
                    == [since.rfc3339])
            // The next time is told again.
            #expect(
                try await Self.change(
                    lab, shop, two, .failing, failures: 8, since: since + 60, probeIn: .zero))
            #expect(
                try await Self.change(
                    lab, shop, two, .suspended, failures: 9, probes: 1, since: since + 60, reason: "exhausted"))
            #expect(
                try await Self.told(lab).dropFirst(2) == [
                    #"endpoint.failing {"endpoint": "shop", "failures": 8}"#,
                    #"endpoint.exhausted {"reason": "exhausted", "endpoint": "shop", "failures": 9}"#,
                ])
            let events = try await lab.texts(
                "select distinct concat_ws(' ', user_id, transaction_id, receipt_id) from events")
            #expect(events == [" \(shop.key.id.text) \(shop.key.id.text)"])
        }
    }

    @Test("a person resumes a suspended endpoint: one event is tried, and the 30 days begin again; audited")
    func resume() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint()
            let holder = UUID()
            _ = try await Self.take(lab, shop, holder)
            func resume() async throws -> [Bool] {
                _ = try await lab.ledger.run(Statements.resumeEndpoint, (endpoint: shop.key.id, actor: "ann"))
            }
            #expect(try await resume() == [false], "it works")
            let since = Date(timeIntervalSince1970: 1_700_000_000)
            #expect(
                try await Self.change(
                    lab, shop, holder, .suspended, failures: 1, since: since, reason: "gone", status: 410))
            _ = try await lab.ledger.run(
                Statements.endTurn, .init(endpoint: shop.key.id, holder: holder, length: .zero))
            #expect(try await Self.take(lab, shop, holder) == nil)
            let before = try #require(try await lab.ledger.run(Statements.endpointStandings, "game").first)
            #expect(before.state == .suspended && before.reason == "gone" && before.lastStatus == 410)
            #expect(try await resume() == [true])
            let after = try #require(try await lab.ledger.run(Statements.endpointStandings, nil).first)
            #expect(after.state == .failing && after.reason == "" && after.isDefined && !after.isServed)
            #expect(try #require(after.failingSince) > since)
            #expect(try await Self.take(lab, shop, holder)?.isOpen == true)
            #expect(
                try await lab.ledger.run(Statements.resumeEndpoint, (endpoint: UUID(), actor: "ann")).isEmpty)
            #expect(
                try await lab.texts("select actor || ' ' || action || ' ' || details from audits") == [
                    #"ann endpoints.resume {"app": "game", "state": "suspended", "endpoint": "shop"}"#
                ])
        }
    }

    @Test("an endpoint is rung where something is due, nobody has the turn, and something may be sent")
    func dueEndpoints() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint()
            let holder = UUID()
            func due() async throws -> [UUID] { try await lab.ledger.run(Statements.dueEndpoints, 10) }
            #expect(try await due() == [])
            try await lab.tell("a")
            #expect(try await lab.number(for: [shop]) == [shop.key.id])
            #expect(try await due() == [shop.key.id])
            _ = try await Self.take(lab, shop, holder)
            #expect(try await due() == [])
            try await lab.tell("b", user: "u2")
            #expect(try await lab.number(for: [shop]) == [], "its holder looks")
            #expect(try await Self.change(lab, shop, holder, .failing, failures: 8, since: .now, probeIn: .seconds(60)))
            _ = try await lab.ledger.run(
                Statements.endTurn, .init(endpoint: shop.key.id, holder: holder, length: .zero))
            #expect(try await due() == [])
            try await lab.number(for: [shop])
            try await lab.run("update endpoints set probe_at = now()")
            #expect(try await due() == [shop.key.id])
            // Of a removed endpoint nobody is told.
            try await lab.run("update endpoints set seen_at = now() - interval '25 hours'")
            #expect(try await due() == [])
        }
    }
}
