import Foundation
import Purchases
import Testing

/// Goal: Apple updates of a decided purchase follow the app's policy and the rule that found its owner, and a token
/// that we set at Apple proves nothing (B3, B5). Method: the cross product of the values of each column.
@Suite struct AppleUpdateTests {
    private enum Token: CaseIterable { case none, unseen, foreign, ours }

    private static let order = PlacedOrder(
        id: UUID(), userID: "u1", productID: "coins", placedAt: DecisionTests.received, payBy: DecisionTests.received)

    private static func entry(
        _ decision: Decision, _ source: BindingSource = .namedOrder, order: PlacedOrder? = order,
        _ token: Token = .none,
        _ change: (inout Transaction) -> Void = { _ in }
    ) -> Verdict.Entry {
        let transaction = DecisionTests.transaction {
            $0.showsToken = token != .unseen
            if token == .foreign || token == .ours { $0.appAccountToken = UUID() }
            change(&$0)
        }
        let match = Match(
            userID: "u1", source: source, order: order, reasons: token == .ours ? [.orderNamed, .tokenWritten] : [])
        return Verdict.Entry(transaction: transaction, decision: decision, match: match)
    }

    private static func appleUpdates(
        _ entry: Verdict.Entry, hasPossession: Bool = true, _ change: (inout AppPolicy) -> Void
    ) -> [AppleUpdate] {
        DecisionTests.policy(change).appleUpdates(
            of: .transactions([entry]),
            claim: Claim(userID: "u1", hasPossession: hasPossession, receivedAt: DecisionTests.received))
    }

    private static func decisions(_ source: BindingSource) -> [Decision] {
        [.grant(goods: [], source: source), .provisional(goods: [], source: source), .open(.appleUnavailable)]
            + Reason.allCases.flatMap { [.held($0), .rejected($0)] }
    }

    @Test("B5: rows 5 to 7 write their order back, over no token but one that we set; nothing else does")
    func tokens() {
        for source in BindingSource.allCases {
            for decision in Self.decisions(source) {
                for token in Token.allCases {
                    for order in [nil, Self.order] {
                        let entry = Self.entry(decision, source, order: order, token)
                        let isGrant = decision == .grant(goods: [], source: source)
                        let isFound = [.namedOrder, .orderOfAnother, .openOrder].contains(source)
                        var expected = isGrant && isFound && order != nil && (token == .none || token == .ours)
                        // A person knows the owner, whatever token the purchase carries.
                        if isGrant, source == .support, order != nil { expected = true }
                        let appleUpdates = Self.appleUpdates(entry) { $0.writesBackTokens = true }
                        #expect(appleUpdates.map(\.token) == (expected ? [Self.order.id] : []), "\(source) \(token)")
                        #expect(appleUpdates.allSatisfy { $0.kind == .setToken && $0.outcome == .granted })
                        #expect(Self.appleUpdates(entry) { $0.writesBackTokens = false } == [])
                    }
                }
            }
        }
    }

    @Test("B5: what a person decided is told by the order that it bound, else by a token of the user, where it is news")
    func decided() {
        let leading = UUID()
        for (order, known, carried, expected) in [
            (Self.order, leading, nil, Self.order.id), (nil, leading, nil, leading), (nil, leading, UUID(), leading),
            (nil, leading, leading, nil), (Self.order, nil, Self.order.id, nil), (nil, nil, nil, nil),
        ] as [(PlacedOrder?, UUID?, UUID?, UUID?)] {
            var match = Match(userID: "u1", source: .support, order: order, reasons: [.supportDecided])
            match.token = known
            let entry = Verdict.Entry(
                transaction: DecisionTests.transaction { $0.appAccountToken = carried },
                decision: .grant(goods: [], source: .support), match: match)
            #expect(
                Self.appleUpdates(entry) { $0.writesBackTokens = true }.map(\.token) == (expected.map { [$0] } ?? []))
        }
    }

    @Test(
        "B3, P2: finished is what was granted; by policy also what is held with its facts stored, never what is tried")
    func finishing() {
        for policy in AppPolicy.FinishAtApple.allCases {
            for decision in Self.decisions(.poster) {
                for hasPossession in [true, false] {
                    let appleUpdates = Self.appleUpdates(Self.entry(decision, .poster), hasPossession: hasPossession) {
                        $0.finishAtApple = policy
                    }
                    let expected: AppleUpdate.Outcome? =
                        switch decision {
                        case .grant: policy == .never ? nil : .granted
                        case .held(let reason):
                            policy == .afterReceipt && reason.holdsFacts && hasPossession ? .held : nil
                        case .provisional, .rejected, .open: nil
                        }
                    #expect(appleUpdates.map(\.outcome) == (expected.map { [$0] } ?? []), "\(policy) \(decision)")
                    #expect(appleUpdates.allSatisfy { $0.kind == .finish && $0.token == nil })
                    // A purchase that is safe to finish at Apple is safe to finish on the device.
                    let reason: Reason? = if case .held(let reason) = decision { reason } else { nil }
                    for appleUpdate in appleUpdates {
                        #expect(
                            SafeToFinish.judge(
                                state: appleUpdate.outcome.rawValue, reason: reason?.rawValue, hasFacts: true))
                    }
                }
            }
        }
    }

    @Test("row 0d: nothing for what another customer shares, nor for what Apple does not know")
    func others() {
        let grant = Decision.grant(goods: [], source: .namedOrder)
        let both = { (policy: inout AppPolicy) in
            policy.writesBackTokens = true
            policy.finishAtApple = .afterReceipt
        }
        #expect(Self.appleUpdates(Self.entry(grant), both).map(\.kind) == [.setToken, .finish])
        for ownership in ["FAMILY_SHARED", "ASSIGNED"] {
            #expect(Self.appleUpdates(Self.entry(grant) { $0.ownership = ownership }, both) == [])
        }
        for (environment, count) in [("Sandbox", 2), ("Xcode", 0), ("LocalTesting", 0)] {
            #expect(Self.appleUpdates(Self.entry(grant) { $0.environment = environment }, both).count == count)
        }
        let claim = DecisionTests.claim
        let policy = DecisionTests.policy(both)
        #expect(policy.appleUpdates(of: .receipt(.rejected(.malformed)), claim: claim) == [])
        #expect(policy.appleUpdates(of: .identifier("1", .possessionMissing), claim: claim) == [])
    }

    @Test(
        "5.1: a token that we set is row 4, not row 2 or 3: the chain decides, and what is bought in it goes on as before"
    )
    func written() {
        let order = MatcherTableTests.order("first", 5) { $0.transactionID = "0" }
        let named = MatcherTableTests.order("me", 5, product: "pass")
        func match(_ reason: String, isWritten: Bool, orders: [PlacedOrder] = [order], named: UUID? = nil) -> Match? {
            var evidence = Evidence()
            evidence.orders = orders
            evidence.namedOrderID = named
            evidence.chain = .init(userID: "now")
            evidence.isTokenWritten = isWritten
            // This would be row 3 if the token were a proof.
            evidence.rememberedUserIDs = ["another"]
            let period = DecisionTests.transaction("pass", kind: .autoRenewable) {
                $0.originalID = "1"
                $0.reason = reason
                $0.appAccountToken = order.id
                $0.showsToken = true
            }
            let claim = Claim(userID: "me", hasPossession: true, receivedAt: DecisionTests.received)
            return DecisionTests.policy().judge(period, claim: claim, evidence: evidence).match
        }
        let proven = match("RENEWAL", isWritten: false)
        #expect(proven?.source == .orderToken && proven?.userID == "first", "the app's own token is a proof")
        let renewal = match("RENEWAL", isWritten: true)
        #expect(renewal?.source == .chain && renewal?.userID == "now")
        #expect(renewal?.reasons == [.chainKnown, .tokenWritten])
        let resubscribed = match("PURCHASE", isWritten: true)
        #expect(resubscribed?.source == .chainOwner && resubscribed?.userID == "now")
        let ordered = match("PURCHASE", isWritten: true, orders: [order, named], named: named.id)
        #expect(ordered?.source == .namedOrder && ordered?.userID == "me" && ordered?.chainWasOf == "now")
    }
}
