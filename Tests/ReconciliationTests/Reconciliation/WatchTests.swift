import Foundation
import Logging
import Testing

@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Service

/// Goal: the scheduler's check goes on whatever one of its invariants does, reports its findings where alerts look, and
/// looks at what is new while it reads a whole day. Method: one invariant that the database refuses, one that is
/// broken, one that holds and one that takes longer the more it reads, in turn; the metrics as Prometheus would read
/// them.
@Suite(.timeLimit(.minutes(2))) struct WatchTests {
    @Test("one that cannot be checked keeps no other from being reported, again and again; each has its gauges")
    func refused() async throws {
        try await LedgerLab.with { lab in
            let lines = LogLines()
            let gauges = Gauges()
            let watch = Watch(ledger: lab.ledger, logger: lines.logger, metrics: gauges.registry)
            let invariants = [
                Invariant("I1", "refused", "cannot be read", "select nothing from nowhere"),
                Invariant("I2", "broken", "does not hold", "select 'a' union all select 'b'"),
                Invariant("I3", "sound", "holds", "select 'a' where false"),
            ]
            let began = Date().timeIntervalSince1970
            let checking = Task { await watch.check(invariants, within: .milliseconds(30), pause: 1) }
            var seen: [String] = []
            while seen.count < 12 || gauges.violations("sound") == nil {
                try await Task.sleep(for: .milliseconds(10))
                seen += lines.take().map { line in
                    "\(line.level) \(line.metadata["invariant"] ?? "-") \(line.metadata["violations"] ?? "-")"
                }
            }
            checking.cancel()
            await checking.value
            #expect(Set(seen) == ["warning - -", "critical broken 2"])
            #expect(seen.count { $0.hasPrefix("warning") } > 2 && seen.count { $0.hasPrefix("critical") } > 2)
            #expect(gauges.violations("broken") == 2)
            #expect(gauges.violations("sound") == 0)
            #expect(gauges.violations("refused") == nil, "it is not known")
            for invariant in ["broken", "sound"] {
                let checked = try #require(gauges.checkedAt(invariant))
                #expect(checked >= began.rounded(.down) && checked <= Date().timeIntervalSince1970)
            }
            #expect(gauges.checkedAt("refused") == 0, "not yet, which the alert sees after a while")
        }
    }

    /// A slow invariant that is broken in shorter spans than `seconds`. It takes 1 s for a day, and a millisecond for new
    /// data.
    private static func slow(brokenBelow seconds: Int) -> String {
        "select 'a' from pg_sleep(:seconds / 86400.0) s where :seconds + length(s::text) < \(seconds)"
    }

    @Test("what a short look found stays reported, though a longer one finds nothing, until the whole day holds")
    func broken() async throws {
        try await LedgerLab.with { lab in
            let gauges = Gauges()
            let watch = Watch(ledger: lab.ledger, logger: .silent, metrics: gauges.registry)
            let invariant = Invariant("I1", "brief", "is broken for a moment", Self.slow(brokenBelow: 2000))
            await watch.check([invariant], back: Watch.newSpan, within: .zero, pause: 0)
            #expect(gauges.violations("brief") == 1 && gauges.checkedAt("brief") == nil)
            await watch.check([invariant], back: Watch.daySpan, within: .zero, pause: 0)
            #expect(gauges.violations("brief") == 0 && gauges.checkedAt("brief") ?? 0 > 0)
        }
    }

    @Test("the whole day is read from the beginning, again and again, and keeps nobody from looking at what is new")
    func days() async throws {
        try await LedgerLab.with { lab in
            let lines = LogLines()
            let gauges = Gauges()
            let watch = Watch(ledger: lab.ledger, logger: lines.logger, metrics: gauges.registry)
            let invariants = [
                Invariant("I1", "new", "is broken lately", Self.slow(brokenBelow: 2000)),
                Invariant("I2", "old", "was broken long ago", "select 'a' where :seconds > 80000"),
            ]
            let checking = Task {
                await watch.check(invariants, within: .milliseconds(2), pause: 0)
            }
            var seen: [String: Int] = [:]
            // A check of a day takes a second; in that time new rows are checked 60 times.
            while seen["new", default: 0] < 100 || seen["old", default: 0] < 3 || gauges.checkedAt("new") ?? 0 == 0 {
                try await Task.sleep(for: .milliseconds(10))
                for line in lines.take() { seen[line.metadata["invariant"]?.description ?? "-", default: 0] += 1 }
            }
            checking.cancel()
            await checking.value
            #expect(gauges.violations("old") == 1)
        }
    }

    /// The metrics of one watch, as Prometheus would read them.
    private struct Gauges {
        let registry = PrometheusRegistry()

        func violations(_ invariant: String) -> Double? { value("violations", invariant) }
        func checkedAt(_ invariant: String) -> Double? { value("checked_timestamp_seconds", invariant) }

        private func value(_ name: String, _ invariant: String) -> Double? {
            let series = "makegood_invariant_\(name){invariant=\"\(invariant)\"} "
            return registry.text.split(separator: "\n").first { $0.hasPrefix(series) }
                .flatMap { Double($0.dropFirst(series.count)) }
        }
    }

    @Test("who checks by the command each day reads whatever a scheduler does")
    func farthest() {
        #expect(Invariant.Span.recent == .last(Watch.daySpan * 2))
    }
}
