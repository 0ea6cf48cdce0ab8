import AppStoreSimulator
import Foundation
import Purchases

/// Compares the ledger with the App Store's books after a year.
///
/// Of each transaction the ledger must know the store's last word, or else what the nets that were on have brought: a
/// word that no net brought, and that no net had to find, is counted as untold. Purchases of erased users have no owner
/// to compare with, and are left out.
struct YearAudit {
    struct Grant {
        let userID: String
        let quantity: Int
        /// The goods that the grant gave, and those that were taken back since.
        let amount: Int
        let takenBack: Int
        /// Whether the only known user of the Apple customer got it after a day, in which nobody had registered its
        /// token (row 11 of Ownership).
        let isOfCustomer: Bool
    }

    let books: YearBooks
    let world: TestDeployment
    /// The nets that were on and that this version has.
    let on: Set<Net>

    let purchases: [Purchase]
    private let notifications: [HeldNotification]
    let now: Int64
    /// The newest word that a post or a notification brought, by transaction.
    private var told: [String: AppleWord] = [:]
    private var postedBy: [String: Set<String>] = [:]
    /// Words that Apple tried to bring, arrived or not. `isHeld`: the notification history has to tell the word.
    private var announced: [String: [(word: AppleWord, isHeld: Bool)]] = [:]
    var grants: [String: Grant] = [:]
    private var ends: [String: String] = [:]
    private var facts: Set<String> = []
    var states: [String: String] = [:]
    /// The users that have a grant, by account; and the chains that have one.
    private var grantedUsers: [String: Set<String>] = [:]
    var grantedChains: Set<String> = []
    /// Originals whose state or end nobody told.
    var excused: Set<String> = []
    var result = YearReport()

    init(books: YearBooks, world: TestDeployment, on: Set<Net>) {
        self.books = books
        self.world = world
        self.on = on
        purchases = world.store.ledger
        notifications = world.store.notifications
        now = world.store.now
    }

    func report() async throws -> YearReport {
        var audit = self
        audit.readWords()
        try await audit.readLedger()
        for purchase in audit.purchases { audit.compare(purchase) }
        audit.findStrangers()
        try await audit.compareNotifications()
        audit.compareStates()
        try await audit.compareEntitlements()
        try await audit.compareRevocations()
        try await audit.compareGoods()
        try await audit.compareHolds()
        try await audit.compareSubscriptions()
        return audit.result
    }

    // MARK: Reading

    private mutating func readWords() {
        for post in books.posted {
            postedBy[post.transactionID, default: []].insert(post.userID)
            if let word = post.word { hear(word) }
        }
        for notification in notifications {
            guard let word = notification.transaction.flatMap({ AppleWord(json: Data($0.utf8)) }) else { continue }
            announced[word.transactionId, default: []].append((word, isHeld(notification)))
            if isTold(notification) { hear(word) }
        }
    }

    /// Whether the notification history has to tell the notification: no attempt has arrived, and the attempts stand at
    /// Apple as failures for longer than two days, in which the sweep asks many times.
    private func isHeld(_ notification: HeldNotification) -> Bool {
        notification.isFailure && notification.notificationType != "TEST" && on.contains(.notificationHistory)
            && notification.signedDate < now - 2 * 86_400_000
    }

    private func isTold(_ notification: HeldNotification) -> Bool {
        notification.hasArrived || isHeld(notification)
    }

    private mutating func hear(_ word: AppleWord) {
        if let former = told[word.transactionId], former.signedDate > word.signedDate { return }
        told[word.transactionId] = word
    }

    private mutating func readLedger() async throws {
        for row in try await rows(
            """
            select concat_ws('|', g.transaction_id, g.user_id, g.quantity,
              coalesce((select sum((part ->> 'amount')::int8) from jsonb_array_elements(g.goods) part), 0),
              coalesce((select sum(case r.kind when 'revoked' then 1 else -1 end
                * coalesce((select sum((part ->> 'amount')::int8) from jsonb_array_elements(r.goods) part), 0))
                from revocations r where r.transaction_id = g.transaction_id), 0),
              g.binding_source = 'customer' and not exists (
                select from transactions t join user_tokens u on u.app_id = t.app_id and u.token = t.app_account_token
                where t.transaction_id = g.transaction_id and u.registered_at < g.granted_at))
            from grants g
            """, columns: 6)
        {
            grants[row[0]] = Grant(
                userID: row[1], quantity: Int(row[2]) ?? 0, amount: Int(row[3]) ?? 0, takenBack: Int(row[4]) ?? 0,
                isOfCustomer: row[5] == "t")
        }
        for row in try await rows(
            """
            select concat_ws('|', transaction_id, state, coalesce(reason, '-')) from outcomes
            where state <> 'granted' order by decided_at
            """, columns: 3)
        {
            ends[row[0]] = "\(row[1]) \(row[2])"
        }
        facts = Set(try await world.texts("select transaction_id from transactions"))
        for row in try await rows(
            "select concat_ws('|', original_transaction_id, coalesce(state, '-')) from chains", columns: 2)
        {
            states[row[0]] = row[1]
        }
        for purchase in purchases {
            guard let grant = grants[purchase.transactionId] else { continue }
            grantedUsers[purchase.account, default: []].insert(grant.userID)
            grantedChains.insert(purchase.originalTransactionId)
        }
    }

    func rows(_ sql: String, columns: Int) async throws -> [[String]] {
        try await world.texts(sql).map { $0.split(separator: "|", omittingEmptySubsequences: false).map(String.init) }
            .filter { $0.count == columns }
    }

    // MARK: Purchases

    private mutating func compare(_ purchase: Purchase) {
        guard !books.isErased(purchase.account) else {
            result.erased += 1
            return
        }
        result.compared += 1
        let last = AppleWord(purchase, signedDate: now)
        if let grant = grants[purchase.transactionId] {
            result.granted += 1
            compare(grant, purchase, last)
        } else {
            compareUngranted(purchase, last)
        }
    }

    private mutating func compare(_ grant: Grant, _ purchase: Purchase, _ last: AppleWord) {
        var users = owners(of: purchase)
        if grant.isOfCustomer { users.formUnion(books.users[purchase.account] ?? []) }
        if !users.contains(grant.userID) {
            differ(purchase, "granted to \(grant.userID), and not to \(users.sorted().joined(separator: " or "))")
        }
        let amount = Self.amount(of: purchase)
        if (grant.quantity, grant.amount) != (purchase.quantity, amount) {
            differ(purchase, "gave \(grant.amount) for \(grant.quantity), and not \(amount) for \(purchase.quantity)")
        }
        let left = grant.amount - grant.takenBack
        guard left != last.left(of: grant.amount) else { return }
        let newest = told[purchase.transactionId]
        let isAsTold = newest.map { left == $0.left(of: grant.amount) } ?? (grant.takenBack == 0)
        // A question to Apple may have told a later word than the newest post or notification that arrived.
        let later = (announced[purchase.transactionId] ?? []).map(\.word)
            .filter { $0.signedDate > newest?.signedDate ?? 0 }
        guard isAsTold || later.contains(where: { left == $0.left(of: grant.amount) }), excuse(.end, purchase, last)
        else {
            return differ(purchase, "\(left) of \(grant.amount) are left, and not \(last.left(of: grant.amount))")
        }
    }

    private mutating func compareUngranted(_ purchase: Purchase, _ last: AppleWord) {
        switch last.rest {
        case .none, .all(isOwed: false): return
        case .all(isOwed: true), .without: break
        }
        if let word = told[purchase.transactionId] {
            if word.rest == .none, !word.saysTheSame(as: last), excuse(.end, purchase, last) { return }
        } else {
            if excuse(.purchase, purchase, last) { return }
            guard facts.contains(purchase.transactionId) else { return differ(purchase, "is unknown here") }
        }
        let end = ends[purchase.transactionId] ?? "no outcome"
        guard !isOwnerKnown(purchase) else { return differ(purchase, "is not granted: \(end)") }
        result.unclaimed.append(difference(purchase, end))
        // The purchase waits for its owner. One that was taken back in between may still be rejected for that.
        let wasTakenBack = announced[purchase.transactionId]?.contains { $0.word.rest == .none } ?? false
        if told[purchase.transactionId] != nil, !wasTakenBack, end != "held unclaimed", !end.hasPrefix("open ") {
            differ(purchase, "has no known owner, and does not wait for one: \(end)")
        }
    }

    /// The users whose purchase it may be.
    func owners(of purchase: Purchase) -> Set<String> {
        if let user = purchase.appAccountToken.flatMap({ books.tokens[$0] }) { return [user] }
        return Set(books.users[purchase.account] ?? [])
    }

    /// Whether the rules of ownership name the owner of a purchase that somebody told of.
    private func isOwnerKnown(_ purchase: Purchase) -> Bool {
        if purchase.appAccountToken.flatMap({ books.tokens[$0] }) != nil { return true }
        if postedBy[purchase.transactionId] != nil { return true }
        if grantedChains.contains(purchase.originalTransactionId), purchase.type == .autoRenewable { return true }
        return books.users[purchase.account]?.count == 1 && grantedUsers[purchase.account]?.count == 1
    }

    /// The goods of a purchase when it is granted. Sharing gives no goods.
    static func amount(of purchase: Purchase) -> Int {
        guard purchase.familyOf == nil, let product = YearPlan.Product(rawValue: purchase.productId) else { return 0 }
        return product.amount * (purchase.type == .consumable ? purchase.quantity : 1)
    }

    /// Purchases that Apple never sold.
    private mutating func findStrangers() {
        let sold = Set(purchases.map(\.transactionId))
        for id in grants.keys.sorted() where !sold.contains(id) {
            result.differences.append(.init(customer: nil, transactionID: id, what: "is granted, and was never sold"))
        }
    }

    // MARK: What nobody told

    /// Counts what nobody told; false: a net that was on had to find it.
    private mutating func excuse(_ kind: YearReport.Untold, _ purchase: Purchase, _ last: AppleWord) -> Bool {
        let isNewest =
            purchase.type == .autoRenewable
            && world.store.newestPeriod(of: purchase.originalTransactionId)?.transactionId == purchase.transactionId
        let announcing = announced[purchase.transactionId]?.filter { $0.word.saysTheSame(as: last) } ?? []
        let isAnnounced = !announcing.isEmpty
        var able: Set<Net> = [.customer]
        if kind == .purchase { able.insert(.post) }
        if isAnnounced { able.formUnion([.notification, .notificationHistory]) }
        if isNewest { able.insert(.subscription) }
        if purchase.revoked { able.insert(.refund) }
        // The nets that must have found the entry by now: their rota has come round since.
        let days = (now - max(purchase.purchaseDate, purchase.revocationDate ?? 0)) / 86_400_000
        var mustFind: Set<Net> = announcing.contains(where: \.isHeld) ? [.notificationHistory] : []
        // A customer of whom nothing was given is on no rota.
        if grantedUsers[purchase.account] != nil {
            if days > 28 { mustFind.insert(.customer) }
            if days > 9, able.contains(.refund) { mustFind.insert(.refund) }
        }
        // A subscription is asked about when its period is over: this period followed one that was known.
        if kind == .purchase, days > 2, isNewest, purchase.transactionReason == "RENEWAL",
            grantedChains.contains(purchase.originalTransactionId)
        {
            mustFind.insert(.subscription)
        }
        guard mustFind.isDisjoint(with: on) else { return false }
        result.note(kind, by: able)
        excused.insert(purchase.originalTransactionId)
        return true
    }

    mutating func differ(_ purchase: Purchase, _ what: String) {
        result.differences.append(difference(purchase, what))
    }

    private func difference(_ purchase: Purchase, _ what: String) -> YearReport.Difference {
        .init(
            customer: books.numbers[purchase.account], transactionID: purchase.transactionId,
            what: "\(purchase.productId) of \(purchase.account) \(what)")
    }

    // MARK: Notifications

    /// Each notification that failed at Apple is stored, because the notification history told it.
    private mutating func compareNotifications() async throws {
        let held = notifications.filter(isHeld)
        guard !held.isEmpty else { return }
        let stored = Set(try await world.texts("select id::text from notifications"))
        result.failures = held.count
        for notification in held where !stored.contains(notification.notificationUUID.lowercased()) {
            result.differences.append(
                .init(
                    customer: notification.customer.flatMap { books.numbers[$0] },
                    transactionID: notification.originalTransactionId ?? "-",
                    what: "\(notification.notificationType) failed at Apple, and was not read from its history"))
        }
    }

    // MARK: Subscriptions

    private mutating func compareStates() {
        var newestTold: [String: (signedDate: Int64, isTold: Bool)] = [:]
        for notification in notifications {
            guard let chain = notification.originalTransactionId else { continue }
            if let former = newestTold[chain], former.signedDate > notification.signedDate { continue }
            newestTold[chain] = (notification.signedDate, isTold(notification))
        }
        for chain in Set(purchases.filter { $0.type == .autoRenewable }.map(\.originalTransactionId)).sorted() {
            guard grantedChains.contains(chain), let state = states[chain], state != "-",
                let newest = world.store.newestPeriod(of: chain),
                let status = world.store.subscriptionStatus(of: chain),
                !books.isErased(newest.account)
            else { continue }
            // Apple tells a member nothing of the purchaser's bank.
            if newest.familyOf != nil, status == 3 || status == 4 { continue }
            result.subscriptions += 1
            let expected = Self.states(of: status)
            guard !expected.contains(state) else { continue }
            let isTold = newestTold[chain]?.isTold == true && facts.contains(newest.transactionId)
            // Apple is asked about a subscription when its period is over, and not about one that was taken back.
            let isOver = status < 5 && newest.expiresDate ?? .max < now - 3 * 86_400_000
            if isTold || isOver && on.contains(.subscription) {
                differ(newest, "is \(state), and not \(expected.sorted().joined(separator: " or "))")
            } else {
                result.note(.state, by: [.notification, .notificationHistory, .subscription])
            }
            excused.insert(chain)
        }
    }

    /// The states that fit a `status` of Apple's.
    private static func states(of status: Int) -> Set<String> {
        switch status {
        case 1: ["active"]
        case 2: ["expired", "replaced"]
        case 3: ["in_retry"]
        case 4: ["in_grace"]
        default: ["revoked", "replaced"]
        }
    }

    // MARK: Entitlements

    private struct Entitlements: Decodable {
        struct Entry: Decodable {
            struct Source: Decodable { let originalTransactionId: String }
            let type: String
            let isActive: Bool
            let purchases: [Source]
        }
        let entitlements: [Entry]
    }

    /// Asks as an app does, and compares the running subscriptions and the standing non-consumables.
    private mutating func compareEntitlements() async throws {
        var expected: [String: Set<String>] = [:]
        for purchase in purchases {
            let original = purchase.originalTransactionId
            guard let grant = grants[purchase.transactionId], !excused.contains(original),
                !books.isErased(purchase.account)
            else { continue }
            switch purchase.type {
            case .autoRenewable:
                guard world.store.newestPeriod(of: original)?.transactionId == purchase.transactionId,
                    let status = world.store.subscriptionStatus(of: original), status == 1 || status == 4
                else { continue }
                // Apple tells a member nothing of the purchaser's bank.
                if purchase.familyOf != nil, status == 4 {
                    excused.insert(original)
                    continue
                }
            case .nonConsumable:
                // A refund of a part leaves the product.
                guard !purchase.revoked || purchase.revocationType == "REFUND_PRORATED" else { continue }
                if purchase.revoked {
                    excused.insert(original)
                    continue
                }
            case .consumable, .nonRenewing: continue
            }
            expected[grant.userID, default: []].insert(original)
        }
        let users = Set(books.users.filter { !books.isErased($0.key) }.values.flatMap { $0 })
        for user in users.sorted() {
            let path = "/v1/users/\(user)/entitlements?appId=\(PurchaseGenerator.app)"
            let answer = try await world.get(path, key: Access.app)
            guard answer.status == 200 else {
                result.troubles.append("the entitlements of \(user) were answered \(answer.status)")
                continue
            }
            result.users += 1
            let entries = try JSONDecoder().decode(Entitlements.self, from: answer.body).entitlements
            let active = Set(
                entries.filter { $0.isActive && $0.type != "nonRenewing" }
                    .flatMap { $0.purchases.map(\.originalTransactionId) })
            let owed = expected[user] ?? []
            for original in owed.subtracting(active).subtracting(excused).sorted() {
                result.differences.append(
                    .init(customer: nil, transactionID: original, what: "\(user) may not use it, and should"))
            }
            for original in active.subtracting(owed).subtracting(excused).sorted() {
                result.differences.append(
                    .init(customer: nil, transactionID: original, what: "\(user) may use it, and should not"))
            }
        }
    }

    // MARK: Events

    /// Each revocation and each reinstatement was told once. An erased user is told nothing.
    private mutating func compareRevocations() async throws {
        let (revoked, reinstated) = (EventType.purchaseRevoked.rawValue, EventType.purchaseReinstated.rawValue)
        let untold = try await world.texts(
            """
            select format('transaction %s has %s %s and %s events of it', coalesce(r.transaction_id, e.transaction_id),
              coalesce(r.entries, 0), coalesce(r.type, e.type), coalesce(e.events, 0))
            from (select transaction_id, case kind when 'revoked' then '\(revoked)' else '\(reinstated)' end
                as type, count(*) as entries from revocations where user_id !~ '^erased_' group by 1, 2) r
              full join (select transaction_id, type, count(*) as events from events
                where type in ('\(revoked)', '\(reinstated)') and user_id !~ '^erased_' group by 1, 2) e
                on e.transaction_id = r.transaction_id and e.type = r.type
            where r.entries is distinct from e.events limit 20
            """)
        result.troubles += untold
    }
}

extension HeldNotification {
    /// Whether the app's server has taken it.
    fileprivate var hasArrived: Bool { sendAttempts.contains { $0.sendAttemptResult == "SUCCESS" } }
}
