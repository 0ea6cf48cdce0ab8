package import Foundation

/// Whether Apple's notifications about one app and environment have stopped: a decision by the times of the
/// notifications (P38).
///
/// Silence is only a suspicion: a quiet night sounds like a broken address. So a worker asks Apple for a test
/// notification, and only the test's absence is an alarm. For an app without credentials for the App Store Server API
/// no worker can ask: the alarm comes after a silence ten times as long as usual.
package struct NotificationSilence: Sendable, Equatable {
    /// How long the silence lasts beyond the usual one until Apple is asked, in seconds.
    package static let beyondUsual: TimeInterval = 3600
    /// How long Apple has to bring the test, in seconds.
    package static let testWithin: TimeInterval = 600
    /// The time between two tests while everything that is asked for comes, in seconds.
    package static let testEvery: TimeInterval = 86_400
    /// The time between two tests while nothing comes, in seconds.
    package static let testAgainAfter: TimeInterval = 3600
    /// The usual silence of an app with too few days to know one, in seconds.
    package static let unknownGap: TimeInterval = 7 * 86_400
    /// A silence that no chance explains, as a multiple of the usual one.
    package static let gapsMax: Double = 10
    /// How many of the last 30 days must have ended a gap before a gap is usual.
    package static let daysMin = 5

    /// The facts about the app and environment.
    package struct Facts: Sendable, Equatable {
        package var now: Date
        /// The last notification of any type, tests included. Nil: none ever came.
        package var heardAt: Date?
        /// The usual longest silence of a day, in seconds. Nil: not known.
        package var usualGap: TimeInterval?
        /// The number of days that were counted.
        package var days: Int
        /// When Apple was last asked for a test, and took the request or said that there is no URL.
        package var askedAt: Date?
        /// Whether Apple can be asked: the app has credentials, and they are neither halted nor paused.
        package var canAsk: Bool
        /// Whether the app's settings say that notifications come.
        package var isExpected: Bool

        package init(
            now: Date, heardAt: Date?, usualGap: TimeInterval?, days: Int, askedAt: Date?, canAsk: Bool,
            isExpected: Bool = false
        ) {
            self.now = now
            self.heardAt = heardAt
            self.usualGap = usualGap
            self.days = days
            self.askedAt = askedAt
            self.canAsk = canAsk
            self.isExpected = isExpected
        }
    }

    /// Whether Apple is asked for a test now.
    package var asks = false
    /// Whether notifications should have come and did not: the alarm.
    package var isSilent = false

    package init(_ facts: Facts) {
        guard let heardAt = facts.heardAt ?? (facts.isExpected && facts.canAsk ? .distantPast : nil) else { return }
        if let askedAt = facts.askedAt, askedAt > heardAt {
            let waited = facts.now.timeIntervalSince(askedAt)
            isSilent = waited >= Self.testWithin
            asks = facts.canAsk && waited >= Self.testAgainAfter
            return
        }
        let silence = facts.now.timeIntervalSince(heardAt)
        let usual = facts.days >= Self.daysMin ? facts.usualGap : nil
        // A longer silence has another reason than chance, at any time of the day or week.
        let most = usual.map { max(Self.gapsMax * $0, $0 + Self.beyondUsual) } ?? .infinity
        guard facts.canAsk else {
            isSilent = silence > most
            return
        }
        let isRested = facts.askedAt.map { facts.now.timeIntervalSince($0) >= Self.testEvery } ?? true
        asks = silence > (usual ?? Self.unknownGap) + Self.beyondUsual && (isRested || silence > most)
        // Apple could not be asked, for an hour.
        isSilent = silence > most + Self.beyondUsual
    }
}
