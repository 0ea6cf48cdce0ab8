/// The units of Apple's reports of one kind, summed. Memory grows with the products, countries and days, and not with
/// the lines.
package struct AppleBooks: Sendable {
    /// The subject of a comparison: the sales or the refunds of one product in one country on the days of one report.
    package struct Place: Sendable, Hashable, Comparable {
        package enum Side: String, Sendable, CaseIterable {
            case sales, refunds
        }

        package var product: String
        /// Two capital letters; empty: Apple has not told this server the country.
        package var country: String
        package var days: AppleDays
        package var side: Side

        package init(product: String, country: String, days: AppleDays, side: Side) {
            self.product = product
            self.country = country
            self.days = days
            self.side = side
        }

        package static func < (one: Place, other: Place) -> Bool {
            (one.product, one.country, one.days, one.side.rawValue)
                < (other.product, other.country, other.days, other.side.rawValue)
        }
    }

    private struct Part: Hashable {
        var days: AppleDays
        var country: String
    }

    package struct Units: Sendable, Equatable {
        /// Without the restored ones.
        package var count = 0
        /// Restored non-consumables (IA3).
        package var restored = 0

        package init(_ count: Int = 0, restored: Int = 0) {
            self.count = count
            self.restored = restored
        }
    }

    package let kind: AppleReportKind
    package private(set) var places: [Place: Units] = [:]
    /// The days of the reports, in their order; none overlaps another.
    package private(set) var days: [AppleDays] = []
    /// The rows that are no in-app purchases, by their product type identifiers.
    package private(set) var passedOver: [String: Int] = [:]
    /// The rows of in-app purchases.
    package private(set) var rows = 0
    /// The product ids of the app that is compared.
    private var known: Set<String>
    /// Of each file with in-app purchases: their products, and the error if none of them is the app's.
    private var products: [String: (ids: Set<String>, error: AppleReportError)] = [:]
    /// The file that has told the days, and of Financial Reports the country too.
    private var files: [Part: String] = [:]
    private var lastDays: AppleDays?

    private let app: String

    /// - Parameter known: the product ids that the app sells or has sold.
    package init(_ kind: AppleReportKind, app: String, known: Set<String>) {
        self.kind = kind
        self.app = app
        self.known = known
    }

    /// - Throws: where the days overlap those of another line or file without being the same report's.
    package mutating func add(_ row: AppleReportRow, of reader: AppleReportReader) throws(AppleReportError) {
        // Apple writes a Financial Report for each region: the same month, but other countries.
        let key = Part(days: row.days, country: kind == .sales ? "" : row.country)
        if let file = files[key] {
            guard file == reader.file else { throw reader.overlap(row, with: file) }
        } else {
            files[key] = reader.file
        }
        if row.days != lastDays {
            try cover(row, reader)
            lastDays = row.days
        }
        let side = row.event == .refunded ? Place.Side.refunds : .sales
        let place = Place(product: row.product, country: row.country, days: row.days, side: side)
        switch row.event {
        case .notInApp(let type):
            passedOver[type, default: 0] += 1
            return
        case .sold, .refunded: places[place, default: Units()].count += row.units
        case .restored: places[place, default: Units()].restored += row.units
        }
        rows += 1
        if products[reader.file] == nil { products[reader.file] = ([], reader.foreign(row, app: app)) }
        products[reader.file]?.ids.insert(row.product)
    }

    /// Takes products that the app has sold, and that its catalogue does not have any more.
    package mutating func learn(_ products: some Sequence<String>) { known.formUnion(products) }

    /// - Throws: for a file that has in-app purchases, but none of the app's.
    package func check() throws(AppleReportError) {
        for file in products.keys.sorted() {
            if let (ids, error) = products[file], ids.isDisjoint(with: known) { throw error }
        }
    }

    /// Whether the app sells or has sold the product.
    package func isKnown(_ product: String) -> Bool { known.contains(product) }

    /// Remembers the days of a row.
    private mutating func cover(_ row: AppleReportRow, _ reader: AppleReportReader) throws(AppleReportError) {
        let place = days.firstIndex { $0 >= row.days } ?? days.endIndex
        if place < days.endIndex, days[place] == row.days { return }
        for index in [place - 1, place] where days.indices.contains(index) && days[index].overlaps(row.days) {
            throw reader.overlap(row, with: "\(days[index]), which another line or file has told")
        }
        days.insert(row.days, at: place)
    }
}
