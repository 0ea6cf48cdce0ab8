import Logging
import Testing

@testable import Reconciliation

/// Goal: the scheduler's check goes on whatever one of its invariants does (issue 3, part 1). Method: one that the
/// database refuses, one that is broken and one that holds, in turn.
@Suite struct WatchTests {
    @Test("an invariant that cannot be checked keeps no other from being reported, again and again")
    func refused() async throws {
        try await LedgerLab.with { lab in
            let lines = LogLines()
            let watch = Watch(ledger: lab.ledger, logger: lines.logger)
            let invariants = [
                Invariant("I1", "refused", "cannot be read", "select nothing from nowhere"),
                Invariant("I2", "broken", "does not hold", "select 'a' union all select 'b'"),
                Invariant("I3", "sound", "holds", "select 'a' where false"),
            ]
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
        }
    }
}
