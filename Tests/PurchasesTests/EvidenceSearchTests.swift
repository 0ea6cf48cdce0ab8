import Foundation
import Purchases
import Testing

/// Goal: the search for evidence looks no further where the token's order decides (row 2), and otherwise asks every user
/// whom the purchase names, once. Method: one purchase with a token, and for each row exactly the changes that it needs.
@Suite struct EvidenceSearchTests {
    private static let token = UUID()

    private static func search(
        _ change: (inout Transaction) -> Void = { _ in }, by poster: String? = "me",
        orderOfToken: PlacedOrder? = order(), isForgotten: Bool = false
    ) -> EvidenceSearch {
        let transaction = DecisionTests.transaction {
            $0.appAccountToken = token
            change(&$0)
        }
        var search = EvidenceSearch(for: transaction, by: poster)
        if let orderOfToken { search.take(orderOfToken, isForgotten: isForgotten) }
        return search
    }

    private static func order(
        _ user: String = "owner", id: UUID = token, _ change: (inout PlacedOrder) -> Void = { _ in }
    ) -> PlacedOrder {
        MatcherTableTests.order(user, 5) {
            $0.id = id
            $0.isOnProvenInstallation = true
            change(&$0)
        }
    }

    @Test("row 2: which order of the token ends the search")
    func endsWithToken() {
        var decided = Self.search()
        decided.found.supportDecision = .init(userID: "owner")
        for (search, ends, comment) in [
            (Self.search(), true, "an unbound order"),
            (Self.search(orderOfToken: nil), false, "no order"),
            (Self.search(orderOfToken: Self.order(id: UUID())), false, "another order"),
            (Self.search(orderOfToken: Self.order { $0.transactionID = "999" }), false, "bound"),
            (Self.search(orderOfToken: Self.order { $0.transactionID = "1000" }), false, "bound by this purchase"),
            (Self.search(orderOfToken: Self.order { $0.reservedFor = "999" }), false, "reserved for another purchase"),
            (Self.search(orderOfToken: Self.order { $0.reservedFor = "1000" }), true, "reserved for this purchase"),
            (Self.search({ $0.originalID = "1" }), false, "a chain may have an owner"),
            (Self.search({ $0.previousOriginalID = "1" }), false, "a chain under two ids"),
            (Self.search({ $0.expiresAt = .distantFuture }), false, "a period"),
            (decided, false, "a person has decided"),
        ] as [(EvidenceSearch, Bool, Comment)] {
            #expect(search.endsWithToken == ends, comment)
        }
    }

    @Test("whoever is named in any way is asked for orders, once; of many users of a token none")
    func users() {
        var search = Self.search({ $0.originalID = "1" })
        search.found.registeredUserID = "registered"
        search.found.rememberedUserIDs = ["remembered"]
        search.found.chain = .init(userID: "chain")
        search.found.supportDecision = .init(userID: "decided")
        search.found.recordUserID = "record"
        search.found.customerUserIDs = ["customer", "chain", "me"]
        let all: Set = [
            "me", "registered", "owner", "chain", "decided", "record", "remembered", "customer",
        ]
        #expect(search.users.count == all.count && Set(search.users) == all)
        search.found.rememberedUserIDs = ["remembered", "another"]
        #expect(Set(search.users) == all.subtracting(["remembered"]))

        #expect(Self.search(by: nil, orderOfToken: nil).users == [])
        // Two texts that look the same are two users.
        search = Self.search(by: "e\u{301}", orderOfToken: Self.order("\u{e9}"))
        #expect(search.users.map { Array($0.utf8) } == [Array("e\u{301}".utf8), Array("\u{e9}".utf8)])
    }

    @Test("an order that was found in two ways counts once; one of a user erased since does not, yet names the user")
    func orders() {
        let (near, other) = (Self.order("near", id: UUID()), Self.order("other", id: UUID()))
        var search = Self.search({ $0.originalID = "1" }, isForgotten: true)
        search.take(near, isForgotten: false)
        search.take(other, isForgotten: true)
        search.take(near, isForgotten: false)
        search.isInstallationProven = true
        #expect(search.result.orders == [near])
        #expect(search.users == ["me", "owner"])
    }

    @Test("where the token's order decides, its other users and the installation say nothing")
    func result() {
        for endsWithToken in [true, false] {
            var search = Self.search(orderOfToken: Self.order { $0.transactionID = endsWithToken ? nil : "999" })
            search.found.registeredUserID = "registered"
            search.found.rememberedUserIDs = ["remembered"]
            search.found.recordUserID = "record"
            let unproven = search.result
            search.isInstallationProven = true
            let result = search.result
            #expect(search.endsWithToken == endsWithToken)
            #expect(result.registeredUserID == (endsWithToken ? nil : "registered"))
            #expect(result.rememberedUserIDs == (endsWithToken ? [] : ["remembered"]))
            #expect(result.recordUserID == "record")
            #expect(result.orders.map(\.isOnProvenInstallation) == [!endsWithToken])
            #expect(unproven.orders.map(\.isOnProvenInstallation) == [false])
        }
    }

    @Test("note 1: a grant under another key is a grant, where a grant is looked for")
    func granted() {
        for (isGranted, key, expected) in [
            (nil, nil, false), (nil, "key", false), (false, nil, false), (false, "key", true), (true, nil, true),
        ] as [(Bool?, String?, Bool)] {
            var search = Self.search()
            search.isGranted = isGranted
            search.found.grantedKey = key
            #expect(search.result.isGranted == expected && search.result.grantedKey == key)
        }
    }
}
