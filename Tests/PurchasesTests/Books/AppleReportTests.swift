import Testing

@testable import Purchases

/// Goal: Apple's reports of all years are read by the names of their columns, and what cannot be read is named by file,
/// line and column. Method: first lines as public programs read them, every product type of Apple's page, and one
/// defect at a time.
@Suite struct AppleReportTests {
    private static let values = [
        "SKU": "coins", "Product Type Identifier": "IA1", "Units": "3", "Begin Date": "11/28/2026",
        "End Date": "11/28/2026", "Country Code": "US",
    ]
    private static let columns = ReportHeaders.sales[0].columns
    private static let financialValues = [
        "Start Date": "11/01/2026", "End Date": "11/28/2026", "Vendor Identifier": "coins", "Quantity": "3",
        "Sales or Return": "S", "Sale or Return": "S", "Product Type Identifier": "IA1", "Country Of Sale": "US",
    ]

    private static func days(_ first: String, _ last: String) throws -> AppleDays {
        AppleDays(try #require(AppleDay(first)), try #require(AppleDay(last)))
    }

    private static func row(
        _ columns: [String], _ values: [String: String], _ change: [String: String] = [:]
    ) throws -> AppleReportRow {
        var reader = try AppleReportReader(file: "f", header: ReportHeaders.header(columns))
        let line = ReportHeaders.line(columns, values.merging(change) { $1 })
        guard case .row(let row) = try reader.read(line, number: 2) else {
            throw AppleReportError(file: "f", line: 2, column: 1, problem: "no row")
        }
        return row
    }

    /// The error of a report with this first line and these lines, as a person sees it.
    private static func refusal(_ header: [UInt8], _ lines: [[UInt8]]) -> String? {
        do throws(AppleReportError) {
            var reader = try AppleReportReader(file: "a.txt", header: header)
            for (index, line) in lines.enumerated() { _ = try reader.read(line, number: index + 2) }
            return nil
        } catch {
            return error.description
        }
    }

    @Test("the first lines of all years, whatever the order and the case of the columns")
    func years() throws {
        let day = try Self.days("2026-11-28", "2026-11-28")
        for (since, columns) in ReportHeaders.sales {
            for columns in [columns, columns.reversed(), columns.map { $0.uppercased() }] {
                let reader = try AppleReportReader(file: "f", header: ReportHeaders.header(columns))
                #expect(reader.kind == .sales, "\(since)")
            }
            for columns in [columns, columns.reversed()] {
                let row = try Self.row(columns, Self.values)
                let expected = AppleReportRow(
                    event: .sold, units: 3, product: "coins", country: "US", days: day, line: 2)
                #expect(row == expected, "\(since)")
            }
        }
        let month = try Self.days("2026-11-01", "2026-11-28")
        for (since, columns) in ReportHeaders.financial {
            let row = try Self.row(columns, Self.financialValues)
            let expected = AppleReportRow(
                event: .sold, units: 3, product: "coins", country: "US", days: month, line: 2)
            #expect(row == expected, "\(since)")
            #expect(try Self.row(columns, Self.financialValues, ["Quantity": "-3"]).event == .refunded)
            let returned = ["Sales or Return": "R", "Sale or Return": "R"]
            #expect(try Self.row(columns, Self.financialValues, returned).event == .refunded)
        }
    }

    @Test("a detailed Financial Report counts in the fiscal month of its settlement")
    func detailed() throws {
        let values = [
            "Transaction Date": "10/30/2026", "Settlement Date": "11/02/2026", "SKU": "coins", "Quantity": "1",
            "Sale or Return": "S", "Product Type Identifier": "IAY", "Country of Sale": "DE",
        ]
        let row = try Self.row(ReportHeaders.detailed, values)
        let month = try Self.days("2026-11-01", "2026-11-28")
        #expect(row == AppleReportRow(event: .sold, units: 1, product: "coins", country: "DE", days: month, line: 2))
        #expect(try Self.row(ReportHeaders.detailed, values, ["Sale or Return": "R"]).event == .refunded)
    }

    @Test("every product type identifier of Apple's page")
    func types() throws {
        for type in ["IA1", "IA1-M", "IA9", "IA9-M", "IAY", "IAY-M", "IAC", "IAC-M", "FI1", "IAX"] {
            #expect(try Self.row(Self.columns, Self.values, ["Product Type Identifier": type]).event == .sold)
            let refund = ["Product Type Identifier": type, "Units": "-2"]
            let row = try Self.row(Self.columns, Self.values, refund)
            #expect(row.event == .refunded && row.units == 2)
        }
        for type in ["IA3", "IA3-M"] {
            #expect(try Self.row(Self.columns, Self.values, ["Product Type Identifier": type]).event == .restored)
        }
        let others = [
            "1", "1-B", "F1-B", "1E", "1EP", "1EU", "1F", "1T", "3", "3F", "3T", "7", "7F", "7T", "F1", "F3", "F7",
        ]
        for type in others {
            let row = try Self.row(Self.columns, Self.values, ["Product Type Identifier": type, "SKU": ""])
            #expect(row.event == .notInApp(type))
        }
    }

    @Test(
        "a field that cannot be read is named by file, line and column",
        arguments: [
            ("Units", "1.00", "a.txt, line 2, column 8 (Units): is no whole number of units: 1.00"),
            ("Units", "", "a.txt, line 2, column 8 (Units): is no whole number of units: "),
            ("Units", "+1", "a.txt, line 2, column 8 (Units): is no whole number of units: +1"),
            ("Units", "1e3", "a.txt, line 2, column 8 (Units): is no whole number of units: 1e3"),
            ("Units", "-", "a.txt, line 2, column 8 (Units): is no whole number of units: -"),
            ("Units", "9999999999", "a.txt, line 2, column 8 (Units): is no whole number of units: 9999999999"),
            (
                "Begin Date", "28.11.2026",
                "a.txt, line 2, column 10 (Begin Date): is no day such as 11/28/2026 or 2026-11-28: 28.11.2026"
            ),
            ("End Date", "11/27/2026", "a.txt, line 2, column 11 (End Date): lies before the first day: 2026-11-27"),
            (
                "Country Code", "USA",
                "a.txt, line 2, column 13 (Country Code): is no country code of two capital letters: USA"
            ),
            ("SKU", "", "a.txt, line 2, column 3 (SKU): is empty"),
            ("Product Type Identifier", " ", "a.txt, line 2, column 7 (Product Type Identifier): is empty"),
        ])
    func defects(column: String, value: String, error: String) {
        let line = ReportHeaders.line(Self.columns, Self.values.merging([column: value]) { $1 })
        #expect(Self.refusal(ReportHeaders.header(Self.columns), [line]) == error)
    }

    @Test("a missing column, one that stands twice, and files that are no report")
    func headers() {
        for name in Self.values.keys {
            let columns = Self.columns.filter { $0 != name }
            #expect(
                Self.refusal(ReportHeaders.header(columns), [])
                    == "a.txt, line 1, column 20 (\(name)): is missing among the columns")
        }
        let needed = [
            "Start Date", "End Date", "Quantity", "Product Type Identifier", "Country of Sale",
        ]
        for name in needed {
            let columns = ReportHeaders.financial[1].columns.filter { $0.lowercased() != name.lowercased() }
            #expect(
                Self.refusal(ReportHeaders.header(columns), [])
                    == "a.txt, line 1, column 22 (\(name)): is missing among the columns")
        }
        #expect(
            Self.refusal(ReportHeaders.header(Self.columns + ["units"]), [])
                == "a.txt, line 1, column 21 (Units): stands among the columns twice")
        #expect(
            Self.refusal(Array("PK\u{3}\u{4}x".utf8), [])
                == "a.txt, line 1, column 1: is a zip archive: unpack it first")
        #expect(
            Self.refusal([0xFF, 0xFE] + ReportHeaders.header(Self.columns), [])
                == "a.txt, line 1, column 1: is UTF-16; Apple's reports are UTF-8")
        #expect(
            Self.refusal(Array("Event Date\tSubscription Name".utf8), [])?
                .hasPrefix("a.txt, line 1, column 3 (Units): is missing: the first line names neither") == true)
        #expect(
            Self.refusal(Array("SKU\tb\u{E9}".unicodeScalars.map { UInt8(truncatingIfNeeded: $0.value) }), [])
                == "a.txt, line 1, column 2: is not UTF-8")
    }

    @Test("a line that was cut, and one in another encoding")
    func lines() throws {
        let header = ReportHeaders.header(Self.columns)
        let line = ReportHeaders.line(Self.columns, Self.values)
        let cut = Array(line.prefix { $0 != UInt8(ascii: "1") })
        #expect(
            Self.refusal(header, [line, cut])
                == "a.txt, line 3, column 10 (Begin Date): is missing: the line ends after column 7")
        var latin = line
        latin[try #require(latin.firstIndex(of: UInt8(ascii: "c")))] = 0xE9
        #expect(Self.refusal(header, [line, latin]) == "a.txt, line 3, column 3 (SKU): is not UTF-8")
        // A title in another encoding is not needed.
        var title = ReportHeaders.line(Self.columns, Self.values.merging(["Title": "q"]) { $1 })
        title[try #require(title.firstIndex(of: UInt8(ascii: "q")))] = 0xE9
        #expect(Self.refusal(header, [title]) == nil)
    }

    @Test("the totals of a Financial Report end its rows, and a report that was cut is noticed")
    func totals() throws {
        let columns = ReportHeaders.financial[1].columns
        let line = ReportHeaders.line(columns, Self.financialValues)
        let header = ReportHeaders.header(columns)
        let totals = [
            "Total_Rows\t2", "Total_Amount\t1.50", "Total_Units\t6", "Country Of Sale\tUS", "US\tUSD\t6\t1.5",
        ]
        #expect(Self.refusal(header, [line, line] + totals.map { Array($0.utf8) }) == nil)
        #expect(
            Self.refusal(header, [line] + totals.map { Array($0.utf8) })
                == "a.txt, line 3, column 2 (Total_Rows): says 2, but the report has 1 row: it was cut or edited")
    }

    // MARK: Books

    private static func book(_ files: [String: [AppleReportRow]], kind: AppleReportKind = .sales) throws -> AppleBooks {
        var books = AppleBooks(kind, app: "game", known: ["coins"])
        for file in files.keys.sorted() {
            let columns = kind == .sales ? columns : ReportHeaders.financial[1].columns
            let reader = try AppleReportReader(file: file, header: ReportHeaders.header(columns))
            for row in files[file] ?? [] { try books.add(row, of: reader) }
        }
        return books
    }

    private static func sold(
        _ units: Int, of product: String = "coins", in country: String = "US", on days: AppleDays,
        _ event: AppleReportRow.Event = .sold, line: Int = 2
    ) -> AppleReportRow {
        AppleReportRow(event: event, units: units, product: product, country: country, days: days, line: line)
    }

    @Test("units are summed by product, country, days and side; other rows are counted by type")
    func sums() throws {
        let day = try Self.days("2026-11-28", "2026-11-28")
        let books = try Self.book([
            "a": [
                Self.sold(2, on: day), Self.sold(3, on: day), Self.sold(1, on: day, .refunded),
                Self.sold(4, on: day, .restored), Self.sold(1, in: "DE", on: day),
                Self.sold(7, on: day, .notInApp("1F")), Self.sold(7, on: day, .notInApp("1F")),
                Self.sold(7, on: day, .notInApp("7")),
            ]
        ])
        let place = AppleBooks.Place(product: "coins", country: "US", days: day, side: .sales)
        var refunds = place
        refunds.side = .refunds
        var german = place
        german.country = "DE"
        #expect(books.places == [place: .init(5, restored: 4), refunds: .init(1), german: .init(1)])
        #expect(books.passedOver == ["1F": 2, "7": 1] && books.rows == 5 && books.days == [day])
    }

    @Test("reports that overlap, and reports that may stand side by side")
    func overlaps() throws {
        let (first, second) = (try Self.days("2026-11-27", "2026-11-27"), try Self.days("2026-11-28", "2026-11-28"))
        let week = try Self.days("2026-11-23", "2026-11-29")
        let refused = { (files: [String: [AppleReportRow]], kind: AppleReportKind) throws -> String? in
            do {
                _ = try Self.book(files, kind: kind)
                return nil
            } catch let error as AppleReportError {
                return error.description
            }
        }
        #expect(try refused(["a": [Self.sold(1, on: first)], "b": [Self.sold(1, on: second)]], .sales) == nil)
        #expect(
            try refused(["a": [Self.sold(1, on: first)], "b": [Self.sold(1, on: first, line: 9)]], .sales)
                == "b, line 9, column 10 (Begin Date): the days 2026-11-27 overlap those of a")
        for days in [first, second] {
            let message = try refused(["a": [Self.sold(1, on: week)], "b": [Self.sold(1, on: days)]], .sales)
            #expect(message?.hasPrefix("b, line 2, column 10 (Begin Date): the days \(days) overlap those of") == true)
        }
        let month = try Self.days("2026-11-01", "2026-11-28")
        let regions = ["a": [Self.sold(1, on: month)], "b": [Self.sold(1, in: "DE", on: month)]]
        #expect(try refused(regions, .financial) == nil)
        let twice = ["a": [Self.sold(1, on: month)], "b": [Self.sold(1, on: month, line: 5)]]
        #expect(
            try refused(twice, .financial)
                == "b, line 5, column 1 (Start Date): the days 2026-11-01 to 2026-11-28 overlap those of a")
    }

    @Test("a report without a product of the app is another vendor's; a product that was sold once is the app's")
    func foreign() throws {
        let day = try Self.days("2026-11-28", "2026-11-28")
        try Self.book(["a": [Self.sold(1, on: day), Self.sold(1, of: "other", on: day)]]).check()
        try Self.book(["a": [Self.sold(1, of: "an app", on: day, .notInApp("1"))]]).check()
        var books = try Self.book(["a": [Self.sold(1, of: "other", on: day, line: 4)]])
        #expect(
            throws: AppleReportError(
                file: "a", line: 4, column: 3, name: "SKU",
                problem: "no product of this report is one of the app game: the report is another vendor's or another "
                    + "app's")
        ) { try books.check() }
        books.learn(["other"])
        try books.check()
    }
}
