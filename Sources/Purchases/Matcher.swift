import Encoding
package import Foundation

/// Whose a purchase is: rows 2 to 11 of Ownership, the first that answers decides. Row 1 is the database's. Pure.
///
/// Above all rows stands one rule: **what another user has merely claimed never takes a purchase from an authenticated
/// poster who shows Apple's own data.** Only proof does (``BindingSource/isProof``): an order or a registered token inside
/// Apple's data, a chain whose purchases were shown with Apple's own data, an installation token that this server issued, a
/// person's decision. An order of another, a token that was merely used before and a free text of a client prove nothing.
package struct Matcher: Sendable {
    package enum Answer: Sendable, Equatable {
        case owner(Match)
        /// Nobody can be named. The rival is whom something less than proof speaks for.
        case held(Reason, rival: String? = nil)
        /// Not now: somebody may still post it.
        case open(Reason)
    }

    /// Its owner's own post says more than the Apple customer's past: it is waited for so long, in seconds.
    package static let unpostedFor: TimeInterval = 86_400

    /// Apple's clock and ours may differ: an order placed this long after a purchase still fits it, in seconds.
    package static let placedAfterMax: TimeInterval = 300
    /// Orders placed this long before a purchase are near it, in seconds.
    package static let nearMax: TimeInterval = 900
    /// To tell a renewal from a purchase that was ordered: the order is as old as this, in seconds.
    package static let hour: TimeInterval = 3600

    private let transaction: Transaction
    /// Apple's type, or the catalogue's where Apple says none.
    private let kind: Transaction.Kind?
    private let claim: Claim
    private let evidence: Evidence

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
        return .held(.orderUnknown)
    }

    /// Of what was bought before the cut-over and lasts (row 0c): rows 2 to 4 and 10; row 8, for an imported owner of a
    /// subscription is known by its chain alone; and row 5a, for what a post says to be another's is never its poster's.
    /// No order is bound: the former system placed it, and gave its goods.
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
            guard claim.isPosted else { return chainOwner.map { .owner(finished($0)) } ?? .held(.unclaimed) }
            guard claim.hasPossession else { return .held(.possessionMissing) }
            guard let match = chainOwner ?? record ?? (isForAnother == nil ? poster : nil) else {
                return .held(isForAnother ?? .orderUnknown)
            }
            found = match
        }
        let proof = found.source == .poster ? [] : found.reasons.prefix(1)
        var match = Match(userID: found.userID, source: found.source, reasons: proof + [.beforeCutover])
        match.token = found.token
        return .owner(finished(match))
    }

    /// The owner of what another customer shares (row 0d): its own chain's owner; else its poster; else, where nobody posted
    /// it, the only user who is known for the Apple customer it is shared with. Tokens and orders say nothing of it.
    package var answerOfShared: Answer {
        if let chain = evidence.chain {
            return .owner(Match(userID: chain.userID, source: .shared, reasons: [.chainKnown]))
        }
        guard claim.isPosted else {
            guard isADayOld else { return .open(.unclaimedYet) }
            guard let found = onlyUserOfCustomer else { return .held(.unclaimed) }
            return .owner(Match(userID: found.userID, source: .shared, reasons: found.reasons))
        }
        guard claim.hasPossession else { return .held(.possessionMissing) }
        return claim.userID.map { .owner(Match(userID: $0, source: .shared)) } ?? .held(.orderUnknown)
    }

    // MARK: The rows

    /// A person has said whose it is, and that comes before all that would only be concluded. An order of his is bound by
    /// it as in row 3; of several items only one that is for the item which was said.
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

    /// Row 4 before rows 2 and 3, of a chain that was moved: its renewals carry the token of the purchase from before,
    /// which would take it back each month.
    private var renewalOfMoved: Match? {
        guard let chain = evidence.chain, chain.isMoved, isRenewal || isChangeOfProduct else { return nil }
        return ofChain(chain, .chain)
    }

    /// Row 2: the token is an order of this app. Its user, whoever posted.
    private var orderToken: Match? {
        guard let token, let order = evidence.orders.first(where: { $0.id == token })
        else { return nil }
        var match = Match(userID: order.userID, source: .orderToken, reasons: [.tokenOfOrder])
        match.orderOfToken = order
        // One that was asked for by another purchase is that one's: the token says the user only.
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

    /// Row 3: the token is a user's, registered or remembered of what he was given before. One that is nobody's, from a
    /// poster who has one of his own: held.
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
        return evidence.posterHasToken ? .held(.foreignToken) : nil
    }

    /// Row 3 of a token that was only used before: it speaks for its user where he posts, or where a day long nobody did.
    /// Against another poster it is a claim: an order of the poster's own, placed before the purchase, answers it; else
    /// the purchase waits for a day, and both are told. A chain that is known is proof, and goes before it (row 4).
    private func rememberedToken(of userID: String) -> Answer? {
        if userID.isSameText(as: claim.userID) { return .owner(ofToken(userID, .rememberedToken, .tokenGrantedBefore)) }
        guard chain == nil else { return nil }
        guard claim.isPosted else {
            return isADayOld
                ? .owner(ofToken(userID, .rememberedToken, .tokenGrantedBefore)) : .open(.unclaimedYet)
        }
        if let poster = claim.userID, isForAnother == nil, let match = orderBefore(of: poster) { return .owner(match) }
        return isADayOld ? nil : .held(.tokenDisputed, rival: userID)
    }

    private func ofToken(_ userID: String, _ source: BindingSource, _ reason: MatchReason) -> Match {
        var match = Match(userID: userID, source: source, reasons: [reason])
        bindOrder(of: userID, &match)
        return match
    }

    /// Rows 5 and 7 by what was placed before the purchase alone.
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

    /// Row 4: a renewal, a restore or a change of product, in a chain we know.
    private var chain: Match? {
        guard let chain = evidence.chain, isRenewal || isRestore || isChangeOfProduct else { return nil }
        return ofChain(chain, .chain)
    }

    /// Row 5: the submission names an order of its user that fits.
    private var namedOrder: Match? {
        guard let order = named, order.userID.isSameText(as: claim.userID), fits(order) else { return nil }
        var match = Match(userID: order.userID, source: .namedOrder, reasons: [.orderNamed])
        bind(order, &match)
        return match
    }

    /// Row 5a: the record that was posted names another user than its poster, one who is known here. Not where an order
    /// of a third user is named beside it.
    private var record: Match? {
        guard let userID = evidence.recordUserID, !userID.isSameText(as: claim.userID),
            !namesAnothers || userID.isSameText(as: named?.userID)
        else { return nil }
        var match = Match(userID: userID, source: .record, reasons: [.recordNames])
        bindOrder(of: userID, &match)
        return match
    }

    /// Row 6: an order of another user, placed on the same proven installation, near the purchase and later than any of
    /// the poster's.
    private var orderOfAnother: Match? {
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

    /// Why the post is not its poster's for what it says itself: it names another user's order (S1-25), whether or not
    /// that order fits, or carries the record of a user whom nobody knows (S0-24). Rows 7, 9 and 10 do not answer then.
    /// Goods cannot be taken back, so a person decides, or the other's own post.
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

    /// Row 8: a purchase in a chain we know, as by resubscribing in Settings.
    private var chainOwner: Match? { evidence.chain.map { ofChain($0, .chainOwner) } }

    /// Row 9: the submission names an order of its user that is younger than the purchase, or reserved for it.
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

    /// Rows 8 and 11 of a purchase that nobody posted: not before its owner has had the time to post it himself. Then the
    /// chain's owner; an order of one of the users who are known for the Apple customer, as in row 7; the only one of
    /// them; else whoever posts it first, or support.
    private var unposted: Answer {
        guard isADayOld else { return .open(.unclaimedYet) }
        if let match = chainOwner ?? orderOfCustomer ?? onlyUserOfCustomer { return .owner(finished(match)) }
        return .held(.unclaimed)
    }

    /// Whoever it may belong to has had the time to post it.
    private var isADayOld: Bool { claim.judgedAt >= claim.receivedAt + Self.unpostedFor }

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

    /// What the purchase itself says of its owner. One that we set at Apple proves nothing: it is what we knew.
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

    /// By no purchase, or by this one.
    private func isUnbound(_ order: PlacedOrder) -> Bool {
        order.transactionID == nil || order.transactionID == transaction.id
    }

    /// Same product, unbound, reserved for no other purchase, and placed no later than the purchase: order B never
    /// swallows transaction A. A renewal or a restore fits no order.
    ///
    /// Clocks differ: one that was placed a little later fits as well, unless the purchase's chain is known or an order
    /// from before it fits, of the same user or of anybody on this proven installation.
    private func fits(_ order: PlacedOrder) -> Bool {
        guard !fitsBefore(order) else { return true }
        guard isOfProduct(order), isUnbound(order), !isRenewal, !isRestore, evidence.chain == nil,
            order.placedAt <= transaction.purchasedAt + Self.placedAfterMax
        else { return false }
        return !evidence.orders.contains { other in
            // One that a neighbour in the same receipt has taken was there before all the same.
            isOfProduct(other) && other.placedAt <= transaction.purchasedAt
                && (isUnbound(other) || evidence.takenOrderIDs.contains(other.id))
                && (other.userID.isSameText(as: order.userID) || other.isOnProvenInstallation && isNear(other))
        }
    }

    private func fitsBefore(_ order: PlacedOrder) -> Bool {
        isOfProduct(order) && isUnbound(order) && order.placedAt <= transaction.purchasedAt && !isRenewal && !isRestore
    }

    private func isOfProduct(_ order: PlacedOrder) -> Bool {
        order.productID == transaction.productID && isFree(order)
    }

    private func isFree(_ order: PlacedOrder) -> Bool {
        order.reservedFor == nil || order.reservedFor == transaction.id
    }

    private func isNear(_ order: PlacedOrder) -> Bool { order.placedAt >= transaction.purchasedAt - Self.nearMax }

    private func latest(_ orders: [PlacedOrder]) -> PlacedOrder? {
        orders.max { ($0.placedAt, $0.id.uuidString) < ($1.placedAt, $1.id.uuidString) }
    }

    private func openOrder(of userID: String) -> OpenOrder { openOrder(of: [userID], fits) }

    /// Orders of a user that fit, and whose offer counts.
    private func fittingOffers(of userID: String) -> [PlacedOrder] {
        evidence.orders.filter { $0.userID.isSameText(as: userID) && fits($0) && transaction.purchasedAt <= $0.payBy }
    }

    /// Row 7, for whomever: the latest; where they promise different things or are different users', only if it alone is
    /// near the purchase. One that this purchase was given by before is the one, whatever was placed since.
    private func openOrder(of userIDs: [String], _ fits: (PlacedOrder) -> Bool) -> OpenOrder {
        let orders = evidence.orders.filter { order in
            userIDs.contains { $0.isSameText(as: order.userID) } && fits(order)
                && transaction.purchasedAt <= order.payBy
        }
        if let bound = orders.first(where: { $0.transactionID == transaction.id }), !transaction.isOfferCode {
            return .order(bound, [.orderOpen])
        }
        guard let latest = latest(orders) else { return .none([]) }
        if transaction.isOfferCode { return .none([.offerCode]) }
        if orders.allSatisfy({ $0.promisesTheSame(as: latest) && $0.userID.isSameText(as: latest.userID) }) {
            return .order(latest, [.orderOpen])
        }
        return orders.filter(isNear).count == 1 && isNear(latest)
            ? .order(latest, [.orderOpen, .latestAlone]) : .none([.ordersDiffer])
    }

    /// Row 9, for whomever.
    private func lateOrder(of userID: String) -> PlacedOrder? {
        guard let order = named, order.userID.isSameText(as: userID), order.productID == transaction.productID,
            isUnbound(order), isFree(order),
            order.placedAt > transaction.purchasedAt || order.reservedFor == transaction.id
        else { return nil }
        return order
    }

    private func lateReason(_ order: PlacedOrder) -> MatchReason {
        order.reservedFor == transaction.id ? .orderReserved : .orderLater
    }

    /// Rows 5, 7 and 9 among the orders of an owner who was found otherwise; else a make-up order.
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

    /// Its goods are those of the day of the purchase (S1-8, S3-23).
    private func bindLateOrder(of userID: String, _ match: inout Match) {
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

    // MARK: Chains

    private var isFirstOfChain: Bool { transaction.isFirstOfChain }

    private var isConsumable: Bool { boughtAs == .consumable }
    /// A subscription or a non-consumable: the client need say nothing of item or role.
    private var lasts: Bool { boughtAs == .autoRenewable || boughtAs == .nonConsumable }
    private var boughtAs: Transaction.Kind { kind ?? (transaction.isPeriod ? .autoRenewable : .consumable) }

    /// Apple's word; a legacy receipt has none: then what follows in a chain, unless the poster just ordered it.
    private var isRenewal: Bool {
        if let reason = transaction.reason { return reason == Transaction.renewal }
        return transaction.isPeriod && !isFirstOfChain && !hasOrderWithinHour
    }

    private var hasOrderWithinHour: Bool {
        evidence.orders.contains {
            $0.userID.isSameText(as: claim.userID) && isOfProduct($0) && isUnbound($0)
                && $0.placedAt >= transaction.purchasedAt - Self.hour && $0.placedAt <= transaction.purchasedAt
        }
    }

    private var isRestore: Bool {
        !transaction.isPeriod && !isFirstOfChain && evidence.revocations == 0
    }

    /// An upgrade, a cross-grade or a bundle while the chain runs, which nobody posted.
    private var isChangeOfProduct: Bool {
        guard !claim.isPosted, transaction.isPeriod, let productID = evidence.chain?.productID else { return false }
        return productID != transaction.productID && evidence.chain?.runsUntil ?? .distantPast > transaction.purchasedAt
    }

    private func ofChain(_ chain: Evidence.Chain, _ source: BindingSource) -> Match {
        var match = Match(userID: chain.userID, source: source, reasons: [.chainKnown])
        bindLateOrder(of: chain.userID, &match)
        return match
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
