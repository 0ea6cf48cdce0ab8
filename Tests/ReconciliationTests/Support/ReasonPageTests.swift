import Foundation
import Purchases
import Testing

@testable import Encoding
@testable import Support

/// Goal: the documentation's page of reasons is the page that the program generates. Method: the file against the page.
@Suite struct ReasonPageTests {
    @Test func theFileIsThePage() throws {
        let file = URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
            .deletingLastPathComponent().deletingLastPathComponent().appending(path: "deploy/reasons.md")
        let text = try String(contentsOf: file, encoding: .utf8)
        #expect(text == ReasonPage.text, "makegood reasons > deploy/reasons.md writes it anew")
    }

    @Test("each reason stands once, with a state, a remedy and a sentence")
    func complete() {
        let rows = ReasonPage.text.split(separator: "\n").filter { $0.hasPrefix("| `") }
        #expect(rows.count == Reason.allCases.count)
        for row in rows { #expect(row.split(separator: "|").allSatisfy { !$0.allSatisfy(\.isWhitespace) }, "\(row)") }
    }
}
