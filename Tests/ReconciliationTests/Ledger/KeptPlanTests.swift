import Foundation
import Postgres
import Purchases
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: a plan that a service made while the tables were empty, and keeps, never reads all rows of an app to look up
/// one of them: on the first day of a deployment, or of an app that moves in, everything is written before autovacuum
/// first runs (WritingVerdicts).
///
/// Method: no statistics and no autovacuum. Each statement runs once on the empty database, then the test stores 50,000
/// receipts and their other rows, then the statement runs again, and the blocks that the server touches for it are
/// counted. `SettlePlanTests` covers settling.
@Suite(.serialized, .timeLimit(.minutes(8))) struct KeptPlanTests {
    /// The most is 350, for the evidence of a purchase's owner. A plan that reads all rows of an app touches 47,000.
    private static let blocksMax = 2000

    private struct Probe {
        var name: String
        var run: (LedgerLab) async throws -> Int
    }

    @Test("what was planned on empty tables touches few blocks of full ones")
    func plans() async throws {
        try await LedgerLab.with(connections: 1, endsSound: false, isAlone: true) { lab in
            for table in try await lab.texts(
                "select relname from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace")
            { try await lab.run("alter table \(table) set (autovacuum_enabled = false)") }
            let probes = Self.probes
            for probe in probes { _ = try await probe.run(lab) }
            try await lab.fillHistory()
            try await lab.run(
                """
                insert into shadow_decisions (transaction_id, purchase_key, app_id, environment, original_transaction_id,
                  user_id, product_id, goods, binding_source, order_id, token, purchased_at, receipt_id)
                select transaction_id, purchase_key, app_id, environment, transaction_id, user_id, product_id, goods,
                  binding_source, order_id, order_id, granted_at, receipt_id from grants
                """)
            // In its first run, a session also reads the catalogue's entries of the new day's tables.
            for probe in probes { _ = try await probe.run(lab) }
            for probe in probes {
                var rows = 0
                let blocks = try await lab.touched { rows = try await probe.run(lab) }
                print("kept plan: \(probe.name) touches \(blocks) blocks for \(rows) rows")
                #expect(rows > 0, "\(probe.name) found nothing")
                #expect(blocks <= Self.blocksMax, "\(probe.name)")
            }
        }
    }

    private static let transaction = "t777"
    private static let receipt = UUID(uuidString: "00000000-0000-8000-8000-000000000777")!
    private static let users = ["u777", "u778"]
    private static func order(_ lab: LedgerLab) async throws -> UUID {
        try await lab.texts("select order_id::text from grants where transaction_id = '\(transaction)'").first
            .flatMap(UUID.init(uuidString:)) ?? UUID()
    }
    private static func probe<Parameters: Sendable, Row: Sendable>(
        _ statement: Statement<Parameters, Row>,
        _ parameters: @escaping (LedgerLab) async throws -> Parameters
    ) -> Probe {
        Probe(name: statement.name) { lab in
            try await lab.ledger.run(statement, parameters(lab)).count
        }
    }

    private static var probes: [Probe] {
        let page = Statements.PurchasePage(appID: "game", userIDs: users, before: .newest, limit: 51)
        let month = Statements.SpendingQuestion(
            appID: "game", userIDs: users, from: .now.addingTimeInterval(-30 * 86_400), to: .now)
        let question = { (order: UUID) in
            EvidenceQuestion(
                appID: "game", userID: "u777", namedOrderID: order, installationID: "i777", recordUserID: "u778",
                transaction: Verdict.Entry.purchase("new", of: transaction) { $0.appAccountToken = order }.transaction,
                isOneOfSeveral: true)
        }
        let wish = { (order: UUID) in
            NewOrder(
                id: UUID(), appID: "game", userID: "u777", productID: "coins", item: nil, quantity: 1, promotion: nil,
                channel: "app_store", environment: nil, offer: nil, payBy: .seconds(3600), target: "{}", details: "{}",
                installationTokenSHA256: nil, debounceKey: [1], debounce: .seconds(10), idempotencyKey: "key",
                reservedFor: transaction)
        }
        let report = ClientReport(
            appID: "game", userID: "u777", orderID: nil, transactionID: transaction, kind: .failed, message: nil,
            appVersion: nil, details: "{}")
        return [
            probe(Statements.fetchReceipts) { _ in [receipt] },
            Probe(name: "ledger.read_receipts") { lab in
                try await lab.ledger.database.receiptViews([receipt]).count
            },
            probe(Statements.finishedReceipts) { _ in [receipt] },
            probe(
                Statement<UUID, String>(
                    "test.say_line",
                    "select say_line($1, gen_random_uuid()::text, null, null, null, null, null, '{}', 16)",
                    bind: { [.uuid($0)] }, read: { row throws(PostgresError) in try row.text(0) })
            ) { _ in receipt },
            probe(Statements.areKnownTransactions) { _ in [transaction] },
            probe(Statements.reopenClaim) { _ in .init(receiptID: receipt, payload: "x", moves: true) },
            probe(Statements.userHistory) { _ in .init(appID: "game", userID: "u777", purchasesMax: 10) },
            probe(Statements.storeReport) { lab in
                var report = report
                report.orderID = try await order(lab)
                return report
            },
            probe(Statements.placeOrders) { lab in
                var order = wish(UUID())
                order.reservedFor = nil
                order.idempotencyKey = UUID().uuidString
                order.debounceKey = Array(order.id.uuidString.utf8)
                return [order]
            },
            probe(Statements.findOrders) { lab in [wish(try await order(lab))] },
            probe(Statements.readOrders) { lab in [try await order(lab)] },
            probe(Statements.boundOrders) { lab in [try await order(lab)] },
            probe(Statements.searchOrders) { _ in .init(appID: "game", userIDs: users, limit: 50) },
            probe(Statements.boughtUnits) { _ in
                .init(
                    appID: "game", userID: "u777", product: .init(id: "coins", kind: .consumable, goods: []),
                    item: "coins")
            },
            probe(Statements.registerToken) { _ in .init(appID: "game", userID: "u777", token: UUID()) },
            probe(Statements.issueToken) { _ in .init(appID: "game", userID: "u777", token: UUID()) },
            probe(Statements.knownPurchases) { _ in
                .init(
                    receiptID: receipt, appID: "game",
                    transactions: [Verdict.Entry.purchase(transaction).transaction])
            },
            Probe(name: "matching.evidence") { lab in
                let questions = [question(try await order(lab))]
                return try await EvidenceQuestion.fullAnswers(to: questions, in: lab.ledger.database)
                    .flatMap(\.orders).count
            },
            Probe(name: "ledger.hear") { lab in
                let bought = Verdict.Entry.purchase(transaction).transaction.signed(10)
                let fresh = Verdict.Entry.purchase(UUID().uuidString, of: transaction).transaction
                var hearing = Hearing.of(bought)
                hearing.submissions = [Submission(unposted: fresh, jws: fresh.id, of: "game", source: .notification)]
                return try await lab.hear([hearing], on: lab.ledger.database)[0].count
            },
            Probe(name: "ledger.follow_up") { lab in
                // One is granted, and receipts of the other were rejected.
                try await lab.run(
                    """
                    insert into chain_marks (app_id, environment, original_transaction_id)
                    values ('game', 'Production', '\(transaction)'), ('game', 'Production', 't780')
                    """)
                return try await lab.followUp(on: lab.ledger.database).chains
            },
            Probe(name: "settle.wake_unposted") { lab in
                try await lab.ledger.database.transact("test.wake") { session throws(PostgresError) in
                    let verdict = Verdict(
                        receiptID: receipt, attempt: 0, appID: "game",
                        claim: Claim(userID: "u777", hasPossession: true, receivedAt: .now),
                        decisions: .transactions([.purchase(transaction) { $0.customerID = "c777" }]),
                        dueIn: .seconds(60)
                    )
                    session.queue(Statements.wakeUnposted, VerdictRow.rows(of: [verdict]))
                    try session.commit()
                    return 1
                }
            },
            probe(Statements.shadowEvidence) { lab in [question(try await order(lab))] },
            probe(Statements.shadowOrders) { lab in [try await order(lab)] },
            probe(Statements.shadowFacts) { _ in .init(appID: "game", transactionIDs: [transaction]) },
            probe(Statements.findReceiptTimeline) { _ in .init(id: receipt, reader: .player(["game": "u777"])) },
            probe(Statements.findTransactionTimeline) { _ in
                .init(id: transaction, reader: .player(["game": "u777"]))
            },
            probe(Statements.findOrderTimeline) { lab in
                .init(id: try await order(lab), reader: .player(["game": "u777"]))
            },
            Probe(name: "timeline.read") { lab in
                let rows = try await TimelineRows.read(
                    TimelineKeys(
                        appID: "game", receipts: [receipt], transactions: [transaction, "t778", "i\(transaction)"],
                        orders: [try await order(lab)]), in: lab.ledger.database)
                // The least of the kinds that the history has: none may be missing.
                return [
                    rows.receipts.count, rows.outcomes.count, rows.attempts.count, rows.transactions.count,
                    rows.grants.count, rows.trusts.count, rows.imported.count, rows.ownerships.count,
                    rows.doubleCharges.count, rows.events.count, rows.orders.count, rows.reports.count,
                    rows.appleUpdates.count,
                ].min() ?? 0
            },
            probe(Statements.purchaseFacts) { _ in [(appID: "game", transactionID: transaction)] },
            probe(Statements.grantedPurchases) { _ in page },
            probe(Statements.importedPurchases) { _ in page },
            probe(Statements.postedPurchases) { _ in page },
            probe(Statements.spending) { _ in month },
            probe(Statements.standings) { _ in [receipt] },
            probe(Statements.userTraces) { _ in .init(appID: "game", key: "u777") },
        ]
    }
}
