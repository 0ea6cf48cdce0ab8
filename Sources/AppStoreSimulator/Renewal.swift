/// The store's data on a subscription's next renewal: the body of `PUT /control/subscriptions/{id}/renewal`.
///
/// A field left out has the value of a healthy subscription: on while it is active, off after it ended. This data and
/// the newest period determine the state of the subscription.
package struct Renewal: ControlBody, Codable, Sendable, Equatable {
    /// 0 off, 1 on.
    package var autoRenewStatus: Int?
    package var autoRenewProductId: String?
    /// 1 to 6 (AppleFacts 2.2); 6 stands for a number that nobody knows.
    package var expirationIntent: Int?
    /// True: state 3 after the period's end.
    package var isInBillingRetryPeriod: Bool?
    /// In the future: state 4 after the period's end.
    package var gracePeriodExpiresDate: Int64?
    /// 0 waiting for consent, 1 consented.
    package var priceIncreaseStatus: Int?
    package var offerType: Int?
    package var offerIdentifier: String?
    package var offerDiscountType: String?
    package var offerPeriod: String?
    package var renewalPrice: Int64?
    /// Seats of the next period.
    package var renewalQuantity: Int?
    package var eligibleWinBackOfferIds: [String]?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case autoRenewStatus, autoRenewProductId, expirationIntent, isInBillingRetryPeriod, gracePeriodExpiresDate
        case priceIncreaseStatus, offerType, offerIdentifier, offerDiscountType, offerPeriod, renewalPrice
        case renewalQuantity, eligibleWinBackOfferIds
    }

    package init() {}

    /// Takes the request's offer, if there is one, for the next period.
    mutating func redeem(_ request: SubscriptionRequest) {
        guard let type = request.offerType else { return }
        offerType = type
        offerIdentifier = request.offerIdentifier
    }

    func validate() throws(ControlError) {
        let numbers: [(String, Int?, ClosedRange<Int>)] = [
            ("autoRenewStatus", autoRenewStatus, 0...1), ("expirationIntent", expirationIntent, 1...6),
            ("priceIncreaseStatus", priceIncreaseStatus, 0...1),
            ("renewalQuantity", renewalQuantity, 1...SaleRequest.seatsMax),
        ]
        for (field, value, range) in numbers {
            if let value, !range.contains(value) {
                throw ControlError(field: field, "must be \(range.lowerBound) to \(range.upperBound)")
            }
        }
        if let autoRenewProductId { try SaleRequest.check(autoRenewProductId, "autoRenewProductId") }
        try SaleRequest.checkTime(gracePeriodExpiresDate, "gracePeriodExpiresDate")
        try SaleRequest.checkOffer(
            type: offerType, identifier: offerIdentifier, discount: offerDiscountType, period: offerPeriod)
        if let renewalPrice, renewalPrice < 0 { throw ControlError(field: "renewalPrice", "must not be negative") }
        for id in eligibleWinBackOfferIds ?? [] { try SaleRequest.check(id, "eligibleWinBackOfferIds") }
    }
}

/// A subscription with all its periods, at one moment.
struct Subscription {
    /// The `status` of a subscription (AppleFacts 3.3).
    enum State: Int {
        case active = 1
        case expired, billingRetry, gracePeriod, revoked
    }

    /// A lapse shorter than this does not end the streak that `recentSubscriptionStartDate` begins.
    private static let lapse: Int64 = 60 * 86_400_000

    /// All periods that are visible, in the order they were sold; never empty.
    let periods: [Purchase]
    let renewal: Renewal

    /// The period that counts: the one bought last.
    var newest: Purchase {
        periods.dropFirst().reduce(periods[0]) { $1.purchaseDate >= $0.purchaseDate ? $1 : $0 }
    }

    func state(now: Int64) -> State {
        let newest = newest
        if isRevoked { return .revoked }
        if newest.expiresDate ?? .max > now { return .active }
        if renewal.gracePeriodExpiresDate ?? 0 > now { return .gracePeriod }
        return renewal.isInBillingRetryPeriod == true ? .billingRetry : .expired
    }

    /// The JSON of JWSRenewalInfoDecodedPayload (AppleFacts 2.2).
    func renewalPayload(signedDate: Int64, now: Int64) -> [UInt8] {
        let newest = newest
        return JSONWriter.object(capacity: 1024) { json in
            json.field("expirationIntent", ifPresent: expirationIntent(now: now))
            json.field("originalTransactionId", newest.originalTransactionId)
            json.field("autoRenewProductId", autoRenewProductId)
            json.field("productId", newest.productId)
            json.field("autoRenewStatus", autoRenewStatus(now: now))
            if let retry = renewal.isInBillingRetryPeriod { json.field("isInBillingRetryPeriod", retry) }
            json.field("priceIncreaseStatus", ifPresent: renewal.priceIncreaseStatus)
            json.field("gracePeriodExpiresDate", ifPresent: renewal.gracePeriodExpiresDate)
            json.field("offerType", ifPresent: renewal.offerType)
            json.field("offerIdentifier", ifPresent: renewal.offerIdentifier)
            json.field("offerDiscountType", ifPresent: renewal.offerDiscountType)
            json.field("offerPeriod", ifPresent: renewal.offerPeriod)
            json.field("signedDate", signedDate)
            json.field("environment", newest.environment.rawValue)
            json.field("recentSubscriptionStartDate", streakStart)
            json.field("renewalDate", ifPresent: newest.expiresDate)
            json.field("renewalPrice", renewalPrice)
            if newest.isMultiSeat == true {
                let quantity = renewal.renewalQuantity ?? seats
                json.field("renewalQuantity", quantity)
                json.field(
                    "multiSeatInfo",
                    object: { info in
                        info.field("renewalPriceTiers", tier: renewalPrice, quantity)
                    })
            }
            json.field("currency", newest.currency)
            if let offers = renewal.eligibleWinBackOfferIds {
                json.field("eligibleWinBackOfferIds", array: { array in for id in offers { array.element(id) } })
            }
            json.field("appAccountToken", ifPresent: newest.appAccountToken)
            json.field("appTransactionId", ifPresent: newest.appTransactionId)
        }
    }

    var autoRenewProductId: String { renewal.autoRenewProductId ?? newest.productId }

    /// 0 off, 1 on.
    func autoRenewStatus(now: Int64) -> Int {
        let state = state(now: now)
        return renewal.autoRenewStatus ?? (state == .expired || state == .revoked ? 0 : 1)
    }

    /// Why it ended; nil: it did not.
    func expirationIntent(now: Int64) -> Int? {
        renewal.expirationIntent ?? (state(now: now) == .expired ? 1 : nil)
    }

    /// The price of the next period, for each seat where it has seats.
    var renewalPrice: Int64 { renewal.renewalPrice ?? newest.price }

    /// When the current streak of periods began.
    private var streakStart: Int64 {
        let periods = periods.sorted { $0.purchaseDate < $1.purchaseDate }
        var start = periods[0].purchaseDate
        for (before, after) in zip(periods, periods.dropFirst())
        where after.purchaseDate - (before.expiresDate ?? after.purchaseDate) >= Self.lapse {
            start = after.purchaseDate
        }
        return start
    }
}
