import Crypto
import Encoding
import Foundation
import Purchases

/// The columns that a line of an imported file may have. The names are those of the API; case, spaces, `_` and `-` do
/// not matter, so `transaction_id` is `transactionId`.
package enum ImportColumn: String, Sendable, CaseIterable {
    case transactionId, originalTransactionId, userId, productId, purchasedAt, environment
    case since, token, orderId, item, quantity, promotion, priceMilliunits, currency, placedAt, payBy
    case server, role, country, bonus, givenAt

    fileprivate static let byName = Dictionary(uniqueKeysWithValues: allCases.map { (plain($0.rawValue), $0) })

    /// Nil for an unknown name.
    init?(named name: String) {
        guard name.utf8.count <= 64, let column = Self.byName[Self.plain(name)] else { return nil }
        self = column
    }

    private static func plain(_ name: String) -> String {
        String(decoding: name.utf8.filter { !" _-".utf8.contains($0) }, as: UTF8.self).lowercased()
    }
}

/// Why a file as a whole cannot be read.
package struct ImportFileError: Error, Equatable, CustomStringConvertible {
    package let description: String

    package init(_ description: String) { self.description = description }
}

/// One line of an imported file, with its values as they were written.
package struct ImportRecord: Sendable, Equatable {
    package enum Value: Sendable, Equatable {
        case text(String)
        case number(String)
        /// A value of another type: a list, an object, true or false.
        case other
    }

    /// The number of the record's first line, from 1.
    package let line: Int
    /// The values; for an unreadable line, the reason.
    package let values: Result<[ImportColumn: Value], Unreadable>

    package struct Unreadable: Error, Equatable {
        package let problem: String
    }
}

/// A file of comma-separated values, or of one JSON object a line, read record by record in bounded memory.
///
/// An unreadable line costs no other line: if a quote is never closed, the lines after it are read again.
package struct ImportFile {
    package enum Format: String, Sendable, CaseIterable {
        case csv, jsonl
    }

    /// The most lines of one record, where quoted values hold line ends.
    package static let recordLinesMax = 16
    private static let columnsMax = 256
    private static let ignoredMax = 20

    private var lines: LineReader
    private let format: Format
    private let digest = Digest()
    /// The column of each value of a CSV file; nil: unknown.
    private var header: [ImportColumn?] = []
    private var isHeaderRead = false
    /// Columns and members with unknown names; the first few.
    package private(set) var ignored: [String] = []

    package init(_ format: Format, _ source: @escaping LineReader.Source) {
        self.format = format
        lines = LineReader { [digest] in
            let bytes = try source()
            digest.hash.update(data: bytes)
            return bytes
        }
    }

    /// The hash of the bytes read so far, which identifies the file in the audit.
    private final class Digest {
        var hash = SHA256()
    }

    /// The SHA-256 of the bytes read so far, in hexadecimal.
    package var sha256: String { digest.hash.finalize().hexadecimal }

    /// The format that the file's name stands for; nil: none.
    package static func format(ofName name: String) -> Format? {
        switch name.split(separator: ".").last?.lowercased() {
        case "csv": .csv
        case "jsonl", "ndjson", "json": .jsonl
        default: nil
        }
    }

    /// Whether its last line had an end; without one the file may have been cut off.
    package var endsWithNewline: Bool { lines.endsWithNewline }

    /// The next record; nil at the end. Empty lines are skipped.
    ///
    /// - Parameter required: a CSV file must have these columns.
    /// - Throws: `ImportFileError`; the errors of the source.
    package mutating func next(requiring required: [ImportColumn]) throws -> ImportRecord? {
        if format == .csv, !isHeaderRead { try readHeader(required) }
        while let line = try lines.next() {
            guard let bytes = line.bytes else {
                return Self.broken(line, "is longer than \(LineReader.lineBytesMax) bytes")
            }
            if bytes.allSatisfy({ $0 == UInt8(ascii: " ") || $0 == UInt8(ascii: "\t") }) { continue }
            return format == .csv ? try csvRecord(line, bytes) : jsonRecord(line, bytes)
        }
        return nil
    }

    private static func broken(_ line: LineReader.Line, _ problem: String) -> ImportRecord {
        ImportRecord(line: line.number, values: .failure(.init(problem: problem)))
    }

    private mutating func note(_ name: String) {
        let name = String(decoding: name.utf8.prefix(64), as: UTF8.self)
        if ignored.count < Self.ignoredMax, !ignored.contains(name) { ignored.append(name) }
    }

    // MARK: CSV

    private mutating func readHeader(_ required: [ImportColumn]) throws {
        isHeaderRead = true
        guard let line = try lines.next(), let bytes = line.bytes, !bytes.isEmpty else {
            throw ImportFileError("is empty, or its first line is; it must name the columns")
        }
        if bytes.starts(with: [0xFF, 0xFE]) || bytes.starts(with: [0xFE, 0xFF]) {
            throw ImportFileError("is UTF-16; it must be UTF-8")
        }
        guard case .fields(let fields) = CSVLine.read(bytes), fields.count <= Self.columnsMax else {
            throw ImportFileError("has a first line that does not name columns")
        }
        for field in fields {
            let name = String(decoding: field, as: UTF8.self)
            let column = ImportColumn(named: name)
            if let column, header.contains(column) { throw ImportFileError("has two columns \(column.rawValue)") }
            header.append(column)
            if column == nil { note(name) }
        }
        guard let missing = required.first(where: { !header.contains($0) }) else { return }
        let hint = fields.count == 1 && (bytes.contains(UInt8(ascii: ";")) || bytes.contains(UInt8(ascii: "\t")))
        throw ImportFileError(
            "has no column \(missing.rawValue)\(hint ? "; its columns must be separated by commas" : "")")
    }

    private mutating func csvRecord(_ first: LineReader.Line, _ bytes: [UInt8]) throws -> ImportRecord {
        var bytes = bytes
        var more: [LineReader.Line] = []
        while true {
            let problem: String
            switch CSVLine.read(bytes) {
            case .fields(let fields) where fields.count == header.count: return record(first, fields)
            case .fields(let fields): problem = "has \(fields.count) values for \(header.count) columns"
            case .broken(let text): problem = text
            case .open:
                if more.count + 1 < Self.recordLinesMax, bytes.count < LineReader.lineBytesMax,
                    let line = try lines.next()
                {
                    more.append(line)
                    if let continuation = line.bytes {
                        bytes.append(UInt8(ascii: "\n"))
                        bytes += continuation
                        continue
                    }
                }
                problem = "opens a quote that is not closed"
            }
            // The further lines may be records of their own.
            lines.giveBack(more)
            return Self.broken(first, more.isEmpty ? problem : "opens a quote that is not closed as it should be")
        }
    }

    private func record(_ line: LineReader.Line, _ fields: [[UInt8]]) -> ImportRecord {
        var values: [ImportColumn: ImportRecord.Value] = [:]
        for (column, field) in zip(header, fields) {
            guard let column, !field.isEmpty else { continue }
            guard let text = String(validating: field, as: UTF8.self) else { return Self.broken(line, "is no UTF-8") }
            values[column] = .text(text)
        }
        return ImportRecord(line: line.number, values: .success(values))
    }

    // MARK: JSON lines

    private mutating func jsonRecord(_ line: LineReader.Line, _ bytes: [UInt8]) -> ImportRecord {
        guard case .object(let members)? = try? JSONValue(parsing: bytes) else {
            return Self.broken(line, "is no JSON object")
        }
        var values: [ImportColumn: ImportRecord.Value] = [:]
        for member in members {
            guard let column = ImportColumn(named: member.key) else {
                note(member.key)
                continue
            }
            switch member.value {
            case .null: values[column] = nil
            case .string(let text): values[column] = text.isEmpty ? nil : .text(text)
            case .number(let text): values[column] = .number(text)
            case .bool, .array, .object: values[column] = .other
            }
        }
        return ImportRecord(line: line.number, values: .success(values))
    }
}
