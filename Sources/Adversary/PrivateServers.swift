import Foundation

/// PostgreSQL and RabbitMQ that nobody else uses, so that they may really be killed and restarted.
///
/// A copy of deploy/local keeps its servers beside itself. Takes about 15 s to start.
package struct PrivateServers: Sendable {
    package struct Failure: Error, CustomStringConvertible {
        package let description: String
    }

    package let postgresURL: String
    package let amqpURL: String
    private let root: String

    /// - Parameter script: deploy/local, of which a copy is used.
    package static func run(script: String, _ body: (PrivateServers) async throws -> Void) async throws {
        let root = FileManager.default.temporaryDirectory.appending(path: "makegood-servers-\(UUID().uuidString)").path
        try FileManager.default.createDirectory(atPath: "\(root)/deploy", withIntermediateDirectories: true)
        try FileManager.default.copyItem(atPath: script, toPath: "\(root)/deploy/local")
        do {
            try await call(root, "up")
            let environment = try await call(root, "env")
            func value(_ name: String) -> String {
                let line = environment.split(separator: "\n").first { $0.hasPrefix("export \(name)=") }
                return line.map { String($0.dropFirst("export \(name)=".count)) } ?? ""
            }
            try await body(
                PrivateServers(
                    postgresURL: value("MAKEGOOD_POSTGRES_URL"), amqpURL: value("MAKEGOOD_AMQP_URL"), root: root))
        } catch {
            await remove(root)
            throw error
        }
        await remove(root)
    }

    package func restart(_ server: String) async throws { try await Self.call(root, "restart", server) }
    package func kill(_ server: String) async throws { try await Self.call(root, "kill", server) }
    package func up() async throws { try await Self.call(root, "up") }

    private static func remove(_ root: String) async {
        _ = try? await call(root, "down")
        // As root the database lies elsewhere, behind a link.
        let link = "\(root)/.local/postgres"
        if let elsewhere = try? FileManager.default.destinationOfSymbolicLink(atPath: link) {
            try? FileManager.default.removeItem(atPath: elsewhere)
        }
        try? FileManager.default.removeItem(atPath: root)
    }

    @discardableResult
    private static func call(_ root: String, _ arguments: String...) async throws -> String {
        let log = "\(root)/deploy/\(arguments.joined(separator: "-")).log"
        try? FileManager.default.removeItem(atPath: log)
        let process = try RunningProcess(
            "deploy/local", executable: "\(root)/deploy/local", arguments: arguments,
            environment: ProcessInfo.processInfo.environment.filter {
                ["PATH", "HOME", "USER", "TMPDIR"].contains($0.key)
            },
            logPath: log)
        guard try await process.end(within: .seconds(180)) == .exit(0) else {
            throw Failure(description: "deploy/local \(arguments) failed:\n\(process.logTail)")
        }
        return process.log
    }
}
