package import AppStore

/// The state of one of Apple's hosts as one process sees it: a row of `apple_hosts`, and three metrics.
package struct AppleHostReport: Sendable, Equatable {
    package enum BreakerState: String, Sendable {
        case closed
        case halfOpen = "half_open"
        case open

        /// The state as the value of a gauge.
        package var number: Int {
            switch self {
            case .closed: 0
            case .halfOpen: 1
            case .open: 2
            }
        }
    }

    package let host: AppleHost
    package let breaker: BreakerState
    /// The time until the next probe; zero unless open.
    package let probeIn: Duration
    package let concurrencyLimit: Int
    package let inFlight: Int
    /// How many calls were made since the last report.
    package let calls: Int

    package init(
        host: AppleHost, breaker: BreakerState, probeIn: Duration, concurrencyLimit: Int, inFlight: Int, calls: Int
    ) {
        self.host = host
        self.breaker = breaker
        self.probeIn = probeIn
        self.concurrencyLimit = concurrencyLimit
        self.inFlight = inFlight
        self.calls = calls
    }

    /// Whether the process makes no calls there and nothing is wrong: the report may be left out.
    package var isQuiet: Bool { calls == 0 && inFlight == 0 && breaker == .closed }
}
