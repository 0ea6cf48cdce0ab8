import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import RabbitMQ
import Testing

@testable import AppleGateway
@testable import Encoding
@testable import Ledger
@testable import Reconciliation
@testable import Settings
@testable import WorkQueue

extension CustomerSweep {
    /// A round after which no app rests.
    @discardableResult
    func round() async -> Bool {
        var rests = SweepRests<String>()
        return await round(&rests)
    }
}

extension RefundSweep {
    /// A round after which no app rests.
    @discardableResult
    func round() async -> Bool {
        var rests = SweepRests<String>()
        return await round(&rests)
    }
}

extension VerifyLab {
    /// The sweeps of one worker, whose broker is away.
    func sweeps(
        _ more: [String] = [], grantFrom: String? = "2020-01-01T00:00:00Z", others: [String] = []
    ) async throws -> Sweeps {
        let apps = AppDirectory(http: http)
        try await apps.update(try configuration(more: more, grantFrom: grantFrom, others: others), ledger: lab.ledger)
        let queues = Queues()
        let publisher = Publisher(
            try BrokerConfiguration(url: "amqp://127.0.0.1:1"), topology: queues.topology, logger: .silent)
        await publisher.close()
        return Sweeps(
            ledger: lab.ledger, apps: apps, halts: halts,
            appleGateway: AppleGateway(halts: halts, governor: governor()),
            workQueue: WorkQueue(publisher: publisher, queues: queues), followUps: FollowUpSignal(), logger: .silent)
    }

    /// A purchase of the customer `one` that `u1` was granted.
    func buyKnown() async throws -> String {
        let purchase = try await sell { $0.customer = "one" }.purchase
        try await give(purchase.transactionId, customer: purchase.appTransactionId)
        return purchase.transactionId
    }

    func give(_ id: String, customer: String? = nil) async throws {
        let known = store.ledger.first { $0.transactionId == id }
        try await lab.settle(
            try await lab.post(),
            .purchase(id) {
                $0.customerID = customer ?? known?.appTransactionId
                $0.purchasedAt = .now
            })
    }

    func importGrant(_ id: String, _ purchasedAt: String = "now()") async throws {
        try await lab.run(
            """
            insert into imported_grants
              (transaction_id, app_id, environment, original_transaction_id, user_id, product_id, purchased_at)
            values ('\(id)', 'game', 'Production', '\(id)', 'u3', 'coins', \(purchasedAt))
            """)
    }

    /// Enters the customers behind the verdicts, and makes all of them due.
    func enter(_ sweeps: Sweeps) async throws {
        let granted = try await lab.number(
            "select count(distinct customer_id) + (select count(*) from imported_grants) from grants")
        var state = CustomerRota.State()
        try await lab.until("the customers are not entered") {
            _ = await CustomerRota(sweeps).round(&state)
            return try await lab.number("select count(*) from history_walks where due_at is not null") >= granted
        }
        try await makeDue()
        try await lab.run("update history_walks set refunds_due_at = now() where refunds_due_at is not null")
    }

    func makeDue() async throws {
        try await lab.run("update history_walks set due_at = now() where due_at < 'infinity'")
    }

    /// `transaction state source` of the receipts that nobody posted, in order.
    func unpostedReceipts() async throws -> [String] {
        try await lab.texts(
            "select concat_ws(' ', transaction_id, state, source) from receipts where source <> 'post' order by 1")
    }

    /// `pages passed_over failures problem ended` of each customer.
    func walks() async throws -> [String] {
        try await lab.texts(
            """
            select concat_ws(' ', swept_pages, passed_over, failures, coalesce(problem, '-'), swept_at is not null)
            from history_walks order by customer
            """)
    }

    /// `net is_open` of each list without an end, if the difference names a customer whom Apple is asked about.
    func endless() async throws -> [String] {
        try await lab.texts(
            """
            select concat_ws(' ', d.net, d.ended_at is null) from differences d
            join history_walks w on w.customer = d.subject where d.category = 'list_endless' order by 1
            """)
    }

    var historyCalls: Int { store.calls().count { $0.service == .history } }
    var refundCalls: Int { store.calls().count { $0.service == .refundHistory } }
}
