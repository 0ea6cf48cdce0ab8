/// The sending of one notification: its URL, and the time of the next attempt.
package struct Delivery: Codable, Sendable, Equatable {
    package let url: String
    /// The notification's version: 1 or 2.
    package let version: Int
    /// The moment of the next attempt on the store's clock, UNIX milliseconds; nil: there is none.
    package var due: Int64?
    /// How many more times the notification is sent after it arrived.
    var extra: Int?
    /// True: a later notification of the app goes first, for at most ``patience``.
    var waitsForLater: Bool?
    /// True: nothing is sent, and each attempt fails as if nobody answered.
    var isUnanswered: Bool?
    /// The fault that touched the notification.
    package var fault: String?

    /// How long a notification waits for a later one.
    static let patience: Int64 = 3_600_000

    /// The waiting times before the further attempts in production (AppleFacts 4.1, 5.3). The sandbox tries once.
    private static let hours: [Int: [Int64]] = [1: [6, 24, 48], 2: [1, 12, 24, 48, 72]]

    /// The delivery after attempt number `attempt`, from 1, at `now`.
    func after(attempt: Int, isSuccess: Bool, environment: StoreEnvironment, now: Int64) -> Delivery {
        var delivery = self
        delivery.waitsForLater = nil
        delivery.due = nil
        if isSuccess {
            if let extra, extra > 0 {
                delivery.extra = extra - 1
                delivery.due = now
            }
        } else if environment == .production, let waits = Self.hours[version], attempt <= waits.count {
            delivery.due = now + waits[attempt - 1] * 3_600_000
        }
        return delivery
    }
}

/// A receiver that gets notifications one after the other: an app in one environment.
struct DeliveryLane: Hashable, Sendable {
    let app: String
    let environment: StoreEnvironment
}

/// Something that Apple tells an app's backend about a purchase.
struct StoreEvent {
    let type: NotificationType
    let subtype: String?
    let transactionId: String
    /// `CONSUMPTION_REQUEST` only.
    var reason: String?
    /// True: an upgrade replaced the purchase. Only version 1 tells an upgrade, as CANCEL.
    var isReplaced = false

    init(_ type: NotificationType, _ subtype: String? = nil, _ transactionId: String) {
        self.type = type
        self.subtype = subtype
        self.transactionId = transactionId
    }

    /// The type in version 1 (AppleFacts 5.3); nil: version 1 has no such type.
    func typeV1(_ purchase: Purchase) -> String? {
        let name: String? =
            switch (type, subtype) {
            case _ where isReplaced: "CANCEL"
            case (.subscribed, "INITIAL_BUY"): "INITIAL_BUY"
            case (.subscribed, _), (.didChangeRenewalPref, "UPGRADE"): "INTERACTIVE_RENEWAL"
            case (.didRenew, "BILLING_RECOVERY"): "DID_RECOVER"
            case (.didRenew, _): "DID_RENEW"
            case (.didChangeRenewalPref, _): "DID_CHANGE_RENEWAL_PREF"
            case (.didChangeRenewalStatus, _): "DID_CHANGE_RENEWAL_STATUS"
            case (.didFailToRenew, _): "DID_FAIL_TO_RENEW"
            case (.priceIncrease, "PENDING"): "PRICE_INCREASE_CONSENT"
            case (.refund, "SEATS"): nil
            case (.refund, _): purchase.type == .autoRenewable ? "CANCEL" : "REFUND"
            case (.revoke, _): "REVOKE"
            case (.consumptionRequest, _): purchase.type == .consumable ? "CONSUMPTION_REQUEST" : nil
            default: nil
            }
        // Version 1 tells purchasers, and of a family only the member who loses the purchase.
        guard let name, purchase.familyOf == nil || name == "REVOKE" else { return nil }
        return purchase.environment == .production || Self.sandboxV1.contains(name) ? name : nil
    }

    /// All types that version 1 sends in the sandbox.
    private static let sandboxV1: Set<String> = [
        "INITIAL_BUY", "DID_CHANGE_RENEWAL_PREF", "DID_CHANGE_RENEWAL_STATUS", "DID_RENEW", "INTERACTIVE_RENEWAL",
        "CANCEL", "REFUND",
    ]
}

/// The content of a notification of version 1 as the store was when the event happened (AppleFacts 5.3).
struct NotificationV1: Codable, Sendable, Equatable {
    /// How many purchases `latest_receipt_info` shows.
    static let purchasesMax = 100

    let notificationType: String
    let originalTransactionId: String
    /// The customer's last purchases without finished consumables.
    let purchases: [Purchase]
    /// The data on the next renewals by originalTransactionId.
    let renewals: [String: Renewal]
    let at: Int64

    /// The JSON that is sent.
    ///
    /// - Parameters:
    ///   - password: the app's shared secret, which is the only proof of this version.
    ///   - latestReceipt: base64 of a receipt over `purchases`.
    func body(
        app: String, environment: StoreEnvironment, appAppleId: Int64?, password: String, latestReceipt: String
    ) -> [UInt8] {
        let entries = ReceiptEntries(renewals: renewals, now: at)
        let chain = purchases.filter {
            $0.type == .autoRenewable && $0.originalTransactionId == originalTransactionId
        }
        let subscription = chain.isEmpty ? nil : entries.subscription(chain)
        return JSONWriter.object(capacity: 8192) { json in
            json.field("notification_type", notificationType)
            json.field("password", password)
            json.field("environment", environment == .production ? "PROD" : "Sandbox")
            json.field("bid", app)
            json.field("bvrs", "1")
            if let number = Int64(originalTransactionId) { json.field("original_transaction_id", number) }
            if let subscription {
                json.field("auto_renew_product_id", subscription.autoRenewProductId)
                json.field("auto_renew_adam_id", appAppleId.map(String.init) ?? "0")
                json.field("auto_renew_status", subscription.autoRenewStatus(now: at) == 1 ? "true" : "false")
                json.field("expiration_intent", ifPresent: subscription.expirationIntent(now: at))
            }
            json.field(
                "unified_receipt",
                object: { receipt in
                    receipt.field("environment", environment.rawValue)
                    receipt.field("status", 0)
                    receipt.field("latest_receipt", latestReceipt)
                    entries.writeLatest(purchases, &receipt)
                })
        }
    }
}
