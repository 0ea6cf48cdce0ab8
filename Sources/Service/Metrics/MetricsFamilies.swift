import HTTPTypes
import Metrics
package import Purchases
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

/// Verdicts by app, state and reason; each counter is made once, because making one asks the registry under its lock.
package final class VerdictMetrics: Sendable {
    private struct Key: Hashable {
        let app: String
        let state: ReceiptState
        let reason: Reason?
    }

    private let made = Mutex<[Key: Counter]>([:])

    package init() {}

    package func count(app: String, state: ReceiptState, reason: Reason?) {
        let key = Key(app: app, state: state, reason: reason)
        let counter = made.withLock { made in
            if let counter = made[key] { return counter }
            let counter = Counter(
                label: "makegood_verdicts_total",
                dimensions: [("app", app), ("state", state.rawValue), ("reason", reason?.rawValue ?? "")])
            made[key] = counter
            return counter
        }
        counter.increment()
    }
}

/// How long a purchase waited from its 202 to its grant, by app, environment and lane: closed lists all three, Apple's
/// environments being those that an app is configured for.
package final class GrantTimes: Sendable {
    /// A histogram with the bounds of ``PrometheusSeries/Kind/waits``.
    static let label = "makegood_time_to_grant_seconds"

    private struct Key: Hashable {
        let app: String
        let environment: String
        let lane: Lane
    }

    private let made = Mutex<[Key: Timer]>([:])

    package init() {}

    package func record(_ time: Duration, app: String, environment: String, lane: Lane) {
        let key = Key(app: app, environment: environment, lane: lane)
        let timer = made.withLock { made in
            if let timer = made[key] { return timer }
            let timer = Timer(
                label: Self.label, dimensions: [("app", app), ("environment", environment), ("lane", lane.rawValue)])
            made[key] = timer
            return timer
        }
        timer.record(duration: time)
    }
}

/// How long an event waited until its endpoint took it, by app and endpoint.
package enum DeliveryTimes {
    /// A histogram with the bounds of ``PrometheusSeries/Kind/waits``.
    package static let label = "makegood_time_to_deliver_seconds"
}
