import Encoding
package import Foundation

/// Finds the owner of a purchase: rows 2 to 11 of Ownership, of which the first that answers decides. The database
/// answers row 1. Pure.
///
/// Above all rows stands one rule: **what another user has merely claimed never takes a purchase from an authenticated
/// poster who shows Apple's own data.** Only proof does (``BindingSource/isProof``): an order or a registered token
/// inside Apple's data, a chain whose purchases were shown with Apple's own data, an installation token that this
/// server issued, a person's decision. An order of another user, a token that was merely used before and a client's
/// free text prove nothing.
package struct Matcher: Sendable {
    package enum Answer: Sendable, Equatable {
        case owner(Match)
        /// No owner can be named. The rival is the other user for whom less than proof speaks.
        case held(Reason, rival: String? = nil)
        /// No owner yet: a user may still post the purchase.
        case open(Reason)
    }

    /// How long the owner's own post is waited for, in seconds, because it says more than the past of the Apple
    /// customer.
    package static let unpostedFor: TimeInterval = 86_400

    /// Apple's clock and ours may differ: an order placed this long after a purchase still fits it, in seconds.
    package static let placedAfterMax: TimeInterval = 300
    /// Orders placed this long before a purchase are near it, in seconds.
    package static let nearMax: TimeInterval = 900
    /// The greatest age of an order, in seconds, that tells an ordered purchase from a renewal.
    package static let hour: TimeInterval = 3600

    let transaction: Transaction
    /// Apple's type, or the catalogue's where Apple says none.
    let kind: Transaction.Kind?
    let claim: Claim
    let evidence: Evidence

    package init(_ transaction: Transaction, kind: Transaction.Kind?, claim: Claim, evidence: Evidence) {
        self.transaction = transaction
        self.kind = transaction.kind ?? kind
        self.claim = claim
        self.evidence = evidence
    }

    package var answer: Answer {
        if let match = decided ?? renewalOfMoved ?? orderToken { return .owner(finished(match)) }
        if let answer = userToken {
            guard case .owner(let match) = answer else { return answer }
            return .owner(finished(match))
        }
        if let match = chain { return .owner(finished(match)) }
        guard claim.isPosted else { return unposted }
        guard claim.hasPossession else { return .held(.possessionMissing) }
        if let match = namedOrder ?? record ?? orderOfAnother { return .owner(finished(match)) }
        if let reason = isForAnother {
            return chainOwner.map { .owner(finished($0)) } ?? .held(reason)
        }
        if let match = openOrder ?? chainOwner ?? lateOrder ?? poster { return .owner(finished(match)) }
        return .held(claim.reasonOfNobody)
    }

    /// The owner of a purchase that was made before the cut-over and lasts (row 0c): by rows 2 to 4 and 10; by row 8,
    /// because only the chain names the imported owner of a subscription; and by row 5a, because a purchase that the
    /// post says is another user's is never its poster's. No order is bound: the former system placed the order, and
    /// gave its goods.
    package var answerBeforeCutover: Answer {
        let found: Match
        if let match = decided ?? renewalOfMoved ?? orderToken {
            found = match
        } else if let answer = userToken {
            guard case .owner(let match) = answer else { return answer }
            found = match
        } else if let match = chain {
            found = match
        } else {
            guard claim.isPosted else {
                if evidence.isPostedByUser { return .open(.unclaimedYet) }
                return chainOwner.map { .owner(finished($0)) } ?? .held(.unclaimed)
            }
            guard claim.hasPossession else { return .held(.possessionMissing) }
            guard let match = chainOwner ?? record ?? (isForAnother == nil ? poster : nil) else {
                return .held(isForAnother ?? claim.reasonOfNobody)
            }
            found = match
        }
        let proof = found.source == .poster ? [] : found.reasons.prefix(1)
        var match = Match(userID: found.userID, source: found.source, reasons: proof + [.beforeCutover])
        match.token = found.token
        return .owner(finished(match))
    }

    /// The owner of a purchase that another customer shares (row 0d): the owner of its own chain; else its poster;
    /// else, if nobody posted it for a day, the only user who is known for the Apple customer with whom it is shared.
    /// Tokens and orders are not used.
    package var answerOfShared: Answer {
        if let chain = evidence.chain {
            return .owner(Match(userID: chain.userID, source: .shared, reasons: [.chainKnown]))
        }
        guard claim.isPosted else {
            guard isADayOld, !evidence.isPostedByUser else { return .open(.unclaimedYet) }
            guard let found = onlyUserOfCustomer else { return .held(.unclaimed) }
            return .owner(Match(userID: found.userID, source: .shared, reasons: found.reasons))
        }
        guard claim.hasPossession else { return .held(.possessionMissing) }
        return claim.userID.map { .owner(Match(userID: $0, source: .shared)) } ?? .held(claim.reasonOfNobody)
    }

    // MARK: The rows

    /// The owner by a support decision, which comes before all rows. It binds an order of the user as row 3 does; of
    /// several items only an order for the item that the person chose.
    private var decided: Match? {
        guard let decision = evidence.supportDecision else { return nil }
        var match = Match(userID: decision.userID, source: .support, reasons: [.supportDecided])
        match.token = decision.token
        var known = evidence
        known.orders.removeAll { $0.item != nil && decision.item != nil && $0.item != decision.item }
        let matcher = Matcher(transaction, kind: kind, claim: claim, evidence: known)
        if isFirstOfChain, let order = known.orders.first(where: { $0.id == token }),
            order.userID.isSameText(as: decision.userID),
            order.productID == transaction.productID, isUnbound(order)
        {
            matcher.bind(order, &match)
        } else {
            matcher.bindOrder(of: decision.userID, &match)
        }
        return match
    }

    /// Row 4 before rows 2 and 3, for a chain that was moved. Its renewals carry the token of the earlier purchase, and
    /// that token would move the chain back each month.
    private var renewalOfMoved: Match? {
        guard let chain = evidence.chain, chain.isMoved, isRenewal || isChangeOfProduct else { return nil }
        return ofChain(chain, .chain)
    }

    /// Row 2: the token is an order of this app. The owner is the order's user, also if another user posted.
    private var orderToken: Match? {
        guard let token, let order = evidence.orders.first(where: { $0.id == token })
        else { return nil }
        var match = Match(userID: order.userID, source: .orderToken, reasons: [.tokenOfOrder])
        match.orderOfToken = order
        // An order that is reserved for another purchase is not bound by this one: the token then says the user only.
        if isFirstOfChain, isFree(order) {
            if isUnbound(order) {
                bind(order, &match)
                if order.productID != transaction.productID { match.reasons.append(.productCorrected) }
                return match
            }
            if isConsumable, order.productID == transaction.productID {
                match.secondChargeOf = order.id
                match.reasons += [.orderBoundBefore, .secondCharge]
                takeOffer(order, &match)
                return match
            }
        }
        if !isUnbound(order) { match.reasons.append(.orderBoundBefore) }
        bindOrder(of: order.userID, &match)
        return match
    }

    /// Row 3: the token is registered for a user, or remembered from the user's earlier grants. If nobody has the token
    /// and the poster has another one, the purchase is held.
    private var userToken: Answer? {
        guard token != nil else { return nil }
        if let userID = evidence.registeredUserID {
            if !claim.isPosted, !lasts, fittingOffers(of: userID).count != 1, !isADayOld { return .open(.unclaimedYet) }
            return .owner(ofToken(userID, .userToken, .tokenRegistered))
        }
        if claim.hasPossession, evidence.rememberedUserIDs.count == 1,
            let answer = rememberedToken(of: evidence.rememberedUserIDs[0])
        {
            return answer
        }
        return evidence.posterHasToken && !isTokenOfPostersName ? .held(.foreignToken) : nil
    }

    /// Whether the token is one that a client library derives from the poster's own name. Apple signed what the device
    /// chose when the user paid, and nobody finds a name with the token of another user's purchase: such a token can
    /// speak for its poster alone. It is no proof, because the app has not said that its tokens are derived
    /// (`accountTokens.derivedFrom`). It only ends a doubt that a token of nobody would raise; the next rows decide.
    /// Where the tables hold keys instead of ids, no token is derived from the poster's key.
    private var isTokenOfPostersName: Bool {
        guard let token, let userID = claim.userID else { return false }
        let derived = AccountToken.Derivation.known.map { $0.token(of: userID) }
        return derived.contains(token)
    }

    /// Row 3 for a token that was only used before. It names its user if that user posts, or if nobody posts for a day.
    /// Against another poster the token is a claim: an order of the poster's own, placed before the purchase, outweighs
    /// it; else the purchase is held for a day, both users are told, and then the next rows decide. A known chain is
    /// proof and goes first (row 4).
    private func rememberedToken(of userID: String) -> Answer? {
        if userID.isSameText(as: claim.userID) { return .owner(ofToken(userID, .rememberedToken, .tokenGrantedBefore)) }
        // A post that names nobody disputes nothing, and does not let the time of the user's own post begin.
        guard chain == nil, !claim.isOfPlaceholder else { return nil }
        guard claim.isPosted else {
            return isADayOld && !evidence.isPostedByUser
                ? .owner(ofToken(userID, .rememberedToken, .tokenGrantedBefore)) : .open(.unclaimedYet)
        }
        if let poster = claim.userID, isForAnother == nil, let match = orderBefore(of: poster) { return .owner(match) }
        return isADayOld || isTokenOfPostersName ? nil : .held(.tokenDisputed, rival: userID)
    }

    private func ofToken(_ userID: String, _ source: BindingSource, _ reason: MatchReason) -> Match {
        var match = Match(userID: userID, source: source, reasons: [reason])
        bindOrder(of: userID, &match)
        return match
    }

    /// Rows 5 and 7 by the orders that were placed before the purchase.
    private func orderBefore(of userID: String) -> Match? {
        var match: Match
        if let order = named, order.userID.isSameText(as: userID), fitsBefore(order) {
            match = Match(userID: userID, source: .namedOrder, reasons: [.orderNamed])
            bind(order, &match)
        } else if case .order(let order, let reasons) = openOrder(of: [userID], fitsBefore) {
            match = Match(userID: userID, source: .openOrder, reasons: reasons)
            bind(order, &match)
        } else {
            return nil
        }
        match.reasons.append(.tokenOfAnother)
        return match
    }

    /// Row 4: a renewal, a restore or a change of product, in a known chain.
    private var chain: Match? {
        guard let chain = evidence.chain, isRenewal || isRestore || isChangeOfProduct else { return nil }
        return ofChain(chain, .chain)
    }

    /// Row 5: the submission names an order of its poster that fits.
    private var namedOrder: Match? {
        guard let order = named, order.userID.isSameText(as: claim.userID), fits(order) else { return nil }
        var match = Match(userID: order.userID, source: .namedOrder, reasons: [.orderNamed])
        bind(order, &match)
        return match
    }

    /// Row 5a: the posted record names another user than its poster, one who is known here. Nil if the submission also
    /// names an order of a third user.
    private var record: Match? {
        guard let userID = evidence.recordUserID, !userID.isSameText(as: claim.userID),
            !namesAnothers || userID.isSameText(as: named?.userID)
        else { return nil }
        var match = Match(userID: userID, source: .record, reasons: [.recordNames])
        bindOrder(of: userID, &match)
        return match
    }

    /// Row 6: an order of another user, placed on the same proven installation, near the purchase and later than any
    /// order of the poster's. A purchase that was redeemed outside of any order has none.
    private var orderOfAnother: Match? {
        guard !transaction.isRedeemed else { return nil }
        let own = evidence.orders.filter { $0.userID.isSameText(as: claim.userID) && fits($0) }.map(\.placedAt).max()
        let others = evidence.orders.filter {
            !$0.userID.isSameText(as: claim.userID) && $0.isOnProvenInstallation && fits($0) && isNear($0)
                && $0.placedAt > own ?? .distantPast
        }
        guard let order = latest(others) else { return nil }
        var match = Match(userID: order.userID, source: .orderOfAnother, reasons: [.orderOfAnother, .installation])
        bind(order, &match)
        return match
    }

    /// Why the purchase is not its poster's by the post itself: the post names another user's order (S1-25), whether or
    /// not that order fits, or carries the record of an unknown user (S0-24). Then rows 7, 9 and 10 do not answer.
    /// Goods cannot be taken back, so a person or the other user's own post decides.
    private var isForAnother: Reason? {
        if namesAnothers { return .foreignOrder }
        return evidence.isRecordOfUnknown ? .foreignRecord : nil
    }

    /// Row 7: orders of the poster that fit.
    private var openOrder: Match? {
        guard let userID = claim.userID, case .order(let order, let reasons) = openOrder(of: userID) else { return nil }
        var match = Match(userID: userID, source: .openOrder, reasons: reasons)
        bind(order, &match)
        return match
    }

    /// Row 8: a purchase in a known chain, for example because the user subscribed again in Settings.
    private var chainOwner: Match? { evidence.chain.map { ofChain($0, .chainOwner) } }

    /// Row 9: the submission names an order of its poster that is younger than the purchase, or reserved for it.
    private var lateOrder: Match? {
        guard let userID = claim.userID, let order = lateOrder(of: userID) else { return nil }
        return Match(userID: userID, source: .lateOrder, order: order, reasons: [lateReason(order)])
    }

    /// Row 10: the poster is authenticated and has possession.
    private var poster: Match? {
        claim.userID.map {
            var match = Match(userID: $0, source: .poster)
            if case .none(let reasons) = openOrder(of: $0) { match.reasons += reasons }
            return match
        }
    }

    /// Rows 8 and 11, for a purchase that nobody posted. It stays open until its owner has had the time to post it.
    /// Then the owner is the chain's owner; else, as in row 7, the user of an order among the users who are known for
    /// the Apple customer; else the only one of these users; else the first user who posts it, or the user whom support
    /// names. While a post of the same purchase is open or held, the post is judged by what it says, and only proof
    /// gives the purchase here.
    private var unposted: Answer {
        guard isADayOld, !evidence.isPostedByUser else { return .open(.unclaimedYet) }
        if let match = chainOwner ?? orderOfCustomer ?? onlyUserOfCustomer { return .owner(finished(match)) }
        return .held(.unclaimed)
    }

    /// Whether the owner has had a day to post the purchase.
    private var isADayOld: Bool { claim.judgedAt >= claim.receivedAt + claim.unpostedFor }

    private var orderOfCustomer: Match? {
        guard case .order(let order, let reasons) = openOrder(of: evidence.customerUserIDs, fits) else { return nil }
        var match = Match(userID: order.userID, source: .customer, reasons: [.customerKnown] + reasons)
        bind(order, &match)
        return match
    }

    private var onlyUserOfCustomer: Match? {
        guard let userID = evidence.customerUserIDs.first, evidence.customerUserIDs.count == 1 else { return nil }
        return Match(userID: userID, source: .customer, reasons: [.customerKnown])
    }

    /// The token of the purchase. Nil if this server set the token at Apple: then it proves nothing new.
    private var token: UUID? { evidence.isTokenWritten ? nil : transaction.appAccountToken }

    // MARK: Orders

    private enum OpenOrder {
        case order(PlacedOrder, [MatchReason])
        case none([MatchReason])
    }

    private var named: PlacedOrder? { evidence.orders.first { $0.id == evidence.namedOrderID } }
    private var namesAnothers: Bool {
        guard let userID = claim.userID, let named else { return false }
        return !named.userID.isSameText(as: userID)
    }

    /// Whether no purchase has bound the order, or this one has.
    func isUnbound(_ order: PlacedOrder) -> Bool {
        order.transactionID == nil || order.transactionID == transaction.id
    }

    /// Whether an order fits the purchase: same product, unbound, reserved for no other purchase, and placed no later
    /// than the purchase, so that transaction A never binds the later order B. No order fits a renewal or a restore.
    ///
    /// Clocks differ: an order that was placed up to ``placedAfterMax`` later fits as well, unless the purchase's chain
    /// is known or an earlier order fits, of the same user, or near the purchase on this proven installation.
    private func fits(_ order: PlacedOrder) -> Bool {
        guard !fitsBefore(order) else { return true }
        guard isOfProduct(order), isUnbound(order), !isRenewal, !isRestore, evidence.chain == nil,
            order.placedAt <= transaction.purchasedAt + Self.placedAfterMax
        else { return false }
        return !evidence.orders.contains { other in
            // An order that another purchase of the same receipt has taken is an earlier order all the same.
            isOfProduct(other) && other.placedAt <= transaction.purchasedAt
                && (isUnbound(other) || evidence.takenOrderIDs.contains(other.id))
                && (other.userID.isSameText(as: order.userID) || other.isOnProvenInstallation && isNear(other))
        }
    }

    private func fitsBefore(_ order: PlacedOrder) -> Bool {
        isOfProduct(order) && isUnbound(order) && order.placedAt <= transaction.purchasedAt && !isRenewal && !isRestore
    }

    func isOfProduct(_ order: PlacedOrder) -> Bool {
        order.productID == transaction.productID && isFree(order)
    }

    private func isFree(_ order: PlacedOrder) -> Bool {
        order.reservedFor == nil || transaction.isCalled(order.reservedFor)
    }

    private func isNear(_ order: PlacedOrder) -> Bool { order.placedAt >= transaction.purchasedAt - Self.nearMax }

    private func latest(_ orders: [PlacedOrder]) -> PlacedOrder? {
        orders.max { ($0.placedAt, $0.id.uuidString) < ($1.placedAt, $1.id.uuidString) }
    }

    private func openOrder(of userID: String) -> OpenOrder { openOrder(of: [userID], fits) }

    /// Orders of a user that fit, and whose offer still counted at the purchase.
    private func fittingOffers(of userID: String) -> [PlacedOrder] {
        evidence.orders.filter { $0.userID.isSameText(as: userID) && fits($0) && transaction.purchasedAt <= $0.payBy }
    }

    /// Row 7 among the orders of these users: the order by which this purchase was given before, whatever was placed
    /// since; else the latest. If the orders promise different things or are different users', the latest counts only
    /// if it alone is near the purchase.
    private func openOrder(of userIDs: [String], _ fits: (PlacedOrder) -> Bool) -> OpenOrder {
        let orders = evidence.orders.filter { order in
            userIDs.contains { $0.isSameText(as: order.userID) } && fits(order)
                && transaction.purchasedAt <= order.payBy
        }
        if let bound = orders.first(where: { $0.transactionID == transaction.id }), !transaction.isRedeemed {
            return .order(bound, [.orderOpen])
        }
        guard let latest = latest(orders) else { return .none([]) }
        if transaction.isRedeemed {
            return .none([transaction.offerType == Transaction.winBackOffer ? .winBackOffer : .offerCode])
        }
        if orders.allSatisfy({ $0.promisesTheSame(as: latest) && $0.userID.isSameText(as: latest.userID) }) {
            return .order(latest, [.orderOpen])
        }
        return orders.filter(isNear).count == 1 && isNear(latest)
            ? .order(latest, [.orderOpen, .latestAlone]) : .none([.ordersDiffer])
    }

    /// Row 9, for any user.
    private func lateOrder(of userID: String) -> PlacedOrder? {
        guard let order = named, order.userID.isSameText(as: userID), order.productID == transaction.productID,
            isUnbound(order), isFree(order),
            order.placedAt > transaction.purchasedAt || transaction.isCalled(order.reservedFor)
        else { return nil }
        return order
    }

    private func lateReason(_ order: PlacedOrder) -> MatchReason {
        transaction.isCalled(order.reservedFor) ? .orderReserved : .orderLater
    }

    /// Binds an order of an owner whom another row found, by rows 5, 7 and 9. Without such an order the match stays a
    /// make-up order.
    private func bindOrder(of userID: String, _ match: inout Match) {
        if let order = named, order.userID.isSameText(as: userID), fits(order) {
            match.reasons.append(.orderNamed)
            bind(order, &match)
            return
        }
        switch openOrder(of: userID) {
        case .order(let order, let reasons):
            match.reasons += reasons
            bind(order, &match)
        case .none(let reasons):
            match.reasons += reasons
            bindLateOrder(of: userID, &match)
        }
    }

    /// Row 9. The goods are those of the day of the purchase (S1-8, S3-23).
    func bindLateOrder(of userID: String, _ match: inout Match) {
        guard let order = lateOrder(of: userID) else { return }
        match.order = order
        match.reasons.append(lateReason(order))
    }

    private func bind(_ order: PlacedOrder, _ match: inout Match) {
        match.order = order
        takeOffer(order, &match)
    }

    private func takeOffer(_ order: PlacedOrder, _ match: inout Match) {
        guard order.productID == transaction.productID else { return }
        if transaction.purchasedAt <= order.payBy {
            match.offer = order
        } else {
            match.reasons.append(.offerLapsed)
        }
    }

    // MARK: What was found beside it

    private func finished(_ match: consuming Match) -> Match {
        if let order = match.order {
            if order.quantity != transaction.quantity { match.reasons.append(.quantityDiffers) }
            if let environment = order.environment, environment != transaction.environment {
                match.reasons.append(.environmentDiffers)
            }
        }
        if let named = evidence.namedOrderID, ![match.order?.id, match.secondChargeOf].contains(named) {
            match.reasons.append(.orderAside)
        }
        if match.source != .userToken, evidence.rememberedUserIDs.count > 1 { match.reasons.append(.tokenOfSeveral) }
        if !transaction.showsToken, transaction.appAccountToken == nil, evidence != .none {
            match.reasons.append(.tokenUnseen)
        }
        if evidence.isTokenWritten { match.reasons.append(.tokenWritten) }
        match.takesChain = !isConsumable && kind != .nonRenewing && !match.userID.isSameText(as: evidence.chain?.userID)
        if match.takesChain, let chain = evidence.chain {
            match.chainWasOf = chain.userID
            match.reasons.append(.chainMoved)
        }
        return match
    }
}
