import Foundation
import Synchronization

/// Everything the store ever sold: the truth that a test compares a system with.
///
/// Bounded by `purchasesMax`. With a state directory every change is appended to `ledger.jsonl` before it is visible,
/// and read back at the next start.
final class Ledger: Sendable {
    /// How many transaction numbers are reserved on disk at a time; at most so many are lost by a crash.
    static let blockSize = 1000
    /// How many apps may be registered.
    static let appsMax = 1000

    /// One line of `ledger.jsonl`: exactly one field is set.
    private struct Line: Codable {
        var sold: Purchase?
        /// A purchase as it is after a refund, or after a refund was taken back.
        var changed: Purchase?
        var app: RegisteredApp?
        var forged: Forgery?
    }

    private struct State {
        var purchases: [Purchase] = []
        var positions: [String: Int] = [:]
        /// Auto-renewables by originalTransactionId, in the order they were sold.
        var chains: [String: [Int]] = [:]
        var apps: [String: RegisteredApp] = [:]
        var forgeries: [Forgery] = []
        var free: Range<Int>

        mutating func add(_ purchase: Purchase) {
            positions[purchase.transactionId] = purchases.count
            if purchase.type == .autoRenewable {
                chains[purchase.originalTransactionId, default: []].append(purchases.count)
            }
            purchases.append(purchase)
        }

        mutating func add(_ forgery: Forgery) {
            if forgeries.count < Forgery.forgeriesMax { forgeries.append(forgery) }
        }
    }

    private let prefix: String
    private let directory: StateDirectory?
    private let file: LedgerFile?
    private let purchasesMax: Int
    private let state: Mutex<State>

    init(prefix: String, directory: StateDirectory?, purchasesMax: Int) throws(SimulatorError) {
        self.prefix = prefix
        self.directory = directory
        self.purchasesMax = purchasesMax
        var state = State(free: directory == nil ? 1..<Int.max : 0..<0)
        let decoder = JSONDecoder()
        for data in try directory?.ledgerLines() ?? [] {
            // A line torn by a crash is not a sale: nobody was told of it.
            guard let line = try? decoder.decode(Line.self, from: data) else { continue }
            if let sold = line.sold, state.positions[sold.transactionId] == nil { state.add(sold) }
            if let changed = line.changed, let position = state.positions[changed.transactionId] {
                state.purchases[position] = changed
            }
            if let app = line.app { state.apps[app.app] = app }
            if let forged = line.forged { state.add(forged) }
        }
        file = try directory?.openLedger()
        self.state = Mutex(state)
    }

    // MARK: Selling

    /// Sells `count` purchases. Several sales are one write.
    ///
    /// - Throws: 503 when the ledger is full or the disk fails; then nothing was sold.
    func sell(_ request: SaleRequest, count: Int, now: Int64) throws(ControlError) -> [Purchase] {
        try request.validate()
        return try state.withLock { state throws(ControlError) in
            guard state.purchases.count + count <= purchasesMax else {
                throw ControlError(status: 503, "the ledger is full: \(purchasesMax) purchases")
            }
            for id in request.receiptOf ?? [] where state.positions[id] == nil {
                throw ControlError(status: 404, field: "receiptOf", "no such purchase: \(id)")
            }
            let app = state.apps[request.app]?.bundleId ?? request.app
            var sold: [Purchase] = []
            sold.reserveCapacity(count)
            for _ in 0..<count {
                let id = try nextId(&state)
                let lineItem = request.type == .autoRenewable ? try nextId(&state) : ""
                sold.append(request.purchase(transactionId: id, lineItemId: lineItem, app: app, now: now))
            }
            try persist(sold.map { Line(sold: $0) })
            for purchase in sold { state.add(purchase) }
            return sold
        }
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

    /// Marks a purchase as taken back; a second refund overwrites the first.
    func refund(_ id: String, _ refund: RefundRequest, now: Int64) throws(ControlError) -> Purchase {
        try refund.validate()
        return try change(id) { purchase in
            purchase.revocationDate = refund.revocationDate ?? now
            purchase.revocationReason = refund.revocationReason ?? 0
            purchase.revocationType = refund.revocationType
            purchase.revocationPercentage = refund.revocationPercentage
        }
    }

    /// Takes a refund back (Apple's REFUND_REVERSED): the fields disappear again.
    func reverseRefund(_ id: String) throws(ControlError) -> Purchase {
        try change(id) { purchase in
            purchase.revocationDate = nil
            purchase.revocationReason = nil
            purchase.revocationType = nil
            purchase.revocationPercentage = nil
        }
    }

    private func change(_ id: String, _ edit: (inout Purchase) -> Void) throws(ControlError) -> Purchase {
        try state.withLock { state throws(ControlError) in
            guard let position = state.positions[id] else {
                throw ControlError(status: 404, field: "id", "no such purchase: \(id)")
            }
            var purchase = state.purchases[position]
            edit(&purchase)
            try persist([Line(changed: purchase)])
            state.purchases[position] = purchase
            return purchase
        }
    }

    func register(_ app: RegisteredApp) throws(ControlError) {
        try state.withLock { state throws(ControlError) in
            guard state.apps[app.app] != nil || state.apps.count < Self.appsMax else {
                throw ControlError(status: 503, "too many apps: \(Self.appsMax)")
            }
            try persist([Line(app: app)])
            state.apps[app.app] = app
        }
    }

    func record(_ forgery: Forgery) throws(ControlError) {
        try state.withLock { state throws(ControlError) in
            try persist([Line(forged: forgery)])
            state.add(forgery)
        }
    }

    private func persist(_ lines: [Line]) throws(ControlError) {
        guard let file else { return }
        do {
            let encoder = JSONEncoder()
            var data = Data()
            for line in lines {
                data.append(try encoder.encode(line))
                data.append(UInt8(ascii: "\n"))
            }
            try file.append(data)
        } catch {
            throw ControlError(status: 503, "cannot write the ledger")
        }
    }

    // MARK: Reading

    var count: Int { state.withLock(\.purchases.count) }

    var forgeries: [Forgery] { state.withLock(\.forgeries) }

    func purchase(_ id: String) -> Purchase? {
        state.withLock { state in state.positions[id].map { state.purchases[$0] } }
    }

    /// At most `limit` purchases from position `start` on, in the order they were sold.
    func purchases(from start: Int = 0, limit: Int = .max) -> [Purchase] {
        state.withLock { state in
            guard start < state.purchases.count else { return [] }
            return Array(state.purchases[start...].prefix(limit))
        }
    }

    /// All periods of a subscription, in the order they were sold.
    func chain(_ originalTransactionId: String) -> [Purchase] {
        state.withLock { state in (state.chains[originalTransactionId] ?? []).map { state.purchases[$0] } }
    }

    /// The bundle id behind a name; an unregistered name is its own bundle id.
    func bundleId(of app: String) -> String {
        state.withLock { state in state.apps[app]?.bundleId ?? app }
    }

    func registeredApp(bundleId: String) -> RegisteredApp? {
        state.withLock { state in state.apps.values.first { $0.bundleId == bundleId } }
    }
}

/// An app known to the store by more than its bundle id: the body of `POST /control/apps`.
package struct RegisteredApp: ControlBody, Codable, Sendable, Equatable {
    /// The name that purchases may use instead of the bundle id.
    package var app: String
    /// Default: `app`.
    package var bundleId: String
    /// `adam_id` of production receipts; default: a number made from the bundle id.
    package var appAppleId: Int64?
    /// The secret verifyReceipt expects for this app; default: the simulator's.
    package var sharedSecret: String?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case app, bundleId, appAppleId, sharedSecret
    }

    package init(app: String, bundleId: String? = nil, appAppleId: Int64? = nil, sharedSecret: String? = nil) {
        self.app = app
        self.bundleId = bundleId ?? app
        self.appAppleId = appAppleId
        self.sharedSecret = sharedSecret
    }

    package init(from decoder: any Decoder) throws {
        let container = try decoder.container(keyedBy: CodingKeys.self)
        app = try container.decode(String.self, forKey: .app)
        bundleId = try container.decodeIfPresent(String.self, forKey: .bundleId) ?? app
        appAppleId = try container.decodeIfPresent(Int64.self, forKey: .appAppleId)
        sharedSecret = try container.decodeIfPresent(String.self, forKey: .sharedSecret)
    }

    func validate() throws(ControlError) {
        try SaleRequest.check(app, "app")
        try SaleRequest.check(bundleId, "bundleId")
        if let sharedSecret { try SaleRequest.check(sharedSecret, "sharedSecret") }
        if let appAppleId, appAppleId < 0 { throw ControlError(field: "appAppleId", "must not be negative") }
    }
}

/// How a purchase is taken back: the body of `POST /control/purchases/{id}/refund`.
package struct RefundRequest: ControlBody, Sendable {
    /// UNIX milliseconds; default now.
    package var revocationDate: Int64?
    /// 0 (default) or 1.
    package var revocationReason: Int?
    /// `REFUND_FULL`, `REFUND_PRORATED`, `FAMILY_REVOKE` or `ASSIGNMENT_REVOKE`; default: left out.
    package var revocationType: String?
    /// Thousandths of a percent, 0 to 100,000; default: left out.
    package var revocationPercentage: Int?

    package enum CodingKeys: String, CodingKey, CaseIterable {
        case revocationDate, revocationReason, revocationType, revocationPercentage
    }

    package init(revocationDate: Int64? = nil, revocationReason: Int? = nil) {
        self.revocationDate = revocationDate
        self.revocationReason = revocationReason
    }

    func validate() throws(ControlError) {
        try SaleRequest.checkTime(revocationDate, "revocationDate")
        if let revocationReason, ![0, 1].contains(revocationReason) {
            throw ControlError(field: "revocationReason", "must be 0 or 1")
        }
        let types = ["REFUND_FULL", "REFUND_PRORATED", "FAMILY_REVOKE", "ASSIGNMENT_REVOKE"]
        if let revocationType, !types.contains(revocationType) {
            throw ControlError(field: "revocationType", "must be one of \(types.joined(separator: ", "))")
        }
        if let revocationPercentage, !(0...100_000).contains(revocationPercentage) {
            throw ControlError(field: "revocationPercentage", "must be 0 to 100000")
        }
    }
}
