import Encoding
import Foundation
import Logging
import Postgres
import Purchases
import Service
import TestSchemas
import TestServers
import Testing

@testable import Ledger
@testable import Reconciliation

/// A ledger on a database of its own, on the real server, dropped afterwards.
///
/// Unless a test says otherwise, every invariant of `makegood check` must hold when its body ends, and each event must
/// fit its schema in deploy/events. Costs about 0.2 s.
struct LedgerLab: Sendable {
    let url: String
    let ledger: Ledger
    /// Connects apart from the ledger's own connections.
    let database: Database
    let parking: Parking

    static func with(
        scale: Double = 1, connections: Int = 2, writers: Int = 2, parking: Parking = .init(),
        endsSound: Bool = true, isAlone: Bool = false, _ body: (LedgerLab) async throws -> Void
    ) async throws {
        // A lab that is alone takes all places. Only one such lab may wait at a time, or two would wait for each other.
        let places = isAlone ? slotsMax : 1
        for _ in 0..<places { await slots.enter() }
        defer { for _ in 0..<places { slots.leave() } }
        let test = try await TestDatabase.migrated()
        let configuration = Self.configuration(test.url)
        let lab = LedgerLab(
            url: test.url,
            ledger: Ledger(
                database: Database(configuration, connections: connections, logger: .silent), writers: writers,
                schedule: RetrySchedule(scale: scale)),
            database: Database(configuration, connections: 1, logger: .silent), parking: parking)
        let result: Result<Void, any Error>
        do {
            try await body(lab)
            if endsSound {
                // The check runs without the waits between tries.
                let violations = try await Invariant.check(lab.database, span: .all, scale: 0)
                #expect(violations == [])
                #expect(try await lab.unfitEvents() == [])
            }
            result = .success(())
        } catch {
            result = .failure(error)
        }
        await lab.ledger.close()
        await lab.database.close()
        await test.drop()
        try result.get()
    }

    /// The most labs at a time. Tests run side by side, and a server has about a hundred sessions for all of them.
    private static let slotsMax = 6
    private static let slots = AsyncSemaphore(slotsMax)

    static func configuration(_ url: String, name: String = "makegood-tests") -> PostgresConfiguration {
        var configuration = PostgresConfiguration(
            url: url, applicationName: name, statementTimeout: .seconds(30), lockTimeout: .seconds(20),
            callDeadline: .seconds(60), reconnectWait: .seconds(10))
        configuration.keepsPlans = true
        return configuration
    }

    /// Lends a session that acts as another process: one connection, whose `begin` and `commit` the test writes itself.
    func withSession(_ body: (Database) async throws -> Void) async throws {
        let session = Database(Self.configuration(url), connections: 1, logger: .silent)
        do {
            try await body(session)
            await session.close()
        } catch {
            await session.close()
            throw error
        }
    }

    func run(_ sql: String) async throws { try await database.run(Statement<Void, Void>("test.run", sql)) }

    func number(_ sql: String) async throws -> Int {
        try #require(
            try await database.run(
                Statement<Void, Int>("test.number", sql, read: { row throws(PostgresError) in try row.int(0) })
            ).first)
    }

    func texts(_ sql: String) async throws -> [String] {
        try await database.run(
            Statement<Void, String>("test.text", sql, read: { row throws(PostgresError) in try row.text(0) }))
    }

    /// What does not fit in the events that Makegood wrote. A test that writes an event by itself gives it a random id
    /// (UUIDv4); Makegood's own ids are digests (UUIDv8).
    private func unfitEvents() async throws -> [String] {
        let schemas = try EventSchemas.all()
        return try await texts(
            "select jsonb_build_array(type, body)::text from events where substr(event_id::text, 15, 1) = '8'"
        ).flatMap { row -> [String] in
            guard case .array(let parts) = try JSONValue(parsing: Array(row.utf8)), case .string(let type) = parts[0]
            else { return [row] }
            return schemas.faults(ofBody: parts[1], of: type)
        }
    }

    /// Waits for a condition of the database, at most ten seconds.
    func until(_ what: Comment, _ condition: () async throws -> Bool) async throws {
        for _ in 0..<1000 {
            if try await condition() { return }
            try await Task.sleep(for: .milliseconds(10))
        }
        Issue.record(what)
    }

    /// Waits until `count` sessions of this database wait for a lock.
    func untilBlocked(_ count: Int = 1) async throws {
        try await until("no session waited for a lock") {
            try await number(
                """
                select count(*) from pg_stat_activity
                where datname = current_database() and wait_event_type = 'Lock'
                """) >= count
        }
    }
}

/// A stored submission, as the tests name it.
struct Posted: Sendable, Hashable {
    let id: UUID
    let userID: String?
    let appID: String
    var hasPossession = true
}

extension LedgerLab {
    /// Posts a submission that no other test or call posts.
    func post(
        _ userID: String? = "u1", app: String = "game", kind: Proof.Kind = .receipt, transactionID: String? = nil,
        isVouched: Bool = false
    ) async throws -> Posted {
        let submission = Submission(
            appID: app, userID: userID, orderID: userID == nil ? "o1" : nil,
            proof: Proof(kind: kind, payload: UUID().uuidString), transactionID: transactionID ?? UUID().uuidString,
            isVouched: isVouched)
        #expect(try await ledger.insert(submission))
        return Posted(
            id: submission.receiptID, userID: userID, appID: app, hasPossession: kind != .identifier || isVouched)
    }

    func verdict(
        _ posted: Posted, attempt: Int = 0, _ decisions: Verdict.Decisions, dueIn: Duration = .seconds(600),
        call: Verdict.Call? = nil
    ) -> Verdict {
        Verdict(
            receiptID: posted.id, attempt: attempt, appID: posted.appID,
            claim: Claim(userID: posted.userID, hasPossession: posted.hasPossession, receivedAt: .now),
            decisions: decisions, dueIn: dueIn, call: call)
    }

    /// Runs one settle transaction, without the group commit.
    @discardableResult
    func settle(_ verdicts: Verdict..., on session: Database? = nil) async throws -> [UUID: ReceiptState] {
        let rows = try await (session ?? database).settle(SettleBatch(verdicts: verdicts, parking: parking))
        return Dictionary(uniqueKeysWithValues: rows.map { ($0.receiptID, $0.state) })
    }

    @discardableResult
    func settle(
        _ posted: Posted, attempt: Int = 0, _ entries: Verdict.Entry...
    ) async throws -> ReceiptState? {
        try await settle(verdict(posted, attempt: attempt, .transactions(entries)))[posted.id]
    }

    /// The receipt's state and reason: `granted`, or `held product_unknown`.
    func state(_ posted: Posted) async throws -> String? {
        try await texts(
            "select concat_ws(' ', state, reason) from receipts where id = '\(posted.id)'"
        ).first
    }

    /// The state and reason of each outcome, by transaction.
    func outcomes(_ posted: Posted) async throws -> [String: String] {
        let rows = try await database.run(
            Statement<UUID, (String, String)>(
                "test.outcomes",
                "select transaction_id, concat_ws(' ', state, reason) from outcomes where receipt_id = $1",
                bind: { [.uuid($0)] },
                read: { row throws(PostgresError) in (try row.text(0), try row.text(1)) }), posted.id)
        return Dictionary(uniqueKeysWithValues: rows)
    }

    /// `transaction user`, in order.
    var grants: [String] {
        get async throws { try await texts("select transaction_id || ' ' || user_id from grants order by 1") }
    }
}

extension Verdict.Entry {
    static let coins = [AppPolicy.Goods(item: "coin", amount: 60)]

    /// A purchase that is granted, unless a decision is given.
    static func purchase(
        _ id: String, of original: String? = nil, kind: Transaction.Kind = .consumable,
        in environment: String = Transaction.production, signedAt: Date? = nil,
        _ decision: Decision = .grant(goods: coins, source: .poster), _ change: (inout Transaction) -> Void = { _ in }
    ) -> Verdict.Entry {
        var transaction = Transaction(
            id: id, originalID: original, productID: "coins", kind: kind, environment: environment,
            purchasedAt: Date(timeIntervalSince1970: 1_800_000_000), signedAt: signedAt)
        change(&transaction)
        return Verdict.Entry(transaction: transaction, decision: decision)
    }

    /// A month of a subscription that began with the purchases above.
    static func period(
        _ id: String, of original: String = "o", month: Int = 1, lineItem: String? = nil
    ) -> Verdict.Entry {
        purchase(id, of: original, kind: .autoRenewable) {
            $0.purchasedAt += Double(month - 1) * 30 * 86_400
            $0.expiresAt = $0.purchasedAt + 30 * 86_400
            $0.webOrderLineItemID = lineItem
        }
    }
}

extension Logger {
    /// A logger that drops everything: outages and refusals are expected in these tests.
    static var silent: Logger {
        var logger = Logger(label: "tests")
        logger.logLevel = .critical
        return logger
    }
}

extension Ledger {
    /// `store`, for tests that only need to know whether the submission was new.
    func insert(_ submission: Submission) async throws(LedgerError) -> Bool {
        if case .new = try await store(submission) { true } else { false }
    }
}
