import Foundation
import Testing

@testable import PurchaseClient

/// The table of each phase and each event. The page TheTable.md is what this code renders.
@Suite struct TableTests {
    /// An event of the table, and what it is called there.
    struct Row {
        let name: String
        let event: (PurchaseJournal) -> JournalEvent

        init(_ name: String, _ event: JournalEvent) {
            self.name = name
            self.event = { _ in event }
        }

        init(_ name: String, of event: @escaping (PurchaseJournal) -> JournalEvent) {
            self.name = name
            self.event = event
        }
    }

    /// The record of the table.
    static func key(_ phase: PurchaseRecord.Phase) -> RecordKey {
        phase == .unclaimed ? RecordKey(transaction: "1") : .a
    }

    static func rows(_ phase: PurchaseRecord.Phase) -> [Row] {
        let key = key(phase)
        func post(_ answer: RecordAnswer) -> (PurchaseJournal) -> JournalEvent {
            { .posted(number: $0.round.number, .answered([key: answer])) }
        }
        return [
            Row("`foregrounded`", .foregrounded), Row("`shopOpened`", .shopOpened),
            Row("`loggedIn`, the record's user", .loggedIn(.ann)), Row("`loggedIn`, another user", .loggedIn(.bob)),
            Row("`loggedOut`", .loggedOut),
            Row("`begun`, another record", .begun(.b)), Row("`begun`, this key", .begun(key)),
            Row("`described`, by the user", .described(key, user: .ann, .details(coins, country: "CHN"))),
            Row("`described`, by another user", .described(key, user: .bob, .coins)),
            Row("`ordered`", .ordered(key, order: orderA)), Row("`orderFailed`", .orderFailed(key)),
            Row("`orderGranted`", .orderGranted(key, transaction: "1")), Row("`payRequested`", .payRequested(key)),
            Row("`abandoned`", .abandoned(key)),
            Row("`stored`") { .stored(key, revision: $0.records[key]?.revision ?? 0) },
            Row("`storeFailed`") { .storeFailed(key, revision: $0.records[key]?.revision ?? 0) },
            Row("`returned` with the transaction", .returned(key, .purchased(.of("1", .a)))),
            Row("`returned` with an earlier purchase of another user", .returned(key, .purchased(.of("2", .b)))),
            Row("`returned`: pending", .returned(key, .pending)),
            Row("`returned`: cancelled", .returned(key, .cancelled)),
            Row("`returned`: failed", .returned(key, .failed(transaction: nil))),
            Row("`returned`: failed, with the transaction's id", .returned(key, .failed(transaction: "1"))),
            Row("`returned`: unknown", .returned(key, .unknown)),
            Row("`seen`", .seen(.of("1", phase == .unclaimed ? .none : .a))),
            Row("`seen`, signed anew", .seen(.of("1", phase == .unclaimed ? .none : .a, signed: 2))),
            Row("`seen`, without a token", .seen(.of("1", .none))),
            Row("`seen`, one more purchase with the token", .seen(.of("3", .a))),
            Row("`seen`, another product, unknown token", .seen(.of("4", .b, product: "gems"))),
            Row("`seenFailed`", .seenFailed(transaction: "1", product: coins)),
            Row("`finished`", .finished(transaction: "1")), Row("`finishFailed`", .finishFailed(transaction: "1")),
            Row("`posted`: safe", of: post(.safe)), Row("`posted`: stored, not safe", of: post(.stored)),
            Row("`posted`: perhaps another user's", of: post(.anothers)),
            Row("`posted`: the record is refused", of: post(.refused)),
            Row("`posted`: the request is refused (400, 500 …)") {
                .posted(number: $0.round.number, .refused(status: 500))
            },
            Row("`posted`: 401") { .posted(number: $0.round.number, .refused(status: 401)) },
            Row("`posted`: `Retry-After`") {
                .posted(number: $0.round.number, .refused(status: 503, retryAfter: 40))
            },
            Row("`posted`: no answer") { .posted(number: $0.round.number, .none) },
            Row("`posted`, an old post: safe", .posted(number: 0, .answered([key: .safe]))),
            Row("`polled`: safe", .polled(key, .safe)), Row("`polled`: not safe", .polled(key, .stored)),
            Row("`polled`: perhaps another user's", .polled(key, .anothers)),
            Row("`polled`: 401", .polled(key, RecordAnswer(status: 401, isSafeToFinish: false))),
            Row("`polled`: no answer", .polled(key, nil)),
            Row("`woke`, late", .woke(number: 0)),
        ]
    }

    /// A journal whose one record is in this phase, by events alone. Ann is logged in; of a record that is owed a post
    /// is under way.
    static func watched(_ phase: PurchaseRecord.Phase) -> WatchedJournal {
        var watched = WatchedJournal()
        for event in given(phase) { _ = watched.handle(event) }
        return watched
    }

    /// The events that lead to the phase.
    static func given(_ phase: PurchaseRecord.Phase) -> [JournalEvent] {
        var events: [JournalEvent] = [.launched]
        if phase != .unclaimed {
            events += [.loggedIn(.ann), .installationIssued(token: "installation"), .begun(.a)]
            let described = [JournalEvent.described(.a, user: .ann, .coins), .ordered(.a, order: orderA)]
            let asked = described + [.payRequested(.a), .stored(.a, revision: 3)]
            let paid = asked + [.returned(.a, .purchased(.of("1", .a)))]
            switch phase {
            case .reserved, .unclaimed, .finished: break
            case .prepared: events += described
            case .asked: events += asked
            case .pending: events += asked + [.returned(.a, .pending)]
            case .unknown: events += asked + [.returned(.a, .unknown)]
            case .failed: events += asked + [.returned(.a, .failed(transaction: nil))]
            case .cancelled: events += asked + [.returned(.a, .cancelled)]
            case .paid: events += paid
            case .accepted: events += paid + [.posted(number: 1, .answered([.a: .stored])), .foregrounded]
            case .safe: events += paid + [.posted(number: 1, .answered([.a: .safe]))]
            }
        } else {
            events += [.installationIssued(token: "installation"), .seen(.of("1"))]
        }
        return events
    }

    /// Goal: what the page says is what the journal does, for every phase and every event; no step breaks a rule.
    /// Method: the page's table is rendered anew. With `MAKEGOOD_RENDER=1` it is written.
    @Test func thePageIsTheTable() throws {
        var lines = ["| phase | event | phase then | actions |", "| --- | --- | --- | --- |"]
        for phase in PurchaseRecord.Phase.allCases {
            var idle: [String] = []
            if phase != .finished {
                let before = Self.watched(phase)
                #expect(before.journal.records[Self.key(phase)]?.phase == phase)
                for row in Self.rows(phase) {
                    var watched = before
                    let actions = watched.handle(row.event(before.journal))
                    #expect(watched.broken.isEmpty, "\(phase), \(row.name)")
                    let after = watched.journal.records[Self.key(phase)]?.phase
                    if actions.isEmpty && after == phase && watched.journal.records == before.journal.records {
                        idle.append(row.name)
                    } else {
                        lines.append(Self.line(phase, row.name, after, actions))
                    }
                }
                #expect(before.journal.records.count == 1)
            }
            lines.append(try Self.launchLine(phase))
            if !idle.isEmpty { lines.append("| `\(phase)` | \(idle.joined(separator: "; ")) | the same | none |") }
        }
        try Page("Sources/PurchaseClient/PurchaseClient.docc/TheTable.md").hold(lines.joined(separator: "\n"))
    }

    /// What a start of the app makes of a stored record. Goes through the bytes of the store.
    private static func launchLine(_ phase: PurchaseRecord.Phase) throws -> String {
        var record = PurchaseRecord(key: .a, sequence: 1)
        if phase == .finished {
            record = try #require(watched(.safe).journal.records[.a])
            record.phase = .finished
        } else {
            record = try #require(watched(phase).journal.records[key(phase)])
        }
        guard case .record(let stored) = try StoredItem(decoding: StoredItem.record(record).encoded) else {
            throw UnreadableItem.malformed
        }
        #expect(stored == record)
        var watched = WatchedJournal(PurchaseJournal(records: [stored]))
        let actions = watched.handle(.launched)
        #expect(watched.broken.isEmpty)
        return line(phase, "`launched`, after a kill", watched.journal.records[record.key]?.phase, actions)
    }

    private static func line(
        _ phase: PurchaseRecord.Phase, _ event: String, _ after: PurchaseRecord.Phase?, _ actions: [JournalAction]
    ) -> String {
        let then = after.map { $0 == phase ? "the same" : "`\($0)`" } ?? "removed"
        let words = actions.map(\.inWords)
        return "| `\(phase)` | \(event) | \(then) | \(words.isEmpty ? "none" : words.joined(separator: ", ")) |"
    }
}

extension JournalAction {
    /// The action in a few words.
    var inWords: String {
        switch self {
        case .write(let record): "write `\(record.phase)`"
        case .erase: "erase"
        case .writeInstallation: "write the installation's token"
        case .pay: "**pay**"
        case .scan: "scan"
        case .finish: "**finish**"
        case .finishFailed: "finish as failed"
        case .refreshReceipt: "refresh the app receipt"
        case .askInstallation: "ask for an installation token"
        case .placeOrder(_, let transaction):
            transaction == nil ? "place an order" : "place an order for the transaction"
        case .askOrder: "ask about the order"
        case .post(let post): "post as \(post.user == .ann ? "the user" : "the other user")"
        case .poll(_, _, let seconds): "poll after \(seconds) s"
        case .report(let report): "report `\(report.kind)`"
        case .wake(_, let seconds): "wake after \(seconds) s"
        case .tell(.refused(_, let reason)): "tell `refused` (`\(reason)`)"
        case .tell(let notice): "tell `\(Mirror(reflecting: notice).children.first?.label ?? "\(notice)")`"
        }
    }
}

/// A page of the repository, a part of which is rendered from the code.
struct Page {
    let url: URL

    /// - Parameter path: from the root of the checkout.
    init(_ path: String) {
        url = URL(filePath: #filePath).resolvingSymlinksInPath().deletingLastPathComponent().deletingLastPathComponent()
            .deletingLastPathComponent().appending(path: path)
    }

    /// Holds the text between the two marks of the table against what was rendered, or writes it.
    func hold(_ rendered: String, place: SourceLocation = #_sourceLocation) throws {
        let text = try String(contentsOf: url, encoding: .utf8)
        let begin = try #require(text.range(of: "<!-- table -->\n"))
        let end = try #require(text.range(of: "\n<!-- end -->"))
        try write(text[..<begin.upperBound] + rendered + text[end.lowerBound...], instead: text, place)
    }

    /// Holds the whole file against what was rendered, or writes it.
    func holdWhole(_ rendered: String, place: SourceLocation = #_sourceLocation) throws {
        let text = (try? String(contentsOf: url, encoding: .utf8)) ?? ""
        try write(Substring(rendered), instead: text, place)
    }

    private func write(_ rendered: some StringProtocol, instead text: String, _ place: SourceLocation) throws {
        if ProcessInfo.processInfo.environment["MAKEGOOD_RENDER"] == "1" {
            try String(rendered).write(to: url, atomically: true, encoding: .utf8)
        } else {
            #expect(
                rendered == text, "\(url.lastPathComponent) is not what the code renders: MAKEGOOD_RENDER=1 writes it",
                sourceLocation: place)
        }
    }
}
