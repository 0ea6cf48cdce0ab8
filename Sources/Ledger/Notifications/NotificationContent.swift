package import AppStore
import Crypto
import Foundation
import Purchases

// The row of a notification, from what Apple said.
extension NewNotification {
    /// - Parameter appID: nil: no app has the notification's bundle id.
    package init(_ notification: SignedNotification, payload: String, appID: String?, isForwarded: Bool) {
        let transaction = notification.transaction
        let environment = (transaction?.environment ?? notification.environment)?.rawValue
        func stored(_ id: String?) -> String? {
            id.map { id in environment.map { Transaction.storedID(id, in: $0) } ?? id }
        }
        self.init(
            id: UUID(uuidString: notification.notificationUUID) ?? DerivedID.make(["notification", payload]),
            version: 2,
            appID: appID, bundleID: notification.bundleId?.storable,
            environment: notification.environment?.rawValue.storable, type: notification.notificationType.storable,
            subtype: notification.subtype?.storable, transactionID: stored(transaction?.transactionId)?.storable,
            originalTransactionID: stored(
                transaction?.originalTransactionId ?? transaction?.transactionId
                    ?? notification.renewalInfo?.originalTransactionId)?.storable,
            signedAt: notification.signedDate, payload: payload, payloadSHA256: payload.sha256,
            isForwarded: isForwarded)
    }

    /// - Parameter payload: without the password.
    package init(_ notification: NotificationV1, payload: String, appID: String, isForwarded: Bool) {
        let environment = notification.environment?.rawValue
        self.init(
            id: DerivedID.make(["notification of version 1"] + notification.identity), version: 1, appID: appID,
            bundleID: notification.bundleId, environment: environment?.storable,
            type: notification.notificationType.storable,
            originalTransactionID: notification.originalTransactionId.map { id in
                (environment.map { Transaction.storedID(id, in: $0) } ?? id).storable
            },
            payload: payload, payloadSHA256: payload.sha256, isForwarded: isForwarded)
    }
}

extension String {
    /// Without U+0000, which PostgreSQL's text cannot hold.
    fileprivate var storable: String {
        utf8.contains(0) ? String(decoding: utf8.filter { $0 != 0 }, as: UTF8.self) : self
    }

    fileprivate var sha256: [UInt8] {
        var text = self
        return text.withUTF8 { Array(SHA256.hash(data: UnsafeRawBufferPointer($0))) }
    }
}
