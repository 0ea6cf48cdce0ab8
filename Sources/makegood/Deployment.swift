import AppStore
import AppleGateway
import AsyncHTTPClient
import Commands
import Delivery
import Foundation
import Intake
import Ledger
import Logging
import Postgres
import Purchases
import RabbitMQ
import Reconciliation
import Service
import ServiceLifecycle
import Settings
import UnixSignals
import WorkQueue

/// The composition root: reads settings, opens connections, and runs the services of the given roles.
enum Deployment {
    enum Role: String, CaseIterable {
        case ingest, worker, dispatcher, scheduler

        var health: Health.Role {
            switch self {
            case .ingest: .ingest
            case .worker: .worker
            case .dispatcher: .dispatcher
            case .scheduler: .scheduler
            }
        }

        var databaseRole: DatabaseRole {
            switch self {
            case .ingest: .ingest
            case .worker: .worker
            case .dispatcher: .dispatcher
            case .scheduler: .scheduler
            }
        }
    }

    /// Connections beside the writers: for single statements, health and the scheduler.
    private static let plainConnections = 2
    /// The longest shutdown. Apple's time-out and the database's time-outs bound the work in flight; after this the
    /// process ends anyway.
    private static let shutdownMax: Duration = .seconds(75)
    /// How long the process waits at its start for a database that does not answer yet.
    private static let startPatience: Duration = .seconds(60)

    static func run(_ roles: [Role]) async throws {
        // Until the configuration is read, SIGHUP would only end this process.
        signal(SIGHUP, SIG_IGN)
        try CoreFiles.forbid()
        try LibPQVersion.loaded.check()
        try LibRabbitMQVersion.loaded.check()
        var settings = try Settings()
        let configuration = try settings.loadConfiguration()
        let (hasClients, callsApple) = (roles.contains(.ingest), roles.contains(.worker))
        let webhooks = roles.contains(.dispatcher) ? Dispatcher.webhooks(configuration) : 0
        let filesMost = DescriptorShares.most(
            settings, hasClients: hasClients, callsApple: callsApple, webhooks: webhooks)
        let files = try OpenFiles.limit(raisedTo: filesMost)
        let shares = try DescriptorShares(
            files: files, settings, hasClients: hasClients, callsApple: callsApple, webhooks: webhooks)
        settings.appleInFlight = shares.appleInFlight
        let name = roles.map(\.rawValue).joined(separator: "-")
        var broker = try BrokerConfiguration(url: settings.requiredAMQPURL())
        broker.connectionName = "makegood-\(name)"
        let registry = PrometheusRegistry.bootstrap()
        let logger = Connections.logger(settings)
        logger.info("started", metadata: ["version": "\(Version.current)", "role": "\(name)"])
        if files < filesMost {
            logger.notice("fewer connections than there could be: ulimit -n", metadata: ["files": "\(files)"])
        }
        let open = settings.allFiles(configuration).filter { [.writable, .replaceable].contains(FileAccess(to: $0)) }
        if !open.isEmpty {
            logger.warning(
                "every user of this machine may change files of the configuration: makegood doctor names them",
                metadata: ["settings": "\(open.map(\.key).joined(separator: ", "))"])
        }
        try await checkSchema(settings, logger)

        let schedule = RetrySchedule(scale: settings.timeScale)
        let database = Database(
            try Connections.postgres(settings, name),
            connections: settings.postgresWriters + plainConnections, logger: logger)
        try await checkRights(roles, database)
        let ledger = Ledger(database: database, writers: settings.postgresWriters, schedule: schedule)
        let lists =
            hasClients
            ? Database(
                try Connections.postgres(settings, "\(name)-lists", patience: ListReader.patience),
                connections: ListReader.connections, logger: logger)
            : nil
        let security: SecurityLog
        do {
            try await UserProtection.agree(configuration.userKeys, in: database)
            try await DatabasePurpose.agree(configuration, in: database)
            security = try await SecurityLog(in: database, logger: logger)
        } catch {
            await lists?.close()
            await ledger.close()
            throw error
        }
        let http = HTTPClient(
            eventLoopGroupProvider: .singleton, configuration: .apple(inFlight: settings.appleInFlight))
        let apps = AppDirectory(http: http, judges: roles.contains(.worker))
        try await apps.update(configuration, ledger: ledger)
        let queues = Queues(prefix: settings.queuePrefix, schedule: schedule)
        let publisher = Publisher(broker, topology: queues.topology, logger: logger)
        await publisher.start()

        let holder = ConfigurationHolder(configuration)
        let health = Health(
            role: roles.count == 1 ? roles[0].health : .all, schema: Schema.migrations.count, configuration: holder,
            isDatabaseUp: { database.isReady }, isBrokerUp: { publisher.state == .connected })
        let sell: CatalogueRefresher.Change = { (changed, unreadable, isFirst) async throws(LedgerError) in
            try await apps.sell(changed, unreadable: unreadable, wakes: !isFirst, ledger: ledger)
        }
        let parts = ProcessParts(
            settings: settings, shares: shares, configuration: holder, ledger: ledger, lists: lists, apps: apps,
            http: http, workQueue: WorkQueue(publisher: publisher, queues: queues), publisher: publisher,
            halts: Halts(ledger: ledger, logger: logger),
            catalogues: CatalogueRefresher(
                ledger: ledger, logger: logger,
                onChange: roles.contains(.worker) ? sell : nil), broker: broker,
            operations: OperationsRoutes(health: health, registry: registry), logger: logger, security: security)
        // A worker judges nothing before it knows the whole catalogue.
        if roles.contains(.worker) { try await parts.catalogues.refresh() }
        var group = ServiceGroupConfiguration(
            services: parts.services(roles).map {
                // A service ends only when it is told to. A service that fails ends the process, which is then
                // restarted.
                ServiceGroupConfiguration.ServiceConfiguration(
                    service: $0, successTerminationBehavior: .gracefullyShutdownGroup)
            },
            gracefulShutdownSignals: [.sigterm, .sigint], logger: logger)
        group.maximumGracefulShutdownDuration = settings.drainDelay + shutdownMax
        defer { logger.info("stopped") }
        do {
            try await ServiceGroup(configuration: group).run()
        } catch {
            await close(parts, http)
            throw error
        }
        await close(parts, http)
    }

    private static func close(_ parts: ProcessParts, _ http: HTTPClient) async {
        await parts.publisher.close()
        await parts.lists?.close()
        await parts.ledger.close()
        try? await http.shutdown()
    }

    private static func checkSchema(_ settings: Settings, _ logger: Logger) async throws {
        let migrator = Migrator(
            try Connections.postgres(settings, "schema-check"), migrations: Schema.migrations, logger: logger)
        let start = ContinuousClock.now
        while true {
            do throws(MigrationError) {
                return try await migrator.check()
            } catch {
                guard case .database(let cause) = error, cause.isRetryable,
                    ContinuousClock.now - start < startPatience
                else { throw error }
                logger.warning("waiting for the database", metadata: ["error": "\(cause)"])
                try await Task.sleep(for: .seconds(2))
            }
        }
    }

    /// Checks the rights of the roles at the start, so that a missing right is named now, and not by the first
    /// purchase.
    private static func checkRights(_ roles: [Role], _ database: Database) async throws {
        do {
            try await MissingRight.check(roles.map(\.databaseRole), in: database)
        } catch {
            await database.close()
            throw error
        }
    }
}

/// Everything that a process has, from which its services are made.
struct ProcessParts {
    let settings: Settings
    let shares: DescriptorShares
    let configuration: ConfigurationHolder
    let ledger: Ledger
    /// The database for lists; only an ingest has one.
    let lists: Database?
    let apps: AppDirectory
    let http: HTTPClient
    let workQueue: WorkQueue
    let publisher: Publisher
    let halts: Halts
    let catalogues: CatalogueRefresher
    let broker: BrokerConfiguration
    let operations: OperationsRoutes
    let logger: Logger
    let security: SecurityLog

    /// The services in the order of dependence: shutdown goes from the last to the first, so the listener closes first.
    func services(_ roles: [Deployment.Role]) -> [any Service] {
        var services: [any Service] = []
        if let port = settings.operationsPort {
            services.append(
                OperationsServer(
                    routes: operations, host: settings.httpHost, port: port, connectionsMax: shares.operations,
                    logger: logger))
        }
        services += [
            halts,
            ConfigurationReloader(
                settings: settings, holder: configuration, apps: apps, ledger: ledger, logger: logger,
                security: security, check: GatewayVerifier.check),
            CertificateWatch(apps: apps, configuration: configuration, logger: logger),
        ]
        if roles.contains(.scheduler) {
            services.append(Watch(ledger: ledger, logger: logger, waitingLimit: settings.waitingLimit))
            services.append(DoubleChargeSweep(ledger: ledger, logger: logger))
            services.append(PayloadRetention(ledger: ledger, configuration: configuration, logger: logger))
            services.append(RunningSums.goodsByDay(ledger, logger: logger))
            services.append(RunningSums.arrivalsByHour(ledger, logger: logger))
            services.append(HandOutWatch(ledger: ledger, configuration: configuration, logger: logger))
            services.append(BooksWatch(ledger: ledger, logger: logger))
            services.append(Sealer(ledger: ledger, logger: logger))
            services.append(
                Scheduler(ledger: ledger, workQueue: workQueue, apps: apps, halts: halts, logger: logger))
        }
        if roles.contains(.ingest) || roles.contains(.worker) { services.append(catalogues) }
        if roles.contains(.worker) {
            services.append(NotificationWatch(ledger: ledger, apps: apps, halts: halts, logger: logger))
            services.append(
                NotificationForwarder(ledger: ledger, configuration: configuration, http: http, logger: logger))
            services.append(worker)
        }
        if roles.contains(.dispatcher) { services.append(dispatcher) }
        if let lists {
            services.append(
                IntakeServer(
                    ledger: ledger, lists: lists, workQueue: workQueue, configuration: configuration,
                    catalogues: catalogues,
                    settings: settings, operations: operations, logger: logger, security: security,
                    connectionsMax: shares.clients))
        } else {
            // This service hears of a shutdown first: readiness turns 503 before anything stops.
            services.append(DrainSign(health: operations.health))
        }
        return services
    }

    private var dispatcher: Dispatcher {
        Dispatcher(
            consumer: Consumer(
                broker, topology: workQueue.queues.topology,
                subscriptions: Dispatcher.subscriptions(workQueue.queues), logger: logger),
            workQueue: workQueue, ledger: ledger, configuration: configuration, inFlightMax: shares.webhooks,
            logger: logger)
    }

    private var worker: VerifyWorker {
        let limits = VerifyWorker.Limits(
            localInFlight: settings.localInFlight, appleInFlight: settings.appleInFlight)
        return VerifyWorker(
            consumer: Consumer(
                broker, topology: workQueue.queues.topology,
                subscriptions: VerifyWorker.subscriptions(workQueue.queues, limits), logger: logger),
            workQueue: workQueue, ledger: ledger, apps: apps, halts: halts, limits: limits, logger: logger,
            security: security)
    }
}
