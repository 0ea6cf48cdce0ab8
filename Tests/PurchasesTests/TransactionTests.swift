import Foundation
import Purchases
import TestRandom
import Testing

/// Goal: one purchase has one key under every id that Apple lists it by, and two purchases never share one
/// (Ownership, keys). Method: a table of what StoreKit 1 and 2 show of the same and of different purchases.
@Suite struct TransactionTests {
    private static let day = Date(timeIntervalSince1970: 1_800_000_000.123)

    private static func make(
        _ id: String, of original: String? = nil, _ kind: Transaction.Kind?, at date: Date = day,
        in environment: String = Transaction.production, until expiry: Date? = nil, lineItem: String? = nil,
        ownership: String? = nil
    ) -> Transaction {
        Transaction(
            id: id, originalID: original, productID: "p", kind: kind, environment: environment, purchasedAt: date,
            expiresAt: expiry, webOrderLineItemID: lineItem, ownership: ownership)
    }

    private static func key(
        _ id: String, of original: String? = nil, _ kind: Transaction.Kind?, at date: Date = day,
        in environment: String = Transaction.production, until expiry: Date? = nil, lineItem: String? = nil,
        ownership: String? = nil
    ) -> String {
        make(
            id, of: original, kind, at: date, in: environment, until: expiry, lineItem: lineItem, ownership: ownership
        ).purchaseKey
    }

    @Test(
        "P35: a restore has the key of its purchase",
        arguments: [Transaction.Kind?.none, .consumable, .nonConsumable, .nonRenewing])
    func restore(kind: Transaction.Kind?) {
        let bought = Self.key("1", kind)
        #expect(bought == "Production/purchase/1")
        #expect(Self.key("2", of: "1", kind, at: Self.day + 86_400) == bought)
        #expect(Self.key("2", kind) != bought)
        #expect(Self.key("1", kind, in: Transaction.sandbox) != bought)
    }

    @Test("row 0a, P45: bought anew after a refund: one purchase under all its ids, and another one after each refund")
    func repurchase() {
        func make(_ id: String, after refunds: Int) -> Transaction {
            var transaction = Self.make(id, of: "1", .nonConsumable)
            transaction.identity = refunds == 0 ? .ofItsIDs : .repurchase(refunds)
            return transaction
        }
        let anew = make("2", after: 1)
        #expect(anew.purchaseKey == "Production/purchase/1/#1")
        #expect(make("3", after: 1).purchaseKey == anew.purchaseKey, "another device's id")
        #expect(make("3", after: 2).purchaseKey != anew.purchaseKey)
        #expect(make("3", after: 0).purchaseKey == "Production/purchase/1")
        // Apple's answer does not say that it was bought anew, and is about the same purchase nevertheless.
        let confirmed = anew.updated(by: make("3", after: 0))
        #expect(confirmed == anew)
        var sandbox = make("2", after: 0)
        sandbox.environment = Transaction.sandbox
        #expect(anew.updated(by: sandbox) == nil)
    }

    @Test("F13: two consumables that share an original id are two purchases, unless they were bought in one second")
    func consumables() {
        let bought = Self.make("1", .consumable)
        for (seconds, isSame) in [(0, true), (0.5, true), (1, false), (-86_400, false)] as [(Double, Bool)] {
            for kind in [Transaction.Kind.consumable, nil] {
                let other = Self.make("2", of: "1", kind, at: Self.day + seconds)
                #expect(other.purchaseKey == bought.purchaseKey)
                #expect(bought.isSamePurchase(as: other) == isSame && other.isSamePurchase(as: bought) == isSame)
                #expect((other.updated(by: bought) == nil) != isSame, "\(seconds) s")
            }
        }
        let sword = Self.make("1", .nonConsumable)
        #expect(sword.isSamePurchase(as: Self.make("2", of: "1", .nonConsumable, at: Self.day + 86_400)), "a restore")
    }

    @Test(
        "F13: what a person gives apart from another purchase has the key of its own id; what was granted keeps its key"
    )
    func keysThatWereFound() {
        var transaction = Self.make("2", of: "1", .consumable)
        transaction.identity = .apart
        #expect(transaction.purchaseKey == "Production/transaction/2" && !transaction.hasKeyOfItsIDs)
        transaction.identity = .granted(key: "Production/period/77")
        #expect(transaction.purchaseKey == "Production/period/77" && transaction.hasKeyOfItsIDs)
        #expect(transaction.keyOfItsIDs == "Production/purchase/1")
        #expect(transaction.updated(by: Self.make("3", of: "3", .consumable)) == nil, "another purchase's facts")
    }

    @Test(
        "F12: a period is also its chain and its end, under whatever id and with or without billing event"
    )
    func periodKey() {
        let period = Self.make("1", .autoRenewable, until: Self.day + 30, lineItem: "77")
        #expect(period.periodKey == "Production/until/1/1800000030123")
        let later = Self.make("9", of: "1", nil, at: Self.day + 9, until: Self.day + 30)
        #expect(later.periodKey == period.periodKey && later.purchaseKey != period.purchaseKey)
        #expect(later.isSamePurchase(as: period) && later.updated(by: period)?.id == "9")
        for other in [
            Self.make("2", of: "1", .autoRenewable, until: Self.day + 60),
            Self.make("2", of: "3", .autoRenewable, until: Self.day + 30),
            Self.make("1", .autoRenewable, in: Transaction.sandbox, until: Self.day + 30),
        ] {
            #expect(other.periodKey != period.periodKey && !other.isSamePurchase(as: period))
        }
        #expect(Self.make("1", .autoRenewable).periodKey == nil, "its end is unknown")
        #expect(Self.make("1", .nonRenewing, until: Self.day).periodKey == nil, "no period")
        #expect(Self.make("1", .autoRenewable, until: Self.day, ownership: "ASSIGNED").periodKey == nil, "shared")
    }

    @Test("each period of a subscription is its own purchase; its billing event names it on every device")
    func renewalWithLineItem() {
        let period = Self.key("1", .autoRenewable, until: Self.day, lineItem: "77")
        #expect(period == "Production/period/77")
        #expect(Self.key("9", of: "1", .autoRenewable, at: Self.day + 5, lineItem: "77") == period)
        #expect(Self.key("9", of: "1", nil, until: Self.day, lineItem: "77") == period, "a receipt says no type")
        #expect(Self.key("1", .autoRenewable, lineItem: "78") != period)
    }

    @Test("without a billing event a period is its chain and the millisecond it was bought")
    func renewalWithoutLineItem() {
        let first = Self.key("1", .autoRenewable, until: Self.day + 30)
        #expect(first == "Production/period/1/1800000000123")
        #expect(Self.key("8", of: "1", .autoRenewable) == first, "another device's id")
        #expect(Self.key("2", of: "1", .autoRenewable, at: Self.day + 30 * 86_400) != first, "the next period")
        #expect(Self.key("8", of: "1", nil, until: Self.day) == first)
    }

    @Test("a non-renewing subscription has an end and is bought once all the same")
    func nonRenewing() {
        #expect(Self.key("1", .nonRenewing, until: Self.day) == "Production/purchase/1")
    }

    @Test("row 0d: what is shared has a key of its own", arguments: ["FAMILY_SHARED", "ASSIGNED"])
    func shared(ownership: String) {
        for kind in Transaction.Kind.allCases {
            let key = Self.key("5", of: "4", kind, lineItem: "77", ownership: ownership)
            #expect(key == "Production/shared/4/1800000000123")
        }
    }

    @Test("a date that was rounded to microseconds keeps the key", arguments: [1, 42, 4711] as [UInt64])
    func stableKey(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        for _ in 0..<2000 {
            let milliseconds = Int64.random(in: 1_200_000_000_000...2_500_000_000_000, using: &random)
            let apple = Date(timeIntervalSince1970: Double(milliseconds) / 1000)
            let microseconds = (apple.timeIntervalSinceReferenceDate * 1_000_000).rounded()
            let stored = Date(timeIntervalSinceReferenceDate: microseconds / 1_000_000)
            let keys = [apple, stored].map { Self.key("1", .autoRenewable, at: $0) }
            #expect(keys == Array(repeating: "Production/period/1/\(milliseconds)", count: 2), "seed \(seed)")
            let ends = [apple, stored].map { Self.make("1", .autoRenewable, until: $0).periodKey }
            #expect(ends == Array(repeating: "Production/until/1/\(milliseconds)", count: 2), "seed \(seed)")
        }
    }

    @Test("ids of StoreKit's tests stand behind their environment, and a post that names the bare id means them")
    func unsignedIDs() {
        for environment in ["Xcode", "LocalTesting"] {
            let id = Transaction.storedID("0", in: environment)
            #expect(id == "\(environment)/0" && Transaction.shownID(id, in: environment) == "0")
            let transaction = Self.make(id, .consumable, in: environment)
            #expect(transaction.isCalled("0") && transaction.isCalled(id))
            #expect(!transaction.isCalled("1") && !transaction.isCalled(nil) && !transaction.isCalled(""))
            #expect(Transaction.shownID("0", in: environment) == "0", "a row of an earlier version")
        }
        for environment in [Transaction.production, Transaction.sandbox, "New"] {
            #expect(Transaction.storedID("0", in: environment) == "0")
            #expect(Transaction.shownID("Xcode/0", in: environment) == "Xcode/0")
        }
        #expect(Transaction.shownID("Xcode/0", in: nil) == "Xcode/0")
        #expect(Self.make("7", .consumable).isCalled("7") && !Self.make("7", .consumable).isCalled("Xcode/7"))
    }

    @Test("a transaction without an original id is its own original")
    func original() {
        let transaction = Transaction(
            id: "7", originalID: nil, productID: "p", kind: nil, environment: "Production", purchasedAt: Self.day)
        #expect(transaction.originalID == "7")
    }
}
