import Foundation

/// The body of a genuine answer of verifyReceipt (AppleFacts 5.1).
struct VerifyReceiptAnswer {
    let contents: ReceiptContents
    /// The receipt's purchases as they are now, in the receipt's order.
    let purchases: [Purchase]
    /// All periods of the receipt's subscriptions, later ones too.
    let subscriptions: [Purchase]
    /// A receipt that also shows `subscriptions`.
    let latestReceipt: String?
    let appAppleId: Int64
    let excludesOldTransactions: Bool
    let now: Int64

    func json() -> [UInt8] {
        JSONWriter.object(capacity: 2048) { json in
            json.field("status", 0)
            json.field("environment", contents.environment.rawValue)
            json.field("receipt", object: writeReceipt)
            guard !subscriptions.isEmpty else { return }
            json.field("latest_receipt", ifPresent: latestReceipt)
            json.field(
                "latest_receipt_info",
                array: { array in
                    for purchase in excludesOldTransactions ? newest : subscriptions {
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
                    for purchase in newest { array.element { writeRenewal(purchase, &$0) } }
                })
        }
    }

    /// The last period of each subscription.
    private var newest: [Purchase] {
        var newest: [String: Purchase] = [:]
        var order: [String] = []
        for purchase in subscriptions {
            let known = newest[purchase.originalTransactionId]
            if known == nil { order.append(purchase.originalTransactionId) }
            if known == nil || purchase.purchaseDate >= known!.purchaseDate {
                newest[purchase.originalTransactionId] = purchase
            }
        }
        return order.compactMap { newest[$0] }
    }

    private func writeReceipt(_ json: inout JSONWriter) {
        let sandbox = contents.environment == .sandbox
        let appId = sandbox ? 0 : appAppleId
        json.field("receipt_type", sandbox ? "ProductionSandbox" : "Production")
        json.field("adam_id", appId)
        json.field("app_item_id", appId)
        json.field("bundle_id", contents.bundleId)
        json.field("application_version", "1")
        json.field("download_id", sandbox ? 0 : 500_000_000_000 + appId)
        json.field("version_external_identifier", sandbox ? 0 : 800_000_000)
        writeDate("receipt_creation_date", contents.createdAt, &json)
        writeDate("request_date", now, &json)
        // The sandbox gives this date for every app: 2013-08-01 07:00:00 GMT.
        let firstPurchase = purchases.map(\.originalPurchaseDate).min() ?? contents.createdAt
        writeDate("original_purchase_date", sandbox ? 1_375_340_400_000 : firstPurchase, &json)
        json.field("original_application_version", "1.0")
        guard !contents.omitsInApp else { return }
        json.field(
            "in_app",
            array: { array in
                for purchase in purchases { array.element { write(purchase, &$0) } }
            })
    }

    private func write(_ purchase: Purchase, _ json: inout JSONWriter) {
        json.field("quantity", String(purchase.quantity))
        json.field("product_id", purchase.productId)
        json.field("transaction_id", purchase.transactionId)
        json.field("original_transaction_id", purchase.originalTransactionId)
        writeDate("purchase_date", purchase.purchaseDate, &json)
        writeDate("original_purchase_date", purchase.originalPurchaseDate, &json)
        if let expiresDate = purchase.expiresDate { writeDate("expires_date", expiresDate, &json) }
        json.field("web_order_line_item_id", ifPresent: purchase.webOrderLineItemId)
        json.field("is_trial_period", "false")
        if purchase.type == .autoRenewable { json.field("is_in_intro_offer_period", "false") }
        if purchase.offerType == 2 { json.field("promotional_offer_id", ifPresent: purchase.offerIdentifier) }
        json.field("in_app_ownership_type", purchase.inAppOwnershipType)
        if let revocationDate = purchase.revocationDate {
            writeDate("cancellation_date", revocationDate, &json)
            json.field("cancellation_reason", String(purchase.revocationReason ?? 0))
        }
    }

    private func writeRenewal(_ purchase: Purchase, _ json: inout JSONWriter) {
        let expired = (purchase.expiresDate ?? .max) <= now || purchase.revoked
        json.field("auto_renew_product_id", purchase.productId)
        json.field("original_transaction_id", purchase.originalTransactionId)
        json.field("product_id", purchase.productId)
        json.field("auto_renew_status", expired ? "0" : "1")
        if expired { json.field("expiration_intent", "1") }
    }

    /// The triplet `X`, `X_ms`, `X_pst`: all strings.
    private func writeDate(_ name: String, _ milliseconds: Int64, _ json: inout JSONWriter) {
        let date = AppleDate(milliseconds: milliseconds)
        json.field(name, date.gmt)
        json.field("\(name)_ms", String(milliseconds))
        json.field("\(name)_pst", date.pacific)
    }
}
