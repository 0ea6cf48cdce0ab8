import Foundation
import Purchases
import Testing

/// Goal: a user's list says of each purchase what the user may know, and what holds now (B14, Ownership). Method: every
/// state, reason and end of Apple's in a table.
@Suite struct ListedTopUpTests {
    private static let reasons = [nil] + Reason.allCases.map { Optional($0) }
    private static let receiptID = UUID()
    private static let bought = Date(timeIntervalSince1970: 1_000_000)
    private static let ended = Date(timeIntervalSince1970: 2_000_000)

    private static func facts(_ ending: Transaction.Ending? = nil, at revokedAt: Date? = nil) -> PurchaseFacts {
        var terms = PurchaseTerms()
        terms.price = 1990
        return PurchaseFacts(
            productID: "coins", quantity: 2, environment: "Production", purchasedAt: bought, revokedAt: revokedAt,
            ending: ending, terms: terms)
    }

    private static func granted(_ reason: Reason?) -> ListedTopUp {
        .granted(
            "t1", by: receiptID, reason: reason?.rawValue, goods: [.init(item: "coin", amount: 60)], orderID: nil)
    }

    private static func posted(
        _ state: ReceiptState?, _ reason: Reason?, of receiptState: ReceiptState = .held
    ) -> ListedTopUp {
        .posted("t1", in: receiptID, of: receiptState, state, reason: reason?.rawValue)
    }

    private static func unjudged(_ id: String?, _ state: ReceiptState, _ reason: Reason?) -> ListedTopUp {
        .unjudged(id, in: receiptID, state, reason: reason?.rawValue, productID: "shown")
    }

    @Test("an open purchase is received or parked, as its receipt is; every other one has its own state")
    func states() {
        let open: [ReceiptState: ReceiptState] = [
            .received: .received, .held: .received, .parked: .parked, .granted: .received, .alreadyGranted: .received,
            .rejected: .received,
        ]
        for receiptState in ReceiptState.allCases {
            for reason in Self.reasons {
                let isForAnother = reason == .ownedByAnotherUser || reason == .transferred
                for state in [nil] + ReceiptState.allCases.map({ Optional($0) }) {
                    let topUp = Self.posted(state, reason, of: receiptState)
                    #expect(topUp.state == (isForAnother ? .alreadyGranted : state ?? open[receiptState]))
                    #expect(topUp.reason == reason?.rawValue && topUp.receiptId == Self.receiptID)
                    #expect(topUp.transactionId == "t1" && topUp.productId == nil && topUp.unverified == nil)
                }
                let post = Self.unjudged("t1", receiptState, reason)
                #expect(post.state == (isForAnother ? .alreadyGranted : receiptState))
                #expect(post.reason == reason?.rawValue)
            }
        }
    }

    @Test("what a post alone says is marked as unverified, and a post that says no purchase says no product either")
    func unverified() {
        let named = Self.unjudged("t1", .received, nil)
        #expect(named.transactionId == "t1" && named.productId == "shown" && named.unverified == true)
        let bare = Self.unjudged(nil, .received, nil)
        #expect(bare.transactionId == nil && bare.productId == nil && bare.unverified == nil)
    }

    @Test("Ownership, note 5: who knows only an id gets no hint of the purchase; its owner sees it whole")
    func hints() {
        for reason in Self.reasons {
            #expect(Self.granted(reason).factsID == "t1")
            for state in [nil] + ReceiptState.allCases.map({ Optional($0) }) where state != .granted {
                #expect(Self.posted(state, reason).factsID == (reason == .possessionMissing ? nil : "t1"))
            }
            for state in ReceiptState.allCases {
                #expect(Self.unjudged("t1", state, reason).factsID == nil)
                #expect(Self.unjudged(nil, state, reason).factsID == nil)
            }
        }
        let imported = ListedTopUp.imported("t1", productID: "old", environment: "Sandbox", purchasedAt: Self.ended)
        #expect(imported.factsID == "t1")
    }

    @Test("the owner is not told what another poster of the purchase is told")
    func toldToOwner() {
        for reason in Self.reasons {
            let topUp = Self.granted(reason)
            #expect(topUp.state == .granted && topUp.goods == [.init(item: "coin", amount: 60)])
            #expect(topUp.reason == (reason == .ownedByAnotherUser ? nil : reason?.rawValue))
        }
    }

    @Test(
        "what Apple took back is so for a granted purchase, and money that went back has its date in every list",
        arguments: [
            (nil, nil, false), (.upgraded, nil, false), (.refunded, .refunded, true), (.refundedInPart, nil, true),
            (.withdrawn, .withdrawn, false), (.unknown, nil, true),
        ] as [(Transaction.Ending?, Reason?, Bool)])
    func endings(_ ending: Transaction.Ending?, _ takenBack: Reason?, _ isRefund: Bool) {
        let facts = Self.facts(ending, at: Self.ended)
        for reason in Self.reasons {
            var granted = Self.granted(reason)
            let told = granted.reason
            granted.show(facts)
            #expect(granted.reason == takenBack?.rawValue ?? told)
            var posted = Self.posted(.rejected, reason)
            posted.show(facts)
            #expect(posted.reason == reason?.rawValue)
            for topUp in [granted, posted] { #expect(topUp.refundedAt == (isRefund ? Self.ended : nil)) }
        }
        var imported = ListedTopUp.imported("t1", productID: "old", environment: "Sandbox", purchasedAt: Self.ended)
        imported.show(facts)
        #expect(imported.state == .alreadyGranted && imported.reason == Reason.imported.rawValue)
        #expect(imported.refundedAt == (isRefund ? Self.ended : nil))
    }

    @Test("Apple's facts take the place of what the former system said; without them that stands")
    func facts() {
        var topUp = ListedTopUp.imported("t1", productID: "old", environment: "Sandbox", purchasedAt: Self.ended)
        #expect(topUp.productId == "old" && topUp.environment == "Sandbox" && topUp.purchasedAt == Self.ended)
        #expect(topUp.quantity == nil && topUp.terms == nil && topUp.receiptId == nil)
        topUp.show(Self.facts())
        #expect(topUp.productId == "coins" && topUp.environment == "Production" && topUp.purchasedAt == Self.bought)
        #expect(topUp.quantity == 2 && topUp.terms?.price == 1990 && topUp.refundedAt == nil)
    }
}
