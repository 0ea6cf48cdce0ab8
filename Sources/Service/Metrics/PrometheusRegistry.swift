package import CoreMetrics
import Synchronization

/// Keeps every metric of the process and writes them in Prometheus' text format 0.0.4.
///
/// A backend of swift-metrics in two files, so that `/metrics` needs no further dependency. Counters, gauges and meters
/// are one number; timers are histograms in seconds, recorders histograms of sizes. All of them are updated without a
/// lock. The number of label sets is bounded: a label set beyond it is counted and dropped, never stored.
///
/// Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format).
package final class PrometheusRegistry: MetricsFactory {
    package static let contentType = "text/plain; version=0.0.4; charset=utf-8"
    /// Label sets of one metric.
    package static let seriesMax = 500
    package static let metricsMax = 500

    private struct Metric {
        let kind: PrometheusSeries.Kind
        var series: [PrometheusLabels: PrometheusSeries] = [:]
    }

    private struct State {
        var metrics: [String: Metric] = [:]
        var dropped = 0
    }

    private let state = Mutex(State())
    private static let droppedName = "makegood_metrics_series_dropped_total"

    package init() {}

    /// Makes a registry and puts it in place for the whole process; at most once.
    package static func bootstrap() -> PrometheusRegistry {
        let registry = PrometheusRegistry()
        MetricsSystem.bootstrap(registry)
        return registry
    }

    /// Every metric, sorted by name and labels.
    package var text: String {
        let (metrics, dropped) = state.withLock { ($0.metrics, $0.dropped) }
        var text = PrometheusText()
        for (name, metric) in metrics.sorted(by: { $0.key < $1.key }) {
            text.begin(name, metric.kind)
            for (labels, series) in metric.series.sorted(by: { $0.key.text < $1.key.text }) {
                series.write(name, labels, to: &text)
            }
        }
        text.begin(Self.droppedName, .counter)
        text.sample(Self.droppedName, "", String(dropped))
        return text.output
    }

    /// The series of that name and labels; the same arguments give the same series. Where there is no room, or another
    /// kind has the name, the series is not stored.
    private func series(
        _ label: String, _ dimensions: [(String, String)], _ kind: PrometheusSeries.Kind
    ) -> PrometheusSeries {
        let name = PrometheusText.name(label, allowsColon: true)
        let labels = PrometheusLabels(dimensions)
        return state.withLock { state in
            if let series = state.metrics[name]?.series[labels], series.kind == kind { return series }
            let series = PrometheusSeries(kind)
            let known = state.metrics[name]
            guard known == nil ? state.metrics.count < Self.metricsMax : known?.kind == kind,
                known?.series.count ?? 0 < Self.seriesMax
            else {
                state.dropped += 1
                return series
            }
            state.metrics[name, default: Metric(kind: kind)].series[labels] = series
            return series
        }
    }

    // MARK: MetricsFactory

    package func makeCounter(label: String, dimensions: [(String, String)]) -> any CounterHandler {
        series(label, dimensions, .counter)
    }

    package func makeFloatingPointCounter(
        label: String, dimensions: [(String, String)]
    ) -> any FloatingPointCounterHandler {
        series(label, dimensions, .counter)
    }

    package func makeMeter(label: String, dimensions: [(String, String)]) -> any MeterHandler {
        series(label, dimensions, .gauge)
    }

    package func makeRecorder(label: String, dimensions: [(String, String)], aggregate: Bool) -> any RecorderHandler {
        series(label, dimensions, aggregate ? .sizes : .gauge)
    }

    package func makeTimer(label: String, dimensions: [(String, String)]) -> any TimerHandler {
        series(label, dimensions, [GrantTimes.label, DeliveryTimes.label].contains(label) ? .waits : .seconds)
    }

    // Handlers are never destroyed: everyone who asks for the same name and labels shares one.
    package func destroyCounter(_ handler: any CounterHandler) {}
    package func destroyFloatingPointCounter(_ handler: any FloatingPointCounterHandler) {}
    package func destroyMeter(_ handler: any MeterHandler) {}
    package func destroyRecorder(_ handler: any RecorderHandler) {}
    package func destroyTimer(_ handler: any TimerHandler) {}
}
