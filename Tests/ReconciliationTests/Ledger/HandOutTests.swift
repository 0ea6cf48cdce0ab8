import Encoding
import Foundation
import Postgres
import Purchases
import Testing

@testable import Ledger
@testable import Reconciliation
@testable import Service
@testable import Settings

/// Goal: what an app's backend did not hand out in time is counted by order number and named, whatever comes first, and
/// what was handed out is told everywhere (S0-13, S0-14, S0-23, S1-33, L1). Method: events by SQL or by settling, the real
/// statements, and the blocks that the server touches for them.
@Suite(.timeLimit(.minutes(4))) struct HandOutTests {
    static let goods = #"{"goods": [{"item": "coins", "amount": 5}], "environment": "Production"}"#
    private static let failures = "select concat_ws(' ', number, failures) from hand_out_failures order by 1"
    private static let waiting = """
        select concat_ws(' ', order_number, type, failures, needs_person, state, reason, command)
        from v_hand_outs_waiting order by 1
        """

    /// Writes an event that is so many minutes old, and waits until the feed shows it. Returns its id.
    @discardableResult
    static func tell(
        _ lab: LedgerLab, _ transaction: String, _ type: EventType = .purchaseGranted, minutes: Int = 61,
        user: String = "u1", body: String = goods
    ) async throws -> UUID {
        let id = UUID()
        try await lab.run(
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body, at)
            values ('\(id)', 'game', '\(type.rawValue)', '\(user)', '\(transaction)', gen_random_uuid(), '\(body)',
              now() - interval '\(minutes) minutes')
            """)
        let hidden = "select count(*) from events where xid >= pg_snapshot_xmin(pg_current_snapshot())"
        try await lab.until("the feed shows it") { try await lab.number(hidden) == 0 }
        return id
    }

    static func follow(_ lab: LedgerLab, within: Duration? = .seconds(3600)) async throws {
        _ = try await lab.ledger.run(Statements.rememberApp, .init(appID: "game", configurationHash: [1]))
        _ = try await lab.ledger.run(Statements.followHandOuts, [.init(appID: "game", within: within)])
    }

    static func count(_ lab: LedgerLab) async throws {
        _ = try await lab.ledger.run(Statements.countLateHandOuts, .init(appID: "game", most: 1000))
        _ = try await lab.ledger.run(Statements.recountHandOuts, 1000)
    }

    static func handle(
        _ lab: LedgerLab, _ transaction: String, _ event: UUID, _ json: String
    ) async throws -> StoredHandOut {
        let handOut = try HandOut(try JSONValue(parsing: Array(json.utf8)))
        return try #require(
            try await lab.ledger.run(
                Statements.handleEvent,
                HandOutReport(apps: ["game"], transactionID: transaction, eventID: event, handOut)
            ).first)
    }

    @Test(
        "S0-13, S0-14: passed limits and refusals count by order number; from three on for a person; handing out ends it"
    )
    func counting() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.follow(lab)
            let late = try await Self.tell(lab, "t1")
            let order = UUID()
            let paid = try await Self.tell(lab, order.text, .orderPaid, body: #"{"quantity": 1}"#)
            try await Self.tell(lab, "t3", body: #"{"goods": []}"#)
            try await Self.tell(lab, "t3", .subscriptionRenewed)
            try await Self.tell(lab, "t2", minutes: 59)
            for _ in 0..<2 { try await Self.count(lab) }
            #expect(try await lab.texts(Self.failures).sorted() == ["\(order.text) 1", "t1 1"].sorted())
            // Each passed limit counts, up to three.
            for expected in [2, 3, 3] {
                try await lab.run("update hand_out_failures set due_at = now() where number = 't1'")
                try await Self.count(lab)
                #expect(try await lab.texts(Self.failures).contains("t1 \(expected)"))
            }
            #expect(
                try await lab.texts(Self.waiting).contains(
                    "t1 purchase.granted 3 t waiting makegood explain t1"))
            // A refusal counts beyond: once for each time.
            let at = #""at":"2026-01-01T00:00:00Z""#
            for (json, word, failures) in [
                (#"{"outcome":"refused","reason":"bag full",\#(at)}"#, StoredHandOut.Word.stored, 4),
                (#"{"outcome":"refused","reason":"bag full",\#(at)}"#, .repeated, 4),
                (#"{"outcome":"refused","reason":"bag full"}"#, .repeated, 4),
                (#"{"outcome":"refused","reason":"no bag","at":"2026-01-02T00:00:00Z"}"#, .stored, 5),
            ] {
                let stored = try await Self.handle(lab, "t1", late, json)
                #expect(stored.word == word && stored.failures == failures, "\(json)")
            }
            #expect(
                try await lab.texts(Self.waiting).contains(
                    "t1 purchase.granted 5 t refused no bag makegood explain t1"))
            let given = try await Self.handle(lab, "t1", late, #"{"outcome":"handed_out"}"#)
            #expect(given.word == .stored && given.failures == 0)
            #expect(try await Self.handle(lab, order.text, paid, #"{"outcome":"handed_out"}"#).word == .stored)
            #expect(try await lab.texts(Self.failures) == [])
            for (json, word) in [
                (#"{"outcome":"handed_out"}"#, StoredHandOut.Word.repeated),
                (#"{"outcome":"refused","reason":"r","at":"2026-03-01T00:00:00Z"}"#, .conflict),
                (#"{"outcome":"taken_back"}"#, .otherWay),
            ] {
                let stored = try await Self.handle(lab, "t1", late, json)
                #expect(stored.word == word && stored.failures == 0, "\(json)")
            }
            try await Self.count(lab)
            #expect(try await lab.texts(Self.failures) == [])
        }
    }

    @Test("an order's number is the key, and what was handed out before the limit is never counted")
    func keys() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.follow(lab)
            let order = UUID()
            try await lab.run(
                """
                insert into grants (transaction_id, purchase_key, app_id, environment, user_id, receipt_id, product_id,
                  quantity, goods, binding_source, order_id)
                values ('t1', 't1', 'game', 'Production', 'u1', gen_random_uuid(), 'coins', 1, '[]', 'order', '\(order)')
                """)
            try await Self.tell(lab, "t1")
            let reinstated = try await Self.tell(lab, "t1", .purchaseReinstated)
            let early = try await Self.tell(lab, "t2")
            #expect(try await Self.handle(lab, "t2", early, #"{"outcome":"handed_out"}"#).word == .stored)
            try await Self.count(lab)
            // Two events of one order are one key; the newest waits.
            #expect(try await lab.texts(Self.failures) == ["\(order.text) 1"])
            #expect(
                try await lab.texts("select event_id::text from hand_out_failures") == [reinstated.text])
        }
    }

    @Test("what was taken back whole, and an erased user's purchase, need no hand-out; a part does not end it")
    func voids() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.follow(lab)
            for id in ["whole", "part", "kept", "later"] { try await Self.tell(lab, id) }
            try await Self.tell(lab, "erased", user: "erased_00000000-0000-8000-8000-000000000001")
            let back = try await Self.tell(lab, "whole", .purchaseRevoked)
            try await Self.tell(
                lab, "part", .purchaseRevoked,
                body: #"{"goods": [{"item": "coins", "amount": 1}], "percentage": 20000}"#)
            try await Self.tell(lab, "kept", .purchaseRevoked, body: #"{"goods": [], "takeBack": false}"#)
            try await Self.count(lab)
            #expect(try await lab.texts(Self.failures) == ["kept 1", "later 1", "part 1"])
            try await Self.tell(lab, "later", .purchaseRevoked)
            try await lab.run("update hand_out_failures set due_at = now()")
            try await Self.count(lab)
            #expect(try await lab.texts(Self.failures) == ["kept 2", "part 2"])
            #expect(
                try await lab.texts("select transaction_id from hand_outs where outcome = 'void' order by 1") == [
                    "erased", "later", "whole",
                ])
            // The backend was faster than the revocation all the same.
            let event = try #require(
                UUID(
                    uuidString: try await lab.texts(
                        "select event_id::text from events where transaction_id = 'whole' and type = 'purchase.granted'"
                    )[0]))
            #expect(try await Self.handle(lab, "whole", event, #"{"outcome":"handed_out"}"#).word == .stored)
            for (json, word) in [
                (#"{"outcome":"handed_out"}"#, StoredHandOut.Word.otherWay),
                (#"{"outcome":"taken_back","amount":3}"#, .stored),
                (#"{"outcome":"taken_back","amount":3}"#, .repeated),
                (#"{"outcome":"taken_back","amount":4}"#, .conflict),
            ] {
                #expect(try await Self.handle(lab, "whole", back, json).word == word, "\(json)")
            }
        }
    }

    @Test("an app that does not acknowledge counts nothing; one that begins to is looked at from then on")
    func silentApps() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let before = try await Self.tell(lab, "t0")
            try await Self.follow(lab, within: nil)
            try await Self.count(lab)
            let refused = try await Self.handle(lab, "t0", before, #"{"outcome":"refused","reason":"r"}"#)
            #expect(refused.word == .stored && refused.failures == 0)
            #expect(try await lab.number("select count(*) from hand_out_limits") == 0)
            try await Self.follow(lab)
            try await Self.tell(lab, "t1")
            try await Self.count(lab)
            #expect(try await lab.texts(Self.failures) == ["t1 1"])
            try await Self.follow(lab, within: nil)
            #expect(try await lab.texts(Self.waiting) == [])
            try await Self.tell(lab, "t2")
            try await Self.follow(lab)
            try await Self.count(lab)
            #expect(try await lab.texts(Self.failures) == ["t1 1"], "t2 was told while nobody acknowledged")
            #expect(try await Self.handle(lab, "t1", UUID(), #"{"outcome":"handed_out"}"#).word == .unknown)
        }
    }

    @Test("L1: the clearing says what was announced and what was handed out; what waits too long is named")
    func books() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.follow(lab)
            try await lab.run("update hand_out_limits set since = now() - interval '1 day'")
            try await Self.tell(lab, "t4")
            let given = try await Self.tell(lab, "t1", minutes: 0)
            let refused = try await Self.tell(lab, "t2", minutes: 0)
            try await Self.tell(lab, "t3", minutes: 0)
            try await Self.tell(lab, "t1", .purchaseRevoked, minutes: 0)
            _ = try await Self.handle(lab, "t1", given, #"{"outcome":"handed_out"}"#)
            _ = try await Self.handle(lab, "t2", refused, #"{"outcome":"refused","reason":"r"}"#)
            let rows = try await lab.texts(
                """
                select concat_ws(' ', environment, source, state, sum(items), sum(balance)) from v_clearing
                where account = 'hand-outs' and day >= (now() at time zone 'UTC')::date - 1
                group by environment, source, state order by 1
                """)
            #expect(
                rows == [
                    "Production purchase.granted handed_out 1 0", "Production purchase.granted refused 1 1",
                    "Production purchase.granted waiting 2 2", "Production purchase.revoked not acknowledged 1 0",
                ])
            try await Self.count(lab)
            let overdue = try await lab.texts(
                "select concat_ws(' ', account, app_id, id, state, command) from v_clearing_overdue where account = 'hand-outs'"
            )
            #expect(overdue == ["hand-outs game t4 waiting makegood explain t4"])
            let items = try await lab.ledger.run(Statements.overdueItems, ())
            #expect(items.first { $0.appID == "game" && $0.account == "hand-outs" }?.ids == ["t4"])
        }
    }

    @Test("S1-33: the metrics and the log name what waits; they end with it")
    func measured() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let registry = PrometheusRegistry()
            let yaml = """
                apps:
                  - {id: game, bundleId: com.example.game, environments: [Sandbox], handOut: {within: 1h}, products: []}
                """
            let configuration = try Configuration.parse(yaml, directory: .temporaryDirectory)
            let watch = HandOutWatch(
                ledger: lab.ledger, configuration: ConfigurationHolder(configuration), logger: .silent,
                metrics: registry)
            func gauge(_ name: String) -> Double? {
                let series = "makegood_\(name){app=\"game\"} "
                return registry.text.split(separator: "\n").first { $0.hasPrefix(series) }
                    .flatMap { Double($0.dropFirst(series.count)) }
            }
            _ = try await lab.ledger.run(Statements.rememberApp, .init(appID: "game", configurationHash: [1]))
            var named: Set<String> = []
            try await watch.count()
            try await watch.measure(&named)
            #expect(gauge("late_hand_outs") == 0 && named.isEmpty)
            let event = try await Self.tell(lab, "t1")
            try await watch.count()
            try await watch.measure(&named)
            #expect(gauge("late_hand_outs") == 1 && gauge("failed_hand_outs") == 0 && named.count == 1)
            #expect((3600..<4200).contains(gauge("late_hand_outs_seconds") ?? 0))
            _ = try await Self.handle(lab, "t1", event, #"{"outcome":"handed_out"}"#)
            try await watch.measure(&named)
            #expect(gauge("late_hand_outs") == 0 && gauge("late_hand_outs_seconds") == 0 && named.isEmpty)
        }
    }

    @Test("a refund request, an order and a timeline say delivered by the backend's word")
    func told() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await Self.follow(lab)
            try await lab.settle(try await lab.post("u1"), .purchase("t1"))
            func facts() async throws -> RefundFacts {
                let request = RefundRequest(
                    notificationID: UUID(), appID: "game", environment: Transaction.production, transactionID: "t1",
                    originalID: "t1", reason: nil, askedAt: .now)
                return try #require(try await lab.ledger.run(Statements.refundFacts, .init(request)).first)
            }
            #expect(try await !facts().isDelivered)
            let event = try #require(
                UUID(
                    uuidString: try await lab.texts(
                        "select event_id::text from events where type = 'purchase.granted'")[0]))
            #expect(try await Self.handle(lab, "t1", event, #"{"outcome":"handed_out"}"#).word == .stored)
            #expect(try await facts().isDelivered)
            try await lab.run("delete from hand_outs")
            try await Self.follow(lab, within: nil)
            #expect(try await facts().isDelivered, "an app that does not acknowledge: granted counts")
        }
    }

    @Test("S0-23: an app's backend acknowledges only if the file says within which time")
    func configured() throws {
        func parse(_ setting: String) throws(ConfigurationError) -> AppConfiguration? {
            let app = "{id: game, bundleId: com.example.game, environments: [Sandbox], products: []\(setting)}"
            return try Configuration.parse("apps: [\(app)]", directory: .temporaryDirectory).apps["game"]
        }
        #expect(try parse("")?.handOutWithin == nil)
        #expect(try parse(", handOut: {within: 1h}")?.handOutWithin == .seconds(3600))
        for (text, key) in [
            ("{}", "within"), ("{within: 0}", "within"), ("{within: 31d}", "within"), ("{within: soon}", "within"),
            ("{within: 1h, wait: 1}", "wait"),
        ] {
            do throws(ConfigurationError) {
                _ = try parse(", handOut: \(text)")
                Issue.record("\(text)")
            } catch {
                #expect(error.key == "apps[0].handOut.\(key)", "\(text)")
            }
        }
    }

    /// A look at 1,000 events that were handed out touches some 5,000 blocks: one look-up for each, and none of the
    /// 20,000 others.
    private static let blocksMax = 12_000

    @Test("the count looks at each event once, by its place, however many there are")
    func bounded() async throws {
        try await LedgerLab.with(connections: 1, endsSound: false) { lab in
            try await Self.follow(lab)
            try await lab.run(
                """
                insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body, at)
                select gen_random_uuid(), 'game', 'purchase.granted', 'u', 't' || n, gen_random_uuid(), '\(Self.goods)',
                  now() - interval '2 hours'
                from generate_series(1, 20000) n
                """)
            try await lab.run(
                """
                insert into hand_outs (transaction_id, event_id, app_id, type, environment, told_at, outcome, at)
                select transaction_id, event_id, app_id, type, 'Production', at, 'handed_out', at from events
                """)
            try await Self.tell(lab, "late")
            var seen = 0
            for isFirst in [true, false] {
                let blocks = try await lab.touched {
                    seen += try await lab.ledger.run(
                        Statements.countLateHandOuts, .init(appID: "game", most: 1000))[0]
                }
                if !isFirst { #expect(blocks <= Self.blocksMax) }
            }
            while case let step = try await lab.ledger.run(
                Statements.countLateHandOuts, .init(appID: "game", most: 1000))[0], step > 0
            { seen += step }
            #expect(seen == 20_001)
            #expect(try await lab.texts(Self.failures) == ["late 1"])
            let idle = try await lab.touched {
                _ = try await lab.ledger.run(Statements.countLateHandOuts, .init(appID: "game", most: 1000))
                _ = try await lab.ledger.run(Statements.waitingHandOuts, ())
            }
            #expect(idle <= 2000)
        }
    }
}
