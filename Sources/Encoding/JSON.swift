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
    /// One value and nothing else. Linear in the size of `bytes`, recursion at most `depthLimit` deep.
    public init(parsing bytes: [UInt8]) throws(SyntaxError) {
        var reader = JSONReader(bytes, takesZero: true)
        do throws(JSONError.Kind) {
            self = try reader.json(depth: 0)
            try reader.end()
        } catch {
            throw SyntaxError()
        }
    }
}

extension JSONReader {
    fileprivate mutating func json(depth: Int) throws(JSONError.Kind) -> JSON {
        guard depth <= JSON.depthLimit else { throw .depth }
        switch try next() {
        case UInt8(ascii: "{"): return .object(try members(depth: depth))
        case UInt8(ascii: "["): return .array(try elements(depth: depth))
        case UInt8(ascii: "\""): return .string(try comparableString())
        case UInt8(ascii: "t"):
            try word("true")
            return .bool(true)
        case UInt8(ascii: "f"):
            try word("false")
            return .bool(false)
        case UInt8(ascii: "n"):
            try word("null")
            return .null
        default:
            let number = try number()
            if number.isWhole, let integer = Int64(number.text) { return .integer(integer) }
            guard let value = Double(number.text), value.isFinite else { throw .number }
            return .number(value)
        }
    }

    private mutating func members(depth: Int) throws(JSONError.Kind) -> [String: JSON] {
        position += 1
        var members: [String: JSON] = [:]
        if takes(UInt8(ascii: "}")) { return members }
        members.reserveCapacity(32)
        repeat {
            let key = try comparableString()
            try require(UInt8(ascii: ":"))
            guard members.updateValue(try json(depth: depth + 1), forKey: key) == nil else { throw .syntax }
        } while takes(UInt8(ascii: ","))
        try require(UInt8(ascii: "}"))
        return members
    }

    private mutating func elements(depth: Int) throws(JSONError.Kind) -> [JSON] {
        position += 1
        var elements: [JSON] = []
        if takes(UInt8(ascii: "]")) { return elements }
        repeat {
            elements.append(try json(depth: depth + 1))
        } while takes(UInt8(ascii: ","))
        try require(UInt8(ascii: "]"))
        return elements
    }

    private mutating func comparableString() throws(JSONError.Kind) -> String {
        let text = try string()
        guard text.isStreamSafe else { throw .syntax }
        return text
    }
}

// MARK: - Writing

extension JSON {
    /// Compact UTF-8 with sorted keys: equal values are equal bytes.
    public var bytes: [UInt8] { sorted.bytes }

    private var sorted: JSONValue {
        switch self {
        case .null: .null
        case .bool(let flag): .bool(flag)
        case .integer(let value): .number(String(value))
        case .number(let value): .number(value.description)
        case .string(let text): .string(text)
        case .array(let elements): .array(elements.map(\.sorted))
        case .object(let members):
            .object(members.sorted { $0.key < $1.key }.map { JSONValue.Member($0.key, $0.value.sorted) })
        }
    }
}
