import Encoding
package import Ledger

extension DayReport {
    /// The report for people: a headline, then sections with a line for each row. An empty section says so.
    package var text: String {
        let sections: [(String, [String])] = [
            ("received", receivedLines), ("refunds and reversals", endLines), ("not cleared", balanceLines),
            ("longer than the limit", overdue.map(Self.line)), ("open now", open.map(Self.line)),
            ("nets", nets.map(Self.line)), ("differences from Apple's books", differences.map(Self.line)),
            ("seals", sealLines), ("sample", sample.map(Self.line)),
        ]
        let headline =
            "report of \(day) (UTC), \(app ?? "all apps"), read at \(readAt)"
            + (isOver ? "" : "; the day is not over")
        return
            ([headline]
            + sections.map { title, lines in
                ([title] + (lines.isEmpty ? ["nothing"] : lines).map { "  " + $0 }).joined(separator: "\n")
            }).joined(separator: "\n\n")
    }

    /// A line for each way in, with the number of items in each state.
    private var receivedLines: [String] { Self.lines(of: received.filter { $0.account != Self.ends }) }

    private var endLines: [String] { Self.lines(of: received.filter { $0.account == Self.ends }) }

    private var balanceLines: [String] {
        received.filter { $0.balance > 0 }.map { row in
            Self.words(
                row.appId, row.environment, row.account,
                "\(row.state) \(row.balance)" + (row.oldestAt.map { ", the oldest of \($0)" } ?? ""))
        }
    }

    private var sealLines: [String] {
        seals.map { seals in
            [
                "\(SealHead.line(seals.block, seals.head)), of \(seals.sealedAt)",
                "of the day: \(seals.blocks.counted("block")), \(seals.corrections.counted("correction"))",
            ]
        } ?? []
    }

    private static let ends = "ends"

    /// Rows that follow one another and differ only in their state are one line.
    private static func lines(of rows: [Received]) -> [String] {
        var lines: [(way: String, items: Int, states: [String])] = []
        for row in rows {
            let way = words(row.appId, row.environment, row.account, row.source)
            if lines.last?.way != way { lines.append((way, 0, [])) }
            lines[lines.count - 1].items += row.items
            lines[lines.count - 1].states.append("\(row.state) \(row.items)")
        }
        return lines.map { "\($0.way): \($0.items) (\($0.states.joined(separator: ", ")))" }
    }

    private static func line(_ row: Overdue) -> String {
        words(row.appId, row.account)
            + ": \(row.items), the oldest of \(row.oldestAt): \(row.command)\n    "
            + row.ids.joined(separator: " ")
            + (row.items > row.ids.count ? " …" : "")
    }

    private static func line(_ row: Open) -> String {
        words(row.appId, row.account, row.state, row.reason)
            + ": \(row.items)" + (row.oldestAt.map { ", the oldest of \($0)" } ?? "")
    }

    private static func line(_ row: Net) -> String {
        words(row.appId, row.environment, row.net, "\(row.kind)s")
            + ": told \(row.told), caught \(row.caught), alone \(row.alone)"
    }

    private static func line(_ row: Difference) -> String {
        words(row.appId, row.category)
            + ": found \(row.found), healed \(row.healed), closed \(row.closed), open \(row.open)"
            + (row.oldestAt.map { ", the oldest of \($0)" } ?? "") + " (heals by: \(row.healsBy))"
    }

    private static func line(_ row: Sample) -> String {
        let bound = row.bound.map { bound in
            // In hundredths of a percent, rounded up: a bound must not look smaller than it is.
            let hundredths = Int((bound * 10_000).rounded(.up))
            let (whole, rest) = hundredths.quotientAndRemainder(dividingBy: 100)
            return "; with 95 % confidence fewer than \(whole).\(rest < 10 ? "0" : "")\(rest) % of all differ"
        }
        return words(row.appId, row.environment)
            + ": \(row.compared) of \(row.drawn.counted("drawn customer")) compared, of \(row.population); "
            + "\(row.differences.counted("difference")), \(row.explained) explained" + (bound ?? "")
    }

    private static func words(_ words: String...) -> String { words.filter { !$0.isEmpty }.joined(separator: " ") }
}
