import Encoding
import Foundation

/// The entitlements of a user: a pure function of Apple's newest facts, the app's policies, its catalogue and the
/// clock.
package struct Entitlements: Sendable, Equatable {
    /// The active ones first, then by product, the one with the later end first.
    package let list: [Entitlement]

    /// Finds the state of each chain, and then which subscription of each group counts.
    ///
    /// - Parameters:
    ///   - chains: the user's, of one environment, in any order; each chain once. Of a purchase that is no period its
    ///     grant counts, because Apple lists one purchase under several ids. Grants of periods and revocations are not
    ///     read.
    ///   - catalogue: in force, with the configuration's products. A product that it does not name has the kind that
    ///     Apple says, and no terms.
    package init(of chains: [ChainFacts], by policy: SubscriptionPolicy, _ catalogue: Catalogue) {
        let continued = Set(chains.flatMap { chain in chain.purchases.compactMap(\.transaction.previousOriginalID) })
        var found: [Entitlement] = []
        var others: [OfProduct: [ChainPurchase]] = [:]
        for var chain in chains {
            chain.isContinued = chain.isContinued || continued.contains(chain.originalID)
            let product = { (id: String) in catalogue.products[id] }
            if let status = chain.status(by: policy) {
                found.append(Entitlement(status, of: chain, product(status.productID)?.terms))
            }
            for purchase in ChainPurchase.all(chain.purchases, isContinued: false) where !purchase.facts.isPeriod {
                let facts = purchase.facts
                let said = purchase.listed.lazy.compactMap(\.transaction.kind).first
                guard let kind = said ?? product(facts.productID)?.kind else { continue }
                others[OfProduct(facts, kind, chain.now), default: []].append(purchase)
            }
        }
        for (key, purchases) in others {
            let terms = catalogue.products[key.id]?.terms
            switch key.kind {
            case .nonConsumable: found.append(Entitlement(key, purchases, until: nil, terms))
            case .nonRenewing:
                let granted = purchases.filter { $0.granted != nil }
                guard !granted.isEmpty else { continue }
                found.append(Entitlement(key, granted, until: terms?.duration?.end(of: granted), terms))
            case .consumable, .autoRenewable: break
            }
        }
        list = Self.marked(found).sorted(by: Self.precedes)
    }

    /// The purchases of one product that is no subscription.
    fileprivate struct OfProduct: Hashable {
        let id: String
        let kind: Transaction.Kind
        let environment: String
        let now: Date

        init(_ facts: Transaction, _ kind: Transaction.Kind, _ now: Date) {
            id = facts.productID
            self.kind = kind
            environment = facts.environment
            self.now = now
        }
    }

    // MARK: All of them

    /// Marks of each group the active one that counts: of the highest level, then with the latest end. A subscription
    /// without a group is a group of its product.
    private static func marked(_ found: [Entitlement]) -> [Entitlement] {
        var marked = found
        let active = found.indices.filter { found[$0].isActive }
        let groups = Dictionary(grouping: active) { (place: Int) -> [String] in
            let entitlement = found[place]
            return entitlement.group.map { ["group", $0] } ?? ["product", entitlement.productID]
        }
        for places in groups.values {
            if let best = places.min(by: { outranks(found[$0], found[$1]) }) { marked[best].isCurrent = true }
        }
        return marked
    }

    private static func outranks(_ one: Entitlement, _ other: Entitlement) -> Bool {
        let (level, otherLevel) = (one.level ?? .max, other.level ?? .max)
        if level != otherLevel { return level < otherLevel }
        let (end, otherEnd) = (one.until ?? .distantFuture, other.until ?? .distantFuture)
        return end == otherEnd ? precedes(one, other) : end > otherEnd
    }

    /// A total order, so that one state has one text.
    private static func precedes(_ one: Entitlement, _ other: Entitlement) -> Bool {
        if one.isActive != other.isActive { return one.isActive }
        if !one.productID.isSameText(as: other.productID) {
            return one.productID.utf8.lexicographicallyPrecedes(other.productID.utf8)
        }
        let (end, otherEnd) = (one.until ?? .distantFuture, other.until ?? .distantFuture)
        if end != otherEnd { return end > otherEnd }
        return (one.purchases.first?.transactionID ?? "").utf8
            .lexicographicallyPrecedes((other.purchases.first?.transactionID ?? "").utf8)
    }
}

extension Entitlement {
    /// Of a subscription.
    fileprivate init(_ status: SubscriptionStatus, of chain: ChainFacts, _ terms: EntitlementTerms?) {
        let period = chain.purchases.first { $0.transaction.id.isSameText(as: status.transactionID) }?.transaction
        self.init(
            productID: status.productID, kind: .autoRenewable, environment: chain.environment, state: status.state,
            isActive: status.isEntitled, until: status.accessUntil, terms: terms,
            isShared: period?.isShared ?? false,
            purchases: [.init(transactionID: status.transactionID, originalID: chain.originalID)])
        // A word of Apple's from before the newest period was charged is about another period.
        let newest = chain.purchases.lazy.map(\.transaction).filter(\.isPeriod).max { $0.purchasedAt < $1.purchasedAt }
        if let renewal = chain.renewal, renewal.signedAt >= newest?.chargedAt ?? .distantPast {
            willRenew = renewal.charges(
                after: newest?.expiresAt ?? .distantPast, commitmentEnd: newest?.commitmentEnd)
            commitmentRenews = renewal.commitment?.renewsAutomatically
            nextProductID = renewal.nextProductID
        }
        commitmentUntil = newest?.commitmentEnd
    }

    /// Of purchases of one product that is no subscription: active while one of them stands, and until their end if
    /// they have one. There is at least one.
    fileprivate init(
        _ product: Entitlements.OfProduct, _ purchases: [ChainPurchase], until end: Date?, _ terms: EntitlementTerms?
    ) {
        let standing = purchases.filter { $0.facts.ending == nil }
        let shown = standing.isEmpty ? purchases : standing
        let runs = !standing.isEmpty && end.map { product.now < $0 } ?? true
        self.init(
            productID: product.id, kind: product.kind, environment: product.environment,
            state: standing.isEmpty ? .revoked : runs ? .active : .expired, isActive: runs,
            until: standing.isEmpty ? purchases.compactMap(\.facts.revokedAt).max() : end, terms: terms,
            isShared: shown.allSatisfy(\.facts.isShared),
            purchases: shown.sorted { ($0.purchasedAt, $0.id) < ($1.purchasedAt, $1.id) }
                .map { .init(transactionID: $0.id, originalID: $0.facts.originalID) })
    }
}

extension CalendarPeriod {
    /// When non-renewing purchases of one product end that last so long each: the next begins where the former ends, or
    /// when it was bought. A purchase that Apple took back gives no time.
    fileprivate func end(of purchases: [ChainPurchase]) -> Date? {
        purchases.filter { $0.facts.ending == nil }.sorted { $0.purchasedAt < $1.purchasedAt }
            .reduce(nil) { (former: Date?, purchase) in
                end(from: max(former ?? .distantPast, purchase.purchasedAt), count: purchase.facts.quantity)
            }
    }
}
