package import Foundation

/// Whether a kind of news that always arrives has stopped arriving: a decision by the arrivals of the last whole hours,
/// and of the same hours of the four weeks before (L4).
///
/// The weekday and the hour of the day are in the comparison. A holiday, a promotion or an outage in one of the four
/// weeks does not count, because three weeks must agree. A holiday today does not count either: people then buy less,
/// and not ten times less. An app with fewer arrivals than ``fewest`` in three days is never late here:
/// ``NotificationSilence`` hears quiet apps.
package struct Timeliness: Sendable, Equatable {
    /// How many arrivals are usual in a span that is judged. With fewer, chance explains a span without any.
    package static let fewest = 100
    /// A span with less than this part of the usual arrivals is late.
    package static let part = 10
    /// How many of the four weeks must have had as many arrivals.
    package static let weeksMin = 3
    /// The time since the end of the span, in seconds, after which the sums are behind and say nothing.
    package static let behindMax: TimeInterval = 3 * 3600

    /// One span of hours of one kind of news.
    package struct Facts: Sendable, Equatable {
        package var now: Date
        /// The end of the span, a whole hour: all arrivals before it are summed.
        package var until: Date
        /// The arrivals of the span.
        package var arrivals: Int
        /// The arrivals of the same hours one to four weeks before. A week without any arrival, also one before the app
        /// was here, has 0.
        package var weeks: [Int]

        package init(now: Date, until: Date, arrivals: Int, weeks: [Int]) {
            self.now = now
            self.until = until
            self.arrivals = arrivals
            self.weeks = weeks
        }
    }

    /// Whether arrivals that were always there are missing now.
    package let isLate: Bool

    package init(_ facts: Facts) {
        let usual = facts.weeks.sorted(by: >).dropFirst(Self.weeksMin - 1).first ?? 0
        isLate =
            facts.now.timeIntervalSince(facts.until) <= Self.behindMax && usual >= Self.fewest
            && facts.arrivals < usual / Self.part
    }
}
