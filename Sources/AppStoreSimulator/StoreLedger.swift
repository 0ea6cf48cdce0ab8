import Foundation
import Synchronization

/// Everything that ever happened in the store: the truth that a test compares a system with.
///
/// Bounded by `purchasesMax`. With a state directory the ledger appends every change to `ledger.jsonl` before the
/// change is visible, and reads the file at the next start. The ledger itself decides the changes of the control API;
/// Apple's endpoints decide theirs and write them by ``submit(_:)``.
final class StoreLedger: Sendable {
    /// How many transaction numbers are reserved on disk at a time; a crash loses at most so many.
    static let blockSize = 1000
    /// How many apps may be registered.
    static let appsMax = 1000
    /// How many customers may be registered.
    static let customersMax = 100_000

    /// The ledger in memory and the transaction numbers that are reserved.
    struct State {
        var store = LedgerState()
        var free: Range<Int>
    }

    let clock = StoreClock()
    let notificationFaults: NotificationFaults
    /// Where notifications go that have no other URL; nil: nowhere.
    let notificationURL: String?
    let state: Mutex<State>
    private let prefix: String
    private let directory: StateDirectory?
    private let file: LedgerFile?
    private let purchasesMax: Int

    init(
        prefix: String,
        directory: StateDirectory?,
        purchasesMax: Int,
        notificationURL: String?,
        seed: UInt64
    ) throws(SimulatorError) {
        self.prefix = prefix
        self.directory = directory
        self.purchasesMax = purchasesMax
        self.notificationURL = notificationURL
        notificationFaults = NotificationFaults(seed: seed)
        var state = State(free: directory == nil ? 1..<Int.max : 0..<0)
        let decoder = JSONDecoder()
        for data in try directory?.ledgerLines() ?? [] {
            // A line torn by a crash is not a sale: no caller was told of it.
            guard let line = try? decoder.decode(LedgerLine.self, from: data) else { continue }
            state.store.apply(line)
        }
        file = try directory?.openLedger()
        clock.set(offsetMilliseconds: state.store.clockOffset)
        self.state = Mutex(state)
    }

    // MARK: Selling

    /// Sells `count` purchases, all in one write.
    ///
    /// - Throws: 503 when the ledger is full or the disk fails; then nothing was sold.
    func sell(
        _ request: SaleRequest,
        count: Int
    ) throws(ControlError) -> [(purchase: Purchase, family: [Purchase])] {
        try request.validate()
        return try state.withLock { state throws(ControlError) in
            catchUp(&state)
            for id in request.receiptOf ?? [] where state.store.positions[id] == nil {
                throw ControlError(status: 404, field: "receiptOf", "no such purchase: \(id)")
            }
            return try sell(request, count: count, now: clock.now, &state)
        }
    }

    /// As the function of the same name, on the locked store. `event`: the type and subtype of the notification, where
    /// the caller knows it.
    func sell(
        _ request: SaleRequest,
        count: Int = 1,
        now: Int64,
        event: (type: NotificationType, subtype: String?)? = nil,
        _ state: inout State
    ) throws(ControlError) -> [(purchase: Purchase, family: [Purchase])] {
        let total = count * (1 + (request.family?.count ?? 0))
        guard state.store.purchases.count + total <= purchasesMax else {
            throw ControlError(status: 503, "the ledger is full: \(purchasesMax) purchases")
        }
        let app = state.store.apps[request.app]?.bundleId ?? request.app
        let request = inheriting(request, app: app, state.store)
        var fresh: [Account: String] = [:]
        var lines: [LedgerLine] = []
        lines.reserveCapacity(total)
        let isHeard = state.store.target(app, request.environment ?? .production, fallback: notificationURL) != nil
        var events: [StoreEvent] = []
        var sold: [(purchase: Purchase, family: [Purchase])] = []
        sold.reserveCapacity(count)
        for _ in 0..<count {
            let purchase = try make(request, app: app, now: now, &fresh, &state)
            lines.append(LedgerLine(sold: purchase))
            var family: [Purchase] = []
            for member in request.family ?? [] {
                let key = Account(app: app, environment: purchase.environment, customer: member)
                let original = request.originalTransactionId
                    .flatMap { state.store.share(of: $0, with: key) }
                let share = request.share(of: purchase, with: member, original: original)
                family.append(
                    try make(share, app: app, now: now, familyOf: purchase.transactionId, &fresh, &state))
            }
            lines += family.map { LedgerLine(sold: $0) }
            lines += begun(purchase, request, state.store)
            sold.append((purchase, family))
            for purchase in isHeard ? [purchase] + family : [] {
                guard let event = event ?? saleEvent(purchase, request, state.store) else { continue }
                events.append(StoreEvent(event.type, event.subtype, purchase.transactionId))
            }
        }
        try commit(lines, &state)
        // A life that began in the past is told from its beginning.
        let began = request.period == nil ? now : min(now, request.purchaseDate ?? now)
        try announce(events, at: began, &state)
        return sold
    }

    /// Adds to a sale the period of its life, and to a renewal the values of its chain's first purchase: account, first
    /// date, and the account token that the app's backend has set since.
    private func inheriting(_ request: SaleRequest, app: String, _ store: borrowing LedgerState) -> SaleRequest {
        var request = request
        if request.type == .autoRenewable, request.period == nil {
            let life = store.lives[request.originalTransactionId ?? ""]
            request.period = life?.period ?? store.settings.subscriptionPeriod
        }
        guard let original = request.originalTransactionId, let first = store.first(original), first.app == app,
            first.environment == request.environment ?? .production
        else { return request }
        request.customer = request.customer ?? first.account
        request.originalPurchaseDate = request.originalPurchaseDate ?? first.originalPurchaseDate
        request.appAccountToken = request.appAccountToken ?? store.tokens[original]
        return request
    }

    /// Makes one purchase under new ids. `fresh`: the app transactions that this sale has opened so far.
    func make(
        _ request: SaleRequest,
        app: String,
        now: Int64,
        familyOf: String? = nil,
        _ fresh: inout [Account: String],
        _ state: inout State
    ) throws(ControlError) -> Purchase {
        let id = try nextId(&state)
        let lineItem = request.type == .autoRenewable ? try nextId(&state) : ""
        var purchase = request.purchase(
            transactionId: id, lineItemId: lineItem, app: app, now: now,
            propagationMilliseconds: state.store.settings.propagationMilliseconds, familyOf: familyOf)
        // An account made for this purchase needs no memory: nothing else can belong to it yet.
        if purchase.account == id {
            purchase.appTransactionId = state.store.appTransactionId(for: purchase)
        } else if let known = fresh[purchase.key] {
            purchase.appTransactionId = known
        } else {
            let appTransactionId = state.store.appTransactionId(for: purchase)
            fresh[purchase.key] = appTransactionId
            purchase.appTransactionId = appTransactionId
        }
        return purchase
    }

    /// A transaction id that nothing else has or will have.
    func unusedId() throws(ControlError) -> String {
        try state.withLock { state throws(ControlError) in try nextId(&state) }
    }

    /// Prefix and nine digits: 15 digits, the length of Apple's own.
    private func nextId(_ state: inout State) throws(ControlError) -> String {
        if state.free.isEmpty, let directory {
            do {
                state.free = try directory.reserve(Self.blockSize)
            } catch {
                throw ControlError(status: 503, error.description)
            }
        }
        let number = state.free.lowerBound
        state.free = number + 1..<state.free.upperBound
        let digits = String(number)
        return prefix + String(repeating: "0", count: max(0, 9 - digits.utf8.count)) + digits
    }

    // MARK: Changing

    /// Marks a purchase as taken back, and with it the family members' shares of it; a second refund overwrites the
    /// first.
    func refund(_ id: String, _ refund: RefundRequest) throws(ControlError) -> Purchase {
        try refund.validate()
        return try change(id) { purchase, shares, now in
            refund.apply(to: &purchase, now: now)
            if refund.revocationType != "FAMILY_REVOKE" {
                for index in shares.indices { refund.apply(to: &shares[index], now: now, type: "FAMILY_REVOKE") }
            }
            guard refund.notify != false else { return [] }
            let isWithdrawn = ["FAMILY_REVOKE", "ASSIGNMENT_REVOKE"].contains(refund.revocationType)
            var event = StoreEvent(isWithdrawn ? .revoke : .refund, nil, id)
            event.isReplaced = refund.isUpgrade == true
            return [event] + (isWithdrawn ? [] : shares.map { StoreEvent(.revoke, nil, $0.transactionId) })
        }
    }

    /// Takes a refund back (Apple's REFUND_REVERSED): clears the refund's fields, for family members too.
    func reverseRefund(_ id: String) throws(ControlError) -> Purchase {
        try change(id) { purchase, shares, _ in
            guard let date = purchase.revocationDate else { return [] }
            purchase.clearRevocation()
            var events = [StoreEvent(.refundReversed, nil, id)]
            for index in shares.indices where shares[index].revocationDate == date {
                shares[index].clearRevocation()
                events.append(StoreEvent(.refundReversed, nil, shares[index].transactionId))
            }
            return events
        }
    }

    /// Tells the app's backend something about a purchase that changes nothing in the store.
    ///
    /// - Returns: the notifications, none for an app without a URL.
    func tell(_ id: String, _ type: NotificationType, reason: String? = nil) throws(ControlError) -> [HeldNotification]
    {
        try state.withLock { state throws(ControlError) in
            catchUp(&state)
            guard state.store.positions[id] != nil else {
                throw ControlError(status: 404, field: "id", "no such purchase: \(id)")
            }
            let before = state.store.notifications.count
            var event = StoreEvent(type, nil, id)
            event.reason = reason
            try announce([event], at: clock.now, &state)
            return Array(state.store.notifications.dropFirst(before))
        }
    }

    /// Edits a purchase, and the family members' shares of it; `edit` returns what Apple tells about it.
    private func change(
        _ id: String,
        _ edit: (inout Purchase, _ shares: inout [Purchase], _ now: Int64) -> [StoreEvent]
    ) throws(ControlError) -> Purchase {
        try state.withLock { state throws(ControlError) in
            catchUp(&state)
            guard let position = state.store.positions[id] else {
                throw ControlError(status: 404, field: "id", "no such purchase: \(id)")
            }
            var purchase = state.store.purchases[position]
            let before = (state.store.shares[id] ?? []).map { state.store.purchases[$0] }
            var shares = before
            let now = clock.now
            let events = edit(&purchase, &shares, now)
            let changed = zip(before, shares).filter { $0 != $1 }.map { LedgerLine(changed: $1) }
            try commit([LedgerLine(changed: purchase)] + changed, &state)
            try announce(events, at: now, &state)
            return purchase
        }
    }

    func register(_ app: RegisteredApp) throws(ControlError) {
        try state.withLock { state throws(ControlError) in
            guard state.store.apps[app.app] != nil || state.store.apps.count < Self.appsMax else {
                throw ControlError(status: 503, "too many apps: \(Self.appsMax)")
            }
            try commit([LedgerLine(app: app)], &state)
        }
    }

    /// Registers a customer, with an app transaction of its own if it has none.
    func register(_ request: Customer) throws(ControlError) -> Customer {
        try request.validate()
        return try state.withLock { state throws(ControlError) in
            var customer = request
            customer.app = state.store.apps[request.app]?.bundleId ?? request.app
            guard state.store.customers[customer.key] != nil || state.store.customers.count < Self.customersMax else {
                throw ControlError(status: 503, "too many customers: \(Self.customersMax)")
            }
            let known = state.store.appTransactionId(of: customer.key)
            customer.appTransactionId = if let known { known } else { try .some(newAppTransactionId(&state)) }
            try commit([LedgerLine(customer: customer)], &state)
            return customer
        }
    }

    private func newAppTransactionId(_ state: inout State) throws(ControlError) -> String {
        LedgerState.appTransactionId(try nextId(&state))
    }

    /// Replaces the store's data on a subscription's next renewal.
    func set(_ renewal: Renewal, of originalTransactionId: String) throws(ControlError) {
        try renewal.validate()
        try state.withLock { state throws(ControlError) in
            catchUp(&state)
            guard state.store.chains[originalTransactionId] != nil else {
                throw ControlError(status: 404, field: "id", "no such subscription: \(originalTransactionId)")
            }
            let line = LedgerLine.RenewalOf(originalTransactionId: originalTransactionId, renewal: renewal)
            try commit([LedgerLine(renewal: line)], &state)
        }
    }

    func set(_ request: SettingsRequest) throws(ControlError) -> StoreSettings {
        try state.withLock { state throws(ControlError) in
            let settings = try request.applied(to: state.store.settings)
            try commit([LedgerLine(settings: settings)], &state)
            return settings
        }
    }

    /// Holds a notification. `isSent`: it is sent to the app's URL as well, as version 2.
    func hold(
        _ notification: HeldNotification, isSent: Bool
    ) throws(ControlError) -> HeldNotification {
        try state.withLock { state throws(ControlError) in
            guard state.store.notifications.count < LedgerState.notificationsMax else {
                throw ControlError(status: 503, "too many notifications: \(LedgerState.notificationsMax)")
            }
            var notification = notification
            if isSent {
                let (app, environment) = (notification.app, notification.environment)
                guard let target = state.store.target(app, environment, fallback: notificationURL) else {
                    throw ControlError(field: "send", "\(app) has no notificationURL")
                }
                notification.delivery = notificationFaults.apply(
                    to: Delivery(url: target.url, version: 2, due: notification.due(now: clock.now)),
                    of: notification.notificationType,
                    app: app)
            }
            try commit([LedgerLine(notification: notification)], &state)
            return notification
        }
    }

    func add(_ attempt: HeldNotification.Attempt, to uuid: String) throws(ControlError) -> HeldNotification {
        try attempt.validate()
        return try state.withLock { state throws(ControlError) in
            guard let notification = state.store.notification(uuid) else {
                throw ControlError(status: 404, field: "uuid", "no such notification: \(uuid)")
            }
            guard notification.sendAttempts.count < HeldNotification.attemptsMax else {
                throw ControlError(field: "uuid", "has \(HeldNotification.attemptsMax) attempts already")
            }
            try commit([LedgerLine(attempt: .init(notificationUUID: uuid, attempt: attempt))], &state)
            return state.store.notification(uuid) ?? notification
        }
    }

    func record(_ forgery: Forgery) throws(ControlError) {
        try state.withLock { state throws(ControlError) in
            try commit([LedgerLine(forged: forgery)], &state)
        }
    }

    /// Writes the lines, then applies them. No other function changes the store.
    func commit(_ lines: [LedgerLine], _ state: inout State) throws(ControlError) {
        try persist(lines)
        for line in lines { state.store.apply(line) }
    }

    private func persist(_ lines: [LedgerLine]) throws(ControlError) {
        guard let file else { return }
        do {
            let encoder = JSONEncoder()
            var data = Data()
            for line in lines {
                if let purchase = line.sold ?? line.changed {
                    let name = line.sold == nil ? "changed" : "sold"
                    data.append(
                        contentsOf: JSONWriter.object(capacity: 1024) { $0.field(name, object: purchase.writeAll) })
                } else {
                    data.append(try encoder.encode(line))
                }
                data.append(UInt8(ascii: "\n"))
            }
            try file.append(data)
        } catch {
            throw ControlError(status: 503, "cannot write the ledger")
        }
    }

    /// Lets `plan` decide on the store as it is and writes the lines that follow, with nothing in between; for Apple's
    /// endpoints.
    ///
    /// - Throws: `plan`'s refusal; GeneralInternalRetryable when the disk fails.
    func submit<Answer>(
        _ plan: (borrowing LedgerState) throws(AppleError) -> (Answer, [LedgerLine])
    ) throws(AppleError) -> Answer {
        try state.withLock { state throws(AppleError) in
            catchUp(&state)
            let (answer, lines) = try plan(state.store)
            do {
                try commit(lines, &state)
            } catch {
                throw .generalInternalRetryable
            }
            return answer
        }
    }

    // MARK: Reading

    /// Reads the store as it is at one moment, after everything that the clock made due.
    func read<Value, Failure: Error>(
        _ body: (borrowing LedgerState) throws(Failure) -> Value
    ) throws(Failure) -> Value {
        try state.withLock { state throws(Failure) in
            catchUp(&state)
            return try body(state.store)
        }
    }

    var count: Int { read { $0.purchases.count } }

    var forgeries: [Forgery] { read { $0.forgeries } }

    var settings: StoreSettings { read { $0.settings } }

    func purchase(_ id: String) -> Purchase? {
        read { store in store.positions[id].map { store.purchases[$0] } }
    }

    /// At most `limit` purchases from position `start` on, in the order they were sold.
    func purchases(from start: Int = 0, limit: Int = .max) -> [Purchase] {
        read { store in
            guard start < store.purchases.count else { return [] }
            return Array(store.purchases[start...].prefix(limit))
        }
    }

    /// All periods of a subscription, in the order they were sold.
    func chain(_ originalTransactionId: String) -> [Purchase] {
        read { store in
            (store.chains[originalTransactionId] ?? []).map { store.purchases[$0] }
                .filter { $0.type == .autoRenewable }
        }
    }

    /// The bundle id behind a name; an unregistered name is its own bundle id.
    func bundleId(of app: String) -> String {
        read { store in store.apps[app]?.bundleId ?? app }
    }

    func registeredApp(bundleId: String) -> RegisteredApp? {
        read { store in store.apps.values.first { $0.bundleId == bundleId } }
    }

    /// The records of filings with a number above `after`, oldest first, at most `limit`, with their numbers.
    func filings(after: Int = 0, limit: Int = .max) -> [(number: Int, filing: Filing)] {
        read { store in
            let first = store.filingCount - store.filings.count
            let skipped = min(max(0, after - first), store.filings.count)
            return store.filings.enumerated().dropFirst(skipped).prefix(max(0, limit))
                .map { (first + $0.offset + 1, $0.element) }
        }
    }
}
