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
        if let renewal = line.renewal { renewals[renewal.originalTransactionId] = renewal.renewal }
        if let filing = line.filing { add(filing) }
        if let notification = line.notification, notifications.count < Self.notificationsMax {
            notificationPositions[notification.notificationUUID] = notifications.count
            notifications.append(notification)
        }
        if let attempt = line.attempt, let position = notificationPositions[attempt.notificationUUID] {
            notifications[position].sendAttempts.append(attempt.attempt)
        }
        if let settings = line.settings { self.settings = settings }
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
    }

    private mutating func change(_ purchase: Purchase) {
        guard let position = positions[purchase.transactionId] else { return }
        if !purchase.isSameToApple(as: purchases[position]) {
            modificationCount += 1
            modifications[position] = modificationCount
        }
        purchases[position] = purchase
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
        guard !periods.isEmpty else { return nil }
        return Subscription(periods: periods, renewal: renewals[originalTransactionId] ?? Renewal())
    }

    /// The purchase that a member already has of the subscription that another customer pays.
    func share(of originalTransactionId: String, with member: Account) -> Purchase? {
        positions(of: member).lazy.map { purchases[$0] }.first { share in
            share.familyOf.flatMap { positions[$0] }
                .map { purchases[$0].originalTransactionId == originalTransactionId } ?? false
        }
    }

    func notification(_ uuid: String) -> HeldNotification? { notificationPositions[uuid].map { notifications[$0] } }
}
