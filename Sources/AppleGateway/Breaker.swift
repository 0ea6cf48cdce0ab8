import DequeModule

/// Stops asking Apple when asking is in vain. A pure value: time is a parameter.
///
/// The breaker opens when half or more of at least 20 calls within 10 s failed. It also opens when 8 calls in a row
/// failed and no call succeeded for 10 s, because a host that hangs is asked too rarely for the first rule. An open
/// breaker then lets out one probe at a time, after 5 s, doubling to 60 s.
package struct Breaker: Sendable {
    package enum State: Sendable, Equatable {
        case closed
        case open(until: ContinuousClock.Instant)
        /// One call may go out as a probe.
        case halfOpen
    }

    package static let window: Duration = .seconds(10)
    package static let callsMin = 20
    package static let rowMin = 8
    /// Calls that are remembered at most.
    package static let callsMax = 1000
    package static let pauseMin: Duration = .seconds(5)
    package static let pauseMax: Duration = .seconds(60)

    package private(set) var state: State = .closed
    private var calls: Deque<(at: ContinuousClock.Instant, failed: Bool)> = []
    private var failures = 0
    /// Failures since the last call that succeeded.
    private var row = 0
    /// When a call last succeeded, or when the first call was asked for.
    private var goodAt: ContinuousClock.Instant?
    private var pause = Self.pauseMin
    private let scale: Double

    /// - Parameter scale: multiplies the pauses.
    package init(scale: Double = 1) {
        self.scale = scale
    }

    package var isOpen: Bool {
        if case .open = state { return true }
        return false
    }

    /// Makes an open breaker half-open when its pause is over. The owner must call this now and then.
    package mutating func tick(_ now: ContinuousClock.Instant) {
        if case .open(let until) = state, until <= now { state = .halfOpen }
        if goodAt == nil { goodAt = now }
    }

    /// - Parameter failed: Apple could not be reached, did not answer in time, or answered 5xx or nonsense. An answer
    ///   that we do not like is no failure.
    package mutating func record(failed: Bool, at now: ContinuousClock.Instant) {
        switch state {
        case .open: return  // A call that began before.
        case .halfOpen:
            if failed {
                pause = min(pause * 2, Self.pauseMax)
                open(now)
            } else {
                pause = Self.pauseMin
                state = .closed
            }
        case .closed:
            row = failed ? row + 1 : 0
            goodAt = failed ? goodAt ?? now : now
            calls.append((now, failed))
            failures += failed ? 1 : 0
            let oldest = now - Self.window
            while let first = calls.first, first.at < oldest || calls.count > Self.callsMax {
                failures -= first.failed ? 1 : 0
                calls.removeFirst()
            }
            let isSilent = row >= Self.rowMin && goodAt.map { now - $0 >= Self.window } ?? false
            if isSilent || calls.count >= Self.callsMin && failures * 2 >= calls.count { open(now) }
        }
    }

    private mutating func open(_ now: ContinuousClock.Instant) {
        state = .open(until: now + pause * scale)
        calls = []
        failures = 0
        row = 0
        goodAt = nil
    }
}
