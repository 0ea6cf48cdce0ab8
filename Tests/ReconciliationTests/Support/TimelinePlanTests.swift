import Foundation
import Testing

@testable import Encoding
@testable import Ledger
@testable import Postgres
@testable import Support

/// Goal: a timeline and a page of purchases cost the same in a database of ten years: key look-ups, whatever the plan
/// (B14). Method: 50,000 receipts and their other rows; every plan with its values, by EXPLAIN, and then the plans
/// without them (`force_generic_plan`), by PostgreSQL's own count of whole tables that were read.
@Suite(.serialized, .timeLimit(.minutes(8))) struct TimelinePlanTests {
    private static let tables = [
        "receipts", "outcomes", "transactions", "grants", "attempts", "events", "orders", "audits",
        "provisional_grants", "ownerships", "double_charges", "client_reports", "apple_updates", "imported_grants",
    ]

    @Test("B14: no timeline and no list reads a whole table")
    func plans() async throws {
        try await LedgerLab.with(connections: 1, endsSound: false) { lab in
            try await lab.fillHistory()
            // Otherwise autovacuum would come later: its work on a BRIN index counts as reading the table.
            try await lab.run("vacuum (analyze)")
            let receipt = try #require(
                try await lab.texts("select receipt_id::text from grants where transaction_id = 't777'").first
                    .flatMap(UUID.init(uuidString:)))
            let order = try #require(
                try await lab.texts("select order_id::text from grants where transaction_id = 't777'").first
                    .flatMap(UUID.init(uuidString:)))
            let keys = TimelineKeys(
                appID: "game", receipts: [receipt], transactions: ["t777", "t778", "it777"], orders: [order])
            let page = Statements.PurchasePage(
                appID: "game", userIDs: ["u777", "u778"], before: .newest, limit: 51)
            let tenDaysAgo = Int(Date.now.timeIntervalSince1970 - 10 * 86_400) * 1_000_000
            let later = Statements.PurchasePage(
                appID: "game", userIDs: page.userIDs, before: ListCursor(at: tenDaysAgo, key: "t5"), limit: 51)
            let month = Statements.SpendingQuestion(
                appID: "game", userIDs: page.userIDs, from: .now.addingTimeInterval(-30 * 86_400), to: .now)
            for isGeneric in [false, true] {
                let mode = isGeneric ? "force_generic_plan" : "force_custom_plan"
                try await lab.run("set plan_cache_mode = \(mode)")
                let before = try await wholeReads(lab)
                for reader in [
                    TimelineReader.people, .support(apps: ["game", "other"]),
                    .player(["game": "u777", "other": "u777"]),
                ] {
                    try await check(Statements.findReceiptTimeline, .init(id: receipt, reader: reader), lab)
                    try await check(Statements.findOrderTimeline, .init(id: order, reader: reader), lab)
                    try await check(Statements.findTransactionTimeline, .init(id: "t777", reader: reader), lab)
                }
                try await check(Statements.timelineReceipts, keys, lab)
                try await check(Statements.timelineOutcomes, keys, lab)
                try await check(Statements.timelineAttempts, keys, lab)
                try await check(Statements.timelineTransactions, keys, lab)
                try await check(Statements.timelineGrants, keys, lab)
                try await check(Statements.timelineTrusts, keys, lab)
                try await check(Statements.timelineImported, keys, lab)
                try await check(Statements.timelineOwnerships, keys, lab)
                try await check(Statements.timelineDoubleCharges, keys, lab)
                try await check(Statements.timelineEvents, keys, lab)
                try await check(Statements.timelineOrders, keys, lab)
                try await check(Statements.timelineReports, keys, lab)
                try await check(Statements.timelineAppleUpdates, keys, lab)
                try await check(Statements.timelineCommands, keys, lab, findsSome: false)
                try await check(Statements.timelineHalts, keys, lab, findsSome: false)
                try await check(Statements.timelineNotifications, keys, lab, findsSome: false)
                try await check(Statements.timelineRevocations, keys, lab, findsSome: false)
                try await check(Statements.timelineRefundRequests, keys, lab, findsSome: false)
                try await check(Statements.timelineConsumption, keys, lab, findsSome: false)
                try await check(Statements.timelineSubscriptions, keys, lab, findsSome: false)
                for page in [page, later] {
                    try await check(Statements.grantedPurchases, page, lab)
                    try await check(Statements.importedPurchases, page, lab)
                    try await check(Statements.postedPurchases, page, lab)
                }
                try await check(Statements.purchaseFacts, [(appID: "game", transactionID: "t777")], lab)
                try await check(Statements.spending, month, lab)
                let explainer = Explainer(database: lab.database, keys: nil)
                let start = ContinuousClock.now
                for _ in 0..<100 { #expect(try await explainer.timeline(ofAny: "t777", for: .people) != nil) }
                print("timeline: \((ContinuousClock.now - start) / 100) each, \(mode)")
                let after = try await wholeReads(lab)
                #expect(after == before, "\(mode)")
            }
        }
    }

    /// - Parameter findsSome: whether the history has rows for it.
    private func check<Parameters: Sendable, Row: Sendable>(
        _ statement: Statement<Parameters, Row>, _ parameters: Parameters, _ lab: LedgerLab, findsSome: Bool = true
    ) async throws {
        let rows = try await lab.database.run(statement, parameters)
        #expect(rows.isEmpty != findsSome, "\(statement.name) found \(rows.count) rows")
        let explain = Statement<Parameters, String>(
            "test.explain", "explain \(statement.sql)", bind: statement.bind,
            read: { row throws(PostgresError) in try row.text(0) })
        let plan = try await lab.database.run(explain, parameters)
        let whole = plan.filter { line in Self.tables.contains { line.contains("Seq Scan on \($0) ") } }
        #expect(whole == [], "\(statement.name):\n\(plan.joined(separator: "\n"))")
    }

    /// The tables that were read from their beginning, and how often.
    private func wholeReads(_ lab: LedgerLab) async throws -> [String] {
        try await lab.run("select pg_stat_force_next_flush()")
        return try await lab.texts(
            """
            select relname || ' ' || seq_scan from pg_stat_user_tables
            where relname in (\(Self.tables.map { "'\($0)'" }.joined(separator: ", "))) order by relname
            """)
    }
}
