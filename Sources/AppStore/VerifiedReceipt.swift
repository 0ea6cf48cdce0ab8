package import Encoding
package import Foundation

/// Apple's answer about a genuine legacy receipt: what the receipt lists.
///
/// A receipt of iOS 6 style lists one purchase, flat: the receipt itself is the purchase (F1).
/// Source: AppleFacts 5.1. Numbers, booleans and dates are strings there; ``AppleFields`` reads either spelling.
package struct VerifiedReceipt: Sendable, Hashable {
    package var environment: StoreEnvironment
    /// The caller must compare it with the app's; Apple does not. Nil: Apple did not say, which is no other app.
    package var bundleId: String?
    package var requestDate: Date?
    package var creationDate: Date?
    /// The purchase that a receipt of iOS 6 style is; nil for any other receipt.
    package var purchase: ReceiptEntry?
    /// The snapshot inside the receipt; empty and absent both mean nothing bought, or not yet refreshed.
    package var inApp: [ReceiptEntry]?
    /// Apple's current knowledge, of an expired subscription too; absent where the receipt has no auto-renewables.
    package var latestReceiptInfo: [ReceiptEntry]?
    /// Whether ``latestReceiptInfo`` is a list, which has every period of a subscription. One object is the latest one.
    private var listsPeriods = true
    /// Apple's word on the next renewal of each subscription. Without an element that cannot be read: nothing is
    /// granted by it.
    package var pendingRenewals: [PendingRenewal] = []
    /// A newer receipt, base64.
    package var latestReceipt: String?
    /// The calls that led here, in order; the last one succeeded.
    package internal(set) var calls: [ServiceCall] = []

    /// Every purchase once, by transaction id, in an order that does not depend on Apple's.
    ///
    /// Auto-renewables come from `latest_receipt_info`, everything else from both. An auto-renewable of `in_app` counts
    /// only if `latest_receipt_info` does not list its subscription at all: old data is better than a lost purchase.
    /// One object in the list's place leaves out nothing, nor does the purchase that a receipt of iOS 6 style is.
    package var entries: [ReceiptEntry] {
        let latest = latestReceiptInfo ?? []
        let listed = listsPeriods ? latest.filter(\.isAutoRenewable) : []
        let latestSubscriptions = Set(listed.map(\.subscription))
        let snapshot = (inApp ?? []).filter { !$0.isAutoRenewable || !latestSubscriptions.contains($0.subscription) }
        return ReceiptEntry.once(latest + snapshot + [purchase].compactMap(\.self))
    }

    /// - Parameter environment: the environment of the endpoint that answered, for an answer that names none.
    /// - Throws: without a receipt, for a list that cannot be read, and as ``ReceiptEntry``.
    package init(_ answer: [String: JSON], askedIn environment: StoreEnvironment) throws(FieldMismatch) {
        let fields = AppleFields(answer, spelling: .text, counts: true)
        guard let receipt = fields.object("receipt") else { throw FieldMismatch() }
        let named = fields.environment("environment").flatMap { StoreEnvironment.ofApple.contains($0) ? $0 : nil }
        self.environment = named ?? StoreEnvironment(receiptType: receipt.string("receipt_type")) ?? environment
        bundleId = receipt.string("bundle_id") ?? receipt.string("bid")
        requestDate = receipt.date("request_date_ms") ?? receipt.date("request_date")
        creationDate = receipt.date("receipt_creation_date_ms") ?? receipt.date("receipt_creation_date")
        inApp = try ReceiptEntry.list(receipt, "in_app")
        if !receipt.isSilent("transaction_id") || !receipt.isSilent("product_id") {
            purchase = try ReceiptEntry(receipt)
        }
        latestReceiptInfo = try ReceiptEntry.list(fields, "latest_receipt_info", mayBeOne: true)
        listsPeriods = fields.isList("latest_receipt_info")
        if let expired = try ReceiptEntry.list(fields, "latest_expired_receipt_info", mayBeOne: true) {
            latestReceiptInfo = (latestReceiptInfo ?? []) + expired
        }
        pendingRenewals = ((try? fields.list("pending_renewal_info", mayBeOne: true)) ?? [])
            .compactMap(PendingRenewal.init)
        latestReceipt = fields.string("latest_receipt") ?? fields.string("latest_expired_receipt")
    }
}

/// The next renewal of a subscription, as verifyReceipt tells it. Source: AppleFacts 5.1, `pending_renewal_info[]`.
package struct PendingRenewal: Sendable, Hashable {
    package var originalTransactionId: String
    package var productId: String?
    package var autoRenewProductId: String?
    package var autoRenewStatus: Int?
    package var expirationIntent: Int?
    package var isInBillingRetryPeriod: Bool?
    package var gracePeriodExpiresDate: Date?
    package var priceConsentStatus: Int?
    package var promotionalOfferId: String?
    package var offerCodeRefName: String?

    /// Nil for an element that names no subscription.
    init?(_ fields: AppleFields) {
        guard let original = fields.string("original_transaction_id") else { return nil }
        originalTransactionId = original
        productId = fields.string("product_id")
        autoRenewProductId = fields.string("auto_renew_product_id")
        autoRenewStatus = fields.int("auto_renew_status")
        expirationIntent = fields.int("expiration_intent")
        isInBillingRetryPeriod = fields.bool("is_in_billing_retry_period")
        gracePeriodExpiresDate = fields.date("grace_period_expires_date_ms") ?? fields.date("grace_period_expires_date")
        priceConsentStatus = fields.int("price_consent_status")
        promotionalOfferId = fields.string("promotional_offer_id")
        offerCodeRefName = fields.string("offer_code_ref_name")
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

    /// Whether Apple names an end or a billing event, also where nobody can read it.
    private var namesPeriod = false

    /// Only an auto-renewable has a billing event or an end.
    package var isAutoRenewable: Bool { namesPeriod || expiresDate != nil || webOrderLineItemId != nil }

    fileprivate var subscription: String { originalTransactionId ?? transactionId }

    /// An entry with nothing but its ids.
    init(transactionId: String, productId: String) {
        self.transactionId = transactionId
        self.productId = productId
    }

    /// An entry without transaction or product id is an error of the whole answer: dropping it would lose a purchase.
    /// So is an end by Apple at a date that cannot be read.
    init(_ fields: AppleFields) throws(FieldMismatch) {
        transactionId = try fields.required("transaction_id")
        productId = try fields.required("product_id")
        quantity = fields.int("quantity")
        originalTransactionId = fields.string("original_transaction_id")
        purchaseDate =
            fields.date("purchase_date_ms") ?? fields.date("purchase_date") ?? fields.date("purchase_date_pst")
        originalPurchaseDate = fields.date("original_purchase_date_ms") ?? fields.date("original_purchase_date")
        expiresDate = Self.ends.lazy.compactMap { fields.date($0) }.first
        cancellationDate = try fields.dateOfEnd("cancellation_date_ms", "cancellation_date", "cancellation_date_pst")
        cancellationReason = fields.int("cancellation_reason")
        webOrderLineItemId = fields.string("web_order_line_item_id")
        namesPeriod = Self.ends.contains { !fields.isSilent($0) } || !fields.isSilent("web_order_line_item_id")
        appAccountToken = fields.uuid("app_account_token")
        ownershipType = fields.string("in_app_ownership_type")
        isUpgraded = fields.bool("is_upgraded")
        isTrialPeriod = fields.bool("is_trial_period")
        isInIntroOfferPeriod = fields.bool("is_in_intro_offer_period")
        promotionalOfferId = fields.string("promotional_offer_id")
        offerCodeRefName = fields.string("offer_code_ref_name")
        subscriptionGroupIdentifier = fields.string("subscription_group_identifier")
    }

    /// Where the end of a period may stand. In a receipt of iOS 6 style, `expires_date` holds milliseconds.
    private static let ends: [AppleField] = [
        "expires_date_ms", "expires_date", "expires_date_formatted", "expires_date_pst",
    ]

    static func list(
        _ fields: AppleFields, _ name: AppleField, mayBeOne: Bool = false
    ) throws(FieldMismatch) -> [ReceiptEntry]? {
        try fields.list(name, mayBeOne: mayBeOne)?.map { (entry) throws(FieldMismatch) in try ReceiptEntry(entry) }
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
