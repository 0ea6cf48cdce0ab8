package import Encoding
import Foundation
package import Purchases

/// The written form of a catalogue: a file of YAML (or JSON) that people write, and the JSON of `catalogues.document`
/// that this program writes. Both have one form and one reader.
package enum CatalogueFile {
    /// Items of one app, over all products; each with its versions.
    package static let itemsMax = 10_000
    package static let versionsMax = 100

    /// The file of `makegood catalog apply`: `apps`, each with its `products`. By app.
    ///
    /// - Parameter name: the file's name, as errors say it.
    /// - Throws: what is wrong, with the place and the path of the field.
    package static func parse(
        file yaml: String, name: String = "catalogue.yaml"
    ) throws(ConfigurationError) -> [String: Catalogue] {
        var reader = try ConfigurationReader(yaml: yaml, name: name)
        var catalogues: [String: Catalogue] = [:]
        guard let sections = try reader.sections("apps"), !sections.isEmpty else {
            throw reader.error("apps", "must list at least one app")
        }
        try reader.finish()
        for section in sections {
            var app = section
            let id = try app.requiredText("id")
            guard catalogues.updateValue(try read(&app), forKey: id) == nil else {
                throw app.error("id", "is used twice")
            }
        }
        return catalogues
    }

    /// The document of one app, as `document` writes it.
    package static func parse(document json: String, revision: Int) throws(ConfigurationError) -> Catalogue {
        var reader = try ConfigurationReader(yaml: json, name: "catalogues.document")
        var catalogue = try read(&reader)
        catalogue.revision = revision
        return catalogue
    }

    private static func read(_ reader: inout ConfigurationReader) throws(ConfigurationError) -> Catalogue {
        var products: [Catalogue.Product] = []
        var items = 0
        for section in try reader.sections("products") ?? [] {
            let product = try readProduct(section)
            guard !products.contains(where: { $0.id == product.id }) else { throw section.error("id", "is used twice") }
            items += product.items.count
            guard items <= itemsMax else { throw section.error("items", "are more than \(itemsMax) in this app") }
            products.append(product)
        }
        try reader.finish()
        return Catalogue(products: products)
    }

    /// Reads a product. Its only item may be written without `items`: then the item's `goods`, `price…`, `bonuses` and
    /// `versions` stand with the product, and the item has the product's name (S3-7).
    private static func readProduct(_ section: ConfigurationReader) throws(ConfigurationError) -> Catalogue.Product {
        var reader = section
        let id = try reader.name("id")
        let kind = try reader.kind("type")
        let terms = try reader.terms(of: kind)
        var items: [Catalogue.Item] = []
        for section in try reader.sections("items") ?? [] {
            var item = section
            let id = try item.name("id")
            guard !items.contains(where: { $0.id == id }) else { throw item.error("id", "is used twice") }
            guard id != "none" else { throw item.error("id", "is the word for no default") }
            items.append(try readItem(id, &item))
            try item.finish()
        }
        let named = try reader.text("default")
        if items.isEmpty { items.append(try readItem(id, &reader)) }
        try reader.finish()
        // Without `default` the only item is the default; where there are several, the file must say which.
        let defaultItem = named == "none" ? nil : named ?? (items.count == 1 ? items[0].id : nil)
        guard named != nil || items.count == 1 else {
            throw reader.error("default", "is missing: name one of the items, or none")
        }
        if let defaultItem, !items.contains(where: { $0.id == defaultItem }) {
            throw reader.error("default", "names no item of this product")
        }
        return Catalogue.Product(id: id, kind: kind, defaultItem: defaultItem, items: items, terms: terms)
    }

    private static func readItem(
        _ id: String, _ reader: inout ConfigurationReader
    ) throws(ConfigurationError) -> Catalogue.Item {
        var limits = Catalogue.Limits()
        if var section = try reader.section("limits") {
            limits.day = try section.integer("day", in: 1...1_000_000)
            limits.month = try section.integer("month", in: 1...1_000_000)
            limits.ever = try section.integer("ever", in: 1...1_000_000)
            try section.finish()
        }
        var versions: [Catalogue.Version] = []
        if let sections = try reader.sections("versions") {
            for section in sections {
                var version = section
                versions.append(try readVersion(&version, hasValidity: true))
                try version.finish()
                guard !versions.dropLast().contains(where: { $0.isSame(as: versions[versions.count - 1]) }) else {
                    throw version.error("from", "is used twice for this item and promotion")
                }
            }
        } else {
            versions.append(try readVersion(&reader, hasValidity: false))
        }
        guard (1...versionsMax).contains(versions.count) else {
            throw reader.error("versions", "must be 1 to \(versionsMax)")
        }
        return Catalogue.Item(id: id, limits: limits, versions: versions)
    }

    private static func readVersion(
        _ reader: inout ConfigurationReader, hasValidity: Bool
    ) throws(ConfigurationError) -> Catalogue.Version {
        var version = Catalogue.Version(goods: try reader.goods("goods"))
        if hasValidity {
            if try reader.text("promotion") != nil { version.promotion = try reader.name("promotion") }
            version.from = try reader.date("from")
            version.until = try reader.date("until")
            if let until = version.until, until <= version.from ?? .distantPast {
                throw reader.error("until", "must be later than from")
            }
        }
        for section in try reader.sections("bonuses") ?? [] {
            var bonus = section
            let id = try bonus.name("id")
            guard let once: Catalogue.Bonus.Once = try bonus.word("once") else {
                throw bonus.error("once", "is missing: ever, month or day")
            }
            let goods = try bonus.goods("goods")
            guard !goods.isEmpty else { throw bonus.error("goods", "are missing") }
            try bonus.finish()
            guard !version.bonuses.contains(where: { $0.id == id }) else { throw bonus.error("id", "is used twice") }
            version.bonuses.append(.init(id: id, once: once, goods: goods))
        }
        let milliunits = try reader.integer("priceMilliunits", in: 0...FieldBounds.priceMax)
        let currency = try reader.text("currency")
        switch (milliunits, currency) {
        case (nil, nil): break
        case (let milliunits?, let currency?):
            guard Catalogue.Price.isCurrency(currency) else {
                throw reader.error("currency", "must be three capital letters (ISO 4217)")
            }
            version.price = .init(milliunits: milliunits, currency: currency)
        case (.some, nil): throw reader.error("currency", "is missing beside priceMilliunits")
        case (nil, .some): throw reader.error("priceMilliunits", "is missing beside currency")
        }
        return version
    }

    /// The form that is stored: products and items by name, versions by their beginning.
    package static func document(_ catalogue: Catalogue) -> JSONValue {
        .object([
            .init("products", .array(catalogue.products.values.sorted { $0.id < $1.id }.map(json)))
        ])
    }

    private static func json(_ product: Catalogue.Product) -> JSONValue {
        .object(
            [.init("id", .string(product.id)), .init("type", .string(product.kind.settingName))]
                + product.terms.members
                + [
                    .init("default", .string(product.defaultItem ?? "none")),
                    .init("items", .array(product.items.values.sorted { $0.id < $1.id }.map(json))),
                ])
    }

    private static func json(_ item: Catalogue.Item) -> JSONValue {
        var members: [JSONValue.Member] = [.init("id", .string(item.id))]
        if !item.limits.areNone { members.append(.init("limits", .limits(item.limits))) }
        let versions = item.versions.sorted {
            ($0.promotion ?? "", $0.from ?? .distantPast) < ($1.promotion ?? "", $1.from ?? .distantPast)
        }
        members.append(.init("versions", .array(versions.map(json))))
        return .object(members)
    }

    private static func json(_ version: Catalogue.Version) -> JSONValue {
        var members: [JSONValue.Member] = []
        if let promotion = version.promotion { members.append(.init("promotion", .string(promotion))) }
        if let from = version.from { members.append(.init("from", .string(from.formatted(.iso8601)))) }
        if let until = version.until { members.append(.init("until", .string(until.formatted(.iso8601)))) }
        members.append(.init("goods", .goods(version.goods)))
        if !version.bonuses.isEmpty { members.append(.init("bonuses", .bonuses(version.bonuses))) }
        if let price = version.price {
            members.append(.init("priceMilliunits", .integer(price.milliunits)))
            members.append(.init("currency", .string(price.currency)))
        }
        return .object(members)
    }
}

extension JSONValue {
    /// Bonuses as they stand in answers and in the catalogue.
    package static func bonuses(_ bonuses: [Catalogue.Bonus]) -> JSONValue {
        .array(
            bonuses.map {
                .object([
                    .init("id", .string($0.id)), .init("once", .string($0.once.rawValue)),
                    .init("goods", .goods($0.goods)),
                ])
            })
    }

    package static func limits(_ limits: Catalogue.Limits) -> JSONValue {
        .object(
            [("day", limits.day), ("month", limits.month), ("ever", limits.ever)].compactMap { name, count in
                count.map { .init(name, .integer($0)) }
            })
    }
}

extension EntitlementTerms {
    /// The members of a catalogue's product; none that it does not say.
    package var members: [JSONValue.Member] {
        var members: [JSONValue.Member] = []
        if let group { members.append(.init("group", .string(group))) }
        if let level { members.append(.init("level", .integer(level))) }
        if let duration { members.append(.init("duration", .string(duration.description))) }
        return members
    }
}

extension Transaction.Kind {
    /// As the configuration and the catalogue write it.
    package var settingName: String {
        switch self {
        case .consumable: "consumable"
        case .nonConsumable: "nonConsumable"
        case .autoRenewable: "autoRenewable"
        case .nonRenewing: "nonRenewing"
        }
    }
}

extension ConfigurationReader {
    mutating func kind(_ key: String) throws(ConfigurationError) -> Transaction.Kind {
        let type = try requiredText(key)
        guard let kind = Transaction.Kind.allCases.first(where: { $0.settingName == type }) else {
            let names = Transaction.Kind.allCases.map(\.settingName).sorted()
            throw error(key, "must be one of \(names.joined(separator: ", "))")
        }
        return kind
    }

    /// The terms of a product for entitlements: `group` and `level` of a subscription, `duration` of a non-renewing
    /// purchase.
    mutating func terms(of kind: Transaction.Kind) throws(ConfigurationError) -> EntitlementTerms {
        var terms = EntitlementTerms()
        if try text("group") != nil { terms.group = try name("group") }
        terms.level = try integer("level", in: 1...1000)
        if let text = try text("duration") {
            guard let duration = CalendarPeriod(text) else {
                throw error("duration", "must be a period such as P30D, P1M or P1Y")
            }
            terms.duration = duration
        }
        for (key, isSaid) in [("group", terms.group != nil), ("level", terms.level != nil)]
        where isSaid && kind != .autoRenewable {
            throw error(key, "is of an autoRenewable product alone")
        }
        guard terms.duration == nil || kind == .nonRenewing else {
            throw error("duration", "is of a nonRenewing product alone")
        }
        guard terms.level == nil || terms.group != nil else { throw error("group", "is missing beside level") }
        return terms
    }

    /// A name that the operator chooses and that travels in requests: short and printable.
    mutating func name(_ key: String) throws(ConfigurationError) -> String {
        let name = try requiredText(key)
        guard name.utf8.count <= FieldBounds.itemBytesMax,
            !name.unicodeScalars.contains(where: { $0.properties.generalCategory == .control })
        else { throw error(key, "must be a printable text of at most \(FieldBounds.itemBytesMax) bytes") }
        return name
    }

    mutating func goods(_ key: String) throws(ConfigurationError) -> [AppPolicy.Goods] {
        var goods: [AppPolicy.Goods] = []
        for section in try sections(key) ?? [] {
            var good = section
            let item = try good.requiredText("item")
            guard let amount = try good.integer("amount", in: 1...1_000_000_000_000) else {
                throw good.error("amount", "is missing")
            }
            try good.finish()
            goods.append(AppPolicy.Goods(item: item, amount: amount))
        }
        return goods
    }
}
