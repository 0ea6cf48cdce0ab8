package import Foundation
package import Postgres
package import Purchases
import Settings

/// Why the ledger did not take a write or answer a read. Nothing was half-written: every write is one transaction.
package enum LedgerError: Error, Sendable, Equatable {
    /// More calls are queued than the limits allow; retryable after a moment.
    case busy
    /// The database cannot be reached, is read-only or did not answer in time; retryable.
    case unavailable(PostgresError)
    /// The database refuses these values, which is our bug. Not retryable with the same values.
    case refused(PostgresError)

    package var isRetryable: Bool {
        switch self {
        case .busy, .unavailable: true
        case .refused: false
        }
    }
}

/// All reads and writes of the business, batched: the calls that arrive while a statement runs are the next batch.
///
/// One per process. Call `close` when no caller is left; `close` flushes the queued calls.
package final class Ledger: Sendable {
    package let database: Database
    package let schedule: RetrySchedule
    private static let serializationTriesMax = 3
    /// A verdict with at least this many purchases goes to `bulkSettlements`. Sixteen verdicts below this size still
    /// share a batch.
    private static let bulkRowsMin = 32
    /// All submissions of one post are one item, so that one statement stores all of them.
    private let insertions: GroupCommit<[Submission], [StoredSubmission]>
    private let views: GroupCommit<UUID, ReceiptView?>
    private let lines: GroupCommit<SaidLine, SaidResult>
    private let repeats: GroupCommit<UUID, Void>
    private let notifications: GroupCommit<NewNotification, Bool>
    private let notificationRepeats: GroupCommit<UUID, Void>
    private let fetches: GroupCommit<UUID, StoredReceipt?>
    private let settlements: GroupCommit<Verdict, ReceiptOutcome?>
    /// Verdicts about many purchases. Each takes as long as a batch of small verdicts, which would otherwise wait
    /// behind it.
    private let bulkSettlements: GroupCommit<Verdict, ReceiptOutcome?>
    private let postponements: GroupCommit<Postponement, Bool>
    private let reroutes: GroupCommit<Postponement, Bool>
    private let hearings: GroupCommit<Hearing, [Pointer]>
    private let strikes: GroupCommit<Pointer, Int?>
    private let entries: GroupCommit<EnteredUser, Void>
    private let evidences: GroupCommit<EvidenceQuestion, Evidence>
    private let placements: GroupCommit<NewOrder, (view: OrderView, isNew: Bool)?>
    private let orderViews: GroupCommit<UUID, OrderView?>
    private let entitlements: GroupCommit<EntitlementQuestion, [ChainFacts]>

    /// - Parameter writers: how many connections write batches at the same time; 1 or 2 saturate a disk.
    package init(database: Database, writers: Int, schedule: RetrySchedule) {
        self.database = database
        self.schedule = schedule
        let parking = Parking(scale: schedule.scale)
        let headers = ProofHeaders()
        insertions = GroupCommit(
            name: "insertions", writers: writers, pace: .clients,
            size: { submissions in
                (
                    rows: submissions.count,
                    bytes: submissions.reduce(0) { $0 + $1.proof.payload.utf8.count + $1.details.utf8.count + 512 }
                )
            },
            flush: { posts throws(PostgresError) in
                let submissions = Array(posts.joined())
                // The same submission twice in a batch is one row.
                let ids = submissions.map(\.receiptID)
                var seen: Set<UUID> = []
                let unique = zip(submissions, ids).filter { seen.insert($0.1).inserted }.map(\.0)
                let inserted = try await database.run(
                    Statements.insertReceipts,
                    Statements.Insertion(submissions: unique, schedule: schedule, headers: headers))
                // A row is new for the first submission of the batch that names it; for the others it is known.
                var byID = Dictionary(inserted, uniquingKeysWith: { first, _ in first })
                var rows = ids.map { (id) -> StoredSubmission in
                    switch byID[id] {
                    case .none: return .known
                    case .some(.none): return .refused
                    case .some(.some(let row)):
                        byID[id] = nil
                        return .new(row)
                    }
                }[...]
                return posts.map { post in
                    defer { rows = rows.dropFirst(post.count) }
                    return Array(rows.prefix(post.count))
                }
            })
        views = GroupCommit(
            name: "views", writers: writers, pace: .clients, size: { _ in (rows: 1, bytes: 16) },
            flush: { ids throws(PostgresError) in
                let views = try await database.receiptViews(Array(Set(ids)))
                return ids.map { views[$0] }
            })
        lines = GroupCommit(
            // One writer, so that the lines which one process says of a receipt keep their order.
            name: "lines", writers: 1, pace: .clients,
            size: { (rows: 1, bytes: $0.submission.details.utf8.count + 512) },
            flush: { lines throws(PostgresError) in
                let results = Dictionary(
                    try await database.run(Statements.sayLines, lines).map { ($0.index, $0.result) },
                    uniquingKeysWith: { first, _ in first })
                return lines.indices.map { results[$0] ?? .same }
            })
        repeats = GroupCommit(
            // One writer: two would wait for each other's rows.
            name: "repeats", writers: 1, pace: .clients, size: { _ in (rows: 1, bytes: 16) },
            flush: { ids throws(PostgresError) in
                try await database.run(Statements.countRepeats, ids)
                return ids.map { _ in }
            })
        notifications = GroupCommit(
            name: "notifications", writers: writers, pace: .clients,
            size: { (rows: 1, bytes: $0.payload.utf8.count + 512) },
            flush: { notifications throws(PostgresError) in
                var seen: Set<UUID> = []
                let unique = notifications.filter { seen.insert($0.id).inserted }
                var new = Set(
                    try await database.run(Statements.insertNotifications, .init(unique, schedule: schedule)))
                // A row is new for the first notification of the batch that has the row's id; for the others the row is
                // known.
                return notifications.map { new.remove($0.id) != nil }
            })
        notificationRepeats = GroupCommit(
            name: "notification_repeats", writers: 1, pace: .clients, size: { _ in (rows: 1, bytes: 16) },
            flush: { ids throws(PostgresError) in
                try await database.run(Statements.countNotificationRepeats, ids)
                return ids.map { _ in }
            })
        fetches = GroupCommit(
            name: "fetches", writers: writers, size: { _ in (rows: 1, bytes: 16) },
            flush: { ids throws(PostgresError) in
                try await Self.lookUp(ids, Statements.fetchReceipts, in: database, by: \.id)
            })
        let settlements = { (name: String, writers: Int) in
            GroupCommit<Verdict, ReceiptOutcome?>(
                // The queue is large because one receipt may hold thousands of entries and must still fit.
                name: name, limits: .init(queueRows: 65_536), writers: writers,
                size: { (rows: $0.rowCount, bytes: $0.rowCount * 512) },
                flush: { verdicts throws(PostgresError) in
                    // One verdict per receipt and transaction. The caller of a second verdict gets nil and reads the
                    // row again.
                    var seen: Set<UUID> = []
                    let isFirst = verdicts.map { seen.insert($0.receiptID).inserted }
                    let batch = SettleBatch(
                        verdicts: zip(verdicts, isFirst).filter(\.1).map(\.0), parking: parking)
                    let settled = Dictionary(
                        try await database.settle(batch).map { ($0.receiptID, $0) },
                        uniquingKeysWith: { first, _ in first })
                    return zip(verdicts, isFirst).map { verdict, isFirst in
                        isFirst ? settled[verdict.receiptID] : nil
                    }
                })
        }
        self.settlements = settlements("settlements", writers)
        bulkSettlements = settlements("bulk_settlements", 1)
        let postponements = { (name: String, statement: Statement<[Postponement], UUID>) in
            GroupCommit<Postponement, Bool>(
                name: name, writers: 1, size: { _ in (rows: 1, bytes: 64) },
                flush: { postponements throws(PostgresError) in
                    let moved = Set(try await database.run(statement, postponements))
                    return postponements.map { moved.contains($0.receiptID) }
                })
        }
        self.postponements = postponements("postponements", Statements.postpone)
        reroutes = postponements("reroutes", Statements.reroute)
        hearings = GroupCommit(
            name: "hearings", writers: writers,
            size: { hearing in
                let payload = hearing.submissions.reduce(0) { $0 + $1.proof.payload.utf8.count }
                return (rows: 1 + hearing.transactions.count, bytes: 512 * (1 + hearing.transactions.count) + payload)
            },
            flush: { hearings throws(PostgresError) in
                try await database.hear(HearBatch(hearings: hearings, schedule: schedule, headers: headers))
            })
        strikes = GroupCommit(
            name: "strikes", writers: 1, size: { _ in (rows: 1, bytes: 24) },
            flush: { pointers throws(PostgresError) in
                var seen: Set<UUID> = []
                let unique = pointers.filter { seen.insert($0.id).inserted }
                let rows = try await database.run(
                    Statements.strike, Statements.Strikes(pointers: unique, parking: parking))
                var counts = Dictionary(rows.map { ($0.id, $0.rescues) }, uniquingKeysWith: { first, _ in first })
                return pointers.map { counts.removeValue(forKey: $0.id) }
            })
        entries = GroupCommit(
            name: "users", writers: 1, pace: .clients, size: { (rows: 1, bytes: $0.sealed.bytes.count + 128) },
            flush: { users throws(PostgresError) in
                try await database.run(Statements.enterUsers, users)
                return users.map { _ in }
            })
        evidences = GroupCommit(
            name: "evidence", writers: writers, size: { _ in (rows: 1, bytes: 256) },
            flush: { questions throws(PostgresError) in
                try await EvidenceQuestion.answers(to: questions, in: database)
            })
        placements = GroupCommit(
            // One writer, so that of two taps in one process the second finds the order of the first.
            name: "orders", writers: 1, pace: .clients,
            size: { (rows: 1, bytes: $0.details.utf8.count + $0.target.utf8.count + 1024) },
            flush: { orders throws(PostgresError) in try await OrderBatch.place(orders, in: database) })
        orderViews = GroupCommit(
            name: "order_views", writers: writers, pace: .clients, size: { _ in (rows: 1, bytes: 16) },
            flush: { ids throws(PostgresError) in
                try await Self.lookUp(ids, Statements.readOrders, in: database, by: \.id)
            })
        entitlements = GroupCommit(
            name: "entitlements", writers: writers, pace: .clients, size: { _ in (rows: 1, bytes: 128) },
            flush: { questions throws(PostgresError) in try await Self.ownedChains(questions, in: database) })
    }

    /// Stores a submission: it is committed when this returns.
    package func store(_ submission: Submission) async throws(LedgerError) -> StoredSubmission {
        try await store([submission])[0]
    }

    /// Stores submissions in one statement, and returns one result for each, in order. When this returns, either all
    /// new submissions are committed or none.
    package func store(_ submissions: [Submission]) async throws(LedgerError) -> [StoredSubmission] {
        submissions.isEmpty ? [] : try await submit(submissions, to: insertions)
    }

    /// A receipt as its poster may see it; nil where there is none.
    package func view(_ id: UUID) async throws(LedgerError) -> ReceiptView? {
        try await submit(id, to: views)
    }

    /// Adds to a stored receipt what a later post of the same proof says. The line is committed when this returns,
    /// unless the receipt has `linesMax` lines already. Without such a receipt nothing is written.
    package func say(_ submission: Submission, linesMax: Int) async throws(LedgerError) -> SaidResult {
        try await submit(SaidLine(submission: submission, linesMax: linesMax), to: lines)
    }

    /// Counts a repeated post of a receipt (S1-32). All repeats that come while a batch is written are one statement.
    package func countRepeat(_ id: UUID) async throws(LedgerError) {
        try await submit(id, to: repeats)
    }

    /// Stores a notification, and returns after the commit. False: the notification was stored before.
    package func store(_ notification: NewNotification) async throws(LedgerError) -> Bool {
        try await submit(notification, to: notifications)
    }

    /// Counts a notification that Apple sent again.
    package func countRepeat(ofNotification id: UUID) async throws(LedgerError) {
        try await submit(id, to: notificationRepeats)
    }

    /// A row to be judged; nil where there is none.
    package func fetch(_ id: UUID) async throws(LedgerError) -> StoredReceipt? {
        try await submit(id, to: fetches)
    }

    /// Writes a verdict. Nil: the row is settled, was changed since it was read, or is locked by another process; read
    /// it again.
    package func settle(_ verdict: Verdict) async throws(LedgerError) -> ReceiptOutcome? {
        try await submit(verdict, to: verdict.rowCount < Self.bulkRowsMin ? settlements : bulkSettlements)
    }

    /// Moves a due time without counting an attempt. False: the row was changed since it was read, or is locked.
    package func postpone(_ postponement: Postponement) async throws(LedgerError) -> Bool {
        try await submit(postponement, to: postponements)
    }

    /// Moves a row to the lane `apple`, due after a rescue delay. False: the row was changed since it was read, or is
    /// locked.
    package func reroute(_ postponement: Postponement) async throws(LedgerError) -> Bool {
        try await submit(postponement, to: reroutes)
    }

    /// Writes one hearing of Apple's facts, and returns the new receipts. Nothing is written if the notification has
    /// ended, was changed since it was read, or is locked by another process.
    package func hear(_ hearing: Hearing) async throws(LedgerError) -> [Pointer] {
        try await submit(hearing, to: hearings)
    }

    /// Counts a redelivered message, and returns how often the receipt was rescued. Nil: the row was changed since it
    /// was read; 0: the ledger has just parked it.
    package func strike(_ pointer: Pointer) async throws(LedgerError) -> Int? {
        try await submit(pointer, to: strikes)
    }

    /// Enters a protected user: committed when this returns. A user who is entered already stays unchanged.
    package func enter(_ user: EnteredUser) async throws(LedgerError) {
        try await submit(user, to: entries)
    }

    /// What the database knows about the owner of a purchase.
    package func evidence(_ question: EvidenceQuestion) async throws(LedgerError) -> Evidence {
        try await submit(question, to: evidences)
    }

    /// What the database knows about the owners of several purchases, in order, in statements of their own.
    package func evidence(_ questions: [EvidenceQuestion]) async throws(LedgerError) -> [Evidence] {
        do {
            return try await EvidenceQuestion.answers(to: questions, in: database)
        } catch {
            throw LedgerError(error)
        }
    }

    /// Places an order; the order is committed when this returns. Returns the order that now counts, and whether it is
    /// this one: the same tap, key or reservation again returns the order that was placed before. Nil: the user has
    /// placed too many orders today.
    package func place(_ order: NewOrder) async throws(LedgerError) -> (view: OrderView, isNew: Bool)? {
        try await submit(order, to: placements)
    }

    /// An order with the receipts that named it; nil where there is none.
    package func order(_ id: UUID) async throws(LedgerError) -> OrderView? {
        try await submit(id, to: orderViews)
    }

    /// The chains that a user has now, each with its newest purchases, but without revocations. All questions that come
    /// while a statement runs share the next statement.
    package func ownedChains(_ question: EntitlementQuestion) async throws(LedgerError) -> [ChainFacts] {
        try await submit(question, to: entitlements)
    }

    /// Runs any other statement, alone. Each is idempotent, so after a serialization conflict it is run again at once.
    package func run<Parameters: Sendable, Row: Sendable>(
        _ statement: Statement<Parameters, Row>, _ parameters: Parameters
    ) async throws(LedgerError) -> [Row] {
        var tries = 0
        while true {
            do throws(PostgresError) {
                return try await database.run(statement, parameters)
            } catch {
                // The database rolled this back because of a concurrent transaction. Callers need not know.
                tries += 1
                guard case .serialization = error, tries < Self.serializationTriesMax else { throw LedgerError(error) }
            }
        }
    }

    /// Flushes what is queued and closes the connections.
    package func close() async {
        await insertions.close()
        await views.close()
        await lines.close()
        await repeats.close()
        await notifications.close()
        await notificationRepeats.close()
        await fetches.close()
        await settlements.close()
        await bulkSettlements.close()
        await postponements.close()
        await reroutes.close()
        await hearings.close()
        await strikes.close()
        await entries.close()
        await evidences.close()
        await placements.close()
        await orderViews.close()
        await entitlements.close()
        await database.close()
    }

    private func submit<Item: Sendable, Outcome: Sendable>(
        _ item: Item, to group: GroupCommit<Item, Outcome>
    ) async throws(LedgerError) -> Outcome {
        do {
            return try await group.submit(item)
        } catch {
            throw LedgerError(error)
        }
    }

    /// - Returns: one row or nil for each id, in order.
    private static func lookUp<Row: Sendable>(
        _ ids: [UUID], _ statement: Statement<[UUID], Row>, in database: Database, by id: (Row) -> UUID
    ) async throws(PostgresError) -> [Row?] {
        let rows = Dictionary(
            try await database.run(statement, Array(Set(ids))).map { (id($0), $0) },
            uniquingKeysWith: { first, _ in first })
        return ids.map { rows[$0] }
    }
}

extension LedgerError {
    init(_ error: GroupCommitError) {
        switch error {
        case .full: self = .busy
        case .closed: self = .unavailable(.closed)
        case .failed(let error): self = LedgerError(error)
        case .poison(let error): self = .refused(error)
        }
    }

    package init(_ error: PostgresError) {
        self = error.isRetryable ? .unavailable(error) : .refused(error)
    }
}

extension CommitPace {
    /// Clients wait for their answers before they send the next post. Sixteen items share a statement well.
    fileprivate static let clients = CommitPace(shortest: .milliseconds(2), longest: .milliseconds(8), items: 16)
}
