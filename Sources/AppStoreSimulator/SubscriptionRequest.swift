/// The changes of a living subscription: the body of `POST /control/subscriptions/{id}`. The fields that are set happen
/// in the order in which they stand here.
package struct SubscriptionRequest: ControlBody, Sendable {
    /// The customer's bank.
    package enum Billing: String, Codable, Sendable, CaseIterable {
        /// From the next renewal on Apple cannot charge.
        case fails
        /// Apple can charge again, and charges the open amount now.
        case recovers
    }

    package enum Change: String, Codable, Sendable, CaseIterable {
        /// At once, with a new period.
        case upgrade
        /// At the next renewal.
        case downgrade
        /// At once if `nextPeriod` is the present period, else at the next renewal.
        case crossgrade
    }

    package enum PriceIncrease: String, Codable, Sendable, CaseIterable {
        /// The customer must consent before the next renewal.
        case pending
        case accepted
    }

    package enum Bundle: String, Codable, Sendable, CaseIterable {
        case join, leave
    }

    /// Gives the subscription a life, or another period: ISO 8601 duration of a minute or more.
    package var period: String?
    /// True: the product is not for sale at the next renewal.
    package var unavailable: Bool?
    package var billing: Billing?
    package var autoRenew: Bool?
    /// The new price is `nextPrice`; default: one unit of the currency more.
    package var priceIncrease: PriceIncrease?
    /// True: the customer subscribes again after the end, to `nextProductId` or the same product.
    package var resubscribe: Bool?
    /// The subscription moves into a bundle or out of it; the new product is `nextProductId`.
    package var bundle: Bundle?
    /// Another product, in the way of `change`; the present product takes a change back.
    package var nextProductId: String?
    /// Default `downgrade`.
    package var change: Change?
    /// ISO 8601 duration; default: the present one.
    package var nextPeriod: String?
    /// Thousandths of the currency.
    package var nextPrice: Int64?
    /// `bundle` only: the group of the new subscription.
    package var nextGroup: String?
    /// The type of an offer that the customer redeems (AppleFacts 2.1): for the next period of the present product, or
    /// for `nextProductId`.
    package var offerType: Int?
    package var offerIdentifier: String?
    /// The seats from now on, more than before.
    package var seats: Int?
    /// The seats of the next period.
    package var nextSeats: Int?
    /// Seats of the newest transaction that are refunded, all together.
    package var revokedSeats: Int?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case period, unavailable, billing, autoRenew, priceIncrease, resubscribe, bundle, nextProductId, change
        case nextPeriod, nextPrice, nextGroup, offerType, offerIdentifier, seats, nextSeats, revokedSeats
    }

    package init() {}

    /// The fields by which something happens, in their order.
    static var parts: [(name: CodingKeys, isSet: KeyPath<SubscriptionRequest, Bool>)] {
        [
            (.unavailable, \.unavailable.isSet), (.billing, \.billing.isSet), (.autoRenew, \.autoRenew.isSet),
            (.priceIncrease, \.priceIncrease.isSet), (.resubscribe, \.resubscribe.isSet), (.bundle, \.bundle.isSet),
            (.nextProductId, \.nextProductId.isSet), (.offerType, \.offerType.isSet), (.seats, \.seats.isSet),
            (.nextSeats, \.nextSeats.isSet),
            (.revokedSeats, \.revokedSeats.isSet),
        ]
    }

    /// Refuses a change that the subscription's state does not allow: only an ended subscription begins again.
    func check(against state: Subscription.State) throws(ControlError) {
        let isOver = state == .expired || state == .revoked
        for part in Self.parts where self[keyPath: part.isSet] && part.name != .unavailable {
            if isOver, resubscribe != true {
                throw ControlError(field: part.name.stringValue, "the subscription is over; resubscribe first")
            }
            if !isOver, part.name == .resubscribe {
                throw ControlError(field: "resubscribe", "the subscription is not over")
            }
        }
    }

    func validate() throws(ControlError) {
        if let period { try Period.check(period, "period") }
        if let nextPeriod { try Period.check(nextPeriod, "nextPeriod") }
        if let nextProductId { try SaleRequest.check(nextProductId, "nextProductId") }
        if let nextGroup { try SaleRequest.check(nextGroup, "nextGroup") }
        if let nextPrice, nextPrice < 0 { throw ControlError(field: "nextPrice", "must not be negative") }
        if bundle != nil, nextProductId == nil {
            throw ControlError(field: "nextProductId", "is missing: the product of the other subscription")
        }
        if bundle != nil, resubscribe == true {
            throw ControlError(field: "bundle", "must not stand beside resubscribe")
        }
        if change != nil, nextProductId == nil || bundle != nil || resubscribe == true {
            throw ControlError(field: "change", "belongs to nextProductId alone")
        }
        try SaleRequest.checkOffer(type: offerType, identifier: offerIdentifier, discount: nil, period: nil)
        if offerType != nil, bundle != nil || resubscribe == true {
            throw ControlError(field: "offerType", "must not stand beside bundle or resubscribe")
        }
        if offerIdentifier != nil, offerType == nil {
            throw ControlError(field: "offerIdentifier", "belongs to offerType")
        }
        if nextGroup != nil, bundle == nil { throw ControlError(field: "nextGroup", "belongs to bundle") }
        for (field, value) in [("seats", seats), ("nextSeats", nextSeats), ("revokedSeats", revokedSeats)] {
            if let value, !(1...SaleRequest.seatsMax).contains(value) {
                throw ControlError(field: field, "must be 1 to \(SaleRequest.seatsMax)")
            }
        }
        if resubscribe == false { throw ControlError(field: "resubscribe", "must be true") }
    }
}

extension Optional {
    fileprivate var isSet: Bool { if case .some = self { true } else { false } }
}
