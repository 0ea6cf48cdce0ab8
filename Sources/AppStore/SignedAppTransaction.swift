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
        let fields = AppleFields(payload)
        environment = StoreEnvironment(rawValue: try fields.required("receiptType"))
        appAppleId = fields.int64("appAppleId")
        bundleId = try fields.required("bundleId")
        appTransactionId = fields.string("appTransactionId")
        applicationVersion = fields.string("applicationVersion")
        originalApplicationVersion = fields.string("originalApplicationVersion")
        originalPlatform = fields.string("originalPlatform")
        originalPurchaseDate = fields.date("originalPurchaseDate")
        receiptCreationDate = fields.date("receiptCreationDate")
        preorderDate = fields.date("preorderDate")
        versionExternalIdentifier = fields.int64("versionExternalIdentifier")
    }
}
