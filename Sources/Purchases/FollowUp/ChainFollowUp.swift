import Encoding
import Foundation

extension ChainFacts {
    /// The result of the chain's follow-up: everything that is to be written. A second follow-up of the same facts,
    /// after the first was written and at the same moment, has no entry and no event.
    ///
    /// - Every granted purchase gets the entries that make up the difference to Apple's present facts.
    /// - The subscription's state is compared with the told state. One look tells the present state and no state
    ///   between.
    /// - Of a chain whose periods the former system gave, it is told what is new since the import.
    /// - While nobody is known to have the chain, nothing is told of its state. Where Apple denied what somebody had,
    ///   the user is told that nothing may be used any more.
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
            let owner = Owner(of: rules.newestGrant)
        else {
            tellDenial(of: listed, in: &result)
            return result
        }
        let status = rules.status(at: now)
        result.dueAt = rules.nextChange(after: now)
        let end = rules.newest.purchase.facts.expiresAt ?? rules.newest.until
        result.periodEndsAt = end
        result.askAt = Asking.next(
            status, end: end, lastWord: rules.renewal?.signedAt, asked: asked, of: originalID, by: policy.asks)
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
        let former = told ?? rules.toldByFormerSystem(to: owner.userID)
        var events = SubscriptionEvents(self, rules, owner: owner, told: former, news: news)
        events.tell()
        result.events += events.written
        (result.told, result.steps) = (news, events.steps)
        return result
    }

    /// Tells that the user may use nothing any more, because Apple denied every period that was given on trust.
    private func tellDenial(of listed: [ChainPurchase], in result: inout FollowUp) {
        let denied = listed.last { $0.facts.isPeriod && $0.granted?.grant?.isDenied == true }
        guard let told, told.isEntitled, let owner = Owner(of: denied?.granted?.grant) else { return }
        var news = told
        (news.state, news.isEntitled, news.accessUntil) = (.revoked, false, min(told.accessUntil, now))
        var events = SubscriptionEvents(self, nil, owner: owner, told: told, news: news)
        events.tellEntitlement()
        result.events += events.written
        (result.told, result.steps) = (news, events.steps)
    }

    /// The user who has the chain: the holder of its newest granted period.
    struct Owner {
        let userID: String
        /// Of that period's grant.
        let receiptID: UUID

        /// Nil: no period is granted, or the user was erased.
        init?(of grant: ChainFacts.Grant?) {
            guard let grant, let userID = grant.userID else { return nil }
            self.userID = userID
            receiptID = grant.receiptID
        }
    }
}

extension SubscriptionRules {
    /// The state that the former system has told of the newest period that it gave: as the period was when it was
    /// imported. Nil: it gave none.
    fileprivate func toldByFormerSystem(to userID: String) -> ToldState? {
        let given = periods.last { $0.purchase.granted?.grant?.isImported == true }
        guard let given, let grant = given.purchase.granted?.grant else { return nil }
        let until = given.purchase.facts.expiresAt ?? given.start
        return ToldState(
            state: until > grant.grantedAt ? .active : .expired, transactionID: given.purchase.id,
            productID: given.purchase.facts.productID, accessUntil: until, isEntitled: until > grant.grantedAt,
            userID: grant.userID ?? userID)
    }
}

extension ToldState {
    fileprivate init(
        _ status: SubscriptionStatus, _ rules: SubscriptionRules, _ renewal: Renewal?, owner userID: String
    ) {
        self.init(
            state: status.state, transactionID: status.transactionID, productID: status.productID,
            accessUntil: status.accessUntil, isEntitled: status.isEntitled, userID: userID,
            renewsAutomatically: renewal?.charges(after: rules.newest.until, commitmentEnd: rules.commitmentEnd),
            priceConsent: renewal?.priceConsent)
        commitmentUntil = rules.commitmentEnd
        commitmentRenews = renewal?.commitment?.renewsAutomatically
        let present = rules.periods.last { $0.purchase.id.isSameText(as: status.transactionID) }?.purchase.seats ?? 1
        seats = present > 1 ? present : nil
        nextSeats = renewal?.quantity.flatMap { $0 == present ? nil : $0 }
        nextProductID = renewal?.nextProductID.flatMap { $0.isSameText(as: status.productID) ? nil : $0 }
        nextOfferType = renewal?.offerType
        nextOfferIdentifier = renewal?.offerIdentifier
    }
}
