import Logging
public import ServiceLifecycle

/// A server of a test within the test's own process.
///
/// It ends as a service does: it stops listening before its open connections are cancelled. If a Hummingbird server is
/// cancelled while a connection arrives, the whole process ends (`NIOAsyncWriter`: deinited without `finish()`).
public struct RunningService: Sendable {
    private let group: ServiceGroup
    private let running: Task<Void, any Error>

    public init(_ service: some Service) {
        let group = ServiceGroup(services: [service], logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        self.group = group
        running = Task { try await group.run() }
    }

    /// Ends the server; open answers get one second. Throws the server's error if it ended for another reason.
    public func stop() async throws {
        await group.triggerGracefulShutdown()
        let patience = Task { [running] in
            try await Task.sleep(for: .seconds(1))
            running.cancel()
        }
        let ended = await running.result
        patience.cancel()
        if case .failure(let error) = ended, !(error is CancellationError) { throw error }
    }

    /// Runs a service while `body` runs.
    public static func with<Result>(
        _ service: some Service, _ body: () async throws -> sending Result
    ) async throws -> sending Result {
        let server = RunningService(service)
        let result: Result
        do {
            result = try await body()
        } catch {
            try? await server.stop()
            throw error
        }
        try await server.stop()
        return result
    }
}
