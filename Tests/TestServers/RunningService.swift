import Logging
public import ServiceLifecycle

/// A server of a test within the test's own process.
///
/// It is ended as a service is: it listens no more before what still hangs is cancelled. A Hummingbird server that is
/// cancelled while a connection comes to it ends the whole process (`NIOAsyncWriter`: deinited without `finish()`).
public struct RunningService: Sendable {
    private let group: ServiceGroup
    private let running: Task<Void, any Error>

    public init(_ service: some Service) {
        let group = ServiceGroup(services: [service], logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        self.group = group
        running = Task { try await group.run() }
    }

    /// What it is answering then has a second. Throws what it ended by, if that was not this.
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
