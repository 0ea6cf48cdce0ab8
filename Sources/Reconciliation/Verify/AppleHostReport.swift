package import AppStore

/// How one process sees one of Apple's hosts: a row of `apple_hosts`, and three metrics.
package struct AppleHostReport: Sendable, Equatable {
    package enum BreakerWord: String, Sendable {
        case closed
        case halfOpen = "half_open"
        case open

        /// As a gauge.
        var number: Int {
            switch self {
            case .closed: 0
            case .halfOpen: 1
            case .open: 2
            }
        }
    }

    package let host: AppleHost
    package let breaker: BreakerWord
    /// Until the next probe; zero unless open.
    package let probeIn: Duration
    package let concurrencyLimit: Int
    package let inFlight: Int
    /// Let out since the report before.
    package let calls: Int

    /// - Parameter calls: let out since the report before.
    package init(_ host: AppleHost, _ state: AppleHostState, calls: Int, at now: ContinuousClock.Instant) {
        self.host = host
        self.calls = calls
        concurrencyLimit = state.limit.calls
        inFlight = state.inFlight
        switch state.breaker.state {
        case .closed: (breaker, probeIn) = (.closed, .zero)
        case .halfOpen: (breaker, probeIn) = (.halfOpen, .zero)
        case .open(let until): (breaker, probeIn) = (.open, max(.zero, until - now))
        }
    }

    /// Nothing happens there and nothing is wrong: nobody need hear of it.
    var isQuiet: Bool { calls == 0 && inFlight == 0 && breaker == .closed }
}
