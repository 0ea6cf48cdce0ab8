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

        /// Whether the code has the form of ISO 4217: three capital letters.
        package static func isCurrency(_ code: String) -> Bool {
            code.utf8.count == 3 && code.utf8.allSatisfy((UInt8(ascii: "A")...UInt8(ascii: "Z")).contains)
        }
    }

    /// Goods that a user gets beside the purchased goods, once per period: for example a present for the first
    /// purchase. One id is one bonus, whatever item it stands under.
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

        /// The period of a purchase at this date: `2026-11-22`, `2026-11`, or the empty string for ``Once/ever``.
        ///
        /// The date is Apple's purchase date: a purchase before midnight that is granted after an outage takes the
        /// bonus of its own day and not the next day's, and judging it again never finds another period.
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
        /// Nil: for everybody. Otherwise only for orders that name the promotion (the `collectionID` of S1-7).
        package var promotion: String?
        /// The first moment at which the version is valid. Nil: since ever.
        package var from: Date?
        /// The first moment at which the version is over. Nil: no end.
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

    /// How many units one user may buy; nil: no limit. An order beyond a limit is refused. A paid purchase beyond a
    /// limit is granted all the same, and its grant says which limit it passed (``LimitPlace``).
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

        /// The version that is valid at the date; of several, the one that began last. Nil: none is valid.
        package func version(promotion: String?, at date: Date) -> Version? {
            versions.filter { $0.promotion == promotion && $0.isValid(at: date) }
                .max { $0.from ?? .distantPast < $1.from ?? .distantPast }
        }
    }

    package struct Product: Sendable, Equatable {
        package var id: String
        package var kind: Transaction.Kind
        /// The item of a purchase that has no order and names no item. Nil: such a purchase is held until somebody
        /// names the item.
        package var defaultItem: String?
        package var items: [String: Item]
        package var terms: EntitlementTerms

        package init(
            id: String, kind: Transaction.Kind, defaultItem: String?, items: [Item],
            terms: EntitlementTerms = EntitlementTerms()
        ) {
            self.id = id
            self.kind = kind
            self.defaultItem = defaultItem
            self.items = Dictionary(items.map { ($0.id, $0) }, uniquingKeysWith: { first, _ in first })
            self.terms = terms
        }

        /// A store product with one item, which has the product's name.
        package init(
            id: String, kind: Transaction.Kind, goods: [AppPolicy.Goods], terms: EntitlementTerms = EntitlementTerms()
        ) {
            self.init(
                id: id, kind: kind, defaultItem: id, items: [Item(id: id, versions: [Version(goods: goods)])],
                terms: terms)
        }
    }

    package var products: [String: Product]
    /// The revision of the applied catalogue. Nil: the configuration's alone.
    package var revision: Int?

    package init(products: [Product], revision: Int? = nil) {
        self.products = Dictionary(products.map { ($0.id, $0) }, uniquingKeysWith: { first, _ in first })
        self.revision = revision
    }

    /// What one unit of an item gives at a date. Nil: nothing of that name is sold then.
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

    /// This catalogue, and those products of the other one that this one lacks.
    package func completed(by other: Catalogue) -> Catalogue {
        var merged = self
        merged.products.merge(other.products) { own, _ in own }
        return merged
    }
}

/// What a user is promised for one unit of an item. An order freezes the offer.
package struct Offer: Sendable, Equatable {
    package var productID: String
    package var item: String
    package var kind: Transaction.Kind
    package var goods: [AppPolicy.Goods]
    package var bonuses: [Catalogue.Bonus]
    package var price: Catalogue.Price?
    /// The revision of the catalogue that holds the offer. Nil: the configuration's.
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
    /// The bonus with this id, under whatever item it stands.
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
    /// The configuration's products as a catalogue: each is one item, for everybody, since ever.
    package var catalogue: Catalogue {
        Catalogue(
            products: products.values.map {
                .init(id: $0.id, kind: $0.kind, goods: $0.goods, terms: terms[$0.id] ?? EntitlementTerms())
            })
    }
}
