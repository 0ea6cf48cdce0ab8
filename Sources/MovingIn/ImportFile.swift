import Crypto
import Encoding
import Foundation
import Purchases

/// The columns that a line of an imported file may have. The names are those of the API, or those of the system that
/// wrote the file (`ImportOrigin`); case, spaces, `_` and `-` do not matter, so `transaction_id` is `transactionId`.
package enum ImportColumn: String, Sendable, CaseIterable {
    case transactionId, originalTransactionId, userId, productId, purchasedAt, environment
    case since, token, orderId, item, quantity, promotion, priceMilliunits, currency, placedAt, payBy
    case server, role, country, bonus, givenAt
    /// Only in files of other systems.
    case store, isSandbox, ownership, refundedAt, event, firstUserId

    private static let foreign: [Self] = [.store, .isSandbox, .ownership, .refundedAt, .event, .firstUserId]
    private static let own = Dictionary(
        uniqueKeysWithValues: allCases.filter { !foreign.contains($0) }.map { (plain($0.rawValue), $0) })
    private static let ofOrigins = Dictionary(
        uniqueKeysWithValues: ImportOrigin.allCases.map { origin in
            let names = allCases.flatMap { column in
                origin.names(of: column).enumerated().map { (plain($1), (column: column, rank: $0)) }
            }
            return (origin, Dictionary(uniqueKeysWithValues: names))
        })

    /// The column of a name, and how many names of the column are preferred to it; nil: an unknown name.
    static func named(_ name: String, from origin: ImportOrigin?) -> (column: Self, rank: Int)? {
        guard name.utf8.count <= 64 else { return nil }
        guard let origin else { return own[plain(name)].map { ($0, 0) } }
        return ofOrigins[origin]?[plain(name)]
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

/// A file of values separated by commas, semicolons or tabs, or of one JSON object a line, read record by record in
/// bounded memory.
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
    private let origin: ImportOrigin?
    private let digest = Digest()
    private var separator = CSVLine.separators[0]
    /// The names of a CSV file's columns, as the first line has them.
    private var names: [[UInt8]] = []
    /// The column of each value of a CSV file; nil: unknown.
    private var header: [ImportColumn?] = []
    /// Whether the columns that the file needs were looked for.
    private var isHeaderRead = false
    /// Columns and members with unknown names; the first few.
    package private(set) var ignored: [String] = []

    /// - Parameter origin: the system that wrote the file; nil: the columns have Makegood's names.
    package init(_ format: Format, from origin: ImportOrigin? = nil, _ source: @escaping LineReader.Source) {
        self.format = format
        self.origin = origin
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

    /// The format that the file's name stands for; nil: none. A compressed file has the format of what is in it, and
    /// is refused when it is read.
    package static func format(ofName name: String) -> Format? {
        let parts = name.split(separator: ".").map { $0.lowercased() }
        return switch parts.last == "gz" ? parts.dropLast().last : parts.last {
        case "csv": .csv
        case "jsonl", "ndjson", "json": .jsonl
        default: nil
        }
    }

    /// Whether its last line had an end; without one the file may have been cut off.
    package var endsWithNewline: Bool { lines.endsWithNewline }

    /// The next record; nil at the end. Empty lines are skipped.
    ///
    /// - Parameter required: the file must have these columns, or those that its origin requires.
    /// - Throws: `ImportFileError`; the errors of the source.
    package mutating func next(requiring required: [ImportColumn]) throws -> ImportRecord? {
        let required = required.isEmpty ? [] : origin?.required ?? required
        if format == .csv, !isHeaderRead { try readHeader(required) }
        while let line = try lines.next() {
            guard let bytes = line.bytes else {
                return Self.broken(line, "is longer than \(LineReader.lineBytesMax) bytes")
            }
            if bytes.allSatisfy({ $0 == UInt8(ascii: " ") || $0 == UInt8(ascii: "\t") }) { continue }
            if format == .jsonl { return try jsonRecord(line, bytes, required) }
            if let record = try csvRecord(line, bytes) { return record }
        }
        return nil
    }

    private static func broken(_ line: LineReader.Line, _ problem: String) -> ImportRecord {
        ImportRecord(line: line.number, values: .failure(.init(problem: problem)))
    }

    /// Notes a name that nobody knows. The exports of other systems have many that the importer does not need.
    private mutating func note(_ name: String) {
        guard origin == nil else { return }
        let name = String(decoding: name.utf8.prefix(64), as: UTF8.self)
        if ignored.count < Self.ignoredMax, !ignored.contains(name) { ignored.append(name) }
    }

    // MARK: CSV

    private mutating func readHeader(_ required: [ImportColumn]) throws {
        isHeaderRead = true
        guard var bytes = try lines.next()?.bytes, !bytes.isEmpty else {
            throw ImportFileError("is empty, or its first line is; it must name the columns")
        }
        for (mark, problem) in Self.foreignMarks where bytes.starts(with: mark) { throw ImportFileError(problem) }
        // A spreadsheet's own first line, which names the separator.
        if bytes.count == 5, bytes.starts(with: "sep=".utf8), let next = try lines.next()?.bytes {
            bytes = next
        }
        guard let read = Self.header(in: bytes, from: origin), read.names.count <= Self.columnsMax else {
            throw ImportFileError("has a first line that does not name columns")
        }
        (separator, names) = read
        var ranks: [ImportColumn: (rank: Int, place: Int)] = [:]
        for (place, bytes) in names.enumerated() {
            let name = String(decoding: bytes, as: UTF8.self)
            header.append(nil)
            guard let (column, rank) = ImportColumn.named(name, from: origin) else {
                note(name)
                continue
            }
            if let other = ranks[column] {
                guard other.rank != rank else { throw ImportFileError("has two columns \(column.rawValue)") }
                guard rank < other.rank else { continue }
                header[other.place] = nil
            }
            header[place] = column
            ranks[column] = (rank, place)
        }
        try Self.check(names.map { String(decoding: $0, as: UTF8.self) }, required, from: origin)
    }

    /// The first bytes of files that are no text.
    private static let foreignMarks: [([UInt8], String)] = [
        ([0xFF, 0xFE], "is UTF-16; it must be UTF-8"), ([0xFE, 0xFF], "is UTF-16; it must be UTF-8"),
        ([0x1F, 0x8B], "is compressed with gzip; unpack it first: gunzip"),
        (Array("PK\u{3}\u{4}".utf8), "is a ZIP archive or a spreadsheet; export it as CSV"),
        (Array("PAR1".utf8), "is a Parquet file; export it as CSV"),
    ]

    /// The names in the first line, by the separator that finds the most columns; nil: the line names none.
    private static func header(
        in bytes: [UInt8], from origin: ImportOrigin?
    ) -> (separator: UInt8, names: [[UInt8]])? {
        var best: (separator: UInt8, names: [[UInt8]], known: Int)?
        for separator in CSVLine.separators {
            guard case .fields(let names) = CSVLine.read(bytes, separator) else { continue }
            let known = names.count { ImportColumn.named(String(decoding: $0, as: UTF8.self), from: origin) != nil }
            if let found = best, (known, names.count) <= (found.known, found.names.count) { continue }
            best = (separator, names, known)
        }
        return best.map { ($0.separator, $0.names) }
    }

    /// Throws if a column is missing, with what is needed and what was found.
    private static func check(_ names: [String], _ required: [ImportColumn], from origin: ImportOrigin?) throws {
        func missing(_ required: [ImportColumn], _ origin: ImportOrigin?) -> [ImportColumn] {
            let found = Set(names.compactMap { ImportColumn.named($0, from: origin)?.column })
            return required.filter { !found.contains($0) }
        }
        func listed(_ columns: [ImportColumn]) -> String {
            columns.map { column in
                let names = origin?.names(of: column) ?? []
                return names.isEmpty ? column.rawValue : names.joined(separator: " or ")
            }.joined(separator: ", ")
        }
        let gone = missing(required, origin)
        guard !gone.isEmpty else { return }
        let found = names.prefix(Self.columnsMax).map { name in
            String(
                String.UnicodeScalarView(
                    name.unicodeScalars.prefix(64).map { $0.properties.generalCategory == .control ? "?" : $0 }))
        }
        let likely = ImportOrigin.allCases.first { $0 != origin && missing($0.required, $0).isEmpty }
        throw ImportFileError(
            "has no column \(listed(gone)); needed: \(listed(required)); found: \(found.joined(separator: ", "))"
                + (likely.map { "; it looks like an export for import grants --from \($0.rawValue)" } ?? ""))
    }

    /// Nil: the line repeats the first one, as in files that were put together.
    private mutating func csvRecord(_ first: LineReader.Line, _ bytes: [UInt8]) throws -> ImportRecord? {
        var bytes = bytes
        var more: [LineReader.Line] = []
        while true {
            let problem: String
            switch CSVLine.read(bytes, separator) {
            case .fields(let fields) where fields.count == header.count:
                return fields == names ? nil : record(first, fields)
            case .fields(let fields):
                problem = "has \(fields.count.counted("value")) for \(header.count.counted("column"))"
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

    /// The first object stands for the line that names the columns.
    private mutating func jsonRecord(
        _ line: LineReader.Line, _ bytes: [UInt8], _ required: [ImportColumn]
    ) throws -> ImportRecord {
        guard case .object(let members)? = try? JSONValue(parsing: bytes) else {
            return Self.broken(line, "is no JSON object")
        }
        var values: [ImportColumn: ImportRecord.Value] = [:]
        var ranks: [ImportColumn: Int] = [:]
        for member in members {
            guard let (column, rank) = ImportColumn.named(member.key, from: origin) else {
                note(member.key)
                continue
            }
            if let other = ranks[column], other < rank { continue }
            ranks[column] = rank
            switch member.value {
            case .null: values[column] = nil
            case .string(let text): values[column] = text.isEmpty ? nil : .text(text)
            case .number(let text): values[column] = .number(text)
            case .bool(let flag) where column == .isSandbox: values[column] = .text(flag ? "true" : "false")
            case .bool, .array, .object: values[column] = .other
            }
        }
        if !isHeaderRead {
            isHeaderRead = true
            // A line with known names alone lacks a value; one with other names has other columns.
            if members.contains(where: { ImportColumn.named($0.key, from: origin) == nil }) {
                try Self.check(members.map(\.key), required, from: origin)
            }
        }
        return ImportRecord(line: line.number, values: .success(values))
    }
}
