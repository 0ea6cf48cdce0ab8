/// One line of `ledger.jsonl`: exactly one field is set.
struct LedgerLine: Codable {
    /// A ``Renewal`` with its subscription.
    struct RenewalOf: Codable {
        let originalTransactionId: String
        let renewal: Renewal
    }

    /// A new ``HeldNotification/Attempt`` with its notification.
    struct AttemptOf: Codable {
        let notificationUUID: String
        let attempt: HeldNotification.Attempt
    }

    /// A ``SubscriptionLife`` with its subscription.
    struct LifeOf: Codable {
        let originalTransactionId: String
        let life: SubscriptionLife
    }

    /// The present ``Delivery`` of a notification.
    struct DeliveryOf: Codable {
        let notificationUUID: String
        let delivery: Delivery
    }

    /// How far the store's clock is ahead of the machine's.
    struct Clock: Codable {
        let offsetMilliseconds: Int64
    }

    /// A ``MessagingState`` with its app.
    struct MessagingOf: Codable {
        let app: String
        let environment: StoreEnvironment
        let state: MessagingState
    }

    var sold: Purchase?
    /// A purchase as it is after a refund, after a refund was taken back, with another renewal date, …
    var changed: Purchase?
    var app: RegisteredApp?
    var forged: Forgery?
    var customer: Customer?
    var renewal: RenewalOf?
    var filing: Filing?
    var notification: HeldNotification?
    var attempt: AttemptOf?
    var settings: StoreSettings?
    var life: LifeOf?
    var delivery: DeliveryOf?
    var clock: Clock?
    var messaging: MessagingOf?
}

/// The ledger in memory: the sum of its lines, with an index for each question that Apple's endpoints ask.
///
/// Only ``apply(_:)`` changes it, line by line, whether the line was just written or read back at a start. So both ways
/// give the same store.
struct LedgerState {
    /// How many records of filings memory keeps at least, the newest; all stay in the file.
    static let filingsMax = 100_000
    /// How many mass extensions are remembered, the newest.
    static let massExtensionsMax = 10_000
    /// How many notifications are held.
    static let notificationsMax = 100_000

    private(set) var purchases: [Purchase] = []
    private(set) var positions: [String: Int] = [:]
    /// For each purchase the number of its last modification that Apple shows; the order of a history.
    private(set) var modifications: [Int] = []
    private var modificationCount = 0
    /// Purchases by originalTransactionId in the order of sale: auto-renewables, and purchases that name another
    /// purchase's id.
    private(set) var chains: [String: [Int]] = [:]
    /// Purchases by account. A purchase that has its account to itself by default is found by its id instead.
    private var accounts: [Account: [Int]] = [:]
    /// Purchases by the order id that was chosen for them.
    private var orders: [String: [Int]] = [:]
    /// Purchases of family members by the transactionId they share.
    private(set) var shares: [String: [Int]] = [:]
    private(set) var apps: [String: RegisteredApp] = [:]
    private(set) var bundleIds: Set<String> = []
    private(set) var forgeries: [Forgery] = []
    private(set) var customers: [Account: Customer] = [:]
    private var appTransactions: [String: Account] = [:]
    private(set) var renewals: [String: Renewal] = [:]
    /// Account tokens that renewals inherit, by originalTransactionId.
    private(set) var tokens: [String: String] = [:]
    /// Renewal dates that were moved, by originalTransactionId.
    private(set) var extensions: [String: [Filing]] = [:]
    /// Mass extensions as a whole.
    private(set) var massExtensions: [Filing] = []
    private(set) var filings: [Filing] = []
    /// How many filings there ever were: the number of the last one.
    private(set) var filingCount = 0
    private(set) var notifications: [HeldNotification] = []
    private var notificationPositions: [String: Int] = [:]
    private(set) var settings = StoreSettings()
    /// The lives of the subscriptions that go on by themselves, by originalTransactionId.
    private(set) var lives: [String: SubscriptionLife] = [:]
    /// Their next steps.
    private(set) var dues = DueList()
    /// The positions of the notifications with an attempt to come.
    private(set) var undelivered: Set<Int> = []
    /// The last notification of each lane that was tried.
    private var lastTried: [DeliveryLane: Int] = [:]
    /// The signedDate of the last notification about each chain: the next one is signed later.
    private(set) var lastSigned: [String: Int64] = [:]
    private(set) var clockOffset: Int64 = 0
    private(set) var messaging: [DeliveryLane: MessagingState] = [:]

    mutating func apply(_ line: LedgerLine) {
        if let sold = line.sold { add(sold) }
        if let changed = line.changed { change(changed) }
        if let app = line.app {
            apps[app.app] = app
            bundleIds.insert(app.bundleId)
        }
        if let forged = line.forged, forgeries.count < Forgery.forgeriesMax { forgeries.append(forged) }
        if let customer = line.customer {
            customers[customer.key] = customer
            if let id = customer.appTransactionId { appTransactions[id] = customer.key }
        }
        if let renewal = line.renewal {
            renewals[renewal.originalTransactionId] = renewal.renewal
            refresh(renewal.originalTransactionId)
        }
        if let life = line.life {
            lives[life.originalTransactionId] = life.life
            refresh(life.originalTransactionId)
        }
        if let filing = line.filing { add(filing) }
        if let notification = line.notification, notifications.count < Self.notificationsMax {
            let position = notifications.count
            notificationPositions[notification.notificationUUID] = position
            notifications.append(notification)
            if notification.delivery?.due != nil { undelivered.insert(position) }
            if let chain = notification.originalTransactionId { lastSigned[chain] = notification.signedDate }
        }
        if let attempt = line.attempt, let position = notificationPositions[attempt.notificationUUID] {
            notifications[position].sendAttempts.append(attempt.attempt)
            let lane = notifications[position].lane
            lastTried[lane] = max(lastTried[lane] ?? 0, position)
        }
        if let delivery = line.delivery, let position = notificationPositions[delivery.notificationUUID] {
            notifications[position].delivery = delivery.delivery
            if delivery.delivery.due == nil { undelivered.remove(position) } else { undelivered.insert(position) }
        }
        if let settings = line.settings { self.settings = settings }
        if let messaging = line.messaging {
            self.messaging[DeliveryLane(app: messaging.app, environment: messaging.environment)] = messaging.state
        }
        if let clock = line.clock { clockOffset = max(clockOffset, clock.offsetMilliseconds) }
    }

    /// Finds the next step of a living subscription anew.
    private mutating func refresh(_ originalTransactionId: String) {
        guard let life = lives[originalTransactionId] else { return }
        let next = subscription(originalTransactionId, now: .max)?.next(life)
        dues.set(originalTransactionId, next?.at)
    }

    private mutating func add(_ purchase: Purchase) {
        guard positions[purchase.transactionId] == nil else { return }
        let position = purchases.count
        positions[purchase.transactionId] = position
        if purchase.type == .autoRenewable || purchase.originalTransactionId != purchase.transactionId {
            chains[purchase.originalTransactionId, default: []].append(position)
        }
        if purchase.account != purchase.transactionId { accounts[purchase.key, default: []].append(position) }
        if let orderId = purchase.orderId { orders[orderId, default: []].append(position) }
        if let familyOf = purchase.familyOf { shares[familyOf, default: []].append(position) }
        if !bundleIds.contains(purchase.app) { bundleIds.insert(purchase.app) }
        modificationCount += 1
        modifications.append(modificationCount)
        purchases.append(purchase)
        refresh(purchase.originalTransactionId)
    }

    private mutating func change(_ purchase: Purchase) {
        guard let position = positions[purchase.transactionId] else { return }
        if !purchase.isSameToApple(as: purchases[position]) {
            modificationCount += 1
            modifications[position] = modificationCount
        }
        purchases[position] = purchase
        refresh(purchase.originalTransactionId)
    }

    private mutating func add(_ filing: Filing) {
        filingCount += 1
        if filings.count >= 2 * Self.filingsMax { filings.removeFirst(Self.filingsMax) }
        filings.append(filing)
        switch filing.kind {
        case .appAccountToken:
            if let id = filing.transactionId { tokens[id] = filing.appAccountToken }
        case .extendSubscription, .massExtend:
            if let id = filing.transactionId {
                extensions[id, default: []].append(filing)
            } else {
                if massExtensions.count >= Self.massExtensionsMax { massExtensions.removeFirst() }
                massExtensions.append(filing)
            }
        case .finish, .consumption, .consumptionV1: break
        }
    }

    // MARK: Accounts

    /// The id of a customer's download of the app. It is made from the transaction id of the first purchase, so that
    /// the way back needs no index.
    func appTransactionId(for purchase: Purchase) -> String {
        let isAlone = purchase.account == purchase.transactionId && customers.isEmpty
        return (isAlone ? nil : appTransactionId(of: purchase.key)) ?? Self.appTransactionId(purchase.transactionId)
    }

    /// 18 digits, like Apple's.
    static func appTransactionId(_ number: String) -> String { "700" + number }

    func appTransactionId(of account: Account) -> String? {
        customers[account]?.appTransactionId ?? positions(of: account).first.flatMap { purchases[$0].appTransactionId }
    }

    func account(appTransactionId id: String) -> Account? {
        if let account = appTransactions[id] { return account }
        guard id.hasPrefix("700"), let position = positions[String(id.dropFirst(3))],
            purchases[position].appTransactionId == id
        else { return nil }
        return purchases[position].key
    }

    /// The purchases of an account, in the order they were sold.
    func positions(of account: Account) -> [Int] {
        let others = accounts[account] ?? []
        guard let own = positions[account.customer], purchases[own].account == purchases[own].transactionId,
            purchases[own].key == account
        else { return others }
        return [own] + others
    }

    // MARK: Purchases

    /// The purchases under an order id.
    func order(_ id: String) -> [Purchase] {
        if let chosen = orders[id] { return chosen.map { purchases[$0] } }
        guard let position = OrderId.transactionId(id).flatMap({ positions[$0] }),
            purchases[position].order == id
        else { return [] }
        return [purchases[position]]
    }

    /// The first purchase of a chain, among those sold here.
    func first(_ originalTransactionId: String) -> Purchase? {
        (positions[originalTransactionId] ?? chains[originalTransactionId]?.first).map { purchases[$0] }
    }

    /// A subscription as the App Store Server API knows it at `now`; nil: none.
    func subscription(_ originalTransactionId: String, now: Int64) -> Subscription? {
        let periods = (chains[originalTransactionId] ?? []).map { purchases[$0] }
            .filter { $0.type == .autoRenewable && $0.isVisible(now: now) }
        guard let last = periods.last else { return nil }
        // A member's renewal is that of the purchaser.
        let payer = last.familyOf.flatMap { positions[$0] }.map { purchases[$0].originalTransactionId }
        let renewal = renewals[originalTransactionId] ?? payer.flatMap { renewals[$0] } ?? Renewal()
        return Subscription(periods: periods, renewal: renewal)
    }

    /// The purchase that a member already has of the subscription that another customer pays.
    func share(of originalTransactionId: String, with member: Account) -> Purchase? {
        positions(of: member).lazy.map { purchases[$0] }.first { share in
            share.familyOf.flatMap { positions[$0] }
                .map { purchases[$0].originalTransactionId == originalTransactionId } ?? false
        }
    }

    // MARK: Notifications

    /// Where the notifications of an app go, and their version; nil: nowhere.
    func target(_ app: String, _ environment: StoreEnvironment, fallback: String?) -> (url: String, version: Int)? {
        let registered = apps.values.first { $0.bundleId == app }
        guard let url = registered?.notificationURL(environment) ?? settings.notificationURL ?? fallback else {
            return nil
        }
        return (url, registered?.notificationVersion(environment) ?? settings.notificationVersion ?? 2)
    }

    /// The grace period of an app.
    func gracePeriod(_ app: String) -> GracePeriod? { apps.values.first { $0.bundleId == app }?.gracePeriod }

    /// The notifications to send now, by lane, in the order of sending.
    func due(now: Int64) -> [DeliveryLane: [HeldNotification]] {
        var first: [DeliveryLane: [Int]] = [:]
        var last: [DeliveryLane: [Int]] = [:]
        for position in undelivered {
            let notification = notifications[position]
            guard let delivery = notification.delivery, let due = delivery.due, due <= now else { continue }
            if delivery.waitsForLater != true {
                first[notification.lane, default: []].append(position)
            } else if lastTried[notification.lane] ?? 0 > position || due + Delivery.patience <= now {
                last[notification.lane, default: []].append(position)
            }
        }
        var lanes: [DeliveryLane: [HeldNotification]] = [:]
        for (lane, positions) in first {
            lanes[lane] = positions.sorted { dueOrder($0) < dueOrder($1) }.map { notifications[$0] }
        }
        for (lane, positions) in last {
            lanes[lane, default: []] += positions.sorted(by: >).map { notifications[$0] }
        }
        return lanes
    }

    private func dueOrder(_ position: Int) -> (Int64, Int) {
        (notifications[position].delivery?.due ?? 0, position)
    }

    func notification(_ uuid: String) -> HeldNotification? { notificationPositions[uuid].map { notifications[$0] } }
}
