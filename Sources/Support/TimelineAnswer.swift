package import Encoding
import Foundation
import Ledger
import Purchases

extension PlayerSentence {
    package var json: JSONValue { .object([.init("zh", .string(zh)), .init("en", .string(en))]) }
}

extension NextStep {
    /// The next step as JSON: a player learns the time, not our actions.
    fileprivate func json(_ audience: Audience) -> JSONValue {
        var members: [JSONValue.Member] = []
        if audience.isSupport || by != .operator { members.append(.init("by", .string(by.rawValue))) }
        if let at { members.append(.init("at", .string(at.rfc3339))) }
        if audience.isSupport { members.append(.init("what", .string(text))) }
        return .object(members)
    }
}

extension TimelineEntry {
    fileprivate var json: JSONValue {
        let said = sentence.map { [JSONValue.Member("sentence", $0.json)] } ?? []
        return .object(
            [
                .init("at", .string(at.rfc3339)), .init("what", .string(what.rawValue)), .init("text", .string(text)),
            ] + facts + said)
    }
}

extension Timeline {
    /// The timeline as JSON for programs: `GET …/explain` and `makegood explain --json`.
    package var json: JSONValue {
        var members: [JSONValue.Member] = [
            .init("kind", .string(subject.kind)), .init("id", .string(subject.id)), .init("appId", .string(appID)),
            .init("state", .string(standing.state)),
        ]
        if let reason = standing.reason { members.append(.init("reason", .string(reason))) }
        members += [
            .init("sentence", standing.sentence.json), .init("next", next.json(audience)),
            .init("receipts", .array(receipts.map(json))),
            .init("timeline", .array(lines.map(\.json))),
        ]
        return .object(members)
    }

    private func json(_ receipt: TimelineRows.Receipt) -> JSONValue {
        var members: [JSONValue.Member] = [
            .init("id", .string(receipt.id.text)),
            .init("state", .string(receipt.shownState.rawValue)),
        ]
        if let reason = receipt.reason { members.append(.init("reason", .string(reason))) }
        if let user = receipt.userId { members.append(.init("user", .string(audience.name(user, app: appID)))) }
        members.append(.init("receivedAt", .string(receipt.receivedAt.rfc3339)))
        if let repeats = receipt.repeats, let repeatedAt = receipt.repeatedAt {
            members += [.init("repeats", .integer(repeats)), .init("repeatedAt", .string(repeatedAt.rfc3339))]
        }
        if audience.isSupport {
            members += [.init("lane", .string(receipt.lane)), .init("attempts", .integer(receipt.attempt))]
        }
        let step = NextStep(receipt, app: appID, halts: halts, now: now)
        members.append(.init("next", step.json(audience)))
        return .object(members)
    }

    /// The timeline as text for a terminal.
    package var text: String {
        var head = "\(subject.kind) \(subject.id) of \(appID): \(standing.state)"
        if let reason = standing.reason { head += " (\(reason))" }
        let step = "next\(next.at.map { ", by \($0.rfc3339)" } ?? ""): \(next.text)"
        let width = TimelineEntry.What.allCases.map(\.rawValue.count).max() ?? 0
        let told = lines.map { line in
            "\(line.at.rfc3339)  \(line.what.rawValue.padding(toLength: width, withPad: " ", startingAt: 0))  \(line.text)"
        }
        return
            ([head, "tell the player: \(standing.sentence.zh)", "                 \(standing.sentence.en)", step, ""]
            + told)
            .joined(separator: "\n")
    }
}
