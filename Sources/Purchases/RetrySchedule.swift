/// When a receipt that Apple did not answer is tried again.
///
/// | attempts so far | wait | where it waits |
/// | 0 | 5 s | retry queue 0 of the broker |
/// | 1 | 30 s | retry queue 1 |
/// | 2 | 2 min | retry queue 2 |
/// | 3 | 10 min | retry queue 3 |
/// | 4 and more | 15 min ± 20 % | the row alone |
///
/// After 24 hours and eight attempts the receipt is parked. A configuration may scale every delay by one factor, so
/// that a test of hours takes minutes.
package struct RetrySchedule: Sendable, Equatable {
    package enum Wait: Sendable, Equatable {
        /// The worker publishes the receipt's id to this retry queue. The row is due a rescue delay after the queue's
        /// delay, so the scheduler never publishes an id that waits in a retry queue.
        case retryQueue(Int)
        /// No message: the scheduler publishes the receipt's id when the row is due.
        case row(Duration)
    }

    package static let retryDelays: [Duration] = [.seconds(5), .seconds(30), .seconds(120), .seconds(600)]
    package static let afterRetryQueues: Duration = .seconds(900)
    package static let jitter = 0.2
    /// A held receipt is judged again after this time, which doubles with the receipt's age up to ``heldMax``.
    package static let heldMin: Duration = .seconds(600)
    package static let heldMax: Duration = .seconds(3600)
    /// The wait of a receipt that is held for the configuration, a post or a person. Their change makes the receipt due
    /// earlier; this wait is for a change that was missed.
    package static let fallbackDelay: Duration = .seconds(7 * 86_400)
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
        if attempts < Self.retryDelays.count { return .retryQueue(attempts) }
        return .row(Self.afterRetryQueues * scale * (1 + Self.jitter * (2 * random - 1)))
    }

    /// How long a retry queue holds a message.
    package func delay(ofRetryQueue index: Int) -> Duration { Self.retryDelays[index] * scale }

    /// How long until a row is due that no message leads to.
    ///
    /// - Parameter random: as in ``wait(afterAttempts:random:)``.
    package func delay(afterAttempts attempts: Int, random: Double) -> Duration {
        switch wait(afterAttempts: attempts, random: random) {
        case .retryQueue(let index): delay(ofRetryQueue: index)
        case .row(let wait): wait
        }
    }

    /// How long until the row is due: a rescue delay after the retry queue gives the message back, or the wait itself.
    package func dueIn(_ wait: Wait, lane: Lane) -> Duration {
        switch wait {
        case .retryQueue(let index): delay(ofRetryQueue: index) + rescueDelay(lane)
        case .row(let duration): duration
        }
    }

    /// The longest time that one call to Apple may take. Two such calls fit into the rescue delay of the lane. Scaled,
    /// but at least 1 s, because a busy Apple may take so long.
    package var callLimit: Duration { max(.seconds(1), Self.callLimit * scale) }

    package func rescueDelay(_ lane: Lane) -> Duration { lane.rescueDelay * scale }

    /// How long until a new row is due for which ingest published no message (``Submission/waitsForTurn``).
    package var turnDelay: Duration { .seconds(1) * scale }

    /// A held receipt waits as long as it is old, within bounds: 10 min, 10, 20, 40 min, then every hour.
    package func heldDelay(age: Duration) -> Duration {
        min(max(age, Self.heldMin * scale), Self.heldMax * scale)
    }

    /// - Parameter random: in 0 ..< 1, so that receipts held at the same time do not become due at the same time.
    package func fallbackDelay(random: Double) -> Duration {
        Self.fallbackDelay * scale * (1 + Self.jitter * (2 * random - 1))
    }

    /// The wait of a receipt that was given something on trust: a quarter of its age, from the delay of
    /// the first retry queue to ``afterRetryQueues``. That is about as long as with retries, though no attempt is
    /// counted for the receipt.
    package func confirmDelay(age: Duration) -> Duration {
        min(max(age / 4, Self.retryDelays[0] * scale), Self.afterRetryQueues * scale)
    }
}
