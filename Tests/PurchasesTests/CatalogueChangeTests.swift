import Foundation
import Purchases
import Testing

/// Goal: no change of the catalogue takes back a promise or changes what was valid at the time of a payment (B6, S3-9).
/// Method: each kind of change to a version that has begun, that has ended, and that is to come.
@Suite struct CatalogueChangeTests {
    private static let now = Date(timeIntervalSince1970: 1_775_001_600)
    private static func hours(_ count: Double) -> Date { now.addingTimeInterval(count * 3600) }
    private static func coins(_ amount: Int) -> [AppPolicy.Goods] { [.init(item: "coins", amount: amount)] }

    private static func catalogue(_ versions: Catalogue.Version..., limits: Catalogue.Limits = .init()) -> Catalogue {
        Catalogue(
            products: [
                .init(
                    id: "tier1", kind: .consumable, defaultItem: "coins",
                    items: [.init(id: "coins", limits: limits, versions: versions)])
            ])
    }

    private static let ever = Catalogue.Version(goods: coins(6000))

    private static func changes(_ old: Catalogue, _ new: Catalogue) throws(CatalogueConflict) -> [String] {
        try old.changes(to: new, at: now)
    }

    @Test("nothing changed is no change; a first catalogue may say anything")
    func first() throws {
        let past = Catalogue.Version(from: Self.hours(-48), until: Self.hours(-24), goods: Self.coins(7000))
        let catalogue = Self.catalogue(Self.ever, past, limits: .init(day: 3))
        #expect(try Self.changes(catalogue, catalogue) == [])
        #expect(
            try Self.changes(Catalogue(products: []), catalogue) == [
                "+ tier1: Consumable, default coins", "+ tier1 / coins: at most 3 a user and day",
                "+ tier1 / coins, from ever: 6000 coins",
                "+ tier1 / coins, from 2026-03-30T00:00:00Z: 7000 coins until 2026-03-31T00:00:00Z",
            ])
    }

    @Test("group, level and duration may change at any time, and the change is told")
    func terms() throws {
        func catalogue(_ terms: EntitlementTerms) -> Catalogue {
            Catalogue(products: [.init(id: "gold", kind: .autoRenewable, goods: [], terms: terms)])
        }
        let (none, first) = (EntitlementTerms(), EntitlementTerms(group: "pass", level: 1))
        #expect(
            try Self.changes(Catalogue(products: []), catalogue(first)) == [
                "+ gold: Auto-Renewable Subscription, default gold", "+ gold: group pass, level 1",
                "+ gold / gold, from ever: nothing",
            ])
        #expect(
            try Self.changes(catalogue(none), catalogue(first)) == ["~ gold: group pass, level 1, was no terms"])
        #expect(
            try Self.changes(catalogue(first), catalogue(none)) == ["~ gold: no terms, was group pass, level 1"])
        #expect(try Self.changes(catalogue(first), catalogue(first)) == [])
    }

    @Test("what is to come may be added, changed and taken back")
    func future() throws {
        let later = Catalogue.Version(from: Self.hours(1), until: Self.hours(9), goods: Self.coins(7000))
        var other = later
        other.goods = Self.coins(8000)
        #expect(try Self.changes(Self.catalogue(Self.ever), Self.catalogue(Self.ever, later)).count == 1)
        #expect(try Self.changes(Self.catalogue(Self.ever, later), Self.catalogue(Self.ever, other)).count == 1)
        #expect(
            try Self.changes(Self.catalogue(Self.ever, later), Self.catalogue(Self.ever))
                == ["- tier1 / coins, from 2026-04-01T01:00:00Z"])
    }

    @Test("what has begun keeps its goods, bonuses and price, and stays")
    func begun() {
        var goods = Self.ever
        goods.goods = Self.coins(5999)
        var bonus = Self.ever
        bonus.bonuses = [.init(id: "b", once: .ever, goods: Self.coins(1))]
        var price = Self.ever
        price.price = .init(milliunits: 1, currency: "CNY")
        for changed in [goods, bonus, price] {
            #expect(throws: CatalogueConflict.self) {
                try Self.changes(Self.catalogue(Self.ever), Self.catalogue(changed))
            }
        }
        let later = Catalogue.Version(from: Self.hours(1), goods: [])
        for without in [Self.catalogue(later), Catalogue(products: [])] {
            let conflict = #expect(throws: CatalogueConflict.self) {
                try Self.changes(Self.catalogue(Self.ever), without)
            }
            #expect(conflict?.place == "tier1 / coins, from ever")
        }
    }

    @Test("what has begun may be given an end that is to come; what is over stays over")
    func ending() throws {
        func until(_ hours: Double?) -> Catalogue.Version {
            Catalogue.Version(until: hours.map(Self.hours), goods: Self.coins(6000))
        }
        for (old, new, isAllowed) in [
            (nil, 1, true), (1, 2, true), (2, nil, true), (nil, 0, true), (nil, -1, false), (1, -1, false),
            (-1, nil, false), (-1, 1, false), (-1, -2, false), (-1, -1, true),
        ] as [(Double?, Double?, Bool)] {
            let (before, after) = (Self.catalogue(until(old)), Self.catalogue(until(new)))
            if isAllowed {
                #expect(try Self.changes(before, after).count == (old == new ? 0 : 1))
            } else {
                #expect(throws: CatalogueConflict.self, "\(String(describing: old)) \(String(describing: new))") {
                    try Self.changes(before, after)
                }
            }
        }
    }

    @Test("a version that would have been valid before is refused, but for promotions, which nobody could name")
    func past() throws {
        let past = Catalogue.Version(from: Self.hours(-1), goods: Self.coins(7000))
        #expect(throws: CatalogueConflict.self) {
            try Self.changes(Self.catalogue(Self.ever), Self.catalogue(Self.ever, past))
        }
        let promotion = Catalogue.Version(promotion: "spring", goods: Self.coins(7000))
        #expect(
            try Self.changes(Self.catalogue(Self.ever), Self.catalogue(Self.ever, promotion))
                == ["+ tier1 / coins, promotion spring, from ever: 7000 coins"])
    }

    @Test("a version may leave a year after its end, not before")
    func leaving() throws {
        func ended(_ days: Double) -> Catalogue.Version {
            Catalogue.Version(until: Self.hours(-24 * days), goods: Self.coins(1))
        }
        let rest = Catalogue.Version(from: Self.hours(1), goods: [])
        #expect(throws: CatalogueConflict.self) {
            try Self.changes(Self.catalogue(ended(365), rest), Self.catalogue(rest))
        }
        #expect(try Self.changes(Self.catalogue(ended(367), rest), Self.catalogue(rest)).count == 1)
    }

    @Test("type, default and limits are not promised")
    func free() throws {
        var next = Self.catalogue(Self.ever, limits: .init(day: 1, ever: 5))
        next.products["tier1"]?.kind = .nonConsumable
        next.products["tier1"]?.defaultItem = nil
        #expect(
            try Self.changes(Self.catalogue(Self.ever), next) == [
                "~ tier1: Non-Consumable, was Consumable", "~ tier1: default none, was coins",
                "~ tier1 / coins: at most 1 a user and day, 5 a user ever",
            ])
    }
}
