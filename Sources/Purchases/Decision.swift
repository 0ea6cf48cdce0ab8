package import Foundation

/// Why something was rejected, held or left open. The raw value is the word in SQL, answers and dashboards.
package enum Reason: String, Sendable, CaseIterable {
    // Held: waits for a product, a policy or a person.
    case productUnknown = "product_unknown"
    case sandbox
    case beforeCutover = "before_cutover"
    case review
    case purchaseAhead = "purchase_ahead"
    case possessionMissing = "possession_missing"
    case noTransactionYet = "no_transaction_yet"
    case orderUnknown = "order_unknown"
    /// The purchase carries a token that nobody registered, and its poster has another one.
    case foreignToken = "foreign_token"
    case credentialsMissing = "credentials_missing"
    case appUnknown = "app_unknown"
    case idCollision = "id_collision"
    // Already granted.
    case ownedByAnotherUser = "owned_by_another_user"
    // Rejected for a purchase that is real: there is nothing left to give, ever.
    case refunded
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
    /// Apple limits our calls, and others go first.
    case appleBudget = "apple_budget"
    case halted
    /// Given on trust while Apple cannot be reached: it has to confirm it (B10).
    case unconfirmed
    case neverWorked = "never_worked"
}

extension Reason {
    /// Whether a receipt held for this reason has Apple's facts stored: the debt is ours then, and no later failure of
    /// the proof as a whole takes it back.
    package var holdsFacts: Bool {
        switch self {
        case .productUnknown, .sandbox, .beforeCutover, .review, .purchaseAhead, .orderUnknown, .foreignToken,
            .idCollision:
            true
        default: false
        }
    }
}

extension Reason {
    /// Apple's own word that there is nothing to give: what was given on trust is taken back for it. Whatever else a
    /// proof is rejected for may be our mistake as well.
    package static let takingBack: [Reason] = [.refunded, .notAuthenticated, .accountNotFound, .appleRefused]
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
}

/// By which row of design.md 5.1 an owner was found.
package enum BindingSource: String, Sendable, CaseIterable {
    /// Row 2: the purchase's token is an order.
    case orderToken = "order_token"
    /// Row 3: its token is a user's, registered or granted to him alone before.
    case userToken = "user_token"
    /// Row 4: a renewal or a restore, the chain's owner.
    case chain
    /// Row 5: the submission names the order.
    case namedOrder = "named_order"
    /// Row 6: an order of another user, placed just before.
    case orderOfAnother = "order_of_another"
    /// Row 7: an open order of the poster.
    case openOrder = "open_order"
    /// Row 8: bought outside the app in a chain we know.
    case chainOwner = "chain_owner"
    /// Row 9: the submission names an order that was placed after the purchase, or for it.
    case lateOrder = "late_order"
    /// Row 10: the poster is authenticated and showed Apple's own data.
    case poster
    /// Row 0d: shared by another customer; an entitlement, no goods.
    case shared
}

/// What the door and the proof say about the poster.
package struct Claim: Sendable, Equatable {
    /// Nil: nobody could be named.
    package var userID: String?
    /// The submission carries Apple's own data, or a trusted backend vouches for the user.
    package var hasPossession: Bool
    /// When it was submitted, by the database's clock.
    package var receivedAt: Date
    /// When it is judged, by the database's clock.
    package var judgedAt: Date
    /// Where in the game the goods go if no order says it, one JSON object.
    package var target: String?

    package init(
        userID: String?, hasPossession: Bool, receivedAt: Date, judgedAt: Date? = nil, target: String? = nil
    ) {
        self.userID = userID
        self.hasPossession = hasPossession
        self.receivedAt = receivedAt
        self.judgedAt = judgedAt ?? receivedAt
        self.target = target
    }
}

extension AppPolicy {
    /// How far before `grantFrom` a consumable may still be somebody's unfinished business (design.md 5.1, 0c).
    package static let cutoverDays = 30
    /// Apple's purchase dates have been an hour ahead at a change of daylight saving (P23).
    package static let purchaseAheadMax: Duration = .seconds(2 * 3600)

    /// Both tables of design.md 5.1 but rows 1, 0b and 11, for a purchase that nothing but its proof speaks for.
    package func decide(_ transaction: Transaction, claim: Claim) -> Decision {
        judge(transaction, claim: claim, evidence: .none).decision
    }

    /// Both tables of design.md 5.1 but rows 1, 0b and 11. Rows 1 and 0b need the grants, so the statement that writes
    /// the verdict answers them: a decision here never overrides a grant that exists.
    package func judge(_ transaction: Transaction, claim: Claim, evidence: Evidence) -> Verdict.Entry {
        func entry(_ decision: Decision, _ match: Match? = nil) -> Verdict.Entry {
            Verdict.Entry(transaction: transaction, decision: decision, match: match)
        }
        let kind = kind(of: transaction.productID)
        if let nothing = nothingToGive(transaction, kind) { return entry(nothing) }
        let match: Match
        if transaction.isShared {
            guard claim.hasPossession else { return entry(.held(.possessionMissing)) }
            guard let userID = claim.userID else { return entry(.held(.orderUnknown)) }
            match = Match(userID: userID, source: .shared)
        } else {
            switch Matcher(transaction, kind: kind, claim: claim, evidence: evidence).answer {
            case .owner(let found): match = found
            case .held(let reason): return entry(.held(reason))
            }
        }
        guard let goods = self.goods(for: transaction, match, kind) else { return entry(.held(.productUnknown)) }
        if transaction.environment != Transaction.production, !admitsSandbox(match.userID) {
            return entry(.held(.sandbox))
        }
        let ahead = transaction.purchasedAt.timeIntervalSince(claim.judgedAt)
        if ahead > Self.purchaseAheadMax.inSeconds { return entry(.held(.purchaseAhead)) }
        if transaction.isShared { return entry(.grant(goods: [], source: .shared)) }
        let age = claim.receivedAt.timeIntervalSince(transaction.purchasedAt)
        if match.source == .poster, makeUpMaxAge > .zero, age > makeUpMaxAge.inSeconds { return entry(.held(.review)) }
        let isConsumable = (kind ?? transaction.kind) == .consumable
        guard let all = Self.multiply(goods, by: isConsumable ? transaction.quantity : 1) else {
            return entry(.held(.review))
        }
        return entry(.grant(goods: all, source: match.source), match)
    }

    /// Rows 0a and 0c: Apple took it back, or it was another system's duty.
    private func nothingToGive(_ transaction: Transaction, _ kind: Transaction.Kind?) -> Decision? {
        if transaction.revokedAt != nil { return .rejected(.refunded) }
        guard transaction.purchasedAt < grantFrom else { return nil }
        let windowStart = grantFrom.addingTimeInterval(-Double(Self.cutoverDays) * 86_400)
        let isConsumable = (transaction.kind ?? kind ?? .consumable) == .consumable
        return isConsumable && transaction.purchasedAt >= windowStart
            ? .held(.beforeCutover) : .rejected(.historical)
    }

    /// What one unit of a purchase gives: what its order promised while the offer counts, else what the catalogue says
    /// for its day (design.md 5.2). Nil: nothing is known.
    private func goods(for transaction: Transaction, _ match: Match, _ kind: Transaction.Kind?) -> [Goods]? {
        if transaction.isShared { return kind == nil ? nil : [] }
        return match.offer?.goods
            ?? goods(of: transaction.productID, item: match.order?.item, at: transaction.purchasedAt)
    }

    /// The type of a product that is sold here.
    private func kind(of productID: String) -> Transaction.Kind? {
        sold?.products[productID]?.kind ?? products[productID]?.kind
    }

    /// What one unit of a product gave everybody at a time. A day that no version covers is the configuration's.
    ///
    /// - Parameter item: nil, or not sold under this product: its default.
    package func goods(of productID: String, item: String? = nil, at date: Date) -> [Goods]? {
        guard let product = sold?.products[productID] else { return products[productID]?.goods }
        guard let name = item.flatMap({ product.items[$0]?.id }) ?? product.defaultItem else { return nil }
        if let offer = sold?.offer(product: productID, item: name, promotion: nil, at: date) { return offer.goods }
        return name == product.defaultItem ? products[productID]?.goods : nil
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
        case .testers: testers.contains(userID) || sandboxPerUserPerDay > 0 && sandboxPerAppPerDay > 0
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
