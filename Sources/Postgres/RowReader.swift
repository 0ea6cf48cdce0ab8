public import Foundation

/// Decodes one row by column index. A statement's `read` borrows the reader, and cannot copy or keep it.
///
/// Columns arrive in PostgreSQL's binary format; a column of a type that cannot become the asked Swift type exactly,
/// an unexpected NULL, or an index out of range throws `PostgresError.undecodable`.
public struct RowReader: ~Copyable {
    private let result: QueryResult
    private let statement: String
    var row = 0

    init(_ result: consuming QueryResult, statement: String) {
        self.result = result
        self.statement = statement
    }

    public func uuid(_ column: Int) throws(PostgresError) -> UUID { try present(optionalUUID(column), column) }
    /// text, varchar, char, name, json as text, and types the database defines itself (enums, citext).
    public func text(_ column: Int) throws(PostgresError) -> String { try present(optionalText(column), column) }
    /// int2, int4, int8, oid, xid8, and numeric without a fraction.
    public func int(_ column: Int) throws(PostgresError) -> Int { try present(optionalInt(column), column) }
    public func bool(_ column: Int) throws(PostgresError) -> Bool { try present(optionalBool(column), column) }
    /// float4, float8, the integers up to 2^53, and numeric (the nearest double).
    public func double(_ column: Int) throws(PostgresError) -> Double { try present(optionalDouble(column), column) }
    public func bytes(_ column: Int) throws(PostgresError) -> [UInt8] { try present(optionalBytes(column), column) }
    /// timestamptz; date as its midnight in UTC.
    public func date(_ column: Int) throws(PostgresError) -> Date { try present(optionalDate(column), column) }
    /// jsonb or json, as its text.
    public func json(_ column: Int) throws(PostgresError) -> String { try present(optionalJSON(column), column) }

    public func texts(_ column: Int) throws(PostgresError) -> [String] {
        try elements(column, [TypeID.textArray, TypeID.varcharArray]) { $0.text }
    }

    public func uuids(_ column: Int) throws(PostgresError) -> [UUID] {
        try elements(column, [TypeID.uuidArray]) { $0.uuid }
    }

    /// int4[] or int8[].
    public func ints(_ column: Int) throws(PostgresError) -> [Int] {
        try elements(column, [TypeID.int4Array, TypeID.int8Array]) { bytes in
            bytes.count == 4 ? bytes.integer(Int32.self).map(Int.init) : bytes.integer(Int64.self).map(Int.init)
        }
    }

    public func optionalUUID(_ column: Int) throws(PostgresError) -> UUID? {
        try value(column) { (type, bytes) in type == TypeID.uuid ? bytes.uuid : nil }
    }

    public func optionalText(_ column: Int) throws(PostgresError) -> String? {
        try value(column) { (type, bytes) in
            switch type {
            case TypeID.text, TypeID.varchar, TypeID.bpchar, TypeID.name, TypeID.char, TypeID.unknown, TypeID.json,
                TypeID.firstUserDefined...:
                bytes.text
            default: nil
            }
        }
    }

    public func optionalInt(_ column: Int) throws(PostgresError) -> Int? {
        try value(column) { (type, bytes) in Self.int(type, bytes) }
    }

    public func optionalBool(_ column: Int) throws(PostgresError) -> Bool? {
        try value(column) { (type, bytes) in type == TypeID.bool && bytes.count == 1 ? bytes[0] != 0 : nil }
    }

    public func optionalDouble(_ column: Int) throws(PostgresError) -> Double? {
        try value(column) { (type, bytes) in
            switch type {
            case TypeID.float8: bytes.integer(UInt64.self).map(Double.init(bitPattern:))
            case TypeID.float4: bytes.integer(UInt32.self).map { Double(Float(bitPattern: $0)) }
            case TypeID.numeric: Numeric(bytes)?.double
            default: Self.int(type, bytes).flatMap { Double(exactly: $0) }
            }
        }
    }

    public func optionalBytes(_ column: Int) throws(PostgresError) -> [UInt8]? {
        try value(column) { (type, bytes) in type == TypeID.bytea ? bytes.array : nil }
    }

    public func optionalDate(_ column: Int) throws(PostgresError) -> Date? {
        try value(column) { (type, bytes) in
            switch type {
            case TypeID.timestamptz:
                // Both ends of the range mean infinity, which Date cannot say.
                guard let microseconds = bytes.integer(Int64.self), microseconds != .max, microseconds != .min,
                    case (let sinceReference, false) =
                        microseconds.subtractingReportingOverflow(microsecondsBetweenEpochs)
                else { return nil }
                return Date(timeIntervalSinceReferenceDate: Double(sinceReference) / 1_000_000)
            case TypeID.date:
                guard let days = bytes.integer(Int32.self), days != .max, days != .min else { return nil }
                return Date(timeIntervalSinceReferenceDate: Double(Int(days) - 366) * 86_400)
            default: return nil
            }
        }
    }

    public func optionalJSON(_ column: Int) throws(PostgresError) -> String? {
        try value(column) { (type, bytes) in
            switch type {
            case TypeID.jsonb: bytes.count > 0 && bytes[0] == 1 ? bytes.extracting(1...).text : nil
            case TypeID.json: bytes.text
            default: nil
            }
        }
    }

    private static func int(_ type: UInt32, _ bytes: Span<UInt8>) -> Int? {
        switch type {
        case TypeID.int8: bytes.integer(Int64.self).map(Int.init)
        case TypeID.int4: bytes.integer(Int32.self).map(Int.init)
        case TypeID.int2: bytes.integer(Int16.self).map(Int.init)
        case TypeID.oid: bytes.integer(UInt32.self).map(Int.init)
        case TypeID.xid8: bytes.integer(UInt64.self).flatMap(Int.init(exactly:))
        case TypeID.numeric: Numeric(bytes)?.int
        default: nil
        }
    }

    /// The error for a column whose value its reader does not know: a newer schema, or our bug.
    public func undecodable(_ column: Int) -> PostgresError { .undecodable(statement: statement, column: column) }

    private func present<Value>(_ value: Value?, _ column: Int) throws(PostgresError) -> Value {
        guard let value else { throw .undecodable(statement: statement, column: column) }
        return value
    }

    /// Decodes one value; nil for NULL. Throws if `decode` cannot decode it.
    private func value<Value>(
        _ column: Int, _ decode: (UInt32, Span<UInt8>) -> Value?
    ) throws(PostgresError) -> Value? {
        guard column >= 0, column < result.columnCount else {
            throw .undecodable(statement: statement, column: column)
        }
        let type = result.type(ofColumn: column)
        return try result.withBytes(row: row, column: column) { (bytes) throws(PostgresError) in
            guard let value = decode(type, bytes) else { throw .undecodable(statement: statement, column: column) }
            return value
        }
    }

    /// A one-dimensional array without NULLs, in array_send's format (see `EncodedParameters`).
    private func elements<Element>(
        _ column: Int, _ types: [UInt32], _ decode: (Span<UInt8>) -> Element?
    ) throws(PostgresError) -> [Element] {
        let elements: [Element]? = try value(column) { (type, bytes) in
            guard types.contains(type), let dimensions = bytes.integer(Int32.self, at: 0) else { return nil }
            guard dimensions > 0 else { return [] }
            guard dimensions == 1, let count = bytes.integer(Int32.self, at: 12), count >= 0 else { return nil }
            var elements: [Element] = []
            elements.reserveCapacity(Int(count))
            var offset = 20
            for _ in 0..<count {
                guard let length = bytes.integer(Int32.self, at: offset), length >= 0,
                    offset + 4 + Int(length) <= bytes.count,
                    let element = decode(bytes.extracting(offset + 4..<offset + 4 + Int(length)))
                else { return nil }
                elements.append(element)
                offset += 4 + Int(length)
            }
            return elements
        }
        return try present(elements, column)
    }
}

/// numeric_send's format: counts of digits, weight of the first, sign, digits after the point; then digits in base
/// 10,000 (numeric.c).
private struct Numeric {
    private let digits: [Int16]
    private let weight: Int
    private let isNegative: Bool

    init?(_ bytes: Span<UInt8>) {
        guard let count = bytes.integer(Int16.self, at: 0), count >= 0, bytes.count == 8 + 2 * Int(count),
            let weight = bytes.integer(Int16.self, at: 2), let sign = bytes.integer(UInt16.self, at: 4),
            sign == 0 || sign == 0x4000  // others are NaN and the infinities
        else { return nil }
        var digits: [Int16] = []
        for index in 0..<Int(count) {
            guard let digit = bytes.integer(Int16.self, at: 8 + 2 * index) else { return nil }
            digits.append(digit)
        }
        self.digits = digits
        self.weight = Int(weight)
        isNegative = sign != 0
    }

    /// nil if there is a fraction or it does not fit.
    var int: Int? {
        guard digits.count <= weight + 1 || digits.isEmpty else { return nil }
        var value = 0
        for index in 0..<(digits.isEmpty ? 0 : weight + 1) {
            let digit = index < digits.count ? Int(digits[index]) : 0
            let (shifted, overflow) = value.multipliedReportingOverflow(by: 10_000)
            let (sum, overflowToo) = shifted.subtractingReportingOverflow(digit)
            if overflow || overflowToo { return nil }
            value = sum
        }
        // Summed up negative, because Int.min has no positive counterpart.
        return isNegative ? value : (value == .min ? nil : -value)
    }

    /// The nearest double, by way of the decimal text.
    var double: Double? {
        let text = digits.map { digit in String(String(Int(digit) + 10_000).dropFirst()) }.joined()
        return Double("\(isNegative ? "-" : "")0\(text)e\((weight + 1 - digits.count) * 4)")
    }
}

extension Span<UInt8> {
    /// A whole value in network byte order.
    fileprivate func integer<Integer: FixedWidthInteger>(_: Integer.Type) -> Integer? {
        count == Integer.bitWidth / 8 ? integer(Integer.self, at: 0) : nil
    }

    fileprivate func integer<Integer: FixedWidthInteger>(_: Integer.Type, at offset: Int) -> Integer? {
        let size = Integer.bitWidth / 8
        guard offset >= 0, offset + size <= count else { return nil }
        var value: Integer = 0
        for index in offset..<offset + size { value = value << 8 | Integer(truncatingIfNeeded: self[index]) }
        return value
    }

    fileprivate var uuid: UUID? {
        guard count == 16 else { return nil }
        return UUID(
            uuid: (
                self[0], self[1], self[2], self[3], self[4], self[5], self[6], self[7],
                self[8], self[9], self[10], self[11], self[12], self[13], self[14], self[15]
            ))
    }

    fileprivate var text: String? {
        guard let text = try? UTF8Span(validating: self) else { return nil }
        return String(copying: text)
    }

    fileprivate var array: [UInt8] {
        // The pointer is used only inside the closure (Span.withUnsafeBufferPointer's documentation).
        unsafe withUnsafeBufferPointer { unsafe Array($0) }
    }
}
