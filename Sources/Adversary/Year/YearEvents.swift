import AppStoreSimulator
import Foundation
import Ledger
import Purchases

/// The events that were told, compared with the App Store's books and with the ledger.
///
/// A state of a subscription that came and went between two looks has no event, and neither has a refund that was
/// reversed before anybody looked. So the books do not say how many such events there must be. They say the last one,
/// and that each one has its purchase.
extension YearAudit {
    // MARK: Goods

    /// What the events say of one purchase's goods.
    private struct ToldGoods: Equatable {
        var grants = 0
        var given = 0
        var quantity = 0
        var revoked = 0
        var reinstated = 0
        /// The goods of `purchase.revoked`, less those of `purchase.reinstated`.
        var takenBack = 0
    }

    /// Compares `purchase.granted`, `purchase.revoked` and `purchase.reinstated` of each purchase, to the unit.
    mutating func compareGoods() async throws {
        var told: [String: ToldGoods] = [:]
        let (granted, revoked, reinstated) = (
            EventType.purchaseGranted.rawValue, EventType.purchaseRevoked.rawValue,
            EventType.purchaseReinstated.rawValue
        )
        for row in try await rows(
            """
            select concat_ws('|', transaction_id,
              count(*) filter (where type = '\(granted)'),
              coalesce(sum(amount) filter (where type = '\(granted)'), 0),
              coalesce(max((body ->> 'quantity')::int8) filter (where type = '\(granted)'), 0),
              count(*) filter (where type = '\(revoked)'), count(*) filter (where type = '\(reinstated)'),
              coalesce(sum(case type when '\(revoked)' then amount when '\(reinstated)' then -amount
                else 0 end), 0))
            from events cross join lateral (
              select coalesce(sum((part ->> 'amount')::int8), 0) as amount
              from jsonb_array_elements(body -> 'goods') part) g
            where type in ('\(granted)', '\(revoked)', '\(reinstated)') group by transaction_id
            """, columns: 7)
        {
            let numbers = row.dropFirst().map { Int($0) ?? -1 }
            told[row[0]] = ToldGoods(
                grants: numbers[0], given: numbers[1], quantity: numbers[2], revoked: numbers[3],
                reinstated: numbers[4], takenBack: numbers[5])
        }
        for purchase in purchases where !books.isErased(purchase.account) {
            let events = told[purchase.transactionId] ?? ToldGoods()
            result.events += events.grants + events.revoked + events.reinstated
            compare(events, purchase)
        }
    }

    private mutating func compare(_ events: ToldGoods, _ purchase: Purchase) {
        guard let grant = grants[purchase.transactionId] else {
            if events != ToldGoods() { differ(purchase, "has events of goods, and is not granted") }
            return
        }
        if (events.grants, events.given, events.quantity) != (1, Self.amount(of: purchase), purchase.quantity) {
            differ(purchase, "was told \(events.grants) × as granted, \(events.given) for \(events.quantity)")
        }
        if events.takenBack != grant.takenBack {
            differ(purchase, "has events that take back \(events.takenBack), and the ledger \(grant.takenBack)")
        }
        // The number of Apple's reason for moves into a bundle is not known.
        guard !excused.contains(purchase.originalTransactionId), purchase.revocationReason != 2 else { return }
        let last = AppleWord(purchase, signedDate: now)
        let isOnce = purchase.type != .autoRenewable && purchase.familyOf == nil
        let balance = events.revoked - events.reinstated
        let expected: ClosedRange<Int>
        if last.left(of: grant.amount) < grant.amount {
            expected = isOnce ? 1...1 : 1...2
        } else if purchase.revoked || purchase.isUpgraded == true {
            // An end that takes no goods back may be one that nobody told.
            expected = 0...2
        } else {
            // The reversal of an end that took no goods back may be one that nobody told.
            expected = purchase.type == .nonConsumable ? 0...1 : 0...0
        }
        // The customers of a year lose each one-time purchase once at most.
        guard expected.contains(balance), !isOnce || max(events.revoked, events.reinstated) <= 1 else {
            return differ(purchase, "was told \(events.revoked) × as revoked, \(events.reinstated) × as reinstated")
        }
    }

    // MARK: Holds

    /// Compares `purchase.held` with the books, and with the purchases that the ledger holds now.
    mutating func compareHolds() async throws {
        let sold = Dictionary(purchases.map { ($0.transactionId, $0) }, uniquingKeysWith: { first, _ in first })
        var told: Set<String> = []
        for row in try await rows(
            """
            select concat_ws('|', transaction_id, body ->> 'reason', body ->> 'productId', user_id)
            from events where type = '\(EventType.purchaseHeld.rawValue)'
            """, columns: 4)
        {
            result.events += 1
            guard let purchase = sold[row[0]], purchase.productId == row[2] else {
                result.differences.append(
                    .init(customer: nil, transactionID: row[0], what: "is told as held, and was never sold"))
                continue
            }
            if !told.insert("\(row[0]) \(row[1])").inserted { differ(purchase, "was told twice as held \(row[1])") }
            if !books.isErased(purchase.account),
                !owners(of: purchase).union(books.users[purchase.account] ?? []).contains(row[3])
            {
                differ(purchase, "was told to \(row[3]) as held")
            }
        }
        let reasons = Reason.toldToOwner.map { "'\($0.rawValue)'" }.joined(separator: ", ")
        for row in try await rows(
            """
            select concat_ws('|', transaction_id, reason) from outcomes
            where state = 'held' and reason in (\(reasons)) and binding_source is not null
            """, columns: 2)
        {
            guard let purchase = sold[row[0]], !told.contains("\(row[0]) \(row[1])") else { continue }
            differ(purchase, "is held \(row[1]), and its owner was not told")
        }
    }

    // MARK: Subscriptions

    /// Compares the last told event of each chain with the told state, which ``compareStates()`` compares with the
    /// books; and each `subscription.started` and `subscription.renewed` with its period.
    mutating func compareSubscriptions() async throws {
        let periods = purchases.filter { $0.type == .autoRenewable }
        let sold = Dictionary(periods.map { ($0.transactionId, $0) }, uniquingKeysWith: { first, _ in first })
        /// Of each chain: its account, the moments at which a period may end, and whether a period was taken back.
        var accounts: [String: String] = [:]
        var moments: [String: Set<Int64>] = [:]
        var takenBack: Set<String> = []
        for period in periods {
            let chain = period.originalTransactionId
            accounts[chain] = period.account
            moments[chain, default: []].formUnion(
                [period.expiresDate, period.revocationDate, period.purchaseDate].compactMap(\.self))
            if period.revoked { takenBack.insert(chain) }
        }
        var last: [String: (transactionID: String, state: String)] = [:]
        var begun: [String: Int] = [:]
        let states: [EventType] = [
            .subscriptionStarted, .subscriptionRenewed, .subscriptionRecovered, .subscriptionInGrace,
            .subscriptionInRetry,
            .subscriptionExpired, .subscriptionRevoked,
        ]
        for row in try await rows(
            """
            select concat_ws('|', body ->> 'originalTransactionId', transaction_id, type, body ->> 'state',
              body ->> 'productId', (extract(epoch from (body ->> 'until')::timestamptz) * 1000)::int8, user_id)
            from events where type in (\(states.map { "'\($0.rawValue)'" }.joined(separator: ", ")))
            order by xid, id
            """, columns: 7)
        {
            let (chain, id, type) = (row[0], row[1], row[2])
            if let account = accounts[chain], books.isErased(account) { continue }
            result.events += 1
            last[chain] = (id, row[3])
            guard [.subscriptionStarted, .subscriptionRenewed].contains(EventType(rawValue: type)) else { continue }
            guard let period = sold[id], period.originalTransactionId == chain, period.productId == row[4] else {
                result.differences.append(
                    .init(customer: nil, transactionID: id, what: "\(type) tells of a period that was never sold"))
                continue
            }
            if !(Int64(row[5]).flatMap { moments[chain]?.contains($0) } ?? false) {
                differ(period, "was told to run until \(row[5]), and not \(period.expiresDate ?? 0)")
            }
            if !owners(of: period).union(books.users[period.account] ?? []).contains(row[6]) {
                differ(period, "was told to \(row[6])")
            }
            begun[id, default: 0] += 1
            // After a period was taken back, the one before it may be the present one again.
            if begun[id] == 2, !takenBack.contains(chain) { differ(period, "was told twice as begun") }
        }
        compareLast(last, accounts)
    }

    private mutating func compareLast(
        _ last: [String: (transactionID: String, state: String)], _ accounts: [String: String]
    ) {
        for chain in accounts.keys.sorted() {
            guard let account = accounts[chain], !books.isErased(account), grantedChains.contains(chain),
                let state = states[chain], state != "-", last[chain]?.state != state
            else { continue }
            result.differences.append(
                .init(
                    customer: books.numbers[account], transactionID: last[chain]?.transactionID ?? chain,
                    what: "the chain \(chain) is \(state), and was last told as \(last[chain]?.state ?? "nothing")"))
        }
    }
}
