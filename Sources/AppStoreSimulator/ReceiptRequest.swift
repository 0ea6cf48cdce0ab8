/// Which purchases a receipt shows: the body of `POST /control/receipts`.
package struct ReceiptRequest: ControlBody, Sendable {
    /// Bundle id or registered name.
    package var app: String
    /// Default `Production`. The purchases' own environment is ignored.
    package var environment: StoreEnvironment?
    /// At most 1,000, in the order wanted in `in_app`; may be empty.
    package var transactionIds: [String]
    /// True: the answer of verifyReceipt has no `in_app` at all.
    package var omitInApp: Bool?
    /// Another bundle id than the app's.
    package var bundleId: String?
    /// Default `sha256`.
    package var receiptStyle: ReceiptStyle?
    /// Makes the receipt larger, by so many bytes that mean nothing: 0 to 8 MiB.
    package var paddingBytes: Int?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case app, environment, transactionIds, omitInApp, bundleId, receiptStyle, paddingBytes
    }

    package init(app: String, environment: StoreEnvironment? = nil, transactionIds: [String]) {
        self.app = app
        self.environment = environment
        self.transactionIds = transactionIds
    }

    func validate() throws(ControlError) {
        try SaleRequest.check(app, "app")
        if let bundleId { try SaleRequest.check(bundleId, "bundleId") }
        guard transactionIds.count <= SaleRequest.receiptMax else {
            throw ControlError(field: "transactionIds", "must be at most \(SaleRequest.receiptMax)")
        }
        guard (0...8 << 20).contains(paddingBytes ?? 0) else {
            throw ControlError(field: "paddingBytes", "must be 0 to \(8 << 20)")
        }
    }
}
