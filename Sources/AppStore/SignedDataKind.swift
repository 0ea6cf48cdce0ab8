package import Encoding
import Foundation

/// The kinds of data that Apple signs, told apart by the fields of the payload.
package enum SignedDataKind: String, CaseIterable, Sendable {
    case transaction, renewalInfo, notification, appTransaction

    /// The kind a payload looks like; nil if like none.
    package init?(looksLike payload: [String: JSON]) {
        if payload["notificationType"] != nil || payload["notificationUUID"] != nil {
            self = .notification
        } else if payload["receiptType"] != nil || payload["receiptCreationDate"] != nil {
            self = .appTransaction
        } else if payload["transactionId"] != nil || (payload["bundleId"] != nil && payload["environment"] != nil) {
            self = .transaction
        } else if payload["autoRenewStatus"] != nil || payload["autoRenewProductId"] != nil {
            self = .renewalInfo
        } else {
            return nil
        }
    }

    /// Whether a payload looks like this kind, and not like another kind that was posted in its place.
    func isLike(_ payload: [String: JSON]) -> Bool { SignedDataKind(looksLike: payload) == self }

    /// What the payload says of itself. Source: the table in AppleFacts 1.2, step 11, and 1.3 for the date.
    ///
    /// Nobody has verified the payload yet, so nothing counts here.
    func identity(of payload: [String: JSON]) -> SignedDataIdentity {
        let payload = AppleFields(payload, counts: false)
        switch self {
        case .transaction:
            return SignedDataIdentity(
                namesApp: true,
                bundleId: payload.string("bundleId"),
                environment: payload.environment("environment"),
                signedDate: payload.anyDate("signedDate"))
        case .renewalInfo:
            return SignedDataIdentity(
                environment: payload.environment("environment"),
                signedDate: payload.anyDate("signedDate"))
        case .appTransaction:
            return SignedDataIdentity(
                namesApp: true,
                bundleId: payload.string("bundleId"),
                namesAppAppleId: true,
                appAppleId: payload.int64("appAppleId"),
                environment: payload.environment("receiptType"),
                signedDate: payload.anyDate("receiptCreationDate"))
        case .notification:
            let subject = SignedNotification.subject(of: payload)
            return SignedDataIdentity(
                namesApp: true,
                bundleId: subject?.string("bundleId"),
                namesAppAppleId: true,
                appAppleId: subject?.int64("appAppleId"),
                environment: SignedNotification.environment(of: payload),
                signedDate: payload.anyDate("signedDate"))
        }
    }
}

/// Whose data a payload claims to be; believed only after its signature.
struct SignedDataIdentity {
    var namesApp = false
    var bundleId: String?
    var namesAppAppleId = false
    var appAppleId: Int64?
    var environment: StoreEnvironment?
    var signedDate: Date?
}
