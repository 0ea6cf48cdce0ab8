import Foundation
import Purchases
import Testing

/// Goal: a decision needs the places of exactly those limits in which it counts, and no other decision needs one.
/// Method: each policy with each decision, environment and owner, against the limits' text.
@Suite struct LimitPlacesTests {
    private static func policy(_ change: (inout AppPolicy) -> Void) -> AppPolicy {
        var policy = AppPolicy(id: "game", grantFrom: .distantPast, makeUpUsersPerCustomer: 0, products: [])
        change(&policy)
        return policy
    }

    private static func decided(
        _ environment: String = Transaction.production, customer: String? = "c1", owner: String? = nil,
        _ decision: Decision = .grant(goods: [.init(item: "coin", amount: 1)], source: .poster)
    ) -> Verdict.Decisions {
        let transaction = Transaction(
            id: "1", originalID: nil, productID: "coins", kind: .consumable, environment: environment,
            purchasedAt: .distantPast, customerID: customer)
        return .transactions([
            .init(transaction: transaction, decision: decision, match: owner.map { Match(userID: $0, source: .poster) })
        ])
    }

    private static func limits(_ policy: AppPolicy, _ decisions: Verdict.Decisions, poster: String? = "u")
        -> [LimitPlace
        .Limit]
    {
        policy.places(for: decisions, posterID: poster).map(\.limit)
    }

    @Test("of production only what a post alone is granted for, and where a limit stands")
    func makeUp() {
        let free = Self.policy { _ in }
        let perUser = Self.policy { $0.makeUpPerUserPerDay = 1 }
        let perCustomer = Self.policy { $0.makeUpUsersPerCustomer = 1 }
        #expect(Self.limits(free, Self.decided()) == [])
        #expect(Self.limits(perUser, Self.decided(customer: nil)) == [.makeUpUser])
        #expect(Self.limits(perCustomer, Self.decided()) == [.makeUpCustomer])
        #expect(Self.limits(perCustomer, Self.decided(customer: nil)) == [], "Apple named no customer")
        #expect(Self.limits(perUser, Self.decided(), poster: nil) == [])
        for source in BindingSource.allCases {
            let isByPost = source == .poster || source == .record
            for decision in [Decision.grant(goods: [], source: source), .provisional(goods: [], source: source)] {
                #expect(
                    Self.limits(perUser, Self.decided(Transaction.production, decision))
                        == (isByPost ? [.makeUpUser] : []), "\(source)")
            }
        }
        for decision in [Decision.held(.review), .rejected(.refunded), .open(.appleAnswer)] {
            #expect(Self.limits(perUser, Self.decided(Transaction.production, decision)) == [])
        }
        #expect(Self.limits(perUser, .identifier("1", .possessionMissing)) == [])
        #expect(Self.limits(perUser, .receipt(.rejected(.malformed))) == [])
    }

    @Test("S1-10: of the sandbox one who is no tester, under no other policy, by user and by app, however it was found")
    func sandbox() {
        for policy in AppPolicy.SandboxPurchases.allCases {
            let app = Self.policy {
                $0.sandboxPurchases = policy
                $0.testers = ["t"]
                $0.makeUpPerUserPerDay = 1
            }
            let asked: [LimitPlace.Limit] = policy == .testers ? [.sandboxUser, .sandboxApp] : []
            for source in [BindingSource.poster, .orderToken] {
                let decisions = Self.decided(Transaction.sandbox, .grant(goods: [], source: source))
                #expect(Self.limits(app, decisions) == asked)
                #expect(Self.limits(app, decisions, poster: "t") == [])
            }
            #expect(Self.limits(app, Self.decided(Transaction.sandbox, .grant(goods: [], source: .shared))) == [])
        }
    }

    @Test("a place is its owner's, who is not named by it, and taken for the purchase, or of a customer for the user")
    func holders() {
        let app = Self.policy {
            $0.makeUpPerUserPerDay = 2
            $0.makeUpUsersPerCustomer = 3
        }
        let places = app.places(for: Self.decided(owner: "owner"), posterID: "poster")
        // SHA-256 of the user. A limit by day counts for the poster: a stranger who posts a user's record does not use
        // up that user's day.
        let poster = "293b9207228b7854bc3ccb2959ebea1583e066d41983124a5b381d6fdf6575f8"
        let owner = "4c1029697ee358715d3a14a2add817c4b01651440de808371f78165ac90dc581"
        #expect(places.map(\.holder) == ["c1", poster])
        #expect(places.map(\.takenFor) == [owner, "Production/purchase/1"])
        #expect(places.map(\.places) == [3, 2])
    }

    @Test("of an item with limits each unit needs one of each limit, whatever gives it; without limits none does")
    func items() {
        let limits = Catalogue.Limits(day: 2, ever: 9)
        let catalogue = Catalogue(products: [
            .init(
                id: "coins", kind: .consumable, defaultItem: "small",
                items: [.init(id: "small", limits: limits, versions: []), .init(id: "big", versions: [])])
        ])
        let app = Self.policy {
            $0.sold = catalogue
            $0.sandboxPurchases = .grant
        }
        func places(
            _ quantity: Int = 1, item: String? = nil, product: String = "coins",
            environment: String = Transaction.production,
            decision: Decision = .grant(goods: [], source: .orderToken)
        ) -> [LimitPlace] {
            let transaction = Transaction(
                id: "1", originalID: nil, productID: product, kind: .consumable, environment: environment,
                quantity: quantity, purchasedAt: .distantPast)
            var match = Match(userID: "owner", source: .orderToken)
            match.item = item
            return app.places(
                for: .transactions([.init(transaction: transaction, decision: decision, match: match)]),
                posterID: "poster")
        }
        let two = places(2)
        #expect(two.map(\.limit) == [.itemDay, .itemDay, .itemEver, .itemEver])
        #expect(
            two.map(\.takenFor) == [
                "Production/purchase/1", "Production/purchase/1 2", "Production/purchase/1", "Production/purchase/1 2",
            ])
        #expect(Set(two.map(\.holder)) == [#"["owner","coins","small",true]"#])
        #expect(two.map(\.places) == [2, 2, 9, 9])
        #expect(places(7).filter { $0.limit == .itemDay }.count == 3, "one more says that it is too many")
        #expect(places(item: "small").count == 2 && places(item: "big").isEmpty && places(item: "none").isEmpty)
        #expect(places(product: "other").isEmpty)
        #expect(places(environment: Transaction.sandbox).count == 2)
        for decision in [
            Decision.grant(goods: [], source: .shared), .held(.review), .rejected(.refunded), .open(.appleAnswer),
        ] {
            #expect(places(decision: decision).isEmpty)
        }
    }
}
