import Foundation
import Ledger
import Metrics
import Service
import Synchronization

/// The figures of deliveries by app and endpoint. Names come from the configuration file, so the label sets are closed.
/// Each instrument is made once, because making one asks the registry under its lock.
final class DeliveryMetrics: Sendable {
    enum Outcome: String {
        /// The receiver took the event.
        case delivered
        /// The receiver did not take it, and it is sent again.
        case failed
        /// The receiver did not take it for so long that a person decides.
        case parked
        /// Nobody can say which user the event is about: our misconfiguration. Nothing was sent.
        case unreadable
    }

    private struct Key: Hashable {
        let endpoint: UUID
        let outcome: Outcome
    }

    private let counters = Mutex<[Key: Counter]>([:])
    private let gauges = Mutex<[UUID: Gauge]>([:])
    private let times = Mutex<[UUID: Timer]>([:])
    private let toldAt = Mutex<[UUID: ContinuousClock.Instant]>([:])

    func count(_ outcome: Outcome, _ endpoint: EndpointKey) {
        let counter = counters.withLock {
            Self.made(&$0, Key(endpoint: endpoint.id, outcome: outcome)) {
                Counter(
                    label: "makegood_delivery_attempts_total",
                    dimensions: Self.names(endpoint) + [("outcome", outcome.rawValue)])
            }
        }
        counter.increment()
    }

    func setInFlight(_ count: Int, _ endpoint: EndpointKey) {
        let gauge = gauges.withLock {
            Self.made(&$0, endpoint.id) {
                Gauge(label: "makegood_delivery_in_flight", dimensions: Self.names(endpoint))
            }
        }
        gauge.record(count)
    }

    /// - Parameter time: from the event to the answer that took it.
    func record(_ time: Duration, _ endpoint: EndpointKey) {
        let timer = times.withLock {
            Self.made(&$0, endpoint.id) { Timer(label: DeliveryTimes.label, dimensions: Self.names(endpoint)) }
        }
        timer.record(duration: time)
    }

    /// Whether the log should say once more that users of the endpoint's events cannot be read: once a minute.
    func tellsUnreadable(_ endpoint: EndpointKey) -> Bool {
        toldAt.withLock { told in
            let now = ContinuousClock.now
            if let at = told[endpoint.id], now - at < .seconds(60) { return false }
            told[endpoint.id] = now
            return true
        }
    }

    private static func names(_ endpoint: EndpointKey) -> [(String, String)] {
        [("app", endpoint.appID), ("endpoint", endpoint.name)]
    }

    private static func made<Key: Hashable, Instrument>(
        _ instruments: inout [Key: Instrument], _ key: Key, _ make: () -> Instrument
    ) -> Instrument {
        if let instrument = instruments[key] { return instrument }
        let instrument = make()
        instruments[key] = instrument
        return instrument
    }
}
