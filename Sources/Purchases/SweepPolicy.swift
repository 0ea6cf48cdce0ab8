/// An app's settings for the questions that this server asks Apple without being asked.
package struct SweepPolicy: Sendable, Equatable {
    /// How often each customer's history is asked for. Nil: only where there is a reason.
    package var customersEvery: Duration? = .seconds(30 * 86_400)
    /// How often each customer's refunds are asked for. Nil: never.
    package var refundsEvery: Duration? = .seconds(86_400)
    /// Customers a day whose whole history is compared with the ledger. 0: none.
    package var samplePerDay = 100

    package init() {}
}
