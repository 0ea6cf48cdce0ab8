import Encoding

/// Which of Apple's reports a file is.
package enum AppleReportKind: String, Sendable, CaseIterable {
    /// Sales Report, Summary: the units that were sold on each day.
    case sales
    /// Financial Report, by country or detailed: the units that Apple settled in a fiscal month.
    case financial
}

/// Why a report cannot be read: the place, and what is wrong there.
package struct AppleReportError: Error, Equatable, CustomStringConvertible {
    package let file: String
    /// From 1.
    package let line: Int
    /// From 1.
    package let column: Int
    /// The name of the column, where the first line gives it one.
    package let name: String?
    package let problem: String

    package init(file: String, line: Int, column: Int, name: String? = nil, problem: String) {
        self.file = file
        self.line = line
        self.column = column
        self.name = name
        self.problem = problem
    }

    /// `FILE, line 7, column 8 (Units): …`
    package var description: String {
        "\(file), line \(line), column \(column)\(name.map { " (\($0))" } ?? ""): \(problem)"
    }
}

/// One line of a report that says how many units of something were sold or given back.
package struct AppleReportRow: Sendable, Equatable {
    package enum Event: Sendable, Equatable {
        case sold, refunded
        /// A non-consumable that its buyer restored (IA3). No money was paid.
        case restored
        /// An app, an update or a download, by its product type identifier.
        case notInApp(String)
    }

    package var event: Event
    /// From 0.
    package var units: Int
    /// The developer's id of the product (SKU, Vendor Identifier).
    package var product: String
    /// Two capital letters.
    package var country: String
    /// The days that the line is about: of a Sales Report its own, of a Financial Report those of the fiscal month.
    package var days: AppleDays
    package var line: Int
}

/// Reads the lines of one report. Columns are found by their names, in any order; unknown columns are passed over.
/// Memory: one line.
///
/// Read are the Summary of versions 1_0 to 1_3 and the Financial Reports since 2010. Names compare without regard to
/// case. Source: Apple, "Sales Report", "Financial Report" and "Product type identifiers".
package struct AppleReportReader {
    package enum Reading: Sendable, Equatable {
        case row(AppleReportRow)
        /// An empty line, or one of the totals behind the rows.
        case nothing
    }

    package let kind: AppleReportKind
    package let file: String
    private let names: [String]
    private let product: Int
    private let type: Int
    private let units: Int
    private let first: Int
    /// Nil: `first` is the day on which Apple settled, and the fiscal month around it counts.
    private let last: Int?
    private let country: Int
    /// `S` or `R`; nil: negative units are refunds.
    private let direction: Int?
    /// The last day that each of the two columns has told: all rows of most reports have the same.
    private var lastDays: [Int: (text: String, day: AppleDay)] = [:]
    private var rows = 0
    private var isAtTotals = false

    private static let unitDigitsMax = 9
    /// The bytes that no report has and with which a wrong file begins.
    private static let signatures: [(bytes: [UInt8], problem: String)] = [
        (Array("PK\u{3}\u{4}".utf8), "is a zip archive: unpack it first"),
        ([0xFF, 0xFE], "is UTF-16; Apple's reports are UTF-8"), ([0xFE, 0xFF], "is UTF-16; Apple's reports are UTF-8"),
    ]

    /// - Parameters:
    ///   - file: how errors name the file.
    ///   - header: the first line.
    package init(file: String, header: [UInt8]) throws(AppleReportError) {
        for (bytes, problem) in Self.signatures where header.starts(with: bytes) {
            throw AppleReportError(file: file, line: 1, column: 1, problem: problem)
        }
        self.file = file
        var names: [String] = []
        for (index, range) in Self.ranges(header).enumerated() {
            guard let name = Self.text(header[range]) else {
                throw AppleReportError(file: file, line: 1, column: index + 1, problem: "is not UTF-8")
            }
            names.append(name)
        }
        self.names = names
        let places = Columns(file: file, names: names)
        if places.has("Units") || places.has("Begin Date") {
            kind = .sales
            product = try places.index("SKU")
            type = try places.index("Product Type Identifier")
            units = try places.index("Units")
            first = try places.index("Begin Date")
            last = try places.index("End Date")
            country = try places.index("Country Code")
            direction = nil
        } else if places.has("Settlement Date") || places.has("Vendor Identifier") || places.has("Quantity") {
            kind = .financial
            let isDetailed = places.has("Settlement Date") || !places.has("Vendor Identifier") && places.has("SKU")
            product = try places.index(isDetailed ? "SKU" : "Vendor Identifier")
            type = try places.index("Product Type Identifier")
            units = try places.index("Quantity")
            first = try places.index(isDetailed ? "Settlement Date" : "Start Date")
            last = isDetailed ? nil : try places.index("End Date")
            country = try places.index("Country of Sale")
            let sale = try places.optionalIndex("Sale or Return")
            let sales = try places.optionalIndex("Sales or Return")
            direction = sale ?? sales
        } else {
            throw AppleReportError(
                file: file, line: 1, column: names.count + 1, name: "Units",
                problem: "is missing: the first line names neither a Sales Report's columns nor a Financial Report's")
        }
    }

    /// - Parameter number: of the line, from 1.
    package mutating func read(_ line: [UInt8], number: Int) throws(AppleReportError) -> Reading {
        let ranges = Self.ranges(line)
        let start = Self.text(line[ranges[0]]) ?? ""
        if isAtTotals || line.allSatisfy({ $0 == 0x20 || $0 == 0x09 }) { return .nothing }
        if kind == .financial, start.hasPrefix("Total_") || Self.isSame(start, "Country of Sale") {
            isAtTotals = true
            if start == "Total_Rows" { try check(line, ranges, number) }
            return .nothing
        }
        rows += 1
        let days = try days(line, ranges, number)
        let type = try text(type, line, ranges, number)
        guard !type.isEmpty else { throw error(self.type, number, "is empty") }
        let country = try text(country, line, ranges, number)
        guard country.utf8.count == 2, country.utf8.allSatisfy((UInt8(ascii: "A")...UInt8(ascii: "Z")).contains) else {
            throw error(self.country, number, "is no country code of two capital letters: \(country)")
        }
        let units = try whole(units, line, ranges, number)
        let product = try text(product, line, ranges, number)
        var row = AppleReportRow(
            event: .sold, units: abs(units), product: product, country: country, days: days, line: number)
        var isReturn = units < 0
        if let direction {
            let text = try text(direction, line, ranges, number)
            guard ["S", "R", ""].contains(text) else { throw error(direction, number, "is neither S nor R: \(text)") }
            isReturn = isReturn || text == "R"
        }
        if !Self.isInApp(type) {
            row.event = .notInApp(type)
            return .row(row)
        }
        guard !product.isEmpty else { throw error(self.product, number, "is empty") }
        if type == "IA3" || type.hasPrefix("IA3-") {
            row.event = .restored
        } else if isReturn {
            row.event = .refunded
        }
        return .row(row)
    }

    /// The error of a place in the file that no line has: at its end, or behind the longest line.
    package func error(line: Int, _ problem: String) -> AppleReportError {
        AppleReportError(file: file, line: line, column: 1, name: names.first, problem: problem)
    }

    package func overlap(_ row: AppleReportRow, with other: String) -> AppleReportError {
        error(first, row.line, "the days \(row.days) overlap those of \(other)")
    }

    package func foreign(_ row: AppleReportRow, app: String) -> AppleReportError {
        error(
            product, row.line,
            "no product of this report is one of the app \(app): the report is another vendor's or another app's")
    }

    /// Whether Apple means an in-app purchase: all its types for them begin so, with a suffix for the Mac.
    static func isInApp(_ type: String) -> Bool { type.hasPrefix("IA") || type.hasPrefix("FI") }

    // MARK: Fields

    private mutating func days(
        _ line: [UInt8], _ ranges: [Range<Int>], _ number: Int
    ) throws(AppleReportError) -> AppleDays {
        let firstDay = try day(first, line, ranges, number)
        guard let last else {
            guard let month = FiscalMonth(containing: firstDay) else {
                throw error(first, number, "lies before Apple's first fiscal month of sales: \(firstDay)")
            }
            return month.days
        }
        let lastDay = try day(last, line, ranges, number)
        guard firstDay <= lastDay else { throw error(last, number, "lies before the first day: \(lastDay)") }
        return AppleDays(firstDay, lastDay)
    }

    private mutating func day(
        _ column: Int, _ line: [UInt8], _ ranges: [Range<Int>], _ number: Int
    ) throws(AppleReportError) -> AppleDay {
        let text = try text(column, line, ranges, number)
        if let last = lastDays[column], last.text == text { return last.day }
        guard let day = AppleDay(text) else {
            throw error(column, number, "is no day such as 11/28/2026 or 2026-11-28: \(text)")
        }
        lastDays[column] = (text, day)
        return day
    }

    private func whole(
        _ column: Int, _ line: [UInt8], _ ranges: [Range<Int>], _ number: Int
    ) throws(AppleReportError) -> Int {
        let text = try text(column, line, ranges, number)
        let digits = text.hasPrefix("-") ? text.dropFirst() : text[...]
        guard !digits.isEmpty, digits.utf8.allSatisfy((UInt8(ascii: "0")...UInt8(ascii: "9")).contains),
            digits.utf8.count <= Self.unitDigitsMax, let value = Int(text)
        else { throw error(column, number, "is no whole number of units: \(text)") }
        return value
    }

    private func text(
        _ column: Int, _ line: [UInt8], _ ranges: [Range<Int>], _ number: Int
    ) throws(AppleReportError) -> String {
        guard column < ranges.count else {
            throw error(column, number, "is missing: the line ends after column \(ranges.count)")
        }
        guard let text = Self.text(line[ranges[column]]) else { throw error(column, number, "is not UTF-8") }
        return text
    }

    /// Compares the number of rows with the total behind them.
    private func check(_ line: [UInt8], _ ranges: [Range<Int>], _ number: Int) throws(AppleReportError) {
        let told = ranges.count > 1 ? Self.text(line[ranges[1]]) ?? "" : ""
        guard Int(told) == rows else {
            throw AppleReportError(
                file: file, line: number, column: 2, name: "Total_Rows",
                problem:
                    "says \(told.isEmpty ? "nothing" : told), but the report has \(rows.counted("row")): it was cut or edited"
            )
        }
    }

    private func error(_ column: Int, _ line: Int, _ problem: String) -> AppleReportError {
        AppleReportError(
            file: file, line: line, column: column + 1, name: column < names.count ? names[column] : nil,
            problem: problem)
    }

    private static func ranges(_ line: [UInt8]) -> [Range<Int>] {
        var ranges: [Range<Int>] = []
        var start = 0
        for index in line.indices where line[index] == UInt8(ascii: "\t") {
            ranges.append(start..<index)
            start = index + 1
        }
        return ranges + [start..<line.count]
    }

    /// The text without the spaces around it; nil: no UTF-8.
    private static func text(_ field: ArraySlice<UInt8>) -> String? {
        let trimmed = field.drop { $0 == 0x20 }
        let end = trimmed.lastIndex { $0 != 0x20 }.map { $0 + 1 } ?? trimmed.startIndex
        return String(validating: trimmed[trimmed.startIndex..<end], as: UTF8.self)
    }

    fileprivate static func isSame(_ one: String, _ other: String) -> Bool { one.lowercased() == other.lowercased() }
}

/// The columns that the first line of a report names.
private struct Columns {
    let file: String
    let names: [String]

    func has(_ name: String) -> Bool { names.contains { AppleReportReader.isSame($0, name) } }

    func index(_ name: String) throws(AppleReportError) -> Int {
        guard let index = try optionalIndex(name) else {
            throw AppleReportError(
                file: file, line: 1, column: names.count + 1, name: name, problem: "is missing among the columns")
        }
        return index
    }

    /// Nil: there is no such column.
    func optionalIndex(_ name: String) throws(AppleReportError) -> Int? {
        let indices = names.indices.filter { AppleReportReader.isSame(names[$0], name) }
        guard indices.count < 2 else {
            throw AppleReportError(
                file: file, line: 1, column: indices[1] + 1, name: name, problem: "stands among the columns twice")
        }
        return indices.first
    }
}
