import Foundation
import Purchases
import Testing

/// Goal: Apple's fields about a purchase that it ended decide whether the purchase is given (Ownership, rows 0a and
/// 0a'). Method: every combination of Apple's values, and of values that Apple may invent, against an oracle written
/// from the rows' text.
@Suite struct RevocationTests {
    private static let reasons: [Int?] = [nil, 0, 1, 2]
    private static let types = [nil, "REFUND_FULL", "REFUND_PRORATED", "FAMILY_REVOKE", "ASSIGNMENT_REVOKE", "NEW"]
    private static let percentages: [Int?] = [nil, 0, 50_000, 99_999, 100_000]
    private static let ownerships = [nil, "PURCHASED", "FAMILY_SHARED", "ASSIGNED"]
    private static let endedAt = DecisionTests.received.addingTimeInterval(-30)

    private struct Case {
        var transaction: Transaction
        var hasSuccessor: Bool
    }

    private static func each(_ body: (Case) -> Void) {
        for reason in reasons {
            for type in types {
                for percentage in percentages {
                    for ownership in ownerships {
                        for flags in 0..<16 {
                            let transaction = DecisionTests.transaction("pass", kind: .autoRenewable) {
                                $0.revocation = Revocation(reason: reason, type: type, percentage: percentage)
                                $0.ownership = ownership
                                $0.isUpgraded = flags & 1 > 0
                                $0.revokedAt = flags & 2 > 0 ? endedAt : nil
                                // Only signed data has it.
                                $0.reason = flags & 8 > 0 ? "PURCHASE" : nil
                            }
                            body(Case(transaction: transaction, hasSuccessor: flags & 4 > 0))
                        }
                    }
                }
            }
        }
    }

    private enum Expected: Equatable {
        case withdrawn, refunded, review
        case given(MatchReason?)
    }

    private static func expected(_ c: Case) -> Expected {
        let t = c.transaction
        let isShared = ["FAMILY_SHARED", "ASSIGNED"].contains(t.ownership)
        // 0a': "FAMILY_REVOKE, ASSIGNMENT_REVOKE, any revocation of a shared purchase: withdrawn".
        if t.revokedAt != nil, isShared || ["FAMILY_REVOKE", "ASSIGNMENT_REVOKE"].contains(t.revocation.type) {
            return .withdrawn
        }
        // "Upgraded: goes on." "A refund of an upgraded period for a reason of its own is row 0a."
        let hasOwnReason =
            t.revocation.type == "REFUND_FULL" || t.revocation.reason == 1
            || t.revocation.reason == 0 && t.reason != nil
        if t.isUpgraded, t.revokedAt == nil || !hasOwnReason { return .given(.endedByUpgrade) }
        if !t.isUpgraded, t.revokedAt != nil, c.hasSuccessor { return .given(.endedByUpgrade) }
        guard t.revokedAt != nil else { return .given(nil) }
        // 0a: "REFUND_PRORATED below 100 % goes on".
        if t.revocation.type == "REFUND_PRORATED", let percentage = t.revocation.percentage, percentage < 100_000 {
            return .given(.refundProrated)
        }
        // "An unknown reason that no successor explains: held review."
        return [nil, 0, 1].contains(t.revocation.reason) && t.revocation.type != "NEW" ? .refunded : .review
    }

    @Test("F4, rows 0a and 0a': every combination of reason, type, percentage, ownership, upgrade and successor")
    func table() {
        let policy = DecisionTests.policy()
        var seen: Set<String> = []
        Self.each { c in
            var evidence = Evidence()
            evidence.hasSuccessor = c.hasSuccessor
            let entry = policy.judge(c.transaction, claim: DecisionTests.claim, evidence: evidence)
            let expected = Self.expected(c)
            seen.insert("\(expected)")
            let reasons = entry.match?.reasons ?? entry.heldBy?.reasons ?? []
            let isRight =
                switch expected {
                case .withdrawn: entry.decision == .rejected(.withdrawn)
                case .refunded: entry.decision == .rejected(.refunded)
                case .review: entry.decision == .held(.review) && reasons.contains(.revocationUnknown)
                case .given(let reason):
                    entry.decision.gives
                        && reasons.filter { [.endedByUpgrade, .refundProrated].contains($0) }
                            == (reason.map { [$0] } ?? [])
                }
            #expect(isRight, "\(c) \(entry.decision) \(reasons), not \(expected)")
        }
        #expect(seen.count == 6)
    }

    @Test("row 0a': what Apple upgraded is no running subscription of the time before the cut-over")
    func beforeCutover() {
        let running = DecisionTests.transaction("pass", kind: .autoRenewable) {
            $0.purchasedAt = DecisionTests.grantFrom.addingTimeInterval(-86_400)
            $0.expiresAt = DecisionTests.received.addingTimeInterval(86_400)
        }
        let policy = DecisionTests.policy()
        #expect(policy.decide(running, claim: DecisionTests.claim) == DecisionTests.entitled)
        var upgraded = running
        upgraded.isUpgraded = true
        #expect(policy.decide(upgraded, claim: DecisionTests.claim) == .rejected(.historical))
    }

    @Test("row 0a: an unknown reason is a person's to decide, and the decision is given")
    func decidedByPerson() {
        let taken = DecisionTests.transaction {
            $0.revokedAt = Self.endedAt
            $0.revocation = Revocation(reason: 7)
        }
        let policy = DecisionTests.policy()
        #expect(policy.decide(taken, claim: DecisionTests.claim) == .held(.review))
        var evidence = Evidence()
        evidence.supportDecision = .init(userID: "u1")
        #expect(
            policy.judge(taken, claim: DecisionTests.claim, evidence: evidence).decision
                == .grant(goods: DecisionTests.coins.goods, source: .support))
    }

    @Test("row 0a: taken back under another id of the purchase, it is not given under this one")
    func underAnotherID() {
        let restore = DecisionTests.transaction("sword", kind: .nonConsumable) { $0.originalID = "1" }
        let policy = DecisionTests.policy()
        for (reason, expected) in [
            (Reason.refunded, Decision.rejected(.refunded)), (.withdrawn, .rejected(.withdrawn)),
            (.review, .held(.review)),
        ] {
            var evidence = Evidence()
            evidence.takenBack = reason
            #expect(policy.judge(restore, claim: DecisionTests.claim, evidence: evidence).decision == expected)
        }
    }

    @Test("row 0a': another product of the chain, within a minute of the end, explains it; nothing else does")
    func successor() {
        let basic = DecisionTests.transaction("basic", kind: .autoRenewable, ago: 86_400) {
            $0.id = "1"
            $0.originalID = "1"
            $0.revokedAt = Self.endedAt
        }
        func plus(_ seconds: TimeInterval, _ change: (inout Transaction) -> Void = { _ in }) -> Transaction {
            DecisionTests.transaction("plus", kind: .autoRenewable) {
                $0.id = "2"
                $0.originalID = "1"
                $0.purchasedAt = Self.endedAt.addingTimeInterval(seconds)
                change(&$0)
            }
        }
        for (seconds, follows) in [(0.0, true), (60, true), (-60, true), (60.5, false), (-61, false)] {
            #expect(plus(seconds).follows(basic) == follows)
        }
        #expect(!plus(0) { $0.productID = "basic" }.follows(basic))
        #expect(!plus(0) { $0.originalID = "2" }.follows(basic))
        // A bundle begins a chain of its own, and names the chain before.
        #expect(
            plus(0) {
                $0.originalID = "2"
                $0.previousOriginalID = "1"
            }.follows(basic))
        #expect(!plus(0) { $0.environment = Transaction.sandbox }.follows(basic))
        var standing = basic
        standing.revokedAt = nil
        #expect(!plus(0).follows(standing))

        #expect(basic.mayHaveSuccessor)
        for change: (inout Transaction) -> Void in [
            { $0.revokedAt = nil }, { $0.isUpgraded = true }, { $0.ownership = "FAMILY_SHARED" },
            { $0.revocation.type = "FAMILY_REVOKE" },
            // Apple has signed that it was a refund.
            { $0.revocation.type = "REFUND_FULL" }, { $0.reason = "PURCHASE" }, { $0.kind = .consumable },
        ] {
            var other = basic
            change(&other)
            #expect(!other.mayHaveSuccessor)
        }
        var signed = basic
        (signed.reason, signed.revocation) = ("PURCHASE", Revocation(reason: 2, type: "REFUND_FULL"))
        #expect(signed.mayHaveSuccessor, "a reason that is newer than this program")

        // Both are in one receipt: the second explains the first, and nothing explains the second.
        var evidence = ["1": Evidence(), "2": Evidence()]
        Evidence.explain([basic, plus(3)], &evidence)
        #expect(evidence["1"]?.hasSuccessor == true && evidence["2"]?.hasSuccessor == false)
        evidence = ["1": Evidence()]
        Evidence.explain([basic, plus(99)], &evidence)
        #expect(evidence["1"]?.hasSuccessor == false)
    }

    @Test("what ended is not given on trust")
    func trust() {
        let policy = DecisionTests.policy {
            $0.provisional = .init(perUserPerDay: 1, perAppPerDay: 1)
            $0.products["pass"]?.isProvisional = true
        }
        for ending in [false, true] {
            let period = DecisionTests.transaction("pass", kind: .autoRenewable) { $0.isUpgraded = ending }
            let entry = policy.judge(period, claim: DecisionTests.claim, evidence: .none)
            #expect(entry.decision.gives && policy.mayBeProvisional(entry, posterID: "u1") == !ending)
        }
    }
}
