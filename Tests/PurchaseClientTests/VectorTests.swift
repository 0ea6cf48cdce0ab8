import Testing

@testable import PurchaseClient

/// The file of vectors that an implementation in any language can run.
@Suite struct VectorTests {
    /// What happens to the journal of a script.
    enum Step {
        case event(JournalEvent)
        /// The newest post is answered.
        case answer(PostAnswer)
        /// The newest rest ends.
        case wake
        /// The store has what was written of the record.
        case stored(RecordKey)
        /// The store failed.
        case storeFailed(RecordKey)
        /// The app is killed, and starts with what was written.
        case restart
    }

    struct Script {
        let name: String
        var products: Set<String>?
        let steps: [Step]
    }

    /// Goal: the file is what the journal does.
    /// Method: it is rendered anew. With `MAKEGOOD_RENDER=1` it is written.
    @Test func theFileIsWhatTheJournalDoes() throws {
        var lines = ["{\"format\": 1,", "\"phases\": ["]
        let phases = PurchaseRecord.Phase.allCases.filter { $0 != .finished }
        for phase in phases {
            let given = TableTests.given(phase)
            lines.append("{\"phase\": \"\(phase)\",")
            lines.append(" \"given\": [\(given.map { Rendered($0).json() }.joined(separator: ",\n  "))],")
            lines.append(" \"cases\": [")
            let rows = TableTests.rows(phase)
            for (index, row) in rows.enumerated() {
                var watched = TableTests.watched(phase)
                let event = row.event(watched.journal)
                let actions = watched.handle(event)
                let after = watched.journal.records[TableTests.key(phase)].map { "\"\($0.phase)\"" } ?? "null"
                lines.append(
                    "  {\"event\": \(Rendered(event).json()), \"phase\": \(after), "
                        + "\"actions\": \(Rendered(actions).json())}"
                        + (index + 1 < rows.count ? "," : "]}" + (phase == phases.last ? "]," : ",")))
            }
        }
        lines.append("\"scripts\": [")
        for (index, script) in Self.scripts.enumerated() {
            lines += Self.play(script)
            lines[lines.count - 1] += index + 1 < Self.scripts.count ? "," : "]}"
        }
        try Page("deploy/client/vectors.json").holdWhole(lines.joined(separator: "\n") + "\n")
    }

    private static func play(_ script: Script) -> [String] {
        let policy = JournalPolicy(products: script.products)
        var watched = WatchedJournal(PurchaseJournal(policy: policy))
        var lines = ["{\"name\": \(Rendered.quoted(script.name)),"]
        if let products = script.products { lines.append(" \"products\": \(Rendered(products.sorted()).json()),") }
        lines.append(" \"steps\": [")
        for (index, step) in script.steps.enumerated() {
            let event: JournalEvent
            switch step {
            case .event(let given): event = given
            case .answer(let answer): event = .posted(number: watched.journal.round.batch?.number ?? 0, answer)
            case .wake: event = .woke(number: watched.journal.round.rest?.number ?? 0)
            case .stored(let key): event = .stored(key, revision: watched.written[key]?.revision ?? 0)
            case .storeFailed(let key): event = .storeFailed(key, revision: watched.written[key]?.revision ?? 0)
            case .restart:
                watched = watched.restarted
                event = .launched
            }
            let actions = watched.handle(event)
            #expect(watched.broken.isEmpty, "\(script.name)")
            let restarts = if case .restart = step { "\"restart\": true, " } else { "" }
            lines.append(
                "  {\(restarts)\"event\": \(Rendered(event).json()), \"actions\": \(Rendered(actions).json())}"
                    + (index + 1 < script.steps.count ? "," : "],"))
        }
        let left = watched.journal.inOrder.map { Rendered($0).json() }.joined(separator: ",\n  ")
        lines.append(" \"records\": [\(left)]}")
        return lines
    }

    // MARK: The scripts

    private static func login(_ user: UserID) -> [Step] {
        [.event(.launched), .event(.loggedIn(user)), .event(.installationIssued(token: "installation"))]
    }

    private static func pay(
        _ key: RecordKey, as user: UserID = .ann, order: String?, product: String = coins
    ) -> [Step] {
        var steps: [Step] = [.event(.begun(key)), .event(.described(key, user: user, .details(product)))]
        if let order { steps.append(.event(.ordered(key, order: order))) }
        return steps + [.event(.payRequested(key)), .stored(key)]
    }

    private static func found(_ id: String) -> RecordKey { RecordKey(transaction: id) }

    static var scripts: [Script] {
        let bought: [Step] = login(.ann) + pay(.a, order: orderA)
        let paid = bought + [.event(.returned(.a, .purchased(.of("1", .a))))]
        let safe: [Step] = [.answer(.answered([.a: .safe])), .event(.finished(transaction: "1"))]
        let answers: [(String, PaymentAnswer)] = [
            ("failed", .failed(transaction: nil)), ("failed, with the transaction's id", .failed(transaction: "1")),
            ("cancelled", .cancelled), ("an unknown result", .unknown), ("pending", .pending),
        ]
        var scripts = [
            Script(name: "a purchase, from the tap to the removal", steps: paid + safe),
            Script(
                name: "the store fails before the payment, and the payment is asked for again",
                steps: login(.ann) + [
                    .event(.begun(.a)), .event(.described(.a, user: .ann, .coins)), .event(.payRequested(.a)),
                    .storeFailed(.a), .event(.payRequested(.a)), .stored(.a),
                ]),
            Script(
                name: "killed before the payment was asked for: nothing is left",
                steps: login(.ann) + pay(.a, order: orderA).dropLast(2) + [.restart]),
            Script(
                name: "killed while the payment was under way, and it was paid",
                steps: bought + [.restart, .event(.loggedIn(.ann)), .event(.seen(.of("1", .a)))] + safe),
            Script(name: "killed with the proof", steps: paid + [.restart, .event(.loggedIn(.ann))] + safe),
            Script(
                name: "killed before the finish",
                steps: paid + [
                    safe[0], .restart, .event(.finishFailed(transaction: "1")), .event(.foregrounded), safe[1],
                ]),
            Script(
                name: "no answer: five tries, then the next occasion",
                steps: paid + Array(repeating: [.answer(.none), .wake], count: 5).flatMap { $0 }.dropLast()
                    + [.event(.foregrounded)] + safe),
            Script(
                name: "an error that claims to be safe is no word",
                steps: paid + [.answer(.answered([.a: .refused])), .wake] + safe),
            Script(
                name: "Retry-After is waited for, through an occasion",
                steps: paid + [.answer(.refused(status: 503, retryAfter: 40)), .event(.foregrounded), .wake] + safe),
            Script(
                name: "401 waits for the login",
                steps: paid + [.answer(.refused(status: 401)), .event(.foregrounded), .event(.loggedIn(.ann))] + safe),
            Script(
                name: "stored, asked about, and safe later",
                steps: paid + [
                    .answer(.answered([.a: .stored])), .event(.polled(.a, nil)), .event(.polled(.a, .stored)),
                    .event(.polled(.a, .safe)), safe[1],
                ]),
            Script(
                name: "the account changes: the record waits for its user",
                steps: paid + [
                    .event(.loggedIn(.bob)), .event(.foregrounded), .event(.loggedIn(.ann)),
                ] + safe),
            Script(
                name: "two purchases side by side, answered in the other order",
                steps: bought + pay(.b, order: orderB) + [
                    .event(.returned(.b, .purchased(.of("2", .b)))), .event(.seen(.of("1", .a))),
                    .event(.returned(.a, .purchased(.of("1", .a)))), .answer(.answered([.b: .safe])),
                    .answer(.answered([.a: .safe])),
                ]),
            Script(
                name: "a purchase without a record and without a user",
                steps: [
                    .event(.launched), .event(.seen(.of("1"))), .event(.seen(.of("1"))), .restart,
                    .event(.loggedIn(.bob)),
                    .answer(.answered([found("1"): .stored])), .event(.ordered(found("1"), order: orderB)),
                    .answer(.answered([found("1"): .safe])), .event(.finished(transaction: "1")),
                ]),
            Script(
                name: "a purchase that may be another user's goes to the next login",
                steps: [
                    .event(.launched), .event(.loggedIn(.bob)), .event(.seen(.of("1"))),
                    .answer(.answered([found("1"): .anothers])), .event(.loggedIn(.ann)),
                    .answer(.answered([found("1"): .safe])),
                ]),
            Script(
                name: "without a token: a payment under way waits for its own transaction",
                steps: login(.ann) + pay(.a, order: nil) + [.restart, .event(.loggedIn(.bob))]
                    + pay(.b, as: .bob, order: nil) + [
                        .event(.seen(.of("1"))), .event(.returned(.b, .purchased(.of("2")))),
                    ]),
            Script(
                name: "without a token: another user's answered record takes nothing",
                steps: login(.ann) + pay(.a, order: nil) + [
                    .event(.returned(.a, .cancelled)), .event(.loggedIn(.bob)), .event(.seen(.of("1"))),
                ]),
            Script(
                name: "the product is owned already, by another user",
                steps: bought + [
                    .event(.returned(.a, .pending)), .event(.loggedIn(.bob)),
                ] + pay(.b, as: .bob, order: orderB) + [.event(.returned(.b, .purchased(.of("1", .a))))]),
            Script(
                name: "a payment that failed three times is finished, and paid all the same",
                steps: bought + [
                    .event(.returned(.a, .failed(transaction: "1"))), .restart,
                    .event(.seenFailed(transaction: "1", product: coins)), .restart,
                    .event(.seenFailed(transaction: "1", product: coins)), .event(.finished(transaction: "1")),
                    .event(.loggedIn(.ann)), .event(.seen(.of("1", .unknown))),
                ] + safe),
            Script(
                name: "foreign products are not touched", products: [coins],
                steps: login(.ann) + [
                    .event(.seen(.of("9", product: "other"))), .event(.seenFailed(transaction: "9", product: "other")),
                    .event(.begun(.a)), .event(.described(.a, user: .ann, .details("other"))),
                ]),
        ]
        for (name, answer) in answers {
            scripts.append(
                Script(
                    name: "\(name), and paid all the same",
                    steps: bought + [
                        .event(.returned(.a, answer)), .restart, .event(.loggedIn(.ann)), .event(.seen(.of("1", .a))),
                    ] + safe))
        }
        return scripts
    }
}
