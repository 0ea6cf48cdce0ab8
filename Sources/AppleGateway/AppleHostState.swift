/// What a process knows of one of Apple's hosts: whether to ask the host, and with how many calls at once. A pure
/// value: time is a parameter.
package struct AppleHostState: Sendable {
    /// The outcome of a call that was let out.
    package enum Outcome: Sendable {
        /// Apple answered, whatever the answer.
        case answered
        /// Apple said 429.
        case limited
        /// Apple was not reached, did not answer in time, or answered 5xx or nonsense.
        case failed
        /// The call was not made, or we gave it up: it says nothing.
        case none
    }

    package private(set) var breaker: Breaker
    package private(set) var limit: ConcurrencyLimit
    package private(set) var inFlight = 0
    /// Counts the times the breaker opened. A call that began in an earlier era says nothing about the host, and is no
    /// probe.
    private var era = 0
    private var inFlightOfEra = 0

    package init(callsMax: Int, scale: Double) {
        breaker = Breaker(scale: scale)
        limit = ConcurrencyLimit(callsMax: callsMax)
    }

    /// Whether a call would be refused now: the breaker is open, or a probe is under way.
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

    /// Begins a call. Returns what the caller must pass to ``end(_:_:at:)`` once, whatever comes of the call. In a
    /// half-open breaker the call is the probe; a probe that ends as `none` leaves its place to the next call.
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
            // The host is back, and how many calls it takes must be learned again.
            limit = ConcurrencyLimit(callsMax: limit.callsMax)
        }
    }
}
