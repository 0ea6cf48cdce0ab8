/// How an app answers when Apple asks about a refund (setting `refunds`).
package struct RefundPolicy: Sendable, Equatable {
    /// The decision that the app would like Apple to take.
    package enum Preference: String, Sendable, CaseIterable {
        /// Apple is told nothing about it.
        case noPreference = "none"
        case decline, grant
        /// As much of the money as was not used, by ``RefundPolicy/declineFrom`` and ``RefundPolicy/grantUpTo``.
        case byConsumption
    }

    /// Apple takes an answer for 12 hours, and the call may have to be repeated. A request that is open after 11 hours
    /// raises the alarm, so one that is answered in its time must be answered before.
    package static let answerAfterMax: Duration = .seconds(630 * 60)

    package var preference = Preference.noPreference
    /// Of ``Preference/byConsumption``, in thousandths of a percent: from here on the app would keep all of the money.
    package var declineFrom = Revocation.whole
    /// Of ``Preference/byConsumption``, in thousandths of a percent: up to here the app would give all of the money
    /// back.
    package var grantUpTo = 0
    /// Whether the customer could try the product before the purchase.
    package var providesSample = false
    /// The time from Apple's question to the answer. Until then support may change the answer, and the app's backend
    /// may report consumption.
    package var answerAfter: Duration = .seconds(10 * 3600)
    /// The version of Apple's call, 2 or 1. Purchases through Advanced Commerce always take 1.
    package var apiVersion = 2

    package init() {}
}
