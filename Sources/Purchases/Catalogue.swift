package import Foundation

/// What one app sells: store products, the items that are sold under each, and every version of an item that was, is
/// or will be. Both mappings fit: one item per store product (S3-7), and many under one price (S3-8).
package struct Catalogue: Sendable, Equatable {
    package struct Price: Sendable, Equatable {
        /// Thousandths of the currency's unit, as Apple writes prices.
        package var milliunits: Int
        /// ISO 4217.
        package var currency: String

        package init(milliunits: Int, currency: String) {
            self.milliunits = milliunits
            self.currency = currency
        }

        /// Whether it is spelt as ISO 4217 spells one.
        package static func isCurrency(_ code: String) -> Bool {
            code.utf8.count == 3 && code.utf8.allSatisfy((UInt8(ascii: "A")...UInt8(ascii: "Z")).contains)
        }
    }

    /// What comes beside the goods, once per user and period: a first purchase's present. One id is one present, under
    /// whatever item it stands.
    package struct Bonus: Sendable, Equatable, Codable {
        /// Periods are those of UTC.
        package enum Once: String, Sendable, CaseIterable, Codable {
            case ever, month, day
        }

        package var id: String
        package var once: Once
        package var goods: [AppPolicy.Goods]

        package init(id: String, once: Once, goods: [AppPolicy.Goods]) {
            self.id = id
            self.once = once
            self.goods = goods
        }

        /// The period that a purchase of this time belongs to: `2026-11-22`, `2026-11`, or nothing where it is for ever.
        ///
        /// By Apple's purchase date: what is bought before midnight and granted after an outage takes its own day's
        /// bonus and not the next one's, and judging it again never finds another period.
        package func period(at date: Date) -> String {
            let parts: Set<Calendar.Component> = [.year, .month, .day]
            let day = Self.calendar.dateComponents(parts, from: date)
            let month = String(format: "%04d-%02d", day.year ?? 0, day.month ?? 0)
            return switch once {
            case .ever: ""
            case .month: month
            case .day: String(format: "%@-%02d", month, day.day ?? 0)
            }
        }

        private static let calendar: Calendar = {
            var calendar = Calendar(identifier: .gregorian)
            calendar.timeZone = .gmt
            return calendar
        }()
    }

    /// What one unit of an item gives, and when.
    package struct Version: Sendable, Equatable {
        /// Nil: for everybody. Named: only for orders that name it (the `collectionID` of S1-7).
        package var promotion: String?
        /// Nil: since ever.
        package var from: Date?
        /// The first moment at which it is over; nil: open.
        package var until: Date?
        package var goods: [AppPolicy.Goods]
        package var bonuses: [Bonus]
        package var price: Price?

        package init(
            promotion: String? = nil, from: Date? = nil, until: Date? = nil, goods: [AppPolicy.Goods],
            bonuses: [Bonus] = [], price: Price? = nil
        ) {
            self.promotion = promotion
            self.from = from
            self.until = until
            self.goods = goods
            self.bonuses = bonuses
            self.price = price
        }

        package func isValid(at date: Date) -> Bool { hasBegun(at: date) && until.map { date < $0 } ?? true }

        package func hasBegun(at date: Date) -> Bool { from.map { $0 <= date } ?? true }
    }

    /// How many units one user may buy; nil: as many as the user likes. An order beyond it is refused. What is paid is given all
    /// the same, and its grant says which limit it passed (``LimitPlace``).
    package struct Limits: Sendable, Equatable {
        package var day: Int?
        package var month: Int?
        package var ever: Int?

        package init(day: Int? = nil, month: Int? = nil, ever: Int? = nil) {
            self.day = day
            self.month = month
            self.ever = ever
        }

        package var areNone: Bool { day == nil && month == nil && ever == nil }
    }

    package struct Item: Sendable, Equatable {
        package var id: String
        package var limits: Limits
        package var versions: [Version]

        package init(id: String, limits: Limits = Limits(), versions: [Version]) {
            self.id = id
            self.limits = limits
            self.versions = versions
        }

        /// Of several that are valid, the one that began last.
        package func version(promotion: String?, at date: Date) -> Version? {
            versions.filter { $0.promotion == promotion && $0.isValid(at: date) }
                .max { $0.from ?? .distantPast < $1.from ?? .distantPast }
        }
    }

    package struct Product: Sendable, Equatable {
        package var id: String
        package var kind: Transaction.Kind
        /// What it is where nobody says; nil: a purchase without an order and an item waits for somebody to say.
        package var defaultItem: String?
        package var items: [String: Item]

        package init(id: String, kind: Transaction.Kind, defaultItem: String?, items: [Item]) {
            self.id = id
            self.kind = kind
            self.defaultItem = defaultItem
            self.items = Dictionary(items.map { ($0.id, $0) }, uniquingKeysWith: { first, _ in first })
        }

        /// The one item of a store product that is not shared: it has the product's name.
        package init(id: String, kind: Transaction.Kind, goods: [AppPolicy.Goods]) {
            self.init(id: id, kind: kind, defaultItem: id, items: [Item(id: id, versions: [Version(goods: goods)])])
        }
    }

    package var products: [String: Product]
    /// Which applied catalogue this is; nil: the configuration's alone.
    package var revision: Int?

    package init(products: [Product], revision: Int? = nil) {
        self.products = Dictionary(products.map { ($0.id, $0) }, uniquingKeysWith: { first, _ in first })
        self.revision = revision
    }

    /// What one unit of an item gives at a time; nil where nothing of that name is sold then.
    ///
    /// - Parameters:
    ///   - item: nil: the product's default.
    ///   - promotion: nil: what everybody gets.
    package func offer(product: String, item: String?, promotion: String?, at date: Date) -> Offer? {
        guard let product = products[product], let name = item ?? product.defaultItem,
            let item = product.items[name], let version = item.version(promotion: promotion, at: date)
        else { return nil }
        return Offer(
            productID: product.id, item: item.id, kind: product.kind, goods: version.goods, bonuses: version.bonuses,
            price: version.price, revision: revision)
    }

    /// The store products under which an item is sold, in order.
    package func products(selling item: String) -> [Product] {
        products.values.filter { $0.items[item] != nil }.sorted { $0.id < $1.id }
    }

    /// This catalogue, with the products of another where it does not have them itself.
    package func completed(by other: Catalogue) -> Catalogue {
        var merged = self
        merged.products.merge(other.products) { own, _ in own }
        return merged
    }
}

/// What somebody is promised for one unit: an order freezes it.
package struct Offer: Sendable, Equatable {
    package var productID: String
    package var item: String
    package var kind: Transaction.Kind
    package var goods: [AppPolicy.Goods]
    package var bonuses: [Catalogue.Bonus]
    package var price: Catalogue.Price?
    /// Of the catalogue it stood in; nil: the configuration's.
    package var revision: Int?

    package init(
        productID: String, item: String, kind: Transaction.Kind, goods: [AppPolicy.Goods],
        bonuses: [Catalogue.Bonus] = [], price: Catalogue.Price? = nil, revision: Int? = nil
    ) {
        self.productID = productID
        self.item = item
        self.kind = kind
        self.goods = goods
        self.bonuses = bonuses
        self.price = price
        self.revision = revision
    }
}

extension Catalogue {
    /// The bonus of this id, wherever it stands.
    package func bonus(_ id: String) -> Bonus? {
        for product in products.values {
            for version in product.items.values.lazy.flatMap(\.versions) {
                if let bonus = version.bonuses.first(where: { $0.id == id }) { return bonus }
            }
        }
        return nil
    }
}

extension AppPolicy {
    /// What the configuration's products are as a catalogue: each one item, for everybody, since ever.
    package var catalogue: Catalogue {
        Catalogue(products: products.values.map { .init(id: $0.id, kind: $0.kind, goods: $0.goods) })
    }
}
