import FaultProxy
import Foundation
import Glibc
import Ledger
import Synchronization

/// One place of the deployment, filled by one process after the other. Its proxies stay.
final class Member: Sendable {
    enum Role: String, Sendable, CaseIterable {
        case ingest, worker, scheduler
        /// The three in one process.
        case all

        /// The user it is at the database and at the broker (`makegood roles`).
        var user: DatabaseRole {
            switch self {
            case .ingest: .ingest
            case .worker: .worker
            case .scheduler: .scheduler
            case .all: .all
            }
        }
        /// Clients post to it.
        var listens: Bool { self == .ingest || self == .all }
    }

    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    /// Within the drain delay of the deployment.
    private static let gatewayNotices: Duration = .milliseconds(300)

    private struct State {
        var process: RunningProcess?
        /// Clients may be sent here.
        var isOpen = false
        var operationsPort: Int?
        var starts = 0
    }

    let role: Role
    let name: String
    let postgres: FaultProxy
    let broker: FaultProxy
    /// Between the clients and an ingest.
    let clients: FaultProxy
    /// What it has asked its servers and not yet been told.
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
    /// It runs and has said that it started.
    var isUp: Bool { state.withLock { $0.operationsPort != nil && $0.process?.isRunning == true } }
    var starts: Int { state.withLock { $0.starts } }

    /// Where an ingest takes posts; nil while it does not listen.
    var address: String? {
        state.withLock { state in
            state.isOpen && state.process?.isRunning == true ? Self.clientsURL(port: clients.port) : nil
        }
    }

    private static func clientsURL(port: Int) -> String { "http://127.0.0.1:\(port)" }

    /// Starts a process; it works when this returns, or has died already of a crash point it was given.
    ///
    /// - Parameters:
    ///   - crash: where it shall die (`CrashPoint`).
    ///   - wrapper: a command and its arguments that becomes the program.
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
            // Dead of its crash point before it said that it started: fine.
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

    /// SIGTERM and its orderly end; how long it took. Clients come for a little while yet, until their gateway has
    /// seen that it is not ready any more.
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

    /// What its servers answer from now on stays with the proxies, until the function returned is called.
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
