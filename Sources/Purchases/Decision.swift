import Encoding
package import Foundation

/// What is to become of one transaction of a receipt.
package enum Decision: Sendable, Equatable {
    /// Give these goods, once. Whether they were given before is decided by the database.
    case grant(goods: [AppPolicy.Goods], source: BindingSource)
    /// Give them now, before Apple has confirmed it: the receipt stays open until it has, and what Apple denies is taken
    /// back. Only where a place within the limits was taken for it.
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

    /// Whether a purchase that was given on trust still waits for Apple's word: a rule of ours that came since says
    /// nothing of whether it was paid for. That it was refunded or withdrawn is Apple's word.
    package var leavesTrustOpen: Bool { self != .rejected(.refunded) && self != .rejected(.withdrawn) }
}

/// By which row of Ownership an owner was found.
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
    /// Row 11: nobody posted it; an order of, or the only one among, the users known for its Apple customer.
    case customer
    /// Row 0d: shared by another customer. Whose it is says its chain, or its poster.
    case shared
    /// Row 1: given to somebody else before, and moved by the app's policy. Of ownerships, never of grants.
    case transfer
    /// A person said so (`makegood support give`, `makegood support own`).
    case support
}

extension BindingSource {
    /// Whether the owner was found by more than what somebody merely claims: only that takes a purchase from an
    /// authenticated poster who shows Apple's own data, and only then may the poster finish at once what another user has.
    package var isProof: Bool {
        switch self {
        case .orderToken, .userToken, .chain, .orderOfAnother, .chainOwner, .support: true
        case .rememberedToken, .namedOrder, .record, .openOrder, .lateOrder, .poster, .customer, .shared, .transfer:
            false
        }
    }
}

/// What the door and the proof say about the poster.
package struct Claim: Sendable, Equatable {
    /// Nil: nobody could be named.
    package var userID: String?
    /// False: nobody posted it, a notification or a sweep found it.
    package var isPosted: Bool
    /// The submission carries Apple's own data, or a trusted backend vouches for the user.
    package var hasPossession: Bool
    /// When it was submitted, by the database's clock.
    package var receivedAt: Date
    /// When it is judged, by the database's clock.
    package var judgedAt: Date
    /// Where in the game the goods go if no order says it, one JSON object.
    package var target: String?
    /// What the post says of the purchase it means.
    package var declared: Declaration?

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
    }
}

extension Reason {
    /// The row that could not name an owner, of a purchase that is held for this.
    fileprivate var holdingRow: Verdict.Entry.HoldingRow? {
        switch self {
        case .foreignToken: .init(.userToken)
        case .tokenDisputed: .init(.rememberedToken, reasons: [.tokenOfAnother])
        case .foreignOrder: .init(.namedOrder, reasons: [.orderOfAnother])
        case .foreignRecord: .init(.record)
        case .orderUnknown, .possessionMissing: .init(.poster)
        case .unclaimed: .init(.customer)
        default: nil
        }
    }
}

extension AppPolicy {
    /// How far before `grantFrom`, or before the app's first start here, a consumable may still be somebody's unfinished
    /// business (Ownership, row 0c).
    package static let cutoverDays = 30
    /// Apple's purchase dates have been an hour ahead at a change of daylight saving (P23).
    package static let purchaseAheadMax: Duration = .seconds(2 * 3600)

    /// Both tables of Ownership but rows 1 and 0b, for a purchase that nothing but its proof speaks for.
    package func decide(_ transaction: Transaction, claim: Claim) -> Decision {
        judge(transaction, claim: claim, evidence: .none).decision
    }

    /// Both tables of Ownership but rows 1 and 0b. Rows 1 and 0b need the grants, so the statement that writes
    /// the verdict answers them: a decision here never overrides a grant that exists.
    package func judge(_ transaction: Transaction, claim: Claim, evidence: Evidence) -> Verdict.Entry {
        var transaction = transaction
        // What it was found to be before may be over.
        transaction.identity = identity(of: transaction, by: evidence)
        transaction.hasSuccessor = evidence.hasSuccessor
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
            entry(.held(reason), heldBy: .init(found.source, reasons: found.reasons))
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
        // Which item it was, only the owner can say, or the owner's record: no user chooses what another user gets.
        let isOwners = match.userID.isSameText(as: claim.userID) || match.source == .record
        let declared = claim.hasPossession && isOwners ? claim.declared : nil
        let promise: Promise
        switch isOld
            ? .made(Promise(goods: []))
            : self.promise(for: transaction, match, kind, declared?.item, decided: evidence.supportDecision?.item)
        {
        case .made(let found): promise = found
        case .unknown(let reason): return held(reason, match)
        }
        switch transaction.ending {
        case .upgraded?: match.reasons.append(.endedByUpgrade)
        case .refundedInPart?: match.reasons.append(.refundProrated)
        case .refunded?, .withdrawn?, .unknown?, nil: break
        }
        match.bonuses = promise.bonuses
        match.item = promise.item == transaction.productID ? nil : promise.item
        match.reasons += declared?.contradictions(of: transaction, given: promise.item) ?? []
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

    /// Rows 0a, 0a' and 0c: Apple took it back, or it was another system's duty. What lasts longer than that system is
    /// still its owner's: a non-consumable, and a subscription that was running when it was posted.
    private func nothingToGive(
        _ transaction: Transaction, _ kind: Transaction.Kind?, _ claim: Claim, _ evidence: Evidence
    ) -> Decision? {
        switch transaction.ending {
        case .refunded?: return .rejected(.refunded)
        case .withdrawn?: return .rejected(.withdrawn)
        case .refundedInPart?, .upgraded?, .unknown?, nil: break
        }
        if let reason = evidence.takenBack, Reason.leavingNothing.contains(reason) { return .rejected(reason) }
        guard isBeforeCutover(transaction) else { return nil }
        switch transaction.kind ?? kind ?? .consumable {
        case .nonConsumable: return nil
        case .autoRenewable
        where (transaction.expiresAt ?? .distantPast) > claim.receivedAt && transaction.ending == nil:
            return nil
        case .autoRenewable, .nonRenewing: return unfinished(transaction, days: 0)
        case .consumable: return unfinished(transaction, days: Self.cutoverDays)
        }
    }

    /// Nobody known has given it. What was bought here, or so many days before, waits for somebody who finds out.
    private func unfinished(_ transaction: Transaction, days: Int) -> Decision {
        let start = min(hereSince ?? grantFrom, grantFrom).addingTimeInterval(-Double(days) * 86_400)
        return transaction.purchasedAt >= start ? .held(.beforeCutover) : .rejected(.historical)
    }

    private func isBeforeCutover(_ transaction: Transaction) -> Bool { transaction.purchasedAt < grantFrom }

    /// What one unit of a purchase gives.
    private struct Promise {
        var goods: [Goods]
        var bonuses: [Catalogue.Bonus] = []
        /// Nil: not of the catalogue.
        var item: String?

        enum Search {
            case made(Promise)
            case unknown(Reason)
        }
    }

    /// What its order promised while the offer counts, else what the catalogue says for its day (Offers): of the
    /// item that a person said; of the one that the order is for, else of the one that the post names if that was sold
    /// then, else of the default.
    private func promise(
        for transaction: Transaction, _ match: Match, _ kind: Transaction.Kind?, _ declaredItem: String?,
        decided: String?
    ) -> Promise.Search {
        if transaction.isShared, shared != .goods {
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
        let declared = declaredItem.flatMap { offer($0)?.item }
        guard let item = decided ?? ordered ?? declared ?? product.defaultItem else { return .unknown(.itemUnknown) }
        if let offer = offer(item) {
            return .made(Promise(goods: offer.goods, bonuses: offer.bonuses, item: item))
        }
        // A day that no version covers is the configuration's.
        guard item == product.defaultItem, let configured else { return .unknown(.productUnknown) }
        return .made(Promise(goods: configured, item: item))
    }

    /// The type of a product that is sold here.
    package func kind(of productID: String) -> Transaction.Kind? {
        sold?.products[productID]?.kind ?? products[productID]?.kind
    }

    /// Apple's quantity multiplies; it is 1 for everything but consumables. Nil: more than anybody can be given.
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
