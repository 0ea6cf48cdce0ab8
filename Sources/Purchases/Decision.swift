package import Foundation

/// Why something was rejected, held or left open. The raw value is the word in SQL, answers and dashboards.
package enum Reason: String, Sendable, CaseIterable {
    // Held: waits for a product, a policy or a person.
    case productUnknown = "product_unknown"
    /// A store product that is sold as several items, none of them the default, and nobody says which one it was.
    case itemUnknown = "item_unknown"
    case sandbox
    case beforeCutover = "before_cutover"
    case review
    case purchaseAhead = "purchase_ahead"
    case possessionMissing = "possession_missing"
    case noTransactionYet = "no_transaction_yet"
    case orderUnknown = "order_unknown"
    /// The purchase carries a token that nobody registered, and its poster has another one.
    case foreignToken = "foreign_token"
    /// The submission names an order of another user, and nothing but the post speaks for its poster.
    case foreignOrder = "foreign_order"
    /// The record that was submitted names a user who is neither its poster nor known here (S0-24).
    case foreignRecord = "foreign_record"
    /// The purchase carries a token that nobody registered, and that one other user's purchases carried before.
    case tokenDisputed = "token_disputed"
    /// Nobody has posted it, and nothing says whose it is: the first authenticated post with possession has it.
    case unclaimed
    /// Another user has it, and the app's policy leaves it to a person whether it becomes the poster's.
    case transferReview = "transfer_review"
    case credentialsMissing = "credentials_missing"
    case appUnknown = "app_unknown"
    case idCollision = "id_collision"
    /// It would be given, but the app's goods are still given by the system before this one (``AppPolicy/Mode``).
    case shadow
    // Already granted.
    case ownedByAnotherUser = "owned_by_another_user"
    /// By the system before this one, to this user.
    case imported
    /// It was given to another user, and is the poster's since: without its goods.
    case transferred
    // Rejected for a purchase that is real: there is nothing left to give, ever.
    case refunded
    /// What was shared is shared no longer; no money went back.
    case withdrawn
    /// Another customer shares it, and the app's policy gives nothing for that (``AppPolicy/Shared``).
    case sharedNotServed = "shared_not_served"
    case historical
    // Rejected, and possibly our own fault: judged again by `makegood support rejudge`.
    case malformed
    case algorithm
    case chainLength = "chain_length"
    case certificate
    case untrustedRoot = "untrusted_root"
    case missingOID = "missing_oid"
    case expired
    case signature
    case unsigned
    /// A responder says that a certificate was revoked; it may take that back.
    case certificateRevoked = "certificate_revoked"
    case wrongApp = "wrong_app"
    case wrongEnvironment = "wrong_environment"
    case notAuthenticated = "not_authenticated"
    case accountNotFound = "account_not_found"
    case appleRefused = "apple_refused"
    case notFound = "not_found"
    case invalidTransactionID = "invalid_transaction_id"
    case takenOver = "taken_over"
    // Open: what the next try waits for.
    case appleUnavailable = "apple_unavailable"
    case appleAnswer = "apple_answer"
    case notFoundYet = "not_found_yet"
    /// Of a receipt with many purchases: Apple is asked about this one later. No attempt is counted for it.
    case historyPending = "history_pending"
    case clockAhead = "clock_ahead"
    /// The app wants a responder's word about the certificates, and none came (P16).
    case certificateStatusUnknown = "certificate_status_unknown"
    /// Nobody has posted it, and its owner's own post may still come (``Matcher/unpostedFor``).
    case unclaimedYet = "unclaimed_yet"
    /// Apple limits our calls, and others go first.
    case appleBudget = "apple_budget"
    case halted
    /// The catalogue in force is one that this program cannot read: nothing is given by another one.
    case catalogueUnknown = "catalogue_unknown"
    /// Given on trust while Apple cannot be reached: it has to confirm it (B10).
    case unconfirmed
    case neverWorked = "never_worked"
}

extension Reason {
    /// Whether a receipt held for this reason has Apple's facts stored: the debt is ours then, and no later failure of
    /// the proof as a whole takes it back. Not where another post is what settles it (``isSettledByAnotherPost``).
    package var holdsFacts: Bool {
        switch self {
        case .productUnknown, .itemUnknown, .sandbox, .beforeCutover, .review, .purchaseAhead, .orderUnknown,
            .unclaimed, .transferReview, .idCollision, .shadow:
            true
        default: false
        }
    }
}

extension Reason {
    /// Whether only the configuration, the catalogue or a person changes what is held for this. A change of one of them
    /// makes it due, so time alone need not.
    package var waitsForConfiguration: Bool {
        switch self {
        case .productUnknown, .sandbox, .credentialsMissing, .transferReview, .idCollision, .shadow: true
        default: false
        }
    }
}

extension Verdict.Finding {
    /// Whether it waits for the end of shadow, which a person brings about.
    package var isOfShadow: Bool {
        guard waitsForConfiguration, case .transactions(let entries) = self else { return false }
        return entries.contains { $0.decision == .held(.shadow) }
    }

    /// Whether that is so for all of it that is open.
    package var waitsForConfiguration: Bool {
        switch self {
        case .receipt(.held(let reason)): return reason.waitsForConfiguration
        case .receipt, .identifier: return false
        case .transactions(let entries):
            let waiting = entries.map(\.decision).filter {
                switch $0 {
                case .held, .open: true
                case .grant, .provisional, .rejected: false
                }
            }
            return !waiting.isEmpty
                && waiting.allSatisfy {
                    if case .held(let reason) = $0 { reason.waitsForConfiguration } else { false }
                }
        }
    }
}

extension Reason {
    /// Whether a proof that is rejected for this was not made by Apple for this app: forged, or taken from elsewhere, where
    /// the configuration is right.
    package var isForgery: Bool {
        switch self {
        case .algorithm, .chainLength, .certificate, .untrustedRoot, .missingOID, .signature, .unsigned,
            .certificateRevoked, .wrongApp, .wrongEnvironment, .notAuthenticated:
            true
        default: false
        }
    }
}

extension Reason {
    /// Whether a post of somebody else, or one that says less, settles what is held for this: so it has to stay in the
    /// queue of a device.
    package var isSettledByAnotherPost: Bool {
        switch self {
        case .foreignOrder, .foreignRecord, .foreignToken, .tokenDisputed: true
        default: false
        }
    }
}

extension Verdict.Finding {
    /// Whether other words of its poster may give what this does not give, or give otherwise what Apple has not confirmed.
    package var hangsOnWords: Bool {
        guard case .transactions(let entries) = self else { return false }
        return entries.contains { entry in
            switch entry.decision {
            case .held(.itemUnknown), .held(.foreignOrder), .held(.foreignRecord), .held(.tokenDisputed),
                .held(.review), .held(.shadow),
                .provisional:
                true
            default: false
            }
        }
    }
}

extension Reason {
    /// What is held until somebody knows whose it is, which item it was, or that nobody has given it: a person may say
    /// so (`makegood support give`). Everything else waits for something that no person's word replaces.
    package static let givenByPerson: [Reason] = [
        .itemUnknown, .beforeCutover, .review, .possessionMissing, .orderUnknown, .foreignToken, .foreignOrder,
        .foreignRecord, .tokenDisputed, .unclaimed,
    ]
}

extension Reason {
    /// The row of design.md 5.1 that could not name an owner, of a purchase that is held for this.
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

extension Reason {
    /// What an open purchase waits for that is no try at Apple.
    package static let waiting: [Reason] = [.historyPending, .unclaimedYet]
}

extension Reason {
    /// Apple's own word that there is nothing to give: what was given on trust is taken back for it. Whatever else a
    /// proof is rejected for may be our mistake as well.
    package static let takingBack: [Reason] = [
        .refunded, .withdrawn, .notAuthenticated, .accountNotFound, .appleRefused,
    ]
    /// A purchase that is real and rejected for this is over for its client too: nothing can come of another try.
    package static let leavingNothing: [Reason] = [.refunded, .withdrawn, .sharedNotServed, .historical]
}

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

/// By which row of design.md 5.1 an owner was found.
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

extension AppPolicy {
    /// How far before `grantFrom`, or before the app's first start here, a consumable may still be somebody's unfinished
    /// business (design.md 5.1, 0c).
    package static let cutoverDays = 30
    /// Apple's purchase dates have been an hour ahead at a change of daylight saving (P23).
    package static let purchaseAheadMax: Duration = .seconds(2 * 3600)

    /// Both tables of design.md 5.1 but rows 1 and 0b, for a purchase that nothing but its proof speaks for.
    package func decide(_ transaction: Transaction, claim: Claim) -> Decision {
        judge(transaction, claim: claim, evidence: .none).decision
    }

    /// Both tables of design.md 5.1 but rows 1 and 0b. Rows 1 and 0b need the grants, so the statement that writes
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

    /// What its order promised while the offer counts, else what the catalogue says for its day (design.md 5.2): of the
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
