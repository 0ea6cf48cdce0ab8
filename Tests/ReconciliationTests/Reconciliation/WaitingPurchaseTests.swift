import Foundation
import Logging
import Postgres
import Purchases
import Testing

@testable import Ledger
@testable import Reconciliation
@testable import Service

/// Goal: one paid purchase that waits longer than its limit is counted and named, and nothing else is (S1-33). Method:
/// receipts of every kind on a database of its own, moved back in time by SQL; the view, the metrics and the log line.
@Suite(.timeLimit(.minutes(4))) struct WaitingPurchaseTests {
    @Test("S1-33: what waits an hour is named, its owner's a day later; the sandbox, bare ids and held ones end")
    func waiting() async throws {
        // The rows leave the day that has counted them.
        try await LedgerLab.with(endsSound: false) { lab in
            _ = try await lab.ledger.run(
                Statements.rememberApp, .init(appID: "game", configurationHash: [1], isLive: true))
            var receipts: [String: Posted] = [:]
            for (id, decision, environment) in [
                ("held", .held(.productUnknown), Transaction.production),
                ("owner", .held(.tokenDisputed), "Production"),
                ("sandbox", .held(.sandbox), Transaction.sandbox), ("granted", nil, "Production"),
                ("refused", .rejected(.refunded), "Production"),
            ] as [(String, Decision?, String)] {
                let posted = try await lab.post("u-\(id)")
                receipts[id] = posted
                let entry =
                    decision.map { Verdict.Entry.purchase(id, in: environment, $0) }
                    ?? Verdict.Entry.purchase(id, in: environment)
                try await lab.settle(posted, entry)
            }
            // Nobody has judged these two.
            receipts["unjudged"] = try await lab.post("u-unjudged")
            receipts["bare"] = try await lab.post("u-bare", kind: .identifier, transactionID: "bare")
            let lines = LogLines()
            let registry = PrometheusRegistry()
            let watch = Watch(ledger: lab.ledger, logger: lines.logger, metrics: registry)
            var named: Set<UUID> = []
            func late(_ line: String) -> Double? {
                let series = "makegood_late_purchases{app=\"game\",line=\"\(line)\"} "
                return registry.text.split(separator: "\n").first { $0.hasPrefix(series) }
                    .flatMap { Double($0.dropFirst(series.count)) }
            }
            func names() -> Set<String> {
                Set(lines.take().compactMap { $0.metadata["receipt.id"]?.description.uppercased() })
            }
            func id(_ name: String) throws -> String { try #require(receipts[name]).id.uuidString }
            for (minutes, any, owner, newlyNamed) in [
                (59, 0.0, 0.0, []), (61, 2, 0, ["held or unjudged"]), (24 * 60 + 59, 2, 0, []),
                (25 * 60 + 1, 2, 1, ["owner"]), (7 * 24 * 60 + 1, 1, 0, ["unjudged"]),
            ] as [(Int, Double, Double, [String])] {
                try await lab.run("update receipts set received_at = now() - interval '\(minutes) minutes'")
                try await watch.measureWaiting(&named)
                #expect(late("any") == any && late("owner") == owner, "after \(minutes) minutes")
                let seen = names()
                switch newlyNamed.first {
                case "owner"?: #expect(seen == [try id("owner")])
                // The other of the two is named when it waits longest.
                case "unjudged"?: #expect(seen.isSubset(of: [try id("unjudged")]))
                case nil: #expect(seen == [])
                default: #expect(try seen.count == 1 && seen.isSubset(of: [id("held"), id("unjudged")]))
                }
            }
            // The held ones stay in the view.
            #expect(
                try await lab.texts(
                    "select concat_ws(' ', line, coalesce(product_id, '-'), nullif(reason, '')) from v_waiting_purchases order by 1"
                )
                    == ["any -", "any coins product_unknown", "owner coins token_disputed"])
            // What ends, ends the alarm.
            try await lab.settle(try #require(receipts["unjudged"]), .purchase("found"))
            try await watch.measureWaiting(&named)
            #expect(late("any") == 0 && late("owner") == 0)
        }
    }
}
