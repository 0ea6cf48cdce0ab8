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
    /// Values of one document, a bound on memory: each takes some 40 bytes, and a comma and a digit in the text. Apple's
    /// own answers have a value for each 40 bytes, so 8 MiB of them fit.
    public static let valuesMax = 250_000
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
        /// More than `valuesMax` values.
        case count
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
    private var reader: JSONReader
    private(set) var field: String?
    /// The member of the outermost object whose elements are read each on its own.
    private let list: String?
    /// The entries of the last such list.
    private(set) var entries: [Result<JSONValue, JSONError>] = []
    private var isInEntry = false
    private var values = 0

    init(_ bytes: [UInt8], list: String? = nil) {
        reader = JSONReader(bytes, takesZero: false)
        self.list = list
    }

    mutating func document() throws(JSONError.Kind) -> JSONValue {
        let value = try value(depth: 0)
        try reader.end()
        return value
    }

    private mutating func value(depth: Int) throws(JSONError.Kind) -> JSONValue {
        values += 1
        guard values <= JSONValue.valuesMax else { throw .count }
        switch try reader.next() {
        case UInt8(ascii: "{"):
            guard depth < JSONValue.depthMax else { throw .depth }
            return .object(try members(depth: depth))
        case UInt8(ascii: "["):
            guard depth < JSONValue.depthMax else { throw .depth }
            return .array(try elements(depth: depth))
        case UInt8(ascii: "\""): return .string(try reader.string())
        case UInt8(ascii: "t"):
            try reader.word("true")
            return .bool(true)
        case UInt8(ascii: "f"):
            try reader.word("false")
            return .bool(false)
        case UInt8(ascii: "n"):
            try reader.word("null")
            return .null
        default:
            let number = try reader.number()
            guard number.text.utf8.count <= JSONValue.numberBytesMax, number.exponent <= JSONValue.exponentMax
            else { throw .number }
            return .number(number.text)
        }
    }

    private mutating func members(depth: Int) throws(JSONError.Kind) -> [JSONValue.Member] {
        reader.position += 1
        var members: [JSONValue.Member] = []
        if reader.takes(UInt8(ascii: "}")) { return members }
        repeat {
            let key = try reader.string()
            if depth == 0 { field = key }
            try reader.require(UInt8(ascii: ":"))
            members.append(.init(key, try value(depth: depth + 1)))
            if depth == 0 { field = nil }
        } while reader.takes(UInt8(ascii: ","))
        try reader.require(UInt8(ascii: "}"))
        return members
    }

    private mutating func elements(depth: Int) throws(JSONError.Kind) -> [JSONValue] {
        reader.position += 1
        var elements: [JSONValue] = []
        let areEntries = depth == 1 && !isInEntry && list != nil && field.isSameText(as: list)
        if areEntries { entries = [] }
        if reader.takes(UInt8(ascii: "]")) { return elements }
        repeat {
            if areEntries {
                entries.append(try entry())
            } else {
                elements.append(try value(depth: depth + 1))
            }
        } while reader.takes(UInt8(ascii: ","))
        try reader.require(UInt8(ascii: "]"))
        return elements
    }

    /// Reads an entry as a document of its own. The parser skips an entry that cannot be stored, and returns why.
    private mutating func entry() throws(JSONError.Kind) -> Result<JSONValue, JSONError> {
        let (start, outer) = (reader.position, field)
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
            reader.position = start
            try reader.skipValue()
            return .failure(failure)
        }
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

    private static func write(_ text: String, to output: inout [UInt8]) {
        output.append(UInt8(ascii: "\""))
        for byte in text.utf8 {
            switch byte {
            case UInt8(ascii: "\""), UInt8(ascii: "\\"):
                output.append(UInt8(ascii: "\\"))
                output.append(byte)
            case 0..<0x20:
                output.append(contentsOf: "\\u00".utf8)
                output.append(contentsOf: [byte].hexadecimal.utf8)
            default: output.append(byte)
            }
        }
        output.append(UInt8(ascii: "\""))
    }
}
