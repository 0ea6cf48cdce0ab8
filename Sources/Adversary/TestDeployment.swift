import AppStoreSimulator
import AsyncHTTPClient
import Crypto
import Encoding
import FaultProxy
import Foundation
import Ledger
import Logging
import NIOCore
import NIOHTTP1
import Postgres
import Purchases
import ServiceLifecycle
import Synchronization
import WorkQueue

/// The whole product for one drill: a database and queues of its own on private servers, an App Store, processes, and a
/// proxy between every two parts.
final class TestDeployment: Sendable {
    struct Shape: Sendable {
        var executable: String
        /// The previous version of the program; if given, the deployment starts with it.
        var previous: String?
        /// Whether services may declare queues and so bring back lost ones, as where the operator has set up no users
        /// at the broker.
        var declaresQueues = false
        /// The factor on every delay of the processes.
        var scale: Double
        var rate: Double
        var seed: UInt64
        var ingests = 2
        var workers = 3
        var schedulers = 2
        /// The number of processes that have all roles.
        var alls = 0
        /// The number of endpoints that the app's events go to, and of the processes that send them.
        var endpoints = 0
        var dispatchers = 0
        /// How many files the runner itself may open.
        var openFiles: Int
        /// Whether the database, the processes and the App Store follow one clock that steps (``SteppedClock``).
        var stepsClock = false
        /// How often Apple is asked for all purchases and for the refunds of each customer, where the program asks.
        var rotas: (customers: String, refunds: String)?

        /// The number of client connections to each process that takes posts. Every client has a connection of its own
        /// as far as the limit on files allows: while answers take 12 s, 200 posts a second keep 2,400 waiting. Each
        /// connection takes three of our files: the client's end and the proxy's two. A quarter of all files is left
        /// for everything else.
        var connectionsMax: Int { min(4096, openFiles / 4 / max(1, ingests + alls)) }
    }

    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    let shape: Shape
    let servers: PrivateServers
    /// The name of the database.
    let name: String
    let queuePrefix: String
    let queues: Queues
    let store: AppStoreSimulator
    let shop: PurchaseGenerator
    let traffic: Traffic
    let members: [Member]
    let appleProxy: FaultProxy
    let endpoints: [TestEndpoint]
    /// A connection to the server without a proxy.
    let database: Database
    let databaseURL: String
    /// Nil: everything goes by the machine's clock.
    let clock: SteppedClock?
    /// A pool searches all its connections for every request, so there are several small pools.
    private let pools: [HTTPClient]
    private let directory: String
    private let storeGroup: ServiceGroup
    private let storeRun: Task<Void, any Error>

    private init(
        _ shape: Shape, _ servers: PrivateServers, name: String, databaseURL: String, directory: String,
        clock: SteppedClock?, store: AppStoreSimulator, storeGroup: ServiceGroup, storeRun: Task<Void, any Error>,
        storePort: Int, endpoints: [TestEndpoint]
    ) throws {
        self.shape = shape
        self.servers = servers
        self.name = name
        self.databaseURL = databaseURL
        self.directory = directory
        self.clock = clock
        // The users that `deploy/local` creates at the broker may use this prefix.
        queuePrefix = "test-\(name)"
        self.store = store
        self.storeGroup = storeGroup
        self.storeRun = storeRun
        self.endpoints = endpoints
        queues = Queues(prefix: queuePrefix, schedule: RetrySchedule(scale: shape.scale))
        appleProxy = try FaultProxy(to: "http://127.0.0.1:\(storePort)")
        database = Self.database(databaseURL, connections: 3, timeout: .seconds(60))
        var configuration = HTTPClient.Configuration()
        let poolCount = 8
        let connectionsMax = max(1, shape.connectionsMax / poolCount)
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = connectionsMax
        // An app waits as long for a connection as for an answer.
        configuration.timeout.connect = Traffic.patienceMax
        configuration.connectionPool.retryConnectionEstablishment = false
        pools = (0..<poolCount).map { [configuration] _ in
            HTTPClient(eventLoopGroupProvider: .singleton, configuration: configuration)
        }
        var environment = [
            "MAKEGOOD_CONFIG": "\(directory)/makegood.json", "MAKEGOOD_QUEUE_PREFIX": queuePrefix,
            "MAKEGOOD_HTTP_PORT": "0", "MAKEGOOD_OPERATIONS_PORT": "0", "MAKEGOOD_TIME_SCALE": "\(shape.scale)",
            "MAKEGOOD_DRAIN_DELAY_SECONDS": "1",
            // The debug level lets a drill tell why a post was refused.
            "MAKEGOOD_LOG_LEVEL": "debug",
        ]
        for name in ["PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR"] {
            environment[name] = ProcessInfo.processInfo.environment[name]
        }
        environment.merge(clock?.environment ?? [:]) { $1 }
        var members: [Member] = []
        for (role, count) in [
            (Member.Role.ingest, shape.ingests), (.worker, shape.workers), (.scheduler, shape.schedulers),
            (.all, shape.alls), (.dispatcher, shape.dispatchers),
        ] {
            for number in 0..<count {
                members.append(
                    try Member(
                        role, number + 1, executable: shape.executable, environment: environment,
                        postgresURL: Self.address(databaseURL, as: role.user),
                        amqpURL: shape.declaresQueues
                            ? servers.amqpURL : Self.address(servers.amqpURL, as: role.user),
                        directory: directory))
            }
        }
        self.members = members
        shop = PurchaseGenerator(store: store, seed: shape.seed)
        traffic = Traffic(shop: shop, rate: shape.rate, seed: shape.seed &+ 1, pools: pools) { [members] in
            members.compactMap(\.address)
        }
    }

    /// Runs `body` with everything started and no load yet; ends everything afterwards.
    static func run<Result: Sendable>(
        _ shape: Shape, on servers: PrivateServers, name: String, _ body: (TestDeployment) async throws -> Result
    ) async throws -> Result {
        let directory = servers.directory.appending(path: name)
        try FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: directory) }
        try await servers.psql("create database \(name)")
        var clock: SteppedClock?
        if shape.stepsClock {
            clock = try await SteppedClock(script: servers.script, directory: directory.path)
            try await SteppedClock.install(in: name, on: servers)
        }
        guard var parts = URLComponents(string: servers.postgresURL) else { throw Failure(description: "no URL") }
        parts.path = "/\(name)"
        var logger = Logger(label: "app-store")
        logger.logLevel = .critical
        let store = try AppStoreSimulator(SimulatorConfiguration(seed: shape.seed), logger: logger)
        // The service ends the store in order: a cancelled server may meet a connection that it has just accepted.
        let storeGroup = ServiceGroup(services: [store], logger: logger)
        let storeRun = Task { try await storeGroup.run() }
        try store.register(
            RegisteredApp(
                app: PurchaseGenerator.app, bundleId: PurchaseGenerator.bundle, appAppleId: PurchaseGenerator.appleID))
        let endpoints = try await TestEndpoint.start(shape.endpoints) { [clock] in clock?.now ?? Date() }
        let world = try TestDeployment(
            shape, servers, name: name, databaseURL: parts.string ?? "", directory: directory.path, clock: clock,
            store: store, storeGroup: storeGroup, storeRun: storeRun, storePort: try await store.boundPort,
            endpoints: endpoints)
        do {
            try world.writeConfiguration()
            for arguments in [["migrate"], ["roles"], ["queue", "declare"]] {
                try await world.command(arguments)
            }
            if shape.stepsClock {
                try await SteppedClock.follow(in: name, on: servers)
                if try await world.hasRotas { try world.writeConfiguration(rotas: shape.rotas) }
            }
            try await world.startAll()
            let result = try await body(world)
            await world.end()
            return result
        } catch {
            await world.end()
            throw error
        }
    }

    private func end() async {
        for member in members { member.process?.send(SIGKILL) }
        for member in members { await member.kill() }
        await database.close()
        for member in members { member.endProxies() }
        appleProxy.end()
        for endpoint in endpoints { await endpoint.end() }
        store.clearFaults()
        await storeGroup.triggerGracefulShutdown()
        _ = await storeRun.result
        for pool in pools { try? await pool.shutdown() }
        // After a cancelled run the database goes with the servers; the queues always do.
        if !Task.isCancelled { _ = try? await servers.psql("drop database if exists \(name) with (force)") }
    }

    private static func database(_ url: String, connections: Int, timeout: Duration) -> Database {
        Database(
            PostgresConfiguration(
                url: url, applicationName: "adversary", statementTimeout: timeout,
                callDeadline: timeout + .seconds(10), namedStatements: false), connections: connections,
            logger: Logger(label: "quiet") { _ in SwiftLogNoOpLogHandler() })
    }

    /// A connection to the server without a proxy; a statement may take minutes. The caller closes it.
    func patientDatabase() -> Database { Self.database(databaseURL, connections: 1, timeout: .seconds(600)) }

    func members(_ role: Member.Role) -> [Member] { members.filter { $0.role == role } }

    /// The number of processes that call Apple.
    var judges: Int { members(.worker).count + members(.all).count }

    private func startAll() async throws {
        try await withThrowingTaskGroup(of: Void.self) { group in
            for member in members { group.addTask { try await member.start() } }
            try await group.waitForAll()
        }
    }

    /// Starts processes that do not run, wakes stopped ones, and removes every fault that the drill has set.
    func endFaults() async throws {
        store.clearFaults()
        appleProxy.set(.forwarding)
        for endpoint in endpoints {
            endpoint.proxy.set(.forwarding)
            endpoint.receiver.answer { _, _ in .taken }
        }
        for member in members {
            member.forward()
            member.process?.send(SIGCONT)
            if member.process?.isRunning != true { try await member.start() }
        }
    }

    /// A server's address for the user of this role. `deploy/local` asks only the broker's users for a password, which
    /// is the user's name.
    private static func address(_ url: String, as role: DatabaseRole) -> String {
        guard var parts = URLComponents(string: url) else { return url }
        parts.user = "makegood_\(role.rawValue)"
        if parts.password != nil { parts.password = parts.user }
        return parts.string ?? url
    }

    /// Runs a command of the program to its end and returns its output.
    ///
    /// - Parameter role: the user that the command logs in as; nil: one with all rights.
    @discardableResult
    func command(_ arguments: [String], as role: DatabaseRole? = nil) async throws -> String {
        let log = "\(directory)/command-\(UUID().uuidString.prefix(8)).log"
        let addresses = [
            "MAKEGOOD_POSTGRES_URL": role.map { Self.address(databaseURL, as: $0) } ?? databaseURL,
            "MAKEGOOD_AMQP_URL": role.map { Self.address(servers.amqpURL, as: $0) } ?? servers.amqpURL,
        ]
        let process = try RunningProcess(
            arguments.joined(separator: " "), executable: shape.executable, arguments: arguments,
            environment: members[0].environment.merging(addresses) { $1 }, logPath: log)
        let ending = try await process.end(within: .seconds(120))
        guard ending == .exit(0) else {
            throw Failure(description: "makegood \(arguments) ended with \(ending): \(process.logTail)")
        }
        return process.log
    }

    private static var products: [[String: Any]] {
        [
            ["id": PurchaseGenerator.product, "type": "consumable", "goods": [["item": "coins", "amount": 6000]]],
            ["id": PurchaseGenerator.subscription, "type": "autoRenewable", "goods": [["item": "vip", "amount": 30]]],
        ]
    }

    /// Whether this version of the program asks for the purchases and the refunds of each customer.
    private var hasRotas: Bool {
        get async throws(PostgresError) {
            try await count(
                """
                select count(*) from information_schema.columns
                where table_schema = 'public' and table_name = 'history_walks' and column_name = 'swept_at'
                """) > 0
        }
    }

    /// - Parameters:
    ///   - appleURL: an address in place of the proxy before the simulator.
    ///   - rotas: as in ``Shape``; nil: the program's own.
    ///   - secrets: those that sign webhooks.
    func writeConfiguration(
        appleURL: String? = nil, rotas: (customers: String, refunds: String)? = nil,
        secrets: [String] = [TestEndpoint.secrets[0]]
    ) throws {
        let apple = appleURL ?? appleProxy.url("http://127.0.0.1:1")
        let credentials = store.credentials
        func access(_ name: String, _ key: String, _ scopes: [String]) -> [String: Any] {
            let hash = SHA256.hash(data: Data(key.utf8)).hexadecimal
            return ["name": name, "keySha256": hash, "scopes": scopes, "apps": [PurchaseGenerator.app]]
        }
        var app: [String: Any] = [
            "id": PurchaseGenerator.app, "bundleId": PurchaseGenerator.bundle, "appAppleId": PurchaseGenerator.appleID,
            "environments": ["Production", "Sandbox"],
            "grantFrom": Date.now.addingTimeInterval(-86_400).formatted(.iso8601), "rootCertificates": ["root.der"],
            "serverApi": [
                "issuerId": credentials.issuerId, "keyId": credentials.keyId, "privateKeyFile": "key.p8",
                // The limit is high: a drill tests the fault, not the waiting for Apple's limit.
                "callsPerSecond": 1000,
                "productionUrl": "\(apple)/production", "sandboxUrl": "\(apple)/sandbox",
            ],
            "legacyReceipts": "verifyReceipt",
            "verifyReceipt": [
                "sharedSecret": credentials.sharedSecret, "productionUrl": "\(apple)/production/verifyReceipt",
                "sandboxUrl": "\(apple)/sandbox/verifyReceipt",
            ],
            "products": shape.stepsClock ? YearPlan.products : Self.products,
        ]
        if let rotas {
            app["sweeps"] =
                ["customersEvery": rotas.customers, "refundsEvery": rotas.refunds, "samplePerDay": 2]
                as [String: Any]
        }
        if !endpoints.isEmpty { app["endpoints"] = endpoints.map { $0.section(secrets: secrets) } }
        let file: [String: Any] = [
            "apps": [app],
            "access": [
                access("app", Access.app, ["intake"]),
                access("backend", Access.backend, ["intake", "claim", "events"]),
            ],
            "gatewayJwt": [
                "issuer": "drill", "audience": "makegood", "keys": ["gateway.pem"], "scopes": ["intake"],
                "apps": [PurchaseGenerator.app],
            ],
        ]
        let folder = URL(filePath: directory)
        try JSONSerialization.data(withJSONObject: file).write(to: folder.appending(path: "makegood.json"))
        try Data(Access.gatewayPEM.utf8).write(to: folder.appending(path: "gateway.pem"))
        try Data(store.rootCertificateDER).write(to: folder.appending(path: "root.der"))
        try Data(credentials.privateKeyPEM.utf8).write(to: folder.appending(path: "key.p8"))
    }
}

// MARK: - Looking

extension TestDeployment {
    /// The first column of each row, as text.
    func texts(_ sql: String) async throws(PostgresError) -> [String] {
        try await database.run(
            Statement<Void, String?>("adversary.texts", sql) { row throws(PostgresError) in try row.optionalText(0) }
        ).map { $0 ?? "" }
    }

    func count(_ sql: String) async throws(PostgresError) -> Int {
        try await database.run(
            Statement<Void, Int>("adversary.count", sql) { row throws(PostgresError) in try row.int(0) }
        ).first ?? 0
    }

    func execute(_ sql: String) async throws(PostgresError) {
        try await database.run(Statement<Void, Void>("adversary.execute", sql))
    }

    /// Runs several statements at once, as the superuser.
    func script(_ sql: String) async throws { try await servers.psql(sql, database: name) }

    var grants: Int { get async throws(PostgresError) { try await count("select count(*) from grants") } }

    /// How long it took until the condition was true; nil if it did not become true in time. An error counts as not
    /// yet: servers are away in drills.
    func becomes(within limit: Duration, _ condition: () async throws -> Bool) async throws -> Duration? {
        let start = ContinuousClock.now
        while true {
            let look = ContinuousClock.now
            if (try? await condition()) == true { return ContinuousClock.now - start }
            try Task.checkCancellation()
            guard ContinuousClock.now - start < limit else { return nil }
            // Counting the receipts of a long run takes a core a tenth of a second, so the pauses grow with the time of
            // a look. The pause is bounded, so that a look that timed out does not miss the moment.
            let rest = min(.milliseconds(500), (ContinuousClock.now - look) * 4)
            try await Task.sleep(for: max(.milliseconds(50), rest))
        }
    }

    /// Sends a GET to a member's operations port; nil if no answer came within two seconds.
    func ask(_ member: Member, _ path: String) async -> (status: Int, body: String)? {
        guard let port = member.operationsPort else { return nil }
        let request = HTTPClientRequest(url: "http://127.0.0.1:\(port)\(path)")
        guard let response = try? await pools[0].execute(request, timeout: .seconds(2)),
            let body = try? await response.body.collect(upTo: 4 << 20)
        else { return nil }
        return (Int(response.status.code), String(buffer: body))
    }

    /// Sends a GET with an access key to one of the processes that take posts.
    func get(_ path: String, key: String) async throws -> (status: Int, body: Data) {
        guard let address = traffic.openAddresses.first else { throw Failure(description: "no ingest is up") }
        var request = HTTPClientRequest(url: address + path)
        request.headers.add(name: "Authorization", value: "Bearer \(key)")
        let response = try await pools[0].execute(request, timeout: .seconds(20))
        let body = try await response.body.collect(upTo: 4 << 20)
        return (Int(response.status.code), Data(body.readableBytesView))
    }

    /// The sum of a metric over its labels; nil if the member does not answer or has no such metric.
    /// - Parameter label: `name="value"`; only series with this label count.
    func metric(_ name: String, _ label: String = "", of member: Member) async -> Double? {
        guard let answer = await ask(member, "/metrics") else { return nil }
        let values = answer.body.split(separator: "\n")
            .filter { ($0.hasPrefix("\(name){") || $0.hasPrefix("\(name) ")) && (label.isEmpty || $0.contains(label)) }
            .compactMap { $0.split(separator: " ").last.flatMap { Double($0) } }
        return values.isEmpty ? nil : values.reduce(0, +)
    }
}
