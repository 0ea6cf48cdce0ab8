/// Why Apple is asked for a customer's purchases before the rota (Sweeps). The raw value is the word in SQL.
package enum CustomerReason: String, Sendable, CaseIterable {
    /// The time to pay an order passed, and no purchase came.
    case unpaidOrder = "unpaid_order"
    /// The app reported that the user was charged and that there is no proof.
    case paidWithoutProof = "paid_without_proof"
    /// Support looked up a purchase of the customer.
    case support
    /// Apple's answer about a subscription shows that periods are missing here.
    case missingPeriods = "missing_periods"
    /// Apple lists a refund no more.
    case refundUndone = "refund_undone"
    /// The whole history is compared with the ledger.
    case sample
}
