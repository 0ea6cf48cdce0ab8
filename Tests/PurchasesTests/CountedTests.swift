import Encoding
import Testing

/// Goal: a number stands with the right words for people. Method: numbers around one.
@Suite struct CountedTests {
    @Test(
        "one has its own words",
        arguments: [(0, "0 receipts"), (1, "1 receipt"), (2, "2 receipts"), (11, "11 receipts")])
    func nouns(number: Int, text: String) {
        #expect(number.counted("receipt") == text)
    }

    @Test("words that are no plural with an s are given")
    func words() {
        #expect([0, 1, 2].map { $0.counted("try", "tries") } == ["0 tries", "1 try", "2 tries"])
        #expect(1.counted("chain stays", "chains stay") == "1 chain stays")
    }
}
