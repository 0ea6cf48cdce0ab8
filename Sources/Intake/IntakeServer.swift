import HTTPTypes
import Hummingbird
package import Ledger
package import Logging
import NIOCore
package import Postgres
package import Service
import ServiceLifecycle
package import Settings
package import WorkQueue

/// The HTTP server of ingest: receipts, Apple's notifications, orders, events, timelines and lists of purchases.
/// Health and metrics too, where they have no port of their own.
///
/// One `run()` owns everything that lives as long as the listener. The caller puts the server last in the service
/// group, so that it hears of a shutdown first. Then readiness turns 503 at once, the listener stays open for the drain
/// delay while answers carry `Connection: close`, and at last the server takes no more connections and finishes the
/// requests under way.
package struct IntakeServer: Service {
    /// The server cuts requests that still run this long after the listener closed.
    private static let drainDeadline: Duration = .seconds(20)

    private let configuration: ConfigurationHolder
    private let settings: Settings
    private let health: Health
    private let operations: OperationsRoutes
    private let logger: Logger
    private let security: SecurityLog
    private let requestLimit: Duration
    private let longPoll: LongPoll
    private let clock: RequestClock
    private let connections: ConnectionLimit
    private let orderPoll: LongPoll
    private let receipts: ReceiptRoutes
    private let orders: OrderRoutes
    private let tokens: TokenRoutes
    private let installations: InstallationRoutes
    private let merges: MergeRoutes
    private let consents: ConsentRoutes
    private let consumption: ConsumptionRoutes
    private let payments: PaymentRoutes
    private let reports: ReportRoutes
    private let products: ProductRoutes
    private let events: EventRoutes
    private let feedGroups: FeedGroupRoutes
    private let handOuts: HandOutRoutes
    private let replays: ReplayRoutes
    private let digests: DigestRoutes
    private let explain: ExplainRoutes
    private let purchases: PurchaseRoutes
    private let entitlements: EntitlementRoutes
    private let waiting: WaitingRoutes
    private let notifications: NotificationRoutes
    package let address = ListeningAddress()

    /// - Parameters:
    ///   - lists: the database for lists; its maker closes it.
    ///   - connectionsMax: further connections wait in the backlog.
    ///   - unknownAppsPerDay: how many notifications about unknown apps are stored in a day.
    package init(
        ledger: Ledger, lists: Database, workQueue: WorkQueue, configuration: ConfigurationHolder,
        catalogues: CatalogueRefresher,
        settings: Settings, operations: OperationsRoutes, logger: Logger, security: SecurityLog,
        connectionsMax: Int = HTTPLimits.connectionsMax,
        requestLimit: Duration = RequestClock.limit,
        unknownAppsPerDay: Int = NotificationRoutes.unknownAppsPerDay
    ) {
        self.configuration = configuration
        self.settings = settings
        self.operations = operations
        self.logger = logger
        self.security = security
        self.requestLimit = requestLimit
        health = operations.health
        longPoll = LongPoll(ledger: ledger)
        orderPoll = LongPoll(ledger: ledger, finished: Statements.boundOrders, name: "orders")
        clock = RequestClock(limit: requestLimit)
        connections = ConnectionLimit(connectionsMax, security: security)
        let authenticator = Authenticator(configuration: configuration)
        let lists = ListReader(limiter: ListLimiter(connections: connections), database: lists)
        let bodies = BodyReader(bytesMax: settings.bodyBytesMax, clock: clock)
        receipts = ReceiptRoutes(
            ledger: ledger, workQueue: workQueue, configuration: configuration, authenticator: authenticator,
            longPoll: longPoll,
            bodies: bodies, logger: logger, security: security)
        orders = OrderRoutes(
            ledger: ledger, configuration: configuration, catalogues: catalogues, authenticator: authenticator,
            longPoll: orderPoll,
            bodies: bodies, lists: lists)
        tokens = TokenRoutes(ledger: ledger, configuration: configuration, authenticator: authenticator)
        installations = InstallationRoutes(
            ledger: ledger, configuration: configuration, authenticator: authenticator, bodies: bodies)
        merges = MergeRoutes(
            ledger: ledger, configuration: configuration, authenticator: authenticator, bodies: bodies,
            security: security)
        consents = ConsentRoutes(
            ledger: ledger, configuration: configuration, authenticator: authenticator, bodies: bodies)
        consumption = ConsumptionRoutes(ledger: ledger, authenticator: authenticator, bodies: bodies)
        payments = PaymentRoutes(
            ledger: ledger, configuration: configuration, authenticator: authenticator, bodies: bodies)
        reports = ReportRoutes(
            ledger: ledger, configuration: configuration, authenticator: authenticator, bodies: bodies)
        products = ProductRoutes(configuration: configuration, catalogues: catalogues, authenticator: authenticator)
        events = EventRoutes(ledger: ledger, configuration: configuration, authenticator: authenticator, health: health)
        feedGroups = FeedGroupRoutes(
            ledger: ledger, configuration: configuration, authenticator: authenticator, bodies: bodies)
        replays = ReplayRoutes(
            ledger: ledger, configuration: configuration, authenticator: authenticator, bodies: bodies)
        handOuts = HandOutRoutes(
            ledger: ledger, configuration: configuration, authenticator: authenticator, bodies: bodies)
        digests = DigestRoutes(
            ledger: ledger, configuration: configuration, authenticator: authenticator, bodies: bodies)
        explain = ExplainRoutes(
            configuration: configuration, authenticator: authenticator, lists: lists, ledger: ledger)
        purchases = PurchaseRoutes(configuration: configuration, authenticator: authenticator, lists: lists)
        entitlements = EntitlementRoutes(
            ledger: ledger, configuration: configuration, catalogues: catalogues, authenticator: authenticator)
        waiting = WaitingRoutes(configuration: configuration, authenticator: authenticator, lists: lists)
        notifications = NotificationRoutes(
            ledger: ledger, workQueue: workQueue, configuration: configuration, bodies: bodies, logger: logger,
            security: security, unknownAppsPerDay: unknownAppsPerDay)
    }

    /// Serves until graceful shutdown or cancellation; called once.
    ///
    /// - Throws: `ConfigurationError` for keys that cannot be read, and the listener's error.
    package func run() async throws {
        defer { address.ended() }
        if let section = configuration.current.gatewayJWT { _ = try await GatewayVerifier(section) }
        // The group is separate, and detached: the outer shutdown must not reach the listener before the drain delay.
        let group = ServiceGroup(configuration: .init(services: [.init(service: application)], logger: logger.quiet))
        let listener = Task.detached { try await group.run() }
        try await withThrowingTaskGroup(of: Void.self) { tasks in
            tasks.addTask { await longPoll.run() }
            tasks.addTask { await orderPoll.run() }
            tasks.addTask { await clock.run() }
            tasks.addTask { await connections.run() }
            defer { tasks.cancelAll() }
            try await withGracefulShutdownHandler {
                try await withTaskCancellationHandler {
                    try await listener.value
                } onCancel: {
                    listener.cancel()
                }
            } onGracefulShutdown: {
                drain(group, listener)
            }
        }
    }

    private func drain(_ group: ServiceGroup, _ listener: Task<Void, any Error>) {
        health.beginDrain()
        logger.info("draining", metadata: ["drain.seconds": "\(settings.drainDelay.components.seconds)"])
        // No request waits for news on a process that ends: the client's next poll reaches another process.
        longPoll.close()
        orderPoll.close()
        Task {
            try? await Task.sleep(for: settings.drainDelay)
            await group.triggerGracefulShutdown()
            try? await Task.sleep(for: Self.drainDeadline)
            listener.cancel()
        }
    }

    /// Every route of this server.
    package func addRoutes(to router: some RouteTable) {
        receipts.add(to: router)
        orders.add(to: router)
        tokens.add(to: router)
        installations.add(to: router)
        merges.add(to: router)
        consents.add(to: router)
        consumption.add(to: router)
        payments.add(to: router)
        reports.add(to: router)
        products.add(to: router)
        events.add(to: router)
        feedGroups.add(to: router)
        handOuts.add(to: router)
        replays.add(to: router)
        digests.add(to: router)
        explain.add(to: router)
        purchases.add(to: router)
        entitlements.add(to: router)
        waiting.add(to: router)
        notifications.add(to: router)
        if settings.operationsPort == nil { operations.add(to: router, isInside: settings.showsInside) }
    }

    private var application: some Service {
        let router = Router(context: HTTPContext.self, options: .autoGenerateHeadEndpoints)
        router.add(
            middleware: AnswerMiddleware(health: health, connections: connections, logger: logger, security: security))
        addRoutes(to: router)
        if settings.operationsPort == nil, !settings.showsInside {
            logger.notice("metrics are not served on a public address: set MAKEGOOD_OPERATIONS_PORT")
        }
        return Application(
            router: router,
            server: .http1(configuration: HTTPLimits.http1(requestLimit: requestLimit, connections: connections)),
            configuration: .init(
                address: .hostname(settings.httpHost, port: settings.httpPort), backlog: 1024, reuseAddress: true,
                availableConnectionsDelegate: connections),
            onServerRunning: { [address, logger, settings] channel in
                let port = channel.localAddress?.port ?? settings.httpPort
                logger.info("ingest listening", metadata: ["http.address": "\(settings.httpHost):\(port)"])
                address.listening(port)
            },
            logger: logger.quiet)
    }
}
