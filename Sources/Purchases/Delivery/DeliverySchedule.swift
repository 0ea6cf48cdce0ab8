package import Foundation

/// When an event that a receiver did not take is sent again.
///
/// The gaps: 5 s, 30 s, 2 min, 10 min, 30 min, 1 h, 2 h, 4 h, then every 8 h, ± 20 %. After 30 days and eight attempts
/// the delivery is parked. One factor scales every gap, and the 30 days.
package struct DeliverySchedule: Sendable, Equatable {
    package static let gaps: [Duration] = [5, 30, 120, 600, 1800, 3600, 7200, 14_400, 28_800].map { .seconds($0) }
    package static let jitter = 0.2
    /// A delivery is parked after this time *and* ``Parking/attemptsMin`` attempts: an endpoint that was suspended for
    /// long is tried as often as any other.
    package static let parkedAfter: Duration = .seconds(30 * 86_400)

    /// 1 in production.
    package let scale: Double

    package init(scale: Double = 1) {
        self.scale = scale
    }

    /// How long until the event is sent again; nil: never, the delivery is parked.
    ///
    /// - Parameters:
    ///   - attempts: how many attempts of this event had failed before the one that just failed.
    ///   - failingSince: when the first of them failed; nil: this is the first.
    ///   - retryAfter: what the receiver asked for. It lengthens the gap, and never shortens it. It is the receiver's
    ///     time, so no scale changes it.
    ///   - random: in 0 ..< 1.
    package func retryIn(
        afterAttempts attempts: Int, failingSince: Date?, now: Date, retryAfter: Duration?, random: Double
    ) -> Duration? {
        if let failingSince, attempts + 1 >= Parking.attemptsMin,
            now.timeIntervalSince(failingSince) >= Self.parkedAfter.inSeconds * scale
        {
            return nil
        }
        let gap = Self.gaps[min(max(0, attempts), Self.gaps.count - 1)]
        return max(gap * scale * (1 + Self.jitter * (2 * random - 1)), retryAfter ?? .zero)
    }
}
