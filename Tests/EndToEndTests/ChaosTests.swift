import Adversary
import Foundation
import TestRandom
import Testing

extension EndToEnd {
    /// A selection of the fault matrix that takes a minute or two; `deploy/nightly` runs all of it (`makegood-lab chaos
    /// matrix`). Private servers, real processes, a proxy between every two.
    @Suite struct Chaos {
        /// Goal: kill -9 of an ingest and of a worker costs nothing but time (P27 to P31, I1 to I17).
        /// Method: drills with load, each audited against the clients' journal and the App Store's ledger. One drill
        /// has the same seed every time, the other a new seed each time, which is printed.
        @Test(
            .timeLimit(.minutes(6)),
            arguments: [("3", 1 as UInt64), ("1", SeededRandom(announcing: "chaos").seed % 1_000_000)])
        func theSelectedFaultsPass(faults: String, seed: UInt64) async throws {
            let rows = try await Self.run(faults, seed: seed)
            #expect(!rows.isEmpty)
            for row in rows { #expect(row.outcome == .passed, "seed \(seed)\n\(row.text)") }
        }

        /// Goal: the audit of a drill notices errors; if it did not, every drill would be worthless.
        /// Method: a drill that only corrupts the database: it moves a grant to another user, and takes a row away. It
        /// must fail by the invariants for exactly these errors.
        @Test(.timeLimit(.minutes(3))) func aFalseRowIsNoticed() async throws {
            let row = try #require(try await Self.run([.falseRecord], seed: 1).first)
            #expect(row.outcome == .failed)
            for id in ["I1", "I5"] { #expect(row.violations.contains { $0.hasPrefix("\(id) ") }, "\(row.violations)") }
        }

        private static func run(_ faults: String, seed: UInt64) async throws -> [Matrix.Row] {
            try await run(try #require(Drill.select(faults)), seed: seed)
        }

        private static func run(_ drills: [Drill], seed: UInt64) async throws -> [Matrix.Row] {
            try await Matrix(
                .init(
                    drills: drills, seed: seed, scale: 0.1, rate: 40, script: System.localScript,
                    executable: System.binary, openFiles: 1024, judgesRates: false)
            ) { print($0) }.run()
        }
    }
}
