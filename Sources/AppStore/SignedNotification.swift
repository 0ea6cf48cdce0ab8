package import Encoding
package import Foundation

/// An App Store Server Notification, version 2, with the signed data inside it (responseBodyV2DecodedPayload).
///
/// The type is a trigger only; state comes from the verified data inside (AppleFacts 4.3). A type or subtype that is
/// newer than this program reads as any other. A notification whose object is newer names no app. Source:
/// AppleFacts 4.2.
package struct SignedNotification: Sendable, Hashable {
    /// Empty where Apple names none.
    package var notificationType: String
    package var subtype: String?
    /// The same for every retry of one notification: the key for idempotency. Empty where Apple names none.
    package var notificationUUID: String
    package var version: String?
    package var signedDate: Date?
    package var bundleId: String?
    package var appAppleId: Int64?
    package var environment: StoreEnvironment?
    /// Auto-renewables: 1 active, 2 expired, 3 billing retry, 4 grace period, 5 revoked.
    package var status: Int?
    package var consumptionRequestReason: String?

    /// The signed data as it came, to be stored beside the facts.
    package var signedTransactionInfo: String?
    package var signedRenewalInfo: String?
    package var signedAppTransactionInfo: String?

    /// The same, covered by Apple's signature over the notification, or verified by itself: the verifier's caller says
    /// which.
    package internal(set) var transaction: SignedTransaction?
    package internal(set) var renewalInfo: SignedRenewalInfo?
    package internal(set) var appTransaction: SignedAppTransaction?

    /// - Throws: for a payload that names neither a type nor an id of a notification.
    package init(_ payload: [String: JSON]) throws(FieldMismatch) { try self.init(AppleFields(payload)) }

    /// The content of a payload that nobody has verified yet.
    package static func unverified(_ payload: [String: JSON]) throws(FieldMismatch) -> SignedNotification {
        try SignedNotification(AppleFields(payload, counts: false))
    }

    private init(_ fields: AppleFields) throws(FieldMismatch) {
        let subject = Self.subject(of: fields)
        let (type, id) = (fields.string("notificationType"), fields.string("notificationUUID"))
        guard type != nil || id != nil else { throw FieldMismatch() }
        notificationType = type ?? ""
        subtype = fields.string("subtype")
        notificationUUID = id ?? ""
        version = fields.string("version")
        signedDate = fields.date("signedDate")
        bundleId = subject?.string("bundleId")
        appAppleId = subject?.int64("appAppleId")
        environment = Self.environment(of: fields)
        status = subject?.int("status")
        consumptionRequestReason = subject?.string("consumptionRequestReason")
        signedTransactionInfo = subject?.string("signedTransactionInfo")
        signedRenewalInfo = subject?.string("signedRenewalInfo")
        signedAppTransactionInfo = subject?.string("signedAppTransactionInfo")
    }

    /// Whether the notification is about this app. The number at Apple counts in production alone (AppleFacts 1.2, step
    /// 11), and for an app that has one.
    ///
    /// - Parameter bundleID: as the payload names it, which is verified by now.
    package func isOf(_ app: AppIdentity, bundleID: String?) -> Bool {
        guard app.admits(bundleID) else { return false }
        guard environment == .production, let expected = app.appAppleId else { return true }
        return appAppleId == expected
    }

    /// The subject of the notification: the first of the five objects that is there and can be read. `unclaimInfo`
    /// comes last, because Apple does not say whether it stands beside `data` (AppleFacts 1.2, step 11).
    static func subject(of payload: AppleFields) -> AppleFields? {
        for field in ["data", "summary", purchaseToken, "appData", "unclaimInfo"] as [AppleField] {
            if let subject = payload.object(field) { return subject }
        }
        return nil
    }

    /// The bundle id in an object that is newer than this program; nobody has verified it here. Nil: the payload has an
    /// object that is known, or no object names one.
    package static func bundleIDOfNewerObject(in payload: [String: JSON]) -> String? {
        guard subject(of: AppleFields(payload, counts: false)) == nil else { return nil }
        return payload.sorted { $0.key.utf8.lexicographicallyPrecedes($1.key.utf8) }.lazy
            .compactMap { $0.value.object.flatMap { AppleFields($0, counts: false).string("bundleId") } }.first
    }

    /// An external purchase token names no environment; its id tells (AppleFacts 1.2, step 11).
    static func environment(of payload: AppleFields) -> StoreEnvironment? {
        guard payload.isSilent("data"), payload.isSilent("summary"), let token = payload.object(purchaseToken)
        else { return subject(of: payload)?.environment("environment") }
        return token.string("externalPurchaseId").map { $0.hasPrefix("SANDBOX") ? .sandbox : .production }
    }

    private static let purchaseToken: AppleField = "externalPurchaseToken"
}
