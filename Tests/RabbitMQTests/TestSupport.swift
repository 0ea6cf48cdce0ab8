import Logging
import Metrics
import MetricsTestKit
import Synchronization
import Testing

@testable import RabbitMQ

extension Topology {
    /// Queues without options.
    static func of(_ names: String...) -> Topology { Topology(queues: names.map { QueueDeclaration(name: $0) }) }
}

extension Publisher {
    /// Publishes concurrently; nil stands for a confirm.
    nonisolated func outcomes(
        of count: Int, _ message: @escaping @Sendable (Int) -> (body: String, queue: String)
    ) async -> [RabbitMQError?] {
        await withTaskGroup(of: RabbitMQError?.self) { group in
            for index in 0..<count {
                group.addTask {
                    let (body, queue) = message(index)
                    do throws(RabbitMQError) {
                        try await self.publish(body, to: queue)
                        return nil
                    } catch {
                        return error
                    }
                }
            }
            return await group.reduce(into: []) { $0.append($1) }
        }
    }

    nonisolated func publishAll(_ count: Int, to queue: String) async throws {
        let outcomes = await outcomes(of: count) { ("receipt \($0) 0", queue) }
        if let error = outcomes.lazy.compactMap({ $0 }).first { throw error }
    }
}

extension Logger {
    static let silent = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
}

/// The messages that a logger got.
final class CapturedLog: Sendable {
    private struct Handler: LogHandler {
        let log: CapturedLog
        var metadata: Logger.Metadata = [:]
        var logLevel = Logger.Level.trace
        subscript(metadataKey key: String) -> Logger.Metadata.Value? {
            get { metadata[key] }
            set { metadata[key] = newValue }
        }

        func log(event: LogEvent) {
            let reason = event.metadata?[LogKey.reason].map { "\($0)" }
            log.lines.withLock { $0.append((message: "\(event.message)", reason: reason)) }
        }
    }

    private let lines = Mutex<[(message: String, reason: String?)]>([])
    var messages: [String] { lines.withLock { $0.map(\.message) } }
    var reasons: [String] { lines.withLock { $0.compactMap(\.reason) } }
    var logger: Logger { Logger(label: "test") { _ in Handler(log: self) } }
}

/// The metrics that this process counts, from its first use on.
final class CountedMetrics: Sendable {
    static let shared = CountedMetrics()
    private let metrics = TestMetrics()

    private init() { MetricsSystem.bootstrap(metrics) }

    /// - Parameter outcome: `confirmed`, or the label of an error.
    func published(_ queue: String, _ outcome: String) -> Int64 {
        let counter = try? metrics.expectCounter(MetricName.published, [("queue", queue), ("outcome", outcome)])
        return counter?.totalValue ?? 0
    }
}

/// Polls until the condition holds; fails the test after the limit.
func eventually(
    within limit: Duration, sourceLocation: SourceLocation = #_sourceLocation, _ isSo: () async throws -> Bool
) async throws {
    let deadline = ContinuousClock.now + limit
    while try await !isSo() {
        guard ContinuousClock.now < deadline else {
            Issue.record("not within \(limit)", sourceLocation: sourceLocation)
            throw TookTooLong()
        }
        try await Task.sleep(for: .milliseconds(20))
    }
}

struct TookTooLong: Error {}
