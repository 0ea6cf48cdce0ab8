import CRabbitMQ

/// The headers of a message that this module knows; all others are skipped.
struct MessageHeaders: Sendable, Equatable {
    /// W3C Trace Context of the bodies, a line each, in their order; an empty line for a body without one. With one
    /// body it is the header as the standard has it.
    var traceparent: String?
    var death: Death?

    static let traceparentName: StaticString = "traceparent"

    /// The trace of each body; empty if `traceparent` has not as many lines as there are bodies.
    func traceparents(of bodies: Int) -> [String?] {
        let lines = traceparent?.split(separator: "\n", omittingEmptySubsequences: false) ?? []
        return lines.count == bodies ? lines.map { $0.isEmpty ? nil : String($0) } : []
    }

    /// Joins the traces of the bodies, a line each; nil if no body has one.
    static func join(_ traceparents: [String?]) -> String? {
        guard traceparents.contains(where: { $0 != nil }) else { return nil }
        return MessageLines.join(traceparents.map { $0 ?? "" })
    }
}

/// Why and when the broker moved a message to the dead letters
/// (https://www.rabbitmq.com/docs/dlx#effects).
package struct Death: Sendable, Equatable {
    /// The queue that held the message before.
    package let queue: String
    /// `rejected`, `expired`, `maxlen` or `delivery_limit`.
    package let reason: String
    /// Seconds since 1970, by the broker's clock.
    package let at: Int?
}

extension MessageHeaders {
    /// Copies the known headers out of the library's memory; nil if none of them is there.
    init?(_ table: amqp_table_t) {
        // amqp.h, amqp_table_t: `num_entries` entries at `entries`.
        for index in unsafe 0..<Int(table.num_entries) {
            let entry = unsafe table.entries[index]
            switch unsafe String(entry.key) {
            case "traceparent": traceparent = unsafe Self.text(entry.value)
            // The newest first.
            case "x-death": death = unsafe Self.tables(entry.value).first.flatMap { unsafe Death($0) }
            default: break
            }
        }
        if traceparent == nil, death == nil { return nil }
    }

    fileprivate static func text(_ value: amqp_field_value_t) -> String? {
        // amqp.h, amqp_field_value_t: the kind says which member of the union is set.
        guard unsafe value.kind == UInt8(AMQP_FIELD_KIND_UTF8.rawValue) else { return nil }
        return unsafe String(value.value.bytes)
    }

    private static func tables(_ value: amqp_field_value_t) -> [amqp_table_t] {
        guard unsafe value.kind == UInt8(AMQP_FIELD_KIND_ARRAY.rawValue) else { return unsafe [] }
        let array = unsafe value.value.array
        // amqp.h, amqp_array_t: `num_entries` values at `entries`.
        var tables = unsafe [amqp_table_t]()
        for index in unsafe 0..<Int(array.num_entries) {
            let value = unsafe array.entries[index]
            if unsafe value.kind == UInt8(AMQP_FIELD_KIND_TABLE.rawValue) { unsafe tables.append(value.value.table) }
        }
        return unsafe tables
    }
}

extension Death {
    fileprivate init?(_ table: amqp_table_t) {
        var (queue, reason, at): (String?, String?, Int?) = (nil, nil, nil)
        // As above.
        for index in unsafe 0..<Int(table.num_entries) {
            let entry = unsafe table.entries[index]
            switch unsafe String(entry.key) {
            case "queue": queue = unsafe MessageHeaders.text(entry.value)
            case "reason": reason = unsafe MessageHeaders.text(entry.value)
            case "time":
                guard unsafe entry.value.kind == UInt8(AMQP_FIELD_KIND_TIMESTAMP.rawValue) else { break }
                at = unsafe Int(exactly: entry.value.value.u64)
            default: break
            }
        }
        guard let queue, let reason else { return nil }
        self.init(queue: queue, reason: reason, at: at)
    }
}
