import AppleGateway
import Foundation
import Ledger
import Logging
import Metrics
import Purchases
import Service
import WorkQueue

/// The way of one notification through a worker: fetched, read (``NotificationReader``), heard by the ledger, and the
/// receipts that it opened published. A notification needs no call to Apple, so no halt and no pause stops this way.
struct NotificationProcessor: Sendable {
    /// The wait of a notification that cannot be judged yet.
    private static let postponement: Duration = .seconds(300)
    /// The wait of a held notification. A command has it judged again sooner.
    private static let heldFor: Duration = .seconds(7 * 86_400)
    /// A notification of an app that is not known here ends at the first look after this time, so that retention
    /// empties its payload: the app may be a stranger's. Where an app was known when the notification came, a look
    /// before must have missed the app too: an app that is missing for a moment loses nothing.
    private static let unknownAppFor: Duration = .seconds(30 * 86_400)

    private let ledger: Ledger
    private let apps: AppDirectory
    private let workQueue: WorkQueue
    private let reader: NotificationReader
    private let followUps: FollowUpSignal
    private let logger: Logger

    init(ledger: Ledger, apps: AppDirectory, workQueue: WorkQueue, followUps: FollowUpSignal, logger: Logger) {
        self.ledger = ledger
        self.apps = apps
        self.workQueue = workQueue
        self.followUps = followUps
        self.logger = logger
        reader = NotificationReader(ledger: ledger)
    }

    /// - Parameter redelivered: a worker had this message before and did not settle it.
    func process(_ pointer: Pointer, redelivered: Bool) async -> ReceiptProcessor.Result {
        do throws(LedgerError) {
            let rows = try await ledger.patiently { () throws(LedgerError) in
                try await ledger.run(Statements.fetchNotifications, [pointer.id])
            }
            guard let stored = rows.first else { return .undeliverable }
            // A pointer of another attempt must not shorten a wait.
            guard stored.state != .ended, pointer.attempt == stored.attempt else { return .done }
            // A worker may have died of the message, so the redelivery is counted first.
            if redelivered, try await !mayTryAgain(pointer) { return .done }
            try await take(try await reading(of: stored), of: stored)
        } catch {
            // The row comes back at its due time.
            if !error.isRetryable {
                Counter(label: "makegood_refused_verdicts_total").increment()
                logger.error("the database refuses a notification", metadata: Self.keys(pointer.id, error))
            }
        }
        return .done
    }

    private func mayTryAgain(_ pointer: Pointer) async throws(LedgerError) -> Bool {
        let strike = Statements.NotificationStrike(pointer, parking: Parking(scale: ledger.schedule.scale))
        let count = try await ledger.patiently { () throws(LedgerError) in
            try await ledger.run(Statements.strikeNotification, strike).first
        }
        if count == 0 {
            logger.error(
                "notification parked: its workers died with it", metadata: ["notification.id": "\(pointer.id)"])
        }
        return count ?? 0 > 0
    }

    private func reading(of stored: StoredNotification) async throws(LedgerError) -> NotificationReading {
        guard
            let appID = stored.appID ?? apps.id(ofBundle: stored.bundleID ?? NotificationReader.bundleID(in: stored)),
            let app = apps[appID]
        else {
            let age = Duration.seconds(stored.readAt.timeIntervalSince(stored.receivedAt))
            let isMissing = stored.state == .held && stored.reason == Reason.appUnknown.rawValue
            let isOver = (stored.appID == nil || isMissing) && age >= Self.unknownAppFor * ledger.schedule.scale
            return isOver ? .ended(reason: .appUnknown) : .held(.appUnknown)
        }
        return try await ledger.patiently { () throws(LedgerError) in
            if stored.appID == nil {
                _ = try await ledger.run(Statements.nameAppOfNotification, (id: stored.id, appID: appID))
            }
            return try await reader.read(stored, for: app, appID)
        }
    }

    private func take(_ reading: NotificationReading, of stored: StoredNotification) async throws(LedgerError) {
        switch reading {
        case .heard(let hearing):
            let pointers = try await ledger.patiently { () throws(LedgerError) in try await ledger.hear(hearing) }
            // The rows are due as well; these messages only save the wait for the scheduler.
            for pointer in pointers { workQueue.publish(pointer, lane: .unposted) }
            followUps.wake()
            if case .held(let reason)? = hearing.notification?.ending {
                noteHeld(reason, stored)
            } else {
                count(.ended, nil, stored)
            }
        case .ended(let reason):
            try await close(.init(stored, reason: reason?.rawValue))
            count(.ended, reason?.rawValue, stored)
        case .held(let hold):
            try await close(.init(stored, heldFor: Self.heldFor * ledger.schedule.scale, reason: hold.word))
            noteHeld(hold.word, stored)
        case .postponed(let reason):
            let postponed = Statements.PostponedNotification(
                stored, by: Self.postponement * ledger.schedule.scale, for: reason)
            _ = try await ledger.patiently { () throws(LedgerError) in
                try await ledger.run(Statements.postponeNotification, postponed)
            }
            count(.received, reason.rawValue, stored)
        }
    }

    private func close(_ closed: Statements.ClosedNotification) async throws(LedgerError) {
        _ = try await ledger.patiently { () throws(LedgerError) in
            try await ledger.run(Statements.closeNotification, closed)
        }
    }

    // MARK: What metrics and logs say

    private func noteHeld(_ reason: String, _ stored: StoredNotification) {
        count(.held, reason, stored)
        // The log says this once for each notification, because a held one comes back from time to time.
        guard stored.state != .held else { return }
        logger.warning(
            "a notification of Apple's is held: makegood notifications rejudge has it judged again",
            metadata: [
                "notification.id": "\(stored.id)", "notification.type": "\(stored.type)",
                "notification.subtype": "\(stored.subtype ?? "")", "notification.reason": "\(reason)",
                "app.id": "\(stored.appID ?? "")",
            ])
    }

    private func count(_ state: NotificationState, _ reason: String?, _ stored: StoredNotification) {
        Counter(
            label: "makegood_notifications_judged_total",
            dimensions: [("app", stored.appID ?? ""), ("state", state.rawValue), ("reason", reason ?? "")]
        ).increment()
    }

    private static func keys(_ id: UUID, _ error: LedgerError) -> Logger.Metadata {
        LogKeys.error(error).merging(["notification.id": "\(id)"]) { first, _ in first }
    }
}
