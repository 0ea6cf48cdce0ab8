import ArgumentParser
import Commands
import Encoding
import Foundation
import Ledger
import Postgres

/// `makegood check --seals`: computes the hashes of all blocks again, and compares them with heads that left the
/// database.
struct SealCheck: Sendable {
    /// A file with heads; nil: none.
    let heads: String?
    let isJSON: Bool

    /// A log of a year with a head every five minutes, in JSON, has 30 MB.
    private static let headsBytesMax = 1 << 28

    func run() async throws {
        let known = try heads.map { path in
            let file = InputFile(path: path)
            let found = SealHead.heads(in: String(decoding: try file.read(bytesMax: Self.headsBytesMax), as: UTF8.self))
            guard !found.isEmpty else {
                throw ValidationError(
                    "\(file.name) has no head: neither `seal.head NUMBER HASH` nor the seals of a daily report")
            }
            return found
        }
        let report = try await Connections.withDatabase("check", patience: .seconds(600), isReadOnly: true) {
            try await look(known ?? [], $0)
        }
        if isJSON { try JSON.print(report) } else { show(report) }
        if !report.findings.isEmpty { throw ExitCode(1) }
    }

    private func look(_ known: [SealHead], _ database: Database) async throws -> Report {
        let head = try await database.run(Statements.sealHeads, 1).first
        let extent = try await database.run(Statements.sealExtent).first
        var findings: [SealFinding] = []
        var decidedAgain: [Report.Decision] = []
        for number in stride(from: 1, through: head?.number ?? 0, by: 1) {
            findings += try await SealFinding.look(at: number, database)
            decidedAgain += try await database.run(Statements.decidedAgain, number).map {
                .init(block: number, row: $0)
            }
        }
        let compared = try await SealFinding.compare(known, database)
        return Report(
            blocks: extent?.blocks ?? 0, rows: extent?.rows ?? 0, corrections: extent?.corrections ?? 0,
            decidedAgain: decidedAgain, head: head?.line, headsCompared: Set(known.map(\.line)).count,
            headsAgreeUpTo: compared.agreeing,
            findings: (findings + compared.findings).map {
                Report.Finding(block: $0.block, what: $0.what.rawValue, row: $0.row)
            })
    }

    private func show(_ report: Report) {
        for finding in report.findings {
            print("BROKEN block \(finding.block): \(Self.sentence(finding, agreeUpTo: report.headsAgreeUpTo))")
        }
        if report.findings.isEmpty {
            let end = report.blocks == 1 ? "is as it was sealed" : "are as they were sealed"
            print("ok     \(report.blocks.counted("block")) with \(report.rows.counted("row")) \(end)")
        }
        if report.headsCompared > 0 {
            print("\(report.headsCompared.counted("head")) compared, all up to block \(report.headsAgreeUpTo) agree")
        }
        print("\(report.corrections.counted("row was", "rows were")) corrected by an erasure")
        let again = report.decidedAgain.count.counted("outcome was", "outcomes were")
        print("\(again) decided again after the seal (--json names them)")
        if let head = report.head { print(head) }
    }

    private static func sentence(_ finding: Report.Finding, agreeUpTo last: Int) -> String {
        let row = finding.row ?? "a row"
        return switch SealFinding.What(rawValue: finding.what) {
        case .edited: "\(row) was edited"
        case .deleted: "\(row) was deleted"
        case .inserted: "\(row) was inserted after the block was sealed"
        case .unnumbered: "\(row) names no transaction, and no block has it"
        case .uncaused: "\(row) says that a user was erased, and no audit says so"
        case .resealed: "the block was changed: its hash is not the hash of its rows and of the block before"
        case .missing: "the block is gone"
        case .rewritten, nil:
            "its hash is not the head that left the database: blocks were written anew, the first of them after "
                + "block \(last)"
        }
    }

    private struct Report: Encodable {
        struct Finding: Encodable {
            let block: Int
            let what: String
            let row: String?
        }

        /// An outcome that was decided again after the block was sealed.
        struct Decision: Encodable {
            let block: Int
            let row: String
        }

        let blocks: Int
        let rows: Int
        let corrections: Int
        let decidedAgain: [Decision]
        let head: String?
        let headsCompared: Int
        let headsAgreeUpTo: Int
        let findings: [Finding]
    }
}
