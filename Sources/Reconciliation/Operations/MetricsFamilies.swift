import HTTPTypes
import Metrics
import Synchronization

/// Requests by route, method and status. The label sets are closed: a route is a template, an unknown method is
/// `OTHER`, so nobody can make the registry grow by asking for strange things.
final class HTTPMetrics: Sendable {
    private struct Key: Hashable {
        let route: String
        let method: String
        let status: Int
    }

    private struct Instruments {
        let requests: Counter
        let seconds: Timer
    }

    private static let methods: Set<String> = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

    private let made = Mutex<[Key: Instruments]>([:])

    func count(route: String?, method: HTTPRequest.Method, status: Int, duration: Duration?) {
        let key = Key(
            route: route ?? "NotFound", method: Self.methods.contains(method.rawValue) ? method.rawValue : "OTHER",
            status: status)
        let instruments = made.withLock { made in
            if let instruments = made[key] { return instruments }
            let instruments = Instruments(
                requests: Counter(
                    label: "makegood_http_requests_total",
                    dimensions: [("route", key.route), ("method", key.method), ("status", String(status))]),
                seconds: Timer(
                    label: "makegood_http_request_seconds", dimensions: [("route", key.route), ("method", key.method)]))
            made[key] = instruments
            return instruments
        }
        instruments.requests.increment()
        if let duration { instruments.seconds.record(duration: duration) }
    }
}
