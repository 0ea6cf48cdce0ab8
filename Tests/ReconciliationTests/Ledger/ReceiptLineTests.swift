import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger
@testable import Settings
@testable import Support

/// Goal: one proof of one user is one row; it follows the newest line of its posts, keeps a bounded number of lines,
/// and is not judged by older lines. Method: posts of one proof against a real ledger, in tables of lines that are
/// posted one after the other.
@Suite(.timeLimit(.minutes(8))) struct ReceiptLineTests {
    /// The line of one post.
    struct Words: Sendable {
        var order: String?
        var transaction: String?
        var item: String?
        var server: String?
        var details = "{}"

        func submission(_ payload: String, _ userID: String? = "u1") -> Submission {
            Submission(
                appID: "game", userID: userID, orderID: order, proof: .receipt(payload), transactionID: transaction,
                details: details, target: server.map { #"{"server": "\#($0)"}"# },
                declared: item.map { Declaration(item: $0) })
        }
    }

    struct Row: Sendable, CustomTestStringConvertible {
        let name: String
        let said: [Words]
        /// Order, transaction, item, server, and how often the line changed.
        let row: String
        let lines: Int

        var testDescription: String { name }
    }

    private static let rows: [Row] = [
        Row(name: "nothing else", said: [Words(order: "a"), Words(order: "a")], row: "a - - - 0", lines: 0),
        Row(
            name: "StoreKit's bare repost", said: [Words(order: "a", item: "x", server: "s"), Words()],
            row: "a - x s 0", lines: 0),
        Row(
            name: "another order", said: [Words(order: "a", item: "x"), Words(order: "b")], row: "b - x - 1", lines: 2),
        Row(name: "an item that was not said", said: [Words(), Words(item: "x")], row: "- - x - 1", lines: 2),
        Row(name: "another item", said: [Words(order: "a", item: "x"), Words(item: "y")], row: "a - y - 1", lines: 2),
        Row(
            name: "there and back", said: [Words(order: "a"), Words(order: "b"), Words(order: "a")], row: "a - - - 2",
            lines: 2),
        Row(
            name: "another purchase of it has words of its own",
            said: [Words(order: "a", transaction: "1", item: "x"), Words(transaction: "2")], row: "- 2 - - 1", lines: 2),
        Row(
            name: "which purchase is meant, where nothing is said of one alone",
            said: [
                Words(transaction: "1", server: "s"), Words(transaction: "2", server: "s"), Words(transaction: "3"),
            ],
            row: "- 3 - s 0", lines: 0),
    ]

    private static let columns = """
        select concat_ws(' ', coalesce(order_id, '-'), coalesce(transaction_id, '-'), coalesce(declared ->> 'item', '-'),
          coalesce(target ->> 'server', '-'), lines) from receipts
        """
    private static let linesMax = 16

    private static func say(_ words: Words, _ payload: String = "p", in lab: LedgerLab) async throws -> SaidResult {
        try await lab.ledger.say(words.submission(payload), linesMax: linesMax)
    }

    /// The first post of the proof.
    private static func post(_ words: Words = Words(), _ payload: String = "p", in lab: LedgerLab) async throws
        -> Posted
    {
        let submission = words.submission(payload)
        #expect(try await lab.ledger.insert(submission))
        return Posted(id: submission.receiptID, userID: "u1", appID: "game")
    }

    @Test("The newest counts, field by field", arguments: rows)
    func newest(_ row: Row) async throws {
        try await LedgerLab.with { lab in
            let posted = try await Self.post(row.said[0], in: lab)
            for words in row.said.dropFirst() {
                #expect(words.submission("p").receiptID == posted.id)
                #expect(try await Self.say(words, in: lab) != .full)
            }
            #expect(try await lab.texts(Self.columns) == [row.row])
            #expect(try await lab.number("select count(*) from receipt_lines") == row.lines)
            #expect(
                try await lab.ledger.fetch(posted.id)?.lines == row.row.split(separator: " ").last.flatMap { Int($0) })
        }
    }

    @Test(
        "Sixteen lines, the first post's among them; one more is refused, what is known is not, whether or not it has ended"
    )
    func bound() async throws {
        try await LedgerLab.with { lab in
            let posted = try await Self.post(Words(order: "0", details: #"{"n": 0}"#), in: lab)
            for number in 1..<Self.linesMax {
                #expect(try await Self.say(Words(order: "\(number)", details: #"{"n": 1}"#), in: lab) == .taken)
            }
            for order in ["16", "17"] { #expect(try await Self.say(Words(order: order), in: lab) == .full) }
            #expect(try await lab.texts(Self.columns) == ["15 - - - 15"])
            #expect(try await Self.say(Words(order: "3"), in: lab) == .taken)
            #expect(try await Self.say(Words(order: "3"), in: lab) == .same)
            #expect(try await lab.number("select count(*) from receipt_lines") == Self.linesMax)
            #expect(try await lab.number("select count(*) from receipt_lines where details = '{\"n\": 1}'") == 15)
            let verdict = try await lab.current(lab.verdict(posted, .transactions([.purchase("t1")])))
            #expect(try await lab.settle(verdict)[posted.id] == .granted)
            #expect(try await Self.say(Words(order: "16"), in: lab) == .full)
            #expect(try await Self.say(Words(order: "7"), in: lab) == .same)
        }
    }

    @Test(
        "Where what was said is what holds it, the new line alone counts",
        arguments: [
            (Reason.foreignOrder, true), (.foreignRecord, true), (.tokenDisputed, true), (.productUnknown, false),
            (.itemUnknown, false), (.foreignToken, false),
        ])
    func release(_ reason: Reason, isReleased: Bool) async throws {
        try await LedgerLab.with { lab in
            let posted = try await Self.post(Words(order: "a", item: "x", server: "s"), in: lab)
            try await lab.settle(posted, .purchase("t1", .held(reason)))
            #expect(try await Self.say(Words(), in: lab) == (isReleased ? .taken : .same))
            #expect(try await lab.texts(Self.columns) == [isReleased ? "- - - - 1" : "a - x s 0"])
            #expect(
                try await lab.number("select count(*) from receipts where due_at <= now()") == (isReleased ? 1 : 0))
        }
    }

    @Test("The same again makes a held or parked row due, at most once a minute")
    func nudge() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            let held = try await Self.post(in: lab)
            _ = try await Self.post(Words(), "fresh", in: lab)
            try await lab.settle(held, .purchase("t1", .held(.productUnknown)))
            func nudge() async throws -> Int {
                #expect(try await Self.say(Words(), in: lab) == .same)
                #expect(try await Self.say(Words(), "fresh", in: lab) == .same)
                #expect(try await Self.say(Words(), "unknown", in: lab) == .same)
                return try await lab.number("select count(*) from receipts where due_at <= now()")
            }
            #expect(try await nudge() == 0, "judged within the last minute")
            try await lab.run("update receipts set judged_at = now() - interval '61 seconds'")
            #expect(try await nudge() == 1)
            #expect(
                try await lab.texts("select id::text from receipts where due_at <= now()") == [
                    held.id.uuidString.lowercased()
                ])
            let claim = Statements.Claim(
                lane: .apple, apps: ["game"], limit: 10, rescueDelay: .seconds(60), rescueDelayMax: .seconds(3600))
            _ = try await lab.ledger.run(Statements.claim, claim)
            #expect(try await nudge() == 0, "it is on its way")
            try await lab.settle(held, .purchase("t1", .held(.productUnknown)))
            #expect(try await nudge() == 0, "once a minute")
            try await lab.settle(held, .purchase("t1"))
            // The test makes a receipt end after its verdict, which breaks an invariant.
            try await lab.run("update receipts set judged_at = now() - interval '1 hour'")
            #expect(try await nudge() == 0, "ended, and received, are left alone")
        }
    }

    @Test(
        "A new line makes a held row due at once, and one that follows a minute later; one that is tried waits a minute"
    )
    func due() async throws {
        try await LedgerLab.with { lab in
            let posted = try await Self.post(in: lab)
            try await lab.run("update receipts set due_at = now() + interval '1 hour'")
            func dueIn() async throws -> Int {
                try await lab.number("select ceil(extract(epoch from due_at - now()))::int from receipts")
            }
            #expect(try await Self.say(Words(order: "tried"), in: lab) == .taken)
            #expect((50...60).contains(try await dueIn()))
            try await lab.run("update receipt_lines set said_at = said_at - interval '2 minutes'")
            try await lab.settle(
                try await lab.current(lab.verdict(posted, .transactions([.purchase("t1", .held(.review))]))))
            #expect(try await Self.say(Words(order: "a"), in: lab) == .taken)
            #expect(try await dueIn() <= 0)
            try await lab.run("update receipts set due_at = now() + interval '1 hour'")
            for order in ["b", "c", "d"] {
                #expect(try await Self.say(Words(order: order), in: lab) == .taken)
                #expect((50...60).contains(try await dueIn()))
            }
        }
    }

    @Test("A verdict about an older line is refused, and does not delay what a newer line made due")
    func inFlight() async throws {
        try await LedgerLab.with { lab in
            let posted = try await Self.post(Words(order: "a"), in: lab)
            let verdict = lab.verdict(posted, .transactions([.purchase("t1")]))
            #expect(try await Self.say(Words(order: "b"), in: lab) == .taken)
            #expect(try await lab.settle(verdict).isEmpty)
            #expect(try await lab.grants == [])
            var later = Postponement(receiptID: posted.id, attempt: 0, dueIn: .seconds(900), reason: .appleUnavailable)
            #expect(try await !lab.ledger.postpone(later))
            later.lines = 1
            #expect(try await lab.ledger.postpone(later))
            #expect(try await lab.settle(try await lab.current(verdict))[posted.id] == .granted)
        }
    }

    @Test("A line about one purchase counts while another is meant, and a post that means none frees what it holds")
    func ofOthers() async throws {
        try await LedgerLab.with { lab in
            let posted = try await Self.post(Words(order: "theirs", transaction: "t1"), in: lab)
            try await lab.settle(posted, .purchase("t1", .held(.foreignOrder)), .purchase("t2", .held(.itemUnknown)))
            func others() async throws -> [String] {
                try #require(try await lab.ledger.fetch(posted.id)).otherLines.map {
                    "\($0.transactionID) \($0.orderID ?? "-") \($0.declared?.item ?? "-")"
                }
            }
            #expect(try await Self.say(Words(transaction: "t2", item: "x"), in: lab) == .taken)
            #expect(try await others() == ["t1 theirs -"], "its order still holds it, whenever it is judged")
            #expect(try await Self.say(Words(), in: lab) == .taken)
            #expect(try await others() == ["t2 - x"])
        }
    }

    @Test("What has ended takes an order's name and is not judged again")
    func ended() async throws {
        try await LedgerLab.with { lab in
            let posted = try await Self.post(Words(order: "a", transaction: "t1"), in: lab)
            try await lab.settle(posted, .purchase("t1"))
            #expect(try await Self.say(Words(transaction: "t2", item: "x", server: "s"), in: lab) == .same)
            #expect(try await Self.say(Words(order: "b", transaction: "t2", item: "x"), in: lab) == .taken)
            #expect(try await Self.say(Words(order: "b", transaction: "t1", item: "y"), in: lab) == .same)
            #expect(try await lab.texts(Self.columns) == ["a t1 - - 1"], "the answer is about what was named last")
            #expect(try await lab.state(posted) == "granted")
            #expect(try await lab.number("select count(*) from receipts where due_at is not null") == 0)
            #expect(
                try await lab.texts("select order_id from receipt_lines order by order_id") == ["a", "b"])
        }
    }

    @Test("Two orders that name the user are two posters: each keeps its own row, and its name")
    func withoutUser() async throws {
        try await LedgerLab.with { lab async throws in
            let posts = ["a", "b"].map { Words(order: $0).submission("p", nil) }
            for post in posts { #expect(try await lab.ledger.insert(post)) }
            var more = Words(order: "a", transaction: "1", item: "x").submission("p", nil)
            #expect(try await lab.ledger.say(more, linesMax: Self.linesMax) == .taken)
            more = Words(order: "a", transaction: "2").submission("p", nil)
            #expect(try await lab.ledger.say(more, linesMax: Self.linesMax) == .taken)
            #expect(try await lab.texts(Self.columns + " order by order_id") == ["a 2 - - 2", "b - - - 0"])
        }
    }

    @Test("The same line from two processes at once is one line")
    func atOnce() async throws {
        try await LedgerLab.with(connections: 4) { lab in
            let posted = try await Self.post(in: lab)
            let line = SaidLine(submission: Words(order: "a").submission("p"), linesMax: Self.linesMax)
            let results = try await withThrowingTaskGroup(of: [SaidResult].self) { group in
                for number in 0..<40 {
                    group.addTask {
                        number.isMultiple(of: 2)
                            ? [try await lab.ledger.say(line.submission, linesMax: line.linesMax)]
                            : try await lab.ledger.run(Statements.sayLines, [line, line]).map(\.result)
                    }
                }
                return try await group.reduce(into: []) { $0 += $1 }
            }
            #expect(results.count { $0 == .taken } == 1 && results.count { $0 == .same } == 59)
            #expect(try await lab.number("select count(*) from receipt_lines") == 2)
            #expect(try await lab.ledger.fetch(posted.id)?.lines == 1)
        }
    }

    @Test("An order finds the receipts that named it, first or later, and a timeline shows what was said")
    func found() async throws {
        try await LedgerLab.with { lab in
            let (first, second) = (try await lab.place("u1"), try await lab.place("u1"))
            let posted = try await Self.post(Words(order: first.uuidString), in: lab)
            #expect(try await Self.say(Words(order: second.uuidString), in: lab) == .taken)
            let explainer = Explainer(database: lab.database, keys: nil)
            for order in [first, second] {
                let view = try #require(try await lab.ledger.order(order))
                #expect(view.submissions?.map(\.id) == [posted.id.uuidString.lowercased()])
                let timeline = try #require(
                    try await explainer.timeline(of: .order(order), for: .support(apps: ["game"])))
                #expect(timeline.lines.map(\.what).count { $0 == .posted } == 1)
                #expect(timeline.lines.map(\.what).count { $0 == .said } == 2)
            }
            let timeline = try #require(
                try await explainer.timeline(of: .receipt(posted.id), for: .player(["game": "u1"])))
            #expect(timeline.lines.count { $0.what == .orderPlaced } == 2)
            #expect(timeline.text.contains("you said of receipt \(posted.id.uuidString.lowercased()): order "))
        }
    }

    @Test("What was said is erased with its user, under a key or in the clear", arguments: [true, false])
    func erased(isProtected: Bool) async throws {
        try await LedgerLab.with { lab in
            let keys = isProtected ? UserKeys(file: String(repeating: "0123456789abcdef", count: 4)) : nil
            let erasure = UserErasure(database: lab.database, keys: keys, actor: "ann")
            let name = erasure.name(of: "u1", app: "game")
            if let keys {
                try await lab.ledger.enter(
                    EnteredUser(appID: "game", key: name.key, sealed: keys.seal("u1", key: name.key, app: "game")))
            }
            let words = Words(order: "b", item: "x", server: "s", details: #"{"client": {"player": "u1"}}"#)
            for payload in ["ended", "open"] {
                #expect(try await lab.ledger.insert(Words(order: "a").submission(payload, name.key)))
                let again = words.submission(payload, name.key)
                #expect(try await lab.ledger.say(again, linesMax: Self.linesMax) == .taken)
            }
            let ended = Posted(
                id: words.submission("ended", name.key).receiptID, userID: name.key, appID: "game")
            try await lab.settle(try await lab.current(lab.verdict(ended, .transactions([.purchase("t1")]))))
            #expect(try await erasure.erase(name))
            let left =
                "select count(*) from receipt_lines where (coalesce(target, declared) is not null or details <> '{}')"
            #expect(try await lab.number("\(left) and receipt_id = '\(ended.id)'") == 0)
            #expect(
                try await lab.number("select count(*) from receipt_lines where details ? 'client'")
                    == (isProtected ? 1 : 0))
            #expect(try await lab.number("select count(*) from receipt_lines where order_id = 'b'") == 2)
            if !isProtected {
                // No line of an erased user is stored.
                #expect(
                    try await lab.ledger.say(Words(order: "c").submission("ended", name.key), linesMax: 16) == .same)
                #expect(try await lab.number("select count(*) from receipt_lines where order_id = 'c'") == 0)
            }
        }
    }
}

extension LedgerLab {
    /// The same verdict, for the newest line.
    fileprivate func current(_ verdict: Verdict) async throws -> Verdict {
        let row = try #require(try await ledger.fetch(verdict.receiptID))
        var current = Verdict(
            receiptID: verdict.receiptID, attempt: row.attempt, appID: verdict.appID, claim: verdict.claim,
            decisions: verdict.decisions, dueIn: verdict.dueIn)
        current.lines = row.lines
        return current
    }
}
