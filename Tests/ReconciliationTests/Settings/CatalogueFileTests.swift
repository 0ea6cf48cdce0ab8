import Foundation
import Purchases
import Testing

@testable import Encoding
@testable import Settings

/// Goal: a catalogue's file is read, or the wrong field is named; a stored catalogue reads back as it was written.
/// Method: a table of files with one defect each, and one file with every field.
@Suite struct CatalogueFileTests {
    static let everything = """
        apps:
          - id: game
            products:
              - {id: pass, type: nonConsumable, goods: [{item: pass, amount: 1}], priceMilliunits: 30000, currency: CNY}
              - id: tier1
                type: consumable
                default: none
                items:
                  - id: "coins"
                    limits: {day: 3, ever: 100}
                    versions:
                      - {goods: [{item: coins, amount: 6000}]}
                      - from: 2026-04-07T00:00:00Z
                        until: 2026-04-14T00:00:00Z
                        goods: [{item: coins, amount: 6000}, {item: gems, amount: 1}]
                        bonuses: [{id: first-charge, once: ever, goods: [{item: gems, amount: 10}]}]
                        priceMilliunits: 6000
                        currency: CNY
                      - {promotion: spring, goods: []}
                  - {id: gems, goods: [{item: gems, amount: 60}]}
          - {id: other, products: []}
        """

    @Test("S3-7, S3-8: both mappings, versions, promotions, bonuses, limits and prices; stored, they read the same")
    func reading() throws {
        let catalogues = try CatalogueFile.parse(file: Self.everything)
        #expect(catalogues.keys.sorted() == ["game", "other"])
        let game = try #require(catalogues["game"])
        #expect(game.products["pass"]?.defaultItem == "pass")
        #expect(game.products["tier1"]?.defaultItem == nil)
        #expect(game.products["tier1"]?.items["coins"]?.limits == .init(day: 3, ever: 100))
        let april = try Date.ISO8601FormatStyle().parse("2026-04-07T00:00:00Z")
        let offer = try #require(game.offer(product: "tier1", item: "coins", promotion: nil, at: april))
        #expect(offer.goods.map(\.amount) == [6000, 1] && offer.bonuses.first?.once == .ever)
        #expect(offer.price == .init(milliunits: 6000, currency: "CNY"))
        let document = CatalogueFile.document(game)
        var read = try CatalogueFile.parse(document: document.text, revision: 7)
        #expect(read.revision == 7)
        read.revision = nil
        #expect(try game.changes(to: read, at: april) == [])
        #expect(CatalogueFile.document(read) == document)
    }

    @Test("S3-63: group, level and duration of a product are read and stored; a document without them still reads")
    func terms() throws {
        let file = """
            apps:
              - id: game
                products:
                  - {id: gold, type: autoRenewable, group: pass, level: 1, goods: []}
                  - {id: silver, type: autoRenewable, group: pass, level: 2, items: [{id: a}, {id: b}], default: a}
                  - {id: loose, type: autoRenewable}
                  - {id: season, type: nonRenewing, duration: P2W}
            """
        let game = try #require(try CatalogueFile.parse(file: file)["game"])
        #expect(game.products["gold"]?.terms == .init(group: "pass", level: 1))
        #expect(game.products["silver"]?.terms == .init(group: "pass", level: 2))
        #expect(game.products["loose"]?.terms == .init())
        #expect(game.products["season"]?.terms == .init(duration: CalendarPeriod("P14D")))
        #expect(game.products.values.compactMap(\.lackingTerm) == ["group"])
        let document = CatalogueFile.document(game)
        #expect(document.text.contains(#"{"id":"gold","type":"autoRenewable","group":"pass","level":1,"#))
        let read = try CatalogueFile.parse(document: document.text, revision: 1)
        #expect(read.products == game.products)
        let former =
            #"{"products":[{"id":"gold","type":"autoRenewable","default":"gold","#
            + #""items":[{"id":"gold","versions":[{"goods":[]}]}]}]}"#
        let before = try CatalogueFile.parse(document: former, revision: 1)
        #expect(before.products["gold"]?.terms == .init())
        #expect(CatalogueFile.document(before).text == former, "what says nothing is written as before")
    }

    struct Defect: Sendable, CustomTestStringConvertible {
        let product: String
        let key: String
        var testDescription: String { key }
    }

    static let defects: [Defect] = [
        Defect(product: "{type: consumable}", key: "id"),
        Defect(product: "{id: p}", key: "type"),
        Defect(product: "{id: p, type: coins}", key: "type"),
        Defect(product: "{id: p, type: consumable, gods: []}", key: "gods"),
        Defect(product: "{id: p, type: consumable, goods: [{item: c}]}", key: "goods[0].amount"),
        Defect(product: "{id: p, type: consumable, goods: [{item: c, amount: 0}]}", key: "goods[0].amount"),
        Defect(
            product: "{id: p, type: consumable, items: [{id: a, goods: []}, {id: a, goods: []}]}", key: "items[1].id"),
        Defect(product: "{id: p, type: consumable, items: [{id: a}, {id: b}]}", key: "default"),
        Defect(product: "{id: p, type: consumable, default: c, items: [{id: a}, {id: b}]}", key: "default"),
        Defect(product: "{id: p, type: consumable, goods: [], items: [{id: a}]}", key: "goods"),
        Defect(product: "{id: p, type: consumable, limits: {day: 0}}", key: "limits.day"),
        Defect(product: "{id: p, type: consumable, limits: {week: 1}}", key: "limits.week"),
        Defect(product: "{id: p, type: consumable, versions: []}", key: "versions"),
        Defect(product: "{id: p, type: consumable, versions: [{from: today, goods: []}]}", key: "versions[0].from"),
        Defect(product: "{id: p, type: consumable, versions: [{goods: []}, {goods: []}]}", key: "versions[1].from"),
        Defect(
            product: """
                {id: p, type: consumable, versions: [{from: 2026-04-07T00:00:00Z, until: 2026-04-07T00:00:00Z, goods: []}]}
                """, key: "versions[0].until"),
        Defect(
            product: "{id: p, type: consumable, bonuses: [{id: b, goods: [{item: c, amount: 1}]}]}",
            key: "bonuses[0].once"),
        Defect(product: "{id: p, type: consumable, bonuses: [{id: b, once: week, goods: []}]}", key: "bonuses[0].once"),
        Defect(product: "{id: p, type: consumable, bonuses: [{id: b, once: ever}]}", key: "bonuses[0].goods"),
        Defect(product: "{id: p, type: consumable, priceMilliunits: 6000}", key: "currency"),
        Defect(product: "{id: p, type: consumable, currency: CNY}", key: "priceMilliunits"),
        Defect(product: "{id: p, type: consumable, priceMilliunits: 1, currency: yuan}", key: "currency"),
        Defect(product: "{id: p, type: consumable, priceMilliunits: -1, currency: CNY}", key: "priceMilliunits"),
        Defect(product: "{id: p, type: consumable, group: g}", key: "group"),
        Defect(product: "{id: p, type: nonRenewing, level: 1}", key: "level"),
        Defect(product: "{id: p, type: autoRenewable, level: 1}", key: "group"),
        Defect(product: "{id: p, type: autoRenewable, group: g, level: 0}", key: "level"),
        Defect(product: "{id: p, type: autoRenewable, duration: P1M}", key: "duration"),
        Defect(product: "{id: p, type: nonRenewing, duration: 30d}", key: "duration"),
        Defect(product: #"{id: "a\u007fb", type: consumable}"#, key: "id"),
    ]

    @Test("B6: the field that is wrong is named", arguments: defects)
    func defect(_ defect: Defect) {
        let error = #expect(throws: ConfigurationError.self) {
            try CatalogueFile.parse(file: "apps:\n  - id: game\n    products:\n      - \(defect.product)")
        }
        #expect(error?.key == "apps[0].products[0].\(defect.key)")
        #expect(error?.description.hasPrefix("catalogue.yaml:4:") == true)
    }

    @Test("a file without apps, with one twice, or with a product twice")
    func wholes() {
        for (file, key) in [
            ("[]", "(file)"), ("a: [", "(file)"), ("{}", "apps"), ("apps: []", "apps"),
            ("apps: [{id: a, products: []}, {id: a, products: []}]", "apps[1].id"),
            (
                "apps: [{id: a, products: [{id: p, type: consumable}, {id: p, type: consumable}]}]",
                "apps[0].products[1].id"
            ),
            ("{apps: [{id: a}], more: 1}", "more"),
        ] {
            #expect(throws: ConfigurationError.self) { try CatalogueFile.parse(file: file) }
            let error = #expect(throws: ConfigurationError.self) { try CatalogueFile.parse(file: file) }
            #expect(error?.key == key, "\(file)")
        }
    }
}
