import Foundation
import Postgres
import Purchases
import Synchronization
import TestRandom
import Testing

@testable import Ledger

/// Goal: whatever numbers, delivers and stores at the same time, no event is lost, no user's events change their order,
/// and no cursor passes over an undelivered event (B8). Method: chosen interleavings by sessions that hold their locks,
/// and random ones of writers, numberers and dispatchers whose results come late and twice.
@Suite(.timeLimit(.minutes(4))) struct DeliveryRaceTests {
    /// Numbers on a session whose transaction the test ends.
    private static func number(_ filter: EndpointFilter, on session: Database) async throws {
        try await session.run(.begin)
        try await session.run(Statements.lockProgress)
        let span = try #require(try await session.run(Statements.nextEvents, 100).first)
        try await session.run(Statements.countStreams, span)
        try await session.run(Statements.numberEvents, .init(span: span, filters: [filter]))
        try await session.run(Statements.noteProgress, span)
    }

    @Test("the result of the last event meets the number of the next one: the next one is due, and bounds the cursor")
    func resultBesideNumbering() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint()
            try await lab.tell("a")
            try await lab.number(for: [shop])
            let first = try await lab.onlyDue(shop)
            try await lab.tell("b")
            try await lab.until("the feed shows it") {
                try await lab.number("select waiting_events from v_numbering") == 1
            }
            try await lab.withSession { session in
                try await Self.number(shop, on: session)
                async let stored = lab.store(.delivered, first, at: shop)
                try await lab.untilBlocked()
                try await session.run(.commit)
                #expect(try await stored)
            }
            let second = try await lab.onlyDue(shop)
            #expect(second.event?.transactionID == "b" && second.previousID == first.event?.id)
            // The result did not see the place of the next event: the cursor stays where it was.
            #expect(try await lab.cursor(shop) == .start)
            #expect(try await lab.store(.delivered, second, at: shop))
            #expect(try await lab.cursor(shop) == lab.feed().last?.cursor)
        }
    }

    @Test("the number of the next event meets the result of the last one: the same")
    func numberingBesideResult() async throws {
        try await LedgerLab.with { lab in
            let shop = try await lab.endpoint()
            try await lab.tell("a")
            try await lab.number(for: [shop])
            let first = try await lab.onlyDue(shop)
            try await lab.tell("b")
            try await lab.until("the feed shows it") {
                try await lab.number("select waiting_events from v_numbering") == 1
            }
            try await lab.withSession { session in
                try await session.run(.begin)
                let result = DeliveryResult(
                    endpoint: shop.key.id, stream: first.stream, sequence: 1, eventID: first.event?.id,
                    outcome: .delivered)
                #expect(try await session.run(Statements.storeResults, [result]).map(\.isStored) == [true])
                async let numbered = lab.ledger.numberEvents(limit: 10, for: [shop])
                try await lab.untilBlocked()
                try await session.run(.commit)
                #expect(try await numbered?.events == 1)
            }
            #expect(try await lab.onlyDue(shop).event?.transactionID == "b")
            #expect(try await lab.cursor(shop) == lab.feed().first?.cursor)
        }
    }

    /// What one endpoint got.
    private final class Receiver: Sendable {
        struct State {
            /// The numbers of a stream, in the order in which they came for the first time.
            var got: [Int: [Int]] = [:]
            var cursor = EventCursor.start
        }
        let state = Mutex(State())

        func take(_ event: DueEvent) {
            state.withLock {
                if $0.got[event.stream]?.contains(event.sequence) != true {
                    $0.got[event.stream, default: []].append(event.sequence)
                }
            }
        }

        /// Whether the cursor is not before one that was read earlier.
        func see(_ cursor: EventCursor) -> Bool {
            state.withLock { state in
                defer { state.cursor = cursor }
                return (cursor.place, cursor.id) >= (state.cursor.place, state.cursor.id)
            }
        }
    }

    @Test(
        "writers, numberers and dispatchers at random: all arrives, in order for each user; cursors only grow",
        arguments: [1, 2, 3] as [UInt64])
    func random(seed: UInt64) async throws {
        print("delivery: seed \(seed)")
        try await LedgerLab.with(connections: 6) { lab in
            let filters = [
                try await lab.endpoint("all"), try await lab.endpoint("orders", types: [EventType.orderPaid.rawValue]),
            ]
            let receivers = filters.map { _ in Receiver() }
            let isWritten = Atomic<Bool>(false)
            try await withThrowingTaskGroup(of: Void.self) { group in
                group.addTask {
                    var random = SeededRandom(seed: seed)
                    for number in 0..<200 {
                        let user = "u\(Int.random(in: 0..<8, using: &random))"
                        try await lab.tell(
                            "t\(number)", user: user, type: Bool.random(using: &random) ? .orderPaid : .ownershipLost)
                    }
                    isWritten.store(true, ordering: .releasing)
                }
                for _ in 0..<2 {
                    group.addTask {
                        let end = ContinuousClock.now + .seconds(60)
                        var rest = 0
                        while !isWritten.load(ordering: .acquiring) || rest > 0, ContinuousClock.now < end {
                            _ = try await lab.ledger.numberEvents(limit: 5, for: filters)
                            try await Task.sleep(for: .milliseconds(2))
                            rest = try await lab.unnumbered
                        }
                    }
                }
                for worker in 0..<4 {
                    let (filter, receiver) = (filters[worker % 2], receivers[worker % 2])
                    group.addTask {
                        var random = SeededRandom(seed: seed &* 100 &+ UInt64(worker))
                        let end = ContinuousClock.now + .seconds(60)
                        while ContinuousClock.now < end {
                            let cursor = try await lab.cursor(filter)
                            // Of two who read it, one may be late to say what it saw.
                            if worker < 2 { #expect(receiver.see(cursor), "seed \(seed)") }
                            let due = try await lab.due(filter, limit: Int.random(in: 1...5, using: &random))
                            let isOver = isWritten.load(ordering: .acquiring)
                            for event in due {
                                guard event.event != nil else {
                                    _ = try await lab.store(.passed, event, at: filter)
                                    continue
                                }
                                if Int.random(in: 0..<5, using: &random) == 0 {
                                    let failed = DeliveryResult.Outcome.failed(
                                        reason: "status 500", retryIn: .milliseconds(3))
                                    _ = try await lab.store(failed, event, at: filter)
                                } else {
                                    receiver.take(event)
                                    if Int.random(in: 0..<4, using: &random) > 0 {
                                        _ = try await lab.store(.delivered, event, at: filter)
                                    }
                                }
                            }
                            let waits = try await lab.number(
                                """
                                select count(*) from deliveries
                                where endpoint = '\(filter.key.id)' and behind_xid is not null
                                """)
                            if isOver, due.isEmpty, waits == 0, try await lab.unnumbered == 0 { break }
                        }
                    }
                }
                try await group.waitForAll()
            }
            #expect(
                try await lab.number("select count(*) from deliveries where behind_xid is not null") == 0, "\(seed)")
            for (filter, receiver) in zip(filters, receivers) {
                let rows = try await lab.texts(
                    """
                    select s.stream || ' ' || s.sequence from event_sequences s
                    join events e on e.xid = s.xid and e.id = s.id
                    where \(filter.types == nil ? "true" : "e.type = 'order.paid'") order by s.stream, s.sequence
                    """)
                let got = receiver.state.withLock { $0.got }.sorted { $0.key < $1.key }
                #expect(got.flatMap { stream, numbers in numbers.map { "\(stream) \($0)" } } == rows, "seed \(seed)")
                #expect(try await lab.cursor(filter) == lab.feed().last?.cursor, "seed \(seed)")
            }
        }
    }
}
