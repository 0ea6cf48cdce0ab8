import Encoding
import Foundation
import Purchases
import Testing

/// Goal: a commitment (monthly charges for twelve months) is told where a backend needs it: that its user cancelled
/// although Apple goes on charging, and when that ends. Method: the pure functions, by hand-made facts.
@Suite struct CommitmentTests {
    private static let end = LifeCycle.day(360)

    /// The month of the commitment that begins on this day.
    private static func month(_ day: Double, isCommitted: Bool = true) -> ChainFacts.Purchase {
        let facts =
            isCommitted
            ? #"{"totalBillingPeriods":12,"commitmentExpiresDate":\#(Int(end.timeIntervalSince1970 * 1000))}"# : "{}"
        let transaction = Transaction(
            id: "S\(Int(day))", originalID: "S0", productID: "gold", kind: .autoRenewable,
            environment: Transaction.production, purchasedAt: LifeCycle.day(day), expiresAt: LifeCycle.day(day + 30),
            signedAt: LifeCycle.day(day), reason: "PURCHASE", facts: facts)
        let grant = ChainFacts.Grant(
            receiptID: FollowedChains.receiptID, userID: "u1", goods: [], grantedAt: LifeCycle.day(day))
        return ChainFacts.Purchase(transaction: transaction, grant: grant)
    }

    private static func renewal(
        _ day: Double, commitment: Bool?, renews: Bool = true, _ change: (inout Renewal) -> Void = { _ in }
    ) -> Renewal {
        var renewal = Renewal(
            originalID: "S0", environment: Transaction.production, signedAt: LifeCycle.day(day),
            renewsAutomatically: renews)
        renewal.commitment = commitment.map { Renewal.Commitment(renewsAutomatically: $0) }
        change(&renewal)
        return renewal
    }

    private static func chain(
        _ purchases: [ChainFacts.Purchase], _ renewal: Renewal?, told: ToldState? = nil, at day: Double
    ) -> ChainFacts {
        ChainFacts(
            appID: "game", environment: Transaction.production, originalID: "S0", purchases: purchases,
            renewal: renewal, told: told, lapseSeenAt: LifeCycle.day(day) - SubscriptionStatus.believedAfter,
            now: LifeCycle.day(day))
    }

    private static func commitment(_ event: FollowUp.Event) -> JSONValue? {
        JSONValue.object(event.body)["commitment"]
    }

    @Test("begun, cancelled, gone on with, and charged for the last time: each is told once")
    func life() throws {
        let until = JSONValue.Member("until", .string(Self.end.rfc3339))
        var told: ToldState?
        func follow(_ month: Double, _ renewal: Renewal?, at day: Double) -> [FollowUp.Event] {
            let result = Self.chain([Self.month(month)], renewal, told: told, at: day)
                .followUp(by: SubscriptionPolicy())
            told = result.told
            return result.events.filter { $0.type.rawValue != "entitlement.changed" }
        }
        let begun = follow(0, nil, at: 1)
        #expect(begun.map(\.type.rawValue) == ["subscription.started"])
        #expect(begun.map(Self.commitment) == [.object([until])])
        #expect(follow(0, Self.renewal(2, commitment: true), at: 3) == [], "the usual")

        let cancelled = follow(0, Self.renewal(4, commitment: false), at: 5)
        #expect(cancelled.map(\.type.rawValue) == ["subscription.changed"])
        #expect(cancelled.map(Self.commitment) == [.object([until, .init("renews", .bool(false))])])
        #expect(JSONValue.object(cancelled[0].body)["renews"] == .bool(true), "Apple charges the next month")
        #expect(follow(0, Self.renewal(4, commitment: false), at: 6) == [])

        let renewed = follow(30, Self.renewal(30, commitment: false), at: 31)
        #expect(renewed.map(\.type.rawValue) == ["subscription.renewed"])
        let regretted = follow(30, Self.renewal(32, commitment: true), at: 33)
        #expect(regretted.map(\.type.rawValue) == ["subscription.changed"])

        let last = follow(330, Self.renewal(331, commitment: false), at: 332)
        #expect(last.map(\.type.rawValue) == ["subscription.renewed", "subscription.changed"])
        #expect(last.allSatisfy { JSONValue.object($0.body)["renews"] == .bool(false) }, "Apple charges no more")
        let over = follow(330, Self.renewal(331, commitment: false), at: 361)
        #expect(over.map(\.type.rawValue) == ["subscription.expired"])
        #expect(JSONValue.object(over[0].body)["reason"] == .string("cancelled"))
    }

    @Test("Apple tries to charge for 90 days within a commitment, and for 60 days without", arguments: [true, false])
    func retry(isCommitted: Bool) {
        var policy = SubscriptionPolicy()
        policy.retryEntitles = true
        let purchase = Self.month(0, isCommitted: isCommitted)
        let days: Double = isCommitted ? 90 : 60
        for (day, state) in [
            (31, .inRetry), (30 + days - 0.1, .inRetry), (30 + days, .expired), (30 + days + 5, .expired),
        ] as [(Double, SubscriptionState)] {
            let renewal = Self.renewal(30.5, commitment: nil) { $0.isInBillingRetry = true }
            let status = Self.chain([purchase], renewal, at: day).status(by: policy)
            #expect(status?.state == state, "\(day)")
            if state == .inRetry { #expect(status?.accessUntil == LifeCycle.day(30 + days)) }
        }
        let byRenewal = Self.renewal(30.5, commitment: true) { $0.isInBillingRetry = true }
        let status = Self.chain([Self.month(0, isCommitted: false)], byRenewal, at: 115).status(by: policy)
        #expect(status?.state == .inRetry, "the renewal alone says it")
        let due = Self.chain([purchase], Self.renewal(30.5, commitment: nil) { $0.isInBillingRetry = true }, at: 31)
            .followUp(by: policy).dueAt
        #expect(due == LifeCycle.day(30 + days))
    }

    @Test("the entitlement says when the commitment ends, whether another follows, and whether Apple charges")
    func entitlement() throws {
        let catalogue = Catalogue(products: [.init(id: "gold", kind: .autoRenewable, goods: [])])
        func entitlement(_ month: Double, commitment: Bool?) throws -> Entitlement {
            let chain = Self.chain(
                [Self.month(month)], Self.renewal(month + 1, commitment: commitment), at: month + 2)
            return try #require(Entitlements(of: [chain], by: SubscriptionPolicy(), catalogue).list.first)
        }
        let running = try entitlement(60, commitment: true)
        #expect(running.commitmentUntil == Self.end && running.commitmentRenews == true && running.willRenew == true)
        let cancelled = try entitlement(60, commitment: false)
        #expect(cancelled.commitmentRenews == false && cancelled.willRenew == true)
        let last = try entitlement(330, commitment: false)
        #expect(last.commitmentRenews == false && last.willRenew == false)
    }
}
