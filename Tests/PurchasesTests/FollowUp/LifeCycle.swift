import Foundation
import Purchases
import Testing

/// A life cycle: Apple's notifications about one purchase or subscription from its beginning to its end, and the state
/// that is left at the end.
struct LifeCycle: Sendable, CustomTestStringConvertible {
    /// One notification, by its signed facts.
    struct Heard: Sendable {
        var transaction: Transaction?
        var renewal: Renewal?

        var signedAt: Date { max(transaction?.signedAt ?? .distantPast, renewal?.signedAt ?? .distantPast) }
    }

    var name: String
    /// In the order in which Apple sent them.
    var notifications: [Heard]
    /// When all have arrived, in days.
    var end: Double
    /// What the user holds then, by item.
    var goods: [String: Int]
    /// The state of each chain then.
    var states: [String: SubscriptionState] = [:]

    var testDescription: String { name }

    static let origin = Date(timeIntervalSince1970: 1_800_000_000)
    static func day(_ days: Double) -> Date { origin.addingTimeInterval(days * 86_400) }

    static let goodsOf: [String: [AppPolicy.Goods]] = [
        "gold": [.init(item: "gem", amount: 100)], "silver": [.init(item: "gem", amount: 10)],
        "bundle": [.init(item: "gem", amount: 1000)], "coins": [.init(item: "coin", amount: 61)],
        "sword": [.init(item: "sword", amount: 1), .init(item: "gem", amount: 7)],
        // What is shared gives access and no goods.
        "season": [.init(item: "ticket", amount: 3)], "family": [],
    ]
}

extension LifeCycle.Heard {
    /// A period of the chain `S`, as Apple signed it.
    ///
    /// - Parameter signed: when Apple signed it, in days; by default when it was bought.
    static func period(
        _ id: String, _ product: String, _ from: Double, _ until: Double, signed: Double? = nil,
        of original: String = "S", _ change: (inout Transaction) -> Void = { _ in }
    ) -> LifeCycle.Heard {
        var transaction = Transaction(
            id: id, originalID: original, productID: product, kind: .autoRenewable,
            environment: Transaction.production, purchasedAt: LifeCycle.day(from), expiresAt: LifeCycle.day(until),
            signedAt: LifeCycle.day(signed ?? from), reason: "PURCHASE")
        change(&transaction)
        return LifeCycle.Heard(transaction: transaction)
    }

    /// A purchase that is no subscription.
    static func purchase(
        _ id: String, _ product: String, _ kind: Transaction.Kind, _ at: Double, signed: Double? = nil,
        of original: String? = nil, _ change: (inout Transaction) -> Void = { _ in }
    ) -> LifeCycle.Heard {
        var transaction = Transaction(
            id: id, originalID: original, productID: product, kind: kind, environment: Transaction.production,
            purchasedAt: LifeCycle.day(at), signedAt: LifeCycle.day(signed ?? at), reason: "PURCHASE")
        change(&transaction)
        return LifeCycle.Heard(transaction: transaction)
    }

    /// What Apple says about the next renewal of the chain `S`, alone.
    static func renewal(
        _ signed: Double, of original: String = "S", _ change: (inout Renewal) -> Void = { _ in }
    ) -> LifeCycle.Heard {
        var renewal = Renewal(
            originalID: original, environment: Transaction.production, signedAt: LifeCycle.day(signed))
        change(&renewal)
        return LifeCycle.Heard(renewal: renewal)
    }

    /// The same with facts about the next renewal.
    func with(_ renewal: LifeCycle.Heard) -> LifeCycle.Heard {
        LifeCycle.Heard(transaction: transaction, renewal: renewal.renewal)
    }

    /// The same transaction, signed later, ended.
    func ended(
        _ at: Double, signed: Double? = nil, type: String? = "REFUND_FULL", reason: Int? = 0, percentage: Int? = nil
    ) -> LifeCycle.Heard {
        changed(signed ?? at) {
            $0.revokedAt = LifeCycle.day(at)
            $0.revocation = Revocation(reason: reason, type: type, percentage: percentage)
        }
    }

    /// The same transaction, signed later.
    func changed(_ signed: Double, _ change: (inout Transaction) -> Void = { _ in }) -> LifeCycle.Heard {
        var heard = self
        heard.renewal = nil
        heard.transaction?.signedAt = LifeCycle.day(signed)
        if var transaction = heard.transaction {
            change(&transaction)
            heard.transaction = transaction
        }
        return heard
    }
}

/// A database of one user's purchases: the newest facts, the grants, and their revocations and events. It judges as the
/// settle transaction does, as far as the order of arrival matters.
struct FollowedChains {
    struct Known {
        var facts: Transaction
        var grant: ChainFacts.Grant?
        var entries: [RevocationEntry] = []
    }

    struct Chain {
        var told: ToldState?
        var lapseSeenAt: Date?
        var steps = 0
        var dueAt: Date?
    }

    static let receiptID = UUID()

    private(set) var known: [String: Known] = [:]
    private var renewals: [String: Renewal] = [:]
    private(set) var chains: [String: Chain] = [:]
    private var keys: Set<String> = []
    /// Types of all events, in their order.
    private(set) var events: [FollowUp.Event] = []
    /// A second follow-up that wrote something again.
    private(set) var repetitions = 0

    /// Takes in the facts of a notification, and follows up.
    mutating func hear(_ heard: LifeCycle.Heard, at now: Date) {
        var touched: [String] = []
        if let transaction = heard.transaction {
            touched += [transaction.originalID, transaction.previousOriginalID].compactMap(\.self)
            if let former = known[transaction.id] {
                if former.facts.signedAt ?? .distantPast < transaction.signedAt ?? .distantPast {
                    known[transaction.id]?.facts = transaction
                }
            } else {
                known[transaction.id] = Known(facts: transaction)
            }
            judge(transaction.id, at: now)
        }
        if let renewal = heard.renewal {
            touched.append(renewal.originalID)
            if renewals[renewal.originalID].map({ $0.signedAt < renewal.signedAt }) ?? true {
                renewals[renewal.originalID] = renewal
            }
        }
        for original in Set(touched).sorted() { followUp(original, at: now) }
    }

    /// Follows up what is due by then, each chain at its moment.
    mutating func wait(until now: Date) {
        while let (original, chain) = chains.filter({ $0.value.dueAt.map { $0 <= now } ?? false })
            .min(by: { ($0.value.dueAt ?? now, $0.key) < ($1.value.dueAt ?? now, $1.key) }), let dueAt = chain.dueAt
        {
            followUp(original, at: dueAt)
        }
    }

    /// Grants a transaction, if nothing is against it.
    private mutating func judge(_ id: String, at now: Date) {
        guard let purchase = known[id], purchase.grant == nil else { return }
        var transaction = purchase.facts
        let chain = known.values.filter { $0.facts.originalID == transaction.originalID }
        transaction.hasSuccessor =
            transaction.mayHaveSuccessor && known.values.contains { $0.facts.follows(transaction) }
        guard !transaction.isTakenBack, transaction.ending != .unknown else { return }
        let takenBack = chain.filter { other in
            other.grant != nil && other.facts.revokedAt.map { $0 < transaction.purchasedAt } ?? false
        }
        if !transaction.isPeriod, !takenBack.isEmpty { transaction.identity = .repurchase(takenBack.count) }
        let names = [transaction.purchaseKey, transaction.periodKey].compactMap(\.self)
        guard keys.isDisjoint(with: names) else { return }
        keys.formUnion(names)
        known[id]?.grant = ChainFacts.Grant(
            receiptID: Self.receiptID, userID: "u1", goods: LifeCycle.goodsOf[transaction.productID] ?? [],
            grantedAt: now)
    }

    func facts(of original: String, at now: Date) -> ChainFacts {
        let transactions = known.values.map(\.facts)
        let purchases = known.values.filter { $0.facts.originalID == original }
            .map { ChainFacts.Purchase(transaction: $0.facts, grant: $0.grant, revocations: $0.entries) }
            .sorted {
                ($0.transaction.purchasedAt, $0.transaction.id) < ($1.transaction.purchasedAt, $1.transaction.id)
            }
        let chain = chains[original] ?? Chain()
        var facts = ChainFacts(
            appID: "game", environment: Transaction.production, originalID: original, purchases: purchases,
            renewal: renewals[original], told: chain.told, lapseSeenAt: chain.lapseSeenAt, steps: chain.steps, now: now)
        facts.isContinued = transactions.contains { $0.previousOriginalID == original }
        return facts
    }

    private mutating func followUp(_ original: String, at now: Date) {
        var mustLook = true
        while mustLook {
            let result = facts(of: original, at: now).followUp(by: SubscriptionPolicy())
            for entry in result.revocations { known[entry.transactionID]?.entries.append(entry) }
            events += result.events
            chains[original] = Chain(
                told: result.told, lapseSeenAt: result.lapseSeenAt, steps: result.steps, dueAt: result.dueAt)
            let again = facts(of: original, at: now).followUp(by: SubscriptionPolicy())
            if !again.revocations.isEmpty || !again.events.isEmpty || again.told != result.told
                || again.lapseSeenAt != result.lapseSeenAt || again.dueAt != result.dueAt
            {
                repetitions += 1
            }
            let granted = known.values.count { $0.grant != nil }
            for id in result.rejudged { judge(id, at: now) }
            mustLook = known.values.count { $0.grant != nil } > granted
        }
    }

    /// What the user holds, by item.
    var goods: [String: Int] {
        var goods: [String: Int] = [:]
        for purchase in known.values {
            for given in purchase.grant?.goods ?? [] { goods[given.item, default: 0] += given.amount }
            for entry in purchase.entries {
                for taken in entry.goods {
                    goods[taken.item, default: 0] += entry.kind == .revoked ? -taken.amount : taken.amount
                }
            }
        }
        return goods.filter { $0.value != 0 }
    }

    /// Everything that may decide what follows, but for the numbers of events.
    var key: String {
        let purchases = known.sorted { $0.key < $1.key }.map { id, purchase in
            let entries = purchase.entries.map { "\($0.kind.rawValue)\($0.percentage)\($0.reason)\($0.takesBack)" }
            return "\(id):\(purchase.facts.signedAt?.timeIntervalSince1970 ?? 0):\(purchase.grant != nil):\(entries)"
        }
        let told = chains.sorted { $0.key < $1.key }.map { id, chain in
            "\(id):\(chain.told.map { "\($0)" } ?? ""):\(chain.lapseSeenAt != nil)"
        }
        return "\(purchases)|\(told)|\(keys.sorted())"
    }
}
