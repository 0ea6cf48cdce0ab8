import Encoding
import Foundation
import Metrics
import Service
import Testing

/// Goal: Prometheus can read all metrics, and no caller can make them grow without bound. Method: metrics made through
/// swift-metrics' own types on a registry of the test, and the text compared line by line.
@Suite struct OperationsPrometheusTests {
    private let registry = PrometheusRegistry()

    private var lines: [String] { registry.text.split(separator: "\n").map(String.init) }

    @Test func countersAndGauges() {
        Counter(label: "makegood_things_total", dimensions: [("b", "2"), ("a", "1")], factory: registry).increment(
            by: 3)
        Counter(label: "makegood_things_total", dimensions: [("a", "1"), ("b", "2")], factory: registry).increment()
        FloatingPointCounter(label: "makegood_floats_total", factory: registry).increment(by: 0.25)
        Gauge(label: "makegood_level", factory: registry).record(7)
        let meter = Meter(label: "makegood_meter", factory: registry)
        meter.set(5)
        meter.decrement(by: 7)
        #expect(
            registry.text == """
                # TYPE makegood_floats_total counter
                makegood_floats_total 0.25
                # TYPE makegood_level gauge
                makegood_level 7
                # TYPE makegood_meter gauge
                makegood_meter -2
                # TYPE makegood_things_total counter
                makegood_things_total{a="1",b="2"} 4
                # HELP makegood_metrics_series_dropped_total Label sets that found no room in the registry.
                # TYPE makegood_metrics_series_dropped_total counter
                makegood_metrics_series_dropped_total 0

                """)
    }

    @Test("every metric of the program has its line of help, and no line is left of one that is gone")
    func help() throws {
        let sources = URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
            .deletingLastPathComponent().deletingLastPathComponent().appending(path: "Sources")
        let files = try #require(FileManager.default.enumerator(at: sources, includingPropertiesForKeys: nil))
        var names: Set<String> = []
        for case let file as URL in files
        where file.pathExtension == "swift" && file.lastPathComponent != "MetricHelp.swift" {
            let text = try String(contentsOf: file, encoding: .utf8)
            names.formUnion(text.matches(of: /"(makegood_[a-z0-9_]+)"/).map { String($0.1) })
        }
        #expect(names == Set(MetricHelp.texts.keys))
        for text in MetricHelp.texts.values { #expect(text.hasSuffix(".") && !text.contains { "\\\n".contains($0) }) }
    }

    @Test("A timer is a histogram in seconds: buckets add up, +Inf is all")
    func histogram() {
        let timer = Timer(label: "makegood_call_seconds", dimensions: [("call", "x")], factory: registry)
        timer.recordNanoseconds(400_000)
        timer.recordMilliseconds(20)
        timer.recordSeconds(120)
        #expect(lines.contains("# TYPE makegood_call_seconds histogram"))
        #expect(lines.contains(#"makegood_call_seconds_bucket{call="x",le="0.0005"} 1"#))
        #expect(lines.contains(#"makegood_call_seconds_bucket{call="x",le="0.025"} 2"#))
        #expect(lines.contains(#"makegood_call_seconds_bucket{call="x",le="60"} 2"#))
        #expect(lines.contains(#"makegood_call_seconds_bucket{call="x",le="+Inf"} 3"#))
        #expect(lines.contains(#"makegood_call_seconds_sum{call="x"} 120.0204"#))
        #expect(lines.contains(#"makegood_call_seconds_count{call="x"} 3"#))
    }

    /// The bounds are the times of the objectives, and those of an outage.
    @Test func howLongPeopleWaitHasBoundsUpToADay() {
        Timer(label: "makegood_time_to_grant_seconds", dimensions: [], factory: registry).recordSeconds(59)
        for (bound, count) in [("1", 0), ("20", 0), ("60", 1), ("3600", 1), ("86400", 1)] {
            #expect(lines.contains("makegood_time_to_grant_seconds_bucket{le=\"\(bound)\"} \(count)"))
        }
    }

    @Test func recordersOfBatchSizes() {
        let recorder = Recorder(label: "makegood_rows", factory: registry)
        recorder.record(1)
        recorder.record(512)
        #expect(lines.contains(#"makegood_rows_bucket{le="1"} 1"#))
        #expect(lines.contains(#"makegood_rows_bucket{le="512"} 2"#))
        #expect(lines.contains("makegood_rows_sum 513"))
    }

    @Test("Names are made valid and values escaped")
    func escaping() {
        Counter(label: "9.http/requests-é", dimensions: [("a:b", "x\\y\"z\n"), ("", "e")], factory: registry)
            .increment()
        #expect(lines.contains(#"_9_http_requests__{_="e",a_b="x\\y\"z\n"} 1"#))
        Counter(label: "long", dimensions: [("v", String(repeating: "x", count: 1000))], factory: registry).increment()
        #expect(lines.contains("long{v=\"\(String(repeating: "x", count: 200))\"} 1"))
    }

    @Test func labelSetsAndNamesAreBounded() {
        for index in 0..<700 {
            Counter(label: "makegood_series_total", dimensions: [("id", String(index))], factory: registry).increment()
        }
        #expect(lines.count { $0.hasPrefix("makegood_series_total{") } == PrometheusRegistry.seriesMax)
        #expect(lines.contains("makegood_metrics_series_dropped_total 200"))
        // The same name as another kind is no reason to trap.
        Gauge(label: "makegood_series_total", factory: registry).record(1)
        #expect(lines.contains("makegood_metrics_series_dropped_total 201"))
    }

    @Test func nothingIsLostUnderParallelUse() async {
        await withTaskGroup(of: Void.self) { group in
            for _ in 0..<8 {
                group.addTask { [registry] in
                    let counter = Counter(label: "makegood_parallel_total", factory: registry)
                    for _ in 0..<10_000 { counter.increment() }
                }
            }
        }
        #expect(lines.contains("makegood_parallel_total 80000"))
    }
}
