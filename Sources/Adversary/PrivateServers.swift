import Foundation
import Glibc

/// A PostgreSQL and a RabbitMQ of the run's own, which it may kill and restart.
///
/// A copy of `deploy/local` keeps its servers beside itself. Starting takes about 15 s.
package struct PrivateServers: Sendable {
    package struct Failure: Error, CustomStringConvertible {
        package let description: String
    }

    package let postgresURL: String
    package let amqpURL: String
    /// The script that these servers run by.
    let script: String
    private let root: String
    /// The directory for files that belong to these servers; removed with them.
    var directory: URL { URL(filePath: root) }

    /// - Parameter script: `deploy/local`; the run uses a copy.
    package static func run<Result: Sendable>(
        script: String, _ body: (PrivateServers) async throws -> Result
    ) async throws -> Result {
        let root = FileManager.default.temporaryDirectory.appending(path: "makegood-servers-\(UUID().uuidString)").path
        ProcessReaper.shared.add(root: root)
        try FileManager.default.createDirectory(atPath: "\(root)/deploy", withIntermediateDirectories: true)
        try FileManager.default.copyItem(atPath: script, toPath: "\(root)/deploy/local")
        do {
            try await call(root, "up")
            let environment = try await call(root, "env")
            func value(_ name: String) -> String {
                let line = environment.split(separator: "\n").first { $0.hasPrefix("export \(name)=") }
                return line.map { String($0.dropFirst("export \(name)=".count)) } ?? ""
            }
            let result = try await body(
                PrivateServers(
                    postgresURL: value("MAKEGOOD_POSTGRES_URL"), amqpURL: value("MAKEGOOD_AMQP_URL"), script: script,
                    root: root))
            await remove(root)
            return result
        } catch {
            await remove(root)
            throw error
        }
    }

    package func restart(_ server: String) async throws { try await Self.call(root, "restart", server) }
    package func kill(_ server: String) async throws { try await Self.call(root, "kill", server) }
    package func up() async throws { try await Self.call(root, "up") }

    /// Runs `rabbitmqctl` and returns its output.
    @discardableResult
    package func rabbitmqctl(_ arguments: String...) async throws -> String {
        try await Self.call(root, ["rabbitmqctl"] + arguments)
    }

    /// Runs these statements in one session of `psql`, as the superuser.
    @discardableResult
    package func psql(_ statements: String..., database: String = "postgres") async throws -> String {
        try await Self.call(
            root, ["psql", "-qAt", "-v", "ON_ERROR_STOP=1", "-d", database] + statements.flatMap { ["-c", $0] })
    }

    /// Sends a signal to a server and, for PostgreSQL, to all its processes.
    package func send(_ signal: Int32, to server: String) async throws {
        try await Self.send(signal, to: server, root)
    }

    private static func send(_ signal: Int32, to server: String, _ root: String) async throws {
        // `status` fails where a server is not up, for example stopped; its output is true all the same.
        let status = try await call(root, ["status"], mayFail: true)
        guard let line = status.split(separator: "\n").first(where: { $0.hasPrefix(server) }),
            let id = line.split(separator: " ").last.flatMap({ pid_t($0) })
        else { throw Failure(description: "\(server) does not run:\n\(status)") }
        Glibc.kill(id, signal)
        guard server == "postgres" else { return }
        let children = (try? String(contentsOfFile: "/proc/\(id)/task/\(id)/children", encoding: .utf8)) ?? ""
        for child in children.split(separator: " ").compactMap({ pid_t($0) }) { Glibc.kill(child, signal) }
    }

    /// Kills the broker with kill -9 and deletes its data. `up` starts an empty one.
    package func wipeBroker() async throws {
        try await kill("rabbitmq")
        try FileManager.default.removeItem(atPath: "\(root)/.local/rabbitmq/mnesia")
    }

    private static func remove(_ root: String) async {
        // `down` would wait a minute for a stopped server.
        for server in ["postgres", "rabbitmq"] { try? await send(SIGCONT, to: server, root) }
        _ = try? await call(root, "down")
        // For root, `deploy/local` keeps the database elsewhere, behind a link.
        let link = "\(root)/.local/postgres"
        if let elsewhere = try? FileManager.default.destinationOfSymbolicLink(atPath: link) {
            try? FileManager.default.removeItem(atPath: elsewhere)
        }
        try? FileManager.default.removeItem(atPath: root)
        ProcessReaper.shared.remove(root: root)
    }

    @discardableResult
    private static func call(_ root: String, _ arguments: String...) async throws -> String {
        try await call(root, arguments)
    }

    @discardableResult
    private static func call(
        _ root: String, _ arguments: [String], mayFail: Bool = false
    ) async throws -> String {
        let log = "\(root)/deploy/\(arguments[0])-\(UUID().uuidString.prefix(8)).log"
        defer { try? FileManager.default.removeItem(atPath: log) }
        let process = try RunningProcess(
            "deploy/local", executable: "\(root)/deploy/local", arguments: arguments,
            environment: ProcessInfo.processInfo.environment.filter {
                ["PATH", "HOME", "USER", "TMPDIR"].contains($0.key)
            },
            logPath: log)
        // The servers are taken down in a task of their own, so that a cancelled caller takes them down too.
        let ending = try await Task { try await process.end(within: .seconds(180)) }.value
        guard mayFail || ending == .exit(0) else {
            throw Failure(description: "deploy/local \(arguments) failed:\n\(process.logTail)")
        }
        return process.log
    }
}

extension PrivateServers {
    /// Makes both servers run as at the start, whatever a drill changed.
    func restore() async throws {
        for server in ["postgres", "rabbitmq"] { try? await send(SIGCONT, to: server) }
        try await up()
        try await psql(
            "set default_transaction_read_only = off", "alter system reset all", "select pg_reload_conf()")
        _ = try? await rabbitmqctl("start_app")
        _ = try? await rabbitmqctl("clear_policy", "full")
        _ = try? await rabbitmqctl("set_vm_memory_high_watermark", "0.4")
        _ = try? await rabbitmqctl("set_disk_free_limit", "50000000")
    }
}
