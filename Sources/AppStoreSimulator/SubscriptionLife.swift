/// How a subscription goes on by itself when the store's clock passes its end. A subscription without a life goes on
/// when somebody sells its next period.
package struct SubscriptionLife: Codable, Sendable, Equatable {
    /// ISO 8601 duration of one period.
    package var period: String
    /// The duration from the next period on, after a change of the product.
    package var nextPeriod: String?
    /// True: the customer's account cannot be charged.
    package var billingFails: Bool?
    /// True: the product is not for sale at the next renewal.
    package var isUnavailable: Bool?
    /// True: the subscription expired, or its customer left it for another one.
    package var hasEnded: Bool?

    init(period: String) { self.period = period }
}

/// A step of a living subscription at one moment.
enum LifeStep: Equatable {
    /// Apple charges the next period.
    case renew
    /// Apple cannot charge; with a grace period, access goes on until its end.
    case fail
    /// The grace period ends, and Apple goes on trying.
    case graceEnds
    /// The subscription expires with this `expirationIntent` and this subtype of EXPIRED.
    case expire(intent: Int, subtype: String)
}

/// The grace periods of App Store Connect (AppleFacts 7).
package enum GracePeriod: String, Codable, Sendable, CaseIterable {
    case threeDays = "THREE_DAYS"
    case sixteenDays = "SIXTEEN_DAYS"
    case twentyEightDays = "TWENTY_EIGHT_DAYS"

    var milliseconds: Int64 {
        switch self {
        case .threeDays: 3 * 86_400_000
        case .sixteenDays: 16 * 86_400_000
        case .twentyEightDays: 28 * 86_400_000
        }
    }
}

extension Subscription {
    /// How long Apple tries to charge after the end of a period.
    static let billingRetry: Int64 = 60 * 86_400_000

    /// The next step and its moment, UNIX milliseconds; nil: nothing happens by itself any more.
    func next(_ life: SubscriptionLife) -> (at: Int64, step: LifeStep)? {
        let newest = newest
        guard life.hasEnded != true, !isRevoked, newest.isUpgraded != true, let end = newest.expiresDate else {
            return nil
        }
        let isCancelled = renewal.autoRenewStatus == 0
        if renewal.isInBillingRetryPeriod == true {
            if let grace = renewal.gracePeriodExpiresDate {
                return (grace, isCancelled ? .expire(intent: 1, subtype: "VOLUNTARY") : .graceEnds)
            }
            return (end + Self.billingRetry, .expire(intent: 2, subtype: "BILLING_RETRY"))
        }
        if isCancelled { return (end, .expire(intent: 1, subtype: "VOLUNTARY")) }
        if renewal.priceIncreaseStatus == 0 { return (end, .expire(intent: 3, subtype: "PRICE_INCREASE")) }
        if life.isUnavailable == true { return (end, .expire(intent: 4, subtype: "PRODUCT_NOT_FOR_SALE")) }
        return (end, life.billingFails == true ? .fail : .renew)
    }

    /// The transactions of the newest period: several where seats were added inside the period.
    var newestPeriod: [Purchase] {
        let newest = newest
        guard newest.additionalTransactionReason != nil else { return [newest] }
        return periods.filter { $0.additionalTransactionReason != nil && $0.expiresDate == newest.expiresDate }
    }

    /// Whether every transaction of the newest period was taken back.
    var isRevoked: Bool { newestPeriod.allSatisfy(\.revoked) }

    /// The seats of the newest period without those that were refunded.
    var seats: Int {
        newestPeriod.filter { !$0.revoked }.reduce(0) { $0 + $1.quantity - ($1.revokedSeatQuantity ?? 0) }
    }

    /// The sale of a period of this subscription. `reason`: `RENEWAL` or `PURCHASE`.
    func sale(
        of productId: String, from start: Int64, to end: Int64, price: Int64, reason: String
    ) -> SaleRequest {
        let newest = newest
        var sale = SaleRequest(
            app: newest.app, productId: productId, appAccountToken: newest.appAccountToken,
            environment: newest.environment, type: .autoRenewable)
        sale.originalTransactionId = newest.originalTransactionId
        sale.customer = newest.account
        sale.originalPurchaseDate = newest.originalPurchaseDate
        sale.purchaseDate = start
        sale.expiresDate = end
        sale.transactionReason = reason
        sale.subscriptionGroupIdentifier = newest.subscriptionGroupIdentifier
        sale.inAppOwnershipType = newest.inAppOwnershipType
        sale.storefront = newest.storefront
        sale.storefrontId = newest.storefrontId
        sale.currency = newest.currency
        sale.price = price
        if newest.isMultiSeat == true { sale.seats = max(1, renewal.renewalQuantity ?? seats) }
        return sale
    }
}

/// The living subscriptions in the order of their next steps.
struct DueList {
    /// The step that is due first stands last.
    private var entries: [(at: Int64, id: String)] = []
    private var moments: [String: Int64] = [:]

    /// The first step and its subscription's originalTransactionId.
    var first: (at: Int64, id: String)? { entries.last }

    /// Sets the moment of a subscription's next step; nil: it has none.
    mutating func set(_ id: String, _ at: Int64?) {
        if let old = moments[id] {
            if old == at { return }
            entries.remove(at: place(old, id))
        }
        moments[id] = at
        if let at { entries.insert((at, id), at: place(at, id)) }
    }

    /// The first place whose entry is not due after the given one.
    private func place(_ at: Int64, _ id: String) -> Int {
        var (low, high) = (0, entries.count)
        while low < high {
            let middle = (low + high) / 2
            if entries[middle] > (at, id) { low = middle + 1 } else { high = middle }
        }
        return low
    }
}
