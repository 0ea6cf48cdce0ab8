import AsyncHTTPClient
import Crypto
import Encoding
import Foundation
import Intake
import Ledger
import Logging
import NIOCore
import NIOHTTP1
import Postgres
import Purchases
import RabbitMQ
import Service
import ServiceLifecycle
import Settings
import TestServers
import Testing
import WorkQueue

/// The configuration of these tests: two apps and one key for each kind of caller.
enum IntakeFixture {
    static let key = "gateway-key-1"
    static let bothAppsKey = "both-apps-key-2"
    static let backendKey = "backend-key-3"
    static let supportKey = "support-key-4"
    static let claimKey = "claim-key-5"

    /// An entry of `access`.
    static func entry(_ name: String, _ key: String, _ scopes: String, _ apps: String, _ more: String = "") -> String {
        let hash = SHA256.hash(data: Data(key.utf8)).map { String(format: "%02x", $0) }.joined()
        return "  - {name: \(name), keySha256: \(hash), scopes: [\(scopes)], apps: [\(apps)]\(more)}"
    }

    /// - Parameters:
    ///   - access: further entries.
    ///   - game: further members of the app `game`, a line each.
    static func configuration(
        access: String = "", game: [String] = [], gatewayJWT: String = "", directory: URL = .temporaryDirectory
    ) throws -> Configuration {
        let yaml = """
            apps:
              - id: game
                bundleId: com.example.game
                environments: [Sandbox]
                products:
                  - {id: com.example.game.coins6, type: consumable, goods: [{item: coins, amount: 6000}]}
                  - {id: com.example.game.pass, type: nonConsumable, goods: [{item: pass, amount: 1}]}
            \(game.map { "    \($0)" }.joined(separator: "\n"))
              - id: other
                bundleId: com.example.other
                environments: [Sandbox]
                finishHeld: false
                legacyReceipts: [local]
                products: []
            access:
            \(entry("gateway", key, "intake", "game"))
            \(entry("both", bothAppsKey, "intake, events", "\"*\""))
            \(entry("backend", backendKey, "events", "game"))
            \(entry("support", supportKey, "support", "game"))
            \(entry("vouching", claimKey, "intake, claim", "game"))
            \(access)
            \(gatewayJWT)
            """
        return try Configuration.parse(yaml, directory: directory)
    }

    static let caller = Caller(name: "gateway", userID: nil, scopes: [.intake], apps: ["game"])
    static let apps: Set<String> = ["game", "other"]

    /// A text with three parts that looks like a signed transaction; it has no valid signature.
    static func signedTransaction(_ word: String = UUID().uuidString) -> String {
        let body = Data("{\"transactionId\":\"\(word)\"}".utf8).base64URL
        return "eyJhbGciOiJFUzI1NiJ9.\(body).c2lnbmF0dXJl"
    }
}

extension Data {
    /// Unpadded, as in a JWS.
    var base64URL: String {
        base64EncodedString().replacing("+", with: "-").replacing("/", with: "_").replacing("=", with: "")
    }
}

/// A real ingest server on a free port, on a real database of its own, without a broker: publishing fails, answers do
/// not (B12).
struct RunningIntake: Sendable {
    let client: HTTPClient
    let base: String
    let port: Int
    let ledger: Ledger
    let health: Health
    let catalogues: CatalogueRefresher
    let server: IntakeServer
    let group: ServiceGroup

    /// - Parameters:
    ///   - url: nil takes the suite's database, which has the trait `.migratedDatabase`.
    ///   - environment: further `MAKEGOOD_` settings.
    ///   - security: nobody reads it unless a test does.
    ///   - configuration: nil: that of `IntakeFixture`.
    ///   - reconnectWait: how long calls wait for the database; a machine that also compiles may need seconds for a
    ///     connection.
    static func run(
        url: String? = nil, environment: [String: String] = [:], access: String = "", gatewayJWT: String = "",
        directory: URL = .temporaryDirectory, connectionsMax: Int = HTTPLimits.connectionsMax,
        requestLimit: Duration = .seconds(30), reconnectWait: Duration = .seconds(10),
        broker: @escaping @Sendable () -> Bool = { true },
        security: SecurityLog = .init(secret: [], logger: .silent), configuration: Configuration? = nil,
        unknownAppsPerDay: Int = NotificationRoutes.unknownAppsPerDay,
        _ body: (RunningIntake) async throws -> Void
    ) async throws {
        var logger = Logger(label: "tests")
        logger.logLevel = .critical
        let database = PostgresConfiguration(
            url: url ?? TestDatabase.current.url, applicationName: "makegood-tests", reconnectWait: reconnectWait)
        let holder = ConfigurationHolder(
            try configuration
                ?? IntakeFixture.configuration(access: access, gatewayJWT: gatewayJWT, directory: directory))
        var variables = [
            "MAKEGOOD_POSTGRES_URL": database.url, "MAKEGOOD_HTTP_PORT": "0", "MAKEGOOD_DRAIN_DELAY_SECONDS": "0",
        ]
        variables.merge(environment) { $1 }
        let ledger = Ledger(
            database: Database(database, connections: 3, logger: logger), writers: 2, schedule: RetrySchedule())
        var patient = database
        patient.statementTimeout = ListReader.patience
        let lists = Database(patient, connections: ListReader.connections, logger: logger)
        let queues = Queues()
        let publisher = Publisher(
            try BrokerConfiguration(url: "amqp://guest:guest@127.0.0.1:1/%2f"), topology: queues.topology,
            logger: logger)
        let health = Health(
            role: .ingest, schema: Schema.migrations.count, configuration: holder,
            isDatabaseUp: { ledger.database.isReady }, isBrokerUp: broker)
        let catalogues = CatalogueRefresher(ledger: ledger, logger: logger)
        let server = IntakeServer(
            ledger: ledger, lists: lists, workQueue: WorkQueue(publisher: publisher, queues: queues),
            configuration: holder,
            catalogues: catalogues, settings: try Settings(environment: variables),
            operations: OperationsRoutes(health: health, registry: PrometheusRegistry()), logger: logger,
            security: security, connectionsMax: connectionsMax, requestLimit: requestLimit,
            unknownAppsPerDay: unknownAppsPerDay)
        let group = ServiceGroup(configuration: .init(services: [.init(service: server)], logger: logger))
        let running = Task { try await group.run() }
        var clientConfiguration = HTTPClient.Configuration()
        clientConfiguration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = 256
        // The client repeats a refused connection for this long.
        clientConfiguration.timeout.connect = .seconds(3)
        let client = HTTPClient(eventLoopGroupProvider: .singleton, configuration: clientConfiguration)
        let result: Result<Void, any Error>
        do {
            let port = try await server.address.port
            result = .success(
                try await body(
                    RunningIntake(
                        client: client, base: "http://127.0.0.1:\(port)", port: port, ledger: ledger, health: health,
                        catalogues: catalogues, server: server, group: group)))
        } catch {
            result = .failure(error)
        }
        await group.triggerGracefulShutdown()
        try await running.value
        try await client.shutdown()
        await publisher.close()
        await lists.close()
        await ledger.close()
        try result.get()
    }

    struct Answer: Sendable {
        let status: Int
        let headers: [String: String]
        let text: String
        var json: JSONValue { (try? JSONValue(parsing: Array(text.utf8))) ?? .null }

        subscript(_ key: String) -> JSONValue? { json[key] }
    }

    func send(
        _ method: String, _ path: String, key: String? = IntakeFixture.key, body: String? = nil,
        headers: [(String, String)] = []
    ) async throws -> Answer {
        var request = HTTPClientRequest(url: base + path)
        request.method = .init(rawValue: method)
        if let key { request.headers.add(name: "Authorization", value: "Bearer \(key)") }
        for (name, value) in headers { request.headers.add(name: name, value: value) }
        if let body { request.body = .bytes(ByteBuffer(string: body)) }
        return try await Self.answer(client.execute(request, timeout: .seconds(60)))
    }

    func post(
        _ body: String, wait: String? = nil, key: String? = IntakeFixture.key, headers: [(String, String)] = []
    ) async throws -> Answer {
        try await send(
            "POST", "/v1/receipts" + (wait.map { "?wait=\($0)" } ?? ""), key: key, body: body, headers: headers)
    }

    func get(_ path: String, key: String? = IntakeFixture.key) async throws -> Answer {
        try await send("GET", path, key: key)
    }

    static func answer(_ response: HTTPClientResponse) async throws -> Answer {
        let body = try await response.body.collect(upTo: 8 << 20)
        return Answer(
            status: Int(response.status.code),
            headers: Dictionary(response.headers.map { ($0.name.lowercased(), $0.value) }, uniquingKeysWith: { $1 }),
            text: String(buffer: body))
    }

    /// Runs SQL that leaves the rows as a worker would.
    func execute(_ sql: String) async throws {
        try await ledger.database.run(Statement<Void, Void>("test.execute", sql))
    }

    func count(_ sql: String) async throws -> Int {
        try await ledger.database.run(
            Statement<Void, Int>("test.count", sql, read: { row throws(PostgresError) in try row.int(0) })
        ).first ?? 0
    }
}
