import Logging
import Metrics
import Synchronization

/// Metadata keys of this module. Dashboards and alerts filter on them.
enum LogKey {
    static let role = "amqp.role"
    static let broker = "amqp.broker"
    static let reason = "amqp.reason"
    static let queue = "amqp.queue"
    static let outageSeconds = "amqp.outage_seconds"
    static let attempts = "amqp.attempts"
}

/// Names of metrics. Seconds are recorded by a timer.
enum MetricName {
    static let published = "makegood_amqp_published_total"
    static let confirmSeconds = "makegood_amqp_confirm_seconds"
    static let reconnects = "makegood_amqp_reconnects_total"
    static let blocked = "makegood_amqp_blocked"
    static let deliveries = "makegood_amqp_deliveries_total"
}

/// Counters by two labels. Each is made once: making a counter asks the metrics backend under its lock.
final class CounterFamily: Sendable {
    private struct Key: Hashable {
        let first: String
        let second: String
    }

    private let label: String
    private let dimensions: (String, String?)
    private let counters = Mutex<[Key: Counter]>([:])

    init(label: String, dimensions: (String, String?)) {
        self.label = label
        self.dimensions = dimensions
    }

    func increment(_ first: String, _ second: String = "", by count: Int = 1) {
        let counter = counters.withLock { counters in
            let key = Key(first: first, second: second)
            if let counter = counters[key] { return counter }
            var labels = [(dimensions.0, first)]
            if let name = dimensions.1 { labels.append((name, second)) }
            let counter = Counter(label: label, dimensions: labels)
            counters[key] = counter
            return counter
        }
        counter.increment(by: count)
    }
}
