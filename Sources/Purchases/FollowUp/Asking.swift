import Encoding
package import Foundation

/// How an app's chains are asked about at Apple (Sweeps, "Subscriptions").
package struct AskPolicy: Sendable, Equatable {
    /// How often an ended chain is asked about. Nil: never, because the customer's history is asked instead.
    package var endedEvery: Duration?
    /// Scales every delay; 1 in production.
    package var scale: Double

    package init(endedEvery: Duration? = nil, scale: Double = 1) {
        self.endedEvery = endedEvery
        self.scale = scale
    }
}

/// Apple's answers about one period of a chain.
package struct Asked: Sendable, Equatable {
    /// The last answer.
    package var at: Date
    /// The end of the period that the answers were about, by Apple's date.
    package var end: Date
    /// How many answers there were; at least 1.
    package var count: Int

    package init(at: Date, end: Date, count: Int) {
        self.at = at
        self.end = end
        self.count = count
    }
}

/// A rule that says when a worker asks Apple about a chain next. The follow-up and the sweep use the same rule, so the
/// time does not depend on which of them wrote last.
///
/// | the chain | is asked about next |
/// | --- | --- |
/// | runs | shortly after its end, before the clock alone says that it ended |
/// | is over by the clock alone, not asked about since | shortly after its end |
/// | is over by the clock alone, answered n times | ``intervals``[n - 1] after the last answer; the last one repeats |
/// | is in grace or in billing retry | a day after Apple's last word |
/// | has ended by Apple's word, or is over for 60 days | each ``AskPolicy/endedEvery`` of these 60 days, else never |
package enum Asking {
    /// The earliest and the latest first question after an end, in seconds.
    package static let first: ClosedRange<TimeInterval> = 30...150
    /// In seconds.
    package static let intervals: [TimeInterval] = [180, 600, 3600, 6 * 3600, day]
    /// How much of an interval the chain's own share changes at most, in each direction.
    package static let jitter = 0.1
    /// After this many failures in a row each further delay is twice the one before, up to a day.
    package static let failuresUntilGrowth = RetrySchedule.retryDelays.count
    private static let day: TimeInterval = 86_400

    /// - Parameters:
    ///   - status: by the facts that are known now.
    ///   - end: of the newest period, by Apple's date.
    ///   - lastWord: when Apple last signed facts about the renewal. Nil: never since the period was charged.
    ///   - asked: Apple's answers about some period. Those about another period do not count.
    ///   - id: the chain's; it chooses the chain's share of the jitter.
    /// - Returns: nil where only new facts bring a question.
    package static func next(
        _ status: SubscriptionStatus, end: Date, lastWord: Date?, asked: Asked?, of id: String, by policy: AskPolicy
    ) -> Date? {
        let answered = asked.flatMap { $0.end.isSame(as: end) ? $0 : nil }
        let own = share(of: id)
        func after(_ date: Date, _ seconds: TimeInterval) -> Date {
            date + seconds * (1 + jitter * (2 * own - 1)) * policy.scale
        }
        let isForgotten = status.accessUntil + SubscriptionStatus.retriedWithin
        switch status.state {
        case .active, .expired:
            guard status.state == .active || !status.isEndStated else { break }
            let wait = first.lowerBound + own * (first.upperBound - first.lowerBound)
            let firstAt = status.accessUntil + wait * policy.scale
            guard let answered, answered.at >= status.accessUntil else { return firstAt }
            let next = max(firstAt, after(answered.at, intervals[min(answered.count, intervals.count) - 1]))
            if next < isForgotten { return next }
        case .inGrace, .inRetry:
            let word = [lastWord, asked?.at].compactMap(\.self).max() ?? end
            return after(word, day)
        case .revoked, .replaced: break
        }
        guard let every = policy.endedEvery else { return nil }
        let next = after(max(status.accessUntil, asked?.at ?? .distantPast), every.inSeconds)
        return next < isForgotten ? next : nil
    }

    /// How long after a question without an answer the next one is, not scaled.
    ///
    /// - Parameter failures: in a row, this one included; at least 1.
    package static func delay(afterFailures failures: Int, of id: String) -> Duration {
        guard failures > failuresUntilGrowth else { return RetrySchedule.retryDelays[max(1, failures) - 1] }
        let doublings = min(failures - failuresUntilGrowth - 1, 10)
        let doubled = RetrySchedule.afterRetryQueues.inSeconds * Double(1 << doublings)
        return .seconds(min(doubled, day) * (1 + jitter * (2 * share(of: id) - 1)))
    }

    /// A number in 0 ..< 1 that every process computes alike from a chain's id: FNV-1a.
    static func share(of id: String) -> Double {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325
        for byte in id.utf8 { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 }
        // The high bits of the product of a short text hardly differ.
        hash ^= hash >> 32
        hash = hash &* 0x9e37_79b9_7f4a_7c15
        return Double(hash >> 11) / Double(1 << 53)
    }
}

extension Transaction {
    /// Whether no period is missing between the newest known one and this one, by which Apple answered.
    ///
    /// - Parameter known: the newest known period of the chain. Nil: none is known.
    package func isNextPeriod(after known: Transaction?) -> Bool {
        guard let known, let end = known.expiresAt else { return false }
        if id.isSameText(as: known.id) || expiresAt?.isSame(as: end) == true { return true }
        // Apple may charge a period some time before it begins. A period of the sandbox lasts minutes.
        let margin = min(3600, end.timeIntervalSince(known.purchasedAt) / 2)
        return productID.isSameText(as: known.productID) && abs(purchasedAt.timeIntervalSince(end)) <= margin
    }
}

extension ChainFacts {
    /// When a worker asks about a chain next after an answer of Apple's, and the end of the newest period. Nil: the
    /// answer has no period.
    ///
    /// - Parameters:
    ///   - purchases: of the chain, as Apple answered.
    ///   - before: the answers before this one.
    package static func nextQuestion(
        of originalID: String, after purchases: [Purchase], renewal: Renewal?, asked before: Asked?,
        by policy: SubscriptionPolicy, at now: Date
    ) -> (at: Date?, end: Date)? {
        let listed = ChainPurchase.all(purchases, isContinued: false)
        guard let rules = SubscriptionRules(listed, renewal: renewal, isContinued: false, policy: policy) else {
            return nil
        }
        let end = rules.newest.purchase.facts.expiresAt ?? rules.newest.until
        let count = before.flatMap { $0.end.isSame(as: end) ? $0.count : nil } ?? 0
        let next = Asking.next(
            rules.status(at: now), end: end, lastWord: rules.renewal?.signedAt,
            asked: Asked(at: now, end: end, count: count + 1), of: originalID, by: policy.asks)
        return (next, end)
    }
}

extension Date {
    /// Whether both are one date of Apple's: sources of Apple's differ by less than a second, and so does a stored
    /// date.
    package func isSame(as other: Date) -> Bool { abs(timeIntervalSince(other)) < 1 }
}
