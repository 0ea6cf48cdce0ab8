import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger

/// Goal: an endpoint gets each event of its filter once, in order for each user; what fails delays its own user alone,
/// and is lost in no case (B8). Method: events by SQL, the real numbering, and results as dispatchers store them.
@Suite(.timeLimit(.minutes(4))) struct DeliveryLedgerTests {
    private static let failure = DeliveryResult.Outcome.failed(reason: "status 500", retryIn: .seconds(60))
    private static let parking = DeliveryResult.Outcome.failed(reason: "status 400", retryIn: nil)

    @Test("one event of a user at a time, in order, each with the one before; other users go on beside")
    func order() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint()
            try await lab.tell("a", "b", "c")
            try await lab.tell("x", user: "u2")
            try await lab.number(for: [shop])
            #expect(try await lab.dueNames(shop) == ["a", "x"])
            var previous: UUID?
            for (number, name) in ["a", "b", "c"].enumerated() {
                let event = try #require(try await lab.due(shop).first { $0.event?.userID == "u1" })
                #expect(event.event?.transactionID == name && event.sequence == number + 1)
                #expect(event.previousID == previous && event.attempts == 0 && event.failingSince == nil)
                #expect(try await lab.store(.delivered, event, at: shop))
                #expect(try await lab.store(.delivered, event, at: shop) == false, "once")
                previous = event.event?.id
            }
            #expect(try await lab.dueNames(shop) == ["x"])
            let other = try await lab.onlyDue(shop)
            #expect(try await lab.due(shop, except: [other.stream]).isEmpty)
            #expect(try await lab.due(shop, limit: 0).isEmpty)
            // What comes later has the event before as its previous one.
            try await lab.tell("d")
            try await lab.number(for: [shop])
            #expect(try await lab.due(shop).first { $0.event?.userID == "u1" }?.previousID == previous)
        }
    }

    @Test("an event is as the feed shows it, with the same cursor; the number stands beside it")
    func sameEvent() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint()
            try await lab.tell("a", environment: Transaction.sandbox)
            try await lab.number(for: [shop])
            let due = try await lab.onlyDue(shop)
            var shown = try #require(try await lab.feed().first)
            #expect(shown.sequence == due.sequence && due.event?.sequence == nil)
            shown.sequence = nil
            #expect(due.event == shown)
        }
    }

    @Test("filters: by type and by environment, which an event without one passes; another app's endpoint gets nothing")
    func filters() async throws {
        try await LedgerLab.with { lab in
            let all = try await lab.endpoint("all")
            let orders = try await lab.endpoint("orders", types: ["order.paid", "ownership.lost"])
            let production = try await lab.endpoint("production", environments: [Transaction.production])
            let both = try await lab.endpoint("both", types: ["order.paid"], environments: [Transaction.sandbox])
            let none = try await lab.endpoint("none", types: [])
            let other = try await lab.endpoint("all", app: "other")
            let filters = [all, orders, production, both, none, other]
            try await lab.tell("a", user: "ua", environment: Transaction.production)
            try await lab.tell("b", user: "ub", environment: Transaction.sandbox)
            try await lab.tell("c", user: "uc", type: .orderPaid)
            try await lab.tell("d", user: "ud", type: .ownershipLost, environment: Transaction.sandbox)
            try await lab.tell("e", user: "ue", app: "other")
            let rung = try await lab.number(for: filters)
            #expect(rung == Set(filters.map(\.key.id)).subtracting([none.key.id]))
            #expect(try await lab.dueNames(all) == ["a", "b", "c", "d"])
            #expect(try await lab.dueNames(orders) == ["c", "d"])
            #expect(try await lab.dueNames(production) == ["a", "c"])
            #expect(try await lab.dueNames(both) == ["c"])
            #expect(try await lab.dueNames(none) == [])
            #expect(try await lab.dueNames(other) == ["e"])
        }
    }

    @Test("events between that the filter refuses are passed over, and leave no gap in what the endpoint sees")
    func gaps() async throws {
        try await LedgerLab.with { lab in
            let orders = try await lab.endpoint(types: ["order.paid"])
            try await lab.tell("a", "b")
            try await lab.tell("c", type: .orderPaid)
            try await lab.tell("d")
            try await lab.tell("e", type: .orderPaid)
            try await lab.tell("f")
            try await lab.number(for: [orders])
            let first = try await lab.onlyDue(orders)
            #expect(first.sequence == 3 && first.previousID == nil)
            #expect(try await lab.store(.delivered, first, at: orders))
            let second = try await lab.onlyDue(orders)
            #expect(second.event?.transactionID == "e" && second.previousID == first.event?.id)
            #expect(try await lab.store(.delivered, second, at: orders))
            #expect(try await lab.due(orders).isEmpty)
            // The configuration changed while an event waited: nothing passes, and nothing stands still.
            try await lab.tell("g", type: .orderPaid)
            try await lab.number(for: [orders])
            let closed = EndpointFilter(key: orders.key, types: ["order.closed"])
            let nothing = try await lab.onlyDue(closed)
            #expect(nothing.event == nil && nothing.sequence == 7)
            #expect(try await lab.store(.passed, nothing, at: closed))
            #expect(try await lab.due(orders).isEmpty)
            try await lab.tell("h", type: .orderPaid)
            try await lab.number(for: [orders])
            #expect(try await lab.onlyDue(orders).previousID == second.event?.id)
        }
    }

    @Test("a new endpoint gets what is written from its registration on, also where nobody numbered for long")
    func newEndpoint() async throws {
        try await LedgerLab.with { lab in
            try await lab.tell("before")
            let hidden = "select count(*) from events where xid >= pg_snapshot_xmin(pg_current_snapshot())"
            try await lab.until("the feed shows it") { try await lab.number(hidden) == 0 }
            let shop = try await lab.endpoint()
            _ = try await lab.endpoint()
            try await lab.tell("after")
            try await lab.number(for: [shop])
            let event = try await lab.onlyDue(shop)
            #expect(event.event?.transactionID == "after" && event.sequence == 2)
        }
    }

    @Test("what fails waits with its user alone, counts its attempts, and is parked where nothing helps")
    func failures() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint()
            try await lab.tell("a", "b")
            try await lab.tell("x", user: "u2")
            try await lab.number(for: [shop])
            let event = try #require(try await lab.due(shop).first { $0.event?.transactionID == "a" })
            #expect(try await lab.store(Self.failure, event, at: shop))
            #expect(try await lab.dueNames(shop) == ["x"])
            try await lab.run("update deliveries set due_at = now() where failing_since is not null")
            let again = try #require(try await lab.due(shop).first { $0.event?.transactionID == "a" })
            #expect(again.attempts == 1)
            let since = try #require(again.failingSince)
            #expect(try await lab.store(Self.parking, again, at: shop))
            #expect(try await lab.dueNames(shop) == ["x"])
            let found = try await lab.ledger.run(Statements.undeliveredEvents, (endpoint: shop.key.id, limit: 10))
            let parked = try #require(found.first)
            #expect(found.count == 1 && parked.eventID == event.event?.id && parked.userID == "u1")
            #expect(parked.attempts == 2 && parked.failingSince == since && parked.reason == "status 400")
            #expect(parked.parkedAt != nil && parked.dueAt == nil && parked.eventsBehind == 1)
            // A late failure of a turn that was lost makes nothing due, and a late success is a success.
            #expect(try await lab.store(Self.failure, again, at: shop) == false)
            #expect(try await lab.dueNames(shop) == ["x"])
            let standing = try #require(try await lab.ledger.run(Statements.endpointStandings, "game").first)
            #expect(standing.waitingStreams == 2 && standing.waitingEvents == 3 && standing.parkedStreams == 1)
            #expect(try await lab.store(.delivered, event, at: shop))
            #expect(try await lab.dueNames(shop) == ["b", "x"])
            #expect(try await lab.store(Self.failure, event, at: shop) == false, "the stream is farther")
            #expect(try await lab.dueNames(shop) == ["b", "x"])
        }
    }

    @Test("what was parked is tried again one, by user or all, or given up; each is audited")
    func commands() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint()
            for user in ["u1", "u2", "u3", "u4"] { try await lab.tell("\(user)-a", "\(user)-b", user: user) }
            try await lab.number(for: [shop])
            var ids: [String: UUID] = [:]
            for event in try await lab.due(shop) {
                ids[try #require(event.event?.userID)] = event.event?.id
                let outcome = event.event?.userID == "u4" ? Self.failure : Self.parking
                #expect(try await lab.store(outcome, event, at: shop))
            }
            func redrive(_ choice: Statements.EventRedrive.Choice) async throws -> [Int] {
                try await lab.ledger.run(Statements.redriveEvents, .init(endpoint: shop.key.id, choice, actor: "ann"))
            }
            func skip(_ event: UUID) async throws -> [Bool] {
                try await lab.ledger.run(
                    Statements.skipEvent, (endpoint: shop.key.id, event: event, reason: "lost", actor: "ann"))
            }
            #expect(try await lab.due(shop).isEmpty)
            #expect(try await redrive(.event(UUID())) == [0])
            #expect(try await redrive(.user("nobody")) == [0])
            #expect(try await redrive(.event(#require(ids["u1"]))) == [1])
            #expect(try await lab.dueNames(shop) == ["u1-a"])
            let again = try await lab.onlyDue(shop)
            #expect(again.attempts == 0 && again.failingSince == nil)
            #expect(try await redrive(.user("u2")) == [1])
            #expect(try await lab.dueNames(shop) == ["u1-a", "u2-a"])
            // Everything that is parked: what is tried again by itself keeps its time.
            #expect(try await redrive(.parked) == [1])
            #expect(try await lab.dueNames(shop) == ["u1-a", "u2-a", "u3-a"])
            #expect(try await redrive(.parked) == [0])
            #expect(try await skip(UUID()) == [false])
            #expect(try await skip(#require(ids["u3"])) == [false], "it has not failed since")
            #expect(try await skip(#require(ids["u4"])) == [true])
            #expect(try await skip(#require(ids["u4"])) == [false])
            #expect(try await lab.dueNames(shop) == ["u1-a", "u2-a", "u3-a", "u4-b"])
            let skipped = try #require(try await lab.due(shop).first { $0.event?.userID == "u4" })
            #expect(skipped.previousID == nil && skipped.sequence == 2)
            let audits = try await lab.texts(
                "select actor || ' ' || action || ' ' || (details ->> 'endpoint') from audits order by id")
            #expect(
                audits == Array(repeating: "ann endpoints.redrive shop", count: 3) + ["ann endpoints.skip shop"])
            #expect(
                try await lab.texts("select details ->> 'reason' from audits where action = 'endpoints.skip'")
                    == ["lost"])
        }
    }

    @Test("a batch stores each result for itself, in the order of the question")
    func batch() async throws {
        try await LedgerLab.with { lab in
            let (shop, mail) = (try await lab.endpoint("shop"), try await lab.endpoint("mail"))
            for user in ["u1", "u2", "u3"] { try await lab.tell(user, user: user) }
            try await lab.number(for: [shop, mail])
            let events = try await lab.due(shop) + lab.due(mail)
            #expect(events.count == 6)
            let outcomes: [DeliveryResult.Outcome] = [
                .delivered, Self.failure, .passed, Self.parking, .delivered, .delivered,
            ]
            var results = zip(events, outcomes).enumerated().map { index, pair in
                DeliveryResult(
                    endpoint: index < 3 ? shop.key.id : mail.key.id, stream: pair.0.stream, sequence: pair.0.sequence,
                    eventID: pair.0.event?.id, outcome: pair.1)
            }
            // A number that the stream does not have.
            results[4].sequence = 2
            results.reverse()
            let stored = try await lab.ledger.run(Statements.storeResults, results)
            #expect(stored.map(\.stream) == results.map(\.stream))
            #expect(stored.map(\.isStored) == [true, false, true, true, true, true])
            #expect(try await lab.due(shop).isEmpty)
            #expect(try await lab.due(mail).map(\.stream) == [results[1].stream])
            #expect(try await lab.ledger.run(Statements.storeResults, []).isEmpty)
        }
    }

    @Test("the cursor says up to where everything was delivered: it waits for what is pending, and never goes back")
    func cursor() async throws {
        try await LedgerLab.with { lab in
            let orders = try await lab.endpoint(types: ["order.paid"])
            #expect(try await lab.cursor(orders) == .start)
            try await lab.tell("o1", user: "u1", type: .orderPaid)
            try await lab.tell("n1", user: "u1")
            try await lab.tell("o2", user: "u2", type: .orderPaid)
            try await lab.tell("n2", user: "u2")
            try await lab.tell("elsewhere", app: "other")
            #expect(try await lab.cursor(orders) == .start, "nothing has a number")
            try await lab.number(for: [orders])
            let feed = try await lab.feed()
            #expect(feed.map(\.transactionID) == ["o1", "n1", "o2", "n2"])
            #expect(try await lab.cursor(orders) == .start)
            let due = try await lab.due(orders)
            let (first, second) = (
                try #require(due.first { $0.event?.userID == "u1" }),
                try #require(due.first { $0.event?.userID == "u2" })
            )
            // The later one first: the earlier one is still in the way.
            #expect(try await lab.store(.delivered, second, at: orders))
            #expect(try await lab.cursor(orders) == .start)
            #expect(try await lab.store(Self.parking, first, at: orders))
            #expect(try await lab.cursor(orders) == .start)
            #expect(try await lab.store(.delivered, first, at: orders))
            #expect(
                try await lab.cursor(orders) == feed[3].cursor, "the newest of the app, also what the filter refuses")
            // A receiver that reads on from there misses nothing.
            try await lab.tell("o3", user: "u1", type: .orderPaid)
            try await lab.tell("o4", user: "u1", type: .orderPaid)
            #expect(try await lab.cursor(orders) == feed[3].cursor)
            try await lab.number(for: [orders])
            #expect(try await lab.cursor(orders) == feed[3].cursor)
            #expect(try await lab.store(.delivered, lab.onlyDue(orders), at: orders))
            let after = try await lab.ledger.run(
                Statements.readEvents, .init(apps: ["game"], after: lab.cursor(orders), limit: 10))
            #expect(after.map(\.transactionID) == ["o4"])
            #expect(try await lab.store(.delivered, lab.onlyDue(orders), at: orders))
            #expect(try await lab.cursor(orders) == after[0].cursor)
        }
    }

    @Test("numbering, due events, results and cursor read few rows beside 200,000 events, whatever the planner knows")
    func bounded() async throws {
        try await LedgerLab.with(connections: 1, endsSound: false, isAlone: true) { lab in
            for table in ["events", "event_users", "event_sequences", "deliveries", "endpoints"] {
                try await lab.run("alter table \(table) set (autovacuum_enabled = false)")
            }
            let shop = try await lab.endpoint()
            func look(_ what: Comment, events expected: Int = 200) async throws {
                // In its first run a plan also reads the catalogue.
                for isCounted in [false, true] {
                    var events = 0
                    let numbered = try await lab.touched {
                        events = try await lab.ledger.numberEvents(limit: 200, for: [shop])?.events ?? 0
                    }
                    var due: [DueEvent] = []
                    let looked = try await lab.touched { due = try await lab.due(shop, limit: 256) }
                    let stored = try await lab.touched {
                        _ = try await lab.ledger.run(
                            Statements.storeResults,
                            due.map {
                                DeliveryResult(
                                    endpoint: shop.key.id, stream: $0.stream, sequence: $0.sequence,
                                    eventID: $0.event?.id, outcome: .delivered)
                            })
                    }
                    let placed = try await lab.touched {
                        _ = try await lab.cursor(shop)
                        _ = try await lab.ledger.run(Statements.dueEndpoints, 10)
                    }
                    guard isCounted else { continue }
                    print(
                        "delivery: \(what): \(numbered), \(looked), \(stored), \(placed) blocks for \(events), \(due.count)"
                    )
                    #expect(events == expected && due.count == (expected == 0 ? 0 : 256), what)
                    // To look costs some 2,100 blocks for 256 events, 2,200 more if all deliveries are read and sorted.
                    #expect(looked <= 3000, what)
                    #expect(numbered <= 6500 && stored <= 8000 && placed <= 200, what)
                }
            }
            try await look("empty tables", events: 0)
            try await lab.run(
                """
                insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                select gen_random_uuid(), 'game', 'subscription.renewed', 'u' || n % 40000, n::text, gen_random_uuid(),
                  '{}'
                from generate_series(1, 200000) n
                """)
            let hidden = "select count(*) from events where xid >= pg_snapshot_xmin(pg_current_snapshot())"
            try await lab.until("the feed shows all") { try await lab.number(hidden) == 0 }
            for _ in 0..<19 { _ = try await lab.ledger.numberEvents(limit: 10_000, for: [shop]) }
            #expect(try await lab.number("select count(*) from deliveries") == 40_000)
            try await look("plans of the empty tables")
            _ = try await lab.ledger.run(Statement<Void, Void>("test.replan", "discard plans"), ())
            try await look("full tables without statistics")
            try await lab.run("analyze events, event_users, event_sequences, deliveries, endpoints")
            try await look("statistics")
        }
    }
}
