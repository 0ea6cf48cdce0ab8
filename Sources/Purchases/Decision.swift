import Encoding
package import Foundation

/// What is to become of one transaction of a receipt.
package enum Decision: Sendable, Equatable {
    /// Give these goods, once. Whether they were given before is decided by the database.
    case grant(goods: [AppPolicy.Goods], source: BindingSource)
    /// Give these goods now, before Apple has confirmed the purchase. The receipt stays open until Apple has; if Apple
    /// denies the purchase, the goods are taken back. Only if a place within the limits was taken for the purchase.
    case provisional(goods: [AppPolicy.Goods], source: BindingSource)
    case rejected(Reason)
    case held(Reason)
    case open(Reason)

    /// Whether something is given, for good or on trust.
    package var gives: Bool {
        switch self {
        case .grant, .provisional: true
        case .rejected, .held, .open: false
        }
    }

    /// Whether a purchase that was given on trust still waits for Apple's answer after this decision. A newer rule of
    /// ours does not say whether the purchase was paid for. A refund or a withdrawal is Apple's answer.
    package var leavesTrustOpen: Bool { !isForEnd }

    /// Whether the decision rejects the purchase because Apple ended the purchase.
    package var isForEnd: Bool { self == .rejected(.refunded) || self == .rejected(.withdrawn) }
}

/// The row of Ownership by which the owner was found.
package enum BindingSource: String, Sendable, CaseIterable {
    /// Row 2: the purchase's token is an order.
    case orderToken = "order_token"
    /// Row 3: its token is registered for a user.
    case userToken = "user_token"
    /// Row 3: nobody registered its token, and purchases with the token were given to one user alone before.
    case rememberedToken = "remembered_token"
    /// Row 4: a renewal or a restore, the chain's owner.
    case chain
    /// Row 5: the submission names the order.
    case namedOrder = "named_order"
    /// Row 5a: the record that was posted names another user than its poster.
    case record
    /// Row 6: an order of another user, placed just before on the same proven installation.
    case orderOfAnother = "order_of_another"
    /// Row 7: an open order of the poster.
    case openOrder = "open_order"
    /// Row 8: bought outside the app in a chain we know.
    case chainOwner = "chain_owner"
    /// Row 9: the submission names an order that was placed after the purchase, or for it.
    case lateOrder = "late_order"
    /// Row 10: the poster is authenticated and showed Apple's own data.
    case poster
    /// Row 11: nobody posted it. The owner is the user of an order, or the only user, among the users known for its
    /// Apple customer.
    case customer
    /// Row 0d: another customer shares it. Its chain or its poster says who the owner is.
    case shared
    /// Row 1: another user was granted it before, and the app's policy moved it. Stands in ownerships, never in grants.
    case transfer
    /// A person said so (`makegood support give`, `makegood support own`).
    case support
}

extension BindingSource {
    /// Whether proof names the owner, more than somebody's claim. Only proof takes a purchase from an authenticated
    /// poster who shows Apple's own data. Only with proof may the poster finish at once a purchase that another user
    /// has.
    package var isProof: Bool {
        switch self {
        case .orderToken, .userToken, .chain, .orderOfAnother, .chainOwner, .support: true
        case .rememberedToken, .namedOrder, .record, .openOrder, .lateOrder, .poster, .customer, .shared, .transfer:
            false
        }
    }
}

/// What the submission and the proof say about the poster.
package struct Claim: Sendable, Equatable {
    /// Nil: nobody could be named.
    package var userID: String?
    /// False: nobody posted the purchase; a notification or this server's question to Apple found it.
    package var isPosted: Bool
    /// The submission carries Apple's own data, or a trusted backend vouches for the user.
    package var hasPossession: Bool
    /// When it was submitted, by the database's clock.
    package var receivedAt: Date
    /// When it is judged, by the database's clock.
    package var judgedAt: Date
    /// How long an unposted purchase waits for the owner's own post, in seconds.
    package var unpostedFor = Matcher.unpostedFor
    /// Where in the game the goods go if no order says it, one JSON object.
    package var target: String?
    /// What the post says about its purchase.
    package var declared: Declaration?

    /// Why a purchase is held for which no row names an owner. A post that names a placeholder waits for the post of
    /// the user whom the app has lost.
    package var reasonOfNobody: Reason { isOfPlaceholder ? .userPlaceholder : .orderUnknown }
    /// Whether the post names a placeholder in the place of its user, and no order names the user either. It holds for
    /// every purchase of the post, also for those that the declaration is not about.
    package var isOfPlaceholder: Bool { userID == nil && namesPlaceholder }
    private let namesPlaceholder: Bool

    package init(
        userID: String?, hasPossession: Bool, receivedAt: Date, judgedAt: Date? = nil, target: String? = nil,
        declared: Declaration? = nil, isPosted: Bool = true
    ) {
        self.userID = userID
        self.isPosted = isPosted
        self.hasPossession = hasPossession
        self.receivedAt = receivedAt
        self.judgedAt = judgedAt ?? receivedAt
        self.target = target
        self.declared = declared
        namesPlaceholder = declared?.isOfPlaceholder == true
    }
}

extension Reason {
    /// The row of Ownership that could not name an owner, for a purchase that is held for this reason.
    fileprivate var holdingRow: Verdict.Entry.HoldingRow? {
        switch self {
        case .foreignToken: .init(.userToken)
        case .tokenDisputed: .init(.rememberedToken, reasons: [.tokenOfAnother])
        case .foreignOrder: .init(.namedOrder, reasons: [.orderOfAnother])
        case .foreignRecord: .init(.record)
        case .orderUnknown, .userPlaceholder, .possessionMissing: .init(.poster)
        case .unclaimed: .init(.customer)
        default: nil
        }
    }
}

extension AppPolicy {
    /// How many days before `grantFrom`, or before the app's first start here, a consumable may have been bought and
    /// still be held, because the former system may not have given it (Ownership, row 0c).
    package static let cutoverDays = 30
    /// How far a purchase date may be ahead of the database's clock. Apple's purchase dates have been an hour ahead at
    /// a change of daylight saving (P23).
    package static let purchaseAheadMax: Duration = .seconds(2 * 3600)

    /// The decision by both tables of Ownership, without rows 1 and 0b, for a purchase of which only the proof is
    /// known.
    package func decide(_ transaction: Transaction, claim: Claim) -> Decision {
        judge(transaction, claim: claim, evidence: .none).decision
    }

    /// The entry of a purchase by both tables of Ownership, without rows 1 and 0b. Rows 1 and 0b need the grants, so
    /// the transaction that writes the verdict answers them: a decision here never overrides a grant that exists.
    package func judge(_ transaction: Transaction, claim: Claim, evidence: Evidence) -> Verdict.Entry {
        var transaction = transaction
        // An earlier identity may not hold any more.
        transaction.identity = identity(of: transaction, by: evidence)
        transaction.isGivenApart = evidence.supportDecision?.isOfIDInUse ?? false
        transaction.hasSuccessor = evidence.hasSuccessor
        if evidence.standsAgain { transaction = transaction.standing }
        return judge(transaction, claim, evidence)
    }

    private func identity(of transaction: Transaction, by evidence: Evidence) -> Transaction.Identity {
        if transaction.isShared { return .ofItsIDs }
        let kind = transaction.kind ?? kind(of: transaction.productID)
        if evidence.supportDecision?.isOfKeyInUse == true, kind == .consumable { return .apart }
        if let key = evidence.grantedKey { return .granted(key: key) }
        return transaction.isPeriod || evidence.revocations == 0 ? .ofItsIDs : .repurchase(evidence.revocations)
    }

    private func judge(_ transaction: Transaction, _ claim: Claim, _ evidence: Evidence) -> Verdict.Entry {
        let kind = kind(of: transaction.productID)
        func entry(
            _ decision: Decision, _ match: Match? = nil, heldBy: Verdict.Entry.HoldingRow? = nil, rival: String? = nil
        ) -> Verdict.Entry {
            Verdict.Entry(
                transaction: transaction, soldAs: kind, decision: decision, match: match,
                transfer: transfer(of: transaction, kind, claim, decision), heldBy: heldBy, rival: rival)
        }
        func held(_ reason: Reason, _ found: Match) -> Verdict.Entry {
            entry(.held(reason), heldBy: .init(found.source, reasons: found.reasons, owner: found.userID))
        }
        let nothing = nothingToGive(transaction, kind, claim, evidence)
        // A person found out that the former system has not given it.
        let isMadeGood = nothing == .held(.beforeCutover) && evidence.supportDecision != nil && !transaction.isShared
        if let nothing, !isMadeGood { return entry(nothing) }
        if transaction.isShared, shared == .reject { return entry(.rejected(.sharedNotServed)) }
        let isOld = isBeforeCutover(transaction) && !isMadeGood
        var match: Match
        let matcher = Matcher(transaction, kind: kind, claim: claim, evidence: evidence)
        let answer =
            transaction.isShared ? matcher.answerOfShared : isOld ? matcher.answerBeforeCutover : matcher.answer
        switch answer {
        case .owner(let found): match = found
        case .held(let reason, let rival):
            let row = transaction.isShared ? Verdict.Entry.HoldingRow(.shared) : reason.holdingRow
            return entry(.held(reason), heldBy: row, rival: rival)
        case .open(let reason): return entry(.open(reason))
        }
        // Only the owner or the owner's record can say which item it was: no user chooses what another user gets.
        let isOwners = match.userID.isSameText(as: claim.userID) || match.source == .record
        let declared = claim.hasPossession && isOwners ? claim.declared : nil
        let promise: Promise
        switch isOld
            ? .made(Promise(goods: []))
            : self.promise(
                for: transaction, match, kind, declared, decided: evidence.supportDecision?.item,
                isRenewal: transaction.isPeriod && matcher.isRenewal)
        {
        case .made(let found): promise = found
        case .unknown(let reason): return held(reason, match)
        }
        switch transaction.ending {
        case .upgraded?: match.reasons.append(.endedByUpgrade)
        case .refundedInPart?: match.reasons.append(.refundProrated)
        case .refunded?, .withdrawn?, .unknown?, nil: break
        }
        if !isOld, mayBeShared(transaction) { match.reasons.append(.sharingUnseen) }
        match.bonuses = promise.bonuses
        match.item = promise.item == transaction.productID ? nil : promise.item
        match.reasons += declared?.contradictions(of: transaction, given: promise.item) ?? []
        // The promotion did not run when the purchase was made.
        if declared?.promotion != nil, match.order == nil, !promise.isOfPromotion,
            !match.reasons.contains(.fieldsDisregarded)
        {
            match.reasons.append(.fieldsDisregarded)
        }
        if transaction.environment != Transaction.production, !admitsSandbox(match.userID) {
            return held(.sandbox, match)
        }
        let ahead = transaction.purchasedAt.timeIntervalSince(claim.judgedAt)
        if ahead > Self.purchaseAheadMax.inSeconds { return held(.purchaseAhead, match) }
        if transaction.ending == .unknown || evidence.takenBack == .review, evidence.supportDecision == nil {
            match.reasons.append(.revocationUnknown)
            return held(.review, match)
        }
        let age = claim.receivedAt.timeIntervalSince(transaction.purchasedAt)
        if match.source == .poster || match.source == .record, !isOld, makeUpMaxAge > .zero,
            age > makeUpMaxAge.inSeconds
        {
            return held(.review, match)
        }
        let isConsumable = (kind ?? transaction.kind) == .consumable
        guard let all = Self.multiply(promise.goods, by: isConsumable ? transaction.quantity : 1) else {
            return held(.review, match)
        }
        return entry(.grant(goods: all, source: match.source), match)
    }

    /// Whether another customer may share the purchase although the proof does not say so, and a shared one would give
    /// less (row 0d). A receipt that was read here shows no ownership; Apple shares subscriptions and non-consumables.
    package func mayBeShared(_ transaction: Transaction) -> Bool {
        guard shared != .goods, transaction.ownership == nil, !transaction.showsToken else { return false }
        return switch transaction.kind ?? kind(of: transaction.productID) {
        case .autoRenewable, .nonConsumable: true
        case .consumable, .nonRenewing: false
        case nil: transaction.isPeriod
        }
    }

    /// Rows 0a, 0a' and 0c: the decision if Apple took the purchase back, or if the former system had to give it. Nil:
    /// the next rows decide. They also decide about a non-consumable, and about a subscription that was running when it
    /// was posted, because both outlast the former system.
    private func nothingToGive(
        _ transaction: Transaction, _ kind: Transaction.Kind?, _ claim: Claim, _ evidence: Evidence
    ) -> Decision? {
        switch transaction.ending {
        case .refunded?: return .rejected(.refunded)
        case .withdrawn?: return .rejected(.withdrawn)
        case .refundedInPart?, .upgraded?, .unknown?, nil: break
        }
        if let reason = evidence.takenBack, Reason.leavingNothing.contains(reason) { return .rejected(reason) }
        return decisionBeforeCutover(transaction, kind, at: claim.receivedAt)
    }

    /// Whether row 0c rejects the purchase as `historical` for every poster at that time. Such a purchase needs no
    /// receipt that nobody posted.
    package func isHistorical(_ transaction: Transaction, at time: Date) -> Bool {
        decisionBeforeCutover(transaction, self.kind(of: transaction.productID), at: time) == .rejected(.historical)
    }

    /// Row 0c. Nil: the next rows decide.
    private func decisionBeforeCutover(
        _ transaction: Transaction, _ kind: Transaction.Kind?, at time: Date
    ) -> Decision? {
        guard isBeforeCutover(transaction) else { return nil }
        switch transaction.kind ?? kind ?? .consumable {
        case .nonConsumable: return nil
        case .autoRenewable where (transaction.expiresAt ?? .distantPast) > time && transaction.ending == nil:
            return nil
        case .autoRenewable, .nonRenewing: return unfinished(transaction, days: 0)
        case .consumable: return unfinished(transaction, days: Self.cutoverDays)
        }
    }

    /// The decision for a purchase of which nobody knows whether the former system gave it. A purchase made here, or up
    /// to so many days before, is held for a person who finds out; an older one is rejected.
    private func unfinished(_ transaction: Transaction, days: Int) -> Decision {
        let start = min(hereSince ?? grantFrom, grantFrom).addingTimeInterval(-Double(days) * 86_400)
        return transaction.purchasedAt >= start ? .held(.beforeCutover) : .rejected(.historical)
    }

    private func isBeforeCutover(_ transaction: Transaction) -> Bool { transaction.purchasedAt < grantFrom }

    /// What one unit of a purchase gives.
    private struct Promise {
        var goods: [Goods]
        var bonuses: [Catalogue.Bonus] = []
        /// Nil: the goods are not of the catalogue.
        var item: String?
        /// Whether these are the goods of the promotion that a service named with the purchase.
        var isOfPromotion = false

        enum Search {
            case made(Promise)
            case unknown(Reason)
        }
    }

    /// What one unit gives: the promise of the order while its offer counts, else the catalogue's offer for the day of
    /// the purchase (Offers). The item is the one that a person chose; else the item of the order; else the item that
    /// the post names, if it was sold then; else the default. Without an order, the promotion that a service names with
    /// the purchase counts if it ran at the purchase date.
    private func promise(
        for transaction: Transaction, _ match: Match, _ kind: Transaction.Kind?, _ said: Declaration?,
        decided: String?, isRenewal: Bool
    ) -> Promise.Search {
        if transaction.isShared && shared != .goods || isRenewal && subscriptions.goods == .atStart {
            return kind == nil ? .unknown(.productUnknown) : .made(Promise(goods: []))
        }
        if let order = match.offer, let goods = order.goods, decided == nil || decided == order.item {
            return .made(Promise(goods: goods, bonuses: order.bonuses, item: order.item))
        }
        let configured = products[transaction.productID]?.goods
        guard let sold, let product = sold.products[transaction.productID] else {
            guard let configured else { return .unknown(.productUnknown) }
            return decided == nil ? .made(Promise(goods: configured)) : .unknown(.itemUnknown)
        }
        let offer = { (item: String) in
            sold.offer(product: product.id, item: item, promotion: nil, at: transaction.purchasedAt)
        }
        if let decided, offer(decided) == nil { return .unknown(.itemUnknown) }
        let ordered = match.order?.item.flatMap { product.items[$0]?.id }
        let promoted = { (item: String) -> Offer? in
            guard match.order == nil, let promotion = said?.promotion else { return nil }
            return sold.offer(product: product.id, item: item, promotion: promotion, at: transaction.purchasedAt)
        }
        let declared = said?.item.flatMap { (promoted($0) ?? offer($0))?.item }
        guard let item = decided ?? ordered ?? declared ?? product.defaultItem else { return .unknown(.itemUnknown) }
        if let offer = promoted(item) {
            return .made(Promise(goods: offer.goods, bonuses: offer.bonuses, item: item, isOfPromotion: true))
        }
        if let offer = offer(item) {
            return .made(Promise(goods: offer.goods, bonuses: offer.bonuses, item: item))
        }
        // If no version covers the day, the configuration's goods count.
        guard item == product.defaultItem, let configured else { return .unknown(.productUnknown) }
        return .made(Promise(goods: configured, item: item))
    }

    /// The type of a product. Nil: it is not sold here.
    package func kind(of productID: String) -> Transaction.Kind? {
        sold?.products[productID]?.kind ?? products[productID]?.kind
    }

    /// The goods multiplied by Apple's quantity, which is 1 for everything but consumables. Nil: an amount overflows.
    private static func multiply(_ goods: [Goods], by quantity: Int) -> [Goods]? {
        var all: [Goods] = []
        for good in goods {
            let (amount, isTooMuch) = good.amount.multipliedReportingOverflow(by: quantity)
            if isTooMuch { return nil }
            all.append(Goods(item: good.item, amount: amount))
        }
        return all
    }

    private func admitsSandbox(_ userID: String) -> Bool {
        switch sandboxPurchases {
        case .grant: true
        case .hold: false
        case .testers: isTester(userID) || sandboxPerUserPerDay > 0 && sandboxPerAppPerDay > 0
        }
    }
}

extension Duration {
    /// Seconds as a number, for dates and SQL intervals.
    package var inSeconds: Double {
        let (seconds, attoseconds) = components
        return Double(seconds) + Double(attoseconds) * 1e-18
    }
}
