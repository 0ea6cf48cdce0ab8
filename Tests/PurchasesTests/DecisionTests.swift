import Foundation
import Purchases
import Testing

/// Goal: every row of Ownership that is decided without the database, in its order and at its edges. Method: one
/// transaction and one claim that are granted, and for each row exactly the changes that it needs.
@Suite struct DecisionTests {
    static let grantFrom = Date(timeIntervalSince1970: 1_800_000_000)
    static let received = grantFrom.addingTimeInterval(90 * 86_400)
    static let coins = AppPolicy.Product(
        id: "coins", kind: .consumable, goods: [.init(item: "coin", amount: 60), .init(item: "gem", amount: 1)])
    static let sword = AppPolicy.Product(
        id: "sword", kind: .nonConsumable, goods: [.init(item: "sword", amount: 1)])
    static let pass = AppPolicy.Product(id: "pass", kind: .autoRenewable, goods: [.init(item: "pass", amount: 1)])
    static let season = AppPolicy.Product(id: "season", kind: .nonRenewing, goods: [.init(item: "season", amount: 1)])

    static func policy(_ change: (inout AppPolicy) -> Void = { _ in }) -> AppPolicy {
        var policy = AppPolicy(id: "game", grantFrom: grantFrom, products: [coins, sword, pass, season])
        change(&policy)
        return policy
    }

    static func transaction(
        _ product: String = "coins", kind: Transaction.Kind? = .consumable, ago: TimeInterval = 60,
        _ change: (inout Transaction) -> Void = { _ in }
    ) -> Transaction {
        var transaction = Transaction(
            id: "1000", originalID: nil, productID: product, kind: kind, environment: Transaction.production,
            purchasedAt: received.addingTimeInterval(-ago))
        change(&transaction)
        return transaction
    }

    static let claim = Claim(userID: "u1", hasPossession: true, receivedAt: received)
    static let granted = Decision.grant(goods: coins.goods, source: .poster)
    static let entitled = Decision.grant(goods: [], source: .poster)

    @Test("P8, P9, row 10: a poster with possession is granted; neither token nor order is needed")
    func row10() {
        #expect(Self.policy().decide(Self.transaction(), claim: Self.claim) == Self.granted)
    }

    @Test("F12, F13, P45: which purchase it is, by what is known of its chain; of what is shared its ids alone say it")
    func identities() {
        let period = { (transaction: inout Transaction) in
            transaction.kind = .autoRenewable
            transaction.expiresAt = Self.received
        }
        func identity(
            _ product: String, _ known: Evidence, _ change: (inout Transaction) -> Void = { _ in }
        ) -> Transaction.Identity {
            let transaction = Self.transaction(product, kind: nil) {
                $0.originalID = "1"
                change(&$0)
            }
            return Self.policy().judge(transaction, claim: Self.claim, evidence: known).transaction.identity
        }
        var known = Evidence()
        #expect(identity("sword", known) == .ofItsIDs)
        known.revocations = 2
        #expect(identity("sword", known) == .repurchase(2) && identity("pass", known, period) == .ofItsIDs)
        known.grantedKey = "key"
        #expect(
            identity("sword", known) == .granted(key: "key") && identity("pass", known, period) == .granted(key: "key"))
        #expect(identity("sword", known) { $0.ownership = "FAMILY_SHARED" } == .ofItsIDs)
        // The catalogue's type counts where Apple names none.
        known.supportDecision = .init(userID: "u2", isOfKeyInUse: true)
        #expect(identity("coins", known) == .apart && identity("sword", known) == .granted(key: "key"))
        known.supportDecision = .init(userID: "u2")
        #expect(identity("coins", known) == .granted(key: "key"))
        let entry = Self.policy().judge(Self.transaction(kind: nil), claim: Self.claim, evidence: .none)
        #expect(entry.isConsumable && entry.with(.held(.review)).isConsumable)
    }

    @Test(
        "row 0d, note 9: what a receipt does not say may be shared, if it can be and a shared one would give less",
        arguments: [
            ("pass", nil, true), ("sword", nil, true), ("coins", nil, false), ("season", nil, false),
            ("unknown", nil, false), ("unknown", .nonConsumable, true), ("unknown", .autoRenewable, true),
            ("sword", .consumable, false),
        ] as [(String, Transaction.Kind?, Bool)])
    func sharingUnseen(product: String, kind: Transaction.Kind?, mayBe: Bool) {
        let listed = Self.transaction(product, kind: kind)
        let policy = Self.policy()
        #expect(policy.mayBeShared(listed) == mayBe)
        for change: (inout Transaction) -> Void in [
            { $0.showsToken = true }, { $0.ownership = "PURCHASED" }, { $0.ownership = "FAMILY_SHARED" },
        ] {
            var told = listed
            change(&told)
            #expect(!policy.mayBeShared(told))
        }
        #expect(!Self.policy { $0.shared = .goods }.mayBeShared(listed))
        #expect(Self.policy { $0.shared = .reject }.mayBeShared(listed) == mayBe)
        let entry = policy.judge(listed, claim: Self.claim, evidence: .none)
        #expect(entry.match?.reasons.contains(.sharingUnseen) ?? false == (mayBe && entry.decision.gives))
        // It gives no goods: nothing is lost by what is not seen.
        var old = listed
        old.purchasedAt = Self.grantFrom.addingTimeInterval(-1)
        let entitled = policy.judge(old, claim: Self.claim, evidence: .none)
        #expect(entitled.match?.reasons.contains(.sharingUnseen) != true)
    }

    @Test("P32, row 0a: taken back by Apple is rejected, before every other row")
    func row0a() {
        let revoked = Self.transaction("unknown", ago: 200 * 86_400) {
            $0.revokedAt = Self.received
            $0.environment = Transaction.sandbox
        }
        var shared = revoked
        shared.ownership = "FAMILY_SHARED"
        let nobody = Claim(userID: nil, hasPossession: false, receivedAt: Self.received)
        for policy in [Self.policy(), Self.policy { $0.sandboxPurchases = .hold }] {
            for claim in [Self.claim, nobody] {
                #expect(policy.decide(revoked, claim: claim) == .rejected(.refunded))
                #expect(policy.decide(shared, claim: claim) == .rejected(.withdrawn))
            }
        }
    }

    @Test(
        "S1-31, row 0c: a consumable of the 30 days before grantFrom waits for a person; what lasts is given without goods",
        arguments: [
            (0.0, Transaction.Kind?.some(.consumable), "coins", granted),
            (-1, .consumable, "coins", .held(.beforeCutover)),
            (-2_592_000, .consumable, "coins", .held(.beforeCutover)),
            (-2_592_001, .consumable, "coins", .rejected(.historical)),
            (-1, .nonConsumable, "sword", entitled), (-94_608_000, .nonConsumable, "sword", entitled),
            // Not sold here any more: Apple's type counts.
            (-1, .nonConsumable, "unknown", entitled),
            (-1, .autoRenewable, "pass", .rejected(.historical)),
            (-1, .nonRenewing, "season", .rejected(.historical)),
            // Apple's type counts before ours, ours where Apple gives none, and consumable where neither is known.
            (-1, .nonConsumable, "coins", entitled),
            (-1, nil, "coins", .held(.beforeCutover)),
            (-1, nil, "sword", entitled),
            (-1, nil, "unknown", .held(.beforeCutover)),
            (-2_592_001, nil, "unknown", .rejected(.historical)),
        ] as [(TimeInterval, Transaction.Kind?, String, Decision)])
    func row0c(offset: TimeInterval, kind: Transaction.Kind?, product: String, expected: Decision) {
        // The limit on the age of make-up grants applies only to purchases that were made since `grantFrom`.
        let policy = Self.policy { if expected == Self.granted { $0.makeUpMaxAge = .zero } }
        let transaction = Self.transaction(product, kind: kind) {
            $0.purchasedAt = Self.grantFrom.addingTimeInterval(offset)
        }
        #expect(policy.decide(transaction, claim: Self.claim) == expected)
        let isHistorical = policy.isHistorical(transaction, at: Self.claim.receivedAt)
        #expect(isHistorical == (expected == .rejected(.historical)), "a sweep opens no receipt for it")
    }

    @Test(
        "row 0c: what was bought since the app's first start here is never historical, whenever it went live",
        arguments: [
            (Transaction.Kind.consumable, "coins", -60.0, true), (.consumable, "coins", -90, true),
            (.consumable, "coins", -90.1, false), (.nonRenewing, "season", -1, true),
            (.nonRenewing, "season", -60, true), (.nonRenewing, "season", -60.1, false),
            (.autoRenewable, "pass", -60, true), (.autoRenewable, "pass", -60.1, false),
        ])
    func sinceFirstStart(kind: Transaction.Kind, product: String, days: Double, isHeld: Bool) {
        let transaction = Self.transaction(product, kind: kind) {
            $0.purchasedAt = Self.grantFrom.addingTimeInterval(days * 86_400)
        }
        let policy = Self.policy { $0.hereSince = Self.grantFrom.addingTimeInterval(-60 * 86_400) }
        #expect(
            policy.decide(transaction, claim: Self.claim) == (isHeld ? .held(.beforeCutover) : .rejected(.historical)))
        // For an app that started here after `grantFrom`, the start makes no difference.
        let late = Self.policy { $0.hereSince = Self.grantFrom.addingTimeInterval(60 * 86_400) }
        let asEver = Self.policy()
        #expect(late.decide(transaction, claim: Self.claim) == asEver.decide(transaction, claim: Self.claim))
    }

    @Test(
        "row 0c: a subscription from before grantFrom is given, without goods, if it was running when it was posted",
        arguments: [(1.0, true), (0, false), (-1, false), (nil, false)] as [(TimeInterval?, Bool)])
    func liveSubscription(runsFor: TimeInterval?, isLive: Bool) {
        let period = Self.transaction("pass", kind: .autoRenewable) {
            $0.purchasedAt = Self.grantFrom.addingTimeInterval(-86_400)
            $0.expiresAt = runsFor.map { Self.received.addingTimeInterval($0) }
        }
        // Judged much later: the time of the post counts.
        let claim = Claim(
            userID: "u1", hasPossession: true, receivedAt: Self.received,
            judgedAt: Self.received.addingTimeInterval(30 * 86_400))
        #expect(Self.policy().decide(period, claim: claim) == (isLive ? Self.entitled : .rejected(.historical)))
        #expect(Self.policy().isHistorical(period, at: Self.received) == !isLive)
        let bare = Claim(userID: "u1", hasPossession: false, receivedAt: Self.received)
        #expect(
            Self.policy().decide(period, claim: bare) == (isLive ? .held(.possessionMissing) : .rejected(.historical)))
        // Rows 0d and 0e apply as to any other purchase.
        let shared = Self.policy().decide(
            Self.transaction("pass", kind: .autoRenewable) {
                $0.purchasedAt = period.purchasedAt
                $0.expiresAt = period.expiresAt
                $0.ownership = "FAMILY_SHARED"
            }, claim: claim)
        #expect(shared == (isLive ? .grant(goods: [], source: .shared) : .rejected(.historical)))
    }

    @Test("row 0c: whose it is, by rows 2 to 4, 8, 5a and 10; no order of ours is bound by it")
    func ownersBeforeCutover() throws {
        var order = PlacedOrder(
            id: UUID(), userID: "orderer", productID: "pass", placedAt: Self.grantFrom.addingTimeInterval(-100_000),
            payBy: Self.received, goods: [.init(item: "pass", amount: 9)])
        func entry(
            _ change: (inout Transaction) -> Void, _ evidence: (inout Evidence) -> Void
        ) -> Verdict.Entry {
            var known = Evidence()
            evidence(&known)
            let period = Self.transaction("pass", kind: .autoRenewable) {
                $0.purchasedAt = Self.grantFrom.addingTimeInterval(-86_400)
                $0.expiresAt = Self.received.addingTimeInterval(86_400)
                $0.reason = "PURCHASE"
                change(&$0)
            }
            return Self.policy().judge(period, claim: Self.claim, evidence: known)
        }
        let renewal = { (transaction: inout Transaction) in
            transaction.originalID = "1"
            transaction.reason = "RENEWAL"
        }
        let cases: [(String, BindingSource, Verdict.Entry)] = [
            (
                "orderer", .orderToken,
                entry {
                    $0.appAccountToken = order.id
                } _: {
                    $0.orders = [order]
                }
            ),
            (
                "registered", .userToken,
                entry {
                    $0.appAccountToken = UUID()
                } _: {
                    $0.registeredUserID = "registered"
                }
            ),
            ("owner", .chain, entry(renewal) { $0.chain = .init(userID: "owner") }),
            (
                "owner", .chainOwner,
                entry { _ in
                } _: {
                    $0.chain = .init(userID: "owner")
                }
            ),
            (
                "named", .record,
                entry { _ in
                } _: {
                    $0.recordUserID = "named"
                }
            ),
            (
                "owner", .chainOwner,
                entry { _ in
                } _: {
                    $0.chain = .init(userID: "owner")
                    $0.recordUserID = "named"
                }
            ),
            // Rows 5 and 7 do not apply.
            (
                "u1", .poster,
                entry { _ in
                } _: {
                    order.userID = "u1"
                    $0.orders = [order]
                    $0.namedOrderID = order.id
                }
            ),
        ]
        for (userID, source, entry) in cases {
            let match = try #require(entry.match)
            #expect(entry.decision == .grant(goods: [], source: source))
            #expect(match.userID == userID && match.source == source)
            #expect(match.order == nil && match.offer == nil && match.reasons.contains(.beforeCutover))
        }
    }

    @Test(
        "row 0d: shared by another customer is an entitlement without goods", arguments: ["FAMILY_SHARED", "ASSIGNED"])
    func row0d(ownership: String) {
        // Also older than the limit on make-up grants: an entitlement costs nothing.
        let shared = Self.transaction("pass", kind: .autoRenewable, ago: 30 * 86_400) { $0.ownership = ownership }
        #expect(Self.policy().decide(shared, claim: Self.claim) == .grant(goods: [], source: .shared))
        let bare = Claim(userID: "u1", hasPossession: false, receivedAt: Self.received)
        #expect(Self.policy().decide(shared, claim: bare) == .held(.possessionMissing))
    }

    @Test(
        "row 0d: what is shared is its chain's owner's, else its poster's with possession, else its customer's only user's"
    )
    func ownersOfShared() {
        let shared = Self.transaction("pass", kind: .autoRenewable) {
            $0.ownership = "FAMILY_SHARED"
            // Neither field proves anything about another customer's purchase.
            $0.appAccountToken = UUID()
        }
        let day = Self.received.addingTimeInterval(Matcher.unpostedFor)
        let none = [String]()
        for (chain, poster, possession, isPosted, isADayOld, users, expected) in [
            ("owner", "u1", true, true, false, none, "owner"), ("owner", "u1", false, true, false, none, "owner"),
            ("owner", nil, true, false, false, none, "owner"), (nil, "u1", true, true, false, ["u2"], "u1"),
            (nil, "u1", false, true, false, none, "possession_missing"),
            (nil, nil, true, true, false, none, "order_unknown"),
            (nil, nil, true, false, false, ["u2"], "unclaimed_yet"), (nil, nil, true, false, true, ["u2"], "u2"),
            (nil, nil, true, false, true, ["u2", "u3"], "unclaimed"), (nil, nil, true, false, true, none, "unclaimed"),
        ] as [(String?, String?, Bool, Bool, Bool, [String], String)] {
            let claim = Claim(
                userID: poster, hasPossession: possession, receivedAt: Self.received,
                judgedAt: isADayOld ? day : Self.received, isPosted: isPosted)
            var evidence = Evidence()
            evidence.chain = chain.map { .init(userID: $0) }
            evidence.customerUserIDs = users
            evidence.registeredUserID = "registered"
            evidence.orders = [
                PlacedOrder(
                    id: UUID(), userID: "u1", productID: "pass", placedAt: shared.purchasedAt - 60,
                    payBy: Self.received, goods: [.init(item: "pass", amount: 9)])
            ]
            evidence.namedOrderID = evidence.orders[0].id
            let entry = Self.policy().judge(shared, claim: claim, evidence: evidence)
            switch entry.decision {
            case .grant(let goods, let source):
                #expect(source == .shared && goods.isEmpty)
                #expect(entry.match?.userID == expected && entry.match?.order == nil)
                #expect(entry.match?.takesChain == false && entry.transfer == nil)
            case .held(let reason):
                #expect(reason.rawValue == expected && entry.heldBy?.source == .shared)
            case .open(let reason): #expect(reason.rawValue == expected)
            case .provisional, .rejected: Issue.record("\(entry.decision)")
            }
        }
    }

    @Test("row 0d: what is shared gives nothing, what its buyer gets, or counts for nothing, as the app says")
    func sharedPolicy() {
        let shared = Self.transaction("pass", kind: .autoRenewable) { $0.ownership = "ASSIGNED" }
        for (policy, expected) in [
            (AppPolicy.Shared.entitlement, Decision.grant(goods: [], source: .shared)),
            (.goods, .grant(goods: Self.pass.goods, source: .shared)), (.reject, .rejected(.sharedNotServed)),
        ] {
            #expect(Self.policy { $0.shared = policy }.decide(shared, claim: Self.claim) == expected)
            // A revocation by Apple comes first; the policy does not apply to the user's own purchases.
            var taken = shared
            taken.revokedAt = Self.received
            #expect(Self.policy { $0.shared = policy }.decide(taken, claim: Self.claim) == .rejected(.withdrawn))
            #expect(Self.policy { $0.shared = policy }.decide(Self.transaction(), claim: Self.claim) == Self.granted)
        }
        var unknown = shared
        unknown.productID = "unknown"
        for policy in [AppPolicy.Shared.entitlement, .goods] {
            #expect(
                Self.policy { $0.shared = policy }.decide(unknown, claim: Self.claim) == .held(.productUnknown))
        }
    }

    @Test("row 0d: other values of ownership are purchases", arguments: [nil, "PURCHASED", "SOMETHING_NEW"])
    func purchased(ownership: String?) {
        let transaction = Self.transaction { $0.ownership = ownership }
        #expect(Self.policy().decide(transaction, claim: Self.claim) == Self.granted)
    }

    @Test(
        "S1-10, P12, row 0e: what was signed as Sandbox follows the app's policy",
        arguments: [
            (AppPolicy.SandboxPurchases.grant, "u1", 0, 0, true), (.hold, "tester", 9, 9, false),
            (.testers, "tester", 0, 0, true), (.testers, "u1", 0, 0, false), (.testers, "u1", 1, 1, true),
            (.testers, "u1", 1, 0, false), (.testers, "u1", 0, 1, false),
        ])
    func row0e(policy: AppPolicy.SandboxPurchases, user: String, perUser: Int, perApp: Int, isGranted: Bool) {
        let app = Self.policy {
            $0.sandboxPurchases = policy
            $0.testers = ["tester"]
            $0.sandboxPerUserPerDay = perUser
            $0.sandboxPerAppPerDay = perApp
        }
        let claim = Claim(userID: user, hasPossession: true, receivedAt: Self.received)
        for environment in [Transaction.sandbox, "Xcode", "LocalTesting"] {
            let transaction = Self.transaction { $0.environment = environment }
            #expect(app.decide(transaction, claim: claim) == (isGranted ? Self.granted : .held(.sandbox)))
        }
        #expect(app.decide(Self.transaction(), claim: claim) == Self.granted, "production is not touched")
    }

    @Test("row 10, note 5: without possession or a user nothing is given")
    func possession() {
        let policy = Self.policy()
        for (user, possession, expected) in [
            (String?.some("u1"), false, Decision.held(.possessionMissing)),
            (nil, false, .held(.possessionMissing)), (nil, true, .held(.orderUnknown)),
        ] {
            let claim = Claim(userID: user, hasPossession: possession, receivedAt: Self.received)
            #expect(policy.decide(Self.transaction(), claim: claim) == expected)
        }
    }

    @Test("S1-11: a product that is not configured is held, never rejected")
    func productUnknown() {
        #expect(Self.policy().decide(Self.transaction("new"), claim: Self.claim) == .held(.productUnknown))
    }

    @Test(
        "P23: a purchase date up to two hours ahead is granted, a second more is held",
        arguments: [(3600.0, true), (7200, true), (7200.001, false), (86_400, false)])
    func ahead(seconds: TimeInterval, isGranted: Bool) {
        let decision = Self.policy().decide(Self.transaction(ago: -seconds), claim: Self.claim)
        #expect(decision == (isGranted ? Self.granted : .held(.purchaseAhead)))
    }

    @Test(
        "row 10: makeUp.maxAge holds what is older, and 0 is no limit",
        arguments: [
            (3600, 3600, true), (3600, 3600.001, false), (0, 6_912_000, true), (604_800, 604_800, true),
            (604_800, 604_801, false),
        ] as [(Int, TimeInterval, Bool)])
    func makeUpAge(limitSeconds: Int, ago: TimeInterval, isGranted: Bool) {
        let policy = Self.policy { $0.makeUpMaxAge = .seconds(limitSeconds) }
        let decision = policy.decide(Self.transaction(ago: ago), claim: Self.claim)
        #expect(decision == (isGranted ? Self.granted : .held(.review)))
    }

    @Test("S0-8, note 6: Apple's quantity multiplies the goods of a consumable, of nothing else")
    func quantity() {
        let ten = Self.transaction { $0.quantity = 10 }
        #expect(
            Self.policy().decide(ten, claim: Self.claim)
                == .grant(goods: [.init(item: "coin", amount: 600), .init(item: "gem", amount: 10)], source: .poster))
        for product in [Self.sword, Self.pass, Self.season] {
            let transaction = Self.transaction(product.id, kind: product.kind) { $0.quantity = 10 }
            #expect(
                Self.policy().decide(transaction, claim: Self.claim) == .grant(goods: product.goods, source: .poster))
        }
        for quantity in [0, -1, .min] {
            let transaction = Transaction(
                id: "1", originalID: nil, productID: "coins", kind: nil, environment: "Production", quantity: quantity,
                purchasedAt: Self.received)
            #expect(transaction.quantity == 1)
        }
    }

    @Test("a quantity that no goods can be multiplied by waits for a person and kills no worker")
    func quantityOverflow() {
        let transaction = Self.transaction { $0.quantity = .max }
        #expect(Self.policy().decide(transaction, claim: Self.claim) == .held(.review))
    }
}
