import Foundation
import TestRandom
import Testing

@testable import Purchases

/// Goal: each difference between Apple's units and ours gets the right cause with its transactions, and what no cause
/// explains is left. Method: one table with a line for each cause and its limits; then random books, of which the parts
/// always add up, and in which a lost grant always shows.
@Suite struct BookComparisonTests {
    private static let base = AppleDay(number: 20_785)
    private static let hour = 3600.0
    private static let day = 86_400.0

    /// The days of a report: 0 is the base.
    private static func report(_ number: Int) -> AppleDays {
        let day = AppleDay(number: base.number + number)
        return AppleDays(day, day)
    }

    /// A moment: so many hours after the base begins.
    private static func at(_ hours: Double) -> Date { base.start + hours * hour }

    private static func entry(_ id: String, at hours: Double = 12, _ change: (inout BookEntry) -> Void = { _ in })
        -> BookEntry
    {
        var entry = BookEntry(id: id, product: "coins", country: "US", at: at(hours))
        change(&entry)
        return entry
    }

    /// Apple's units by report and country; a report without units still covers its day.
    private struct Apple {
        var report = 0
        var country = "US"
        var product = "coins"
        var units = 0
        var event = AppleReportRow.Event.sold
    }

    private static func books(_ rows: [Apple], _ kind: AppleReportKind = .sales, days: [AppleDays]? = nil) throws
        -> AppleBooks
    {
        let columns = kind == .sales ? ReportHeaders.sales[0].columns : ReportHeaders.financial[1].columns
        let reader = try AppleReportReader(file: "f", header: ReportHeaders.header(columns))
        var books = AppleBooks(kind, app: "game", known: ["coins"])
        for row in rows {
            let days = days.map { $0[row.report] } ?? report(row.report)
            let line = AppleReportRow(
                event: row.event, units: row.units, product: row.product, country: row.country, days: days, line: 2)
            try books.add(line, of: reader)
        }
        return books
    }

    private static func compare(
        _ books: AppleBooks, _ entries: [BookEntry], cutover: Date = .distantPast
    ) -> [BookDifference] {
        BookComparison.differences(books, entries, cutover: cutover) { _ in true }
    }

    /// `0 US sales 1/2: sandbox -1 [a]`, with `?` for what is unexplained.
    private static func text(_ differences: [BookDifference]) -> [String] {
        differences.map { difference in
            let place = difference.place
            let parts = difference.parts.map {
                "\($0.cause.rawValue) \($0.units) [\($0.transactions.joined(separator: ","))]"
            }
            let rest = difference.unexplained == 0 ? [] : ["? \(difference.unexplained)"]
            return
                "\(place.days.first.number - base.number) \(place.country.isEmpty ? "-" : place.country) "
                + "\(place.side.rawValue) \(difference.apple)/\(difference.ours): "
                + (parts + rest).joined(separator: ", ")
        }
    }

    private static func check(
        _ rows: [Apple], _ entries: [BookEntry], cutover: Date = .distantPast, _ expected: String...,
        sourceLocation: SourceLocation = #_sourceLocation
    ) throws {
        let differences = compare(try books(rows), entries, cutover: cutover)
        #expect(text(differences) == expected, sourceLocation: sourceLocation)
        for difference in differences {
            let sum = difference.parts.reduce(difference.unexplained) { $0 + $1.units }
            #expect(sum == difference.apple - difference.ours, sourceLocation: sourceLocation)
        }
    }

    @Test("books that agree have no difference")
    func agreement() throws {
        try Self.check([.init(units: 2)], [Self.entry("a"), Self.entry("b")])
        try Self.check(
            [.init(units: 1), .init(units: 1, event: .refunded)],
            [Self.entry("a"), Self.entry("a") { $0.side = .refunds }])
        try Self.check([.init()], [])
        try Self.check([.init(units: 3)], [Self.entry("a") { $0.units = 3 }])
    }

    @Test("a unit that nothing explains, in either direction, and never both against each other")
    func unexplained() throws {
        try Self.check([.init(units: 1)], [], "0 US sales 1/0: ? 1")
        try Self.check([.init()], [Self.entry("a")], "0 US sales 0/1: ? -1")
        try Self.check([.init(units: 1, event: .refunded)], [], "0 US refunds 1/0: ? 1")
        // A sale and a refund of one day are two differences.
        try Self.check(
            [.init(units: 1), .init(units: 1, event: .refunded)], [], "0 US refunds 1/0: ? 1", "0 US sales 1/0: ? 1")
        // Another country is another purchase.
        try Self.check(
            [.init(country: "DE", units: 1)], [Self.entry("a")], "0 DE sales 1/0: ? 1", "0 US sales 0/1: ? -1")
        // A purchase far from midnight belongs to its day alone.
        try Self.check(
            [.init(units: 0), .init(report: 1, units: 1)], [Self.entry("a")], "0 US sales 0/1: ? -1",
            "1 US sales 1/0: ? 1")
    }

    @Test("what Apple never counts: sandbox and family, and a lost grant beside them shows")
    func neverCounted() throws {
        let sandbox = Self.entry("s") { $0.isSandbox = true }
        let family = Self.entry("f") { $0.isShared = true }
        try Self.check(
            [.init(units: 1)], [Self.entry("a"), sandbox, family],
            "0 US sales 1/3: sandbox -1 [s], family_shared -1 [f]")
        try Self.check([.init(units: 1)], [sandbox], "0 US sales 1/1: sandbox -1 [s], ? 1")
        try Self.check(
            [.init()], [Self.entry("f") { ($0.isShared, $0.side) = (true, .refunds) }],
            "0 US refunds 0/1: family_shared -1 [f]")
        // Neither explains that Apple counts a purchase.
        for change in [\BookEntry.isSandbox, \.isShared] {
            let entry = Self.entry("x") {
                $0.standing = .rejected
                $0[keyPath: change] = true
            }
            try Self.check([.init(units: 1)], [entry], "0 US sales 1/0: ? 1")
        }
    }

    @Test("restored purchases, and products that the app does not sell")
    func appleAlone() throws {
        try Self.check(
            [.init(units: 1), .init(units: 2, event: .restored)], [Self.entry("a")], "0 US sales 3/1: restored 2 []")
        try Self.check([.init(units: 2, event: .restored)], [Self.entry("a")], "0 US sales 2/1: restored 2 [], ? -1")
        try Self.check([.init(product: "hat", units: 4)], [], "0 US sales 4/0: not_ours 4 []")
    }

    @Test("the boundary of Apple's day: two hours, and a day before a renewal")
    func dayBoundary() throws {
        let rows = [Apple(report: -1), Apple(), Apple(report: 1, units: 1)]
        let moved = [
            "0 US sales 0/1: day_boundary -1 [a]", "1 US sales 1/0: day_boundary 1 [a]",
        ]
        let apart = ["0 US sales 0/1: ? -1", "1 US sales 1/0: ? 1"]
        for (hours, isRenewal, isMoved) in [
            (22, false, true), (23.9, false, true), (21.9, false, false), (22, true, true), (21.9, true, false),
        ] {
            let entry = Self.entry("a", at: hours) { $0.isRenewal = isRenewal }
            #expect(Self.text(Self.compare(try Self.books(rows), [entry])) == (isMoved ? moved : apart), "\(hours)")
        }
        let back = [Apple(units: 1), Apple(report: 1, units: 0)]
        for (hours, isRenewal, isMoved) in [
            (24, false, true), (25.9, false, true), (26.1, false, false), (47.9, true, true), (26.1, true, true),
        ] {
            let entry = Self.entry("a", at: hours) { $0.isRenewal = isRenewal }
            let found = Self.text(Self.compare(try Self.books(back), [entry]))
            let expected =
                isMoved
                ? ["0 US sales 1/0: day_boundary 1 [a]", "1 US sales 0/1: day_boundary -1 [a]"]
                : ["0 US sales 1/0: ? 1", "1 US sales 0/1: ? -1"]
            #expect(found == expected, "\(hours)")
        }
        // The edge of the reports: the day before and the day after have none.
        try Self.check([.init()], [Self.entry("a", at: 1)], "0 US sales 0/1: day_boundary -1 [a]")
        try Self.check([.init(units: 1)], [Self.entry("a", at: -1)], "0 US sales 1/0: day_boundary 1 [a]")
        try Self.check([.init(units: 1)], [Self.entry("a", at: 25)], "0 US sales 1/0: day_boundary 1 [a]")
        try Self.check([.init()], [Self.entry("a", at: 12)], "0 US sales 0/1: ? -1")
        try Self.check([.init(units: 1)], [Self.entry("a", at: -3)], "0 US sales 1/0: ? 1")
        // A neighbour that is covered must have the other half.
        try Self.check([.init(report: -1), .init()], [Self.entry("a", at: 1)], "0 US sales 0/1: ? -1")
        try Self.check(
            [.init(report: -1, units: 1), .init(units: 1)], [Self.entry("a", at: -1)], "0 US sales 1/0: ? 1")
    }

    @Test("a refund on another day, and a refund that Apple took back")
    func refunds() throws {
        let refund = Self.entry("a") { $0.side = .refunds }
        try Self.check(
            [.init(), .init(report: 5, units: 1, event: .refunded)], [refund], "0 US refunds 0/1: refund_day -1 [a]",
            "5 US refunds 1/0: refund_day 1 [a]")
        try Self.check(
            [.init(), .init(report: 9, units: 1, event: .refunded)], [refund], "0 US refunds 0/1: refund_day -1 [a]",
            "9 US refunds 1/0: ? 1")
        let week = (-8...8).map { Apple(report: $0) }
        try Self.check(week, [refund], "0 US refunds 0/1: ? -1")
        try Self.check(
            week, [Self.entry("a") { ($0.side, $0.isReversed) = (.refunds, true) }],
            "0 US refunds 0/1: refund_reversed -1 [a]")
        try Self.check(
            [.init(units: 1, event: .refunded)],
            [Self.entry("a") { ($0.side, $0.standing) = (.refunds, .upgraded) }],
            "0 US refunds 1/0: upgraded 1 [a]")
        try Self.check([.init()], [Self.entry("a") { ($0.side, $0.standing) = (.refunds, .upgraded) }])
    }

    @Test(
        "purchases that are known here and not granted",
        arguments: [
            (BookEntry.Standing.imported, "imported"), (.undecided, "undecided"), (.rejected, "rejected"),
            (.beforeCutover, "before_cutover"),
        ])
    func notGranted(standing: BookEntry.Standing, cause: String) throws {
        let entry = Self.entry("a") { $0.standing = standing }
        try Self.check([.init(units: 1)], [entry], "0 US sales 1/0: \(cause) 1 [a]")
        // One is no reason for two, and none where Apple counts none.
        try Self.check([.init(units: 2)], [entry], "0 US sales 2/0: \(cause) 1 [a], ? 1")
        try Self.check([.init()], [entry])
        var two = entry
        two.units = 2
        try Self.check([.init(units: 1)], [two], "0 US sales 1/0: ? 1")
        try Self.check([.init(report: 1, units: 1)], [entry], "1 US sales 1/0: ? 1")
        var somewhere = entry
        somewhere.country = ""
        try Self.check([.init(country: "JP", units: 1)], [somewhere], "0 JP sales 1/0: \(cause) 1 [a]")
    }

    @Test("a purchase without a country stands for one in any country, once")
    func countries() throws {
        let entry = Self.entry("a") { $0.country = "" }
        try Self.check(
            [.init(country: "JP", units: 1)], [entry], "0 - sales 0/1: country_unknown -1 [a]",
            "0 JP sales 1/0: country_unknown 1 [a]")
        try Self.check(
            [.init(country: "JP", units: 1), .init(country: "DE", units: 1)], [entry],
            "0 - sales 0/1: country_unknown -1 [a]", "0 DE sales 1/0: country_unknown 1 [a]", "0 JP sales 1/0: ? 1")
        try Self.check([.init(country: "JP")], [entry], "0 - sales 0/1: ? -1")
    }

    @Test("what was free may be missing in a report")
    func free() throws {
        let entry = Self.entry("a") { $0.isFree = true }
        try Self.check([.init()], [entry], "0 US sales 0/1: price_zero -1 [a]")
        try Self.check([.init(units: 1)], [entry])
    }

    @Test("before the cutover nobody knows; the cutover's own day is compared")
    func cutover() throws {
        let rows = [Apple(report: -1, units: 3), Apple(units: 1)]
        for (hours, expected) in [
            (0, ["-1 US sales 3/0: before_cutover 3 []", "0 US sales 1/0: ? 1"]),
            (5, ["-1 US sales 3/0: before_cutover 3 []", "0 US sales 1/0: ? 1"]),
            (-1, ["-1 US sales 3/0: ? 3", "0 US sales 1/0: ? 1"]),
        ] as [(Double, [String])] {
            #expect(Self.text(Self.compare(try Self.books(rows), [], cutover: Self.at(hours))) == expected)
        }
        // It does not explain that we count more than Apple.
        try Self.check([.init()], [Self.entry("a")], cutover: Self.at(100), "0 US sales 0/1: ? -1")
    }

    @Test("fiscal months: what Apple settled in the month after, and not much later or earlier")
    func settlement() throws {
        let (november, december) = (
            try #require(FiscalMonth(year: 2027, month: 2)).days, try #require(FiscalMonth(year: 2027, month: 3)).days
        )
        let compare = { (hoursBeforeTheEnd: Double, months: [AppleDays], units: [Int]) throws -> [[String]] in
            let rows = units.enumerated().map { Apple(report: $0, units: $1) }
            let entry = BookEntry(
                id: "a", product: "coins", country: "US", at: november.end - hoursBeforeTheEnd * Self.hour)
            let books = try Self.books(rows, .financial, days: months)
            return Self.compare(books, [entry]).map { difference in
                difference.parts.map { "\($0.cause.rawValue) \($0.units)" } + ["\(difference.unexplained)"]
            }
        }
        for hours in [1.0, 9 * 24, 9.9 * 24] as [Double] {
            #expect(
                try compare(hours, [november, december], [0, 1])
                    == [["settlement_month -1", "0"], ["settlement_month 1", "0"]])
            #expect(try compare(hours, [november], [0]) == [["settlement_month -1", "0"]])
            #expect(try compare(hours, [december], [1]) == [["settlement_month 1", "0"]])
        }
        #expect(try compare(10.1 * 24, [november, december], [0, 1]) == [["-1"], ["1"]])
        #expect(
            try compare(-1, [november, december], [1, 0]) == [
                ["settlement_month 1", "0"], ["settlement_month -1", "0"],
            ])
        #expect(try compare(-25, [november, december], [1, 0]) == [["1"], ["-1"]])
    }

    @Test(
        "random books: the parts add up, every transaction explains once, and equal books have no difference",
        arguments: 0..<40)
    func random(seed: Int) throws {
        var random = SeededRandom(seed: UInt64(seed))
        var entries: [BookEntry] = []
        for number in 0..<Int.random(in: 1...60, using: &random) {
            entries.append(
                Self.entry("t\(number)", at: .random(in: -30...100, using: &random)) {
                    $0.country = ["US", "DE", ""].randomElement(using: &random) ?? ""
                    $0.units = .random(in: 1...3, using: &random)
                    $0.side = Bool.random(using: &random) ? .sales : .refunds
                    $0.standing =
                        [.counted, .counted, .counted, .imported, .undecided, .rejected, .upgraded].randomElement(
                            using: &random) ?? .counted
                    $0.isSandbox = Int.random(in: 0..<8, using: &random) == 0
                    $0.isShared = Int.random(in: 0..<8, using: &random) == 0
                    $0.isFree = Int.random(in: 0..<8, using: &random) == 0
                    $0.isRenewal = Bool.random(using: &random)
                    $0.isReversed = Int.random(in: 0..<8, using: &random) == 0
                })
        }
        var rows: [Apple] = (0..<3).map { Apple(report: $0) }
        for _ in 0..<Int.random(in: 0...20, using: &random) {
            rows.append(
                Apple(
                    report: .random(in: 0..<3, using: &random), country: Bool.random(using: &random) ? "US" : "DE",
                    units: .random(in: 0...4, using: &random), event: Bool.random(using: &random) ? .sold : .refunded))
        }
        let differences = Self.compare(try Self.books(rows), entries)
        for difference in differences {
            #expect(
                difference.parts.reduce(difference.unexplained) { $0 + $1.units } == difference.apple - difference.ours)
        }
        // A transaction explains at most a place that has too many and a place that has too few.
        var explained: [String: [Int]] = [:]
        for part in differences.flatMap(\.parts) {
            for id in part.transactions { explained[id, default: []].append(part.units.signum()) }
        }
        #expect(explained.values.allSatisfy { $0.count == 1 || $0.sorted() == [-1, 1] })

        // Apple's books as the ledger's own: nothing differs but what Apple never counts. Then one grant is lost.
        let counted = entries.filter { $0.standing == .counted && !$0.isSandbox && !$0.isShared && !$0.country.isEmpty }
        let days = Set(entries.map { AppleDay(of: $0.at).number - Self.base.number })
        var same: [Apple] = ((days.min() ?? 0) - 9...(days.max() ?? 0) + 9).map { Apple(report: $0) }
        for entry in counted {
            same.append(
                Apple(
                    report: AppleDay(of: entry.at).number - Self.base.number, country: entry.country,
                    units: entry.units,
                    event: entry.side == .sales ? .sold : .refunded))
        }
        let books = try Self.books(same)
        #expect(Self.compare(books, counted).isEmpty)
        guard let lost = counted.randomElement(using: &random) else { return }
        let after = Self.compare(books, counted.filter { $0 != lost })
        #expect(after.count == 1)
        #expect(after.first?.place.country == lost.country && after.first?.place.days.contains(lost.at) == true)
        #expect(after.first?.unexplained == lost.units && after.first?.parts.isEmpty == true)
    }
}
