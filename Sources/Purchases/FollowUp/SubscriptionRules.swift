package import Foundation

extension ChainFacts {
    /// The present status of the subscription. Nil: the chain has no period.
    package func status(by policy: SubscriptionPolicy) -> SubscriptionStatus? {
        Self.status(of: purchases, renewal: renewal, isContinued: isContinued, by: policy, at: now)
    }

    /// The status of a subscription at a moment. Nil: there is no period among the purchases.
    ///
    /// - Parameters:
    ///   - purchases: of one chain. Without its latest transactions the answer is about the past. Of grants one thing
    ///     decides: a period whose grant Apple denied is none. Of a period that has several ids, the status names the
    ///     id of its grant. Entries of revocations are not read.
    ///   - renewal: the newest facts about the chain's next renewal, if there are any.
    ///   - isContinued: whether another chain continues this one.
    package static func status(
        of purchases: [Purchase], renewal: Renewal?, isContinued: Bool, by policy: SubscriptionPolicy, at now: Date
    ) -> SubscriptionStatus? {
        SubscriptionRules(
            ChainPurchase.all(purchases, isContinued: isContinued), renewal: renewal, isContinued: isContinued,
            policy: policy
        )?.status(at: now)
    }
}

extension SubscriptionStatus {
    /// How long after an end by the clock alone the end is believed, and how long after the first look that found it
    /// the second look is, in seconds. Apple may have charged a period whose notification is on its way.
    package static let believedAfter: TimeInterval = 5 * 60
    /// How long Apple tries to charge at most after a period's end, in seconds: 60 days (AppleFacts, section 7).
    package static let retriedWithin: TimeInterval = 60 * 86_400
    /// The same within a commitment: 90 days. Apple gives no grace there.
    package static let retriedWithinCommitment: TimeInterval = 90 * 86_400

    /// Whether nothing but the clock says that the subscription is over. True from the end on, also while the end is
    /// not believed yet.
    func isOverByClock(at now: Date) -> Bool { !isEndStated && accessUntil <= now }
}

/// The periods of one chain, with the states that the clock gives them (HearingApple, "The state of a subscription").
struct SubscriptionRules {
    /// One period.
    struct Period {
        var purchase: ChainPurchase
        /// Its end by what is known now: by Apple's date, by the purchase of another product, or by Apple's taking
        /// back.
        var until: Date

        var start: Date { purchase.purchasedAt }
        var ending: Transaction.Ending? { purchase.facts.ending }
    }

    /// In the order of their purchase; never empty.
    let periods: [Period]
    /// Apple's facts about the renewal after the newest period. Nil: nothing, or nothing since that period was charged.
    let renewal: Renewal?
    let isContinued: Bool
    let policy: SubscriptionPolicy

    var newest: Period { periods[periods.count - 1] }
    /// The end of the commitment that the newest period belongs to. Nil: there is none, or no source has named it.
    var commitmentEnd: Date? { newest.purchase.facts.commitmentEnd }
    /// How long after the newest period's end Apple tries to charge at most, in seconds.
    private var retriedWithin: TimeInterval {
        let isCommitted = renewal?.commitment != nil || commitmentEnd != nil
        return isCommitted ? SubscriptionStatus.retriedWithinCommitment : SubscriptionStatus.retriedWithin
    }
    /// The grant of the newest period that was granted, without those that Apple denied.
    var newestGrant: ChainFacts.Grant? { periods.compactMap { $0.purchase.granted?.grant }.last { !$0.isDenied } }

    /// Nil: there is no period.
    init?(_ purchases: [ChainPurchase], renewal: Renewal?, isContinued: Bool, policy: SubscriptionPolicy) {
        let bought = purchases.filter { $0.facts.isPeriod && !$0.isDenied }
        guard let last = bought.last else { return nil }
        periods = bought.indices.map { index in
            let (purchase, facts) = (bought[index], bought[index].facts)
            var until = facts.expiresAt ?? purchase.purchasedAt
            // A subscription has one product at a time, whether or not Apple's word about the former one is known.
            if let next = bought[(index + 1)...].first(where: { $0.facts.productID != facts.productID }) {
                until = min(until, next.purchasedAt)
            }
            if facts.ending != nil { until = min(until, facts.revokedAt ?? facts.signedAt ?? until) }
            return Period(purchase: purchase, until: until)
        }
        let chargedAt = last.listed.map(\.transaction.chargedAt).min() ?? last.purchasedAt
        self.renewal = renewal.flatMap { $0.signedAt >= chargedAt ? $0 : nil }
        self.isContinued = isContinued
        self.policy = policy
    }

    func status(at now: Date) -> SubscriptionStatus {
        let running = periods.filter { $0.ending == nil && $0.until > now }
        if let period = running.last(where: { $0.start <= now }) ?? running.last {
            // A period that was charged ahead goes on where this one ends.
            let until = running.reduce(period.until) { until, next in
                next.start <= until ? max(until, next.until) : until
            }
            return status(.active, of: period, until: until, isEntitled: true, isEndStated: false)
        }
        switch newest.ending {
        case .refunded, .refundedInPart, .withdrawn, .unknown:
            return status(.revoked, of: newest, until: newest.until, isEntitled: false)
        case .upgraded: return status(.replaced, of: newest, until: newest.until, isEntitled: false)
        case nil: return statusAfterEnd(at: now)
        }
    }

    /// The status after the newest period's end, which Apple has not taken back.
    private func statusAfterEnd(at now: Date) -> SubscriptionStatus {
        let end = newest.until
        if let renewal {
            if let graceEnd, now < graceEnd {
                let isEntitled = policy.graceEntitles
                return status(
                    .inGrace, of: newest, until: isEntitled ? renewal.graceUntil ?? end : end, isEntitled: isEntitled)
            }
            if renewal.isInBillingRetry, now < end + retriedWithin {
                let isEntitled = policy.retryEntitles
                return status(
                    .inRetry, of: newest, until: isEntitled ? end + retriedWithin : end,
                    isEntitled: isEntitled)
            }
        }
        if isContinued { return status(.replaced, of: newest, until: end, isEntitled: false) }
        if renewal?.expirationIntent != nil { return status(.expired, of: newest, until: end, isEntitled: false) }
        let isBelieved = now >= end + SubscriptionStatus.believedAfter
        return status(
            isBelieved ? .expired : .active, of: newest, until: end, isEntitled: !isBelieved, isEndStated: false)
    }

    /// The time when the state after a grace period is believed: the end of the grace period if Apple has said since
    /// what comes next, else some minutes later. Nil: there is no grace period.
    private var graceEnd: Date? {
        guard let renewal, let graceUntil = renewal.graceUntil else { return nil }
        return renewal.signedAt < graceUntil ? graceUntil + SubscriptionStatus.believedAfter : graceUntil
    }

    private func status(
        _ state: SubscriptionState, of period: Period, until: Date, isEntitled: Bool, isEndStated: Bool = true
    ) -> SubscriptionStatus {
        SubscriptionStatus(
            state: state, transactionID: period.purchase.id, productID: period.purchase.facts.productID,
            accessUntil: until, isEntitled: isEntitled, isEndStated: isEndStated)
    }

    /// The next moment at which the clock changes the status, or begins to say that it is over. Nil: there is none.
    func nextChange(after now: Date) -> Date? {
        let present = status(at: now)
        let isOver = present.isOverByClock(at: now)
        let end = newest.until
        let moments =
            periods.flatMap { [$0.start, $0.until] }
            + [end + SubscriptionStatus.believedAfter, end + retriedWithin, graceEnd].compactMap(
                \.self)
        return moments.filter { $0 > now }.sorted().first {
            let later = status(at: $0)
            return later != present || later.isOverByClock(at: $0) != isOver
        }
    }
}
