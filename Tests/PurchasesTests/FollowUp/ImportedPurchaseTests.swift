import Encoding
import Foundation
import Purchases
import Testing

/// Goal: a purchase that the former system gave ends as one that was given here, and Makegood tells nothing again that
/// the former system has told. Method: each end and each state of an imported purchase, against a table.
@Suite struct ImportedPurchaseTests {
    private static func grant(_ day: Double, isImported: Bool = true) -> ChainFacts.Grant {
        ChainFacts.Grant(
            receiptID: FollowedChains.receiptID, userID: "u1", goods: [], grantedAt: LifeCycle.day(day),
            isImported: isImported)
    }

    private static func chain(
        _ purchases: [ChainFacts.Purchase], renewal: Renewal? = nil, told: ToldState? = nil, at day: Double
    ) -> ChainFacts {
        ChainFacts(
            appID: "game", environment: Transaction.production, originalID: "S", purchases: purchases,
            renewal: renewal, told: told, now: LifeCycle.day(day))
    }

    private static func period(
        _ id: String, from: Double, imported: Double? = nil, _ change: (inout Transaction) -> Void = { _ in }
    ) -> ChainFacts.Purchase {
        var transaction = Transaction(
            id: id, originalID: "S", productID: "gold", kind: .autoRenewable, environment: Transaction.production,
            purchasedAt: LifeCycle.day(from), expiresAt: LifeCycle.day(from + 30), signedAt: LifeCycle.day(from),
            reason: "PURCHASE")
        change(&transaction)
        return ChainFacts.Purchase(
            transaction: transaction, grant: imported.map { grant($0) } ?? grant(from, isImported: false))
    }

    @Test("a refund, its reversal and an upgrade: entries without goods, and the event says why there are none")
    func ends() throws {
        func sword(_ change: (inout Transaction) -> Void) -> ChainFacts.Purchase {
            var transaction = Transaction(
                id: "S", originalID: "S", productID: "sword", kind: .nonConsumable,
                environment: Transaction.production, quantity: 1, purchasedAt: LifeCycle.day(0),
                signedAt: LifeCycle.day(20), reason: "PURCHASE")
            change(&transaction)
            return ChainFacts.Purchase(transaction: transaction, grant: Self.grant(5))
        }
        var refunded = sword {
            $0.revokedAt = LifeCycle.day(19)
            $0.revocation = Revocation(reason: 0, type: "REFUND_FULL")
        }
        let result = Self.chain([refunded], at: 21).followUp(by: SubscriptionPolicy())
        #expect(result.revocations.map(\.kind) == [.revoked] && result.revocations.map(\.takesBack) == [true])
        #expect(result.revocations.map(\.percentage) == [100_000] && result.revocations[0].goods.isEmpty)
        let event = try #require(result.events.first)
        #expect(event.type.rawValue == "purchase.revoked" && event.userID == "u1" && event.transactionID == "S")
        let body = JSONValue.object(event.body)
        #expect(body["imported"] == .bool(true) && body["goods"] == .array([]) && body["units"] == .integer(1))
        #expect(body["freedBonuses"] == nil)
        refunded.revocations = result.revocations
        #expect(Self.chain([refunded], at: 21).followUp(by: SubscriptionPolicy()).events.isEmpty)
        var standing = sword { $0.signedAt = LifeCycle.day(22) }
        standing.revocations = result.revocations
        let again = Self.chain([standing], at: 23).followUp(by: SubscriptionPolicy())
        #expect(again.revocations.map(\.kind) == [.reinstated])
        #expect(again.events.map(\.type.rawValue) == ["purchase.reinstated"])
        #expect(again.events.allSatisfy { JSONValue.object($0.body)["imported"] == .bool(true) })
    }

    @Test("an import under another id than Apple's: Apple's end is its end, under the import's id")
    func otherID() {
        let imported = ChainFacts.Purchase(
            transaction: Transaction(
                id: "S", originalID: "S", productID: "sword", kind: nil, environment: Transaction.production,
                purchasedAt: LifeCycle.day(0)),
            grant: Self.grant(5))
        let restored = ChainFacts.Purchase(
            transaction: Transaction(
                id: "S2", originalID: "S", productID: "sword", kind: .nonConsumable,
                environment: Transaction.production, purchasedAt: LifeCycle.day(8), revokedAt: LifeCycle.day(19),
                revocation: Revocation(reason: 0, type: "REFUND_FULL"), signedAt: LifeCycle.day(20)))
        let result = Self.chain([imported, restored], at: 21).followUp(by: SubscriptionPolicy())
        #expect(result.revocations.map(\.transactionID) == ["S"])
        #expect(result.rejudged.isEmpty)
    }

    @Test("what an imported subscription did before the import is not told; what it does afterwards is")
    func states() {
        let renewed = Self.period("S2", from: 30)
        let cases: [(String, ChainFacts, [String])] = [
            ("it runs", Self.chain([Self.period("S", from: 0, imported: 5)], at: 10), []),
            ("it was over", Self.chain([Self.period("S", from: 0, imported: 40)], at: 50), []),
            (
                "it ends", Self.chain([Self.period("S", from: 0, imported: 5)], at: 31),
                ["subscription.expired", "entitlement.changed"]
            ),
            (
                "it is refunded",
                Self.chain(
                    [
                        Self.period("S", from: 0, imported: 5) {
                            $0.revokedAt = LifeCycle.day(8)
                            $0.revocation = Revocation(reason: 0, type: "REFUND_FULL")
                        }
                    ], at: 10),
                ["purchase.revoked", "subscription.revoked", "entitlement.changed"]
            ),
            (
                "it renews", Self.chain([Self.period("S", from: 0, imported: 5), renewed], at: 31),
                ["subscription.renewed", "entitlement.changed"]
            ),
            (
                "it begins again", Self.chain([Self.period("S", from: -20, imported: 15), renewed], at: 31),
                ["subscription.started", "entitlement.changed"]
            ),
            (
                "it was given here alone", Self.chain([renewed], at: 31),
                ["subscription.started", "entitlement.changed"]
            ),
        ]
        for (name, given, expected) in cases {
            var chain = given
            // An end by the clock alone is told at the second look.
            chain.lapseSeenAt = chain.now - SubscriptionStatus.believedAfter
            let result = chain.followUp(by: SubscriptionPolicy())
            #expect(result.events.map(\.type.rawValue) == expected, "\(name)")
            #expect(result.told?.userID == "u1", "\(name)")
            chain.told = result.told
            chain.steps = result.steps
            for index in chain.purchases.indices {
                chain.purchases[index].revocations += result.revocations.filter {
                    $0.transactionID == chain.purchases[index].transaction.id
                }
            }
            #expect(chain.followUp(by: SubscriptionPolicy()).events.isEmpty, "\(name), a second time")
        }
    }

    @Test("the former system's user may use it no more once another user has a later period")
    func otherUser() {
        var later = Self.period("S2", from: 30)
        later.grant?.userID = "u2"
        let result = Self.chain([Self.period("S", from: 0, imported: 5), later], at: 31)
            .followUp(by: SubscriptionPolicy())
        #expect(result.told?.userID == "u2")
        #expect(
            result.events.filter { $0.type.rawValue == "entitlement.changed" }.map {
                "\($0.userID) \(JSONValue.object($0.body)["entitled"] == .bool(true))"
            } == ["u1 false", "u2 true"])
    }

    @Test("B6: what each kind of entry does to the bonuses of its purchase, and what its event says of them")
    func bonuses() throws {
        for kind in RevocationEntry.Kind.allCases {
            for reason in RevocationEntry.Reason.allCases {
                for takesBack in [true, false] {
                    for percentage in [0, 1, 50_000, 99_999, 100_000] {
                        let entry = RevocationEntry(
                            transactionID: "S", ordinal: 1, kind: kind, reason: reason, takesBack: takesBack,
                            percentage: percentage, goods: [], at: LifeCycle.day(1), signedAt: nil)
                        let expected: RevocationEntry.BonusEffect =
                            switch kind {
                            case .revoked where takesBack && percentage == 100_000: .freed
                            case .revoked: .none
                            case .reinstated: .held
                            }
                        #expect(entry.bonusEffect == expected)
                    }
                }
            }
        }
        var coins = Transaction(
            id: "S", originalID: "S", productID: "coins", kind: .consumable, environment: Transaction.production,
            purchasedAt: LifeCycle.day(0), revokedAt: LifeCycle.day(9), signedAt: LifeCycle.day(10), reason: "PURCHASE")
        var grant = Self.grant(0, isImported: false)
        grant.goods = [.init(item: "coin", amount: 60), .init(item: "gem", amount: 5, bonus: "first")]
        for (revocation, freed) in [
            (Revocation(reason: 0, type: "REFUND_FULL"), JSONValue.array([.string("first")])),
            (Revocation(reason: 0, type: "REFUND_PRORATED", percentage: 50_000), nil),
        ] as [(Revocation, JSONValue?)] {
            coins.revocation = revocation
            let events = Self.chain([.init(transaction: coins, grant: grant)], at: 11)
                .followUp(by: SubscriptionPolicy()).events
            #expect(events.map { JSONValue.object($0.body)["freedBonuses"] } == [freed])
        }
    }
}
