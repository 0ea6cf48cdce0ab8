import AppleGateway
import Encoding
import Foundation
import Ledger
import Logging
import Metrics
import Purchases
import RabbitMQ
import Service
import Settings
import WorkQueue

/// Works on one message: pointer, row, finding, verdict, next message. It knows nothing of deliveries.
struct ReceiptProcessor: Sendable {
    enum Result: Sendable, Equatable {
        /// Acknowledge: the row is settled, comes back at its due time, or needs no work any more.
        case done
        /// The message cannot be read, or names no known receipt: a dead letter.
        case undeliverable
    }

    /// How often a verdict is written again that found its row locked, or an owner that its statement could not see.
    /// Where many purchases want the same orders, each round binds at least one, and no more orders than these are
    /// looked at.
    private static let settleTriesMax = 8 + Statements.ordersMax
    /// After this many rounds the worker pauses before each further round, so that another transaction has time to
    /// commit.
    private static let settleTriesAtOnce = 8
    private static let settlePauseMax: Duration = .milliseconds(20)
    /// After this many tries without a verdict a redelivered message is judged alone.
    private static let suspectRescues = 2
    private static let pauseDelay: Duration = .seconds(60)
    private static let outageDelayMin: Duration = .seconds(30)
    private static let budgetDelayMin: Duration = .seconds(5)
    private static let delayMax: Duration = .seconds(300)
    /// Receipts that wait for the same moment come back within this time after it.
    private static let spreadMax: Duration = .seconds(60)
    /// How many suspects may wait. Each holds a message, and the broker's patience is bounded.
    private static let suspectsWaitingMax = 16

    let ledger: Ledger
    let apps: AppDirectory
    let halts: Halts
    let receiptVerifier: ReceiptVerifier
    let workQueue: WorkQueue
    let logger: Logger
    let security: SecurityLog
    private let suspects = AsyncSemaphore(1, waitersMax: suspectsWaitingMax)
    private let alarm = RejectionAlarm()
    private let sharedPurchases = SharedPurchases()
    private let metrics = VerdictMetrics()
    private let grantTimes = GrantTimes()
    private let passedStale = Counter(label: "makegood_pointers_passed_total", dimensions: [("why", "stale")])
    private let passedAhead = Counter(label: "makegood_pointers_passed_total", dimensions: [("why", "ahead")])

    init(
        ledger: Ledger, apps: AppDirectory, halts: Halts, receiptVerifier: ReceiptVerifier, workQueue: WorkQueue,
        logger: Logger,
        security: SecurityLog
    ) {
        self.ledger = ledger
        self.apps = apps
        self.halts = halts
        self.receiptVerifier = receiptVerifier
        self.workQueue = workQueue
        self.logger = logger
        self.security = security
    }

    /// - Parameters:
    ///   - redelivered: a worker had this message before and did not settle it.
    ///   - traceparent: as it came with the message.
    package func settle(_ message: [UInt8], redelivered: Bool, traceparent: String? = nil) async -> Result {
        guard let pointer = Pointer(message) else { return .undeliverable }
        guard var trace = traceparent.flatMap({ TraceContext($0) }) else {
            return await settle(pointer, redelivered: redelivered)
        }
        trace.receiptID = pointer.receiptID
        return await TraceContext.$current.withValue(trace) { await settle(pointer, redelivered: redelivered) }
    }

    private func settle(_ pointer: Pointer, redelivered: Bool) async -> Result {
        do throws(LedgerError) {
            let stored = try await ledger.patiently { () throws(LedgerError) in
                try await ledger.fetch(pointer.receiptID)
            }
            guard let receipt = stored else { return .undeliverable }
            guard !receipt.state.isEnded else { return .done }
            // A stale pointer must not shorten a backoff. A pointer that is ahead of its row is not ours, because the
            // row is written before its pointer, or the database was restored to an earlier time. In that case the row
            // comes back at its due time.
            guard pointer.attempt == receipt.attempt else {
                (pointer.attempt < receipt.attempt ? passedStale : passedAhead).increment()
                return .done
            }
            try await redelivered ? judgeAgain(receipt) : judge(receipt)
        } catch {
            // Without an ack the broker would only hold the message; the row comes back at its due time.
            report(error, pointer.receiptID)
        }
        return .done
    }

    /// Judges a redelivered message. A worker may have died of the message, so the redelivery is counted before the
    /// receipt is judged. A receipt that was in flight at two deaths is judged alone. From then on only the receipt
    /// that is to blame is counted, until it is parked, and the others are settled.
    private func judgeAgain(_ receipt: StoredReceipt) async throws(LedgerError) {
        let isSuspect = receipt.rescues >= Self.suspectRescues
        // There is no room to wait; the row comes back at its due time.
        if isSuspect, await !suspects.enter() { return }
        defer { if isSuspect { suspects.leave() } }
        let count = try await ledger.patiently { () throws(LedgerError) in
            try await ledger.strike(Pointer(receiptID: receipt.id, attempt: receipt.attempt))
        }
        switch count {
        case nil: break
        case 0?: logger.error("receipt parked: its workers died with it", metadata: LogKeys.receipt(receipt.id))
        case .some: try await judge(receipt)
        }
    }

    private func judge(_ receipt: StoredReceipt) async throws(LedgerError) {
        CrashPoint.judging.reached(for: receipt.userID)
        guard !halts.isPaused(receipt.appID) else {
            try await postpone(receipt, .halted, by: Self.pauseDelay)
            return
        }
        guard let app = apps[receipt.appID] else {
            try await write(.receipt(.held(.appUnknown)), for: receipt, of: nil)
            return
        }
        // No verdict and no halt: a worker with a newer program may be able to read the catalogue.
        guard app.knowsCatalogue else {
            try await postpone(receipt, .catalogueUnknown, by: delay(.catalogueUnknown, receipt))
            return
        }
        let examination = await receiptVerifier.examine(receipt, for: app)
        CrashPoint.afterAppleBeforeCommit.reached()
        try await conclude(examination, of: receipt, for: app)
    }

    private func conclude(
        _ examination: Examination, of receipt: StoredReceipt, for app: AppServices
    ) async throws(LedgerError) {
        switch examination {
        case .provisional(let entries, let others, let otherwise):
            var receipt = receipt
            if try await trust(entries, beside: others, of: receipt, for: app) { receipt.isOnTrust = true }
            CrashPoint.afterTrustBeforeRow.reached()
            try await conclude(otherwise, of: receipt, for: app)
        case .finding(.receipt(.rejected(let reason))) where stays(receipt, despite: reason):
            try await postpone(receipt, reason, by: heldDelay(receipt))
        case .finding(let finding):
            try await write(try await prepare(finding, of: receipt, for: app), for: receipt, of: app)
        case .retry(let reason, let call):
            // A held purchase whose facts are stored does not become unknown because Apple is away.
            if receipt.state == .held {
                try await postpone(receipt, reason, by: heldDelay(receipt))
            } else {
                try await retry(receipt, .receipt(.open(reason)), call, of: app)
            }
        case .postpone(let reason, let until):
            try await postpone(receipt, reason, by: wait(reason, until, receipt))
        case .partly(let entries, .retry(_, let call)):
            try await retry(
                receipt, try await prepare(.transactions(entries), of: receipt, for: app), call, of: app)
        case .partly(let entries, .postpone(let reason, let until)):
            try await write(
                try await prepare(.transactions(entries), of: receipt, for: app), for: receipt, of: app,
                dueIn: wait(reason, until, receipt))
        case .reroute: try await reroute(receipt)
        }
    }

    private func wait(_ reason: Reason, _ until: Date?, _ receipt: StoredReceipt) -> Duration {
        until.map { delay(until: $0, receipt) } ?? delay(reason, receipt)
    }

    /// The wait before the next try: random, and about a quarter of the receipt's age. So receipts come back at
    /// different times, and less often the longer they have waited. If the wait were the age itself, the last receipts
    /// of a rush would come back over minutes in which nobody calls: of N receipts of age t, N / t come in a second.
    /// With a quarter four times as many come, and the number that still waits falls with the fourth power of the time.
    private func delay(_ reason: Reason, _ receipt: StoredReceipt) -> Duration {
        let scale = ledger.schedule.scale
        if reason == .halted { return Self.pauseDelay * scale }
        let age = Duration.seconds(receipt.readAt.timeIntervalSince(receipt.receivedAt))
        let least = (reason == .appleBudget ? Self.budgetDelayMin : Self.outageDelayMin) * scale
        return min(max(age / 4, least), Self.delayMax * scale) * Double.random(in: 0.5..<1.5)
    }

    /// The wait for a time that Apple has named. Apple names it to all workers at once, so receipts come back one by
    /// one after it.
    private func delay(until: Date, _ receipt: StoredReceipt) -> Duration {
        let wait = Duration.seconds(max(1, until.timeIntervalSince(receipt.readAt)))
        return wait + min(wait, Self.spreadMax) * Double.random(in: 0..<1)
    }

    private func retry(
        _ receipt: StoredReceipt, _ finding: Verdict.Finding, _ call: Verdict.Call?, of app: AppServices
    ) async throws(LedgerError) {
        let wait = ledger.schedule.wait(afterAttempts: receipt.attempt, random: Double.random(in: 0..<1))
        let settlement = try await write(
            finding, for: receipt, of: app, dueIn: ledger.schedule.dueIn(wait, lane: .apple), call: call)
        // First the row, then the fresh pointer, then the ack. Parked rows and waits after the retry queues have no
        // message.
        guard case .retryQueue(let index) = wait, let settlement, settlement.state == .received else { return }
        CrashPoint.afterRowBeforeRetry.reached()
        do {
            try await workQueue.publish(
                Pointer(receiptID: receipt.id, attempt: settlement.attempt), to: workQueue.queues.retry(index))
        } catch {
            logger.debug("retry waits for its due time", metadata: LogKeys.receipt(receipt.id))
        }
    }

    private func reroute(_ receipt: StoredReceipt) async throws(LedgerError) {
        let hasMoved = try await ledger.patiently { () throws(LedgerError) in
            try await ledger.reroute(
                Postponement(
                    receiptID: receipt.id, attempt: receipt.attempt, dueIn: ledger.schedule.rescueDelay(.apple),
                    reason: .appleUnavailable))
        }
        if hasMoved { workQueue.publish(Pointer(receiptID: receipt.id, attempt: receipt.attempt), lane: .apple) }
    }

    private func postpone(
        _ receipt: StoredReceipt, _ reason: Reason, by wait: Duration
    ) async throws(LedgerError) {
        _ = try await ledger.patiently { () throws(LedgerError) in
            try await ledger.postpone(
                Postponement(
                    receiptID: receipt.id, attempt: receipt.attempt, dueIn: wait, reason: reason, lines: receipt.lines))
        }
    }

    /// Whether a receipt stays open although its proof fails as a whole. The client may have finished the transactions
    /// because we allowed it: held purchases with stored facts stay owed, and only Apple's answer ends what was given
    /// on trust.
    private func stays(_ receipt: StoredReceipt, despite reason: Reason) -> Bool {
        if receipt.isOnTrust { return !Reason.takingBack.contains(reason) }
        return receipt.state == .held && receipt.reason.flatMap(Reason.init(rawValue:))?.holdsFacts == true
    }

    private func heldDelay(_ receipt: StoredReceipt) -> Duration {
        let age = Duration.seconds(receipt.readAt.timeIntervalSince(receipt.receivedAt))
        if receipt.isOnTrust { return ledger.schedule.confirmDelay(age: age) }
        // For a bare id this old, more time alone changes nothing.
        return receipt.isBareID && receipt.isOld(by: ledger.schedule)
            ? ledger.schedule.fallbackDelay(random: .random(in: 0..<1)) : ledger.schedule.heldDelay(age: age)
    }

    /// The delay of a receipt that is held. A receipt that waits for the configuration or a person, and was found so
    /// before, comes back rarely. The first time it comes back like all held receipts, because a configuration may be
    /// changing just then.
    private func heldDelay(_ receipt: StoredReceipt, _ finding: Verdict.Finding) -> Duration {
        guard finding.waitsForConfiguration, receipt.state == .held || finding.isOfShadow else {
            return heldDelay(receipt)
        }
        return ledger.schedule.fallbackDelay(random: .random(in: 0..<1))
    }

    /// Wakes the row if its configuration has changed: another process may have taken a new configuration and woken
    /// this row, which this process then judged by the old one.
    private func wakeIfStale(_ receipt: StoredReceipt, _ app: AppServices) async throws(LedgerError) {
        _ = try await ledger.patiently { () throws(LedgerError) in
            try await ledger.run(
                Statements.wakeIfStale,
                .init(
                    receiptID: receipt.id, appID: receipt.appID, hash: Array(app.configuration.hash),
                    dueIn: heldDelay(receipt)))
        }
    }

    /// Writes a verdict until the database takes it or it is moot. Nil: it is moot.
    ///
    /// - Parameter app: the app of the purchases; nil where the app is not known, and nothing can be given.
    @discardableResult
    func write(
        _ finding: Verdict.Finding, for receipt: StoredReceipt, of app: AppServices?, dueIn: Duration? = nil,
        call: Verdict.Call? = nil
    ) async throws(LedgerError) -> Settlement? {
        var (finding, receipt) = (finding, receipt)
        for round in 0..<Self.settleTriesMax {
            if round >= Self.settleTriesAtOnce {
                try? await Task.sleep(for: Self.settlePauseMax * Double.random(in: 0.2..<1))
            }
            var verdict = Verdict(
                receiptID: receipt.id, attempt: receipt.attempt, appID: receipt.appID,
                claim: receiptVerifier.claim(receipt), finding: finding,
                dueIn: dueIn ?? heldDelay(receipt, finding),
                call: call)
            verdict.lines = receipt.lines
            verdict.places = app?.policy.places(for: finding, posterID: receipt.userID) ?? []
            verdict.appleUpdates = app?.policy.appleUpdates(of: finding, claim: verdict.claim) ?? []
            let settlement = try await ledger.patiently { () throws(LedgerError) in try await ledger.settle(verdict) }
            if let settlement {
                report(verdict, settlement, of: receipt)
                await reportShared(settlement, of: receipt)
                if let app, finding.waitsForConfiguration { try await wakeIfStale(receipt, app) }
                return settlement
            }
            // The row is locked, or a statement that ours could not see has decided it; the row says which.
            let current = try await ledger.patiently { () throws(LedgerError) in try await ledger.fetch(receipt.id) }
            guard let current, !current.state.isEnded, current.attempt == receipt.attempt else { return nil }
            if current.lines != receipt.lines, finding.dependsOnLines {
                // The posts say something else now, and Apple was not asked about what was held. The receipt is judged
                // from the start.
                workQueue.publish(Pointer(receiptID: current.id, attempt: current.attempt), lane: current.lane)
                return nil
            }
            // The poster may have become part of another account, or may have said something else about the receipt.
            let isOther = !current.userID.isSameText(as: receipt.userID) || current.lines != receipt.lines
            if isOther { receipt = current }
            if let app { finding = try await matchAnew(finding, of: receipt, isOther, for: app) }
        }
        return nil
    }

    /// Matches the purchases with their owners again, because another user may have the order by now. The database is
    /// asked again, Apple is not.
    ///
    /// - Parameter isOther: whether the receipt has another poster now, or its posts say something else.
    private func matchAnew(
        _ finding: Verdict.Finding, of receipt: StoredReceipt, _ isOther: Bool, for app: AppServices
    ) async throws(LedgerError) -> Verdict.Finding {
        guard case .transactions(let entries) = finding else { return finding }
        let judge = try await ledger.patiently { () throws(LedgerError) in
            try await receiptVerifier.freshJudge(of: entries.map(\.transaction), in: receipt, for: app)
        }
        let named = entries.map { entry in
            guard isOther, case .grant = entry.decision else { return entry }
            return judge.judge(entry.transaction)
        }
        return try await prepare(.transactions(judge.settled(named)), of: receipt, for: app)
    }

    private func report(_ verdict: Verdict, _ settlement: Settlement, of receipt: StoredReceipt) {
        let reason: Reason? =
            switch verdict.finding {
            case .receipt(.rejected(let reason)), .receipt(.held(let reason)), .receipt(.open(let reason)): reason
            default: nil
            }
        if let trace = TraceContext.current {
            logger.log(
                level: trace.level, "receipt judged",
                metadata: [
                    "receipt.state": "\(settlement.state.rawValue)", "receipt.reason": "\(reason?.rawValue ?? "")",
                    "receipt.attempt": "\(settlement.attempt)",
                ])
        }
        metrics.count(app: verdict.appID, state: settlement.state, reason: reason)
        if receipt.state == .received { verdict.countTokens() }
        if receipt.state != .held { reportUnknownRevocations(verdict) }
        if settlement.tellsDispute {
            security.note(
                .disputed(appID: verdict.appID), receipt: receipt.id, app: receipt.appID, user: receipt.userID)
        }
        if case .receipt(.rejected(let reason)) = verdict.finding, reason.isForgery {
            security.note(.proofRefused(reason), receipt: receipt.id, app: receipt.appID, user: receipt.userID)
        }
        // Noted once for each receipt: a held receipt comes back from time to time, and is held again.
        if verdict.finding.showsSharedToken, receipt.state != .held {
            security.note(.tokenShared, receipt: receipt.id, app: receipt.appID, user: receipt.userID)
        }
        if let limit = settlement.lackingLimit, receipt.state != .held {
            security.note(.limit(Limit(limit)), receipt: receipt.id, app: receipt.appID, user: receipt.userID)
        }
        if let environment = verdict.environmentGiven(by: settlement, of: receipt) {
            grantTimes.record(
                .seconds(settlement.age), app: verdict.appID, environment: environment, lane: receipt.lane)
        }
        guard let reason, let setting = RejectionAlarm.setting(reason), alarm.record(verdict.appID, reason)
        else { return }
        logger.error(
            "many receipts fail in a way that is our mistake as often as an attack",
            metadata: [
                "app.id": "\(verdict.appID)", "receipt.reason": "\(reason.rawValue)", "configuration.key": "\(setting)",
            ])
    }

    /// Notes a purchase that very many users show. Nothing waits for the count, and a count that fails is not repeated.
    private func reportShared(_ settlement: Settlement, of receipt: StoredReceipt) async {
        for id in settlement.ownedByAnother where sharedPurchases.record(id) {
            guard let users = try? await ledger.run(Statements.usersShowing, id).first,
                users >= SharedPurchases.usersMin
            else { continue }
            security.note(
                .purchaseShared, receipt: receipt.id, app: receipt.appID, user: receipt.userID,
                ["transaction.id": "\(id)", "users": "\(users)"])
        }
    }

    /// Logs revocations for an unknown reason, once for each receipt: a held receipt comes back from time to time, and
    /// is held again.
    private func reportUnknownRevocations(_ verdict: Verdict) {
        guard case .transactions(let entries) = verdict.finding else { return }
        for entry in entries where entry.heldBy?.reasons.contains(.revocationUnknown) == true {
            let revocation = entry.transaction.revocation
            var metadata = LogKeys.receipt(verdict.receiptID)
            metadata["app.id"] = "\(verdict.appID)"
            metadata["revocation.reason"] = "\(revocation.reason.map(String.init) ?? "")"
            metadata["revocation.type"] = "\(revocation.type ?? "")"
            logger.warning(
                "Apple took a purchase back for a reason that this version does not know; a person decides about it",
                metadata: metadata)
        }
    }

    /// The finding in the form that is written. For a receipt on trust it is read as Apple's answer about what was
    /// given. For an app in shadow it is decided and not given.
    private func prepare(
        _ finding: Verdict.Finding, of receipt: StoredReceipt, for app: AppServices
    ) async throws(LedgerError) -> Verdict.Finding {
        guard receipt.isOnTrust else {
            return try await holdInShadow(finding, of: receipt, for: app)
        }
        let trusted = TrustedReceipt(
            try await ledger.patiently { () throws(LedgerError) in
                try await ledger.run(Statements.undecidedPurchases, receipt.id)
            })
        return try await holdInShadow(trusted.reading(finding), of: receipt, for: app, except: trusted.given)
    }

    /// In shadow, records what would be given, and holds it (`AppPolicy/Mode`).
    ///
    /// - Parameter given: purchases that were given on trust before the app was in shadow.
    private func holdInShadow(
        _ finding: Verdict.Finding, of receipt: StoredReceipt, for app: AppServices, except given: Set<String> = []
    ) async throws(LedgerError) -> Verdict.Finding {
        guard app.policy.mode == .shadow, case .transactions(let entries) = finding else { return finding }
        let decided = entries.filter { $0.decision.gives && !given.contains($0.transaction.id) }
        // In shadow nobody is told of a dispute either.
        guard !decided.isEmpty else { return .transactions(entries.map { $0.with($0.decision) }) }
        let decisions = decided.map { ShadowDecision($0, of: receipt) }
        _ = try await ledger.patiently { () throws(LedgerError) in
            try await ledger.run(Statements.decideInShadow, decisions)
        }
        let ids = Set(decided.map(\.transaction.id))
        return .transactions(
            entries.map { $0.with(ids.contains($0.transaction.id) ? .held(.shadow) : $0.decision) })
    }

    private func report(_ error: LedgerError, _ receiptID: UUID) {
        switch error {
        case .busy, .unavailable: logger.debug("database is away", metadata: LogKeys.error(error))
        case .refused:
            // Our bug: ingest should have refused these values. The row comes back and ends parked.
            Counter(label: "makegood_refused_verdicts_total").increment()
            logger.error(
                "the database refuses a verdict",
                metadata: LogKeys.receipt(receiptID).merging(LogKeys.error(error)) { first, _ in first })
        }
    }
}

extension Verdict.Finding {
    fileprivate var showsSharedToken: Bool {
        guard case .transactions(let entries) = self else { return false }
        return entries.contains { $0.decision == .held(.tokenDisputed) }
    }
}

extension Verdict {
    /// The environment of the purchase that the user gets by this verdict. Nil where the user gets nothing by it, or
    /// where the time until now says nothing about us: a held receipt waited for a product, a policy or a person. A
    /// purchase given on trust counts when it is given, not when Apple confirms it.
    fileprivate func environmentGiven(by settlement: Settlement, of receipt: StoredReceipt) -> String? {
        guard receipt.state != .held, !receipt.isOnTrust, case .transactions(let entries) = finding else { return nil }
        let given = entries.first { entry in
            if case .provisional = entry.decision { return true }
            return settlement.state == .granted && entry.decision.gives
        }
        return given?.transaction.environment
    }
}
