import Adversary
import AppStoreSimulator
import FaultProxy
import Foundation
import Glibc
import Ledger
import Logging
import Postgres
import Purchases
import RabbitMQ
import Settings
import Synchronization
import TestServers
import Testing
import WorkQueue

/// The whole product for one test: real processes, a database and queues of its own, an App Store of its own.
///
/// `run` itself starts only the App Store; the test starts the processes it needs. Afterwards `run` checks the
/// invariants of every test (`SystemInvariants`), and ends everything, however the test went.
///
/// Every process works with the rights of its role, at the database (`makegood roles`) and at the broker, whose users
/// deploy/local makes: if a process lacks a right, a test fails.
final class System: Sendable {
    struct Shape: Sendable {
        /// Scales every delay of retries, rescues and parking: hours become minutes.
        var timeScale = 0.02
        /// Processes reach the servers through proxies that the test can cut.
        var hasProxies = false
        /// Private servers, instead of a new database and new queues on the servers of the environment.
        var servers: PrivateServers?
        /// Services may declare queues, as in the default set-up, so that they declare a queue again that somebody
        /// deletes.
        var declaresQueues = false
        /// False where a test ends with receipts that are still being tried.
        var endsQuiet = true
        /// Processes leave the processor to the simulator: if the simulator lacks it, calls reach it in bunches.
        var isPolite = false
    }

    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    enum Role: String, Sendable {
        case ingest, worker, dispatcher, scheduler, all
    }

    private struct State {
        var file: ConfigurationFile
        var processes: [RunningProcess] = []
        var supervisors: [Task<Void, Never>] = []
        var started: [String: Int] = [:]
        var client: Client?
        var invariants = SystemInvariants()
    }

    let shape: Shape
    let appStore: RunningSimulator
    let directory: String
    let queues: Queues
    let queuePrefix: String
    let postgresProxy: FaultProxy?
    let brokerProxy: FaultProxy?
    /// A connection straight to the server, whatever the proxies do.
    let database: Database
    private let postgresURL: String
    let amqpURL: String
    let broker: TestBroker?
    private let state: Mutex<State>

    private init(
        _ shape: Shape, appStore: RunningSimulator, directory: String, postgresURL: String, amqpURL: String,
        broker: TestBroker?
    ) throws {
        self.shape = shape
        self.appStore = appStore
        self.directory = directory
        self.postgresURL = postgresURL
        self.amqpURL = amqpURL
        self.broker = broker
        queuePrefix = broker.map { String($0.queue("x").dropLast(2)) } ?? "makegood"
        queues = Queues(prefix: queuePrefix, schedule: RetrySchedule(scale: shape.timeScale))
        postgresProxy = shape.hasProxies ? try FaultProxy(to: postgresURL) : nil
        brokerProxy = shape.hasProxies ? try FaultProxy(to: amqpURL) : nil
        database = Database(
            PostgresConfiguration(url: postgresURL, applicationName: "end-to-end", namedStatements: false),
            connections: 2, logger: Logger(label: "quiet") { _ in SwiftLogNoOpLogHandler() })
        state = Mutex(State(file: ConfigurationFile(simulator: appStore)))
        // The queues are registered so that they are deleted afterwards.
        for queue in queues.topology.queues { _ = broker?.queue(String(queue.name.dropFirst(queuePrefix.count + 1))) }
        try writeConfiguration()
    }

    static func run(_ shape: Shape = Shape(), _ body: (System) async throws -> Void) async throws {
        let directory = FileManager.default.temporaryDirectory
            .appending(path: "makegood-end-to-end-\(UUID().uuidString)").path
        try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(atPath: directory) }
        if let servers = shape.servers {
            try await run(
                shape, directory, postgresURL: servers.postgresURL, amqpURL: servers.amqpURL, broker: nil, body)
            return
        }
        try await TestBroker.run { broker in
            let database = try await TestDatabase.copy(of: "program", builtBy: Self.binary) { url in
                for command in ["migrate", "roles"] {
                    try Program.run("env", ["MAKEGOOD_POSTGRES_URL=\(url)", Self.binary, command])
                }
            }
            do {
                try await run(
                    shape, directory, postgresURL: database.url, amqpURL: broker.url, broker: broker, body)
            } catch {
                await database.drop()
                throw error
            }
            await database.drop()
        }
    }

    private static func run(
        _ shape: Shape, _ directory: String, postgresURL: String, amqpURL: String, broker: TestBroker?,
        _ body: (System) async throws -> Void
    ) async throws {
        let appStore = try await RunningSimulator.start()
        LogSearch.note(credential: appStore.store.credentials.sharedSecret)
        let system: System
        do {
            system = try System(
                shape, appStore: appStore, directory: directory, postgresURL: postgresURL, amqpURL: amqpURL,
                broker: broker)
        } catch {
            await appStore.stop()
            throw error
        }
        do {
            if shape.servers != nil { try await system.command("migrate", as: nil) }
            // For a copy too: the rights to connect are not copied.
            try await system.command("roles", as: nil)
            try await system.command("queue", "declare", as: nil)
            try await body(system)
            try await system.checkInvariants()
        } catch {
            print(await system.report(error))
            await system.end()
            throw error
        }
        await system.end()
    }

    private func end() async {
        await endSupervision()
        let processes = state.withLock { $0.processes }
        for process in processes { process.send(SIGKILL) }
        for process in processes { await process.killHard() }
        for log in logs { LogSearch.examine(log.text, of: log.name) }
        await database.close()
        postgresProxy?.end()
        brokerProxy?.end()
        await appStore.stop()
    }

    /// Everything that every process printed so far.
    var logs: [(name: String, text: String)] { state.withLock { $0.processes }.map { ($0.name, $0.log) } }

    private func report(_ error: any Error) async -> String {
        var lines = ["--- \(error)", "--- rows", await describeRows()]
        let processes = state.withLock { $0.processes }
        for process in processes.suffix(8) {
            lines += ["--- \(process.name), process \(process.id)", process.logTail]
        }
        return lines.joined(separator: "\n")
    }
}

// MARK: - Processes

extension System {
    /// The program: beside the test bundle, or where the environment says.
    static let binary: String = {
        if let path = ProcessInfo.processInfo.environment["MAKEGOOD_TEST_BINARY"] { return path }
        let beside = URL(filePath: "/proc/self/exe").resolvingSymlinksInPath().deletingLastPathComponent()
            .appending(path: "makegood").path
        if FileManager.default.isExecutableFile(atPath: beside) { return beside }
        return URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
            .deletingLastPathComponent().appending(path: ".build/debug/makegood").path
    }()

    /// deploy/local, of which private servers use a copy.
    static let localScript =
        ProcessInfo.processInfo.environment["MAKEGOOD_LOCAL"]
        ?? URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
        .deletingLastPathComponent().appending(path: "deploy/local").path

    /// A server's address for the user of this role; nil: the address as given to the tests, with all rights.
    private func address(_ url: String, as role: DatabaseRole?) throws -> String {
        guard let role else { return url }
        guard var parts = URLComponents(string: url) else { throw Failure(description: "the address of a server") }
        parts.user = "makegood_\(role.rawValue)"
        if parts.password != nil { parts.password = parts.user }
        return parts.string ?? url
    }

    private func environment(as role: DatabaseRole?) throws -> [String: String] {
        var environment = [
            "MAKEGOOD_POSTGRES_URL": try address(postgresURL, as: role),
            "MAKEGOOD_AMQP_URL": try address(amqpURL, as: shape.declaresQueues ? nil : role),
            "MAKEGOOD_CONFIG": "\(directory)/makegood.yaml", "MAKEGOOD_QUEUE_PREFIX": queuePrefix,
            "MAKEGOOD_HTTP_PORT": "0", "MAKEGOOD_TIME_SCALE": "\(shape.timeScale)",
            "MAKEGOOD_DRAIN_DELAY_SECONDS": "0",
        ]
        for name in ["PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR"] {
            environment[name] = ProcessInfo.processInfo.environment[name]
        }
        return environment
    }

    private func serviceEnvironment(_ role: Role) throws -> [String: String] {
        var environment = try environment(as: DatabaseRole(rawValue: role.rawValue))
        for (name, proxy) in [("MAKEGOOD_POSTGRES_URL", postgresProxy), ("MAKEGOOD_AMQP_URL", brokerProxy)] {
            if let proxy, let url = environment[name] { environment[name] = proxy.url(url) }
        }
        return environment
    }

    /// Starts a process of this role. Returns when ingest answers, or when a worker or scheduler has said that it
    /// started.
    @discardableResult
    func start(_ role: Role, _ environment: [String: String] = [:]) async throws -> RunningProcess {
        let process = try launch(role, environment)
        if role == .ingest || role == .all {
            let client = Client(url: "http://127.0.0.1:\(try await process.port(of: "ingest"))")
            state.withLock { $0.client = client }
        } else {
            try await wait("\(role.rawValue) to start", within: .seconds(60)) {
                process.log.contains("\(role.rawValue) started") || !process.isRunning
            }
        }
        return process
    }

    private func launch(_ role: Role, _ extra: [String: String]) throws -> RunningProcess {
        let number = state.withLock { state in
            state.started[role.rawValue, default: 0] += 1
            return state.started[role.rawValue] ?? 0
        }
        let name = "\(role.rawValue)-\(number)"
        let command = (shape.isPolite ? ["/usr/bin/nice", "-n", "10"] : []) + [Self.binary, role.rawValue]
        let process = try RunningProcess(
            name, executable: command[0], arguments: Array(command.dropFirst()),
            environment: try serviceEnvironment(role).merging(extra) { $1 },
            logPath: "\(directory)/\(name).log")
        state.withLock { $0.processes.append(process) }
        return process
    }

    /// Starts a process again whenever it ends, as an init system would.
    func supervise(_ role: Role, _ environment: [String: String] = [:]) {
        let supervisor = Task {
            while !Task.isCancelled {
                guard let process = try? launch(role, environment) else { return }
                while process.isRunning, !Task.isCancelled { try? await Task.sleep(for: .milliseconds(20)) }
                if Task.isCancelled { await process.killHard() }
            }
        }
        state.withLock { $0.supervisors.append(supervisor) }
    }

    /// Ends the supervisors, and kills the processes they keep alive.
    func endSupervision() async {
        let supervisors = state.withLock { state in
            defer { state.supervisors = [] }
            return state.supervisors
        }
        for supervisor in supervisors { supervisor.cancel() }
        for supervisor in supervisors { await supervisor.value }
    }

    /// How many processes of this role were started so far.
    func started(_ role: Role) -> Int { state.withLock { $0.started[role.rawValue] ?? 0 } }

    func client(of process: RunningProcess) async throws -> Client {
        Client(url: "http://127.0.0.1:\(try await process.port(of: "ingest"))")
    }

    /// Talks to the ingest that was started last.
    var client: Client {
        get throws {
            guard let client = state.withLock({ $0.client }) else {
                throw Failure(description: "no ingest was started")
            }
            return client
        }
    }

    /// Runs a command to its end, without proxies; returns what it printed. Fails unless it ends with exit 0.
    ///
    /// - Parameter role: the role whose rights the command has; nil: all rights.
    @discardableResult
    func command(_ arguments: String..., as role: DatabaseRole? = .support) async throws -> String {
        try await command(arguments, as: role)
    }

    @discardableResult
    func command(_ arguments: [String], as role: DatabaseRole? = .support) async throws -> String {
        let name = "command-\(UUID().uuidString.prefix(8))"
        let process = try RunningProcess(
            name, executable: Self.binary, arguments: arguments,
            environment: try environment(as: role),
            logPath: "\(directory)/\(name).log")
        let ending: RunningProcess.Ending
        do {
            ending = try await process.end(within: .seconds(60))
        } catch {
            await process.killHard()
            throw error
        }
        guard ending == .exit(0) else {
            throw Failure(
                description: "makegood \(arguments.joined(separator: " ")) ended with \(ending):\n\(process.logTail)")
        }
        return process.log
    }
}

// MARK: - Configuration

extension System {
    var file: ConfigurationFile { state.withLock { $0.file } }

    /// How the tables name a user of `game`.
    func stored(_ user: String) -> String {
        guard file.users != nil else { return user }
        return UserKeys(file: ConfigurationFile.Users.key)?.key(of: user, app: "game") ?? user
    }

    /// Changes the file. Processes see it when they start, or after `reload`.
    func configure(_ change: (inout ConfigurationFile) -> Void) throws {
        state.withLock { change(&$0.file) }
        try writeConfiguration()
    }

    /// Changes the app `game`.
    func configureGame(_ change: (inout ConfigurationFile.App) -> Void) throws {
        try configure { change(&$0.apps[0]) }
    }

    /// Sends SIGHUP to every process; returns when each has said that it took the file.
    func reload() async throws { try await hangUp("configuration taken") }

    /// Sends SIGHUP to every process; returns when each has logged these words once more.
    func hangUp(_ words: String) async throws {
        let processes = state.withLock { $0.processes.filter(\.isRunning) }
        let before = processes.map { $0.log.ranges(of: words).count }
        for process in processes { process.send(SIGHUP) }
        try await wait("every process to log: \(words)") {
            zip(processes, before).allSatisfy { $0.log.ranges(of: words).count > $1 || !$0.isRunning }
        }
    }

    private func writeConfiguration() throws {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.prettyPrinted, .withoutEscapingSlashes]
        func write(_ data: Data, _ name: String) throws { try data.write(to: URL(filePath: "\(directory)/\(name)")) }
        try write(try encoder.encode(file), "makegood.yaml")
        try write(Data(appStore.store.rootCertificateDER), "root.der")
        try write(Data(appStore.store.credentials.privateKeyPEM.utf8), "key.p8")
        try write(Data(GatewayKey.publicPEM.utf8), "gateway.pem")
        try write(Data(ConfigurationFile.Users.key.utf8), "users.key")
    }
}

// MARK: - Buying, and the invariants

extension System {
    /// Posts as a player's app: until the post is accepted, as a client must. The answer's status is 200 or 202.
    @discardableResult
    func submit(
        _ post: Client.Post, to client: Client? = nil, wait seconds: Int? = nil, patience: Duration = .seconds(60)
    ) async throws -> Client.Answer {
        let client = try client ?? self.client
        let deadline = ContinuousClock.now + patience
        while true {
            let answer = try? await client.post(post, wait: seconds)
            if let answer, answer.isAccepted {
                state.withLock { _ = $0.invariants.accepted.insert(answer.id) }
                return answer
            }
            if let answer, answer.status != 503 {
                throw Failure(description: "a post was answered \(answer.status): \(answer.text)")
            }
            guard ContinuousClock.now < deadline else {
                throw Failure(description: "a post was not accepted within \(patience): \(answer?.text ?? "no answer")")
            }
            try await Task.sleep(for: .milliseconds(100))
        }
    }

    /// Submits the signed transaction of a sale.
    @discardableResult
    func submit(
        _ sale: Sale, user: String, app: String = "game", wait seconds: Int? = nil
    ) async throws -> Client.Answer {
        try await submit(.init(appId: app, userId: user, signedTransaction: sale.signedTransaction), wait: seconds)
    }

    /// Submits the signed transactions of many sales in one post; all must be accepted.
    func submit(_ sales: [Sale], user: String) async throws {
        let answers = try await client.postBatch(
            sales.map { Client.Post(userId: user, signedTransaction: $0.signedTransaction) })
        guard answers.count == sales.count, answers.allSatisfy(\.isAccepted) else {
            throw Failure(description: "a batch was answered \(answers.map(\.status)): \(answers.first?.text ?? "")")
        }
        state.withLock { $0.invariants.accepted.formUnion(answers.map(\.id)) }
    }

    /// Submits the legacy receipt of a sale.
    @discardableResult
    func submitReceipt(
        _ sale: Sale, user: String, app: String = "game", wait seconds: Int? = nil
    ) async throws -> Client.Answer {
        try await submit(.init(appId: app, userId: user, receipt: sale.receipt), wait: seconds)
    }

    /// Notes that this purchase must be granted in the end, once, to one of these users.
    func owe(_ sale: Sale, to users: String...) {
        state.withLock { $0.invariants.owed[sale.purchase.transactionId] = Set(users) }
    }

    /// As `owe(_:to:)`, for a purchase that the App Store made by itself.
    func owe(_ transactionID: String, to user: String) {
        state.withLock { state in state.invariants.owed[transactionID] = [user] }
    }

    /// As `owe(_:to:)`, for what the simulator signed without a sale.
    func owe(_ grantID: String, of productID: String, in environment: String, to user: String) {
        owe(grantID, to: user)
        state.withLock { $0.invariants.unsold[grantID] = (productID, environment) }
    }

    /// As `owe(_:to:)`, with the amount that was promised for one unit of its item instead of the configuration file's.
    func owe(_ sale: Sale, promised amount: Int, to user: String) {
        owe(sale, to: user)
        state.withLock { $0.invariants.promised[sale.purchase.transactionId] = amount }
    }

    func owe(_ sales: [Sale], to user: String) {
        for sale in sales { owe(sale, to: user) }
    }

    /// Waits until every owed purchase was granted.
    func settleDebts(within limit: Duration = .seconds(60)) async throws {
        let owed = state.withLock { Set($0.invariants.owed.keys) }
        try await wait("\(owed.count) purchases to be granted", within: limit) {
            try await owed.isSubset(of: Set(self.texts("select transaction_id from grants")))
        }
    }

    private func checkInvariants() async throws {
        try await settleDebts()
        if shape.endsQuiet {
            try await wait("every receipt to have a verdict") {
                try await self.count("select count(*) from receipts where state = 'received'") == 0
            }
        }
        let invariants = state.withLock { $0.invariants }
        if !state.withLock({ $0.processes.contains { $0.name.hasPrefix("ingest") && $0.isRunning } }),
            !state.withLock({ $0.processes.contains { $0.name.hasPrefix("all") && $0.isRunning } })
        {
            try await start(.ingest)
        }
        try await invariants.hold(in: self)
    }
}
