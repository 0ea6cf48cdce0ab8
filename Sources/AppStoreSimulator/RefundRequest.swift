/// How a purchase is taken back: the body of `POST /control/purchases/{id}/refund`.
package struct RefundRequest: ControlBody, Sendable {
    /// UNIX milliseconds; default now.
    package var revocationDate: Int64?
    /// 0 (default) or 1.
    package var revocationReason: Int?
    /// `REFUND_FULL`, `REFUND_PRORATED`, `FAMILY_REVOKE` or `ASSIGNMENT_REVOKE`; default: left out.
    package var revocationType: String?
    /// Thousandths of a percent, 0 to 100,000; default: left out.
    package var revocationPercentage: Int?
    /// True: no money goes back, because another product took the purchase's place. Signed data then marks the upgrade
    /// and gives no reason; verifyReceipt marks it beside the reason 0.
    package var isUpgrade: Bool?
    /// False: Apple sends no notification of it.
    package var notify: Bool?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case revocationDate, revocationReason, revocationType, revocationPercentage, isUpgrade, notify
    }

    package init(revocationDate: Int64? = nil, revocationReason: Int? = nil) {
        self.revocationDate = revocationDate
        self.revocationReason = revocationReason
    }

    /// Writes the refund into a purchase. `type` replaces the request's own.
    func apply(to purchase: inout Purchase, now: Int64, type: String? = nil) {
        purchase.revocationDate = revocationDate ?? now
        purchase.revocationReason = isUpgrade == true ? nil : revocationReason ?? 0
        if isUpgrade == true { purchase.isUpgraded = true }
        purchase.revocationType = type ?? revocationType
        purchase.revocationPercentage = type == nil ? revocationPercentage : nil
    }

    func validate() throws(ControlError) {
        try SaleRequest.checkTime(revocationDate, "revocationDate")
        if let revocationReason, ![0, 1].contains(revocationReason) {
            throw ControlError(field: "revocationReason", "must be 0 or 1")
        }
        let types = ["REFUND_FULL", "REFUND_PRORATED", "FAMILY_REVOKE", "ASSIGNMENT_REVOKE"]
        if let revocationType, !types.contains(revocationType) {
            throw ControlError(field: "revocationType", "must be one of \(types.joined(separator: ", "))")
        }
        if let revocationPercentage, !(0...100_000).contains(revocationPercentage) {
            throw ControlError(field: "revocationPercentage", "must be 0 to 100000")
        }
    }
}
