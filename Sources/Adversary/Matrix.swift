import Foundation
import Ledger

/// Runs drills one after the other, each in a deployment of its own, and reports the results.
package struct Matrix: Sendable {
    package struct Plan: Sendable {
        package var drills: [Drill]
        package var seed: UInt64
        package var scale: Double
        package var rate: Double
        /// The path of `deploy/local`.
        package var script: String
        /// The path of the program.
        package var executable: String
        /// How many files this process may open.
        package var openFiles: Int
        /// Whether a drill fails if the rate of grants does not come back.
        package var judgesRates: Bool

        package init(
            drills: [Drill], seed: UInt64, scale: Double, rate: Double, script: String, executable: String,
            openFiles: Int, judgesRates: Bool = true
        ) {
            self.drills = drills
            self.seed = seed
            self.scale = scale
            self.rate = rate
            self.script = script
            self.executable = executable
            self.openFiles = openFiles
            self.judgesRates = judgesRates
        }
    }

    /// One line of the table.
    package struct Row: Sendable, Encodable {
        package enum Outcome: String, Sendable, Encodable { case passed, failed, skipped }

        package struct Check: Sendable, Encodable {
            package let expected: String
            package let seen: String
            package let holds: Bool
        }

        /// The number of invariants that each drill checks.
        package static let invariants = Invariant.all.count

        package let fault: String
        package let done: String
        package let expected: String
        package var outcome: Outcome
        package var checks: [Check] = []
        /// The number of answers to posts from the start of the fault to the end of the load; `troubles` tells those
        /// that were neither 200 nor 202.
        package var requests = 0
        package var troubles = ""
        /// The number of grants a second after the fault, as a share of the number before.
        package var recoveryRatio = 0.0
        /// From the end of the fault until the earlier rate is reached.
        package var recoverySeconds: Double?
        /// Ids and names of invariants that do not hold.
        package var violations: [String] = []
        package var receipts = 0
        package var seconds = 0.0
    }

    /// The most purchases a second of a drill with many endpoints.
    private static let rateOfManyEndpoints = 20.0

    let plan: Plan
    private let tell: @Sendable (String) -> Void

    /// - Parameter tell: called with each row as soon as it is known.
    package init(_ plan: Plan, tell: @escaping @Sendable (String) -> Void) {
        self.plan = plan
        self.tell = tell
    }

    package func run() async throws -> [Row] {
        tell(
            """
            seed \(plan.seed), scale \(plan.scale) (retry delays, rescue delays, limits of calls and the matrix's own \
            durations), \(plan.rate) purchases/s, \(plan.drills.count) faults
            """)
        return try await PrivateServers.run(script: plan.script) { servers in
            var rows: [Row] = []
            for (index, drill) in plan.drills.enumerated() {
                try Task.checkCancellation()
                let row = await run(drill, index, servers)
                rows.append(row)
                tell(row.text)
                // A drill that failed may have left a server down.
                if row.outcome == .failed, !Task.isCancelled { try? await servers.restore() }
            }
            return rows
        }
    }

    private func run(_ drill: Drill, _ index: Int, _ servers: PrivateServers) async -> Row {
        var row = Row(fault: drill.id, done: drill.name, expected: drill.expected, outcome: .skipped)
        if let obstacle = drill.obstacle(plan) {
            row.checks = [.init(expected: "", seen: "skipped: \(obstacle)", holds: true)]
            return row
        }
        let start = ContinuousClock.now
        do {
            var shape = TestDeployment.Shape(
                executable: plan.executable, scale: plan.scale, rate: plan.rate,
                seed: plan.seed &+ UInt64(drill.number), openFiles: plan.openFiles)
            shape.declaresQueues = drill.declaresQueues
            if drill.endpoints > 0 { (shape.endpoints, shape.dispatchers) = (drill.endpoints, 2) }
            // Each purchase is several webhooks there.
            if drill.endpoints > 2 { shape.rate = min(plan.rate, Self.rateOfManyEndpoints) }
            row = try await TestDeployment.run(shape, on: servers, name: "drill\(index)") { world in
                try await DrillRun(world: world, judgesRates: plan.judgesRates).play(drill)
            }
        } catch {
            row.outcome = .failed
            row.checks.append(.init(expected: "the drill runs", seen: "\(error)", holds: false))
        }
        row.seconds = ((ContinuousClock.now - start) / .seconds(1) * 10).rounded() / 10
        return row
    }
}

extension Matrix.Row {
    /// The row as text for a person.
    package var text: String {
        var lines = [
            "\(outcome == .passed ? "ok  " : outcome == .skipped ? "--  " : "FAIL") \(fault)  \(done): \(expected)"
        ]
        for check in checks {
            lines.append(
                "       \(check.holds ? " " : "!") \(check.expected)\(check.expected.isEmpty ? "" : ": ")\(check.seen)")
        }
        if outcome != .skipped {
            lines.append(
                """
                         \(requests) answers, without 200 and 202: \(troubles); recovery ratio \
                \(recoveryRatio)\(recoverySeconds.map { " after \($0) s" } ?? ", not within its time"); \(receipts) receipts, \
                \(Self.invariants) invariants \(violations.isEmpty ? "hold" : violations.joined(separator: "; ")); \(seconds) s
                """)
        }
        return lines.joined(separator: "\n")
    }
}
