import Encoding
package import Foundation

/// The message that travels over AMQP: the id of a receipt or of a notification and the attempt that it belongs to,
/// never the payload. A ring is such a message too: it says that an endpoint has something due.
///
/// ASCII, at most 69 bytes: `receipt <uuid> <attempt>`, `notification <uuid> <attempt>` or `endpoint <uuid> 0`.
package struct Pointer: Sendable, Equatable {
    /// The kind of thing that the message points at. The raw value is the first word of the message.
    package enum Kind: String, Sendable, CaseIterable {
        case receipt, notification, endpoint
    }

    package static let bytesMax = 69

    package let kind: Kind
    /// Of the receipt, the notification or the endpoint.
    package let id: UUID
    /// The row's attempt number when the message was published. A worker ignores a message whose number is not the
    /// row's. A ring belongs to no attempt: 0.
    package let attempt: Int

    package init(receiptID: UUID, attempt: Int) {
        self.init(kind: .receipt, id: receiptID, attempt: attempt)
    }

    package init(notificationID: UUID, attempt: Int) {
        self.init(kind: .notification, id: notificationID, attempt: attempt)
    }

    package init(endpointID: UUID) {
        self.init(kind: .endpoint, id: endpointID, attempt: 0)
    }

    private init(kind: Kind, id: UUID, attempt: Int) {
        self.kind = kind
        self.id = id
        self.attempt = attempt
    }

    /// Nil: the message points at something else.
    package var receiptID: UUID? { kind == .receipt ? id : nil }

    package var text: String { "\(kind.rawValue) \(id.text) \(attempt)" }

    /// Nil for anything that is not exactly such a text: a dead letter.
    package init?(_ bytes: [UInt8]) {
        guard bytes.count <= Self.bytesMax else { return nil }
        let words = bytes.split(separator: UInt8(ascii: " "), omittingEmptySubsequences: false)
        guard words.count == 3, let kind = Kind.allCases.first(where: { words[0].elementsEqual($0.rawValue.utf8) }),
            let id = UUID(text: words[1]), let attempt = Int(String(decoding: words[2], as: UTF8.self)), attempt >= 0,
            // One pointer has one text: "+1" and "01" are not what we publish.
            words[2].elementsEqual(String(attempt).utf8), kind != .endpoint || attempt == 0
        else { return nil }
        self.init(kind: kind, id: id, attempt: attempt)
    }
}
