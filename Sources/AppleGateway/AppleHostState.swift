/// What a process knows of one of Apple's hosts: whether to ask there, and how many at once. A pure value: time is a
/// parameter.
package struct AppleHostState: Sendable {
    /// What came of a call that was let through.
    package enum Outcome: Sendable {
        /// Whatever Apple said.
        case answered
        /// Apple said 429.
        case limited
        /// Not reached, not in time, 5xx or nonsense.
        case failed
        /// It was not made, or was given up by us: says nothing.
        case none
    }

    package private(set) var breaker: Breaker
    package private(set) var limit: ConcurrencyLimit
    package private(set) var inFlight = 0
    /// Counts the times the breaker opened. What was asked before says nothing afterwards, and is no probe.
    private var era = 0
    private var inFlightOfEra = 0

    package init(callsMax: Int, scale: Double) {
        breaker = Breaker(scale: scale)
        limit = ConcurrencyLimit(callsMax: callsMax)
    }

    /// Whether asking is in vain for now: the breaker is open, or a probe is finding out.
    package mutating func isDown(_ now: ContinuousClock.Instant) -> Bool {
        breaker.tick(now)
        switch breaker.state {
        case .closed: return false
        case .open: return true
        case .halfOpen: return inFlightOfEra > 0
        }
    }

    /// How many calls may begin now.
    package mutating func room(_ now: ContinuousClock.Instant) -> Int {
        guard !isDown(now) else { return 0 }
        return breaker.state == .closed ? max(0, limit.calls - inFlight) : 1
    }

    /// A call begins. Returns what ``end(_:_:at:)`` needs, once, whatever comes of it. In a half-open breaker this is
    /// the probe; one that ends as `none` leaves the place to the next.
    package mutating func begin() -> Int {
        inFlight += 1
        inFlightOfEra += 1
        return era
    }

    package mutating func end(_ era: Int, _ outcome: Outcome, at now: ContinuousClock.Instant) {
        defer { inFlight -= 1 }
        guard era == self.era else { return }
        inFlightOfEra -= 1
        if case .none = outcome { return }
        let before = breaker.state
        breaker.record(failed: outcome == .failed, at: now)
        limit.record(failed: outcome != .answered, inFlight: inFlight)
        if breaker.isOpen {
            self.era += 1
            inFlightOfEra = 0
        } else if before == .halfOpen {
            // It is back: how much it takes is to be learned again.
            limit = ConcurrencyLimit(callsMax: limit.callsMax)
        }
    }
}
