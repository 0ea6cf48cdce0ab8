import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Postgres
import Purchases

/// `makegood-lab bench seals`: compares the rate at which rows are sealed with the rate at which grants are settled.
/// Hidden: it writes purchases that nobody made.
struct BenchSealsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "seals",
        abstract: "Settle purchases and seal their rows, in turn, and say how many a second.",
        discussion: """
            One connection. Each round settles batches as a worker writes them, and then seals all rows in blocks as a \
            scheduler does, without its rests; the first round does not count. Then all blocks are checked. Then 200 \
            purchases a second are settled, and every ten seconds all rows are sealed: `share` is the time that \
            sealing takes of a core. Prints one line of JSON: {"settledPerSecond", "sealedPerSecond", "ratio", \
            "checkedPerSecond", "share"}; grants and rows, of the medians. Only for a migrated database that holds \
            nothing but what the benches wrote; may be repeated.
            """, shouldDisplay: false)

    @Option(help: ArgumentHelp("Rounds; the first does not count.", valueName: "number"))
    var rounds = 12
    @Option(help: ArgumentHelp("Batches of 256 purchases in each round.", valueName: "number"))
    var batches = 20
    @Option(help: ArgumentHelp("How long 200 purchases a second are settled.", valueName: "seconds"))
    var seconds = 60

    private static let batch = 256
    private static let rowsMax = 4096
    private static let rate = 200
    private static let sealEvery = 10

    func validate() throws {
        guard (3...1000).contains(rounds) else { throw ValidationError("--rounds must be 3 to 1000") }
        guard (1...1000).contains(batches) else { throw ValidationError("--batches must be 1 to 1000") }
        guard (Self.sealEvery...3600).contains(seconds) else {
            throw ValidationError("--seconds must be \(Self.sealEvery) to 3600")
        }
    }

    func run() async throws {
        let line = try await Connections.withDatabase("bench-seals", keepsPlans: true) { database in
            if try await database.run(SettleTrial.foreign).first == true {
                throw ValidationError("the database holds receipts that no bench put there")
            }
            var sealing = Sealing()
            _ = try await sealing.sealAll(in: database)
            var (settled, sealed): ([Double], [Double]) = ([], [])
            for round in 0..<rounds {
                var taken = 0.0
                for _ in 0..<batches {
                    taken += try await SettleTrial(Self.batch, hasOrders: false, in: database).run(in: database).settle
                }
                let work = try await sealing.sealAll(in: database)
                guard round > 0 else { continue }
                settled.append(Double(batches * Self.batch) / taken)
                sealed.append(Double(work.rows) / work.seconds)
            }
            let checked = try await check(in: database)
            let share = try await share(&sealing, in: database)
            let (settle, seal) = (median(settled), median(sealed))
            return "{\"settledPerSecond\":\(settle.rounded(to: 0)),\"sealedPerSecond\":\(seal.rounded(to: 0)),"
                + "\"ratio\":\((seal / settle).rounded(to: 2)),\"checkedPerSecond\":\(checked.rounded(to: 0)),"
                + "\"share\":\(share.rounded(to: 4))}"
        }
        Terminal.show(line)
    }

    /// Rows a second of a check of all blocks.
    private func check(in database: Database) async throws -> Double {
        let blocks = try await database.run(Statements.sealHeads, 1).first?.number ?? 0
        let rows = try await database.run(Statements.sealExtent).first?.rows ?? 0
        let start = ContinuousClock.now
        for number in stride(from: 1, through: blocks, by: 1) {
            guard try await SealFinding.look(at: number, database).isEmpty else {
                throw ValidationError("a block of the bench does not hold")
            }
        }
        return Double(rows) / (ContinuousClock.now - start).inSeconds
    }

    /// The share of the time that sealing takes beside purchases at a steady rate.
    private func share(_ sealing: inout Sealing, in database: Database) async throws -> Double {
        let start = ContinuousClock.now
        var taken = 0.0
        for second in 1...seconds {
            let trial = try await SettleTrial(Self.rate, hasOrders: false, in: database)
            _ = try await trial.run(in: database)
            if second % Self.sealEvery == 0 { taken += try await sealing.sealAll(in: database).seconds }
            try await Task.sleep(until: start + .seconds(second), clock: .continuous)
        }
        return taken / (ContinuousClock.now - start).inSeconds
    }

    private func median(_ values: [Double]) -> Double { values.sorted()[values.count / 2] }

    /// Seals as a scheduler does, without its rests.
    private struct Sealing {
        private var transactions: Int?

        /// Returns the rows that it sealed, and the time that the statements took.
        mutating func sealAll(in database: Database) async throws -> (rows: Int, seconds: Double) {
            let start = ContinuousClock.now
            var rows = 0
            while let plan = try await database.run(
                Statements.planSeal, .init(transactions: transactions, rows: rowsMax)
            ).first {
                transactions = plan.nextTransactions
                if plan.rows > 0 { rows += try await database.run(Statements.seal, plan).first?.rows ?? 0 }
                guard plan.isMore else { break }
            }
            return (rows, (ContinuousClock.now - start).inSeconds)
        }
    }
}
