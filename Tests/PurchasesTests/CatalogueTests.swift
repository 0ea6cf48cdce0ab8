import Foundation
import Purchases
import Testing

/// Goal: for every time, the catalogue gives one answer to what is sold (B6, Offers). Method: the example of S1-8, and
/// the edges of every validity.
@Suite struct CatalogueTests {
    private static func day(_ day: Int, _ second: Double = 0) -> Date {
        Date(timeIntervalSince1970: 1_775_001_600 + Double(day - 1) * 86_400 + second)  // April 2026, UTC
    }

    private static func coins(_ amount: Int) -> [AppPolicy.Goods] { [.init(item: "coins", amount: amount)] }

    private static let bonus = Catalogue.Bonus(id: "first-charge", once: .ever, goods: coins(100))

    private static let catalogue = Catalogue(
        products: [
            .init(
                id: "tier1", kind: .consumable, defaultItem: "coins",
                items: [
                    .init(
                        id: "coins",
                        versions: [
                            .init(
                                goods: coins(6000), bonuses: [bonus], price: .init(milliunits: 6000, currency: "CNY")),
                            .init(from: day(7), until: day(14), goods: coins(7000)),
                            .init(promotion: "spring", from: day(3), until: day(5), goods: coins(9000)),
                        ]),
                    .init(id: "gems", limits: .init(day: 1), versions: [.init(from: day(2), goods: [])]),
                ]),
            .init(
                id: "tier2", kind: .consumable, defaultItem: nil,
                items: [.init(id: "gems", versions: [.init(goods: [])])]),
        ], revision: 4)

    private static func amount(_ item: String?, _ promotion: String?, _ date: Date) -> Int? {
        catalogue.offer(product: "tier1", item: item, promotion: promotion, at: date)?.goods.first?.amount
    }

    @Test("S1-8, S3-9: 6000 on 1 April, 6000 + 1000 on 7 April, under one store product")
    func validity() {
        #expect(Self.amount(nil, nil, .distantPast) == 6000)
        #expect(Self.amount(nil, nil, Self.day(1)) == 6000)
        #expect(Self.amount(nil, nil, Self.day(7, -0.001)) == 6000)
        #expect(Self.amount(nil, nil, Self.day(7)) == 7000)
        #expect(Self.amount("coins", nil, Self.day(14, -0.001)) == 7000)
        #expect(Self.amount("coins", nil, Self.day(14)) == 6000, "until is the first moment at which it is over")
        #expect(Self.amount(nil, nil, .distantFuture) == 6000)
    }

    @Test("S1-7: a promotion is for orders that name it, while it lasts")
    func promotions() {
        #expect(Self.amount(nil, "spring", Self.day(3)) == 9000)
        #expect(Self.amount(nil, nil, Self.day(3)) == 6000)
        #expect(Self.amount(nil, "spring", Self.day(5)) == nil)
        #expect(Self.amount(nil, "autumn", Self.day(3)) == nil)
        #expect(Self.amount("gems", "spring", Self.day(3)) == nil)
    }

    @Test("S3-7, S3-8: one item per product, or many; without a default nobody guesses")
    func mapping() throws {
        let offer = try #require(Self.catalogue.offer(product: "tier1", item: nil, promotion: nil, at: Self.day(1)))
        #expect(offer.item == "coins" && offer.productID == "tier1" && offer.kind == .consumable)
        #expect(offer.bonuses == [Self.bonus] && offer.price?.milliunits == 6000 && offer.revision == 4)
        #expect(Self.catalogue.offer(product: "tier1", item: "gems", promotion: nil, at: Self.day(2)) != nil)
        #expect(Self.catalogue.offer(product: "tier1", item: "gems", promotion: nil, at: Self.day(2, -1)) == nil)
        #expect(Self.catalogue.offer(product: "tier2", item: nil, promotion: nil, at: Self.day(2)) == nil)
        #expect(Self.catalogue.offer(product: "tier3", item: nil, promotion: nil, at: Self.day(2)) == nil)
        #expect(Self.catalogue.products(selling: "gems").map(\.id) == ["tier1", "tier2"])
        #expect(Self.catalogue.products(selling: "coins").map(\.id) == ["tier1"])
        #expect(Self.catalogue.products(selling: "none").isEmpty)
    }

    @Test("the configuration's products are items of their own name, for everybody, since ever")
    func seed() throws {
        let policy = AppPolicy(
            id: "game", grantFrom: .distantPast,
            products: [
                .init(id: "tier1", kind: .nonConsumable, goods: Self.coins(1)),
                .init(id: "old", kind: .consumable, goods: []),
            ])
        for date in [Date.distantPast, Self.day(7), .distantFuture] {
            let offer = try #require(policy.catalogue.offer(product: "tier1", item: nil, promotion: nil, at: date))
            #expect(offer.item == "tier1" && offer.goods == Self.coins(1) && offer.kind == .nonConsumable)
            #expect(offer.bonuses.isEmpty && offer.price == nil && offer.revision == nil)
        }
        let merged = Self.catalogue.completed(by: policy.catalogue)
        #expect(merged.products["tier1"]?.kind == .consumable, "what was applied stands before the configuration")
        #expect(merged.products["old"] != nil && merged.revision == 4)
    }
}
