import Foundation
import Purchases
import Testing

@testable import Ledger

/// Goal: Apple's taking back of a purchase that the former system gave is written and told once, in whatever order
/// import and facts come, and ends the entitlement. Method: the hear and follow-up transactions on the real database.
@Suite(.timeLimit(.minutes(8))) struct ImportedFollowUpTests {
    private static let sword = Verdict.Entry.purchase("i1", kind: .nonConsumable, signedAt: LedgerLab.bought + 10)
        .transaction

    private static func importing(_ lab: LedgerLab, _ id: String = "i1", of original: String = "i1") async throws {
        try await lab.run(
            """
            insert into imported_grants (transaction_id, app_id, environment, original_transaction_id, user_id, product_id,
              purchased_at)
            values ('\(id)', 'game', 'Production', '\(original)', 'u1', 'coins', to_timestamp(1800000000))
            """)
        try await lab.run(
            """
            insert into ownerships (app_id, environment, original_transaction_id, purchased_at, transaction_id, user_id,
              binding_source)
            values ('game', 'Production', '\(original)', to_timestamp(1800000000), '\(id)', 'u1', 'imported')
            """)
    }

    private static func entitled(_ lab: LedgerLab) async throws -> [String] {
        let question = EntitlementQuestion(
            user: UserName(appID: "game", key: "u1"), isOfPerson: true, environment: Transaction.production)
        let chains = try await Ledger.ownedChains([question], in: lab.database)[0]
        let catalogue = Catalogue(products: [.init(id: "coins", kind: .nonConsumable, goods: [])])
        return Entitlements(of: chains, by: SubscriptionPolicy(), catalogue).list.map {
            "\($0.productID) \($0.state.rawValue)"
        }
    }

    @Test("a refund after the import, and one before it: told once, with the import's user and no goods")
    func refunds() async throws {
        try await LedgerLab.with { lab in
            try await Self.importing(lab)
            #expect(try await lab.followUp().chains == 0, "Apple has said nothing about it")
            #expect(try await Self.entitled(lab) == ["coins active"])
            try await lab.hear(Self.sword.refunded(60))
            #expect(try await lab.followUp().revocations == 1)
            #expect(try await Self.entitled(lab) == ["coins revoked"])
            #expect(try await lab.revocations == ["i1 1 revoked refunded 100000"])
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', user_id, body ->> 'imported', body ->> 'goods') from events") == [
                        "u1 true []"
                    ])
            #expect(
                try await lab.texts("select concat_ws(' ', product_id, user_id) from v_revocations") == ["coins u1"])
            #expect(try await lab.followUp().chains == 0)
            try await lab.hear(Self.sword.signed(90))
            try await lab.followUp()
            #expect(try await lab.told("purchase.re%") == ["purchase.revoked u1 i1", "purchase.reinstated u1 i1"])
            #expect(try await Self.entitled(lab) == ["coins active"])

            let other = Verdict.Entry.purchase("i2", kind: .nonConsumable).transaction
            try await lab.hear(other.refunded(60))
            try await lab.followUp()
            #expect(try await lab.revocations.count == 2, "nobody was given the second one")
            try await Self.importing(lab, "i2", of: "i2")
            #expect(try await lab.followUp().revocations == 1)
        }
    }

    @Test("Apple lists an imported purchase under another id, and took it back there")
    func otherID() async throws {
        try await LedgerLab.with { lab in
            try await Self.importing(lab)
            let restored = Verdict.Entry.purchase("r1", of: "i1", kind: .nonConsumable) { $0.purchasedAt += 5 }
            try await lab.hear(restored.transaction.refunded(60))
            try await lab.followUp()
            #expect(try await lab.revocations == ["i1 1 revoked refunded 100000"])
            // The facts of the import's own id come later, and the rows stay where they are.
            try await lab.hear(Self.sword.refunded(70))
            try await lab.followUp()
            #expect(try await lab.revocations == ["i1 1 revoked refunded 100000"])
            #expect(try await Self.entitled(lab) == ["coins revoked"])
        }
    }

    @Test("row 0a: an imported purchase that was refunded and bought again is a purchase of its own, under either id")
    func boughtAgain() async throws {
        try await LedgerLab.with { lab in
            try await Self.importing(lab)
            func refund(_ id: String, of original: String) async throws {
                let purchase = Verdict.Entry.purchase(id, of: original, kind: .nonConsumable) { $0.purchasedAt += 5 }
                try await lab.hear(purchase.transaction.refunded(60))
            }
            func count(of original: String) async throws -> Int {
                let again = Verdict.Entry.purchase("again", of: original, kind: .nonConsumable) {
                    $0.purchasedAt += 1000
                }
                return try await lab.evidence(lab.question(again.transaction))[0].revocations
            }
            #expect(try await count(of: "i1") == 0)
            // Apple names another id than the import does; then the import's own id of another purchase.
            try await refund("r1", of: "i1")
            #expect(try await count(of: "i1") == 1)
            try await Self.importing(lab, "i2", of: "i2")
            try await refund("i2", of: "i2")
            #expect(try await count(of: "i2") == 1)
            // Nobody was given this one.
            try await refund("r3", of: "i3")
            #expect(try await count(of: "i3") == 0)
            while try await lab.followUp().chains > 0 {}
        }
    }

    @Test("an imported period that ends is told, and an erased user is told nothing")
    func periods() async throws {
        try await LedgerLab.with { lab in
            try await Self.importing(lab, "p1", of: "p1")
            let period = Verdict.Entry.purchase("p1", of: "p1", kind: .autoRenewable) {
                ($0.purchasedAt, $0.expiresAt) = (Date(timeIntervalSinceNow: -3600), Date(timeIntervalSinceNow: 3600))
            }.transaction
            try await lab.hear(period.signed(10))
            #expect(try await lab.followUp().events == 0, "the former system has told that it runs")
            #expect(try await lab.texts("select concat_ws(' ', state, told_user_id) from chains") == ["active u1"])
            try await lab.hear(period.refunded(70))
            try await lab.followUp()
            #expect(
                try await lab.told("%")
                    == ["purchase.revoked u1 p1", "subscription.revoked u1 p1", "entitlement.changed u1 p1"])
            let erasure = UserErasure(database: lab.database, keys: nil, actor: "ann")
            #expect(try await erasure.erase(erasure.name(of: "u1", app: "game")))
            try await lab.hear(period.signed(90))
            #expect(try await lab.followUp().events == 0)
            #expect(try await lab.revocations.count == 2, "the row is written all the same")
            #expect(try await lab.number("select count(*) from revocations where user_id = 'u1'") == 0)
        }
    }
}
