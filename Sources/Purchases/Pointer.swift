package import Foundation

/// What travels over AMQP: the receipt's id and the attempt it belongs to, never the payload.
///
/// ASCII, at most 64 bytes: `receipt <uuid> <attempt>`. The first word is the kind.
package struct Pointer: Sendable, Equatable {
    package static let bytesMax = 64

    package let receiptID: UUID
    /// The row's attempt number when this was published. Below the row's: stale, nobody acts on it.
    package let attempt: Int

    package init(receiptID: UUID, attempt: Int) {
        self.receiptID = receiptID
        self.attempt = attempt
    }

    package var text: String { "receipt \(receiptID.uuidString.lowercased()) \(attempt)" }

    /// Nil for anything that is not exactly such a text: a dead letter.
    package init?(_ bytes: [UInt8]) {
        guard bytes.count <= Self.bytesMax, let text = String(validating: bytes, as: UTF8.self) else { return nil }
        let words = text.split(separator: " ", omittingEmptySubsequences: false)
        guard words.count == 3, words[0] == "receipt", words[1].utf8.count == 36,
            let receiptID = UUID(uuidString: String(words[1])), let attempt = Int(words[2]), attempt >= 0
        else { return nil }
        self.init(receiptID: receiptID, attempt: attempt)
        // One pointer has one text: "+1", "01" and capital letters are not what we publish.
        guard self.text == text else { return nil }
    }
}
