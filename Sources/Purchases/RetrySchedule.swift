/// When a receipt that Apple did not answer is tried again.
///
/// | attempts so far | wait | where it waits |
/// | 0 | 5 s | rung 0 of the ladder on the broker |
/// | 1 | 30 s | rung 1 |
/// | 2 | 2 min | rung 2 |
/// | 3 | 10 min | rung 3 |
/// | 4 and more | 15 min ± 20 % | the row alone |
///
/// After 24 hours and eight attempts it is parked. A configuration may scale every delay by one factor, so that a
/// test of hours takes minutes.
package struct RetrySchedule: Sendable, Equatable {
    package enum Wait: Sendable, Equatable {
        /// Published to this rung; the row is due a rescue delay later, so the net never fires beside the ladder.
        case rung(Int)
        /// No message: the row's due time brings it back.
        case row(Duration)
    }

    package static let rungs: [Duration] = [.seconds(5), .seconds(30), .seconds(120), .seconds(600)]
    package static let afterLadder: Duration = .seconds(900)
    package static let jitter = 0.2
    /// A held receipt is judged again after this, doubling with its age to `heldMax`.
    package static let heldMin: Duration = .seconds(600)
    package static let heldMax: Duration = .seconds(3600)
    /// One that waits for the configuration, a post or a person is judged by that; this is the net under it.
    package static let netDelay: Duration = .seconds(7 * 86_400)
    package static let callLimit: Duration = .seconds(20)

    /// 1 in production.
    package let scale: Double

    package init(scale: Double = 1) {
        self.scale = scale
    }

    /// - Parameters:
    ///   - attempts: how many attempts the row had before the one that just failed.
    ///   - random: in 0 ..< 1.
    package func wait(afterAttempts attempts: Int, random: Double) -> Wait {
        if attempts < Self.rungs.count { return .rung(attempts) }
        return .row(Self.afterLadder * scale * (1 + Self.jitter * (2 * random - 1)))
    }

    /// A rung's message lifetime.
    package func delay(ofRung rung: Int) -> Duration { Self.rungs[rung] * scale }

    /// When the row is due: the net behind the message, or the wait itself.
    package func dueIn(_ wait: Wait, lane: Lane) -> Duration {
        switch wait {
        case .rung(let rung): delay(ofRung: rung) + rescueDelay(lane)
        case .row(let duration): duration
        }
    }

    /// The longest call to Apple, two of which fit into the rescue delay of its queue. Scaled, but not below what a
    /// busy Apple may take.
    package var callLimit: Duration { max(.seconds(1), Self.callLimit * scale) }

    package func rescueDelay(_ lane: Lane) -> Duration { lane.rescueDelay * scale }

    /// When a new row is due for which no message was published.
    package var turnDelay: Duration { .seconds(1) * scale }

    /// A held receipt waits as long as it is old, within bounds: 10 min, 10, 20, 40 min, then every hour.
    package func heldDelay(age: Duration) -> Duration {
        min(max(age, Self.heldMin * scale), Self.heldMax * scale)
    }

    /// - Parameter random: in 0 ..< 1; what was held together does not come back together.
    package func netDelay(random: Double) -> Duration {
        Self.netDelay * scale * (1 + Self.jitter * (2 * random - 1))
    }

    /// One that was given something on trust waits about as long as the ladder would have let it, though no attempt is
    /// counted for it: a quarter of its age, from the first rung to what comes after the last.
    package func confirmDelay(age: Duration) -> Duration {
        min(max(age / 4, Self.rungs[0] * scale), Self.afterLadder * scale)
    }
}
