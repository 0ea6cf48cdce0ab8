package import AppStore

/// How one process sees one of Apple's hosts: a row of `apple_hosts`, and three metrics.
package struct AppleHostReport: Sendable, Equatable {
    package enum BreakerWord: String, Sendable {
        case closed
        case halfOpen = "half_open"
        case open

        /// As a gauge.
        package var number: Int {
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

    package init(
        host: AppleHost, breaker: BreakerWord, probeIn: Duration, concurrencyLimit: Int, inFlight: Int, calls: Int
    ) {
        self.host = host
        self.breaker = breaker
        self.probeIn = probeIn
        self.concurrencyLimit = concurrencyLimit
        self.inFlight = inFlight
        self.calls = calls
    }

    /// Nothing happens there and nothing is wrong: nobody need hear of it.
    package var isQuiet: Bool { calls == 0 && inFlight == 0 && breaker == .closed }
}
