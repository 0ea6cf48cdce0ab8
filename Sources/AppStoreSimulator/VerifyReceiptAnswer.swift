/// The body of a genuine answer of verifyReceipt (AppleFacts 5.1).
struct VerifyReceiptAnswer {
    let contents: ReceiptContents
    /// The receipt's purchases as they are now, in the receipt's order.
    let purchases: [Purchase]
    /// All periods of the receipt's subscriptions, later ones too.
    let subscriptions: [Purchase]
    /// The data on the next renewals by originalTransactionId.
    let renewals: [String: Renewal]
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
            entries.writeLatest(subscriptions, excludesOld: excludesOldTransactions, &json)
        }
    }

    private var entries: ReceiptEntries { ReceiptEntries(renewals: renewals, now: now) }

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
        ReceiptEntries.writeDate("receipt_creation_date", contents.createdAt, &json)
        ReceiptEntries.writeDate("request_date", now, &json)
        // The sandbox gives this date for every app: 2013-08-01 07:00:00 GMT.
        let firstPurchase = purchases.map(\.originalPurchaseDate).min() ?? contents.createdAt
        ReceiptEntries.writeDate("original_purchase_date", sandbox ? 1_375_340_400_000 : firstPurchase, &json)
        json.field("original_application_version", "1.0")
        guard !contents.omitsInApp else { return }
        json.field(
            "in_app",
            array: { array in
                for purchase in purchases { array.element { entries.write(purchase, &$0) } }
            })
    }
}
