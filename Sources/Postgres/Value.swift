public import Foundation
internal import Glibc

/// A value bound to a statement. It travels in PostgreSQL's binary format under an explicit type, so the server never
/// guesses a type; an enum or xid8 travels as text and is cast in the SQL (`$1::text::state`).
///
/// `nil` is NULL. A value that the type cannot hold is refused before anything is sent, as `PostgresError.data`: U+0000
/// in text (22021), a number out of range (22003), a date out of range (22008).
public enum Value: Sendable {
    case uuid(UUID?)
    case text(String?)
    /// int8
    case int(Int?)
    /// int4
    case int32(Int?)
    case bool(Bool?)
    /// float8
    case double(Double?)
    /// bytea
    case bytes([UInt8]?)
    /// jsonb
    case json(String?)
    /// timestamptz, rounded to the microsecond
    case date(Date?)

    case uuids([UUID])
    case texts([String?])
    /// int8[]
    case ints([Int?])
    /// int4[]
    case int32s([Int?])
    case bools([Bool?])
    /// float8[]
    case doubles([Double?])
    /// bytea[]
    case bytesArray([[UInt8]?])
    /// jsonb[]
    case jsons([String?])
    /// timestamptz[]
    case dates([Date?])
}

/// The types that this module supports, by their fixed object ids (PostgreSQL's catalogue file pg_type.dat).
enum TypeID {
    static let bool: UInt32 = 16
    static let bytea: UInt32 = 17
    static let char: UInt32 = 18
    static let name: UInt32 = 19
    static let int8: UInt32 = 20
    static let int2: UInt32 = 21
    static let int4: UInt32 = 23
    static let text: UInt32 = 25
    static let oid: UInt32 = 26
    static let json: UInt32 = 114
    static let float4: UInt32 = 700
    static let float8: UInt32 = 701
    static let unknown: UInt32 = 705
    static let bpchar: UInt32 = 1042
    static let varchar: UInt32 = 1043
    static let date: UInt32 = 1082
    static let timestamptz: UInt32 = 1184
    static let numeric: UInt32 = 1700
    static let uuid: UInt32 = 2950
    static let jsonb: UInt32 = 3802
    static let xid8: UInt32 = 5069

    static let boolArray: UInt32 = 1000
    static let byteaArray: UInt32 = 1001
    static let int4Array: UInt32 = 1007
    static let textArray: UInt32 = 1009
    static let varcharArray: UInt32 = 1015
    static let int8Array: UInt32 = 1016
    static let float8Array: UInt32 = 1022
    static let timestamptzArray: UInt32 = 1185
    static let uuidArray: UInt32 = 2951
    static let jsonbArray: UInt32 = 3807

    /// Ids from here on are given to types that a database defines itself: enums, citext.
    static let firstUserDefined: UInt32 = 16384
}

/// Microseconds between PostgreSQL's epoch (2000-01-01) and Foundation's (2001-01-01): 366 days.
let microsecondsBetweenEpochs: Int64 = 366 * 86_400 * 1_000_000

/// The values of one call in wire format: all bytes in one buffer, made on the caller's thread; of a
/// transaction on the connection's.
struct EncodedParameters: Sendable {
    private(set) var types: [UInt32] = []
    /// Where each value starts in `bytes`; nil is NULL.
    private(set) var offsets: [Int?] = []
    private(set) var lengths: [Int32] = []
    /// All values, after one spare byte: so there is an address for them even if all are empty.
    private(set) var bytes: [UInt8] = [0]

    init(_ values: [Value], statement: String) throws(PostgresError) {
        for value in values {
            do throws(Refusal) {
                try append(value)
            } catch {
                throw .data(sqlState: error.rawValue, statement: statement)
            }
        }
    }

    /// The SQLSTATE that the server would give.
    enum Refusal: String, Error {
        case zeroCharacter = "22021"
        case numberOutOfRange = "22003"
        case dateOutOfRange = "22008"
        case tooLong = "54000"
    }

    private mutating func append(_ value: Value) throws(Refusal) {
        switch value {
        case .uuid(let value): try scalar(TypeID.uuid, value) { (buffer, value) in buffer.append(uuid: value) }
        case .text(let value): try scalar(TypeID.text, value, Self.text)
        case .int(let value):
            try scalar(TypeID.int8, value) { (buffer, value) in buffer.append(bigEndian: Int64(value)) }
        case .int32(let value): try scalar(TypeID.int4, value, Self.int32)
        case .bool(let value): try scalar(TypeID.bool, value) { (buffer, value) in buffer.append(value ? 1 : 0) }
        case .double(let value):
            try scalar(TypeID.float8, value) { (buffer, value) in buffer.append(bigEndian: value.bitPattern) }
        case .bytes(let value): try scalar(TypeID.bytea, value) { (buffer, value) in buffer += value }
        case .json(let value): try scalar(TypeID.jsonb, value, Self.json)
        case .date(let value): try scalar(TypeID.timestamptz, value, Self.date)
        case .uuids(let values):
            try array(TypeID.uuidArray, of: TypeID.uuid, values) { (buffer, value) in buffer.append(uuid: value) }
        case .texts(let values): try array(TypeID.textArray, of: TypeID.text, values, Self.text)
        case .ints(let values):
            try array(TypeID.int8Array, of: TypeID.int8, values) { (buffer, value) in
                buffer.append(bigEndian: Int64(value))
            }
        case .int32s(let values): try array(TypeID.int4Array, of: TypeID.int4, values, Self.int32)
        case .bools(let values):
            try array(TypeID.boolArray, of: TypeID.bool, values) { (buffer, value) in buffer.append(value ? 1 : 0) }
        case .doubles(let values):
            try array(TypeID.float8Array, of: TypeID.float8, values) { (buffer, value) in
                buffer.append(bigEndian: value.bitPattern)
            }
        case .bytesArray(let values):
            try array(TypeID.byteaArray, of: TypeID.bytea, values) { (buffer, value) in buffer += value }
        case .jsons(let values): try array(TypeID.jsonbArray, of: TypeID.jsonb, values, Self.json)
        case .dates(let values): try array(TypeID.timestamptzArray, of: TypeID.timestamptz, values, Self.date)
        }
    }

    private typealias Encode<Element> = (inout [UInt8], Element) throws(Refusal) -> Void

    private mutating func scalar<Element>(
        _ type: UInt32, _ value: Element?, _ encode: Encode<Element>
    ) throws(Refusal) {
        types.append(type)
        guard let value else {
            offsets.append(nil)
            lengths.append(0)
            return
        }
        let start = bytes.count
        try encode(&bytes, value)
        try finish(from: start)
    }

    /// array_send's format: dimensions, has-nulls flag, element type, then count and lower bound of the one
    /// dimension (none for an empty array), then each element as length and bytes, -1 for NULL.
    private mutating func array<Element>(
        _ type: UInt32, of elementType: UInt32, _ values: [Element?], _ encode: Encode<Element>
    ) throws(Refusal) {
        types.append(type)
        let start = bytes.count
        bytes.append(bigEndian: Int32(values.isEmpty ? 0 : 1))
        bytes.append(bigEndian: Int32(values.contains { $0 == nil } ? 1 : 0))
        bytes.append(bigEndian: elementType)
        if !values.isEmpty {
            bytes.append(bigEndian: Int32(clamping: values.count))
            bytes.append(bigEndian: Int32(1))
        }
        for value in values {
            let lengthAt = bytes.count
            bytes.append(bigEndian: Int32(-1))
            guard let value else { continue }
            try encode(&bytes, value)
            guard let length = Int32(exactly: bytes.count - lengthAt - 4) else { throw .tooLong }
            bytes.write(length, at: lengthAt)
        }
        try finish(from: start)
    }

    private mutating func finish(from start: Int) throws(Refusal) {
        guard let length = Int32(exactly: bytes.count - start) else { throw .tooLong }
        offsets.append(start)
        lengths.append(length)
    }

    private static func text(_ buffer: inout [UInt8], _ value: String) throws(Refusal) {
        let start = buffer.count
        buffer.append(contentsOf: value.utf8)
        // memchr(3) reads the bytes just appended, which exist for the length of the closure; nil: no such byte.
        let hasZero = unsafe buffer.withUnsafeBytes { bytes in
            unsafe bytes.count > start && memchr(bytes.baseAddress! + start, 0, bytes.count - start) != nil
        }
        guard !hasZero else { throw .zeroCharacter }
    }

    /// jsonb_send's format: a version byte, then the text.
    private static func json(_ buffer: inout [UInt8], _ value: String) throws(Refusal) {
        buffer.append(1)
        try text(&buffer, value)
    }

    private static func int32(_ buffer: inout [UInt8], _ value: Int) throws(Refusal) {
        guard let small = Int32(exactly: value) else { throw .numberOutOfRange }
        buffer.append(bigEndian: small)
    }

    /// timestamptz_send's format: microseconds since 2000-01-01 00:00 UTC. The server accepts the years -4713 to
    /// 294276; both ends of Int64 mean infinity and cannot be reached here.
    private static func date(_ buffer: inout [UInt8], _ value: Date) throws(Refusal) {
        let microseconds = (value.timeIntervalSinceReferenceDate * 1_000_000).rounded()
        guard abs(microseconds) < 9_000_000_000_000_000_000 else { throw .dateOutOfRange }
        buffer.append(bigEndian: Int64(microseconds) + microsecondsBetweenEpochs)
    }
}

extension [UInt8] {
    /// Network byte order.
    fileprivate mutating func append(bigEndian value: some FixedWidthInteger) {
        // An integer's bytes, readable for the length of the closure.
        unsafe Swift.withUnsafeBytes(of: value.bigEndian) { unsafe append(contentsOf: $0) }
    }

    fileprivate mutating func append(uuid: UUID) {
        // Sixteen bytes, readable for the length of the closure.
        unsafe Swift.withUnsafeBytes(of: uuid.uuid) { unsafe append(contentsOf: $0) }
    }

    /// Overwrites four bytes in network byte order.
    fileprivate mutating func write(_ value: Int32, at index: Int) {
        for offset in 0..<4 { self[index + offset] = UInt8(truncatingIfNeeded: value >> (24 - 8 * offset)) }
    }
}
