import NIOCore
import Testing

@testable import makegood

/// Goal: every token of a token file is read unchanged, wherever the pieces in which the file is read end, and no other
/// line is taken for a token. Method: small files, and one of several pieces.
@Suite struct TokenFileTests {
    private func tokens(of text: String, by count: Int = 3) async throws -> [String] {
        try await withFolder { folder in
            let file = try TokenFile(path: try text.written(to: folder, as: "tokens"))
            var tokens: [String] = []
            while true {
                let more = try await file.next(count)
                tokens += more.map { String(buffer: $0) }
                if more.count < count { return tokens }
            }
        }
    }

    @Test(arguments: [
        ("", []), ("\n\n\r\n", []), ("a.b.c", ["a.b.c"]), ("a.b.c\n", ["a.b.c"]), ("a\r\nb\r\n", ["a", "b"]),
        ("a\n\nb\r\n\r\nc\r", ["a", "b", "c"]), ("a\nb\nc\nd\ne\nf\ng", ["a", "b", "c", "d", "e", "f", "g"]),
        ("AZaz09-_.\n", ["AZaz09-_."]),
    ]) func lines(_ text: String, _ expected: [String]) async throws {
        #expect(try await tokens(of: text) == expected)
    }

    @Test(arguments: [
        ("a b\n", 1), ("a\n\"\n", 2), ("a\n\n\nb=\n", 4), ("a\rb\n", 1), ("a\r\r\n", 1), ("a\nä\n", 2), ("a\u{0}", 1),
    ]) func noToken(_ text: String, _ line: Int) async throws {
        await #expect {
            try await tokens(of: text)
        } throws: { error in
            "\(error)".hasSuffix("/tokens, line \(line): not a signed transaction")
        }
    }

    /// Lines of 1 byte to 2.5 MB: the pieces of 1 MB end within tokens, and tokens span several.
    @Test func longFile() async throws {
        let lengths = (0..<600).map { 1 + $0 * 37 % 9000 } + [2_500_000, 1 << 20, (1 << 20) - 1, 1, 5]
        let written = lengths.enumerated().map { number, length in
            String(repeating: ["a", "-", "Z", "7"][number % 4], count: length)
        }
        #expect(try await tokens(of: written.joined(separator: "\r\n"), by: 100) == written)
        #expect(try await tokens(of: written.joined(separator: "\n") + "\n", by: 605) == written)
    }

    @Test func endlessLine() async throws {
        await #expect {
            try await tokens(of: String(repeating: "a", count: 20 << 20))
        } throws: { error in
            "\(error)".hasSuffix("/tokens, line 1: more than 16777216 bytes")
        }
    }
}
