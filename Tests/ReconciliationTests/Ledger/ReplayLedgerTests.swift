import Foundation
import Postgres
import Purchases
import TestRandom
import Testing

@testable import Ledger

/// Goal: a replay sends exactly the events that it names, in the order of the feed, moves on only by what the endpoint
/// took, and never brings an event before its turn (B8). Method: events by SQL, the real numbering, and results as
/// dispatchers store them.
@Suite(.timeLimit(.minutes(4))) struct ReplayLedgerTests {
    private static func question(
        _ filter: EndpointFilter, _ change: (inout ReplayQuestion) -> Void = { _ in }
    ) -> ReplayQuestion {
        var question = ReplayQuestion(filter)
        change(&question)
        return question
    }

    /// Waits until the feed shows everything: any transaction on this server may hold it back for a moment.
    private static func settle(_ lab: LedgerLab) async throws {
        try await lab.until("the feed shows everything") {
            try await lab.number("select count(*) from events where xid >= pg_snapshot_xmin(pg_current_snapshot())")
                == 0
        }
    }

    private static func count(_ question: ReplayQuestion, _ lab: LedgerLab) async throws -> ReplaySpan? {
        try await settle(lab)
        return try await lab.ledger.run(Statements.countReplay, question).first
    }

    private static func begin(_ question: ReplayQuestion, _ lab: LedgerLab) async throws -> UUID? {
        let span = try #require(try await count(question, lab))
        return try await lab.ledger.run(Statements.requestReplay, .init(question, span, actor: "ann")).first
    }

    private static func read(_ id: UUID, _ lab: LedgerLab) async throws -> EventReplay {
        try #require(try await lab.ledger.run(Statements.readReplay, (id: id, apps: ["game"])).first)
    }

    private static func store(_ progress: ReplayProgress, _ lab: LedgerLab) async throws -> Bool {
        try await lab.ledger.run(Statements.storeReplay, progress) == [true]
    }

    /// Sends everything of the one replay that is due, and returns the names of its events.
    private static func send(
        _ filter: EndpointFilter, pages limit: Int = 100, _ lab: LedgerLab
    ) async throws -> [String] {
        var names: [String] = []
        while let page = try await lab.ledger.replayPage(of: filter, limit: limit) {
            #expect(page.events.count <= limit)
            names += page.events.map(\.event.transactionID)
            let progress = ReplayProgress(
                replay: page.replay, place: page.end, sent: page.events.count, isDone: page.isLast)
            #expect(try await store(progress, lab))
            if page.isLast { return names }
        }
        return names
    }

    private static func deliver(_ filter: EndpointFilter, _ lab: LedgerLab) async throws {
        while let event = try await lab.due(filter, limit: 1).first {
            #expect(try await lab.store(.delivered, event, at: filter))
        }
    }

    @Test("by type, user, id and the endpoint's own filter: what is counted is what is sent, in the order of the feed")
    func filters() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.tell("a", "b", "c")
            try await lab.tell("x", "y", user: "u2", type: .ownershipLost, environment: Transaction.sandbox)
            try await lab.tell("d", environment: Transaction.production)
            try await lab.tell("foreign", app: "other")
            // What is older than the endpoint comes by a replay alone.
            try await Self.settle(lab)
            let all = try await lab.endpoint("all")
            let sandbox = try await lab.endpoint("sandbox", environments: [Transaction.sandbox])
            let lost = try await lab.endpoint("lost", types: [EventType.ownershipLost.rawValue])
            let ids = try await lab.feed().filter { ["b", "y"].contains($0.transactionID) }.map(\.id)
            for (question, expected) in [
                (Self.question(all), ["a", "b", "c", "x", "y", "d"]),
                (Self.question(all) { $0.types = [.ownershipLost, .orderPaid] }, ["x", "y"]),
                (Self.question(all) { $0.user = "u1" }, ["a", "b", "c", "d"]),
                (Self.question(all) { $0.ids = ids + [UUID()] }, ["b", "y"]),
                (Self.question(all) { ($0.ids, $0.user) = (ids, "u2") }, ["y"]),
                (Self.question(all) { $0.user = "nobody" }, []),
                (Self.question(sandbox), ["a", "b", "c", "x", "y"]), (Self.question(lost), ["x", "y"]),
                (Self.question(lost) { $0.user = "u1" }, []),
            ] as [(ReplayQuestion, [String])] {
                let span = try #require(try await Self.count(question, lab))
                #expect(span.events == expected.count && span.isCounted, "\(expected)")
                let id = try #require(try await Self.begin(question, lab))
                for limit in [100, 2] {
                    try await lab.run("update replays set due_at = now(), ended_at = null, done_xid = '0', done_id = 0")
                    #expect(try await Self.send(question.endpoint, pages: limit, lab) == expected, "pages of \(limit)")
                }
                let replay = try await Self.read(id, lab)
                #expect(replay.state == .done && replay.sent == 2 * expected.count && replay.nextAt == nil)
                try await lab.run("delete from replays")
            }
        }
    }

    @Test("by time: the span that is read holds every event of the time, though times go back by minutes")
    func times() async throws {
        var random = SeededRandom(announcing: "times of replays")
        let seed = random.seed
        try await LedgerLab.with(endsSound: false) { lab in
            let shop = try await lab.endpoint()
            let start = Date(timeIntervalSince1970: 1_780_000_000)
            var time = start
            let event = Statement<Date, Void>(
                "test.tell_at",
                """
                insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body, at)
                values (gen_random_uuid(), 'game', 'subscription.renewed', 'u1', gen_random_uuid()::text,
                  gen_random_uuid(), '{}', $1)
                """, bind: { [.date($0)] })
            var times: [Date] = []
            for _ in 0..<200 {
                time += Double.random(in: 0..<600, using: &random)
                // A transaction that has run for nine minutes.
                times.append(time - (Bool.random(using: &random) ? Double.random(in: 0..<540, using: &random) : 0))
                try await lab.database.run(event, times[times.count - 1])
            }
            let length = time.timeIntervalSince(start)
            for _ in 0..<50 {
                let from = start + Double.random(in: -0.2..<1.2, using: &random) * length
                let to = from + Double.random(in: 0..<0.5, using: &random) * length
                for (from, to) in [(from, to), (from, nil), (nil, to)] as [(Date?, Date?)] {
                    let expected = times.count { (from ?? .distantPast) <= $0 && $0 < (to ?? .distantFuture) }
                    let span = try await Self.count(Self.question(shop) { ($0.from, $0.to) = (from, to) }, lab)
                    #expect(
                        span?.events == expected, "seed \(seed), \(String(describing: from)) \(String(describing: to))")
                }
            }
        }
    }

    @Test("an event that the endpoint did not take stops its replay, which waits and goes on with the same event")
    func failure() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.tell("a", "b", "c")
            try await Self.settle(lab)
            let shop = try await lab.endpoint()
            let id = try #require(try await Self.begin(Self.question(shop), lab))
            let page = try #require(try await lab.ledger.replayPage(of: shop, limit: 2))
            #expect(page.events.map(\.event.transactionID) == ["a", "b"] && !page.isLast && page.attempts == 0)
            let first = page.events[0].place
            func fail(_ sent: Int, _ place: Statements.EventPlace) async throws -> Bool {
                try await Self.store(
                    .init(replay: id, place: place, sent: sent, failure: (reason: "status 500", retryIn: .seconds(60))),
                    lab)
            }
            #expect(try await fail(1, first))
            var replay = try await Self.read(id, lab)
            #expect(replay.sent == 1 && replay.attempts == 1 && replay.lastError == "status 500")
            let next = try #require(replay.nextAt)
            #expect(next > Date().addingTimeInterval(30))
            #expect(try await lab.ledger.replayPage(of: shop, limit: 2) == nil, "it waits")
            #expect(try await fail(0, first))
            replay = try await Self.read(id, lab)
            #expect(replay.attempts == 2 && replay.state == .running)
            #expect(try await fail(0, page.start) == false, "a replay never goes back")
            try await lab.run("update replays set due_at = now()")
            let again = try #require(try await lab.ledger.replayPage(of: shop, limit: 2))
            #expect(again.events.map(\.event.transactionID) == ["b", "c"] && again.attempts == 2)
            // Another event than before: its first failure.
            #expect(try await fail(1, again.events[0].place))
            replay = try await Self.read(id, lab)
            #expect(replay.attempts == 1 && replay.sent == 2)
            try await lab.run("update replays set due_at = now()")
            #expect(try await Self.send(shop, lab) == ["c"])
            replay = try await Self.read(id, lab)
            #expect(replay.state == .done && replay.attempts == 0 && replay.lastError == nil && replay.endedAt != nil)
            #expect(try await Self.store(.init(replay: id, place: again.end, sent: 1), lab) == false, "it has ended")
        }
    }

    @Test("what the endpoint has yet to get comes by itself: no replay brings it before its turn, or twice")
    func freshEvents() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.tell("old", user: "u2")
            try await Self.settle(lab)
            let shop = try await lab.endpoint()
            try await lab.tell("a", "b")
            try await lab.number(for: [shop])
            try await Self.deliver(shop, lab)
            try await lab.tell("c", "d")
            try await lab.tell("x", user: "u2")
            try await lab.number(for: [shop])
            try await lab.tell("unnumbered", user: "u3")
            let id = try #require(try await Self.begin(Self.question(shop), lab))
            // u1 waits with c and d, u2 with x alone; the events of before the registration are nobody's turn.
            let page = try #require(try await lab.ledger.replayPage(of: shop, limit: 100))
            #expect(page.events.map(\.event.transactionID) == ["old", "a", "b"] && page.isLast)
            let event = try #require(try await lab.due(shop).first { $0.event?.userID == "u1" })
            #expect(try await lab.store(.failed(reason: "status 400", retryIn: nil), event, at: shop))
            #expect(
                try await lab.ledger.replayPage(of: shop, limit: 100)?.events.map(\.event.transactionID)
                    == ["old", "a", "b"], "also while it is parked")
            try await lab.number(for: [shop])
            try await lab.run(
                "update deliveries set due_at = now(), parked_at = null, failing_since = null, "
                    + "failed_sequence = null where parked_at is not null")
            try await Self.deliver(shop, lab)
            #expect(try await Self.send(shop, lab) == ["old", "a", "b", "c", "d", "x", "unnumbered"])
            #expect(try await Self.read(id, lab).state == .done)
            #expect(try await lab.number("select count(*) from deliveries where done_sequence < last_sequence") == 0)
        }
    }

    @Test("an endpoint is rung for a replay where it works and nobody sends to it")
    func rings() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.tell("a")
            let shop = try await lab.endpoint()
            func rung() async throws -> Bool {
                try await lab.ledger.run(Statements.dueEndpoints, 10).contains(shop.key.id)
            }
            #expect(try await !rung())
            let id = try #require(try await Self.begin(Self.question(shop), lab))
            #expect(try await rung())
            try await lab.run("update endpoints set state = 'failing', probe_at = now()")
            #expect(try await !rung(), "no probe for a replay")
            try await lab.run("update endpoints set state = 'working', probe_at = null")
            let turn = TurnRequest(endpoint: shop.key.id, holder: UUID(), length: .seconds(60))
            _ = try await lab.ledger.run(Statements.takeTurn, turn)
            #expect(try await !rung())
            _ = try await lab.ledger.run(Statements.endTurn, turn)
            try await lab.run("update replays set due_at = now() + interval '1 minute'")
            #expect(try await !rung())
            try await lab.run("update replays set due_at = now()")
            #expect(try await lab.ledger.run(Statements.cancelReplay, (id: id, apps: ["game"], actor: "ann")) == [true])
            #expect(try await !rung())
        }
    }

    @Test(
        "a question that runs already begins nothing; the number of running replays is bounded; each can be cancelled")
    func requests() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.tell("a")
            let shop = try await lab.endpoint()
            let id = try #require(try await Self.begin(Self.question(shop), lab))
            #expect(try await Self.begin(Self.question(shop), lab) == id)
            #expect(try await Self.begin(Self.question(shop) { $0.user = "u1" }, lab) != id)
            for number in 2..<EventReplay.runningMax {
                let more = try await Self.begin(Self.question(shop) { $0.user = "u\(number)" }, lab)
                #expect(more != nil && more != id)
            }
            #expect(try await Self.begin(Self.question(shop) { $0.user = "one more" }, lab) == nil)
            #expect(try await Self.begin(Self.question(shop), lab) == id, "the same may be asked again")
            let other = try await lab.endpoint("other")
            #expect(try await Self.begin(Self.question(other), lab) != nil, "the bound is the endpoint's")
            func cancel(_ apps: [String]?) async throws -> [Bool] {
                try await lab.ledger.run(Statements.cancelReplay, (id: id, apps: apps, actor: "bob"))
            }
            #expect(try await cancel(["other"]) == [])
            #expect(try await cancel([]) == [])
            #expect(try await cancel(["game"]) == [true])
            #expect(try await cancel(nil) == [false], "it had ended")
            let replay = try await Self.read(id, lab)
            #expect(replay.state == .cancelled && replay.cancelledBy == "bob" && replay.requestedBy == "ann")
            #expect(try await lab.ledger.run(Statements.readReplay, (id: id, apps: ["other"])).isEmpty)
            let listed = try await lab.ledger.run(Statements.listReplays, (app: "game", limit: 5))
            #expect(listed.count == 5 && listed.first?.endpoint == "other")
            #expect(try await lab.ledger.run(Statements.listReplays, (app: "nothing", limit: 5)).isEmpty)
            let unknown = EndpointFilter(key: EndpointKey(appID: "game", name: "nowhere"))
            #expect(try await Self.count(Self.question(unknown), lab) == nil)
            try await lab.run("update endpoints set seen_at = now() - interval '2 days'")
            #expect(try await Self.count(Self.question(shop), lab) == nil, "no dispatcher has it any more")
        }
    }

    @Test("an app without events, and one with more than are counted")
    func bounds() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let shop = try await lab.endpoint()
            for question in [Self.question(shop), Self.question(shop) { ($0.from, $0.to) = (Date(), Date() + 60) }] {
                let none = try #require(try await Self.count(question, lab))
                #expect(none.events == 0 && none.isCounted)
            }
            try await lab.run(
                """
                insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                select gen_random_uuid(), 'game', 'ownership.lost', 'u' || n % 1000, n::text, gen_random_uuid(), '{}'
                from generate_series(1, \(ReplayQuestion.countedMax + 10)) n
                """)
            let all = try #require(try await Self.count(Self.question(shop), lab))
            #expect(all.events == ReplayQuestion.countedMax + 1 && !all.isCounted)
            // Its one event lies far behind those that are looked through for one page.
            let id = try #require(try await Self.begin(Self.question(shop) { $0.ids = [UUID()] }, lab))
            #expect(try await Self.send(shop, lab) == [])
            #expect(try await Self.read(id, lab).state == .done)
        }
    }

    @Test("the erasure of a user ends the replays of the user's events, and their rows lose the id")
    func erasure() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.tell("a", user: "ann")
            try await lab.tell("b", user: "bob")
            let shop = try await lab.endpoint()
            let id = try #require(try await Self.begin(Self.question(shop) { $0.user = "ann" }, lab))
            let other = try #require(try await Self.begin(Self.question(shop) { $0.user = "bob" }, lab))
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "eve")
            _ = try await erasure.erase(erasure.name(of: "ann", app: "game"))
            let replay = try await Self.read(id, lab)
            #expect(replay.state == .cancelled && replay.user?.hasPrefix("erased_") == true)
            #expect(try await Self.read(other, lab).state == .running)
            let again = try #require(try await Self.count(Self.question(shop) { $0.user = "ann" }, lab))
            #expect(again.events == 0)
        }
    }
}
