import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger
@testable import Reconciliation
@testable import Service

/// Goal: the cursor that a backend stored stays right whatever other readers, other apps and restarts of the server do,
/// and a backend that stopped reading is seen, however far it is behind (B8). Method: events by SQL or by settling, the
/// real statements, and the blocks that the server touches for them.
@Suite(.timeLimit(.minutes(4))) struct FeedGroupTests {
    private static func key(_ name: String, _ app: String = "game") throws -> FeedGroup.Key {
        try #require(FeedGroup.Key(appID: app, name: name))
    }

    private static func read(_ lab: LedgerLab, _ app: String, after: EventCursor) async throws -> [Event] {
        try await lab.ledger.run(Statements.readEvents, .init(apps: [app], after: after, limit: 100))
    }

    /// Writes so many events of an app in one transaction, and waits until the feed shows them.
    private static func tell(_ lab: LedgerLab, _ app: String, _ count: Int) async throws {
        try await lab.run(
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
            select gen_random_uuid(), '\(app)', 'purchase.granted', 'u', n::text, gen_random_uuid(), '{"goods": []}'
            from generate_series(1, \(count)) n
            """)
        let hidden = "select count(*) from events where xid >= pg_snapshot_xmin(pg_current_snapshot())"
        try await lab.until("the feed shows all") { try await lab.number(hidden) == 0 }
    }

    /// The cursor that is stored after a request.
    private static func store(
        _ lab: LedgerLab, _ key: FeedGroup.Key, _ cursor: EventCursor, rewinds: Bool = false
    ) async throws -> [EventCursor] {
        try await lab.ledger.run(Statements.storeFeedCursor, .init(key, cursor, rewinds: rewinds)).map(\.cursor)
    }

    private static func lag(_ lab: LedgerLab, _ key: FeedGroup.Key) async throws -> FeedGroupLag {
        try #require(try await lab.ledger.run(Statements.feedGroupLag, key).first)
    }

    @Test("a name has 1 to 64 of a to z, 0 to 9 and -")
    func names() {
        for name in ["a", "shop-2", "-", String(repeating: "x", count: 64)] {
            #expect(FeedGroup.Key(appID: "game", name: name) != nil, "\(name)")
        }
        for name in ["", "A", "a b", "a_b", "é", "a/b", "a\u{0}", String(repeating: "x", count: 65)] {
            #expect(FeedGroup.Key(appID: "game", name: name) == nil, "\(name)")
        }
    }

    @Test("a cursor goes forward, and back by a rewind alone; of two readers the slower one takes nothing back")
    func forward() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.tell(lab, "game", 3)
            let cursors = try await Self.read(lab, "game", after: .start).map(\.cursor)
            #expect(cursors.count == 3)
            let shop = try Self.key("shop")
            #expect(try await Self.store(lab, shop, .start) == [.start])
            #expect(try await Self.store(lab, shop, cursors[1]) == [cursors[1]])
            #expect(try await Self.store(lab, shop, cursors[1]) == [cursors[1]], "the same once more")
            #expect(try await Self.store(lab, shop, cursors[0]) == [], "back")
            #expect(try await Self.store(lab, shop, cursors[0], rewinds: true) == [cursors[0]])
            #expect(try await Self.store(lab, shop, cursors[2], rewinds: true) == [cursors[2]])
            // A place alone says the order; ids order events of one transaction.
            let before = EventCursor(place: cursors[2].place - 1, id: cursors[2].id + 1)
            #expect(try await Self.store(lab, shop, before) == [])
            // The slower reader waits for the faster one, and then finds that it is behind.
            #expect(try await Self.store(lab, shop, .start, rewinds: true) == [.start])
            try await lab.withSession { session in
                try await session.run(.begin)
                let faster = Statements.FeedGroupUpdate(shop, cursors[2], rewinds: false)
                #expect(try await session.run(Statements.storeFeedCursor, faster).count == 1)
                async let slower = Self.store(lab, shop, cursors[1])
                try await lab.untilBlocked()
                try await session.run(.commit)
                #expect(try await slower == [])
            }
            #expect(try await lab.ledger.run(Statements.readFeedGroup, shop).map(\.cursor) == [cursors[2]])
            // Another group and another app have cursors of their own.
            #expect(try await Self.store(lab, Self.key("mail"), cursors[0]) == [cursors[0]])
            #expect(try await Self.store(lab, Self.key("shop", "other"), .start) == [.start])
            #expect(
                try await lab.texts("select concat_ws(' ', app_id, name, cursor) from v_feed_groups order by 1") == [
                    "game mail \(cursors[0].text)", "game shop \(cursors[2].text)", "other shop 0-0",
                ])
            #expect(try await lab.ledger.run(Statements.feedGroupLags, ["other"]).map(\.name) == ["shop"])
            #expect(try await lab.ledger.run(Statements.forgetFeedGroup, Self.key("mail")) == [true])
            #expect(try await lab.ledger.run(Statements.forgetFeedGroup, Self.key("mail")) == [false])
            #expect(try await lab.ledger.run(Statements.feedGroupLags, ["game", "other"]).count == 2)
        }
    }

    @Test("an app has a bounded number of groups; the groups that it has go on")
    func bound() async throws {
        try await LedgerLab.with { lab in
            for number in 0..<FeedGroup.perAppMax {
                let stored = try await Self.store(lab, Self.key("g\(number)"), .start)
                #expect(stored == [.start])
            }
            #expect(try await Self.store(lab, Self.key("one-more"), .start) == [])
            #expect(try await Self.store(lab, Self.key("one-more", "other"), .start) == [.start])
            #expect(try await Self.store(lab, Self.key("g0"), .start) == [.start])
            #expect(try await lab.ledger.run(Statements.forgetFeedGroup, Self.key("g0")) == [true])
            #expect(try await Self.store(lab, Self.key("one-more"), .start) == [.start])
        }
    }

    @Test("only a place that the feed has given is one: the start, or an event that it shows to these apps")
    func given() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.tell(lab, "game", 2)
            try await Self.tell(lab, "other", 1)
            func isGiven(_ cursor: EventCursor, _ apps: [String] = ["game"]) async throws -> Bool {
                try await lab.ledger.run(Statements.isGivenCursor, .init(cursor, apps: apps)) == [true]
            }
            let game = try await Self.read(lab, "game", after: .start).map(\.cursor)
            let other = try #require(try await Self.read(lab, "other", after: .start).first?.cursor)
            #expect(try await isGiven(.start))
            for cursor in game { #expect(try await isGiven(cursor)) }
            #expect(try await isGiven(game[0], []) == false)
            #expect(try await isGiven(other) == false)
            #expect(try await isGiven(other, ["game", "other"]))
            for cursor in [
                EventCursor(place: 0, id: 1), .init(place: game[0].place, id: 0),
                .init(place: game[0].place + 1, id: game[0].id), .init(place: game[0].place, id: game[1].id + 100),
                .init(place: Int.max, id: Int.max),
            ] {
                #expect(try await isGiven(cursor) == false, "\(cursor.text)")
            }
            // The feed has not shown an event yet while an earlier transaction runs.
            try await lab.withSession { session in
                try await session.run(.begin)
                try await session.run(Statement<Void, Void>("test.xid", "select pg_current_xact_id()"))
                try await lab.run(
                    """
                    insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                    values (gen_random_uuid(), 'game', 'purchase.granted', 'u', 'late', gen_random_uuid(), '{}')
                    """)
                let cursor = try await lab.texts(
                    """
                    select xid::text::int8 + (select max(shift) from feed_eras where first_xid <= xid::text::int8)
                      || '-' || id
                    from events where transaction_id = 'late'
                    """)
                let late = try #require(cursor.first.flatMap { EventCursor($0) })
                #expect(try await isGiven(late) == false)
                let shop = try Self.key("shop")
                #expect(try await Self.store(lab, shop, game[1]) == [game[1]])
                #expect(try await Self.lag(lab, shop).eventsBehind == 0)
                try await session.run(.commit)
                try await lab.until("the feed shows it") { try await isGiven(late) }
                #expect(try await Self.lag(lab, shop).eventsBehind == 1)
            }
        }
    }

    @Test("S1-1: a stored cursor leads to exactly the events behind it, over several starts of the server")
    func eras() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let shop = try Self.key("shop")
            for number in 0..<9 {
                // Makes the server look like one that was started at another time, which is another era.
                if number % 3 == 2 {
                    try await lab.run(
                        """
                        update feed_eras set server_started_at = to_timestamp(first_xid)
                        where server_started_at = pg_postmaster_start_time()
                        """)
                }
                try await lab.run(
                    """
                    insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
                    values (gen_random_uuid(), 'game', 'purchase.granted', 'u', 't\(number)', gen_random_uuid(), '{}')
                    """)
            }
            #expect(try await lab.number("select count(*) from feed_eras") == 4)
            try await lab.until("told") { try await Self.read(lab, "game", after: .start).count == 9 }
            let events = try await Self.read(lab, "game", after: .start)
            for (index, event) in events.enumerated() {
                let given = try await lab.ledger.run(Statements.isGivenCursor, .init(event.cursor, apps: ["game"]))
                #expect(given == [true])
                #expect(try await Self.store(lab, shop, event.cursor) == [event.cursor])
                let stored = try #require(try await lab.ledger.run(Statements.readFeedGroup, shop).first?.cursor)
                #expect(try await Self.read(lab, "game", after: stored) == Array(events[(index + 1)...]))
                let lag = try await Self.lag(lab, shop)
                #expect(lag.eventsBehind == events.count - index - 1)
                #expect(lag.oldestAt == (index + 1 < events.count ? events[index + 1].at : nil))
            }
            // A place that a lost server gave after the event: no event of this server has it, and the group reads on
            // from the cursor that the backup holds.
            let lost = EventCursor(place: events[1].cursor.place + 1_000_000, id: events[1].cursor.id)
            #expect(try await lab.ledger.run(Statements.isGivenCursor, .init(lost, apps: ["game"])) == [false])
        }
    }

    @Test("the lag of each group is measured: events behind and the age of the oldest; a forgotten group lags no more")
    func measured() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let registry = PrometheusRegistry()
            let watch = Watch(ledger: lab.ledger, logger: .silent, metrics: registry)
            func gauge(_ name: String, _ group: String) -> Double? {
                let series = "makegood_feed_group_\(name){app=\"game\",group=\"\(group)\"} "
                return registry.text.split(separator: "\n").first { $0.hasPrefix(series) }
                    .flatMap { Double($0.dropFirst(series.count)) }
            }
            let (shop, mail) = (try Self.key("shop"), try Self.key("mail"))
            #expect(try await Self.store(lab, shop, .start) == [.start])
            var known: Set<[String]> = []
            try await watch.measureFeedGroups(&known)
            #expect(gauge("events_behind", "shop") == 0 && gauge("lag_seconds", "shop") == 0)
            try await Self.tell(lab, "game", 3)
            try await lab.run("update events set at = now() - interval '1 hour' * (4 - transaction_id::int)")
            let events = try await Self.read(lab, "game", after: .start)
            #expect(try await Self.store(lab, mail, events[1].cursor) == [events[1].cursor])
            try await watch.measureFeedGroups(&known)
            #expect(gauge("events_behind", "shop") == 3 && gauge("events_behind", "mail") == 1)
            #expect((10_800..<11_400).contains(gauge("lag_seconds", "shop") ?? 0))
            #expect((3600..<4200).contains(gauge("lag_seconds", "mail") ?? 0))
            #expect(try await lab.ledger.run(Statements.forgetFeedGroup, shop) == [true])
            #expect(try await Self.store(lab, mail, events[2].cursor) == [events[2].cursor])
            try await watch.measureFeedGroups(&known)
            for group in ["shop", "mail"] {
                #expect(gauge("events_behind", group) == 0 && gauge("lag_seconds", group) == 0, "\(group)")
            }
        }
    }

    /// The most is some 300, for a group that is far behind. A plan that reads all of its events touches 2,200.
    private static let blocksMax = 800

    @Test("a group that is far behind, and the reader of a quiet app, read few rows, whatever the planner knows")
    func bounded() async throws {
        try await LedgerLab.with(connections: 1, endsSound: false) { lab in
            try await lab.run("alter table events set (autovacuum_enabled = false)")
            let (far, quiet) = (try Self.key("far"), try Self.key("quiet", "quiet"))
            for key in [far, quiet] { #expect(try await Self.store(lab, key, .start) == [.start]) }
            var last = EventCursor.start
            func look(_ what: Comment) async throws {
                // In its first run a plan also reads the catalogue.
                for isCounted in [false, true] {
                    var lags: [String: Int] = [:]
                    var blocks = try await lab.touched {
                        for lag in try await lab.ledger.run(Statements.allFeedGroupLags, ()) {
                            lags[lag.name] = lag.eventsBehind
                        }
                    }
                    if isCounted { #expect(blocks <= Self.blocksMax, what) }
                    blocks = try await lab.touched {
                        let read = try await Self.read(lab, "quiet", after: last)
                        #expect(read == [])
                    }
                    if isCounted { #expect(blocks <= 100, what) }
                    blocks = try await lab.touched {
                        let given = Statements.GivenCursor(last, apps: ["quiet"])
                        let answer = try await lab.ledger.run(Statements.isGivenCursor, given)
                        #expect(answer == [true])
                    }
                    if isCounted { #expect(blocks <= 100, what) }
                    #expect(lags["quiet"] == (last == .start ? 0 : 10), what)
                    #expect(lags["far"] == (last == .start ? 0 : FeedGroup.countedMax + 1), what)
                }
            }
            try await look("empty tables")
            try await Self.tell(lab, "quiet", 10)
            last = try #require(try await Self.read(lab, "quiet", after: .start).last?.cursor)
            try await Self.tell(lab, "game", 100_000)
            try await look("plans of the empty tables")
            _ = try await lab.ledger.run(Statement<Void, Void>("test.replan", "discard plans"), ())
            try await look("full tables without statistics")
            try await lab.run("analyze events")
            try await look("statistics")
        }
    }
}
