import CoreMetrics
import Synchronization

/// One metric under one set of labels.
final class PrometheusSeries: Sendable {
    enum Kind: Sendable, Equatable {
        case counter
        case gauge
        /// A histogram of durations.
        case seconds
        /// A histogram of how long people wait: durations up to a day. Its bounds hold those of the objectives, 1 s and
        /// 60 s, and the rescues between them (10 s, 60 s for Apple's lane). The bounds beyond a minute tell what kind
        /// of outage it was.
        case waits
        /// A histogram of counts: rows in a batch, bytes in a body.
        case sizes

        var bounds: [Double] {
            switch self {
            case .counter, .gauge: []
            case .seconds:
                [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
            case .waits:
                [0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 60, 300, 900, 3600, 21_600, 86_400]
            case .sizes: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16_384, 65_536, 1_048_576]
            }
        }

        var word: String {
            switch self {
            case .counter: "counter"
            case .gauge: "gauge"
            case .seconds, .waits, .sizes: "histogram"
            }
        }
    }

    let kind: Kind
    private let bounds: [Double]
    /// The bits of a Double. There is no atomic addition of doubles, so the value is exchanged until the exchange
    /// succeeds.
    private let total = Atomic<UInt64>(0)
    private let buckets: [Bucket]

    private final class Bucket: Sendable {
        let count = Atomic<Int>(0)
    }

    init(_ kind: Kind) {
        self.kind = kind
        bounds = kind.bounds
        buckets = kind.bounds.isEmpty ? [] : (0...kind.bounds.count).map { _ in Bucket() }
    }

    private func add(_ amount: Double) {
        var old = total.load(ordering: .relaxed)
        while true {
            let new = (Double(bitPattern: old) + amount).bitPattern
            let result = total.weakCompareExchange(expected: old, desired: new, ordering: .relaxed)
            if result.exchanged { return }
            old = result.original
        }
    }

    private func replace(_ value: Double) { total.store(value.bitPattern, ordering: .relaxed) }

    private func observe(_ value: Double) {
        guard !buckets.isEmpty else { return replace(value) }
        let index = bounds.firstIndex { value <= $0 } ?? bounds.count
        buckets[index].count.wrappingAdd(1, ordering: .relaxed)
        add(value)
    }

    func write(_ name: String, _ labels: PrometheusLabels, to text: inout PrometheusText) {
        let total = Double(bitPattern: total.load(ordering: .relaxed))
        guard !buckets.isEmpty else { return text.sample(name, labels.text, PrometheusText.number(total)) }
        var count = 0
        for (index, bucket) in buckets.enumerated() {
            count += bucket.count.load(ordering: .relaxed)
            let bound = index < bounds.count ? PrometheusText.number(bounds[index]) : "+Inf"
            text.sample("\(name)_bucket", labels.adding("le", bound), String(count))
        }
        text.sample("\(name)_sum", labels.text, PrometheusText.number(total))
        text.sample("\(name)_count", labels.text, String(count))
    }
}

extension PrometheusSeries: CounterHandler, FloatingPointCounterHandler {
    func increment(by amount: Int64) { add(Double(amount)) }
    func increment(by amount: Double) { add(amount) }
    func reset() { replace(0) }
}

extension PrometheusSeries: MeterHandler {
    func set(_ value: Int64) { replace(Double(value)) }
    func set(_ value: Double) { replace(value) }
    func decrement(by amount: Double) { add(-amount) }
}

extension PrometheusSeries: RecorderHandler {
    func record(_ value: Int64) { observe(Double(value)) }
    func record(_ value: Double) { observe(value) }
}

extension PrometheusSeries: TimerHandler {
    func recordNanoseconds(_ duration: Int64) { observe(Double(duration) / 1e9) }
}
