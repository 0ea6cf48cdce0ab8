import Foundation
import Logging
import Testing

@testable import Reconciliation

/// Goal: the scheduler's check goes on whatever one of its invariants does, says what it found where alerts look, and
/// reads no more than it can shortly (issue 3, parts 1 and 5). Method: one that the database refuses, one that is broken,
/// one that holds and one that takes longer the more it reads, in turn; the metrics as Prometheus would read them.
@Suite(.timeLimit(.minutes(2))) struct WatchTests {
    @Test("one that cannot be checked keeps no other from being reported, again and again; each has its gauges")
    func refused() async throws {
        try await LedgerLab.with { lab in
            let lines = LogLines()
            let registry = PrometheusRegistry()
            let watch = Watch(ledger: lab.ledger, logger: lines.logger, metrics: registry)
            let invariants = [
                Invariant("I1", "refused", "cannot be read", "select nothing from nowhere"),
                Invariant("I2", "broken", "does not hold", "select 'a' union all select 'b'"),
                Invariant("I3", "sound", "holds", "select 'a' where false"),
            ]
            let began = Date().timeIntervalSince1970
            let checking = Task { await watch.check(invariants, within: .milliseconds(30)) }
            var seen: [String] = []
            while seen.count < 4 {
                try await Task.sleep(for: .milliseconds(10))
                seen += lines.take().map { line in
                    "\(line.level) \(line.metadata["invariant"] ?? "-") \(line.metadata["violations"] ?? "-")"
                }
            }
            checking.cancel()
            await checking.value
            #expect(seen.prefix(4) == ["warning - -", "critical broken 2", "warning - -", "critical broken 2"])

            func gauge(_ name: String, _ invariant: String) -> Double? {
                value(of: "makegood_invariant_\(name){invariant=\"\(invariant)\"}", in: registry)
            }
            #expect(gauge("violations", "broken") == 2)
            #expect(gauge("violations", "sound") == 0)
            #expect(gauge("violations", "refused") == nil, "it is not known")
            for invariant in ["broken", "sound"] {
                let checked = try #require(gauge("checked_timestamp_seconds", invariant))
                #expect(checked >= began.rounded(.down) && checked <= Date().timeIntervalSince1970)
                #expect(try #require(gauge("checked_span_seconds", invariant)) >= 22)
            }
            #expect(gauge("checked_timestamp_seconds", "refused") == 0, "not yet, which the alert sees after a while")
        }
    }

    @Test("more of the past is read as long as that is read shortly; what is broken is sought in a whole day")
    func reach() async throws {
        try await LedgerLab.with { lab in
            // 2.2 s for a day, 34 ms for 1350 seconds: that is not tried eightfold.
            let sleep = "select 'a' from pg_sleep(:seconds / 40000.0) as s"
            for (sql, expected) in [("\(sleep) where s::text = 'x'", 170), (sleep, 86_400)] {
                let registry = PrometheusRegistry()
                let watch = Watch(ledger: lab.ledger, logger: .silent, metrics: registry)
                let invariant = Invariant("I1", "slow", "reads much", sql)
                let gauge = #"makegood_invariant_checked_span_seconds{invariant="slow"}"#
                let checking = Task { await watch.check([invariant], within: .milliseconds(1), pause: 0) }
                var spans: Set<Int> = []
                while !spans.contains(expected) {
                    try await Task.sleep(for: .milliseconds(5))
                    value(of: gauge, in: registry).map { _ = spans.insert(Int($0)) }
                }
                checking.cancel()
                await checking.value
                #expect(spans.isSubset(of: expected == 170 ? [22, 170, 1350] : [22, 86_400]))
            }
        }
    }

    @Test(
        "a day in the end, an eighth of what took longer than 100 ms, eight times what took less than 10",
        arguments: [
            (0, 1, 1), (0, 9, 1), (0, 10, 0), (0, 101, 0), (3, 9, 4), (3, 10, 3), (3, 100, 3), (3, 101, 2), (4, 1, 4),
            (4, 100, 4), (4, 5000, 3),
        ])
    func reaches(before: Int, milliseconds: Int, after: Int) {
        #expect(Watch.reach(after: before, thatTook: .milliseconds(milliseconds)) == after)
    }

    @Test("one that failed at once is not asked for more, one that was cut off for less")
    func failures() {
        #expect(Watch.reach(after: 2, thatTook: .milliseconds(1), couldLook: false) == 2)
        #expect(Watch.reach(after: 2, thatTook: .seconds(5), couldLook: false) == 1)
    }

    @Test func farthestIsWhatTheCommandChecks() {
        #expect(Watch.checkReaches.last.map { .last($0) } == Invariant.Span.recent)
    }

    private func value(of series: String, in registry: PrometheusRegistry) -> Double? {
        registry.text.split(separator: "\n").first { $0.hasPrefix(series + " ") }
            .flatMap { Double($0.dropFirst(series.count + 1)) }
    }
}
