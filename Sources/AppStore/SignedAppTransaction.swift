package import Encoding
package import Foundation

/// Apple's facts about one download of the app (JWSAppTransactionDecodedPayload). Source: AppleFacts 2.3.
package struct SignedAppTransaction: Sendable, Hashable {
    /// On the wire `receiptType`.
    package var environment: StoreEnvironment
    package var appAppleId: Int64?
    package var bundleId: String
    package var appTransactionId: String?
    package var applicationVersion: String?
    package var originalApplicationVersion: String?
    package var originalPlatform: String?
    package var originalPurchaseDate: Date?
    /// Acts as the signing date.
    package var receiptCreationDate: Date?
    package var preorderDate: Date?
    /// Apple's number of the version of the app.
    package var versionExternalIdentifier: Int64?

    package init(_ payload: [String: JSON]) throws(FieldMismatch) {
        environment = StoreEnvironment(rawValue: try payload.required("receiptType"))
        appAppleId = try payload.int64("appAppleId")
        bundleId = try payload.required("bundleId")
        appTransactionId = try payload.string("appTransactionId")
        applicationVersion = try payload.string("applicationVersion")
        originalApplicationVersion = try payload.string("originalApplicationVersion")
        originalPlatform = try payload.string("originalPlatform")
        originalPurchaseDate = try payload.date("originalPurchaseDate")
        receiptCreationDate = try payload.date("receiptCreationDate")
        preorderDate = try? payload.date("preorderDate")
        versionExternalIdentifier = try? payload.int64("versionExternalIdentifier")
    }
}
