import Foundation
import Postgres
import Testing

@testable import Ledger

/// Goal: a person can read each statement, and each function and view of the schema, on one screen. Method: their lengths
/// as the server gets them, in lines of 120 characters.
@Suite(.timeLimit(.minutes(8))) struct StatementLengthTests {
    private static let linesMax = 60

    /// The lines of a text, of which a long one counts once for every 120 characters that it has begun.
    private static func lines(of text: String) -> Int {
        text.trimmingCharacters(in: .whitespacesAndNewlines).split(separator: "\n", omittingEmptySubsequences: false)
            .reduce(0) { $0 + max(1, ($1.count + 119) / 120) }
    }

    /// Expects that nothing is longer than a screen.
    private static func check(_ lengths: [String: Int]) {
        for (name, length) in lengths {
            #expect(length <= linesMax, "\(name) has \(length) lines")
        }
    }

    @Test("no statement of a service or of support has more than 60 lines")
    func statements() async throws {
        let statements = try await Release.current().statements
        let lengths = Dictionary(statements.map { ($0.name, Self.lines(of: $0.sql)) }, uniquingKeysWith: max)
        #expect(lengths["matching.owners_of_chains"] != nil)
        Self.check(lengths)
    }

    @Test("no function of the schema has more than 60 lines")
    func functions() async throws {
        try await LedgerLab.with { lab in
            let names = try await lab.texts(
                "select proname::text from pg_proc where pronamespace = 'public'::regnamespace order by oid")
            let texts = try await lab.texts(
                "select prosrc from pg_proc where pronamespace = 'public'::regnamespace order by oid")
            #expect(names.contains("erase_clear_user"))
            Self.check(Dictionary(zip(names, texts.map(Self.lines)), uniquingKeysWith: max))
        }
    }

    /// The texts of the views as the migrations have them, of each the newest: the server tells them in words of its own.
    private static func views(in migrations: [String]) -> [String: String] {
        var views: [String: String] = [:]
        for migration in migrations {
            let lines = migration.split(separator: "\n", omittingEmptySubsequences: false)
            for (index, line) in lines.enumerated() {
                guard let head = line.prefixMatch(of: /create (?:or replace )?view (\w+)/) else { continue }
                // A statement of a migration ends with the first line that ends with a semicolon.
                let length = lines[index...].prefix { !$0.hasSuffix(";") }.count + 1
                views[String(head.1)] = lines[index...].prefix(length).joined(separator: "\n")
            }
        }
        return views
    }

    @Test("no view of the schema has more than 60 lines")
    func views() async throws {
        let texts = Self.views(in: Schema.migrations.map(\.sql))
        try await LedgerLab.with { lab in
            let names = try await lab.texts(
                """
                select relname::text from pg_class
                where relnamespace = 'public'::regnamespace and relkind in ('v', 'm')
                """)
            #expect(names.contains("v_sweeps"))
            #expect(Set(names) == Set(texts.keys), "the text of each view is found")
            Self.check(texts.mapValues(Self.lines))
        }
    }

    @Test("of a view that a later migration restates the later text is measured")
    func restatedViews() {
        let texts = Self.views(in: [
            "create view v_a as\nselect 1;\ncreate view v_b as select 2;",
            "x;\ncreate or replace view v_a as\nselect 1,\n    2;\ny",
        ])
        #expect(
            texts == ["v_a": "create or replace view v_a as\nselect 1,\n    2;", "v_b": "create view v_b as select 2;"])
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
