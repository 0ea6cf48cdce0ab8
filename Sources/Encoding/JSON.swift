/// A JSON value, read strictly by RFC 8259 from bytes nobody vouches for yet.
///
/// Why not `JSONDecoder`: it costs more than the signature check it stands beside, and it takes the last of two equal
/// keys, which in a JWS header allows algorithm confusion. A repeated key is an error everywhere here, and so is text
/// that would take more than linear time to compare (``Swift/String/isStreamSafe``).
public enum JSON: Hashable, Sendable {
    case null
    case bool(Bool)
    /// A number without fraction that fits: `appAppleId` and `price` do not survive as Double.
    case integer(Int64)
    /// Any other finite number.
    case number(Double)
    case string(String)
    case array([JSON])
    case object([String: JSON])

    /// Arrays and objects inside one another; Apple's payloads need 5.
    public static let depthLimit = 32

    public struct SyntaxError: Error {}

    public init(parsing bytes: [UInt8]) throws(SyntaxError) {
        var parser = Parser(bytes: bytes)
        self = try parser.document()
    }

    public var object: [String: JSON]? {
        if case .object(let members) = self { members } else { nil }
    }

    public var array: [JSON]? {
        if case .array(let elements) = self { elements } else { nil }
    }

    public var string: String? {
        if case .string(let text) = self { text } else { nil }
    }
}

// MARK: - Fields of a payload

/// A field has another JSON type than Apple documents.
public struct FieldMismatch: Error {
    public init() {}
}

/// Reads the fields of one object. Absent and `null` are both nil; another type is an error and never a crash.
extension [String: JSON] {
    public func string(_ key: String) throws(FieldMismatch) -> String? {
        switch self[key] {
        case nil, .null: nil
        case .string(let text): text
        default: throw FieldMismatch()
        }
    }

    public func bool(_ key: String) throws(FieldMismatch) -> Bool? {
        switch self[key] {
        case nil, .null: nil
        case .bool(let flag): flag
        default: throw FieldMismatch()
        }
    }

    public func int64(_ key: String) throws(FieldMismatch) -> Int64? {
        switch self[key] {
        case nil, .null: return nil
        case .integer(let value): return value
        case .number(let value):
            guard let exact = Int64(exactly: value) else { throw FieldMismatch() }
            return exact
        default: throw FieldMismatch()
        }
    }

    public func int(_ key: String) throws(FieldMismatch) -> Int? {
        guard let value = try int64(key) else { return nil }
        guard let exact = Int(exactly: value) else { throw FieldMismatch() }
        return exact
    }

    /// UNIX milliseconds, with a fraction in Xcode's data (AppleFacts 0); given as seconds.
    public func seconds(_ key: String) throws(FieldMismatch) -> Double? {
        switch self[key] {
        case nil, .null: nil
        case .integer(let milliseconds): Double(milliseconds) / 1000
        case .number(let milliseconds): milliseconds / 1000
        default: throw FieldMismatch()
        }
    }

    public func object(_ key: String) throws(FieldMismatch) -> [String: JSON]? {
        switch self[key] {
        case nil, .null: nil
        case .object(let members): members
        default: throw FieldMismatch()
        }
    }

    public func array(_ key: String) throws(FieldMismatch) -> [JSON]? {
        switch self[key] {
        case nil, .null: nil
        case .array(let elements): elements
        default: throw FieldMismatch()
        }
    }

    public func strings(_ key: String) throws(FieldMismatch) -> [String]? {
        try array(key)?.map { (element) throws(FieldMismatch) in
            guard let text = element.string else { throw FieldMismatch() }
            return text
        }
    }

    public func objects<Element>(
        _ key: String, _ read: ([String: JSON]) throws(FieldMismatch) -> Element
    ) throws(FieldMismatch) -> [Element]? {
        try array(key)?.map { (element) throws(FieldMismatch) in
            guard let members = element.object else { throw FieldMismatch() }
            return try read(members)
        }
    }
}

// MARK: - Reading

extension JSON {
    private struct Parser {
        let bytes: [UInt8]
        var position = 0

        init(bytes: [UInt8]) { self.bytes = bytes }

        mutating func document() throws(SyntaxError) -> JSON {
            let value = try value(depth: 0)
            skipWhitespace()
            guard position == bytes.count else { throw SyntaxError() }
            return value
        }

        private mutating func value(depth: Int) throws(SyntaxError) -> JSON {
            guard depth <= JSON.depthLimit else { throw SyntaxError() }
            skipWhitespace()
            guard position < bytes.count else { throw SyntaxError() }
            switch bytes[position] {
            case UInt8(ascii: "{"): return .object(try members(depth: depth))
            case UInt8(ascii: "["): return .array(try elements(depth: depth))
            case UInt8(ascii: "\""): return .string(try string())
            case UInt8(ascii: "t"): return try word("true", .bool(true))
            case UInt8(ascii: "f"): return try word("false", .bool(false))
            case UInt8(ascii: "n"): return try word("null", .null)
            default: return try number()
            }
        }

        private mutating func members(depth: Int) throws(SyntaxError) -> [String: JSON] {
            position += 1
            var members: [String: JSON] = [:]
            if takes(UInt8(ascii: "}")) { return members }
            members.reserveCapacity(32)
            repeat {
                skipWhitespace()
                guard position < bytes.count, bytes[position] == UInt8(ascii: "\"") else { throw SyntaxError() }
                let key = try string()
                guard takes(UInt8(ascii: ":")) else { throw SyntaxError() }
                let value = try value(depth: depth + 1)
                guard members.updateValue(value, forKey: key) == nil else { throw SyntaxError() }
            } while takes(UInt8(ascii: ","))
            guard takes(UInt8(ascii: "}")) else { throw SyntaxError() }
            return members
        }

        private mutating func elements(depth: Int) throws(SyntaxError) -> [JSON] {
            position += 1
            var elements: [JSON] = []
            if takes(UInt8(ascii: "]")) { return elements }
            repeat {
                elements.append(try value(depth: depth + 1))
            } while takes(UInt8(ascii: ","))
            guard takes(UInt8(ascii: "]")) else { throw SyntaxError() }
            return elements
        }

        private mutating func word(_ text: StaticString, _ value: JSON) throws(SyntaxError) -> JSON {
            let length = text.utf8CodeUnitCount
            guard position + length <= bytes.count,
                bytes[position..<position + length].elementsEqual(text.description.utf8)
            else { throw SyntaxError() }
            position += length
            return value
        }

        private mutating func string() throws(SyntaxError) -> String {
            position += 1
            let start = position
            position = Self.endOfPlain(bytes, from: start)
            guard position < bytes.count else { throw SyntaxError() }
            switch bytes[position] {
            case UInt8(ascii: "\""):
                let text = String(validating: bytes[start..<position], as: UTF8.self)
                position += 1
                guard let text, text.isStreamSafe else { throw SyntaxError() }
                return text
            case UInt8(ascii: "\\"): return try escapedString(from: start)
            default: throw SyntaxError()
            }
        }

        /// The position of the first byte from `start` on that does not stand for itself in a string.
        private static func endOfPlain(_ bytes: [UInt8], from start: Int) -> Int {
            bytes[start...].firstIndex { $0 < 0x20 || $0 == UInt8(ascii: "\"") || $0 == UInt8(ascii: "\\") }
                ?? bytes.count
        }

        /// The rest of a string from its first backslash on.
        private mutating func escapedString(from start: Int) throws(SyntaxError) -> String {
            var unescaped = Array(bytes[start..<position])
            while position < bytes.count {
                let byte = bytes[position]
                position += 1
                switch byte {
                case UInt8(ascii: "\""):
                    guard let text = String(validating: unescaped, as: UTF8.self), text.isStreamSafe else {
                        throw SyntaxError()
                    }
                    return text
                case UInt8(ascii: "\\"):
                    guard position < bytes.count else { throw SyntaxError() }
                    let escape = bytes[position]
                    position += 1
                    switch escape {
                    case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): unescaped.append(escape)
                    case UInt8(ascii: "b"): unescaped.append(0x08)
                    case UInt8(ascii: "f"): unescaped.append(0x0C)
                    case UInt8(ascii: "n"): unescaped.append(0x0A)
                    case UInt8(ascii: "r"): unescaped.append(0x0D)
                    case UInt8(ascii: "t"): unescaped.append(0x09)
                    case UInt8(ascii: "u"): unescaped.append(contentsOf: String(try unicodeEscape()).utf8)
                    default: throw SyntaxError()
                    }
                case 0..<0x20: throw SyntaxError()
                default: unescaped.append(byte)
                }
            }
            throw SyntaxError()
        }

        private mutating func unicodeEscape() throws(SyntaxError) -> Unicode.Scalar {
            let first = try hexadecimalQuad()
            if let scalar = Unicode.Scalar(first) { return scalar }
            // Half of a surrogate pair: only the high half may come first, and the low half must follow.
            guard (0xD800..<0xDC00).contains(first), position + 1 < bytes.count,
                bytes[position] == UInt8(ascii: "\\"), bytes[position + 1] == UInt8(ascii: "u")
            else { throw SyntaxError() }
            position += 2
            let second = try hexadecimalQuad()
            guard (0xDC00..<0xE000).contains(second),
                let scalar = Unicode.Scalar(0x10000 + (first - 0xD800) << 10 + (second - 0xDC00))
            else { throw SyntaxError() }
            return scalar
        }

        private mutating func hexadecimalQuad() throws(SyntaxError) -> UInt32 {
            guard position + 4 <= bytes.count else { throw SyntaxError() }
            var value: UInt32 = 0
            for byte in bytes[position..<position + 4] {
                guard let digit = Character(Unicode.Scalar(byte)).hexDigitValue, byte < 0x80 else {
                    throw SyntaxError()
                }
                value = value << 4 | UInt32(digit)
            }
            position += 4
            return value
        }

        private mutating func number() throws(SyntaxError) -> JSON {
            let start = position
            let isNegative = position < bytes.count && bytes[position] == UInt8(ascii: "-")
            if isNegative { position += 1 }
            let firstDigit = position
            var integer: Int64? = 0
            while position < bytes.count, let digit = Self.digit(bytes[position]) {
                integer = integer.flatMap { Self.appending(digit, to: $0, negative: isNegative) }
                position += 1
            }
            let digits = position - firstDigit
            guard digits > 0, digits == 1 || bytes[firstDigit] != UInt8(ascii: "0") else { throw SyntaxError() }

            var isPlain = true
            if position < bytes.count, bytes[position] == UInt8(ascii: ".") {
                isPlain = false
                position += 1
                try skipDigits()
            }
            if position < bytes.count, bytes[position] | 0x20 == UInt8(ascii: "e") {
                isPlain = false
                position += 1
                if position < bytes.count, bytes[position] == UInt8(ascii: "+") || bytes[position] == UInt8(ascii: "-")
                {
                    position += 1
                }
                try skipDigits()
            }
            if isPlain, let integer { return .integer(integer) }
            guard let value = Double(String(decoding: bytes[start..<position], as: UTF8.self)), value.isFinite else {
                throw SyntaxError()
            }
            return .number(value)
        }

        private mutating func skipDigits() throws(SyntaxError) {
            let start = position
            while position < bytes.count, Self.digit(bytes[position]) != nil { position += 1 }
            guard position > start else { throw SyntaxError() }
        }

        private static func digit(_ byte: UInt8) -> Int64? {
            let value = byte &- UInt8(ascii: "0")
            return value < 10 ? Int64(value) : nil
        }

        private static func appending(_ digit: Int64, to value: Int64, negative: Bool) -> Int64? {
            let (tens, overflow) = value.multipliedReportingOverflow(by: 10)
            let (sum, carry) =
                negative ? tens.subtractingReportingOverflow(digit) : tens.addingReportingOverflow(digit)
            return overflow || carry ? nil : sum
        }

        private mutating func skipWhitespace() {
            while position < bytes.count {
                switch bytes[position] {
                case 0x20, 0x0A, 0x0D, 0x09: position += 1
                default: return
                }
            }
        }

        /// Takes `byte` if it is the next one after white space.
        private mutating func takes(_ byte: UInt8) -> Bool {
            skipWhitespace()
            guard position < bytes.count, bytes[position] == byte else { return false }
            position += 1
            return true
        }
    }
}

// MARK: - Writing

extension JSON {
    /// Compact UTF-8 with sorted keys: equal values are equal bytes.
    public var bytes: [UInt8] {
        var output: [UInt8] = []
        write(to: &output)
        return output
    }

    private func write(to output: inout [UInt8]) {
        switch self {
        case .null: output.append(contentsOf: "null".utf8)
        case .bool(let flag): output.append(contentsOf: (flag ? "true" : "false").utf8)
        case .integer(let value): output.append(contentsOf: String(value).utf8)
        case .number(let value): output.append(contentsOf: value.description.utf8)
        case .string(let text): Self.write(text, to: &output)
        case .array(let elements):
            output.append(UInt8(ascii: "["))
            for (index, element) in elements.enumerated() {
                if index > 0 { output.append(UInt8(ascii: ",")) }
                element.write(to: &output)
            }
            output.append(UInt8(ascii: "]"))
        case .object(let members):
            output.append(UInt8(ascii: "{"))
            for (index, (key, value)) in members.sorted(by: { $0.key < $1.key }).enumerated() {
                if index > 0 { output.append(UInt8(ascii: ",")) }
                Self.write(key, to: &output)
                output.append(UInt8(ascii: ":"))
                value.write(to: &output)
            }
            output.append(UInt8(ascii: "}"))
        }
    }

    private static func write(_ text: String, to output: inout [UInt8]) {
        output.append(UInt8(ascii: "\""))
        for byte in text.utf8 {
            switch byte {
            case UInt8(ascii: "\""), UInt8(ascii: "\\"):
                output.append(UInt8(ascii: "\\"))
                output.append(byte)
            case 0..<0x20:
                let digits = Array("0123456789abcdef".utf8)
                output.append(contentsOf: "\\u00".utf8)
                output.append(digits[Int(byte >> 4)])
                output.append(digits[Int(byte & 0xF)])
            default: output.append(byte)
            }
        }
        output.append(UInt8(ascii: "\""))
    }
}

/// So that a model read from JSON has one mapping, whether it comes through a verifier or through a `JSONDecoder`.
extension JSON: Decodable {
    public init(from decoder: any Decoder) throws {
        let container = try decoder.singleValueContainer()
        if container.decodeNil() {
            self = .null
        } else if let flag = try? container.decode(Bool.self) {
            self = .bool(flag)
        } else if let integer = try? container.decode(Int64.self) {
            self = .integer(integer)
        } else if let number = try? container.decode(Double.self) {
            self = .number(number)
        } else if let text = try? container.decode(String.self) {
            self = .string(text)
        } else if let elements = try? container.decode([JSON].self) {
            self = .array(elements)
        } else {
            self = .object(try container.decode([String: JSON].self))
        }
    }
}
