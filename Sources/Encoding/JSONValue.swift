/// A JSON value as a client sent it: nothing rounded, nothing dropped.
///
/// Why not `JSONDecoder`: numbers stay as they were written (a price of 0.10 stays 0.10, 2^64 survives), depth is
/// bounded, a lone surrogate is an error, U+0000 is told apart from a syntax error, and unknown fields are kept.
public enum JSONValue: Sendable, Equatable {
    public struct Member: Sendable, Equatable {
        public var key: String
        public var value: JSONValue

        public init(_ key: String, _ value: JSONValue) {
            self.key = key
            self.value = value
        }
    }

    case null
    case bool(Bool)
    /// As the client wrote it; `JSONValue.numberBytesMax` and `exponentMax` keep it inside PostgreSQL's numeric.
    case number(String)
    case string(String)
    case array([JSONValue])
    /// In the order in which the client wrote them. Of equal keys the last one counts.
    case object([Member])

    /// Arrays and objects inside one another.
    public static let depthMax = 32
    /// The longest number as text; a double needs 24.
    public static let numberBytesMax = 64
    /// 1e400 is no double and 1e200000 no numeric; the numbers that clients mean are far smaller.
    public static let exponentMax = 400

    public static func integer(_ value: Int) -> JSONValue { .number(String(value)) }

    public subscript(_ key: String) -> JSONValue? {
        guard case .object(let members) = self else { return nil }
        // By bytes: String's own equality takes two spellings of an accent for the same key.
        return members.last { $0.key.utf8.elementsEqual(key.utf8) }?.value
    }
}

/// Why bytes are no JSON that can be stored.
public struct JSONError: Error, Equatable {
    public enum Kind: Error, Equatable {
        /// No JSON text by RFC 8259: syntax, UTF-8, a lone surrogate, or something after the value.
        case syntax
        /// PostgreSQL's text cannot hold U+0000.
        case zeroCharacter
        case depth
        case number
    }

    public let kind: Kind
    /// The member of the outermost object in which it stands.
    public let field: String?

    public init(kind: Kind, field: String?) {
        self.kind = kind
        self.field = field
    }
}

// MARK: - Reading

extension JSONValue {
    /// One value and nothing else. Linear in the size of `bytes`, recursion at most `depthMax` deep.
    public init(parsing bytes: [UInt8]) throws(JSONError) {
        var parser = JSONParser(bytes)
        do throws(JSONError.Kind) {
            self = try parser.document()
        } catch {
            throw JSONError(kind: error, field: parser.field)
        }
    }
}

extension JSONValue {
    /// An object with a member that is a list of values, each read on its own.
    public struct Batch: Sendable {
        /// The object without the list.
        public let envelope: JSONValue
        /// Nil: there is no list, or the member is no list. An entry that cannot be stored says why, with its own
        /// field. An entry that is no JSON at all fails the whole document.
        public let entries: [Result<JSONValue, JSONError>]?

        /// Linear in the size of `bytes`. Entries may be as deep as a document.
        public init(parsing bytes: [UInt8], entriesOf list: String) throws(JSONError) {
            var parser = JSONParser(bytes, list: list)
            let value: JSONValue
            do throws(JSONError.Kind) {
                value = try parser.document()
            } catch {
                throw JSONError(kind: error, field: parser.field)
            }
            envelope = value
            guard case .array? = value[list] else {
                entries = nil
                return
            }
            entries = parser.entries
        }
    }
}

private struct JSONParser {
    private let bytes: [UInt8]
    private var position = 0
    private(set) var field: String?
    /// The member of the outermost object whose elements are read each on its own.
    private let list: String?
    /// The entries of the last such list.
    private(set) var entries: [Result<JSONValue, JSONError>] = []
    private var isInEntry = false

    init(_ bytes: [UInt8], list: String? = nil) {
        self.bytes = bytes
        self.list = list
    }

    mutating func document() throws(JSONError.Kind) -> JSONValue {
        let value = try value(depth: 0)
        skipWhitespace()
        guard position == bytes.count else { throw .syntax }
        return value
    }

    private mutating func value(depth: Int) throws(JSONError.Kind) -> JSONValue {
        skipWhitespace()
        guard position < bytes.count else { throw .syntax }
        switch bytes[position] {
        case UInt8(ascii: "{"):
            guard depth < JSONValue.depthMax else { throw .depth }
            return .object(try members(depth: depth))
        case UInt8(ascii: "["):
            guard depth < JSONValue.depthMax else { throw .depth }
            return .array(try elements(depth: depth))
        case UInt8(ascii: "\""): return .string(try string())
        case UInt8(ascii: "t"): return try word("true", .bool(true))
        case UInt8(ascii: "f"): return try word("false", .bool(false))
        case UInt8(ascii: "n"): return try word("null", .null)
        default: return .number(try number())
        }
    }

    private mutating func members(depth: Int) throws(JSONError.Kind) -> [JSONValue.Member] {
        position += 1
        var members: [JSONValue.Member] = []
        if takes(UInt8(ascii: "}")) { return members }
        repeat {
            skipWhitespace()
            guard position < bytes.count, bytes[position] == UInt8(ascii: "\"") else { throw .syntax }
            let key = try string()
            if depth == 0 { field = key }
            guard takes(UInt8(ascii: ":")) else { throw .syntax }
            members.append(.init(key, try value(depth: depth + 1)))
            if depth == 0 { field = nil }
        } while takes(UInt8(ascii: ","))
        guard takes(UInt8(ascii: "}")) else { throw .syntax }
        return members
    }

    private mutating func elements(depth: Int) throws(JSONError.Kind) -> [JSONValue] {
        position += 1
        var elements: [JSONValue] = []
        let areEntries = depth == 1 && !isInEntry && list != nil && field.isSameText(as: list)
        if areEntries { entries = [] }
        if takes(UInt8(ascii: "]")) { return elements }
        repeat {
            if areEntries {
                entries.append(try entry())
            } else {
                elements.append(try value(depth: depth + 1))
            }
        } while takes(UInt8(ascii: ","))
        guard takes(UInt8(ascii: "]")) else { throw .syntax }
        return elements
    }

    /// Reads an entry as a document of its own. The parser skips an entry that cannot be stored, and returns why.
    private mutating func entry() throws(JSONError.Kind) -> Result<JSONValue, JSONError> {
        let (start, outer) = (position, field)
        field = nil
        isInEntry = true
        defer {
            field = outer
            isInEntry = false
        }
        do throws(JSONError.Kind) {
            return .success(try value(depth: 0))
        } catch .syntax {
            field = outer
            throw .syntax
        } catch {
            let failure = JSONError(kind: error, field: field)
            position = start
            try skipValue()
            return .failure(failure)
        }
    }

    /// Skips to the end of a value, however deep it is. Only strings and brackets are looked at.
    private mutating func skipValue() throws(JSONError.Kind) {
        var depth = 0
        var isString = false
        while position < bytes.count {
            let byte = bytes[position]
            switch byte {
            case UInt8(ascii: "\\") where isString: position += 1
            case UInt8(ascii: "\""): isString.toggle()
            case _ where isString: break
            case UInt8(ascii: "["), UInt8(ascii: "{"): depth += 1
            // The end of a number without brackets is the end of the list, or its next comma.
            case UInt8(ascii: "]") where depth == 0, UInt8(ascii: ",") where depth == 0: return
            case UInt8(ascii: "]"), UInt8(ascii: "}"): depth -= 1
            default: break
            }
            position += 1
        }
        throw .syntax
    }

    private mutating func word(_ text: StaticString, _ value: JSONValue) throws(JSONError.Kind) -> JSONValue {
        let end = position + text.utf8CodeUnitCount
        guard end <= bytes.count, bytes[position..<end].elementsEqual(text.description.utf8) else { throw .syntax }
        position = end
        return value
    }

    /// Skips eight bytes at a time that are no quote, no backslash and no control character: a proof has thousands of
    /// them.
    private mutating func skipPlain() {
        let (ones, highs): (UInt64, UInt64) = (0x0101_0101_0101_0101, 0x8080_8080_8080_8080)
        // Not 0 where a byte is below `limit`, which is at most 0x80.
        func below(_ limit: UInt64, _ word: UInt64) -> UInt64 { (word &- (ones &* limit)) & ~word & highs }
        bytes.withUnsafeBytes { bytes in
            while position + 8 <= bytes.count {
                let word = bytes.loadUnaligned(fromByteOffset: position, as: UInt64.self)
                let quotes = word ^ (ones &* UInt64(UInt8(ascii: "\"")))
                let backslashes = word ^ (ones &* UInt64(UInt8(ascii: "\\")))
                guard (below(0x20, word) | below(1, quotes) | below(1, backslashes)) == 0 else { return }
                position += 8
            }
        }
    }

    private mutating func string() throws(JSONError.Kind) -> String {
        position += 1
        let start = position
        while position < bytes.count {
            skipPlain()
            guard position < bytes.count else { break }
            switch bytes[position] {
            case UInt8(ascii: "\""):
                // Most strings, the long proofs among them, have no escape and take one copy.
                guard let text = String(validating: bytes[start..<position], as: UTF8.self) else { throw .syntax }
                position += 1
                return text
            case UInt8(ascii: "\\"): return try escapedString(from: start)
            case 0: throw .zeroCharacter
            case 1..<0x20: throw .syntax
            default: position += 1
            }
        }
        throw .syntax
    }

    /// Reads the whole string, byte by byte from its first backslash on.
    private mutating func escapedString(from start: Int) throws(JSONError.Kind) -> String {
        var unescaped = Array(bytes[start..<position])
        while position < bytes.count {
            let byte = bytes[position]
            position += 1
            switch byte {
            case UInt8(ascii: "\""):
                guard let text = String(validating: unescaped, as: UTF8.self) else { throw .syntax }
                return text
            case UInt8(ascii: "\\"): try appendEscape(to: &unescaped)
            case 0: throw .zeroCharacter
            case 1..<0x20: throw .syntax
            default: unescaped.append(byte)
            }
        }
        throw .syntax
    }

    private mutating func appendEscape(to unescaped: inout [UInt8]) throws(JSONError.Kind) {
        guard position < bytes.count else { throw .syntax }
        let escape = bytes[position]
        position += 1
        switch escape {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): unescaped.append(escape)
        case UInt8(ascii: "b"): unescaped.append(0x08)
        case UInt8(ascii: "f"): unescaped.append(0x0C)
        case UInt8(ascii: "n"): unescaped.append(0x0A)
        case UInt8(ascii: "r"): unescaped.append(0x0D)
        case UInt8(ascii: "t"): unescaped.append(0x09)
        case UInt8(ascii: "u"): unescaped.append(contentsOf: String(Character(try unicodeEscape())).utf8)
        default: throw .syntax
        }
    }

    private mutating func unicodeEscape() throws(JSONError.Kind) -> Unicode.Scalar {
        let first = try hexadecimalQuad()
        guard first != 0 else { throw .zeroCharacter }
        if let scalar = Unicode.Scalar(first) { return scalar }
        // A surrogate: only the high half may come first, and the low half must follow.
        guard (0xD800..<0xDC00).contains(first), position + 1 < bytes.count,
            bytes[position] == UInt8(ascii: "\\"), bytes[position + 1] == UInt8(ascii: "u")
        else { throw .syntax }
        position += 2
        let second = try hexadecimalQuad()
        guard (0xDC00..<0xE000).contains(second),
            let scalar = Unicode.Scalar(0x10000 + (first - 0xD800) << 10 + (second - 0xDC00))
        else { throw .syntax }
        return scalar
    }

    private mutating func hexadecimalQuad() throws(JSONError.Kind) -> UInt32 {
        guard position + 4 <= bytes.count else { throw .syntax }
        var value: UInt32 = 0
        for byte in bytes[position..<position + 4] {
            guard byte < 0x80, let digit = Character(Unicode.Scalar(byte)).hexDigitValue else { throw .syntax }
            value = value << 4 | UInt32(digit)
        }
        position += 4
        return value
    }

    private mutating func number() throws(JSONError.Kind) -> String {
        let start = position
        _ = take { $0 == UInt8(ascii: "-") }
        if !take({ $0 == UInt8(ascii: "0") }) { try takeDigits() }
        if take({ $0 == UInt8(ascii: ".") }) { try takeDigits() }
        var exponent = 0
        if take({ $0 | 0x20 == UInt8(ascii: "e") }) {
            _ = take { $0 == UInt8(ascii: "+") || $0 == UInt8(ascii: "-") }
            let digits = position
            try takeDigits()
            exponent = Int(String(decoding: bytes[digits..<position], as: UTF8.self)) ?? .max
        }
        guard position - start <= JSONValue.numberBytesMax, exponent <= JSONValue.exponentMax else { throw .number }
        return String(decoding: bytes[start..<position], as: UTF8.self)
    }

    private mutating func takeDigits() throws(JSONError.Kind) {
        let start = position
        while take({ (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }) {}
        guard position > start else { throw .syntax }
    }

    private mutating func take(_ isWanted: (UInt8) -> Bool) -> Bool {
        guard position < bytes.count, isWanted(bytes[position]) else { return false }
        position += 1
        return true
    }

    /// Takes `byte` if it is the next one after white space.
    private mutating func takes(_ byte: UInt8) -> Bool {
        skipWhitespace()
        return take { $0 == byte }
    }

    private mutating func skipWhitespace() {
        while take({ $0 == 0x20 || $0 == 0x0A || $0 == 0x0D || $0 == 0x09 }) {}
    }
}

// MARK: - Writing

extension JSONValue {
    /// Compact UTF-8, members in their order.
    public var bytes: [UInt8] {
        var output: [UInt8] = []
        write(to: &output)
        return output
    }

    public var text: String { String(decoding: bytes, as: UTF8.self) }

    /// The same value with members sorted by the bytes of their keys. Of equal keys the last is kept, so equal values
    /// are equal bytes.
    public var canonical: JSONValue {
        switch self {
        case .null, .bool, .number, .string: return self
        case .array(let elements): return .array(elements.map(\.canonical))
        case .object(let members):
            var unique: [Member] = []
            let sorted = members.enumerated().sorted {
                $0.element.key.utf8.elementsEqual($1.element.key.utf8)
                    ? $0.offset < $1.offset : $0.element.key.utf8.lexicographicallyPrecedes($1.element.key.utf8)
            }
            for (_, member) in sorted {
                if let last = unique.last, last.key.utf8.elementsEqual(member.key.utf8) { unique.removeLast() }
                unique.append(Member(member.key, member.value.canonical))
            }
            return .object(unique)
        }
    }

    private func write(to output: inout [UInt8]) {
        switch self {
        case .null: output.append(contentsOf: "null".utf8)
        case .bool(let flag): output.append(contentsOf: (flag ? "true" : "false").utf8)
        case .number(let text): output.append(contentsOf: text.utf8)
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
            for (index, member) in members.enumerated() {
                if index > 0 { output.append(UInt8(ascii: ",")) }
                Self.write(member.key, to: &output)
                output.append(UInt8(ascii: ":"))
                member.value.write(to: &output)
            }
            output.append(UInt8(ascii: "}"))
        }
    }

    private static let hexadecimalDigits = Array("0123456789abcdef".utf8)

    private static func write(_ text: String, to output: inout [UInt8]) {
        output.append(UInt8(ascii: "\""))
        for byte in text.utf8 {
            switch byte {
            case UInt8(ascii: "\""), UInt8(ascii: "\\"):
                output.append(UInt8(ascii: "\\"))
                output.append(byte)
            case 0..<0x20:
                output.append(contentsOf: "\\u00".utf8)
                output.append(hexadecimalDigits[Int(byte >> 4)])
                output.append(hexadecimalDigits[Int(byte & 0xF)])
            default: output.append(byte)
            }
        }
        output.append(UInt8(ascii: "\""))
    }
}
