import Foundation
import Postgres
import Purchases
import Synchronization
import TestRandom
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: the app backend's feed shows every grant exactly once, in an order in which a cursor loses nothing, whatever
/// commits late. Method: eight sessions settle in transactions of random length, as on a slow disk; a reader follows by
/// cursor alone.
@Suite(.timeLimit(.minutes(8))) struct EventFeedTests {
    private static func page(_ cursor: EventCursor, limit: Int = 7, apps: [String] = ["game"]) -> Statements.EventPage {
        .init(apps: apps, after: cursor, limit: limit)
    }

    @Test(
        "S1-1: under eight writers that commit late and roll back, the cursor loses nothing",
        arguments: [31, 32] as [UInt64])
    func concurrent(seed: UInt64) async throws {
        try await LedgerLab.with { lab in
            let writers = 8
            let perWriter = 25
            let busy = Busy(writers)
            try await withThrowingTaskGroup(of: [String]?.self) { group in
                for writer in 0..<writers {
                    group.addTask {
                        defer { busy.leave() }
                        try await Self.write(perWriter, as: writer, seed: seed, in: lab)
                        return nil
                    }
                }
                group.addTask { try await Self.follow(lab, while: busy) }
                for try await told in group {
                    guard let told else { continue }
                    #expect(told.count == writers * perWriter, "seed \(seed)")
                    #expect(Set(told).count == told.count, "nothing twice")
                }
            }
            #expect(try await lab.number("select count(*) from events") == writers * perWriter)
        }
    }

    @Test("the ids that the database derives are the program's, whatever the parts hold")
    func derivedIDs() async throws {
        try await LedgerLab.with { lab in
            for parts in [["game", "1000", "ownership.lost"], ["", "", ""], ["spiel-ß", "漢字🎮", "e\u{301}"]] {
                let literals = parts.map { "'\($0)'::text" }
                let sql = "select \(Statements.derivedEvent(literals[0], literals[1], literals[2]))::text"
                let id = DerivedID.make(parts + [""])
                let derived = try await lab.texts(sql)
                #expect(derived == [id.uuidString.lowercased()])
            }
        }
    }

    /// How many writers are still at work.
    private final class Busy: Sendable {
        private let count: Mutex<Int>

        init(_ count: Int) { self.count = Mutex(count) }

        func leave() { count.withLock { $0 -= 1 } }

        var isBusy: Bool { count.withLock { $0 > 0 } }
    }

    /// Each purchase in a transaction of its own that stays open for a while; every fourth is first rolled back.
    private static func write(_ count: Int, as writer: Int, seed: UInt64, in lab: LedgerLab) async throws {
        var random = SeededRandom(seed: seed &* 1000 + UInt64(writer))
        try await lab.withSession { session in
            for number in 0..<count {
                let posted = try await lab.post("u\(writer)")
                let verdict = lab.verdict(posted, .transactions([.purchase("\(writer)-\(number)")]))
                let ends = number % 4 == 0 ? [Statement<Void, Void>.rollback, .commit] : [.commit]
                for end in ends {
                    try await session.run(.begin)
                    try await lab.settle(verdict, on: session)
                    let pause = Double.random(in: 0...0.02, using: &random)
                    try await session.run(Statement<Void, Void>("test.pause", "select pg_sleep(\(pause))"))
                    try await session.run(end)
                }
            }
        }
    }

    /// Reads until nobody writes and the feed is empty.
    private static func follow(_ lab: LedgerLab, while busy: Busy) async throws -> [String] {
        var cursor = EventCursor.start
        var told: [String] = []
        var stalls = 0
        while true {
            let mayGrow = busy.isBusy
            let events = try await lab.ledger.run(Statements.readEvents, page(cursor))
            for event in events {
                told.append(event.transactionID)
                #expect((event.cursor.place, event.cursor.id) > (cursor.place, cursor.id))
                cursor = event.cursor
            }
            // Another database's transactions hold the horizon back for a moment: a few empty looks in a row.
            stalls = events.isEmpty && !mayGrow ? stalls + 1 : 0
            if stalls > 0, told.count == (try await lab.number("select count(*) from events")) { return told }
            if stalls > 500 { return told }
            if events.isEmpty { try await Task.sleep(for: .milliseconds(5)) }
        }
    }

    @Test("an event of an open transaction is not shown, nor is any after it")
    func horizon() async throws {
        try await LedgerLab.with { lab in
            let early = try await lab.post("u1")
            let late = try await lab.post("u2")
            try await lab.withSession { session in
                try await session.run(.begin)
                try await lab.settle(lab.verdict(early, .transactions([.purchase("t1")])), on: session)
                try await lab.settle(late, .purchase("t2"))
                #expect(try await lab.ledger.run(Statements.readEvents, Self.page(.start)) == [])
                try await session.run(.commit)
            }
            try await lab.until("the feed tells both") {
                try await lab.ledger.run(Statements.readEvents, Self.page(.start)).map(\.transactionID) == ["t1", "t2"]
            }
        }
    }

    @Test("an event says what was given to whom, under an id that does not change")
    func content() async throws {
        try await LedgerLab.with { lab in
            let posted = try await lab.post("u1")
            try await lab.settle(posted, .purchase("t1"))
            try await lab.settle(try await lab.post("u1", app: "other"), .purchase("t2"))
            let everyApp = Self.page(.start, apps: ["game", "other"])
            try await lab.until("told") { try await lab.ledger.run(Statements.readEvents, everyApp).count == 2 }
            let event = try #require(try await lab.ledger.run(Statements.readEvents, Self.page(.start)).first)
            #expect(event.id == DerivedID.event(appID: "game", transactionID: "t1", type: .purchaseGranted))
            #expect(event.appID == "game" && event.userID == "u1" && event.type == "purchase.granted")
            #expect(event.transactionID == "t1" && event.receiptID == posted.id)
            let body = try #require(
                try JSONSerialization.jsonObject(with: Data(event.body.utf8)) as? [String: Any])
            #expect(body["productId"] as? String == "coins" && body["environment"] as? String == "Production")
            let goods = try #require(body["goods"] as? [[String: Any]])
            #expect(goods.map { $0["amount"] as? Int } == [60])
            #expect(try await lab.ledger.run(Statements.readEvents, Self.page(event.cursor)) == [], "one app's feed")
            let both = try await lab.ledger.run(Statements.readEvents, everyApp)
            #expect(both.map(\.transactionID) == ["t1", "t2"])
        }
    }

    /// Makes the server look like one that was started at another time, which is another era.
    private static func restart(_ lab: LedgerLab) async throws {
        try await lab.run(
            """
            update feed_eras set server_started_at = to_timestamp(first_xid)
            where server_started_at = pg_postmaster_start_time()
            """)
    }

    @Test("S1-1: a reader of what a restored server has lost reads what the server writes afterwards")
    func restored() async throws {
        try await LedgerLab.with { lab in
            try await lab.settle(try await lab.post("u1"), .purchase("t1"))
            try await lab.until("told") { try await Self.read(lab, .start).count == 1 }
            let seen = try #require(try await Self.read(lab, .start).first?.cursor)
            // The server wrote a thousand transactions more, which its backup does not hold.
            let lost = EventCursor(place: seen.place + 1000, id: seen.id + 1000)
            #expect(try await lab.ledger.run(Statements.isBeyondFeed, seen) == [false])
            #expect(try await lab.ledger.run(Statements.isBeyondFeed, .init(place: Int.max, id: 0)) == [true])
            try await Self.restart(lab)
            #expect(try await Self.read(lab, lost) == [])
            #expect(try await lab.ledger.run(Statements.isBeyondFeed, lost) == [false], "before the new era begins")
            for number in 2...4 {
                try await lab.settle(try await lab.post("u1"), .purchase("t\(number)"))
            }
            try await lab.until("told") { try await Self.read(lab, lost).map(\.transactionID) == ["t2", "t3", "t4"] }
            #expect(
                try await Self.read(lab, seen).map(\.transactionID) == ["t2", "t3", "t4"], "who had read less, too")
            let first = try #require(try await Self.read(lab, lost).first?.cursor)
            #expect(first.place > lost.place, "no place twice")
            #expect(try await lab.ledger.run(Statements.isBeyondFeed, lost) == [false])
            let ahead = EventCursor(place: first.place + 1_000_000_000, id: 0)
            #expect(try await lab.ledger.run(Statements.isBeyondFeed, ahead) == [true])
        }
    }

    @Test("every event's cursor leads to exactly the events behind it, over several starts of the server")
    func eras() async throws {
        try await LedgerLab.with { lab in
            let names = (0..<12).map { "t\($0)" }
            for (number, name) in names.enumerated() {
                if number % 3 == 2 { try await Self.restart(lab) }
                try await lab.settle(try await lab.post("u1"), .purchase(name))
            }
            #expect(try await lab.number("select count(*) from feed_eras") == 5)
            try await lab.until("told") { try await Self.read(lab, .start).count == names.count }
            let events = try await Self.read(lab, .start)
            #expect(events.map(\.transactionID) == names)
            for (index, event) in events.enumerated() {
                #expect(try await Self.read(lab, event.cursor) == Array(events[(index + 1)...]))
            }
        }
    }

    private static func read(_ lab: LedgerLab, _ cursor: EventCursor) async throws -> [Event] {
        try await lab.ledger.run(Statements.readEvents, page(cursor, limit: 100))
    }

    @Test("a cursor is its own text, and nothing else is one")
    func cursorText() {
        let cursor = EventCursor(place: 4711, id: 12)
        #expect(EventCursor(cursor.text) == cursor)
        for text in ["", "-", "1", "1-", "-1", "1-2-3", "a-b", "-1-2", "1--2", " 1-2", "99999999999999999999-1"] {
            #expect(EventCursor(text) == nil, "\(text)")
        }
    }
}
