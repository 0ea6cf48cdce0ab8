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
