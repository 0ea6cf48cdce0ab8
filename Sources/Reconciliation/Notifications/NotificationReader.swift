import AppStore
import AppleGateway
import Encoding
import Foundation
import Ledger
import Purchases

/// What a worker reads in a notification, as a value.
enum NotificationReading: Sendable {
    /// Facts to store; the hearing says whether the notification ends or is held.
    case heard(Hearing)
    /// The notification ends without facts. The reason is nil where there was nothing to do.
    case ended(reason: Reason?)
    /// The notification is held; a command has it judged again.
    case held(NotificationHold)
    /// The notification cannot be judged yet.
    case postponed(Reason)
}

/// The reason why a notification is held. The raw value is the word in SQL, logs and dashboards.
enum NotificationHold: Sendable, Equatable {
    /// The notification's type, subtype or object is newer than this program.
    case typeUnknown
    /// No app here has its bundle id.
    case appUnknown
    /// The notification does not verify as it did at ingest, because roots or the configuration have changed; or the
    /// data inside does not hold on its own.
    case notVerified(VerificationFailure.Reason)

    var word: String {
        switch self {
        case .typeUnknown: "type_unknown"
        case .appUnknown: Reason.appUnknown.rawValue
        case .notVerified(let reason): reason.rawValue
        }
    }
}

/// A reader that turns a stored notification into a reading: it verifies the notification again, and takes the facts
/// out. The type only says which facts to look for.
struct NotificationReader: Sendable {
    let ledger: Ledger

    func read(_ stored: StoredNotification, for app: AppServices, _ appID: String) async throws(LedgerError)
        -> NotificationReading
    {
        guard let payload = stored.payload else { return .held(.notVerified(.malformed)) }
        return stored.version == 1
            ? readUnsigned(payload, of: stored, appID)
            : try await readSigned(payload, of: stored, for: app, appID)
    }

    /// The bundle id that a notification of version 2 names; nobody has verified it. Nil: it names none. The version of
    /// this program that stored the notification may have found none because the object was new to it.
    static func bundleID(in stored: StoredNotification) -> String? {
        guard stored.version == 2, let payload = stored.payload,
            let jws = try? CompactJWS(payload, bytesMax: CompactJWS.notificationBytesMax)
        else { return nil }
        return (try? SignedNotification.unverified(jws.payload))?.bundleId
    }

    // MARK: Version 2

    private func readSigned(
        _ payload: String, of stored: StoredNotification, for app: AppServices, _ appID: String
    ) async throws(LedgerError) -> NotificationReading {
        let (notification, isWhole): (SignedNotification, Bool)
        do throws(VerificationFailure) {
            (notification, isWhole) = try await verified(payload, for: app)
        } catch {
            if error.isRetryable { return .postponed(Reason(error.reason)) }
            return switch error.reason {
            case .wrongEnvironment: .ended(reason: .wrongEnvironment)
            case .malformed: .held(.typeUnknown)
            // Its object is newer than this program, so the check finds no app in it.
            case .wrongApp where Self.bundleID(in: stored) == nil: .held(.typeUnknown)
            default: .held(.notVerified(error.reason))
            }
        }
        let dates = [
            notification.signedDate, notification.transaction?.signedDate, notification.renewalInfo?.signedDate,
        ]
        let latest = dates.compactMap(\.self).max()
        if let latest, latest.timeIntervalSince(stored.readAt) > ReceiptVerifier.clockAheadMax {
            return .postponed(.clockAhead)
        }
        return .heard(try await hearing(of: notification, isWhole: isWhole, stored, appID))
    }

    /// - Returns: the facts, and whether all of the notification could be read. A part that is newer than this program
    ///   is left out, and the rest counts.
    private func verified(
        _ payload: String, for app: AppServices
    ) async throws(VerificationFailure) -> (notification: SignedNotification, isWhole: Bool) {
        do throws(VerificationFailure) {
            return (try await app.verifier.notification(payload), true)
        } catch {
            guard error.reason == .malformed else { throw error }
            let jws = try CompactJWS(payload, bytesMax: CompactJWS.notificationBytesMax)
            return (try await app.verifier.notification(ofAnyApp: jws, verifiesInside: true), false)
        }
    }

    private func hearing(
        of notification: SignedNotification, isWhole: Bool, _ stored: StoredNotification, _ appID: String
    ) async throws(LedgerError) -> Hearing {
        let effect = NotificationEffect.of(
            type: notification.notificationType, subtype: notification.subtype, version: 2)
        var hearing = Hearing(
            notification: .init(
                id: stored.id, attempt: stored.attempt,
                ending: effect == nil || !isWhole ? .held(reason: NotificationHold.typeUnknown.word) : .ended),
            appID: appID, net: stored.cameBy == .notification ? nil : stored.cameBy)
        let place = notification.environment
        if let signed = notification.transaction {
            guard let transaction = Transaction(signed, from: place) else {
                // Apple signed it: a newer program may judge a notification that this program cannot judge.
                hearing.notification?.ending = .held(reason: NotificationHold.typeUnknown.word)
                return hearing
            }
            hearing.transactions = [transaction]
            // The facts of a purchase that was taken back answer a later post.
            if !transaction.isTakenBack, let jws = notification.signedTransactionInfo {
                hearing.submissions = [
                    Submission(unposted: transaction, jws: jws, of: appID, source: .notification)
                ]
            }
            if effect?.kind == .refundRequest {
                hearing.refundRequest = RefundRequest(
                    notificationID: stored.id, appID: appID, environment: transaction.environment,
                    transactionID: transaction.id, originalID: transaction.originalID,
                    reason: notification.consumptionRequestReason,
                    askedAt: notification.signedDate ?? stored.readAt)
            }
        }
        if let renewal = notification.renewalInfo.flatMap({ Renewal($0, from: place) }),
            try await counts(renewal, beside: hearing.transactions, appID)
        {
            hearing.renewals = [renewal]
        }
        return hearing
    }

    /// Whether facts about a renewal count for this app: they name no app, so a verified transaction of their chain
    /// ties them to it.
    private func counts(
        _ renewal: Renewal, beside transactions: [Transaction], _ appID: String
    ) async throws(LedgerError) -> Bool {
        if transactions.contains(where: {
            $0.environment == renewal.environment
                && ($0.originalID == renewal.originalID || $0.previousOriginalID == renewal.originalID)
        }) {
            return true
        }
        let question = Statements.ChainQuestion(
            appID: appID, environment: renewal.environment, originalID: renewal.originalID)
        return try await ledger.run(Statements.knowsChain, question).first ?? false
    }

    // MARK: Version 1

    /// Of version 1 Apple signs only the receipt inside. The receipt is judged like a posted one, and nothing else of
    /// the JSON is used, except that a grant of the chain which it names makes
    /// the receipt due.
    private func readUnsigned(_ payload: String, of stored: StoredNotification, _ appID: String) -> NotificationReading
    {
        let isKnown = NotificationEffect.of(type: stored.type, subtype: nil, version: 1) != nil
        var hearing = Hearing(
            notification: .init(
                id: stored.id, attempt: stored.attempt,
                ending: isKnown ? .ended : .held(reason: NotificationHold.typeUnknown.word)),
            appID: appID)
        if let members = try? JSON(parsing: Array(payload.utf8)).object,
            let notification = try? NotificationV1(members), let receipt = notification.latestReceipt, !receipt.isEmpty
        {
            hearing.submissions = [
                Submission(
                    unposted: receipt, hintedID: Self.chain(of: notification), of: appID, source: .notification)
            ]
        }
        return .heard(hearing)
    }

    /// The chain that a notification of version 1 names, as it would be stored. Nil: it names none, or no id of
    /// Apple's.
    private static func chain(of notification: NotificationV1) -> String? {
        guard let id = notification.originalTransactionId, id.utf8.count <= 64, !id.utf8.contains(0) else { return nil }
        return notification.environment.map { Transaction.storedID(id, in: $0.rawValue) } ?? id
    }
}
