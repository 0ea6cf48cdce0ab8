import Encoding
import Foundation
import Logging
import Postgres
import Purchases
import Testing

@testable import Ledger
@testable import Reconciliation
@testable import Service
@testable import Support

/// Goal: heads that left the database are read in every form in which a person gets them, and a scheduler names a
/// changed row in time (L2). Method: reports of a sealed ledger through PostgreSQL's own forms; a scheduler's loop with
/// its own rests, on a clock that runs faster.
@Suite(.timeLimit(.minutes(4))) struct SealCheckTests {
    @Test("a head's line is found in any log, and other text is none")
    func lines() throws {
        let head = SealHead(number: 812, hash: (0..<32).map { UInt8($0 * 8) })
        #expect(head.line.hasPrefix("seal.head 812 0008101820"))
        let log = """
            {"level": "notice", "message": "\(head.line)", "service": "scheduler"}
            2026-11-30T10:00:00Z notice makegood : \(head.line)
            seal.head 813 0008
            seal.heads 812
            {"day": "2026-11-30", "seals": {"block": 812, "blocks": 3, "head": "\(head.line.suffix(64))"}}
            """
        #expect(SealHead.heads(in: log) == [head, head, head])
    }

    @Test("L2: heads are read from the report of a day in each form that a person gets")
    func reports() async throws {
        try await LedgerLab.with(endsSound: false) { lab in
            try await lab.settle(try await lab.post(), .purchase("t1"))
            try await lab.sealAll()
            let head = try #require(try await lab.database.run(Statements.sealHeads, 1).first)
            let report = try await DayReport.read(
                day: "\(Date().rfc3339.prefix(10))", appID: nil, in: lab.database)
            #expect(report.text.contains("\n  \(head.line), of "), "\(report.text)")
            #expect(SealHead.heads(in: report.text) == [head])
            let json = try report.json
            #expect(SealHead.heads(in: json) == [head], "\(json)")
            _ = try await lab.database.run(Statements.keepReport, (day: report.day, report: json))
            // psql: a cell, a cell of many lines, the seals alone, a CSV; a log in JSON that holds the report as a text.
            for form in [
                "report::text", "replace(jsonb_pretty(report), e'\\n', e' +\\n ')", "(report -> 'seals')::text",
                #"'"' || replace(report::text, '"', '""') || '"'"#, "to_json(report::text)::text",
            ] {
                let texts = try await lab.texts("select \(form) from daily_reports")
                #expect(texts.count == 1 && SealHead.heads(in: texts.joined()) == [head], "\(form): \(texts)")
            }
            // Two days in one file, and an object that has a head and no block.
            let days = "\(json)\n\(json)\n{\"block\": 1}\n{\"head\": \"\(head.line.suffix(64))\"}"
            #expect(SealHead.heads(in: days) == [head, head])
        }
    }

    @Test("L2: a scheduler at its own pace names an edited and a deleted row within ten minutes of a scaled clock")
    func pace() async throws {
        try await LedgerLab.with(connections: 4, endsSound: false) { lab in
            let scale = 0.02
            let lines = LogLines()
            try await lab.fillSealed()
            #expect(try await lab.sealedBlocks().count > Sealer.newest + 2, "both rows are of older blocks")
            let ledger = Ledger(
                database: lab.ledger.database, writers: 1, schedule: RetrySchedule(scale: scale))
            let sealer = Sealer(ledger: ledger, logger: lines.logger, metrics: PrometheusRegistry())
            await withTaskGroup(of: Void.self) { group in
                group.addTask { try? await sealer.run() }
                for (sql, what, row) in [
                    ("update grants set user_id = 'thief' where transaction_id = 'g1'", "edited", "grant g1"),
                    ("delete from revocations where transaction_id = 'g2'", "deleted", "revocation g2 "),
                ] {
                    do {
                        try await lab.run(sql)
                        let start = ContinuousClock.now
                        try await lab.until("\(row) is not named") {
                            lines.take().contains {
                                $0.metadata["seal.finding"] == "\(what)"
                                    && "\($0.metadata["seal.row"] ?? "")".hasPrefix(row)
                            }
                        }
                        #expect(ContinuousClock.now - start < .seconds(600) * scale)
                    } catch {
                        Issue.record(error)
                    }
                }
                group.cancelAll()
            }
        }
    }
}
