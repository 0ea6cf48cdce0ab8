import AppleGateway
import Encoding
import Ledger
import Purchases
import Settings
import WorkQueue

/// Writes verdicts, each until the database takes it or until it is moot.
struct VerdictWriter: Sendable {
    /// How often a verdict is written again that found its row locked, or an owner that its statement could not see.
    /// Where many purchases want the same orders, each round binds at least one, and no more orders than these are
    /// looked at.
    private static let triesMax = 8 + Statements.ordersMax
    /// After this many rounds the worker pauses before each further round, so that another transaction has time to
    /// commit.
    private static let triesAtOnce = 8
    private static let pauseMax: Duration = .milliseconds(20)

    let ledger: Ledger
    let receiptVerifier: ReceiptVerifier
    let workQueue: WorkQueue
    let report: VerdictReport
    private let followUps: FollowUpSignal
    private let sharedPurchases = SharedPurchases()

    init(
        ledger: Ledger, receiptVerifier: ReceiptVerifier, workQueue: WorkQueue, report: VerdictReport,
        followUps: FollowUpSignal
    ) {
        self.ledger = ledger
        self.receiptVerifier = receiptVerifier
        self.workQueue = workQueue
        self.report = report
        self.followUps = followUps
    }

    /// Writes decisions as a verdict. Nil: they are moot, because the row has ended, or its posts say something else now.
    ///
    /// - Parameters:
    ///   - app: the app of the purchases; nil where the app is not known, and nothing can be given.
    ///   - dueIn: when the row is due again if it stays open or held; nil: as a held receipt.
    ///   - call: the call to Apple that this attempt made.
    @discardableResult
    func write(
        _ decisions: Verdict.Decisions, for receipt: StoredReceipt, of app: AppServices?, dueIn: Duration? = nil,
        call: Verdict.Call? = nil
    ) async throws(LedgerError) -> ReceiptOutcome? {
        guard let app else {
            return try await write(prepared: decisions, for: receipt, of: nil, dueIn: dueIn, call: call)
        }
        return try await write(
            prepared: try await prepare(decisions, of: receipt, for: app), for: receipt, of: app, dueIn: dueIn,
            call: call)
    }

    /// Writes decisions in the form in which they are written.
    @discardableResult
    func write(
        prepared decisions: Verdict.Decisions, for receipt: StoredReceipt, of app: AppServices?, dueIn: Duration?,
        call: Verdict.Call? = nil
    ) async throws(LedgerError) -> ReceiptOutcome? {
        var (decisions, receipt) = (decisions, receipt)
        for round in 0..<Self.triesMax {
            if round >= Self.triesAtOnce {
                try? await Task.sleep(for: Self.pauseMax * Double.random(in: 0.2..<1))
            }
            let verdict = verdict(decisions, for: receipt, of: app, dueIn: dueIn, call: call)
            let outcome = try await ledger.patiently { () throws(LedgerError) in try await ledger.settle(verdict) }
            if let outcome {
                report.note(verdict, outcome, of: receipt)
                if decisions.mayMarkChains { followUps.wake() }
                await reportShared(outcome, of: receipt)
                if let app, decisions.waitsForConfiguration { try await wakeIfStale(receipt, app) }
                return outcome
            }
            // The row is locked, or a statement that ours could not see has decided it; the row says which.
            let current = try await ledger.patiently { () throws(LedgerError) in try await ledger.fetch(receipt.id) }
            guard let current, !current.state.isEnded, current.attempt == receipt.attempt else { return nil }
            if current.lines != receipt.lines, decisions.dependsOnLines {
                // The posts say something else now, and Apple was not asked about what was held. The receipt is judged
                // from the start.
                workQueue.publish(Pointer(receiptID: current.id, attempt: current.attempt), lane: current.lane)
                return nil
            }
            // The poster may have become part of another account, or may have said something else about the receipt.
            let isOther = !current.userID.isSameText(as: receipt.userID) || current.lines != receipt.lines
            if isOther { receipt = current }
            guard let app else { continue }
            guard let matched = try await matchAnew(decisions, of: receipt, isOther, for: app) else {
                workQueue.publish(Pointer(receiptID: current.id, attempt: current.attempt), lane: current.lane)
                return nil
            }
            decisions = matched
        }
        return nil
    }

    private func verdict(
        _ decisions: Verdict.Decisions, for receipt: StoredReceipt, of app: AppServices?, dueIn: Duration?,
        call: Verdict.Call?
    ) -> Verdict {
        var verdict = Verdict(
            receiptID: receipt.id, attempt: receipt.attempt, appID: receipt.appID,
            claim: receiptVerifier.claim(receipt), decisions: decisions,
            dueIn: dueIn ?? ledger.schedule.heldDelay(of: receipt, decisions), call: call)
        verdict.lines = receipt.lines
        verdict.places = app?.policy.places(for: decisions, posterID: receipt.userID) ?? []
        if case .receipt(.rejected(.wrongApp)) = decisions {
            verdict.variantBundleID = app?.identity.variant(in: receipt.proof)
        }
        verdict.appleUpdates = app?.policy.appleUpdates(of: decisions, claim: verdict.claim) ?? []
        return verdict
    }

    /// Notes a purchase that very many users show. Nothing waits for the count, and a count that fails is not repeated.
    private func reportShared(_ outcome: ReceiptOutcome, of receipt: StoredReceipt) async {
        for id in outcome.ownedByAnother where sharedPurchases.record(id) {
            guard let users = try? await ledger.run(Statements.usersShowing, id).first,
                users >= SharedPurchases.usersMin
            else { continue }
            report.note(sharedPurchase: id, users: users, of: receipt)
        }
    }

    /// Wakes the row if its configuration has changed: another process may have taken a new configuration and woken
    /// this row, which this process then judged by the old one.
    private func wakeIfStale(_ receipt: StoredReceipt, _ app: AppServices) async throws(LedgerError) {
        _ = try await ledger.patiently { () throws(LedgerError) in
            try await ledger.run(
                Statements.wakeIfStale,
                .init(
                    receiptID: receipt.id, appID: receipt.appID, hash: Array(app.configuration.hash),
                    dueIn: ledger.schedule.heldDelay(of: receipt)))
        }
    }

    /// Matches the purchases with their owners again, because another user may have the order by now. The database is
    /// asked again, Apple is not.
    ///
    /// - Parameter isOther: whether the receipt has another poster now, or its posts say something else.
    /// - Returns: nil where a purchase that is rejected for its end stands by newer facts of Apple's. The receipt is
    ///   then judged from the start, because a worker may have to ask Apple.
    private func matchAnew(
        _ decisions: Verdict.Decisions, of receipt: StoredReceipt, _ isOther: Bool, for app: AppServices
    ) async throws(LedgerError) -> Verdict.Decisions? {
        guard case .transactions(let entries) = decisions else { return decisions }
        let judge = try await ledger.patiently { () throws(LedgerError) in
            try await receiptVerifier.freshJudge(of: entries.map(\.transaction), in: receipt, for: app)
        }
        let standsAgain = entries.contains { entry in
            entry.decision.isForEnd && !judge.judge(entry.transaction).decision.isForEnd
        }
        if standsAgain { return nil }
        let named = entries.map { entry in
            guard isOther, case .grant = entry.decision else { return entry }
            return judge.judge(entry.transaction)
        }
        return try await prepare(.transactions(judge.settled(named)), of: receipt, for: app)
    }

    /// The decisions in the form that is written: as Apple's answer, where the receipt waits for one. For an app in
    /// shadow nothing is given.
    private func prepare(
        _ decisions: Verdict.Decisions, of receipt: StoredReceipt, for app: AppServices
    ) async throws(LedgerError) -> Verdict.Decisions {
        // Apple has said nothing yet.
        if case .receipt(.open) = decisions { return decisions }
        let answer = try await ledger.answer(of: decisions, to: receipt)
        return try await holdInShadow(answer.decisions, of: receipt, for: app, except: answer.given)
    }

    /// In shadow, records what would be given, and holds it (`AppPolicy/Mode`).
    ///
    /// - Parameter given: purchases that the receipt was given before the app was in shadow.
    private func holdInShadow(
        _ decisions: Verdict.Decisions, of receipt: StoredReceipt, for app: AppServices, except given: Set<String>
    ) async throws(LedgerError) -> Verdict.Decisions {
        guard app.policy.mode == .shadow, case .transactions(let entries) = decisions else { return decisions }
        let decided = entries.filter { $0.decision.gives && !given.contains($0.transaction.id) }
        // In shadow nobody is told of a dispute either.
        guard !decided.isEmpty else { return .transactions(entries.map { $0.with($0.decision) }) }
        let recorded = decided.map { ShadowDecision($0, of: receipt) }
        _ = try await ledger.patiently { () throws(LedgerError) in
            try await ledger.run(Statements.decideInShadow, recorded)
        }
        let ids = Set(decided.map(\.transaction.id))
        return .transactions(
            entries.map { $0.with(ids.contains($0.transaction.id) ? .held(.shadow) : $0.decision) })
    }
}
