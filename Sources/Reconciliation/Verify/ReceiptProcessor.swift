import AppleGateway
import Foundation
import Ledger
import Logging
import Metrics
import Purchases
import Service
import WorkQueue

/// The way of one receipt through a worker, from the message to its acknowledgement. It knows nothing of deliveries.
///
/// | step | from | to | where |
/// | --- | --- | --- | --- |
/// | fetch | ``Pointer`` | ``StoredReceipt`` | `fetch` below |
/// | verify | ``StoredReceipt`` | ``Examination`` | ``ReceiptVerifier`` |
/// | decide | ``Examination`` | ``Step`` | ``Step`` |
/// | settle | ``Step`` | ``ReceiptOutcome`` | ``VerdictWriter`` |
/// | acknowledge | ``ReceiptOutcome`` | ``Result`` | `process` below, and then ``VerifyWorker`` |
///
/// No step reaches back. ``TrustPass`` is a pass of its own between verify and decide.
struct ReceiptProcessor: Sendable {
    enum Result: Sendable, Equatable {
        /// Acknowledge: the row is settled, comes back at its due time, or needs no work any more.
        case done
        /// The message cannot be read, or names no known receipt: a dead letter.
        case undeliverable
    }

    /// After this many tries without a verdict a redelivered message is judged alone.
    private static let suspectRescues = 2
    /// How many suspects may wait. Each holds a message, and the broker's patience is bounded.
    private static let suspectsWaitingMax = 16

    private let ledger: Ledger
    private let apps: AppDirectory
    private let halts: Halts
    private let receiptVerifier: ReceiptVerifier
    private let writer: VerdictWriter
    private let trustPass: TrustPass
    private let workQueue: WorkQueue
    private let report: VerdictReport
    private let logger: Logger
    private let suspects = AsyncSemaphore(1, waitersMax: suspectsWaitingMax)
    private let unpostedAsking = AsyncSemaphore(VerifyWorker.unpostedAskingMax, waitersMax: 0)
    private let passedStale = Counter(label: "makegood_pointers_passed_total", dimensions: [("why", "stale")])
    private let passedAhead = Counter(label: "makegood_pointers_passed_total", dimensions: [("why", "ahead")])

    init(
        ledger: Ledger, apps: AppDirectory, halts: Halts, receiptVerifier: ReceiptVerifier, workQueue: WorkQueue,
        logger: Logger, security: SecurityLog, followUps: FollowUpSignal = FollowUpSignal()
    ) {
        self.ledger = ledger
        self.apps = apps
        self.halts = halts
        self.receiptVerifier = receiptVerifier
        self.workQueue = workQueue
        self.logger = logger
        report = VerdictReport(logger: logger, security: security)
        writer = VerdictWriter(
            ledger: ledger, receiptVerifier: receiptVerifier, workQueue: workQueue, report: report, followUps: followUps
        )
        trustPass = TrustPass(ledger: ledger, receiptVerifier: receiptVerifier, writer: writer)
    }

    /// - Parameters:
    ///   - redelivered: a worker had this message before and did not settle it.
    ///   - traceparent: as it came with the message.
    func process(_ message: [UInt8], redelivered: Bool, traceparent: String? = nil) async -> Result {
        guard let pointer = Pointer(message), pointer.kind == .receipt else { return .undeliverable }
        guard var trace = traceparent.flatMap({ TraceContext($0) }) else {
            return await process(pointer, redelivered: redelivered)
        }
        trace.receiptID = pointer.id
        return await TraceContext.$current.withValue(trace) { await process(pointer, redelivered: redelivered) }
    }

    private func process(_ pointer: Pointer, redelivered: Bool) async -> Result {
        do throws(LedgerError) {
            guard let stored = try await fetch(pointer) else { return .undeliverable }
            guard !stored.state.isEnded, isCurrent(pointer, stored) else { return .done }
            try await redelivered ? judgeAgain(stored) : judge(stored)
        } catch {
            // Without an ack the broker would only hold the message; the row comes back at its due time.
            report.note(error, pointer.id)
        }
        return .done
    }

    private func judge(_ stored: StoredReceipt) async throws(LedgerError) {
        CrashPoint.judging.reached(for: stored.userID)
        guard let app = apps[stored.appID], app.knowsCatalogue, !halts.isPaused(stored.appID) else {
            return try await wait(stored)
        }
        let mayAsk = Self.mayAsk(stored, by: app.policy)
        if mayAsk, await !unpostedAsking.enter() {
            // A receipt that waited here would keep the place of a notification.
            let wait = ledger.schedule.wait(of: stored, for: .appleBudget)
            return try await take(.postpone(.appleBudget, by: wait), stored, app)
        }
        defer { if mayAsk { unpostedAsking.leave() } }
        let verified = await receiptVerifier.examine(stored, for: app)
        CrashPoint.afterAppleBeforeCommit.reached()
        let (receipt, examination) = try await trustPass.pass(verified, of: stored, for: app)
        let step = Step(examination, of: receipt, by: ledger.schedule)
        try await take(step, receipt, app)
    }

    /// Whether Apple may be asked about a receipt that nobody posted. A signed transaction is fresh at its first look.
    private static func mayAsk(_ stored: StoredReceipt, by policy: AppPolicy) -> Bool {
        guard stored.lane == .unposted else { return false }
        guard stored.proof.kind == .signedTransaction else { return true }
        return policy.confirmWithApple == .always || policy.confirmWithApple == .stale && stored.reason != nil
    }

    // MARK: Fetch

    private func fetch(_ pointer: Pointer) async throws(LedgerError) -> StoredReceipt? {
        try await ledger.patiently { () throws(LedgerError) in try await ledger.fetch(pointer.id) }
    }

    /// Whether the pointer is of the row's present attempt. A stale pointer must not shorten a backoff. A pointer that
    /// is ahead of its row is not ours, because the row is written before its pointer, or the database was restored to
    /// an earlier time. In that case the row comes back at its due time.
    private func isCurrent(_ pointer: Pointer, _ stored: StoredReceipt) -> Bool {
        guard pointer.attempt != stored.attempt else { return true }
        (pointer.attempt < stored.attempt ? passedStale : passedAhead).increment()
        return false
    }

    /// Judges a redelivered message. A worker may have died of the message, so the redelivery is counted before the
    /// receipt is judged. A receipt that was in flight at two deaths is judged alone. From then on only the receipt
    /// that is to blame is counted, until it is parked, and the others are settled.
    private func judgeAgain(_ stored: StoredReceipt) async throws(LedgerError) {
        let isSuspect = stored.rescues >= Self.suspectRescues
        // There is no room to wait; the row comes back at its due time.
        if isSuspect, await !suspects.enter() { return }
        defer { if isSuspect { suspects.leave() } }
        let count = try await ledger.patiently { () throws(LedgerError) in
            try await ledger.strike(Pointer(receiptID: stored.id, attempt: stored.attempt))
        }
        switch count {
        case nil: break
        case 0?: logger.error("receipt parked: its workers died with it", metadata: LogKeys.receipt(stored.id))
        case .some: try await judge(stored)
        }
    }

    // MARK: Settle

    /// What a receipt waits for that no worker can verify now.
    private func wait(_ receipt: StoredReceipt) async throws(LedgerError) {
        let schedule = ledger.schedule
        if halts.isPaused(receipt.appID) {
            try await take(.postpone(.halted, by: schedule.pause), receipt, nil)
        } else if apps[receipt.appID] == nil {
            try await take(.write(.receipt(.held(.appUnknown))), receipt, nil)
        } else {
            // No verdict and no halt: a worker with a newer program may be able to read the catalogue.
            try await take(
                .postpone(.catalogueUnknown, by: schedule.wait(of: receipt, for: .catalogueUnknown)), receipt, nil)
        }
    }

    /// - Parameter app: nil where nothing can be given.
    private func take(_ step: Step, _ receipt: StoredReceipt, _ app: AppServices?) async throws(LedgerError) {
        switch step {
        case .write(let decisions, let dueIn):
            try await writer.write(decisions, for: receipt, of: app, dueIn: dueIn)
        case .retry(let decisions, let call, let wait):
            let dueIn = ledger.schedule.dueIn(wait, lane: .apple)
            let outcome = try await writer.write(decisions, for: receipt, of: app, dueIn: dueIn, call: call)
            if case .retryQueue(let index) = wait, let outcome, outcome.state == .received {
                await publish(Pointer(receiptID: receipt.id, attempt: outcome.attempt), toRetryQueue: index)
            }
        case .postpone(let reason, let wait):
            let postponement = Postponement(
                receiptID: receipt.id, attempt: receipt.attempt, dueIn: wait, reason: reason, lines: receipt.lines)
            _ = try await ledger.patiently { () throws(LedgerError) in try await ledger.postpone(postponement) }
        case .reroute:
            let postponement = Postponement(
                receiptID: receipt.id, attempt: receipt.attempt, dueIn: ledger.schedule.rescueDelay(.apple),
                reason: .appleUnavailable)
            let hasMoved = try await ledger.patiently { () throws(LedgerError) in
                try await ledger.reroute(postponement)
            }
            if hasMoved { workQueue.publish(Pointer(receiptID: receipt.id, attempt: receipt.attempt), lane: .apple) }
        }
    }

    /// First the row, then the fresh pointer, then the ack. Parked rows and waits after the retry queues have no
    /// message.
    private func publish(_ pointer: Pointer, toRetryQueue index: Int) async {
        CrashPoint.afterRowBeforeRetry.reached()
        do {
            try await workQueue.publish(pointer, to: workQueue.queues.retry(index))
        } catch {
            logger.debug("retry waits for its due time", metadata: LogKeys.receipt(pointer.id))
        }
    }
}
