import Encoding
import Foundation
import Purchases
import Testing

/// Goal: each taking back of Apple's is written once, as the difference to the entries before it, for any entries
/// before (P32, P45, S3-46a). Method: every end after every history that ends can make, against a table of what each
/// end takes back.
@Suite struct RevocationRulesTests {
    private static let bought = LifeCycle.day(0)
    private static let given: [AppPolicy.Goods] = [
        .init(item: "coin", amount: 61), .init(item: "gem", amount: 7), .init(item: "gem", amount: 3, bonus: "first"),
    ]

    /// Apple's statements about the purchase, in every form that has a meaning of its own.
    private enum End: String, CaseIterable {
        case stands, refunded, refundedWithoutType, refundedForAnIssue, quarter, third, everythingByShare,
            nothingByShare
        case withdrawn, assignmentWithdrawn, upgraded, unknownReason, unknownType

        /// In thousandths of a percent; nil: for a reason that is not known here.
        var takes: Int? {
            switch self {
            case .stands, .nothingByShare, .withdrawn, .assignmentWithdrawn, .upgraded: 0
            case .refunded, .refundedWithoutType, .refundedForAnIssue, .everythingByShare: 100_000
            case .quarter: 25_000
            case .third: 33_333
            case .unknownReason, .unknownType: nil
            }
        }

        var reason: RevocationEntry.Reason? {
            switch self {
            case .stands, .unknownReason, .unknownType: nil
            case .withdrawn, .assignmentWithdrawn: .withdrawn
            case .upgraded: .upgraded
            default: .refunded
            }
        }

        var revocation: Revocation {
            switch self {
            case .stands, .upgraded: Revocation()
            case .refunded: Revocation(reason: 0, type: "REFUND_FULL", percentage: 100_000)
            case .refundedWithoutType: Revocation(reason: 0)
            case .refundedForAnIssue: Revocation(reason: 1, type: "REFUND_FULL")
            case .quarter: Revocation(reason: 0, type: "REFUND_PRORATED", percentage: 25_000)
            case .third: Revocation(reason: 0, type: "REFUND_PRORATED", percentage: 33_333)
            case .everythingByShare: Revocation(reason: 0, type: "REFUND_PRORATED", percentage: 100_000)
            case .nothingByShare: Revocation(reason: 0, type: "REFUND_PRORATED", percentage: 0)
            case .withdrawn: Revocation(reason: 0, type: "FAMILY_REVOKE")
            case .assignmentWithdrawn: Revocation(reason: 0, type: "ASSIGNMENT_REVOKE")
            case .unknownReason: Revocation(reason: 5)
            case .unknownType: Revocation(reason: 0, type: "NEW")
            }
        }

        func transaction(_ day: Double, _ change: (inout Transaction) -> Void = { _ in }) -> Transaction {
            var transaction = Transaction(
                id: "T", originalID: "T", productID: "gold", kind: .autoRenewable, environment: Transaction.production,
                quantity: 4, purchasedAt: bought, expiresAt: LifeCycle.day(30),
                revokedAt: self == .stands ? nil : LifeCycle.day(day), revocation: revocation,
                isUpgraded: self == .upgraded, signedAt: LifeCycle.day(day), reason: "PURCHASE")
            change(&transaction)
            return transaction
        }
    }

    private static func follow(
        _ transaction: Transaction, _ entries: [RevocationEntry], goods: [AppPolicy.Goods] = given,
        onTrust: Bool = false, denied: Bool = false, user: String? = "u1", others: [ChainFacts.Purchase] = [],
        consumed: Int? = nil
    ) -> FollowUp {
        let grant = ChainFacts.Grant(
            receiptID: UUID(), userID: user, goods: goods, quantity: 4, grantedAt: bought, isTakenBackOnTrust: onTrust,
            isDenied: denied)
        let purchase = ChainFacts.Purchase(
            transaction: transaction, grant: grant, revocations: entries, consumed: consumed)
        return ChainFacts(
            appID: "game", environment: Transaction.production, originalID: "T", purchases: [purchase] + others,
            now: LifeCycle.day(20)
        ).followUp(by: SubscriptionPolicy())
    }

    /// The goods that the entries took back, by item and bonus.
    private static func taken(_ entries: [RevocationEntry]) -> [String: Int] {
        var taken: [String: Int] = [:]
        for entry in entries {
            for goods in entry.goods {
                let name = goods.item + (goods.bonus ?? "")
                taken[name, default: 0] += entry.kind == .revoked ? goods.amount : -goods.amount
            }
        }
        return taken.filter { $0.value != 0 }
    }

    private static func expected(_ percentage: Int) -> [String: Int] {
        [
            "coin": 61 * percentage / 100_000, "gem": 7 * percentage / 100_000, "gemfirst": 3 * percentage / 100_000,
        ].filter { $0.value != 0 }
    }

    @Test("P32, P45, S3-46a: every end after every history of two ends takes back exactly the difference")
    func everyHistory() {
        for first in End.allCases {
            for second in End.allCases {
                for third in End.allCases { play([first, second, third]) }
            }
        }
    }

    private func play(_ ends: [End]) {
        var entries: [RevocationEntry] = []
        // An unknown reason changes nothing of what was before.
        var taken = 0
        for (index, end) in ends.enumerated() {
            let transaction = end.transaction(Double(index + 1))
            let result = Self.follow(transaction, entries)
            let before = entries.count
            entries += result.revocations
            if let takes = end.takes { taken = takes }
            let name = "\(ends.prefix(index + 1).map(\.rawValue))"
            func expect(_ condition: Bool, _ what: String) {
                if !condition { Issue.record("\(name): \(what): \(entries.dropFirst(before))") }
            }
            expect(Self.taken(entries) == Self.expected(taken), "takes \(Self.taken(entries))")
            expect(entries.map(\.ordinal) == Array(1..<(entries.count + 1)), "ordinals")
            expect(end.takes != nil || entries.count == before, "an unknown reason")
            expect(entries.count <= before + 2, "more than two rows")
            if let last = entries.last, end.takes != nil {
                expect(last.percentage == taken, "percentage")
                expect(end.reason == nil || entries.count == before || last.reason == end.reason, "reason")
            }
            for entry in entries.dropFirst(before) {
                expect(entry.transactionID == "T", "id")
                expect(entry.at == LifeCycle.day(Double(index + 1)), "date")
                expect(entry.takesBack || entry.goods.isEmpty, "goods that nobody takes back")
            }
            let events = result.events.filter { $0.type.rawValue.hasPrefix("purchase.") }
            expect(events.map(\.distinction) == result.revocations.map { String($0.ordinal) }, "events")
            let again = Self.follow(transaction, entries)
            expect(again.revocations.isEmpty, "written twice")
            expect(!again.events.contains { $0.type.rawValue.hasPrefix("purchase.") }, "told twice")
            // Apple corrects the dates of refunds.
            var corrected = transaction
            corrected.revokedAt = transaction.revokedAt.map { $0 + 100 }
            expect(Self.follow(corrected, entries).revocations.isEmpty, "another date")
        }
    }

    @Test("S3-46a: the rows of each kind of change, in full")
    func rows() throws {
        func written(_ ends: End...) -> [String] {
            var entries: [RevocationEntry] = []
            for (index, end) in ends.enumerated() {
                entries += Self.follow(end.transaction(Double(index + 1)), entries).revocations
            }
            return entries.map { entry in
                let goods = entry.goods.map { "\($0.amount) \($0.item)\($0.bonus ?? "")" }.joined(separator: ", ")
                return
                    "\(entry.kind.rawValue) \(entry.reason.rawValue) \(entry.takesBack) \(entry.percentage): \(goods)"
            }
        }
        let all = "61 coin, 7 gem, 3 gemfirst"
        #expect(written(.refunded) == ["revoked refunded true 100000: \(all)"])
        #expect(written(.stands) == [])
        #expect(written(.upgraded) == ["revoked upgraded false 0: "])
        #expect(written(.withdrawn) == ["revoked withdrawn false 0: "])
        #expect(
            written(.quarter, .third, .refunded) == [
                "revoked refunded true 25000: 15 coin, 1 gem", "revoked refunded true 33333: 5 coin, 1 gem",
                "revoked refunded true 100000: 41 coin, 5 gem, 3 gemfirst",
            ])
        #expect(
            written(.refunded, .quarter, .stands) == [
                "revoked refunded true 100000: \(all)", "reinstated refunded true 25000: 46 coin, 6 gem, 3 gemfirst",
                "reinstated refunded true 0: 15 coin, 1 gem",
            ])
        #expect(
            written(.refunded, .upgraded, .stands) == [
                "revoked refunded true 100000: \(all)", "reinstated upgraded true 0: \(all)",
                "reinstated upgraded false 0: ",
            ])
        #expect(
            written(.withdrawn, .stands) == ["revoked withdrawn false 0: ", "reinstated withdrawn false 0: "])
    }

    @Test("a grant on trust that Apple's answer took back counts as everything taken")
    func onTrust() {
        #expect(Self.follow(End.refunded.transaction(1), [], onTrust: true).revocations.isEmpty)
        let reversed = Self.follow(End.stands.transaction(2), [], onTrust: true).revocations
        #expect(reversed.map(\.kind) == [.reinstated] && reversed.map(\.ordinal) == [1])
        #expect(Self.taken(reversed) == Self.expected(100_000).mapValues { -$0 })
        #expect(Self.follow(End.stands.transaction(3), reversed, onTrust: true).revocations.isEmpty)
        // The facts that the grant on trust rested on are no news.
        #expect(Self.follow(End.stands.transaction(0), [], onTrust: true, denied: true).revocations.isEmpty)
    }

    @Test("a shared purchase: its withdrawal takes nothing back, its buyer's refund takes what sharing gave")
    func shared() {
        for ownership in Transaction.sharedOwnerships {
            for (type, reason, takesBack) in [
                ("FAMILY_REVOKE", 0, false), ("ASSIGNMENT_REVOKE", 0, false), ("REFUND_FULL", 0, true),
                ("REFUND_PRORATED", 1, true), (nil, 1, true), (nil, 0, true), (nil, nil, false), ("NEW", 0, false),
            ] as [(String?, Int?, Bool)] {
                let transaction = End.refunded.transaction(1) {
                    $0.ownership = ownership
                    $0.revocation = Revocation(reason: reason, type: type, percentage: 100_000)
                }
                let entries = Self.follow(transaction, []).revocations
                #expect(entries.map(\.takesBack) == [takesBack], "\(type ?? "") \(reason ?? -1)")
                #expect(entries.map(\.reason) == [takesBack ? .refunded : .withdrawn])
                #expect(Self.taken(entries) == Self.expected(takesBack ? 100_000 : 0))
                #expect(Self.follow(transaction, [], goods: []).revocations.map(\.takesBack) == [false])
            }
        }
    }

    @Test("a period of added seats ends when each of its transactions has; refunded seats alone end nothing")
    func seats() {
        let facts = #"{"additionalTransactionReason":"SEAT_ADDITION","revokedSeatQuantity":2}"#
        for (first, second, isRevoked) in [
            (End.stands, End.stands, false), (End.refunded, End.stands, false), (End.stands, End.refunded, false),
            (End.refunded, End.refunded, true),
        ] {
            let one = first.transaction(1) { $0.facts = facts }
            let two = second.transaction(2) {
                $0.id = "T2"
                $0.webOrderLineItemID = "another"
                $0.facts = facts
            }
            let result = Self.follow(one, [], others: [.init(transaction: two)])
            #expect(result.revocations.count == (isRevoked ? 1 : 0), "\(first) \(second)")
            #expect(result.rejudged.isEmpty)
        }
    }

    @Test("an end under another id of the purchase is its end, until newer facts say that it stands")
    func otherIDs() {
        for (signed, isRevoked) in [(2.0, true), (0.5, false)] {
            var other = End.refunded.transaction(signed)
            other.id = "T/2"
            let result = Self.follow(End.stands.transaction(1), [], others: [.init(transaction: other)])
            #expect(result.revocations.map(\.transactionID) == (isRevoked ? ["T"] : []))
            #expect(result.rejudged.isEmpty)
        }
    }

    @Test("what the event says: what was given, what Apple took back of it, and what was used")
    func event() throws {
        let result = Self.follow(End.third.transaction(1), [], consumed: 50_000)
        let event = try #require(result.events.first { $0.type.rawValue == "purchase.revoked" })
        #expect(event.userID == "u1" && event.transactionID == "T" && event.distinction == "1")
        #expect(
            JSONValue.object(event.body).text == #"{"reason":"refunded","takeBack":true,"percentage":33333,"units":1,"#
                + #""goods":[{"item":"coin","amount":20},{"item":"gem","amount":2}],"consumed":50000,"#
                + #""productId":"gold","environment":"Production","originalTransactionId":"T","#
                + #""at":"\#(LifeCycle.day(1).rfc3339)"}"#)
        // A user who was erased is told nothing, and the entry is written.
        let erased = Self.follow(End.third.transaction(1), [], user: nil)
        #expect(erased.events.isEmpty && erased.revocations == result.revocations)
    }

    @Test("nobody was granted it: no entry; what stands is judged again, with each id that was bought after an end")
    func ungranted() {
        func rejudged(_ transactions: Transaction...) -> [String] {
            let result = ChainFacts(
                appID: "game", environment: Transaction.production, originalID: "T",
                purchases: transactions.map { .init(transaction: $0) }, now: LifeCycle.day(20)
            ).followUp(by: SubscriptionPolicy())
            #expect(result.revocations.isEmpty && result.events.isEmpty && result.told == nil && result.dueAt == nil)
            return result.rejudged
        }
        for end in End.allCases {
            let stands = [.stands, .quarter, .third, .nothingByShare, .upgraded].contains(end)
            #expect(rejudged(end.transaction(1)) == (stands ? ["T"] : []), "\(end)")
        }
        func sword(_ id: String, _ day: Double, ended: Double? = nil) -> Transaction {
            Transaction(
                id: id, originalID: "T", productID: "sword", kind: .nonConsumable,
                environment: Transaction.production, purchasedAt: LifeCycle.day(day),
                revokedAt: ended.map(LifeCycle.day), signedAt: LifeCycle.day(ended ?? day), reason: "PURCHASE")
        }
        #expect(rejudged(sword("T", 0), sword("T2", 6)) == ["T", "T2"])
        #expect(rejudged(sword("T", 0, ended: 5), sword("T2", 6)) == ["T2"])
        #expect(rejudged(sword("T", 0, ended: 7), sword("T2", 6)) == [])
    }
}
