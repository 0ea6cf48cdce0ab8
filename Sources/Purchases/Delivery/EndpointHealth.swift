package import Foundation

/// Whether an endpoint is sent events. The raw value is the word in SQL, answers and dashboards.
package enum EndpointState: String, Sendable, CaseIterable {
    /// Whatever is due is sent.
    case working
    /// One event is sent now and then, until one is taken.
    case failing
    /// Nothing is sent until a person resumes the endpoint.
    case suspended
}

/// The health of an endpoint: a function from the health before and the result of one send to the health after.
///
/// ```
/// working ── 8 failures in a row ──> failing ── 30 days, at a failed probe ──> suspended (exhausted)
///    ^                                  │                                         ^
///    └──────────── any event taken ─────┘            410 in any state ────────────┘ (gone)
/// ```
/// Nothing is lost in any state: deliveries wait. Only a person ends a suspension.
package struct EndpointHealth: Sendable, Equatable {
    /// Why an endpoint is suspended. The raw value is the word in SQL, events and logs.
    package enum Suspension: String, Sendable, CaseIterable {
        /// The receiver answered 410: it wants nothing any more.
        case gone
        /// No event was taken for ``failingMax``.
        case exhausted
    }

    package enum Result: Sendable, CaseIterable {
        case taken, gone, failed
    }

    /// So many failures in a row make a working endpoint a failing one.
    package static let failuresMax = 8
    /// The gap before the first probe; each failed probe doubles the gap.
    package static let probeGapMin: Duration = .seconds(5)
    package static let probeGapMax: Duration = .seconds(300)
    /// Gaps are so much longer or shorter by chance, so that endpoints of one receiver are not probed together.
    package static let jitter = 0.2
    package static let failingMax: Duration = .seconds(30 * 86_400)

    package var state: EndpointState
    /// Failures since the last event that was taken.
    package var failures: Int
    /// When the endpoint began to fail; nil while it works.
    package var failingSince: Date?
    /// Failed probes since then.
    package var probes: Int
    /// Nil unless suspended.
    package var suspension: Suspension?

    package init(
        state: EndpointState = .working, failures: Int = 0, failingSince: Date? = nil, probes: Int = 0,
        suspension: Suspension? = nil
    ) {
        self.state = state
        self.failures = failures
        self.failingSince = failingSince
        self.probes = probes
        self.suspension = suspension
    }

    /// - Parameters:
    ///   - isProbe: whether the event was sent while the endpoint was failing. Events that were in flight when the
    ///     endpoint began to fail are no probes, and make no gap longer.
    ///   - scale: of ``RetrySchedule``.
    package func after(_ result: Result, isProbe: Bool, at now: Date, scale: Double) -> EndpointHealth {
        guard state != .suspended else { return self }
        switch result {
        case .taken: return EndpointHealth()
        case .gone: return suspended(.gone, at: now)
        case .failed:
            var health = self
            health.failures += 1
            if state == .working {
                guard health.failures >= Self.failuresMax else { return health }
                health.state = .failing
                health.failingSince = now
                health.probes = 0
            } else if isProbe {
                health.probes += 1
                let since = failingSince ?? now
                guard now.timeIntervalSince(since) < Self.failingMax.inSeconds * scale else {
                    return health.suspended(.exhausted, at: now)
                }
            }
            return health
        }
    }

    private func suspended(_ suspension: Suspension, at now: Date) -> EndpointHealth {
        EndpointHealth(
            state: .suspended, failures: max(failures, 1), failingSince: failingSince ?? now, probes: probes,
            suspension: suspension)
    }

    /// How long until the next probe: 5 s, 10 s, 20 s … 5 min, ± 20 %. Nil unless failing.
    ///
    /// - Parameters:
    ///   - random: in 0 ..< 1.
    ///   - scale: of ``RetrySchedule``.
    package func probeIn(random: Double, scale: Double) -> Duration? {
        guard state == .failing else { return nil }
        let doublings = min(probes, 16)
        let gap = min(Self.probeGapMin * Double(1 << doublings), Self.probeGapMax)
        return gap * scale * (1 + Self.jitter * (2 * random - 1))
    }
}
