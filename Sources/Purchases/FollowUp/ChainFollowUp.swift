import Encoding
import Foundation

extension ChainFacts {
    /// What is to be written about the chain. A second follow-up of the same facts, after the first was written and at
    /// the same moment, has no entry and no event.
    ///
    /// - Every granted purchase gets the entries that make up the difference to what Apple says now.
    /// - The subscription's state is compared with what was told. One look tells the present state and no state between.
    /// - While nobody is known to have the chain, nothing is told of its state.
    package func followUp(by policy: SubscriptionPolicy) -> FollowUp {
        let listed = ChainPurchase.all(purchases, isContinued: isContinued)
        var result = FollowUp()
        (result.told, result.steps) = (told, steps)
        let taken = listed.flatMap { $0.steps(now: now) }
            .sorted { ($0.entry.at, $0.entry.transactionID) < ($1.entry.at, $1.entry.transactionID) }
        result.revocations = taken.map(\.entry)
        result.events = taken.compactMap(\.event)
        result.rejudged = listed.filter { $0.granted == nil && $0.stands }
            .flatMap { $0.listed.map(\.transaction.id) }
        guard
            let rules = SubscriptionRules(listed, renewal: renewal, isContinued: isContinued, policy: policy),
            let owner = Owner(of: rules.periods)
        else { return result }
        let status = rules.status(at: now)
        result.dueAt = rules.nextChange(after: now)
        if status.isOverByClock(at: now) {
            // The first look that found the end of this period, not of one before.
            let seenAt = lapseSeenAt.flatMap { $0 >= status.accessUntil ? $0 : nil } ?? now
            result.lapseSeenAt = seenAt
            let secondLook = seenAt + SubscriptionStatus.believedAfter
            if now < secondLook {
                result.dueAt = secondLook
                return result
            }
        }
        let news = ToldState(status, rules, renewal, owner: owner.userID)
        var events = SubscriptionEvents(self, rules, owner: owner, told: told, news: news)
        events.tell()
        result.events += events.written
        (result.told, result.steps) = (news, events.steps)
        return result
    }

    /// Who has the chain: the holder of its newest granted period.
    struct Owner {
        let userID: String
        /// Of that period's grant.
        let receiptID: UUID

        /// Nil: no period is granted, or the user was erased.
        init?(of periods: [SubscriptionRules.Period]) {
            guard let grant = periods.last(where: { $0.purchase.granted != nil })?.purchase.granted?.grant,
                let userID = grant.userID
            else { return nil }
            self.userID = userID
            receiptID = grant.receiptID
        }
    }
}

extension ToldState {
    fileprivate init(
        _ status: SubscriptionStatus, _ rules: SubscriptionRules, _ renewal: Renewal?, owner userID: String
    ) {
        self.init(
            state: status.state, transactionID: status.transactionID, productID: status.productID,
            accessUntil: status.accessUntil, isEntitled: status.isEntitled, userID: userID,
            renewsAutomatically: renewal?.renewsAutomatically, priceConsent: renewal?.priceConsent)
        let present = rules.periods.last { $0.purchase.id.isSameText(as: status.transactionID) }?.purchase.seats ?? 1
        seats = present > 1 ? present : nil
        nextSeats = renewal?.quantity.flatMap { $0 == present ? nil : $0 }
        nextProductID = renewal?.nextProductID.flatMap { $0.isSameText(as: status.productID) ? nil : $0 }
        nextOfferType = renewal?.offerType
        nextOfferIdentifier = renewal?.offerIdentifier
    }
}
