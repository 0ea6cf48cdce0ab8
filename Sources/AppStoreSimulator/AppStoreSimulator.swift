import Hummingbird
package import Logging
import NIOCore
import ServiceLifecycle
import Synchronization

/// A fake App Store over real HTTP, with its own root certificate.
///
/// Sells purchases through a control API, hands out signed transactions and legacy receipts, answers verifyReceipt and
/// the App Store Server API for production (`/production/…`) and sandbox (`/sandbox/…`) on one port, misbehaves by
/// script, and remembers everything that happened. It imports nothing of the system it is used to test.
package final class AppStoreSimulator: Service, Sendable {
    private enum Listener {
        case waiting([Int: CheckedContinuation<Int, any Error>], next: Int)
        case listening(Int)
        case ended
    }

    private let configuration: SimulatorConfiguration
    private let logger: Logger
    private let store: Storefront
    private let listener = Mutex(Listener.waiting([:], next: 0))

    /// Reads the state directory, or makes it. Takes about 10 ms, and 30 µs for each purchase in the ledger.
    package init(_ configuration: SimulatorConfiguration = .init(), logger: Logger) throws(SimulatorError) {
        self.configuration = configuration
        self.logger = logger
        store = try Storefront(configuration)
    }

    /// Serves until graceful shutdown or cancellation; called once. Then calls that a fault keeps waiting end at once.
    ///
    /// - Throws: the listener's error when the address cannot be bound.
    package func run() async throws {
        defer { ended() }
        let router = Router(context: SimulatorContext.self)
        AppleRoutes(store: store).add(to: router)
        ControlRoutes(store: store).add(to: router)
        let application = Application(
            router: router,
            configuration: .init(address: .hostname(configuration.host, port: configuration.port)),
            onServerRunning: { [self] channel in listening(channel.localAddress?.port ?? configuration.port) },
            logger: logger
        )
        async let _: Void = NotificationSender(store: store).run()
        try await application.run()
        // Leaving the function cancels the sender and waits for it.
    }

    /// The port the simulator listens on; waits until it does.
    ///
    /// - Throws: ``SimulatorError/notListening`` when ``run()`` ended, `CancellationError` when the caller's task is
    ///   cancelled.
    package var boundPort: Int {
        get async throws {
            let id = listener.withLock { state -> Int in
                guard case .waiting(let waiters, let next) = state else { return 0 }
                state = .waiting(waiters, next: next + 1)
                return next
            }
            return try await withTaskCancellationHandler {
                try await withCheckedThrowingContinuation { continuation in
                    let outcome = listener.withLock { state -> Result<Int, any Error>? in
                        switch state {
                        case .waiting(var waiters, let next):
                            if Task.isCancelled { return .failure(CancellationError()) }
                            waiters[id] = continuation
                            state = .waiting(waiters, next: next)
                            return nil
                        case .listening(let port): return .success(port)
                        case .ended: return .failure(SimulatorError.notListening)
                        }
                    }
                    if let outcome { continuation.resume(with: outcome) }
                }
            } onCancel: {
                let continuation = listener.withLock { state -> CheckedContinuation<Int, any Error>? in
                    guard case .waiting(var waiters, let next) = state else { return nil }
                    let continuation = waiters.removeValue(forKey: id)
                    state = .waiting(waiters, next: next)
                    return continuation
                }
                continuation?.resume(throwing: CancellationError())
            }
        }
    }

    private func listening(_ port: Int) {
        if configuration.namesResponder {
            do throws(SimulatorError) {
                try store.nameResponder("http://\(configuration.reachableHost):\(port)/ocsp")
            } catch {
                logger.error("certificates name no responder", metadata: ["error": "\(error)"])
            }
        }
        let waiters = listener.withLock { state -> [CheckedContinuation<Int, any Error>] in
            guard case .waiting(let waiters, _) = state else { return [] }
            state = .listening(port)
            return Array(waiters.values)
        }
        for waiter in waiters { waiter.resume(returning: port) }
        logger.info(
            "simulator listening", metadata: [LogKey.port: "\(port)", LogKey.purchases: "\(store.ledger.count)"])
    }

    private func ended() {
        let waiters = listener.withLock { state -> [CheckedContinuation<Int, any Error>] in
            defer { state = .ended }
            guard case .waiting(let waiters, _) = state else { return [] }
            return Array(waiters.values)
        }
        for waiter in waiters { waiter.resume(throwing: SimulatorError.notListening) }
    }

    private enum LogKey {
        static let port = "simulator.port"
        static let purchases = "simulator.purchases"
    }
}

// MARK: - The control API in process

extension AppStoreSimulator {
    /// The trust anchor a verifier must be given, DER.
    package nonisolated var rootCertificateDER: [UInt8] { store.rootCertificateDER }

    /// The credentials that a configuration needs to call this App Store.
    package nonisolated var credentials: Credentials { store.credentials }

    /// Sells `request.count` purchases (default 1). More than 5,000 a second in a release build without receipts.
    package func sell(_ request: SaleRequest) async throws(ControlError) -> [Sale] { try await store.sell(request) }

    /// A signed transaction of the purchase as it is now.
    package func sign(_ transactionId: String, signedDate: Int64? = nil) throws(ControlError) -> String {
        try store.sign(transactionId, signedDate: signedDate)
    }

    /// A legacy receipt over purchases that were sold before.
    package func receipt(_ request: ReceiptRequest) throws(ControlError) -> String { try store.receipt(request) }

    /// Takes a purchase back; transactions signed and receipts verified from now on show that.
    @discardableResult
    package func refund(_ transactionId: String, _ request: RefundRequest = .init()) throws(ControlError) -> Purchase {
        try store.ledger.refund(transactionId, request)
    }

    /// Takes a refund back.
    @discardableResult
    package func reverseRefund(_ transactionId: String) throws(ControlError) -> Purchase {
        try store.ledger.reverseRefund(transactionId)
    }

    /// A signed transaction with one defect.
    package func forge(_ request: ForgeryRequest) throws(ControlError) -> String {
        try store.forge(request).signedTransaction
    }

    /// Names an app, or gives it an app id or a shared secret of its own.
    package func register(_ app: RegisteredApp) throws(ControlError) {
        try app.validate()
        try store.ledger.register(app)
    }

    /// A JWS with the store's own chain over any payload: data that Apple would not write.
    package func sign(_ payload: [UInt8]) throws(SimulatorError) -> String { try store.sign(payload) }

    /// Adds a fault and returns its id.
    @discardableResult
    package func fault(_ request: FaultRequest) throws(ControlError) -> Int { try store.faults.add(request) }

    /// Removes all faults.
    package func clearFaults() { _ = store.faults.removeAll() }

    /// Registers a customer and returns it with its app transaction id.
    @discardableResult
    package func register(_ customer: Customer) throws(ControlError) -> Customer { try store.ledger.register(customer) }

    /// Replaces the store's data on a subscription's next renewal.
    package func set(_ renewal: Renewal, of originalTransactionId: String) throws(ControlError) {
        try store.ledger.set(renewal, of: originalTransactionId)
    }

    /// Changes the settings of the store that the request names; returns all of them.
    @discardableResult
    package func set(_ settings: SettingsRequest) throws(ControlError) -> StoreSettings {
        try store.ledger.set(settings)
    }

    /// Changes the settings of the OCSP responder that the request names; returns all of them.
    @discardableResult
    package func set(_ request: ResponderRequest) throws(ControlError) -> ResponderSettings {
        try store.responder.set(request)
    }

    /// How often clients asked the responder about the leaf and about the intermediate.
    package var responderAsked: (leaf: Int, intermediate: Int) {
        let asked = store.responder.asked
        return (asked[.leaf] ?? 0, asked[.intermediate] ?? 0)
    }

    /// The `status` of a subscription (AppleFacts 3.3), 1 to 5; nil: there is none.
    package func subscriptionStatus(of originalTransactionId: String) -> Int? {
        let now = store.clock.now
        return store.ledger.read { $0.subscription(originalTransactionId, now: now)?.state(now: now).rawValue }
    }

    /// The newest period of a subscription; nil: there is none.
    package func newestPeriod(of originalTransactionId: String) -> Purchase? {
        store.ledger.read { $0.subscription(originalTransactionId, now: .max)?.newest }
    }

    /// The chain that continues this one after a move into a bundle or out of it; nil: there is none.
    package func successor(of originalTransactionId: String) -> String? {
        store.ledger.read { store in
            store.purchases.last { $0.previousOriginalTransactionId == originalTransactionId && $0.familyOf == nil }?
                .originalTransactionId
        }
    }

    /// The store's time, UNIX milliseconds.
    package var now: Int64 { store.clock.now }

    /// Moves the store's clock, lets everything happen that is due by then, and returns the store's time.
    @discardableResult
    package func advance(_ request: ClockRequest) throws(ControlError) -> Int64 { try store.advance(request) }

    /// Lets something happen to a living subscription, and returns the notifications about it.
    @discardableResult
    package func change(
        _ request: SubscriptionRequest, of originalTransactionId: String
    ) throws(ControlError) -> [HeldNotification] {
        try store.ledger.change(request, of: originalTransactionId)
    }

    /// Lets Apple ask for the consumption of a purchase (CONSUMPTION_REQUEST), and returns the notifications.
    @discardableResult
    package func requestConsumption(
        of transactionId: String, reason: String = "UNINTENDED_PURCHASE"
    ) throws(ControlError) -> [HeldNotification] {
        try store.ledger.tell(transactionId, .consumptionRequest, reason: reason)
    }

    /// Lets Apple decline a refund (REFUND_DECLINED), and returns the notifications.
    @discardableResult
    package func declineRefund(of transactionId: String) throws(ControlError) -> [HeldNotification] {
        try store.ledger.tell(transactionId, .refundDeclined)
    }

    /// Adds a fault of notifications and returns its id.
    @discardableResult
    package func fault(_ request: NotificationFaultRequest) throws(ControlError) -> Int { try store.add(request) }

    /// Removes all faults of notifications.
    package func clearNotificationFaults() { _ = store.ledger.notificationFaults.removeAll() }

    /// The notifications held and sent so far, oldest first.
    package var notifications: [HeldNotification] { store.ledger.read { $0.notifications } }

    /// Holds a notification for the notification history; returns the notification and its JWS.
    package func hold(
        _ request: NotificationRequest
    ) throws(ControlError) -> (notification: HeldNotification, signedPayload: String) {
        try store.hold(request)
    }

    /// The reports of apps' backends to Apple, oldest first; at least the last 100,000.
    package var filings: [Filing] { store.ledger.filings().map(\.filing) }

    /// Apple's Sales Report of a day in Los Angeles, such as `2026-11-28`.
    package func salesReport(day: String) throws(ControlError) -> String { try store.salesReport(day: day) }

    /// Apple's Financial Report of a fiscal month, such as `2027-02` for the November of 2026.
    package func financialReport(month: String) throws(ControlError) -> String {
        try store.financialReport(month: month)
    }

    /// Everything sold so far, in order.
    package var ledger: [Purchase] { store.ledger.purchases() }

    /// The forgeries made so far (the first 100,000).
    package var forgeries: [Forgery] { store.ledger.forgeries }

    /// The calls seen on Apple's side with a number above `after`, oldest first; the last 100,000 are kept.
    package func calls(after: Int = 0) -> [SimulatorCall] { store.calls.calls(after: after) }

    /// How many calls wait for their answer now, and the most that ever waited at once.
    package var openCalls: (now: Int, most: Int) { store.calls.open }
}
