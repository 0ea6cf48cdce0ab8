internal import Metrics
internal import Synchronization

/// Counts and times the calls to Apple. Each series is looked up once, not for every call.
final class CallMetrics: Sendable {
    private struct Key: Hashable {
        let host: AppleHost
        let outcome: String
    }

    private let series = Mutex<[Key: (calls: Counter, seconds: Timer)]>([:])

    func record(_ host: AppleHost, outcome: String, duration: Duration) {
        let (calls, seconds) = series.withLock { series in
            let key = Key(host: host, outcome: outcome)
            if let known = series[key] { return known }
            let place = [("service", host.service.rawValue), ("environment", host.environment.rawValue)]
            let new = (
                calls: Counter(label: "makegood_apple_calls_total", dimensions: place + [("outcome", outcome)]),
                seconds: Timer(label: "makegood_apple_call_seconds", dimensions: place)
            )
            series[key] = new
            return new
        }
        calls.increment()
        seconds.record(duration: duration)
    }
}
