import Foundation
import Postgres
import Purchases
import TestRandom
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: whatever is posted, named beside it, delivered, delivered twice, rescued, refunded, reopened, given on trust
/// while Apple is away, and whichever worker dies or comes late, each row of the ledger is the row that a page of plain
/// Swift computes, no transaction is granted twice, and once faults stop everything ends.
///
/// Method: 300 trials of two receipts of two users over three transactions; in each 40 random commands, one after the
/// other, on the real database and on the model, compared after each. `SettleRandomTests` covers many commands at once.
@Suite(.timeLimit(.minutes(8))) struct ReceiptMachineTests {
    @Test("every command leaves the row that the model has")
    func agreesWithTheModel() async throws {
        var random = SeededRandom(announcing: "receipt machine")
        let seed = random.seed
        try await LedgerLab.with { lab in
            for number in 0..<300 {
                var trial = MachineTrial(app: "trial\(number)", lab: lab)
                for step in 0..<40 {
                    let command = trial.command(&random)
                    try await trial.execute(command, &random)
                    let isTrue = try await trial.compare()
                    #expect(isTrue, "seed \(seed), trial \(number), step \(step): \(command)")
                    if !isTrue { return }
                }
                try await trial.rest(&random)
                let isTrue = try await trial.compare()
                #expect(isTrue, "seed \(seed), trial \(number), at rest")
                let open = trial.model.rows.values.filter { !$0.state.isEnded }
                #expect(open.isEmpty, "seed \(seed), trial \(number)")
            }
        }
    }
}

/// One trial: the ledger, its model, and the workers that have read a row and have not written their verdict yet.
private struct MachineTrial {
    enum Command: CaseIterable {
        case post, say, take, crash, finish, strike, rescue, refund, reverse, configure, reopen, appleAway, rootsWrong,
            trust
    }

    private struct PendingVerdict {
        let receipt: StoredReceipt
        /// The purchases that may be given on trust, before the decisions are written.
        let trusted: [Verdict.Entry]
        let decisions: Verdict.Decisions
        let signedAt: Int
    }

    let app: String
    let lab: LedgerLab
    var model = MachineModel()
    private let submissions: [(submission: Submission, transactions: [String])]
    private var pending: [PendingVerdict] = []
    private var refunded: Set<String> = []
    private var policy: AppPolicy
    private var isAppleAway = false
    private var isTrusting = false
    private var areRootsWrong = false
    /// Apple's clock: every proof is signed later than the one before.
    private var clock = 0

    init(app: String, lab: LedgerLab) {
        self.app = app
        self.lab = lab
        submissions = [("u1", ["a", "b"]), ("u2", ["b", "c"])].map { (user: String, transactions: [String]) in
            (
                Submission(appID: app, userID: user, proof: .receipt("\(app) \(user)")),
                transactions.map { "\(app)-\($0)" }
            )
        }
        policy = AppPolicy(
            id: app, grantFrom: .distantPast, makeUpMaxAge: .zero,
            products: [.init(id: "coins", kind: .consumable, goods: Verdict.Entry.coins)])
    }

    func command(_ random: inout SeededRandom) -> Command {
        let often: [Command] = [
            .post, .say, .take, .take, .take, .finish, .finish, .finish, .crash, .strike, .rescue, .rescue,
        ]
        return (Bool.random(using: &random) ? often : Command.allCases).randomElement(using: &random) ?? .post
    }

    mutating func execute(_ command: Command, _ random: inout SeededRandom) async throws {
        switch command {
        case .post: try await post(submissions[Int.random(in: 0..<2, using: &random)].submission)
        case .say:
            let posted = submissions[Int.random(in: 0..<2, using: &random)].submission
            let order = "order \(Int.random(in: 0..<5, using: &random))"
            let named = Submission(appID: app, userID: posted.userID, orderID: order, proof: posted.proof)
            _ = try await lab.database.run(Statements.sayLines, [SaidLine(submission: named, linesMax: 16)])
            model.say(posted.receiptID, order: order)
        case .take: try await take(submissions[Int.random(in: 0..<2, using: &random)], &random)
        case .crash: if let taken = pending.indices.randomElement(using: &random) { pending.remove(at: taken) }
        case .finish:
            if let taken = pending.indices.randomElement(using: &random) { try await finish(pending.remove(at: taken)) }
        case .strike:
            // The message points at the row's current attempt or at the one before.
            let id = submissions[Int.random(in: 0..<2, using: &random)].submission.receiptID
            let attempt = max(0, (model.rows[id]?.attempt ?? 0) - Int.random(in: 0...1, using: &random))
            for _ in 0..<Int.random(in: 1...4, using: &random) {
                _ = try await lab.database.run(
                    Statements.strike,
                    .init(pointers: [Pointer(receiptID: id, attempt: attempt)], parking: lab.parking))
                model.strike(id, attempt: attempt)
            }
        case .rescue: for _ in 0..<Int.random(in: 1...4, using: &random) { try await rescue() }
        case .refund:
            if let id = submissions.flatMap(\.transactions).randomElement(using: &random) { refunded.insert(id) }
        case .reverse: refunded = []
        case .configure:
            policy.products =
                policy.products.isEmpty
                ? ["coins": .init(id: "coins", kind: .consumable, goods: Verdict.Entry.coins)] : [:]
        case .reopen:
            _ = try await lab.database.run(
                Statements.rejudge, .init(appID: app, reason: nil, since: nil, limit: 100))
            model.reopen()
        case .appleAway: isAppleAway.toggle()
        case .rootsWrong: areRootsWrong.toggle()
        case .trust: isTrusting.toggle()
        }
    }

    /// Ends all faults, then posts and judges each receipt once more. The products and settings that held rows waited
    /// for are there.
    mutating func rest(_ random: inout SeededRandom) async throws {
        (isAppleAway, areRootsWrong) = (false, false)
        policy.products = ["coins": .init(id: "coins", kind: .consumable, goods: Verdict.Entry.coins)]
        for taken in pending.shuffled(using: &random) { try await finish(taken) }
        pending = []
        for submission in submissions {
            try await post(submission.submission)
            try await take(submission, &random)
            for taken in pending { try await finish(taken) }
            pending = []
        }
    }

    /// Whether the database has the model's rows and grants.
    func compare() async throws -> Bool {
        let rows = try await lab.database.run(
            Statement<String, (UUID, MachineModel.Row)>(
                "test.machine_rows",
                """
                select id, state, attempt, rescues, reason, (select coalesce(jsonb_object_agg(transaction_id,
                    concat_ws(' ', o.state, case when o.state = 'granted' then o.reason end)), '{}')
                  from outcomes o where o.receipt_id = id), order_id, lines from receipts where app_id = $1
                """,
                bind: { [.text($0)] },
                read: { row throws(PostgresError) in
                    (
                        try row.uuid(0),
                        MachineModel.Row(
                            state: try row.state(1), attempt: try row.int(2), rescues: try row.int(3),
                            reason: try row.optionalText(4), order: try row.optionalText(6), lines: try row.int(7),
                            outcomes: try row.decoded(5))
                    )
                }), app)
        let grants = try await lab.database.run(
            Statement<String, (String, UUID)>(
                "test.machine_grants", "select transaction_id, receipt_id from grants where app_id = $1",
                bind: { [.text($0)] },
                read: { row throws(PostgresError) in (try row.text(0), try row.uuid(1)) }), app)
        let trusted = try await lab.database.run(
            Statement<String, (String, String)>(
                "test.machine_trusted", "select transaction_id, state from v_provisional where app_id = $1",
                bind: { [.text($0)] },
                read: { row throws(PostgresError) in (try row.text(0), try row.text(1)) }), app)
        #expect(Dictionary(trusted, uniquingKeysWith: { first, _ in first }) == model.trusted)
        // `SettleRuleTests` tests why an ended row ended.
        func known(_ row: MachineModel.Row) -> MachineModel.Row {
            var row = row
            if row.state.isEnded { row.reason = nil }
            return row
        }
        let found = Dictionary(rows.map { ($0.0, known($0.1)) }, uniquingKeysWith: { first, _ in first })
        let expected = model.rows.mapValues(known)
        #expect(found == expected)
        #expect(Dictionary(grants, uniquingKeysWith: { first, _ in first }) == model.grants)
        return found == expected && grants.count == model.grants.count && trusted.count == model.trusted.count
    }

    // MARK: What happens

    private mutating func post(_ submission: Submission) async throws {
        let new = try await lab.database.run(
            Statements.insertReceipts, .init(submissions: [submission], schedule: RetrySchedule()))
        #expect(new.isEmpty == (model.rows[submission.receiptID] != nil))
        if model.rows[submission.receiptID] == nil { model.rows[submission.receiptID] = .init() }
    }

    private mutating func rescue() async throws {
        try await lab.run("update receipts set due_at = now() where app_id = '\(app)' and due_at is not null")
        _ = try await lab.database.run(
            Statements.claim,
            .init(
                lane: .apple, apps: [app], limit: 100, rescueDelay: .seconds(60), rescueDelayMax: .seconds(3600)))
        model.rescue()
    }

    /// A worker reads the row and asks Apple.
    private mutating func take(
        _ posted: (submission: Submission, transactions: [String]), _ random: inout SeededRandom
    ) async throws {
        guard
            let row = try await lab.database.run(Statements.fetchReceipts, [posted.submission.receiptID]).first,
            !row.state.isEnded
        else { return }
        clock += 1
        pending.append(
            PendingVerdict(
                receipt: row, trusted: isAppleAway && isTrusting ? entries(posted, row) : [],
                decisions: decided(posted, row), signedAt: clock))
        // Another worker has a duplicate of the message.
        if Int.random(in: 0..<4, using: &random) == 0, let taken = pending.last { pending.append(taken) }
    }

    private func decided(
        _ posted: (submission: Submission, transactions: [String]), _ row: StoredReceipt
    ) -> Verdict.Decisions {
        if isAppleAway { return .receipt(.open(.appleUnavailable)) }
        if areRootsWrong { return .receipt(.rejected(.untrustedRoot)) }
        return .transactions(entries(posted, row))
    }

    private func entries(
        _ posted: (submission: Submission, transactions: [String]), _ row: StoredReceipt
    ) -> [Verdict.Entry] {
        let claim = Claim(userID: row.userID, hasPossession: true, receivedAt: row.receivedAt, judgedAt: row.readAt)
        return posted.transactions.map { id in
            let transaction = Transaction(
                id: id, originalID: nil, productID: "coins", kind: .consumable,
                environment: Transaction.production, purchasedAt: Date(timeIntervalSince1970: 1_700_000_000),
                revokedAt: refunded.contains(id) ? Date(timeIntervalSince1970: 1_700_000_100) : nil,
                signedAt: Date(timeIntervalSince1970: 1_700_000_000 + Double(clock)))
            return Verdict.Entry(transaction: transaction, decision: policy.decide(transaction, claim: claim))
        }
    }

    /// Writes the decisions as a worker does: a purchase on trust stays unconfirmed.
    private mutating func finish(_ taken: PendingVerdict) async throws {
        let row = taken.receipt
        try await trust(taken)
        let isHeld = row.state == .held
        let owes = isHeld && row.reason.flatMap(Reason.init(rawValue:))?.holdsFacts == true
        switch taken.decisions {
        case .receipt(.rejected(let reason)) where owes || row.isOnTrust: try await postpone(row, reason)
        case .receipt(.open(let reason)) where isHeld: try await postpone(row, reason)
        default: try await settle(taken, taken.decisions)
        }
    }

    private mutating func settle(_ taken: PendingVerdict, _ decisions: Verdict.Decisions) async throws {
        let row = taken.receipt
        var verdict = Verdict(
            receiptID: row.id, attempt: row.attempt, appID: app,
            claim: Claim(userID: row.userID, hasPossession: true, receivedAt: row.receivedAt),
            decisions: decisions, dueIn: .seconds(600))
        verdict.lines = row.lines
        _ = try await lab.database.settle(SettleBatch(verdicts: [verdict], parking: lab.parking))
        model.settle(row.id, attempt: row.attempt, lines: row.lines, decisions, signedAt: taken.signedAt)
    }

    /// Takes places first, then grants the purchases that have one; the others stay open.
    private mutating func trust(_ taken: PendingVerdict) async throws {
        let wanted = taken.trusted.filter(\.decision.gives).map(\.transaction)
        guard !wanted.isEmpty else { return }
        let placed = Set(
            try await lab.database.run(
                Statements.takePlaces,
                .init(
                    receiptID: taken.receipt.id, appID: app, transactions: wanted,
                    limits: .init(perUserPerDay: 9, perAppPerDay: 9))))
        // A purchase that was granted before needs no place.
        for transaction in wanted where model.places[transaction.id] == nil && model.grants[transaction.id] == nil {
            model.places[transaction.id] = taken.receipt.id
        }
        #expect(placed == Set(wanted.map(\.id).filter { model.places[$0] == taken.receipt.id }))
        guard !placed.isEmpty else { return }
        let entries = taken.trusted.map { entry in
            var decision = Decision.open(.appleUnavailable)
            if case .grant(let goods, let source) = entry.decision, placed.contains(entry.transaction.id) {
                decision = .provisional(goods: goods, source: source)
            }
            return Verdict.Entry(transaction: entry.transaction, decision: decision)
        }
        try await settle(taken, .transactions(entries))
    }

    private mutating func postpone(_ row: StoredReceipt, _ reason: Reason) async throws {
        _ = try await lab.database.run(
            Statements.postpone,
            [
                Postponement(
                    receiptID: row.id, attempt: row.attempt, dueIn: .seconds(600), reason: reason, lines: row.lines)
            ])
        model.postpone(row.id, attempt: row.attempt, lines: row.lines, reason)
    }
}
