/// The entries that answers of verifyReceipt and notifications of version 1 share (AppleFacts 5.1).
struct ReceiptEntries {
    /// The data on the next renewals by originalTransactionId.
    let renewals: [String: Renewal]
    let now: Int64

    /// `latest_receipt_info` and `pending_renewal_info`.
    func writeLatest(_ purchases: [Purchase], excludesOld: Bool = false, _ json: inout JSONWriter) {
        let chains = chains(purchases)
        let shown = excludesOld ? chains.map(\.newest) : purchases
        json.field(
            "latest_receipt_info",
            array: { array in
                for purchase in shown {
                    array.element { element in
                        write(purchase, &element)
                        element.field("app_account_token", ifPresent: purchase.appAccountToken)
                        element.field(
                            "subscription_group_identifier", ifPresent: purchase.subscriptionGroupIdentifier)
                        if purchase.isUpgraded == true { element.field("is_upgraded", "true") }
                        if purchase.offerType == 3 {
                            element.field("offer_code_ref_name", ifPresent: purchase.offerIdentifier)
                        }
                    }
                }
            })
        json.field(
            "pending_renewal_info",
            array: { array in
                for chain in chains where !isLeaving(chain) { array.element { writeRenewal(chain, &$0) } }
            })
    }

    /// The subscription of these periods.
    func subscription(_ periods: [Purchase]) -> Subscription {
        Subscription(periods: periods, renewal: renewals[periods[0].originalTransactionId] ?? Renewal())
    }

    /// The auto-renewables by chain, in the order of their first periods.
    private func chains(_ purchases: [Purchase]) -> [Subscription] {
        var periods: [String: [Purchase]] = [:]
        var order: [String] = []
        for purchase in purchases where purchase.type == .autoRenewable {
            if periods[purchase.originalTransactionId] == nil { order.append(purchase.originalTransactionId) }
            periods[purchase.originalTransactionId, default: []].append(purchase)
        }
        return order.compactMap { periods[$0].map(subscription) }
    }

    /// Apple lists no renewal of a customer who cancels in the grace period.
    private func isLeaving(_ chain: Subscription) -> Bool {
        chain.state(now: now) == .gracePeriod && chain.renewal.autoRenewStatus == 0
    }

    /// One purchase. Every value is a string.
    func write(_ purchase: Purchase, _ json: inout JSONWriter) {
        let isFree = purchase.offerDiscountType == "FREE_TRIAL"
        json.field("quantity", String(purchase.quantity))
        json.field("product_id", purchase.productId)
        json.field("transaction_id", purchase.transactionId)
        json.field("original_transaction_id", purchase.originalTransactionId)
        Self.writeDate("purchase_date", purchase.purchaseDate, &json)
        Self.writeDate("original_purchase_date", purchase.originalPurchaseDate, &json)
        if let expiresDate = purchase.expiresDate { Self.writeDate("expires_date", expiresDate, &json) }
        json.field("web_order_line_item_id", ifPresent: purchase.webOrderLineItemId)
        json.field("is_trial_period", isFree ? "true" : "false")
        if purchase.type == .autoRenewable {
            json.field("is_in_intro_offer_period", purchase.offerType == 1 && !isFree ? "true" : "false")
        }
        if purchase.offerType == 2 { json.field("promotional_offer_id", ifPresent: purchase.offerIdentifier) }
        json.field("in_app_ownership_type", purchase.inAppOwnershipType)
        if let date = purchase.revocationDate ?? purchase.upgradedAt {
            Self.writeDate("cancellation_date", date, &json)
            json.field("cancellation_reason", String(purchase.revocationReason ?? 0))
        }
    }

    private func writeRenewal(_ chain: Subscription, _ json: inout JSONWriter) {
        let renewal = chain.renewal
        json.field("auto_renew_product_id", chain.autoRenewProductId)
        json.field("original_transaction_id", chain.newest.originalTransactionId)
        json.field("product_id", chain.newest.productId)
        json.field("auto_renew_status", String(chain.autoRenewStatus(now: now)))
        json.field("expiration_intent", ifPresent: chain.expirationIntent(now: now).map { String($0) })
        if let retry = renewal.isInBillingRetryPeriod { json.field("is_in_billing_retry_period", retry ? "1" : "0") }
        if let grace = renewal.gracePeriodExpiresDate {
            Self.writeDate("grace_period_expires_date", grace, &json)
        }
        if let status = renewal.priceIncreaseStatus {
            json.field("price_consent_status", String(status))
            json.field("price_increase_status", String(status))
        }
        if renewal.offerType == 2 { json.field("promotional_offer_id", ifPresent: renewal.offerIdentifier) }
        if renewal.offerType == 3 { json.field("offer_code_ref_name", ifPresent: renewal.offerIdentifier) }
    }

    /// The triplet `X`, `X_ms`, `X_pst`: all strings.
    static func writeDate(_ name: String, _ milliseconds: Int64, _ json: inout JSONWriter) {
        let date = AppleDate(milliseconds: milliseconds)
        json.field(name, date.gmt)
        json.field("\(name)_ms", String(milliseconds))
        json.field("\(name)_pst", date.pacific)
    }
}
