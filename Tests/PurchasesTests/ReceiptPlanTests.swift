import Foundation
import Purchases
import TestRandom
import Testing

/// Goal: a receipt costs no more calls than it holds purchases that would be granted and are not known well enough, and
/// nothing is granted on less than a recent answer of Apple's (B9). Method: every combination of what can be known of
/// one purchase, against a second wording of the rule; then receipts of random purchases.
@Suite struct ReceiptPlanTests {
    private static let madeAt = DecisionTests.received.addingTimeInterval(-600)
    private static let freshFor: TimeInterval = 3600

    /// A purchase as the receipt lists it.
    private static func listed(
        _ id: String = "1000", ago: TimeInterval = 1200, _ change: (inout Transaction) -> Void = { _ in }
    ) -> Transaction {
        var transaction = DecisionTests.transaction(kind: nil, ago: ago)
        transaction.id = id
        transaction.originalID = id
        transaction.signedAt = madeAt
        change(&transaction)
        return transaction
    }

    /// A purchase as Apple described it `ago` seconds before the submission.
    private static func stored(_ transaction: Transaction, ago: TimeInterval?, isRevoked: Bool) -> Transaction {
        var stored = transaction
        stored.kind = .consumable
        stored.customerID = "c1"
        stored.signedAt = ago.map { DecisionTests.received.addingTimeInterval(-$0) }
        stored.revokedAt = isRevoked ? DecisionTests.received.addingTimeInterval(-900) : nil
        return stored
    }

    private static func plan(
        _ purchases: [ListedPurchase], named: String? = nil, _ policy: AppPolicy = DecisionTests.policy()
    ) -> ReceiptPlan {
        ReceiptPlan(
            purchases, named: named, judge: Judge(policy: policy, claim: DecisionTests.claim), freshFor: freshFor)
    }

    private enum Facts: CaseIterable {
        case none, undated, old, fresh, newest

        /// Seconds before the submission; the receipt was made 600 s before it.
        var ago: TimeInterval? {
            switch self {
            case .none, .undated: nil
            case .old: 3601
            case .fresh: 3600
            case .newest: 10
            }
        }
    }

    @Test("every combination of what is known: what is judged without a call, and how")
    func table() {
        for facts in Facts.allCases {
            for isRevokedInFacts in [false, true] {
                for isRevokedInReceipt in [false, true] {
                    for (isGranted, isOnTrust) in [(false, false), (true, false), (false, true)] {
                        for isSold in [false, true] {
                            let listed = Self.listed {
                                if isRevokedInReceipt { $0.revokedAt = Self.madeAt }
                                if !isSold { $0.productID = "unknown" }
                            }
                            let stored =
                                facts == .none
                                ? nil : Self.stored(listed, ago: facts.ago, isRevoked: isRevokedInFacts)
                            let plan = Self.plan([
                                ListedPurchase(
                                    listed: listed, stored: stored, isGranted: isGranted, isOnTrust: isOnTrust)
                            ])
                            // The newer of the two sources decides whether it is refunded.
                            let isRefunded = facts == .newest ? isRevokedInFacts : isRevokedInReceipt
                            let isFresh = facts == .fresh || facts == .newest
                            let expected: Decision? =
                                if isRefunded {
                                    .rejected(.refunded)
                                } else if !isSold {
                                    isOnTrust ? nil : .held(.productUnknown)
                                } else if isGranted {
                                    .held(.review)
                                } else if isFresh {
                                    isRevokedInFacts ? .rejected(.refunded) : DecisionTests.granted
                                } else {
                                    nil
                                }
                            let what = """
                                \(facts) \(isRevokedInFacts) \(isRevokedInReceipt) \(isGranted) \(isOnTrust) \(isSold)
                                """
                            #expect(plan.judged.map(\.decision) == (expected.map { [$0] } ?? []), "\(what)")
                            #expect(plan.asked.count == (expected == nil ? 1 : 0), "\(what)")
                            #expect(plan.waiting.isEmpty)
                        }
                    }
                }
            }
        }
    }

    @Test("the receipt's own facts are stored without a date: they never count as Apple's answer of today")
    func snapshot() throws {
        let unknown = Self.listed { $0.productID = "unknown" }
        let entry = try #require(Self.plan([ListedPurchase(listed: unknown)]).judged.first)
        #expect(entry.decision == .held(.productUnknown) && entry.transaction.signedAt == nil)
        // Then the product is sold: the stored facts are not enough.
        let sold = ListedPurchase(listed: Self.listed(), stored: entry.transaction)
        #expect(Self.plan([sold]).asked == [sold])
    }

    @Test("an end that a receipt shows keeps its date: it counts against older facts, and is no answer of today")
    func snapshotOfEnd() {
        let ended = Self.listed { $0.revokedAt = Self.madeAt }
        #expect(ended.snapshot == ended && ended.endsByReceipt)
        #expect(ListedPurchase(listed: ended).waiting(.appleUnavailable).transaction.signedAt == Self.madeAt)
        #expect(!Self.listed().endsByReceipt)
        let told = Self.listed {
            $0.revokedAt = Self.madeAt
            $0.reason = "PURCHASE"
        }
        #expect(!told.endsByReceipt)
        // An upgrade ended the period, so that it is given all the same: not by what a receipt told of its end, also
        // where that is fresh; but by what Apple signed.
        for (isSigned, isAsked) in [(false, true), (true, false)] {
            let listed = Self.listed {
                $0.productID = "pass"
                $0.expiresAt = DecisionTests.received.addingTimeInterval(86_400)
                $0.webOrderLineItemID = "77"
            }
            var stored = Self.stored(listed, ago: 10, isRevoked: true)
            stored.kind = .autoRenewable
            stored.isUpgraded = true
            stored.reason = isSigned ? "PURCHASE" : nil
            let plan = Self.plan([ListedPurchase(listed: listed, stored: stored)])
            #expect(plan.asked.isEmpty != isAsked, "\(isSigned)")
        }
    }

    @Test("what waited for a person is given by Apple's answer of today, however fresh its facts were when posted")
    func decided() {
        let listed = Self.listed()
        let purchase = ListedPurchase(listed: listed, stored: Self.stored(listed, ago: 10, isRevoked: false))
        var evidence = Evidence()
        for isDecided in [false, true] {
            if isDecided { evidence.supportDecision = .init(userID: "chosen") }
            let judge = Judge(
                policy: DecisionTests.policy(), claim: DecisionTests.claim, evidence: [listed.id: evidence])
            let plan = ReceiptPlan([purchase], named: nil, judge: judge, freshFor: Self.freshFor)
            #expect(plan.asked.map(\.listed.id) == (isDecided ? [listed.id] : []))
            #expect(plan.judged.count == (isDecided ? 0 : 1))
        }
    }

    @Test("a period is granted from stored facts only with its billing event, which makes it one purchase")
    func periods() {
        let policy = DecisionTests.policy()
        for event in [nil, "77"] {
            let listed = Self.listed {
                $0.productID = "pass"
                $0.expiresAt = DecisionTests.received.addingTimeInterval(86_400)
                $0.webOrderLineItemID = event
            }
            var stored = Self.stored(listed, ago: 10, isRevoked: false)
            stored.kind = .autoRenewable
            stored.webOrderLineItemID = nil
            let plan = Self.plan([ListedPurchase(listed: listed, stored: stored)], policy)
            #expect(plan.asked.isEmpty == (event != nil))
            #expect(plan.judged.map(\.transaction.purchaseKey) == (event == nil ? [] : ["Production/period/77"]))
        }
    }

    @Test("what Apple says under another id of the same purchase is taken by the receipt's id; another purchase is not")
    func updates() {
        let purchase = ListedPurchase(listed: Self.listed("1000") { $0.originalID = "900" })
        let restored = Self.listed("2000") { $0.originalID = "900" }
        #expect(purchase.listed.updated(by: restored)?.id == "1000")
        #expect(purchase.listed.updated(by: Self.listed("1000") { $0.originalID = "900" })?.id == "1000")
        #expect(purchase.listed.updated(by: Self.listed("2000")) == nil)
        #expect(purchase.listed.updated(by: Self.listed("1000") { $0.environment = Transaction.sandbox }) == nil)
    }

    @Test("while Apple gives no answer a held purchase stays held, another is open")
    func waiting() {
        let listed = Self.listed()
        for (before, expected) in [
            (Decision?.none, Decision.open(.appleUnavailable)), (.open(.historyPending), .open(.appleUnavailable)),
            (.held(.productUnknown), .held(.productUnknown)),
        ] {
            let entry = ListedPurchase(listed: listed, before: before).waiting(.appleUnavailable)
            #expect(entry.decision == expected && entry.transaction.signedAt == nil)
        }
    }

    @Test("B10: unknown is what is open or new, not granted, not given on trust, and not refunded by any record")
    func unreached() {
        let listed = Self.listed()
        let refunded = Self.stored(listed, ago: 900_000, isRevoked: true)
        for before in [nil, .open(.appleAnswer), .held(.review), .rejected(.refunded)] as [Decision?] {
            for stored in [nil, Self.stored(listed, ago: 900_000, isRevoked: false), refunded] {
                for (isGranted, isOnTrust) in [(false, false), (true, false), (false, true)] {
                    let purchase = ListedPurchase(
                        listed: listed, stored: stored, isGranted: isGranted, isOnTrust: isOnTrust, before: before)
                    let isOpen = before == nil || before == .open(.appleAnswer)
                    let expected = isOpen && stored?.revokedAt == nil && !isGranted && !isOnTrust
                    #expect(purchase.isUnreached == expected, "\(purchase)")
                }
            }
        }
    }

    @Test("B10: Apple is asked about what was given on trust before all but the named one")
    func trustFirst() {
        let all = (0..<20).map { number in
            ListedPurchase(
                listed: Self.listed("\(1000 + number)", ago: Double(2000 + number)), isOnTrust: number == 17)
        }
        let plan = Self.plan(all, named: "1019")
        #expect(plan.asked.map(\.listed.id) == ["1019", "1017", "1000", "1001", "1002"])
    }

    @Test("any receipt: each purchase once, no grant without fresh facts, few questions, the urgent first")
    func random() {
        var random = SeededRandom(announcing: "ReceiptPlan")
        for _ in 0..<3000 {
            let purchases = (0..<Int.random(in: 0...40, using: &random)).map { index in
                let listed = Self.listed("\(index)", ago: Double.random(in: 601...100_000, using: &random)) {
                    if Int.random(in: 0..<4, using: &random) == 0 { $0.productID = "unknown" }
                }
                let ago = Facts.allCases.randomElement(using: &random)
                let stored = ago.flatMap { facts in
                    facts == .none ? nil : Self.stored(listed, ago: facts.ago, isRevoked: Bool.random(using: &random))
                }
                return ListedPurchase(
                    listed: listed, stored: stored, isGranted: Int.random(in: 0..<3, using: &random) == 0,
                    before: [nil, .open(.notFoundYet), .open(.historyPending)].randomElement(using: &random) ?? nil)
            }
            let named = purchases.randomElement(using: &random)?.listed.id
            let plan = Self.plan(purchases, named: named)
            let ids =
                plan.judged.map(\.transaction.id) + plan.asked.map(\.listed.id) + plan.waiting.map(\.listed.id)
            #expect(ids.sorted() == purchases.map(\.listed.id).sorted(), "seed \(random.seed)")
            for entry in plan.judged {
                guard case .grant = entry.decision else { continue }
                let signedAt = entry.transaction.signedAt ?? .distantPast
                #expect(DecisionTests.received.timeIntervalSince(signedAt) <= Self.freshFor, "seed \(random.seed)")
                #expect(entry.transaction.customerID == "c1", "seed \(random.seed)")
            }
            let unknown = plan.asked + plan.waiting
            #expect(unknown.allSatisfy { !$0.isGranted }, "seed \(random.seed)")
            #expect(plan.asked.count == min(unknown.count, ReceiptPlan.lookUpsMax), "seed \(random.seed)")
            if let named, unknown.contains(where: { $0.listed.id == named }) {
                #expect(unknown.first?.listed.id == named, "seed \(random.seed)")
            }
            let others = unknown.filter { $0.listed.id != named }
            for (one, next) in zip(others, others.dropFirst()) {
                let (wasSought, isSought) = (one.before == .open(.notFoundYet), next.before == .open(.notFoundYet))
                #expect(!wasSought || isSought, "seed \(random.seed)")
                if wasSought == isSought {
                    #expect(one.listed.purchasedAt >= next.listed.purchasedAt, "seed \(random.seed)")
                }
            }
        }
    }

    @Test("over: given before or rejected, and no refund that was not known")
    func isOver() {
        let bought = DecisionTests.transaction()
        var refunded = bought
        refunded.revokedAt = bought.purchasedAt
        let (held, rejected) = (Decision.held(.review), Decision.rejected(.historical))
        for (listed, stored, isGranted, decision, isOver) in [
            (bought, nil, false, rejected, true), (bought, nil, false, held, false), (bought, nil, true, held, true),
            (bought, refunded, false, .rejected(.refunded), true), (refunded, nil, true, held, false),
            (refunded, bought, true, held, false), (refunded, refunded, true, held, true),
            (refunded, nil, false, .rejected(.refunded), false), (bought, bought, false, .open(.notFoundYet), false),
        ] as [(Transaction, Transaction?, Bool, Decision, Bool)] {
            let purchase = ListedPurchase(listed: listed, stored: stored, isGranted: isGranted)
            #expect(purchase.isOver(by: decision) == isOver, "\(listed.revokedAt as Any) \(decision)")
        }
    }

    @Test("what Apple need not be asked about is granted as listed; the others are asked about all the same")
    func asksOnlyAboutSome() {
        let purchases = ["1", "2", "3"].map { ListedPurchase(listed: Self.listed($0)) }
        let plan = ReceiptPlan(
            purchases, named: nil, judge: Judge(policy: DecisionTests.policy(), claim: DecisionTests.claim),
            freshFor: Self.freshFor
        ) { $0.id == "2" }
        #expect(plan.judged.map(\.transaction.id) == ["1", "3"])
        #expect(plan.judged.allSatisfy { $0.decision == DecisionTests.granted })
        #expect(plan.asked.map(\.listed.id) == ["2"] && plan.waiting.isEmpty)
    }

    @Test(
        "where a submission waits first: what may be judged without Apple apart from what Apple is asked about, and big receipts apart from both"
    )
    func lanes() {
        typealias Strategy = AppPolicy.LegacyStrategy
        for strategies in [
            [], [.verifyReceipt], [.serverApi], [.serverApi, .verifyReceipt], [.local], [.serverApi, .local],
        ]
            as [[Strategy]]
        {
            for confirm in AppPolicy.ConfirmWithApple.allCases {
                let policy = DecisionTests.policy {
                    $0.legacyReceipts = strategies
                    $0.confirmWithApple = confirm
                }
                let big = String(repeating: "A", count: Lane.bulkBytesMin)
                let small: Lane = strategies.contains(.local) ? .local : .apple
                for isAwaited in [false, true] {
                    let lane = { (proof: Proof) in policy.lane(of: proof, isAwaited: isAwaited) }
                    #expect(lane(.receipt(String(big.dropLast()))) == small)
                    #expect(lane(.receipt(big)) == (isAwaited ? small : .bulk))
                    // Its size does not matter: one signed transaction is one purchase.
                    #expect(lane(.signedTransaction(big)) == (confirm == .always ? .apple : .local))
                    #expect(lane(.identifier) == .apple)
                }
            }
        }
    }
}
