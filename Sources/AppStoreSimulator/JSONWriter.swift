/// Writes one JSON object straight into bytes, in the order of the calls.
///
/// Exists because bulk signing writes 10,000 payloads a call, and because Apple's field order should be readable in the
/// payloads.
struct JSONWriter {
    private(set) var bytes: [UInt8]
    private var needsComma = false

    init(capacity: Int = 512) {
        bytes = []
        bytes.reserveCapacity(capacity)
    }

    /// The bytes of one object whose fields `fill` writes.
    static func object(capacity: Int = 512, _ fill: (inout JSONWriter) -> Void) -> [UInt8] {
        var writer = JSONWriter(capacity: capacity)
        writer.braced(UInt8(ascii: "{"), UInt8(ascii: "}"), fill)
        return writer.bytes
    }

    mutating func field(_ key: String, _ value: String) {
        name(key)
        quoted(value)
    }

    mutating func field(_ key: String, _ value: some BinaryInteger) {
        name(key)
        bytes.append(contentsOf: String(value).utf8)
    }

    mutating func field(_ key: String, _ value: Double) {
        name(key)
        bytes.append(contentsOf: (value.isFinite ? String(value) : "null").utf8)
    }

    mutating func field(_ key: String, _ value: Bool) {
        name(key)
        bytes.append(contentsOf: (value ? "true" : "false").utf8)
    }

    /// Leaves the field out if there is no value, as Apple does.
    mutating func field(_ key: String, ifPresent value: String?) {
        if let value { field(key, value) }
    }

    /// Leaves the field out if there is no value, as Apple does.
    mutating func field(_ key: String, ifPresent value: (some BinaryInteger)?) {
        if let value { field(key, value) }
    }

    mutating func field(_ key: String, object fill: (inout JSONWriter) -> Void) {
        name(key)
        braced(UInt8(ascii: "{"), UInt8(ascii: "}"), fill)
    }

    mutating func field(_ key: String, array fill: (inout JSONWriter) -> Void) {
        name(key)
        braced(UInt8(ascii: "["), UInt8(ascii: "]"), fill)
    }

    /// An array of one price tier of a purchase with seats: price of each seat, and their number.
    mutating func field(_ key: String, tier price: Int64, _ quantity: Int) {
        field(
            key,
            array: { array in
                array.element { tier in
                    tier.field("price", price)
                    tier.field("quantity", quantity)
                }
            })
    }

    /// One object as an element of the array being written.
    mutating func element(_ fill: (inout JSONWriter) -> Void) {
        comma()
        braced(UInt8(ascii: "{"), UInt8(ascii: "}"), fill)
    }

    /// One string as an element of the array being written.
    mutating func element(_ value: String) {
        comma()
        quoted(value)
    }

    private mutating func comma() {
        if needsComma { bytes.append(UInt8(ascii: ",")) }
        needsComma = true
    }

    private mutating func name(_ key: String) {
        comma()
        quoted(key)
        bytes.append(UInt8(ascii: ":"))
    }

    private mutating func braced(_ open: UInt8, _ close: UInt8, _ fill: (inout JSONWriter) -> Void) {
        bytes.append(open)
        needsComma = false
        fill(&self)
        bytes.append(close)
        needsComma = true
    }

    /// RFC 8259 section 7: quotation mark, backslash and everything below U+0020 are escaped.
    private mutating func quoted(_ value: String) {
        bytes.append(UInt8(ascii: "\""))
        var plain = Array(value.utf8)[...]
        while let index = plain.firstIndex(where: Self.isEscaped) {
            bytes.append(contentsOf: plain[..<index])
            escape(plain[index])
            plain = plain[(index + 1)...]
        }
        bytes.append(contentsOf: plain)
        bytes.append(UInt8(ascii: "\""))
    }

    private static func isEscaped(_ byte: UInt8) -> Bool {
        byte < 0x20 || byte == UInt8(ascii: "\"") || byte == UInt8(ascii: "\\")
    }

    private mutating func escape(_ byte: UInt8) {
        switch byte {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"):
            bytes.append(UInt8(ascii: "\\"))
            bytes.append(byte)
        default:
            let digits = Array("0123456789abcdef".utf8)
            bytes.append(contentsOf: "\\u00".utf8)
            bytes.append(digits[Int(byte >> 4)])
            bytes.append(digits[Int(byte & 15)])
        }
    }
}
