import Synchronization

/// The events of the store: by its clock, and by the customers of its subscriptions.
extension StoreLedger {
    /// How many steps happen in one call; the next call goes on.
    static let stepsMax = 100_000

    // MARK: The clock

    /// Moves the clock, and lets everything happen that is due by then; returns the store's time.
    func advance(_ request: ClockRequest, end: Int64) throws(ControlError) -> Int64 {
        try state.withLock { state throws(ControlError) in
            let now = clock.now
            let offset = clock.offsetMilliseconds + (try request.target(now: now, end: end) - now)
            try commit([LedgerLine(clock: .init(offsetMilliseconds: offset))], &state)
            clock.set(offsetMilliseconds: offset)
            catchUp(&state)
            return clock.now
        }
    }

    /// Takes all steps that are due, in their order. A step that cannot be written stays due.
    func catchUp(_ state: inout State) {
        let now = clock.now
        for _ in 0..<Self.stepsMax {
            guard let due = state.store.dues.first, due.at <= now else { return }
            do throws(ControlError) {
                try step(due.id, at: due.at, &state)
            } catch {
                return
            }
        }
    }

    private func step(_ original: String, at: Int64, _ state: inout State) throws(ControlError) {
        guard let subscription = state.store.subscription(original, now: .max),
            let life = state.store.lives[original], let step = subscription.next(life)?.step
        else { throw ControlError(status: 503, "no step of \(original)") }
        let id = subscription.newest.transactionId
        var renewal = subscription.renewal
        switch step {
        case .renew:
            try renew(subscription, life, from: at, at: at, subtype: nil, &state)
        case .fail:
            let grace = state.store.gracePeriod(subscription.newest.app)
            renewal.isInBillingRetryPeriod = true
            renewal.gracePeriodExpiresDate = grace.map { at + $0.milliseconds }
            renewal.expirationIntent = grace == nil ? 2 : nil
            try commit([line(original, renewal)], &state)
            let subtype = grace == nil ? nil : "GRACE_PERIOD"
            try announce([StoreEvent(.didFailToRenew, subtype, id)], at: at, &state)
        case .graceEnds:
            renewal.gracePeriodExpiresDate = nil
            renewal.expirationIntent = 2
            try commit([line(original, renewal)], &state)
            try announce([StoreEvent(.gracePeriodExpired, nil, id)], at: at, &state)
        case .expire(let intent, let subtype):
            try expire(subscription, life, intent: intent, subtype: subtype, at: at, &state)
        }
    }

    private func expire(
        _ subscription: Subscription, _ life: SubscriptionLife, intent: Int, subtype: String, at: Int64,
        _ state: inout State
    ) throws(ControlError) {
        let newest = subscription.newest
        var (renewal, life) = (subscription.renewal, life)
        if renewal.isInBillingRetryPeriod != nil { renewal.isInBillingRetryPeriod = false }
        renewal.gracePeriodExpiresDate = nil
        renewal.expirationIntent = intent
        renewal.autoRenewStatus = 0
        life.hasEnded = true
        try commit(
            [line(newest.originalTransactionId, renewal), line(newest.originalTransactionId, life)], &state)
        let members = (state.store.shares[newest.transactionId] ?? []).map { state.store.purchases[$0] }
        let ids = [newest.transactionId] + members.filter { !$0.revoked }.map(\.transactionId)
        try announce(ids.map { StoreEvent(.expired, subtype, $0) }, at: at, &state)
    }

    /// Sells the next period to the customer and the family.
    private func renew(
        _ subscription: Subscription, _ life: SubscriptionLife, from start: Int64, at: Int64, subtype: String?,
        _ state: inout State
    ) throws(ControlError) {
        guard let period = Period(life.nextPeriod ?? life.period) else {
            throw ControlError(status: 503, "no period: \(life.period)")
        }
        var end = period.after(start)
        if end <= at { end = period.after(at) }
        var sale = subscription.sale(
            of: subscription.autoRenewProductId, from: at, to: end, price: subscription.renewalPrice,
            reason: "RENEWAL")
        sale.family = members(of: subscription, state.store)
        _ = try sell(sale, now: at, event: (.didRenew, subtype), &state)
    }

    /// The accounts that share the newest period.
    private func members(of subscription: Subscription, _ store: borrowing LedgerState) -> [String]? {
        var members: [String] = []
        for position in store.shares[subscription.newest.transactionId] ?? []
        where !store.purchases[position].revoked {
            members.append(store.purchases[position].account)
        }
        return members.isEmpty ? nil : members
    }

    private func line(_ original: String, _ renewal: Renewal) -> LedgerLine {
        LedgerLine(renewal: .init(originalTransactionId: original, renewal: renewal))
    }

    private func line(_ original: String, _ life: SubscriptionLife) -> LedgerLine {
        LedgerLine(life: .init(originalTransactionId: original, life: life))
    }

    // MARK: Selling

    /// The lines of a life that begins with a sale, or goes on with it: the data on the next renewal is new.
    func begun(_ purchase: Purchase, _ request: SaleRequest, _ store: borrowing LedgerState) -> [LedgerLine] {
        guard purchase.type == .autoRenewable, let period = request.period else { return [] }
        let original = purchase.originalTransactionId
        guard var life = store.lives[original] else { return [line(original, SubscriptionLife(period: period))] }
        life.period = life.nextPeriod ?? period
        life.nextPeriod = nil
        life.hasEnded = nil
        var renewal = Renewal()
        if purchase.transactionReason == "RENEWAL" {
            renewal.autoRenewStatus = store.renewals[original]?.autoRenewStatus
        }
        return [line(original, life), line(original, renewal)]
    }

    /// The notification of a sale; nil: there is none.
    func saleEvent(
        _ purchase: Purchase, _ request: SaleRequest, _ store: borrowing LedgerState
    ) -> (type: NotificationType, subtype: String?)? {
        guard request.notify != false else { return nil }
        guard purchase.type == .autoRenewable else {
            return request.notify == true ? (.oneTimeCharge, nil) : nil
        }
        if request.originalTransactionId != nil {
            return purchase.transactionReason == "RENEWAL" ? (.didRenew, nil) : (.subscribed, "RESUBSCRIBE")
        }
        for position in store.positions(of: purchase.key) {
            let other = store.purchases[position]
            if other.type == .autoRenewable,
                other.subscriptionGroupIdentifier == purchase.subscriptionGroupIdentifier
            {
                return (.subscribed, "RESUBSCRIBE")
            }
        }
        return (.subscribed, "INITIAL_BUY")
    }

    // MARK: Customers

    /// Lets the customer, the bank or the developer do something to a subscription; returns the notifications of it.
    func change(
        _ request: SubscriptionRequest, of original: String
    ) throws(ControlError) -> [HeldNotification] {
        try request.validate()
        return try state.withLock { state throws(ControlError) in
            catchUp(&state)
            guard let subscription = state.store.subscription(original, now: .max) else {
                throw ControlError(status: 404, field: "id", "no such subscription: \(original)")
            }
            let before = state.store.notifications.count
            let now = clock.now
            if let period = request.period {
                var life = state.store.lives[original] ?? SubscriptionLife(period: period)
                life.period = period
                if subscription.state(now: now) == .expired { life.hasEnded = true }
                try commit([line(original, life)], &state)
            }
            guard state.store.lives[original] != nil else {
                throw ControlError(field: "period", "is missing: this subscription was sold without a life")
            }
            try request.check(against: subscription.state(now: now))
            for part in SubscriptionRequest.parts where request[keyPath: part.isSet] {
                // Each part sees what the parts before it have changed.
                guard let subscription = state.store.subscription(original, now: .max),
                    let life = state.store.lives[original]
                else { continue }
                try apply(part.name, of: request, to: subscription, life, now: now, &state)
            }
            catchUp(&state)
            return Array(state.store.notifications.dropFirst(before))
        }
    }

    private func apply(
        _ part: SubscriptionRequest.CodingKeys, of request: SubscriptionRequest, to subscription: Subscription,
        _ life: SubscriptionLife, now: Int64, _ state: inout State
    ) throws(ControlError) {
        switch part {
        case .unavailable:
            var life = life
            life.isUnavailable = request.unavailable
            try commit([line(subscription.newest.originalTransactionId, life)], &state)
        case .billing:
            try bill(request.billing ?? .recovers, subscription, life, now: now, &state)
        case .autoRenew:
            try setAutoRenew(request.autoRenew ?? true, subscription, life, now: now, &state)
        case .priceIncrease:
            try raise(request.priceIncrease ?? .pending, request, subscription, now: now, &state)
        case .resubscribe:
            try replace(subscription, life, by: request, event: (.subscribed, "RESUBSCRIBE"), now: now, &state)
        case .bundle: try move(subscription, life, request, now: now, &state)
        case .nextProductId where request.bundle == nil && request.resubscribe == nil:
            try changeProduct(subscription, life, request, now: now, &state)
        case .offerType where request.nextProductId == nil: try redeem(request, subscription, now: now, &state)
        case .seats: try addSeats(request.seats ?? 0, subscription, now: now, &state)
        case .nextSeats: try setNextSeats(request.nextSeats ?? 0, subscription, now: now, &state)
        case .revokedSeats: try refundSeats(request.revokedSeats ?? 0, subscription, now: now, &state)
        case .period, .nextProductId, .change, .nextPeriod, .nextPrice, .nextGroup, .offerType, .offerIdentifier: break
        }
    }

    private func bill(
        _ billing: SubscriptionRequest.Billing, _ subscription: Subscription, _ life: SubscriptionLife, now: Int64,
        _ state: inout State
    ) throws(ControlError) {
        let original = subscription.newest.originalTransactionId
        var life = life
        life.billingFails = billing == .fails ? true : nil
        try commit([line(original, life)], &state)
        guard billing == .recovers, subscription.renewal.isInBillingRetryPeriod == true else { return }
        // Within the grace period the renewal date stays; after it the period begins with the payment.
        let end = subscription.newest.expiresDate ?? now
        let start = subscription.renewal.gracePeriodExpiresDate == nil ? now : end
        try renew(subscription, life, from: start, at: now, subtype: "BILLING_RECOVERY", &state)
    }

    private func setAutoRenew(
        _ wanted: Bool, _ subscription: Subscription, _ life: SubscriptionLife, now: Int64, _ state: inout State
    ) throws(ControlError) {
        guard subscription.autoRenewStatus(now: now) != (wanted ? 1 : 0) else { return }
        var renewal = subscription.renewal
        renewal.autoRenewStatus = wanted ? 1 : 0
        let newest = subscription.newest
        try commit([line(newest.originalTransactionId, renewal)], &state)
        let subtype = wanted ? "AUTO_RENEW_ENABLED" : "AUTO_RENEW_DISABLED"
        try announce(
            [StoreEvent(.didChangeRenewalStatus, subtype, newest.transactionId)], at: now, &state)
        // In billing retry nothing is left to wait for.
        guard !wanted, subscription.state(now: now) == .billingRetry else { return }
        try expire(
            Subscription(periods: subscription.periods, renewal: renewal), life, intent: 1, subtype: "VOLUNTARY",
            at: now, &state)
    }

    private func raise(
        _ price: SubscriptionRequest.PriceIncrease, _ request: SubscriptionRequest, _ subscription: Subscription,
        now: Int64, _ state: inout State
    ) throws(ControlError) {
        let newest = subscription.newest
        var renewal = subscription.renewal
        renewal.priceIncreaseStatus = price == .pending ? 0 : 1
        renewal.renewalPrice = request.nextPrice ?? renewal.renewalPrice ?? newest.price + 1000
        try commit([line(newest.originalTransactionId, renewal)], &state)
        let subtype = price == .pending ? "PENDING" : "ACCEPTED"
        try announce([StoreEvent(.priceIncrease, subtype, newest.transactionId)], at: now, &state)
    }

    /// Another product: at once, or from the next period on.
    private func changeProduct(
        _ subscription: Subscription, _ life: SubscriptionLife, _ request: SubscriptionRequest, now: Int64,
        _ state: inout State
    ) throws(ControlError) {
        let newest = subscription.newest
        let isSamePeriod = request.nextPeriod ?? life.period == life.period
        if request.change == .upgrade || (request.change == .crossgrade && isSamePeriod) {
            let type: NotificationType = request.offerType == nil ? .didChangeRenewalPref : .offerRedeemed
            return try replace(subscription, life, by: request, event: (type, "UPGRADE"), now: now, &state)
        }
        var (renewal, life) = (subscription.renewal, life)
        let isBack = request.nextProductId == newest.productId
        renewal.autoRenewProductId = isBack ? nil : request.nextProductId
        renewal.renewalPrice = isBack ? nil : request.nextPrice
        life.nextPeriod = isBack ? nil : request.nextPeriod
        renewal.redeem(request)
        try commit([line(newest.originalTransactionId, renewal), line(newest.originalTransactionId, life)], &state)
        let subtype = isBack ? nil : "DOWNGRADE"
        let type: NotificationType = request.offerType == nil ? .didChangeRenewalPref : .offerRedeemed
        try announce([StoreEvent(type, subtype, newest.transactionId)], at: now, &state)
    }

    /// An offer for the next period of the present product.
    private func redeem(
        _ request: SubscriptionRequest, _ subscription: Subscription, now: Int64, _ state: inout State
    ) throws(ControlError) {
        let newest = subscription.newest
        var renewal = subscription.renewal
        renewal.redeem(request)
        try commit([line(newest.originalTransactionId, renewal)], &state)
        try announce([StoreEvent(.offerRedeemed, nil, newest.transactionId)], at: now, &state)
    }

    /// A new period from now on: an upgrade of the running one, or a start after a lapse.
    private func replace(
        _ subscription: Subscription, _ life: SubscriptionLife, by request: SubscriptionRequest,
        event: (type: NotificationType, subtype: String?), now: Int64, _ state: inout State
    ) throws(ControlError) {
        let newest = subscription.newest
        let original = newest.originalTransactionId
        guard let period = Period(request.nextPeriod ?? life.period) else { return }
        let family = event.type == .subscribed ? nil : members(of: subscription, state.store)
        var life = life
        life.nextPeriod = request.nextPeriod
        life.billingFails = nil
        var lines = [line(original, life)]
        if event.type != .subscribed {
            for position in [state.store.positions[newest.transactionId]].compactMap({ $0 })
                + (state.store.shares[newest.transactionId] ?? [])
            {
                var old = state.store.purchases[position]
                old.isUpgraded = true
                old.upgradedAt = now
                lines.append(LedgerLine(changed: old))
            }
        }
        try commit(lines, &state)
        if event.type != .subscribed {
            var replaced = StoreEvent(.refund, nil, newest.transactionId)
            replaced.isReplaced = true
            try announce([replaced], at: now, &state)
        }
        // Two periods of a chain never begin in the same second, also where the clock stood still since the last one.
        let start = max(now, newest.purchaseDate + 1000)
        var sale = subscription.sale(
            of: request.nextProductId ?? newest.productId, from: start, to: period.after(start),
            price: request.nextPrice ?? newest.price, reason: "PURCHASE")
        sale.family = family
        sale.offerType = request.offerType
        sale.offerIdentifier = request.offerIdentifier
        _ = try sell(sale, now: now, event: event, &state)
    }

    /// Into a bundle or out of it: a new chain, linked to the old one, whose period is revoked for a reason that is no
    /// refund.
    private func move(
        _ subscription: Subscription, _ life: SubscriptionLife, _ request: SubscriptionRequest, now: Int64,
        _ state: inout State
    ) throws(ControlError) {
        var old = subscription.newest
        guard let period = Period(request.nextPeriod ?? life.period) else { return }
        old.revocationDate = now
        old.revocationReason = 2
        var ended = life
        ended.hasEnded = true
        try commit([LedgerLine(changed: old), line(old.originalTransactionId, ended)], &state)
        try announce([StoreEvent(.revoke, nil, old.transactionId)], at: now, &state)
        var sale = subscription.sale(
            of: request.nextProductId ?? old.productId, from: now, to: period.after(now),
            price: request.nextPrice ?? old.price, reason: "PURCHASE")
        sale.originalTransactionId = nil
        sale.originalPurchaseDate = nil
        sale.previousOriginalTransactionId = old.originalTransactionId
        sale.period = request.nextPeriod ?? life.period
        sale.subscriptionGroupIdentifier = request.nextGroup ?? old.subscriptionGroupIdentifier
        _ = try sell(sale, now: now, event: (.subscribed, "INITIAL_BUY"), &state)
    }

    // MARK: Seats

    private func addSeats(
        _ seats: Int, _ subscription: Subscription, now: Int64, _ state: inout State
    ) throws(ControlError) {
        let newest = subscription.newest
        guard newest.isMultiSeat == true, seats > subscription.seats else {
            throw ControlError(
                field: "seats", "must be more than the subscription has (fewer: nextSeats), and it needs seats")
        }
        var lines = subscription.newestPeriod.map { purchase in
            var purchase = purchase
            purchase.additionalTransactionReason = "SEAT_ADDITION"
            return LedgerLine(changed: purchase)
        }
        var sale = subscription.sale(
            of: newest.productId, from: now, to: newest.expiresDate ?? now, price: newest.price, reason: "PURCHASE")
        sale.seats = seats - subscription.seats
        var fresh: [Account: String] = [:]
        var added = try make(sale, app: newest.app, now: now, &fresh, &state)
        added.additionalTransactionReason = "SEAT_ADDITION"
        lines.append(LedgerLine(sold: added))
        try commit(lines, &state)
        try announce(
            [StoreEvent(.didChangeRenewalPref, "INCREASE_QUANTITY", added.transactionId)], at: now, &state)
    }

    private func setNextSeats(
        _ seats: Int, _ subscription: Subscription, now: Int64, _ state: inout State
    ) throws(ControlError) {
        let newest = subscription.newest
        guard newest.isMultiSeat == true else {
            throw ControlError(field: "nextSeats", "the subscription has no seats")
        }
        var renewal = subscription.renewal
        renewal.renewalQuantity = seats
        try commit([line(newest.originalTransactionId, renewal)], &state)
        let subtype = seats < subscription.seats ? "DECREASE_QUANTITY" : "INCREASE_QUANTITY"
        try announce([StoreEvent(.didChangeRenewalPref, subtype, newest.transactionId)], at: now, &state)
    }

    /// A refund of some seats, which leaves the purchase valid.
    private func refundSeats(
        _ seats: Int, _ subscription: Subscription, now: Int64, _ state: inout State
    ) throws(ControlError) {
        var newest = subscription.newest
        guard newest.isMultiSeat == true, seats <= newest.quantity else {
            throw ControlError(field: "revokedSeats", "must be at most the seats of the newest transaction")
        }
        newest.revokedSeatQuantity = seats
        try commit([LedgerLine(changed: newest)], &state)
        try announce([StoreEvent(.refund, "SEATS", newest.transactionId)], at: now, &state)
    }
}
