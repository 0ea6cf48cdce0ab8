import FaultProxy
import Foundation
import Glibc
import Ledger
import Synchronization

/// One place in the deployment, which one process after the other fills. The place's proxies stay.
final class Member: Sendable {
    enum Role: String, Sendable, CaseIterable {
        case ingest, worker, scheduler, dispatcher
        /// All roles in one process.
        case all

        /// The name under which a process of this role logs in at the database and at the broker (`makegood roles`).
        var user: DatabaseRole {
            switch self {
            case .ingest: .ingest
            case .worker: .worker
            case .scheduler: .scheduler
            case .dispatcher: .dispatcher
            case .all: .all
            }
        }
        /// Whether clients post to this role.
        var listens: Bool { self == .ingest || self == .all }
    }

    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    /// How long the gateway needs to notice a shutdown: less than the drain delay of the deployment.
    private static let gatewayNotices: Duration = .milliseconds(300)

    private struct State {
        var process: RunningProcess?
        /// Whether clients may be sent here.
        var isOpen = false
        var operationsPort: Int?
        var starts = 0
    }

    let role: Role
    let name: String
    let postgres: FaultProxy
    let broker: FaultProxy
    /// The proxy between the clients and an ingest.
    let clients: FaultProxy
    /// The process's requests that its servers have not answered yet.
    let work: WorkInFlight
    let environment: [String: String]
    private let executable: String
    private let directory: String
    private let state = Mutex(State())

    init(
        _ role: Role, _ number: Int, executable: String, environment: [String: String], postgresURL: String,
        amqpURL: String, directory: String
    ) throws {
        self.role = role
        self.executable = executable
        self.directory = directory
        name = "\(role.rawValue)-\(number)"
        let work = WorkInFlight()
        self.work = work
        postgres = try FaultProxy(to: postgresURL) { work.observePostgres() }
        broker = try FaultProxy(to: amqpURL) { work.observeBroker() }
        clients = try FaultProxy(to: Self.clientsURL(port: 1))
        var environment = environment
        environment["MAKEGOOD_POSTGRES_URL"] = postgres.url(postgresURL)
        environment["MAKEGOOD_AMQP_URL"] = broker.url(amqpURL)
        self.environment = environment
    }

    var process: RunningProcess? { state.withLock { $0.process } }
    var operationsPort: Int? { state.withLock { $0.operationsPort } }
    /// Whether the process runs and has said that it started.
    var isUp: Bool { state.withLock { $0.operationsPort != nil && $0.process?.isRunning == true } }
    var starts: Int { state.withLock { $0.starts } }

    /// The address at which an ingest takes posts; nil while it does not listen.
    var address: String? {
        state.withLock { state in
            state.isOpen && state.process?.isRunning == true ? Self.clientsURL(port: clients.port) : nil
        }
    }

    private static func clientsURL(port: Int) -> String { "http://127.0.0.1:\(port)" }

    /// Starts a process. On return the process works, or has already died at the given crash point.
    ///
    /// - Parameters:
    ///   - crash: where the process shall die (`CrashPoint`).
    ///   - wrapper: a command and its arguments, which starts the program.
    func start(
        crash: String? = nil, wrapper: [String] = [], _ extra: [String: String] = [:]
    ) async throws {
        var environment = environment.merging(extra) { $1 }
        environment["MAKEGOOD_TEST_CRASH"] = crash
        let number = state.withLock { state in
            state.starts += 1
            return state.starts
        }
        let words = wrapper + [executable, role.rawValue]
        let process = try RunningProcess(
            name, executable: words[0], arguments: Array(words.dropFirst()), environment: environment,
            logPath: "\(directory)/\(name).\(number).log")
        state.withLock { state in
            state.process = process
            state.isOpen = false
            state.operationsPort = nil
        }
        do {
            let operations = try await process.port(of: "operations")
            if role.listens {
                clients.retarget(to: Self.clientsURL(port: try await process.port(of: "ingest")))
            } else {
                try await started(process)
            }
            state.withLock { state in
                state.operationsPort = operations
                state.isOpen = role.listens
            }
        } catch {
            // The process died at its crash point before it said that it started, which is allowed.
            guard crash != nil, !process.isRunning else { throw error }
        }
    }

    private func started(_ process: RunningProcess) async throws {
        let deadline = ContinuousClock.now + .seconds(60)
        while !process.log.contains("\(role.rawValue) started") {
            guard process.isRunning, ContinuousClock.now < deadline else {
                throw Failure(description: "\(name) did not start:\n\(process.logTail)")
            }
            try await Task.sleep(for: .milliseconds(20))
        }
    }

    func kill() async { await process?.killHard() }

    /// Sends SIGTERM, waits for an orderly end and returns how long it took. Clients still come for a little while,
    /// until the gateway has seen that the process is not ready any more.
    func terminate(within limit: Duration) async throws -> Duration {
        guard let process else { return .zero }
        let start = ContinuousClock.now
        process.send(SIGTERM)
        try await Task.sleep(for: Self.gatewayNotices)
        state.withLock { $0.isOpen = false }
        let ending: RunningProcess.Ending
        do {
            ending = try await process.end(within: limit)
        } catch {
            throw Failure(description: "\(name) does not end:\n\(process.logTail)")
        }
        guard ending == .exit(0) else {
            throw Failure(description: "\(name) ended with \(ending):\n\(process.logTail)")
        }
        return ContinuousClock.now - start
    }

    /// Makes the proxies hold the servers' answers until the caller calls the returned function.
    func holdAnswers() -> () -> Void {
        let before = [postgres, broker].map { ($0, $0.conditions) }
        for (proxy, conditions) in before {
            var held = conditions
            held.toClient.isHeld = true
            proxy.set(held)
        }
        return { for (proxy, conditions) in before { proxy.set(conditions) } }
    }

    func forward() {
        for proxy in [postgres, broker, clients] { proxy.set(.forwarding) }
    }

    func endProxies() {
        for proxy in [postgres, broker, clients] { proxy.end() }
    }
}
