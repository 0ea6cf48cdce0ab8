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

    /// What the payload says of itself. Source: the table in AppleFacts 1.2, step 11, and 1.3 for the date.
    func identity(of payload: [String: JSON]) throws(FieldMismatch) -> SignedDataIdentity {
        switch self {
        case .transaction:
            return SignedDataIdentity(
                namesApp: true,
                bundleId: try payload.string("bundleId"),
                environment: try payload.environment("environment"),
                signedDate: try payload.anyDate("signedDate"))
        case .renewalInfo:
            return SignedDataIdentity(
                environment: try payload.environment("environment"),
                signedDate: try payload.anyDate("signedDate"))
        case .appTransaction:
            return SignedDataIdentity(
                namesApp: true,
                bundleId: try payload.string("bundleId"),
                namesAppAppleId: true,
                appAppleId: try payload.int64("appAppleId"),
                environment: try payload.environment("receiptType"),
                signedDate: try payload.anyDate("receiptCreationDate"))
        case .notification:
            let subject = try SignedNotification.subject(of: payload)
            return SignedDataIdentity(
                namesApp: true,
                bundleId: try subject?.string("bundleId"),
                namesAppAppleId: true,
                appAppleId: try subject?.int64("appAppleId"),
                environment: try SignedNotification.environment(of: payload),
                signedDate: try payload.anyDate("signedDate"))
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

/// The times that every calendar and database behind this program can hold.
enum KnownTime {
    /// Seconds since 1970 of the years 0 to 9999.
    private static let years = -62_167_219_200.0..<253_402_300_800.0

    static func date(_ seconds: Double) throws(FieldMismatch) -> Date {
        guard years.contains(seconds) else { throw FieldMismatch() }
        return Date(timeIntervalSince1970: seconds)
    }
}

extension [String: JSON] {
    func date(_ key: String) throws(FieldMismatch) -> Date? {
        guard let seconds = try seconds(key) else { return nil }
        return try KnownTime.date(seconds)
    }

    /// A date without bounds: it is only compared with certificates' dates, and a strange date counts as expired.
    fileprivate func anyDate(_ key: String) throws(FieldMismatch) -> Date? {
        try seconds(key).map { Date(timeIntervalSince1970: $0) }
    }

    func environment(_ key: String) throws(FieldMismatch) -> StoreEnvironment? {
        try string(key).map { StoreEnvironment(rawValue: $0) }
    }

    /// nil also for text that is no UUID: a token we cannot read must not cost the customer the purchase.
    func uuid(_ key: String) throws(FieldMismatch) -> UUID? {
        try string(key).flatMap { UUID(uuidString: $0) }
    }

    /// An object as compact JSON, for data that is passed on unread; nil for anything else.
    func objectText(_ key: String) -> String? {
        guard let value = self[key], value.object != nil else { return nil }
        return String(decoding: value.bytes, as: UTF8.self)
    }

    /// A field without which the object means nothing.
    func required(_ key: String) throws(FieldMismatch) -> String {
        guard let value = try string(key) else { throw FieldMismatch() }
        return value
    }
}
