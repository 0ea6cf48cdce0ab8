package import Encoding
package import Foundation

/// Apple's answer about a genuine legacy receipt: what the receipt lists.
///
/// Source: AppleFacts 5.1. Numbers, booleans and dates are strings there; either spelling is read.
package struct VerifiedReceipt: Sendable, Hashable {
    package var environment: StoreEnvironment
    /// The caller must compare it with the app's; Apple does not.
    package var bundleId: String?
    package var requestDate: Date?
    package var creationDate: Date?
    /// The snapshot inside the receipt; empty and absent both mean nothing bought, or not yet refreshed.
    package var inApp: [ReceiptEntry]?
    /// Apple's current knowledge; absent where the receipt has no auto-renewables.
    package var latestReceiptInfo: [ReceiptEntry]?
    /// A newer receipt, base64.
    package var latestReceipt: String?
    /// The calls that led here, in order; the last one succeeded.
    package internal(set) var calls: [ServiceCall] = []

    /// Every purchase once, by transaction id, in an order that does not depend on Apple's.
    ///
    /// Auto-renewables come from `latest_receipt_info`, everything else from both. An auto-renewable of `in_app` counts
    /// only if `latest_receipt_info` does not list its subscription at all: old data is better than a lost purchase.
    package var entries: [ReceiptEntry] {
        let latest = latestReceiptInfo ?? []
        let latestSubscriptions = Set(latest.filter(\.isAutoRenewable).map(\.subscription))
        let snapshot = (inApp ?? []).filter { !$0.isAutoRenewable || !latestSubscriptions.contains($0.subscription) }
        return ReceiptEntry.once(latest + snapshot)
    }

    /// - Parameter environment: the environment of the endpoint that answered, for an answer that names none.
    package init(_ fields: [String: JSON], askedIn environment: StoreEnvironment) throws(FieldMismatch) {
        guard let receipt = try fields.object("receipt") else { throw FieldMismatch() }
        self.environment = try fields.environment("environment") ?? environment
        bundleId = try receipt.lenientString("bundle_id")
        requestDate = try receipt.lenientDate("request_date_ms")
        creationDate = try receipt.lenientDate("receipt_creation_date_ms")
        inApp = try ReceiptEntry.list(receipt["in_app"])
        latestReceiptInfo = try ReceiptEntry.list(fields["latest_receipt_info"])
        latestReceipt = try fields.lenientString("latest_receipt")
    }
}

/// One purchase in a legacy receipt. Source: AppleFacts 5.1, `in_app[]` and `latest_receipt_info[]`.
package struct ReceiptEntry: Sendable, Hashable {
    package var transactionId: String
    package var productId: String
    package var quantity: Int?
    package var originalTransactionId: String?
    package var purchaseDate: Date?
    package var originalPurchaseDate: Date?
    package var expiresDate: Date?
    /// Presence means refunded or taken back.
    package var cancellationDate: Date?
    /// 1 issue in the app, 0 other.
    package var cancellationReason: Int?
    package var webOrderLineItemId: String?
    /// In `latest_receipt_info` only; nil also where the value is no UUID.
    package var appAccountToken: UUID?
    package var ownershipType: String?
    package var isUpgraded: Bool?
    package var isTrialPeriod: Bool?
    package var isInIntroOfferPeriod: Bool?
    package var promotionalOfferId: String?
    /// In `latest_receipt_info` only: the purchase was made with an offer code of this name.
    package var offerCodeRefName: String?
    package var subscriptionGroupIdentifier: String?
    /// 0 non-consumable, 1 consumable, 2 non-renewing, 3 auto-renewable; only in a receipt that was read here, and
    /// undocumented (AppleFacts 6.3, 1707).
    package var productType: Int?

    /// Only an auto-renewable has a billing event or an end.
    package var isAutoRenewable: Bool { expiresDate != nil || webOrderLineItemId != nil }

    fileprivate var subscription: String { originalTransactionId ?? transactionId }

    /// An entry with nothing but its ids.
    init(transactionId: String, productId: String) {
        self.transactionId = transactionId
        self.productId = productId
    }

    /// An entry without transaction or product id is an error of the whole answer: dropping it would lose a purchase.
    init(_ fields: [String: JSON]) throws(FieldMismatch) {
        guard let transactionId = try fields.lenientString("transaction_id"), !transactionId.isEmpty,
            let productId = try fields.lenientString("product_id"), !productId.isEmpty
        else { throw FieldMismatch() }
        self.transactionId = transactionId
        self.productId = productId
        quantity = try fields.lenientInt("quantity")
        originalTransactionId = try fields.lenientString("original_transaction_id")
        purchaseDate = try fields.lenientDate("purchase_date_ms")
        originalPurchaseDate = try fields.lenientDate("original_purchase_date_ms")
        expiresDate = try fields.lenientDate("expires_date_ms")
        cancellationDate = try fields.lenientDate("cancellation_date_ms")
        cancellationReason = try fields.lenientInt("cancellation_reason")
        webOrderLineItemId = try fields.lenientString("web_order_line_item_id")
        appAccountToken = try fields.lenientString("app_account_token").flatMap { UUID(uuidString: $0) }
        ownershipType = try fields.lenientString("in_app_ownership_type")
        isUpgraded = fields.lenientBool("is_upgraded")
        isTrialPeriod = fields.lenientBool("is_trial_period")
        isInIntroOfferPeriod = fields.lenientBool("is_in_intro_offer_period")
        promotionalOfferId = try fields.lenientString("promotional_offer_id")
        offerCodeRefName = try fields.lenientString("offer_code_ref_name")
        subscriptionGroupIdentifier = try fields.lenientString("subscription_group_identifier")
    }

    static func list(_ value: JSON?) throws(FieldMismatch) -> [ReceiptEntry]? {
        guard let value, value != .null else { return nil }
        guard let elements = value.array else { throw FieldMismatch() }
        return try elements.map { (element) throws(FieldMismatch) in
            guard let fields = element.object else { throw FieldMismatch() }
            return try ReceiptEntry(fields)
        }
    }

    /// Every purchase once, by transaction id, in an order that does not depend on Apple's.
    static func once(_ entries: [ReceiptEntry]) -> [ReceiptEntry] {
        Dictionary(entries.map { ($0.transactionId, $0) }, uniquingKeysWith: newer)
            .values
            .sorted {
                ($0.purchaseDate ?? .distantPast, $0.transactionId) < (
                    $1.purchaseDate ?? .distantPast, $1.transactionId
                )
            }
    }

    /// The entry that knows more, of two for one transaction: a refund must never be overlooked, and only
    /// `latest_receipt_info` knows the account token.
    private static func newer(_ one: ReceiptEntry, _ other: ReceiptEntry) -> ReceiptEntry {
        func rank(_ entry: ReceiptEntry) -> (Date, Int, Int, Date, String) {
            (
                entry.cancellationDate ?? .distantPast, entry.isUpgraded == true ? 1 : 0,
                entry.appAccountToken == nil ? 0 : 1, entry.expiresDate ?? .distantPast, entry.productId
            )
        }
        return rank(other) > rank(one) ? other : one
    }
}

/// verifyReceipt's habits: a number or its string, and booleans as `true`, `"true"`, `1` or `"1"`.
extension [String: JSON] {
    func lenientString(_ key: String) throws(FieldMismatch) -> String? {
        if case .integer(let number) = self[key] { return String(number) }
        return try string(key)
    }

    package func lenientInt(_ key: String) throws(FieldMismatch) -> Int? {
        guard case .string(let text) = self[key] else { return try int(key) }
        guard !text.isEmpty else { return nil }
        guard let number = Int(text) else { throw FieldMismatch() }
        return number
    }

    func lenientDate(_ key: String) throws(FieldMismatch) -> Date? {
        guard case .string(let text) = self[key] else { return try date(key) }
        guard !text.isEmpty else { return nil }
        guard let milliseconds = Double(text) else { throw FieldMismatch() }
        return try KnownTime.date(milliseconds / 1000)
    }

    /// nil for anything else: no decision of ours hangs on these.
    func lenientBool(_ key: String) -> Bool? {
        switch self[key] {
        case .bool(let flag): flag
        case .integer(1), .string("1"), .string("true"): true
        case .integer(0), .string("0"), .string("false"): false
        default: nil
        }
    }
}
