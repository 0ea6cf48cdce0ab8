package import Encoding
package import Foundation
import Ledger
package import Postgres
package import Purchases

/// Apple's reports compared with the ledger of one app: `makegood reconcile sales`. Only units are compared.
///
/// The database sums the units first. Transactions are read only of the products and countries that differ, so memory
/// grows with the transactions of those.
package struct SalesReconciliation: Sendable {
    package struct Result: Sendable {
        package let books: AppleBooks
        package let differences: [BookDifference]
    }

    package let appID: String
    package let results: [Result]

    /// - Parameters:
    ///   - books: one for each kind of report.
    ///   - grantFrom: where the configuration sets it; nil: the moment when the app went live here.
    /// - Throws: `AppleReportError` for a report without a product of the app; the database's error.
    package init(
        of appID: String, _ books: [AppleBooks], grantFrom: Date?, in database: Database
    ) async throws {
        self.appID = appID
        let live = try await database.run(Statements.liveSince, appID).first
        var results: [Result] = []
        for books in books {
            results.append(
                try await Self.compare(books, of: appID, cutover: grantFrom ?? live ?? .distantPast, in: database))
        }
        self.results = results
    }

    private static func compare(
        _ books: AppleBooks, of appID: String, cutover: Date, in database: Database
    ) async throws -> Result {
        var books = books
        guard let first = books.days.first, let last = books.days.last else {
            return Result(books: books, differences: [])
        }
        let span = Statements.BookSpan(appID: appID, days: books.days)
        let sold = try await database.run(Statements.unitsSold, span)
        let refunded = try await database.run(Statements.unitsRefunded, span)
        books.learn((sold + refunded).map(\.product))
        try books.check()
        let pairs = pairs(books, sold, refunded)
        let widest = BookComparison.Slack.widest(books.kind)
        let question = Statements.BookQuestion(
            appID: appID, from: first.start - widest, through: last.end + widest,
            pairs: pairs.map { ($0.product, $0.storefront) }.sorted { $0 < $1 })
        var entries: [BookEntry] = []
        if !pairs.isEmpty {
            entries += try await database.run(Statements.entriesSold, question)
            entries += try await database.run(Statements.entriesRefunded, question)
            entries += try await database.run(Statements.entriesNotGranted, question).flatMap(\.self)
            entries += try await database.run(Statements.entriesImported, question)
        }
        let compared = Set(pairs.map { Country(product: $0.product, code: Territory.twoLetters($0.storefront)) })
        let differences = BookComparison.differences(books, entries, cutover: cutover) { place in
            !books.isKnown(place.product) || compared.contains(Country(product: place.product, code: place.country))
        }
        return Result(books: books, differences: differences)
    }

    private struct Pair: Hashable {
        var product: String
        var storefront: String
    }

    private struct Country: Hashable {
        var product: String
        /// Two letters; empty: not known.
        var code: String
    }

    /// The products and storefronts of which some place differs, or has units that Apple counts otherwise. With each
    /// product come its purchases without a country.
    private static func pairs(
        _ books: AppleBooks, _ sold: [Statements.BookUnits], _ refunded: [Statements.BookUnits]
    ) -> Set<Pair> {
        var rest: [AppleBooks.Place: Int] = [:]
        var storefronts: [Country: Set<String>] = [:]
        var found: Set<Country> = []
        for (place, units) in books.places where books.isKnown(place.product) {
            rest[place] = units.count
            let country = Country(product: place.product, code: place.country)
            if units.restored != 0 { found.insert(country) }
            if let storefront = Territory.storefront(place.country) {
                storefronts[country, default: []].insert(storefront)
            }
        }
        for (side, all) in [(AppleBooks.Place.Side.sales, sold), (.refunds, refunded)] {
            for units in all {
                let country = Country(product: units.product, code: Territory.twoLetters(units.storefront))
                storefronts[country, default: []].insert(units.storefront)
                if units.others != 0 { found.insert(country) }
                let place = AppleBooks.Place(
                    product: units.product, country: country.code, days: books.days[units.report], side: side)
                rest[place, default: 0] -= units.units
            }
        }
        for (place, units) in rest where units != 0 {
            found.insert(Country(product: place.product, code: place.country))
        }
        var pairs: Set<Pair> = []
        for country in found {
            let unknown = Country(product: country.product, code: "")
            for storefront in (storefronts[country] ?? []).union(storefronts[unknown] ?? []).union([""]) {
                pairs.insert(Pair(product: country.product, storefront: storefront))
            }
        }
        return pairs
    }

    /// Units that nothing explains, of both directions.
    package var unexplained: Int {
        results.flatMap(\.differences).reduce(0) { $0 + abs($1.unexplained) }
    }

    // MARK: For people and programs

    package var json: JSONValue {
        .object([
            .init("appId", .string(appID)), .init("compared", .string("units")),
            .init("unexplained", .integer(unexplained)), .init("reports", .array(results.map(\.json))),
        ])
    }

    /// Lines for a terminal: of each kind of report the days, then a table of the differences.
    package var lines: [String] {
        let end =
            unexplained == 0
            ? "every unit of Apple's is explained" : "unexplained: \(unexplained.counted("unit"))"
        return results.flatMap(\.lines) + ["\(end); compared are units, not currency and proceeds"]
    }
}

extension SalesReconciliation.Result {
    fileprivate var json: JSONValue {
        .object([
            .init("kind", .string(books.kind.rawValue)),
            .init("days", .array(books.days.map { .string("\($0)") })),
            .init("rows", .integer(books.rows)),
            .init(
                "passedOver",
                .object(books.passedOver.sorted { $0.key < $1.key }.map { .init($0.key, .integer($0.value)) })),
            .init("differences", .array(differences.map(\.json))),
        ])
    }

    fileprivate var lines: [String] {
        let days = books.days.count > 3 ? "\(books.days[0]) … \(books.days[books.days.count - 1])" : named
        var head = "\(books.kind.rawValue): \(days); \(books.rows.counted("row")) of in-app purchases"
        if !books.passedOver.isEmpty {
            let types = books.passedOver.sorted { $0.key < $1.key }.map { "\($0.key) (\($0.value))" }
            head += "; rows passed over, by type: \(types.joined(separator: ", "))"
        }
        guard !differences.isEmpty else { return [head, "no differences"] }
        let header = ["PRODUCT", "COUNTRY", "DAYS", "WHAT", "APPLE", "OURS", "CAUSE", "UNITS", "TRANSACTIONS"]
        return [head] + Self.table([header] + differences.flatMap(\.rows))
    }

    private var named: String { books.days.map { "\($0)" }.joined(separator: ", ") }

    /// Each column as wide as its longest field, and no spaces at the ends of lines.
    private static func table(_ rows: [[String]]) -> [String] {
        let widths = (rows.first ?? []).indices.map { column in rows.map { $0[column].count }.max() ?? 0 }
        return rows.map { row in
            let fields = zip(row, widths).map { $0 + String(repeating: " ", count: $1 - $0.count) }
            var line = fields.joined(separator: "  ")
            while line.last == " " { line.removeLast() }
            return line
        }
    }
}

extension BookDifference {
    /// Transactions that a terminal shows of one cause; JSON has all of them.
    private static let shownMax = 5

    fileprivate var json: JSONValue {
        .object([
            .init("product", .string(place.product)), .init("country", .string(place.country)),
            .init("from", .string("\(place.days.first)")), .init("through", .string("\(place.days.last)")),
            .init("what", .string(place.side.rawValue)), .init("apple", .integer(apple)), .init("ours", .integer(ours)),
            .init(
                "causes",
                .array(
                    parts.map { part in
                        .object([
                            .init("cause", .string(part.cause.rawValue)), .init("units", .integer(part.units)),
                            .init("transactions", .array(part.transactions.map(JSONValue.string))),
                        ])
                    })),
            .init("unexplained", .integer(unexplained)),
        ])
    }

    /// A row for each cause, and one for the unexplained units; only the first row names the place.
    fileprivate var rows: [[String]] {
        var causes = parts.map { part in
            let shown = part.transactions.prefix(Self.shownMax).joined(separator: " ")
            let more = part.transactions.count - Self.shownMax
            return [part.cause.rawValue, "\(part.units)", more > 0 ? "\(shown) and \(more) more" : shown]
        }
        if unexplained != 0 { causes.append(["unexplained", "\(unexplained)", ""]) }
        let named = [
            place.product, place.country.isEmpty ? "-" : place.country, "\(place.days)", place.side.rawValue,
            "\(apple)", "\(ours)",
        ]
        return causes.enumerated().map { ($0 == 0 ? named : named.map { _ in "" }) + $1 }
    }
}
