package import Foundation
package import HTTPTypes
package import Logging

/// The id under which a caller's other systems know this request: W3C Trace Context,
/// https://www.w3.org/TR/trace-context/.
///
/// The id comes with a post, goes with the message over AMQP (in a header, never in the pointer), and stands in every
/// line that a process logs about the request, beside the receipt's id. It is stored nowhere and sent to nobody else:
/// requests to Apple hold only what Apple defines. A rescue from the row has no trace; from then on the receipt's id is
/// the one to follow.
///
/// Without a `traceparent` there is no trace, and nothing is done for it.
package struct TraceContext: Sendable, Equatable {
    /// The text of version 00, 55 bytes.
    package let traceparent: String
    /// The receipt that the task works on, if any.
    package var receiptID: UUID?

    /// The trace of the task that works for it, and of its children.
    @TaskLocal package static var current: TraceContext?

    /// 32 hexadecimal digits.
    package var traceID: String { String(traceparent.dropFirst(3).prefix(32)) }

    /// Whether the caller records this trace; then its steps are told in the log.
    package var isSampled: Bool { traceparent.utf8.last.map { $0 & 1 == 1 } ?? false }

    /// The level at which a step of the trace is logged. If the caller samples one post in a thousand, the log tells
    /// the steps of so many.
    package var level: Logger.Level { isSampled ? .info : .debug }

    /// Nil where it is not what the standard allows (3.2.2): such a text says nothing.
    package init?(_ text: String) {
        let bytes = Array(text.utf8)
        guard bytes.count >= Self.bytes else { return nil }
        let fields = bytes.prefix(Self.bytes).split(separator: UInt8(ascii: "-"), omittingEmptySubsequences: false)
        guard fields.map(\.count) == [2, 32, 16, 2], fields.joined().allSatisfy(Self.isHexadecimal) else { return nil }
        // An id of zeros only is not valid.
        guard fields[1...2].allSatisfy({ $0.contains { $0 != UInt8(ascii: "0") } }) else { return nil }
        switch String(decoding: fields[0], as: UTF8.self) {
        case "00":
            guard bytes.count == Self.bytes else { return nil }
            traceparent = text
        case "ff": return nil
        default:
            // A later version may have more fields behind another dash; the fields that we know are passed on as
            // version 00.
            guard bytes.count == Self.bytes || bytes[Self.bytes] == UInt8(ascii: "-"), let flags = bytes[54].hexDigit
            else { return nil }
            let ids = String(decoding: bytes[2..<53], as: UTF8.self)
            traceparent = "00\(ids)0\(flags & 1)"
        }
    }

    /// A trace that begins here, not sampled.
    package static func begun() -> TraceContext {
        func digits(_ bits: UInt64) -> String {
            let digits = String(bits, radix: 16)
            return String(repeating: "0", count: 16 - digits.count) + digits
        }
        func random() -> String { digits(UInt64.random(in: 1 ... .max)) }
        return TraceContext(traceparent: "00-\(random())\(random())-\(random())-00")
    }

    private init(traceparent: String) { self.traceparent = traceparent }

    /// The caller's trace; a new one where the caller's text is no trace (4.3.2); nil where the caller sends none.
    package static func of(_ headers: HTTPFields) -> TraceContext? {
        guard headers[.traceparent] != nil else { return nil }
        let given = headers[values: .traceparent]
        return (given.count == 1 ? TraceContext(given[0]) : nil) ?? begun()
    }

    /// Metadata for a logger: the trace and the receipt that the current task works for.
    package static let metadata = Logger.MetadataProvider {
        guard let current = TraceContext.current else { return [:] }
        var metadata = current.receiptID.map(LogKeys.receipt) ?? [:]
        metadata[LogKeys.trace] = "\(current.traceID)"
        return metadata
    }

    private static let bytes = 55

    private static func isHexadecimal(_ byte: UInt8) -> Bool { byte.hexDigit != nil }
}

extension UInt8 {
    /// The value of a lower-case digit; the standard requires lower case.
    fileprivate var hexDigit: UInt8? {
        switch self {
        case UInt8(ascii: "0")...UInt8(ascii: "9"): self - UInt8(ascii: "0")
        case UInt8(ascii: "a")...UInt8(ascii: "f"): self - UInt8(ascii: "a") + 10
        default: nil
        }
    }
}
