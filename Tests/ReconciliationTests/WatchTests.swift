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
            let checking = Task { await watch.check(invariants, within: .milliseconds(30), dayWithin: .zero) }
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
                #expect(gauge("checked_span_seconds", invariant) == 86_400)
            }
            #expect(gauge("checked_timestamp_seconds", "refused") == 0, "not yet, which the alert sees after a while")
        }
    }

    /// 1 s for a day, 16 ms for 1350 seconds: that is not tried eightfold.
    private static let sleep = "select 'a' from pg_sleep(:seconds / 86400.0) as s"

    @Test("more of the past is read while that is read shortly; only a whole day counts as checked")
    func reach() async throws {
        try await LedgerLab.with { lab in
            let (spans, checked) = try await watch("\(Self.sleep) where s::text = 'x'", in: lab) { $0.last == 170 }
            #expect(Set(spans).isSubset(of: [22, 170, 1350]))
            #expect(checked == 0)
        }
    }

    @Test("the whole day is read now and then, however long it takes, and little again after it")
    func days() async throws {
        try await LedgerLab.with { lab in
            let sql = "\(Self.sleep) where s::text = 'x'"
            let (_, checked) = try await watch(sql, dayWithin: .milliseconds(200), in: lab) { $0.last == 86_400 }
            #expect(checked > 0)
            _ = try await watch(sql, dayWithin: .milliseconds(200), in: lab) {
                $0.contains(86_400) && $0.last != 86_400
            }
        }
    }

    @Test("what is broken is sought in the whole day from then on")
    func broken() async throws {
        try await LedgerLab.with { lab in
            let (spans, checked) = try await watch(Self.sleep, in: lab) { $0.last == 86_400 }
            #expect(Set(spans).isSubset(of: [22, 86_400]))
            #expect(checked > 0)
        }
    }

    /// Checks one invariant again and again until `isDone` says so of the spans seen, the last one at the end.
    ///
    /// - Returns: the spans seen, and when a day was last checked.
    private func watch(
        _ sql: String, dayWithin: Duration = Watch.checkDayInterval, in lab: LedgerLab, until isDone: ([Int]) -> Bool
    ) async throws -> (spans: [Int], checked: Double) {
        let registry = PrometheusRegistry()
        let watch = Watch(ledger: lab.ledger, logger: .silent, metrics: registry)
        let invariant = Invariant("I1", "slow", "reads much", sql)
        let checking = Task {
            await watch.check([invariant], within: .milliseconds(1), dayWithin: dayWithin, pause: 0)
        }
        func gauge(_ name: String) -> Double? {
            value(of: "makegood_invariant_\(name){invariant=\"slow\"}", in: registry)
        }
        var spans: [Int] = []
        while !isDone(spans) {
            try await Task.sleep(for: .milliseconds(2))
            if let span = gauge("checked_span_seconds").map({ Int($0) }), span != spans.last { spans.append(span) }
        }
        checking.cancel()
        await checking.value
        return (spans, gauge("checked_timestamp_seconds") ?? -1)
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
