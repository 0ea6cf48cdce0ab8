import Encoding
import Foundation

/// The goods that Apple has taken back of one granted purchase: so far by its entries, or by its end.
struct TakenBack: Equatable {
    var isEnded = false
    /// Whether the end takes goods back.
    var takesBack = false
    var reason = RevocationEntry.Reason.refunded
    /// Of the price, in thousandths of a percent.
    var percentage = 0
    /// By place in the list of the given goods.
    var amounts: [Int]

    /// Nothing.
    init(of given: [AppPolicy.Goods]) { amounts = given.map { _ in 0 } }

    /// The sum of the entries of a purchase.
    ///
    /// - Parameter given: the goods of its grant, each item once.
    init(_ purchase: ChainFacts.Purchase, given: [AppPolicy.Goods]) {
        self.init(of: given)
        if purchase.grant?.isTakenBackOnTrust == true {
            (isEnded, takesBack, percentage) = (true, true, Revocation.whole)
            amounts = given.map(\.amount)
        }
        for entry in purchase.revocations {
            switch entry.kind {
            case .revoked:
                (isEnded, takesBack, reason) = (true, entry.takesBack, entry.reason)
            case .reinstated:
                // Goods may come back while the purchase stays ended: for a smaller share, or for another reason.
                isEnded = entry.percentage > 0 || entry.takesBack && entry.reason != .refunded
                takesBack = entry.percentage > 0
                reason = entry.reason
            }
            percentage = entry.percentage
            let sign = entry.kind == .revoked ? 1 : -1
            for (index, goods) in given.enumerated() {
                amounts[index] += sign * entry.goods.reduce(0) { $1.isSameItem(as: goods) ? $0 + $1.amount : $0 }
            }
        }
    }

    /// The goods that the present end of a purchase takes back. Nil: Apple's reason is not known here.
    init?(end facts: Transaction, given: [AppPolicy.Goods]) {
        self.init(of: given)
        guard let ending = facts.ending else { return }
        isEnded = true
        switch ending {
        case .unknown: return nil
        case .upgraded: reason = .upgraded
        case .withdrawn where !facts.isRefundOfItsBuyer: reason = .withdrawn
        case .refunded, .refundedInPart, .withdrawn:
            takesBack = !facts.isShared || !given.isEmpty
            let isInPart = facts.revocation.type == Revocation.prorated
            let share = isInPart ? facts.revocation.percentage ?? Revocation.whole : Revocation.whole
            percentage = max(0, min(Revocation.whole, share))
            amounts = given.map { Self.part(percentage, of: $0.amount) }
        }
    }

    /// A share of a number, rounded down. It never overflows.
    private static func part(_ percentage: Int, of amount: Int) -> Int {
        let (wholes, rest) = amount.quotientAndRemainder(dividingBy: Revocation.whole)
        return wholes * percentage + rest * percentage / Revocation.whole
    }
}

extension RevocationEntry {
    /// The effect of an entry on the bonuses that its purchase brought. Their goods are goods of the grant, and go and
    /// come with the grant's other goods.
    ///
    /// | the entry | the bonuses |
    /// | the whole purchase is taken back, with its goods | free: the user may have each again with another purchase |
    /// | the purchase is given back, all or in part | the user's again, but for those that the user has got again |
    /// | a part of the price went back | as before |
    /// | an upgrade, or sharing that ended | as before: the goods stay |
    package enum BonusEffect: Sendable, Equatable {
        case freed, held, none
    }

    /// The database does it, by a trigger (0026_followup_gaps.sql).
    package var bonusEffect: BonusEffect {
        switch kind {
        case .revoked: takesBack && percentage >= Revocation.whole ? .freed : .none
        case .reinstated: .held
        }
    }
}

extension Transaction {
    /// Whether another customer shares the purchase, and Apple gave that customer's money back.
    fileprivate var isRefundOfItsBuyer: Bool {
        guard isShared, !revocation.isWithdrawal, !revocation.isUnknown else { return false }
        return revocation.type != nil || revocation.reason != nil
    }
}

extension AppPolicy.Goods {
    fileprivate func isSameItem(as other: AppPolicy.Goods) -> Bool {
        item.isSameText(as: other.item) && bonus.isSameText(as: other.bonus)
    }
}

extension [AppPolicy.Goods] {
    /// The goods with each item once.
    fileprivate var combined: [AppPolicy.Goods] {
        reduce(into: []) { combined, goods in
            if let index = combined.firstIndex(where: { $0.isSameItem(as: goods) }) {
                combined[index].amount += goods.amount
            } else {
                combined.append(goods)
            }
        }
    }
}

extension ChainPurchase {
    /// An entry that is to be written about a granted purchase, with its event.
    struct Step {
        var entry: RevocationEntry
        /// Nil: the user was erased.
        var event: FollowUp.Event?
    }

    /// The entries that are to be written about the purchase, in the order of the ordinals. Facts from before Apple's
    /// refusal of a grant on trust give nothing back.
    func steps(now: Date) -> [Step] {
        guard var granted, granted.grant?.isDenied != true else { return [] }
        var steps: [Step] = []
        // Two at most: a refund of no share at all is reinstated and begun anew.
        while let step = step(granted, now: now), steps.count < 2 {
            steps.append(step)
            granted.revocations.append(step.entry)
        }
        return steps
    }

    /// The difference between the present end and the entries so far. Nil: there is none, or Apple's reason is not
    /// known here.
    private func step(_ granted: ChainFacts.Purchase, now: Date) -> Step? {
        guard let grant = granted.grant else { return nil }
        let given = grant.goods.combined
        guard let target = TakenBack(end: facts, given: given) else { return nil }
        let sofar = TakenBack(granted, given: given)
        let kind: RevocationEntry.Kind
        switch (sofar.isEnded, target.isEnded) {
        case (false, true): kind = .revoked
        case (true, true) where target.percentage > sofar.percentage: kind = .revoked
        case (true, true) where target.percentage < sofar.percentage: kind = .reinstated
        case (true, false): kind = .reinstated
        default: return nil
        }
        let sign = kind == .revoked ? 1 : -1
        let goods = given.indices.compactMap { index -> AppPolicy.Goods? in
            var goods = given[index]
            goods.amount = sign * (target.amounts[index] - sofar.amounts[index])
            return goods.amount > 0 ? goods : nil
        }
        // A reversal has no date of Apple's but the one on which Apple signed it.
        let at = facts.revokedAt ?? facts.signedAt ?? now
        let entry = RevocationEntry(
            transactionID: granted.transaction.id, ordinal: (granted.revocations.last?.ordinal ?? 0) + 1, kind: kind,
            reason: target.isEnded ? target.reason : sofar.reason,
            takesBack: kind == .revoked ? target.takesBack : sofar.takesBack, percentage: target.percentage,
            goods: goods, at: at, signedAt: facts.signedAt)
        let units = sign * (grant.units(of: target) - grant.units(of: sofar))
        return Step(entry: entry, event: event(entry, units: units, granted, grant))
    }

    private func event(
        _ entry: RevocationEntry, units: Int, _ granted: ChainFacts.Purchase, _ grant: ChainFacts.Grant
    ) -> FollowUp.Event? {
        guard let userID = grant.userID else { return nil }
        let transaction = granted.transaction
        var body: [JSONValue.Member] = [
            .init("reason", .string(entry.reason.rawValue)), .init("takeBack", .bool(entry.takesBack)),
            .init("percentage", .integer(entry.percentage)), .init("units", .integer(units)),
            .init("goods", .goods(entry.goods)),
        ]
        if let consumed = granted.consumed { body.append(.init("consumed", .integer(consumed))) }
        // The goods are empty because the former system knows them, and not because there are none.
        if grant.isImported { body.append(.init("imported", .bool(true))) }
        let bonuses = grant.goods.compactMap(\.bonus)
        if entry.bonusEffect == .freed, !bonuses.isEmpty {
            let names = Set(bonuses).sorted().map { JSONValue.string($0) }
            body.append(.init("freedBonuses", .array(names)))
        }
        body += [
            .init("productId", .string(transaction.productID)),
            .init("environment", .string(transaction.environment)),
            .init("originalTransactionId", .string(transaction.originalID)),
            .init("at", .string(entry.at.rfc3339)),
        ]
        return FollowUp.Event(
            type: entry.kind.eventType, userID: userID, transactionID: entry.transactionID,
            distinction: String(entry.ordinal), receiptID: grant.receiptID, body: body)
    }
}

extension ChainFacts.Grant {
    /// The number of whole units of the bought quantity that were taken back.
    fileprivate func units(of takenBack: TakenBack) -> Int {
        takenBack.takesBack ? quantity * takenBack.percentage / Revocation.whole : 0
    }
}
