import Encoding
import Foundation
import Purchases
import Testing

/// Goal: the app's backend is told each change of a subscription once, and no state that is not. Method: every state
/// that may have been told before every state that may be now, against a table; then each other change by itself.
@Suite struct SubscriptionEventTests {
    private struct Said {
        var transaction: Transaction
        var renewal: Renewal
    }

    private static func chain(
        _ state: SubscriptionState, user: String? = "u1", product: String = "gold", told: ToldState? = nil,
        _ change: (inout Said) -> Void = { _ in }
    ) -> ChainFacts {
        var day = 33.0
        var transaction = Transaction(
            id: "S", originalID: "S", productID: product, kind: .autoRenewable, environment: Transaction.production,
            purchasedAt: LifeCycle.day(0), expiresAt: LifeCycle.day(30), signedAt: LifeCycle.day(0), reason: "PURCHASE")
        var renewal = Renewal(
            originalID: "S", environment: Transaction.production, signedAt: LifeCycle.day(30.5))
        switch state {
        case .active: day = 10
        case .inGrace: renewal.graceUntil = LifeCycle.day(36)
        case .inRetry: renewal.isInBillingRetry = true
        case .expired: renewal.expirationIntent = 1
        case .revoked:
            day = 10
            transaction.revokedAt = LifeCycle.day(5)
            transaction.revocation = Revocation(reason: 0, type: "FAMILY_REVOKE")
        case .replaced:
            day = 10
            (transaction.isUpgraded, transaction.revokedAt) = (true, LifeCycle.day(5))
        }
        var said = Said(transaction: transaction, renewal: renewal)
        change(&said)
        let grant = ChainFacts.Grant(
            receiptID: FollowedChains.receiptID, userID: user, goods: [], grantedAt: LifeCycle.day(0))
        return ChainFacts(
            appID: "game", environment: Transaction.production, originalID: "S",
            purchases: [.init(transaction: said.transaction, grant: grant)], renewal: said.renewal, told: told,
            steps: 7, now: LifeCycle.day(day))
    }

    /// Without the events about the purchase itself.
    private static func events(_ chain: ChainFacts) -> [FollowUp.Event] {
        chain.followUp(by: SubscriptionPolicy()).events.filter { !$0.type.rawValue.hasPrefix("purchase.") }
    }

    private static func told(
        _ state: SubscriptionState, id: String = "S", until: Double = 30, user: String = "u1"
    ) -> ToldState {
        ToldState(
            state: state, transactionID: id, productID: "gold", accessUntil: LifeCycle.day(until),
            isEntitled: state == .active || state == .inGrace, userID: user)
    }

    private static func expected(_ old: SubscriptionState?, _ new: SubscriptionState, isSamePeriod: Bool) -> String? {
        let names: [SubscriptionState: String] = [
            .inGrace: "in_grace", .inRetry: "in_retry", .expired: "expired", .revoked: "revoked", .replaced: "expired",
        ]
        guard new == .active else { return old == new && isSamePeriod ? nil : names[new] }
        switch old {
        case nil: return "started"
        case .active: return isSamePeriod ? nil : "renewed"
        case .inGrace, .inRetry: return "recovered"
        case .expired, .revoked, .replaced: return isSamePeriod ? "recovered" : "started"
        }
    }

    @Test("each state after each other: one event says the state, one says what the user may use now")
    func states() {
        let before: [SubscriptionState?] = [nil] + SubscriptionState.allCases
        for old in before {
            for new in SubscriptionState.allCases {
                for isSamePeriod in old == nil ? [true] : [true, false] {
                    let told = old.map { Self.told($0, id: isSamePeriod ? "S" : "S0", until: $0 == .inGrace ? 36 : 30) }
                    let events = Self.events(Self.chain(new, told: told))
                    var expected: [String] = []
                    if let name = Self.expected(old, new, isSamePeriod: isSamePeriod) {
                        expected.append("subscription." + name)
                    }
                    let until: Double? = new == .active ? 30 : new == .inGrace ? 36 : nil
                    let former = told.flatMap { $0.isEntitled ? $0.accessUntil : nil }
                    if until.map(LifeCycle.day) != former { expected.append("entitlement.changed") }
                    #expect(
                        events.map(\.type.rawValue) == expected,
                        "\(old?.rawValue ?? "nothing") \(new.rawValue) \(isSamePeriod)")
                    for event in events {
                        #expect(JSONValue.object(event.body)["state"] == .string(new.rawValue))
                        #expect(event.userID == "u1" && event.transactionID == "S")
                    }
                    #expect(events.map(\.distinction) == events.indices.map { String(8 + $0) })
                }
            }
        }
    }

    @Test("S3-49: renewal switched off and on, another product, seats, offer, price: each is told once")
    func changes() {
        func events(
            _ before: (inout Said) -> Void, _ after: (inout Said) -> Void
        ) -> [String] {
            let first = Self.chain(.active, before).followUp(by: SubscriptionPolicy())
            var chain = Self.chain(.active, told: first.told, after)
            chain.steps = first.steps
            let second = chain.followUp(by: SubscriptionPolicy())
            chain.told = second.told
            chain.steps = second.steps
            #expect(chain.followUp(by: SubscriptionPolicy()).events.isEmpty)
            return second.events.map(\.type.rawValue)
        }
        let changed = ["subscription.changed"]
        #expect(events({ _ in }, { $0.renewal.renewsAutomatically = true }) == [])
        #expect(events({ _ in }, { $0.renewal.renewsAutomatically = false }) == changed)
        #expect(
            events({ $0.renewal.renewsAutomatically = false }, { $0.renewal.renewsAutomatically = true }) == changed)
        #expect(events({ $0.renewal.renewsAutomatically = true }, { $0.renewal.renewsAutomatically = true }) == [])
        #expect(events({ _ in }, { $0.renewal.nextProductID = "gold" }) == [])
        #expect(events({ _ in }, { $0.renewal.nextProductID = "silver" }) == changed)
        #expect(events({ $0.renewal.nextProductID = "silver" }, { $0.renewal.nextProductID = "gold" }) == changed)
        #expect(events({ _ in }, { $0.renewal.quantity = 1 }) == [])
        #expect(events({ _ in }, { $0.renewal.quantity = 9 }) == changed)
        #expect(events({ $0.transaction.quantity = 3 }, { $0.transaction.quantity = 5 }) == changed)
        #expect(
            events({ $0.transaction.quantity = 3 }) {
                ($0.transaction.quantity, $0.transaction.facts) = (3, #"{"revokedSeatQuantity":1}"#)
            } == changed)
        #expect(events({ _ in }, { ($0.renewal.offerType, $0.renewal.offerIdentifier) = (2, "back") }) == changed)
        #expect(events({ ($0.renewal.offerType, $0.renewal.offerIdentifier) = (2, "back") }, { _ in }) == [])
        #expect(events({ _ in }, { $0.renewal.priceConsent = .pending }) == ["subscription.price_consent"])
        #expect(
            events({ $0.renewal.priceConsent = .pending }, { $0.renewal.priceConsent = .accepted }) == [
                "subscription.price_consent"
            ])
        #expect(events({ $0.renewal.priceConsent = .pending }, { _ in }) == [])
        // Apple moved the end of the period.
        #expect(events({ _ in }, { $0.transaction.expiresAt = LifeCycle.day(35) }) == changed + ["entitlement.changed"])
    }

    @Test("another product in a new period: a renewal and a change; a new owner: both users")
    func productAndOwner() throws {
        var told = Self.told(.active, id: "S0")
        told.productID = "silver"
        #expect(
            Self.events(Self.chain(.active, told: told)).map(\.type.rawValue) == [
                "subscription.renewed", "subscription.changed", "entitlement.changed",
            ])
        let moved = Self.events(Self.chain(.active, told: Self.told(.active, user: "u0")))
        #expect(moved.map(\.type.rawValue) == ["entitlement.changed", "entitlement.changed"])
        #expect(moved.map(\.userID) == ["u0", "u1"])
        #expect(moved.map { JSONValue.object($0.body)["entitled"] } == [.bool(false), .bool(true)])
        // Two spellings that Unicode takes for one user are two users.
        let spelt = Self.events(Self.chain(.active, user: "e\u{301}", told: Self.told(.active, user: "\u{e9}")))
        #expect(spelt.count == 2)
        let over = Self.events(Self.chain(.expired, told: Self.told(.expired, user: "u0")))
        #expect(over.isEmpty)
    }

    @Test("Apple denied the only period, which was given on trust: the user is told once that nothing may be used")
    func denied() throws {
        let policy = SubscriptionPolicy()
        var chain = Self.chain(.active, told: Self.told(.active))
        chain.purchases[0].grant?.isDenied = true
        let denied = chain.followUp(by: policy)
        let event = try #require(denied.events.first)
        #expect(denied.events.count == 1 && event.type.rawValue == "entitlement.changed")
        #expect(event.userID == "u1" && event.distinction == "8")
        let body = JSONValue.object(event.body)
        #expect(body["entitled"] == .bool(false) && body["state"] == .string("revoked"))
        #expect(denied.told?.isEntitled == false && denied.dueAt == nil)
        (chain.told, chain.steps) = (denied.told, denied.steps)
        #expect(chain.followUp(by: policy).events.isEmpty)
        // Apple confirms it after all.
        chain.purchases[0].grant?.isDenied = false
        #expect(
            chain.followUp(by: policy).events.map(\.type.rawValue) == ["subscription.recovered", "entitlement.changed"])
        // Nothing was told, or nobody has it.
        chain = Self.chain(.active)
        chain.purchases[0].grant?.isDenied = true
        #expect(chain.followUp(by: policy).events.isEmpty && chain.followUp(by: policy).told == nil)
        chain = Self.chain(.active, user: nil, told: Self.told(.active))
        chain.purchases[0].grant?.isDenied = true
        #expect(chain.followUp(by: policy).events.isEmpty)
        // A period before it stands.
        chain = Self.chain(.active)
        var later = chain.purchases[0]
        (later.transaction.id, later.transaction.purchasedAt) = ("S2", LifeCycle.day(9))
        later.transaction.expiresAt = LifeCycle.day(39)
        later.grant?.isDenied = true
        later.grant?.userID = "u2"
        chain.purchases.append(later)
        #expect(chain.status(by: policy)?.accessUntil == LifeCycle.day(30))
        let told = chain.followUp(by: policy).told
        #expect(told?.transactionID == "S" && told?.userID == "u1" && told?.isEntitled == true)
    }

    @Test("nobody has it: nothing is told, and nothing is due")
    func noOwner() {
        for state in SubscriptionState.allCases {
            let result = Self.chain(state, user: nil).followUp(by: SubscriptionPolicy())
            #expect(result.events.isEmpty && result.told == nil && result.dueAt == nil && result.steps == 7)
        }
    }

    @Test("S3-62, S3-63: the reason of an end; a trial and an offer are named")
    func bodies() throws {
        for (intent, renews, reason) in [
            (1, nil, "cancelled"), (2, nil, "billing_error"), (3, nil, "price_not_accepted"),
            (4, nil, "product_unavailable"), (5, nil, "other"), (6, nil, "other"), (2, false, "billing_error"),
        ] as [(Int, Bool?, String)] {
            let events = Self.events(
                Self.chain(.expired, told: Self.told(.active)) {
                    ($0.renewal.expirationIntent, $0.renewal.renewsAutomatically) = (intent, renews)
                })
            let event = try #require(events.first { $0.type.rawValue == "subscription.expired" })
            #expect(JSONValue.object(event.body)["reason"] == .string(reason), "\(intent)")
        }
        let trial = Self.events(
            Self.chain(.active) {
                $0.transaction.offerType = 1
                $0.transaction.facts = #"{"offerType":1,"offerDiscountType":"FREE_TRIAL","offerPeriod":"P1W"}"#
            })
        let started = JSONValue.object(try #require(trial.first).body)
        #expect(started["trial"] == .bool(true))
        #expect(started["offer"]?["type"] == .string("introductory"))
        #expect(started["expiresAt"] == .string(LifeCycle.day(30).rfc3339))
        #expect(started["until"] == .string(LifeCycle.day(30).rfc3339))
    }
}
