import Crypto
package import Encoding
package import Foundation

/// An App Store Server Notification, version 1.
///
/// The JSON is not signed: anybody who knows the shared secret can write such JSON. Only its receipt proves a purchase,
/// and a receipt is judged like a posted one. The shared secret (`password`) is never kept: `withoutPassword`.
/// Source: AppleFacts 5.3.
package struct NotificationV1: Sendable, Hashable {
    /// `INITIAL_BUY`, `DID_RENEW`, `CANCEL`, …
    package var notificationType: String
    package var environment: StoreEnvironment?
    package var bundleId: String?
    package var originalTransactionId: String?
    package var autoRenewProductId: String?
    package var autoRenewStatus: Bool?
    package var autoRenewStatusChangeDate: Date?
    package var expirationIntent: Int?
    /// An app receipt, base64: the only proof.
    package var latestReceipt: String?
    /// The sender's list of the latest transactions, without entries that cannot be read: the receipt has their
    /// purchases too.
    package var entries: [ReceiptEntry]

    /// - Throws: for a body that names no type.
    package init(_ body: [String: JSON]) throws(FieldMismatch) {
        // Nobody signed the body, so no oddity of the body counts as Apple's.
        let fields = AppleFields(body, spelling: .text, counts: false)
        notificationType = try fields.required("notification_type")
        environment = fields.string("environment").map {
            $0.isSameText(as: "PROD") ? .production : StoreEnvironment(rawValue: $0)
        }
        bundleId = fields.string("bid")
        originalTransactionId = fields.string("original_transaction_id")
        autoRenewProductId = fields.string("auto_renew_product_id")
        autoRenewStatus = fields.bool("auto_renew_status")
        autoRenewStatusChangeDate =
            fields.date("auto_renew_status_change_date_ms") ?? fields.date("auto_renew_status_change_date")
        expirationIntent = fields.int("expiration_intent")
        let unified = fields.object("unified_receipt")
        latestReceipt =
            unified?.string("latest_receipt") ?? fields.string("latest_receipt")
            ?? fields.string("latest_expired_receipt")
        entries = ReceiptEntry.once(
            Self.entries(unified, "latest_receipt_info") + Self.entries(fields, "latest_receipt_info")
                + Self.entries(fields, "latest_expired_receipt_info"))
    }

    private static func entries(_ fields: AppleFields?, _ name: AppleField) -> [ReceiptEntry] {
        guard let list = try? fields?.list(name, mayBeOne: true) else { return [] }
        return list.compactMap { try? ReceiptEntry($0) }
    }

    /// Texts that are the same for every retry of one notification, and differ for another notification. The id is made
    /// of them, because Apple sends no id.
    package var identity: [String] {
        let receipt = latestReceipt.map { SHA256.hash(data: Array($0.utf8)).hexadecimal }
        return [
            bundleId ?? "", environment?.rawValue ?? "", notificationType, originalTransactionId ?? "", receipt ?? "",
            newestDate.map { String(Int64(($0.timeIntervalSince1970 * 1000).rounded())) } ?? "",
        ]
    }

    /// The newest date of an event in the body. The end of a period is no such date: it lies ahead.
    private var newestDate: Date? {
        (entries.flatMap { [$0.purchaseDate, $0.cancellationDate] } + [autoRenewStatusChangeDate])
            .compactMap(\.self).max()
    }

    /// A body without any member called `password`, at whatever depth, to be stored. The same body gives the same
    /// bytes; numbers stay as they were written.
    package static func withoutPassword(_ body: JSONValue) -> JSONValue {
        switch body {
        case .object(let members):
            .object(
                members.filter { !$0.key.isSameText(as: "password") }.map { .init($0.key, withoutPassword($0.value)) })
        case .array(let elements): .array(elements.map(withoutPassword))
        default: body
        }
    }
}
