import Foundation
import Postgres
import Purchases
import TestRandom
import Testing

@testable import Ledger

/// Goal: each event of a user has the next number in the order of the feed, whichever dispatcher numbers, and also where a
/// transaction commits late or a user is erased meanwhile (B8). Method: events by SQL in transactions that commit in chosen and in random orders,
/// the real numbering, and its numbers compared with the feed.
@Suite(.timeLimit(.minutes(4))) struct NumberingTests {
    @Test("an event has no number before every older transaction has ended, and then its place in the feed")
    func commitOrder() async throws {
        try await LedgerLab.with { lab in
            try await lab.withSession { older in
                try await older.run(.begin)
                try await lab.tell("early", on: older)
                try await lab.tell("late", "later")
                let hidden = try await lab.ledger.numberEvents(limit: 100, for: [])
                #expect(hidden == NumberedBatch())
                #expect(try await lab.numbers() == [])
                try await older.run(.commit)
            }
            try await lab.number()
            #expect(try await lab.numbers() == ["early 1", "late 2", "later 3"])
            try await lab.tell("last")
            try await lab.number()
            #expect(try await lab.numbers() == ["early 1", "late 2", "later 3", "last 4"])
        }
    }

    @Test("a step numbers so many events at most, says whether more may wait, and counts each app and user for itself")
    func steps() async throws {
        try await LedgerLab.with { lab in
            try await lab.tell("a", "b")
            try await lab.tell("c", user: "u2")
            try await lab.tell("d", app: "other")
            try await lab.until("the feed shows all") {
                try await lab.number("select waiting_events from v_numbering") == 4
            }
            var expected = NumberedBatch()
            (expected.events, expected.isFull) = (3, true)
            #expect(try await lab.ledger.numberEvents(limit: 3, for: []) == expected)
            #expect(try await lab.number("select waiting_events from v_numbering") == 1)
            (expected.events, expected.isFull) = (1, false)
            #expect(try await lab.ledger.numberEvents(limit: 3, for: []) == expected)
            #expect(try await lab.ledger.numberEvents(limit: 3, for: []) == NumberedBatch())
            #expect(try await lab.numbers() == ["a 1", "b 2"])
            #expect(try await lab.numbers("u2") == ["c 1"])
            #expect(try await lab.numbers(app: "other") == ["d 1"])
            let lag = try #require(try await lab.ledger.run(Statements.numberingLag, ()).first)
            #expect(lag.waitingEvents == 0 && lag.seconds == 0)
        }
    }

    @Test("one process numbers at a time: another one passes, and does not wait")
    func oneAtATime() async throws {
        try await LedgerLab.with { lab in
            try await lab.tell("a")
            try await lab.withSession { other in
                try await other.run(.begin)
                try await other.run(Statements.lockProgress)
                #expect(try await lab.ledger.numberEvents(limit: 10, for: []) == nil)
                try await other.run(.commit)
            }
            try await lab.number()
            #expect(try await lab.numbers() == ["a 1"])
        }
    }

    @Test(
        "many writers and many that number: each event has one number, in the order of the feed",
        arguments: [1, 2, 3] as [UInt64])
    func random(seed: UInt64) async throws {
        print("numbering: seed \(seed)")
        try await LedgerLab.with(connections: 4) { lab in
            let shop = try await lab.endpoint()
            try await withThrowingTaskGroup(of: Void.self) { group in
                for writer in 0..<3 {
                    group.addTask {
                        var random = SeededRandom(seed: seed &* 10 &+ UInt64(writer))
                        try await lab.withSession { session in
                            for number in 0..<40 {
                                try await session.run(.begin)
                                for part in 0..<Int.random(in: 1...4, using: &random) {
                                    let user = "u\(Int.random(in: 0..<6, using: &random))"
                                    try await lab.tell("\(writer)-\(number)-\(part)", user: user, on: session)
                                }
                                if Int.random(in: 0..<4, using: &random) == 0 {
                                    try await Task.sleep(for: .milliseconds(5))
                                }
                                try await session.run(.commit)
                            }
                        }
                    }
                }
                for _ in 0..<3 {
                    group.addTask {
                        for _ in 0..<60 {
                            _ = try await lab.ledger.numberEvents(limit: 7, for: [shop])
                            try await Task.sleep(for: .milliseconds(1))
                        }
                    }
                }
                try await group.waitForAll()
            }
            try await lab.number(for: [shop])
            var expected: [String: [String]] = [:]
            for event in try await lab.feed() { expected[event.userID, default: []].append(event.transactionID) }
            #expect(expected.count > 1, "seed \(seed)")
            for (user, names) in expected {
                let numbered = names.enumerated().map { "\($1) \($0 + 1)" }
                #expect(try await lab.numbers(user) == numbered, "seed \(seed) \(user)")
            }
            let events = expected.values.reduce(0) { $0 + $1.count }
            #expect(try await lab.number("select count(*) from event_sequences") == events, "seed \(seed)")
            #expect(
                try await lab.number("select sum(last_sequence - done_sequence)::int8 from deliveries") == events,
                "seed \(seed)")
        }
    }

    @Test("an erased user's stream keeps its numbers and loses the id; whoever comes back under the id begins at 1")
    func erasure() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint()
            try await lab.tell("a", "b")
            try await lab.tell("c", user: "u2")
            try await lab.number(for: [shop])
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            _ = try await erasure.erase(erasure.name(of: "u1", app: "game"))
            #expect(
                try await lab.texts("select coalesce(user_id, '-') from event_users order by stream") == ["-", "u2"])
            #expect(try await lab.number("select count(*) from event_sequences") == 3)
            // What the endpoint had yet to get goes on, about nobody whom somebody could name.
            let events = try await lab.due(shop)
            let erased = try #require(events.first { $0.event?.transactionID == "a" }?.event)
            #expect(erased.userID.hasPrefix("erased_"))
            try await lab.tell("d")
            try await lab.number(for: [shop])
            #expect(try await lab.numbers() == ["d 1"])
            #expect(try await lab.dueNames(shop) == ["a", "c", "d"])
        }
    }

    @Test("an erasure waits for a numbering that has read the id, so that no stream keeps it")
    func erasureMeanwhile() async throws {
        try await LedgerLab.with { lab in
            try await lab.tell("a")
            try await lab.until("the feed shows it") {
                try await lab.number("select waiting_events from v_numbering") == 1
            }
            try await lab.withSession { other in
                try await other.run(.begin)
                try await other.run(Statements.lockProgress)
                let span = try #require(try await other.run(Statements.nextEvents, 10).first)
                try await other.run(Statements.countStreams, span)
                let rename = Statement<Void, Void>(
                    "test.rename", "update events set user_id = 'nobody' where user_id = 'u1'")
                async let renamed: [Void] = lab.ledger.run(rename, ())
                try await lab.untilBlocked()
                try await other.run(Statements.numberEvents, .init(span: span, filters: []))
                try await other.run(Statements.noteProgress, span)
                try await other.run(.commit)
                _ = try await renamed
            }
            #expect(try await lab.texts("select coalesce(user_id, '-') from event_users") == ["-"])
            // The check would look for the stream of `nobody`, which only a tombstone may lack.
            try await lab.run("update events set user_id = 'erased_' || gen_random_uuid()")
        }
    }

    @Test("an endpoint that this process does not know gets every event of its app; a filter is its dispatcher's")
    func unknownEndpoints() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint("shop", types: [EventType.orderPaid.rawValue])
            let mail = try await lab.endpoint("mail", app: "other")
            try await lab.tell("a")
            // An older configuration has neither.
            #expect(try await lab.number() == [shop.key.id])
            let event = try await lab.onlyDue(shop)
            #expect(event.event == nil && event.sequence == 1)
            #expect(try await lab.due(mail).isEmpty)
            #expect(try await lab.store(.passed, event, at: shop))
            #expect(try await lab.due(shop).isEmpty)
            // Nobody has had it in a configuration for more than a day.
            try await lab.run("update endpoints set seen_at = now() - interval '25 hours'")
            try await lab.tell("b")
            #expect(try await lab.number() == [])
            #expect(try await lab.due(shop).isEmpty)
        }
    }
}
