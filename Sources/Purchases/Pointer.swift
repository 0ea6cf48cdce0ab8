import Encoding
package import Foundation

/// The message that travels over AMQP: a receipt's id and the attempt that it belongs to, never the payload.
///
/// ASCII, at most 64 bytes: `receipt <uuid> <attempt>`. The first word is the kind.
package struct Pointer: Sendable, Equatable {
    package static let bytesMax = 64

    package let receiptID: UUID
    /// The row's attempt number when the message was published. A worker ignores a message whose number is not the
    /// row's.
    package let attempt: Int

    package init(receiptID: UUID, attempt: Int) {
        self.receiptID = receiptID
        self.attempt = attempt
    }

    package var text: String { "receipt \(receiptID.text) \(attempt)" }

    /// Nil for anything that is not exactly such a text: a dead letter.
    package init?(_ bytes: [UInt8]) {
        guard bytes.count <= Self.bytesMax else { return nil }
        let words = bytes.split(separator: UInt8(ascii: " "), omittingEmptySubsequences: false)
        guard words.count == 3, words[0].elementsEqual("receipt".utf8), let receiptID = UUID(text: words[1]),
            let attempt = Int(String(decoding: words[2], as: UTF8.self)), attempt >= 0,
            // One pointer has one text: "+1" and "01" are not what we publish.
            words[2].elementsEqual(String(attempt).utf8)
        else { return nil }
        self.init(receiptID: receiptID, attempt: attempt)
    }
}
