import AppStore
import Foundation
package import Ledger
import Metrics

#if canImport(Glibc)
    import Glibc
#endif

/// Tells operators how this worker sees Apple's hosts. It records metrics each second, and writes rows for the view
/// `v_apple` when a breaker changes, otherwise every few seconds while there are calls.
package struct AppleHostReporter: Sendable {
    static let interval: Duration = .seconds(1)
    /// The time between two reports to the database, unless a breaker changed.
    static let restingInterval: Duration = .seconds(5)

    let governor: Governor
    let ledger: Ledger
    /// This process's name among all processes: host and process id.
    let worker: String

    package init(governor: Governor, ledger: Ledger) {
        self.governor = governor
        self.ledger = ledger
        worker = "\(Self.hostName):\(ProcessInfo.processInfo.processIdentifier)"
    }

    /// Runs until the task is cancelled.
    package func run() async {
        var calls: [AppleHost: Int] = [:]
        var told: [AppleHost: AppleHostReport.BreakerState] = [:]
        var due = ContinuousClock.now
        while !Task.isCancelled {
            let reports = governor.report()
            for report in reports {
                measure(report)
                calls[report.host, default: 0] += report.calls
            }
            let isNews = reports.contains { told[$0.host, default: .closed] != $0.breaker }
            if isNews || due <= .now {
                let rows = reports.filter { isNews || !$0.isQuiet || calls[$0.host, default: 0] > 0 }
                let isTold =
                    if rows.isEmpty { true } else {
                        (try? await ledger.run(Statements.reportAppleHosts, (worker, rows))) != nil
                    }
                // A change that the database did not take is reported again.
                if isTold {
                    for report in reports { told[report.host] = report.breaker }
                    calls = [:]
                }
                due = .now + Self.restingInterval
            }
            try? await Task.sleep(for: Self.interval)
        }
    }

    private func measure(_ report: AppleHostReport) {
        let labels = [
            ("service", report.host.service.rawValue), ("environment", report.host.environment.rawValue),
        ]
        Gauge(label: "makegood_apple_breaker_state", dimensions: labels).record(report.breaker.number)
        Gauge(label: "makegood_apple_concurrency_limit", dimensions: labels).record(report.concurrencyLimit)
        Gauge(label: "makegood_apple_in_flight", dimensions: labels).record(report.inFlight)
    }

    private static var hostName: String {
        var name = [CChar](repeating: 0, count: 256)
        guard gethostname(&name, name.count - 1) == 0 else { return "localhost" }
        return String(decoding: name.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }
}

extension AppleHostReport {
    /// - Parameter calls: the calls that were let out since the previous report.
    init(_ host: AppleHost, _ state: AppleHostState, calls: Int, at now: ContinuousClock.Instant) {
        let (breaker, probeIn): (BreakerState, Duration) =
            switch state.breaker.state {
            case .closed: (.closed, .zero)
            case .halfOpen: (.halfOpen, .zero)
            case .open(let until): (.open, max(.zero, until - now))
            }
        self.init(
            host: host, breaker: breaker, probeIn: probeIn, concurrencyLimit: state.limit.calls,
            inFlight: state.inFlight, calls: calls)
    }
}
