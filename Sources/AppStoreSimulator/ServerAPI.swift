import Foundation

/// One call of the App Store Server API as it arrived.
struct AppleCall: Sendable {
    let service: SimulatedService
    let environment: StoreEnvironment
    /// `GET`, `PUT`, …
    var method = "GET"
    /// Retention messaging: the path's pattern after `v1/messaging/`.
    var pattern = ""
    /// The path's last variable part, or its only one.
    var id = ""
    /// The path's variable part before `id`: the product of a mass extension's status.
    var productId = ""
    /// Decoded, in the order of the query.
    var query: [(name: String, value: String)] = []
    var body: [UInt8] = []
    let authorization: String?

    /// The ids that the call log shows.
    var ids: [String] { id.isEmpty ? [] : [String(id.prefix(64))] }

    /// All values of a query parameter.
    func values(_ name: String) -> [String] { query.filter { $0.name == name }.map(\.value) }

    /// The one value of a query parameter that must not be repeated; nil: absent.
    func value(_ name: String, else error: AppleError) throws(AppleError) -> String? {
        let values = values(name)
        guard values.count < 2 else { throw error }
        return values.first
    }
}

/// Answers one authorized call of the App Store Server API (AppleFacts 3.3).
///
/// The endpoints stand beside their subjects: `TransactionAnswers.swift`, `SubscriptionAnswers.swift`,
/// `FilingAnswers.swift`, `NotificationAnswers.swift`. Order of the checks everywhere: shape of the id, body,
/// existence, state. A purchase of another environment or app is "not found".
struct ServerAPI {
    /// Apple's page size of histories.
    static let page = 20

    let ledger: StoreLedger
    let signer: TransactionSigner
    let call: AppleCall
    /// The token's `bid`.
    let app: String
    /// UNIX milliseconds.
    let now: Int64

    var environment: StoreEnvironment { call.environment }

    /// The app's id in the App Store; in the sandbox only an id that was registered.
    var appAppleId: Int64? {
        let registered = ledger.registeredApp(bundleId: app)?.appAppleId
        return environment == .production ? registered ?? Storefront.appAppleId(app) : registered
    }

    func answer() -> AppleAnswer {
        do throws(AppleError) {
            switch call.service {
            case .verifyReceipt: throw .generalInternal
            case .transactionInfo: return try transactionInfo()
            case .history, .historyV1: return try history()
            case .subscriptionStatuses: return try subscriptionStatuses()
            case .orderLookup: return try orderLookup()
            case .refundHistory: return try refundHistory()
            case .refundHistoryV1: return try refundHistoryV1()
            case .extendSubscription: return try extendSubscription()
            case .massExtend: return try massExtend()
            case .massExtendStatus: return try massExtendStatus()
            case .consumption, .consumptionV1: return try consumption()
            case .testNotification: return try testNotification()
            case .testNotificationStatus: return try testNotificationStatus()
            case .notificationHistory: return try notificationHistory()
            case .appAccountToken: return try setAppAccountToken()
            case .appTransaction: return try appTransaction()
            case .finish: return try finish()
            case .messaging: return try messaging()
            }
        } catch {
            return .refused(error, ids: call.ids)
        }
    }

    /// A JSON object as the answer.
    func answer(capacity: Int = 512, _ fill: (inout JSONWriter) -> Void) -> AppleAnswer {
        AppleAnswer(status: 200, body: JSONWriter.object(capacity: capacity, fill), transactionIds: call.ids)
    }

    /// An answer without a body.
    func answer(status: Int) -> AppleAnswer {
        AppleAnswer(status: status, body: [], transactionIds: call.ids)
    }

    func sign(_ payload: [UInt8]) throws(AppleError) -> String {
        do {
            return try signer.sign(payload)
        } catch {
            throw .generalInternal
        }
    }

    func sign(_ purchase: Purchase) throws(AppleError) -> String { try sign(purchase.payload(signedDate: now)) }

    func sign(_ purchases: [Purchase]) throws(AppleError) -> [String] {
        var signed: [String] = []
        for purchase in purchases { signed.append(try sign(purchase)) }
        return signed
    }

    // MARK: Who is asked about

    /// Whether the purchase belongs to this app and environment, and Apple knows it by now.
    func knows(_ purchase: Purchase) -> Bool {
        purchase.environment == environment && purchase.app == app && purchase.isVisible(now: now)
    }

    func checkShape(_ id: String, else error: AppleError = .invalidTransactionId) throws(AppleError) {
        guard SaleRequest.isTransactionId(id) else { throw error }
    }

    /// The purchase with this very transaction id.
    ///
    /// - Throws: InvalidTransactionId, AppTransactionIdNotSupported, or `missing`.
    func purchase(
        _ id: String,
        _ store: borrowing LedgerState,
        else missing: AppleError = .transactionIdNotFound
    ) throws(AppleError) -> Purchase {
        try checkShape(id)
        if let position = store.positions[id] {
            guard knows(store.purchases[position]) else { throw missing }
            return store.purchases[position]
        }
        if store.account(appTransactionId: id) != nil { throw .appTransactionIdNotSupported }
        throw missing
    }

    /// The customer behind a transaction id, an original transaction id, or an app transaction id.
    func account(
        any id: String,
        _ store: borrowing LedgerState,
        else missing: AppleError = .transactionIdNotFound
    ) throws(AppleError) -> Account {
        if let purchase = store.first(id) {
            guard knows(purchase) else { throw missing }
            return purchase.key
        }
        guard let account = store.account(appTransactionId: id), account.app == app,
            account.environment == environment
        else { throw missing }
        return account
    }

    /// The customer behind any of the customer's ids, for the endpoints that check app and account as well. Two rules
    /// are our reading: an app is unknown if it was not registered and nothing was ever sold for it, and an identifier
    /// is invalid if it is no bundle id.
    func checkedAccount(any id: String, _ store: borrowing LedgerState) throws(AppleError) -> Account {
        try checkApp(store)
        let account = try self.account(any: id, store)
        guard store.customers[account]?.account != false else { throw .accountNotFound }
        return account
    }

    func checkApp(_ store: borrowing LedgerState) throws(AppleError) {
        guard
            (1...255).contains(app.utf8.count),
            app.utf8.allSatisfy({
                (0x30...0x39).contains($0) || (0x41...0x5A).contains($0) || (0x61...0x7A).contains($0)
                    || $0 == UInt8(ascii: "-") || $0 == UInt8(ascii: ".")
            })
        else { throw .invalidAppIdentifier }
        guard store.bundleIds.contains(app) else { throw .appNotFound }
    }

    /// A purchase with the number of its last modification.
    typealias Modified = (modification: Int, purchase: Purchase)

    /// The purchases of an account that the API knows by now; the one modified longest ago comes first.
    func purchases(of account: Account, _ store: borrowing LedgerState) -> [Modified] {
        var purchases: [Modified] = []
        for position in store.positions(of: account) where store.purchases[position].isVisible(now: now) {
            purchases.append((store.modifications[position], store.purchases[position]))
        }
        return purchases.sorted { $0.modification < $1.modification }
    }
}
