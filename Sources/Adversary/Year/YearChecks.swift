import Foundation
import Ledger
import Postgres

/// What a year checks at its end beside the App Store's books.
enum YearChecks {
    /// The troubles, in words; empty: none.
    static func run(_ world: TestDeployment, _ clock: SteppedClock, scale: Double) async throws -> [String] {
        try await checks(world) + clockTroubles(world, clock) + invariants(world, scale: scale)
    }

    /// Whether the database, the App Store and a process that has just started tell the same time.
    private static func clockTroubles(
        _ world: TestDeployment, _ clock: SteppedClock
    ) async throws -> [String] {
        var troubles: [String] = []
        let skew = try await clock.skew(world)
        if skew > .seconds(5) { troubles.append("the clocks of database and App Store differ by \(skew.short)") }
        guard let worker = world.members(.worker).first else { return troubles }
        await worker.kill()
        try await worker.start()
        let ahead = worker.process?.clockOffset ?? 0
        if abs(ahead - clock.ahead / .seconds(1)) > 60 {
            troubles.append("a worker is \(Int(ahead)) s ahead of the machine, and not \(clock.ahead)")
        }
        return troubles
    }

    private static func invariants(_ world: TestDeployment, scale: Double) async throws -> [String] {
        let database = world.patientDatabase()
        let violations = try await Invariant.check(database, span: .all, scale: scale)
        await database.close()
        return violations.map(\.text)
    }

    /// What `makegood check --full` and `makegood check --seals` ask beside the invariants: whether what was told
    /// of each chain is what its facts say, and whether the sealed rows are as they were sealed.
    private static func checks(_ world: TestDeployment) async throws -> [String] {
        let database = world.patientDatabase()
        var troubles = [try await FollowUpCheck.run(database, span: .all).violation?.text].compactMap(\.self)
        let blocks = try await database.run(Statements.sealHeads, 1).first?.number ?? 0
        if blocks == 0 { troubles.append("no rows were sealed") }
        for number in stride(from: 1, through: blocks, by: 1) {
            troubles += try await SealFinding.look(at: number, database).map {
                "seal \($0.block): \($0.what.rawValue) \($0.row ?? "")"
            }
        }
        await database.close()
        return troubles
    }
}

extension Invariant.Violation {
    /// The violation in a line of a report.
    var text: String { "\(id) \(invariant): \(count), such as \(examples.prefix(2).joined(separator: ", "))" }
}
