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

    @Test("more of the past is read as long as that is read shortly; what is broken stays in sight")
    func reach() async throws {
        try await LedgerLab.with { lab in
            // 300 ms for a day, 75 for a quarter of it: that is not tried fourfold.
            let sleep = "select 'a' from pg_sleep(:seconds / 288000.0) as s"
            for (sql, expected) in [("\(sleep) where s::text = 'x'", 5400...21_600), (sleep, 22...22)] {
                let lines = LogLines()
                let registry = PrometheusRegistry()
                let watch = Watch(ledger: lab.ledger, logger: lines.logger, metrics: registry)
                let invariant = Invariant("I1", "slow", "reads much", sql)
                var span: Int {
                    let gauge = #"makegood_invariant_checked_span_seconds{invariant="slow"}"#
                    return Int(value(of: gauge, in: registry) ?? 0)
                }
                let checking = Task { await watch.check([invariant], within: .milliseconds(1), pause: 0) }
                var found = 0
                while span < 5400 && found < 10 {
                    try await Task.sleep(for: .milliseconds(10))
                    found += lines.take().count
                }
                try await Task.sleep(for: .milliseconds(300))
                checking.cancel()
                await checking.value
                #expect(expected.contains(span))
            }
        }
    }

    @Test(
        "a day in the end, a quarter of what took longer than 100 ms, four times what took less than 20",
        arguments: [
            (0, 1, 1), (0, 19, 1), (0, 20, 0), (0, 101, 0), (3, 19, 4), (3, 20, 3), (3, 100, 3), (3, 101, 2), (6, 1, 6),
            (6, 100, 6), (6, 5000, 5),
        ])
    func reaches(before: Int, milliseconds: Int, after: Int) {
        #expect(Watch.reach(after: before, thatTook: .milliseconds(milliseconds)) == after)
    }

    @Test func farthestIsWhatTheCommandChecks() {
        #expect(Watch.checkReaches.last.map { .last($0) } == Invariant.Span.recent)
    }

    private func value(of series: String, in registry: PrometheusRegistry) -> Double? {
        registry.text.split(separator: "\n").first { $0.hasPrefix(series + " ") }
            .flatMap { Double($0.dropFirst(series.count + 1)) }
    }
}
