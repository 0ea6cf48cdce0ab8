import Foundation
import Testing

@testable import Ledger

/// Goal: a person can read each statement, and each function of the schema, on one screen. Method: their lengths as the
/// server gets them, in lines of 120 characters. What is longer stands here with its length as a ceiling, so that it can
/// only shrink.
@Suite(.timeLimit(.minutes(8))) struct StatementLengthTests {
    private static let linesMax = 60
    private static let longerStatements = [
        "repair.give": 94, "ledger.read_receipts": 89, "repair.own": 73,
    ]
    private static let longerFunctions = [
        "say_line": 87, "take_limit_place": 70, "retain_payloads": 68, "reopen_claim": 61,
    ]

    /// The lines of a text, of which a long one counts once for every 120 characters that it has begun.
    private static func lines(of text: String) -> Int {
        text.trimmingCharacters(in: .whitespacesAndNewlines).split(separator: "\n", omittingEmptySubsequences: false)
            .reduce(0) { $0 + max(1, ($1.count + 119) / 120) }
    }

    /// Expects that nothing is longer than its ceiling, and that no ceiling is left of what became short.
    private static func check(_ lengths: [String: Int], ceilings: [String: Int]) {
        for (name, length) in lengths {
            #expect(length <= ceilings[name] ?? linesMax, "\(name) has \(length) lines")
        }
        for name in ceilings.keys {
            #expect(lengths[name] ?? 0 > linesMax, "\(name) needs no ceiling any more")
        }
    }

    @Test("no statement of a service or of support has more than 60 lines, but for those that had more before")
    func statements() async throws {
        let statements = try await Release.current().statements
        let lengths = Dictionary(statements.map { ($0.name, Self.lines(of: $0.sql)) }, uniquingKeysWith: max)
        #expect(lengths["matching.owners_of_chains"] != nil)
        Self.check(lengths, ceilings: Self.longerStatements)
    }

    @Test("no function of the schema has more than 60 lines, but for those that had more before")
    func functions() async throws {
        try await LedgerLab.with { lab in
            let names = try await lab.texts(
                "select proname::text from pg_proc where pronamespace = 'public'::regnamespace order by oid")
            let texts = try await lab.texts(
                "select prosrc from pg_proc where pronamespace = 'public'::regnamespace order by oid")
            #expect(names.contains("erase_clear_user"))
            Self.check(
                Dictionary(zip(names, texts.map(Self.lines)), uniquingKeysWith: max), ceilings: Self.longerFunctions)
        }
    }

    @Test("a line counts once for every 120 characters that it has begun")
    func counting() {
        let line = { (count: Int) in String(repeating: "x", count: count) }
        for (text, expected) in [
            ("x", 1), ("x\n\nx", 3), (line(120), 1), (line(121), 2), (line(241), 3), ("\n\(line(120))\nx\n", 2),
        ] {
            #expect(Self.lines(of: text) == expected)
        }
    }
}
