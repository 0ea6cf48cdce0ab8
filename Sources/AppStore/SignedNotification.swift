package import Encoding
package import Foundation

/// An App Store Server Notification, version 2, with the signed data inside it (responseBodyV2DecodedPayload).
///
/// The type is a trigger only; state comes from the verified data inside (AppleFacts 4.3). Source: AppleFacts 4.2.
package struct SignedNotification: Sendable, Hashable {
    package var notificationType: String
    package var subtype: String?
    /// The same for every retry of one notification: the key for idempotency.
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

    /// The same, verified.
    package internal(set) var transaction: SignedTransaction?
    package internal(set) var renewalInfo: SignedRenewalInfo?
    package internal(set) var appTransaction: SignedAppTransaction?

    package init(_ payload: [String: JSON]) throws(FieldMismatch) {
        let fields = AppleFields(payload)
        let subject = try Self.subject(of: fields)
        notificationType = try fields.required("notificationType")
        subtype = fields.string("subtype")
        notificationUUID = try fields.required("notificationUUID")
        version = fields.string("version")
        signedDate = fields.date("signedDate")
        bundleId = subject?.string("bundleId")
        appAppleId = subject?.int64("appAppleId")
        environment = try Self.environment(of: fields)
        status = subject?.int("status")
        consumptionRequestReason = subject?.string("consumptionRequestReason")
        signedTransactionInfo = subject?.string("signedTransactionInfo")
        signedRenewalInfo = subject?.string("signedRenewalInfo")
        signedAppTransactionInfo = subject?.string("signedAppTransactionInfo")
    }

    /// What the notification is about: the first present of four (AppleFacts 1.2, step 11).
    static func subject(of payload: AppleFields) throws(FieldMismatch) -> AppleFields? {
        for field in ["data", "summary", purchaseToken, "appData"] as [AppleField] {
            if let subject = payload.object(field) { return subject }
            guard payload.isSilent(field) else { throw FieldMismatch() }
        }
        return nil
    }

    /// An external purchase token names no environment; its id tells (AppleFacts 1.2, step 11).
    static func environment(of payload: AppleFields) throws(FieldMismatch) -> StoreEnvironment? {
        guard payload.isSilent("data"), payload.isSilent("summary"), let token = payload.object(purchaseToken)
        else { return try subject(of: payload)?.environment("environment") }
        return try token.required("externalPurchaseId").hasPrefix("SANDBOX") ? .sandbox : .production
    }

    private static let purchaseToken: AppleField = "externalPurchaseToken"
}
