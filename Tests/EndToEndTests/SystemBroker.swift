import Foundation
import Logging
import RabbitMQ
import TestServers
import WorkQueue

/// What a test does at the broker itself, without the services.
extension System {
    /// Publishes any bytes into a queue, from a connection of the test's own.
    func publish(_ body: String, to queue: String) throws {
        guard let broker else { throw Failure(description: "private brokers are not published to") }
        try broker.publish(Array(body.utf8), to: queue)
    }

    func deleteQueue(_ queue: String) throws { try broker?.delete(queue) }

    /// The number of ready messages.
    func depth(of queue: String) async throws -> Int {
        try await withPublisher { try await $0.depth(of: queue) }
    }

    func consumers(of queue: String) async throws -> Int {
        try await withPublisher { try await $0.counts(of: queue).consumers }
    }

    /// Deletes every ready message of a queue; returns how many. Pointers for the local queue may share a message.
    func purge(_ queue: String) throws -> Int {
        guard let broker else { throw Failure(description: "private brokers are not purged") }
        return try broker.purge(queue)
    }

    /// Waits until the broker has confirmed `count` messages for a queue to the ingest that was started last.
    func waitForMessages(_ count: Int, in queue: String) async throws {
        try await wait("\(count) rings to have left for \(queue)") {
            try await self.client.get("/metrics").text.contains(
                "makegood_amqp_published_total{outcome=\"confirmed\",queue=\"\(queue)\"} \(count)\n")
        }
    }

    /// Rejects `count` bodies, as a worker does that cannot read them.
    func reject(_ count: Int, of queue: String) async throws {
        let consumer = Consumer(
            try BrokerConfiguration(url: amqpURL), topology: queues.topology,
            subscriptions: [Subscription(queue: queue, prefetch: 100)],
            logger: Logger(label: "quiet") { _ in SwiftLogNoOpLogHandler() })
        await consumer.start()
        var rejected = 0
        for await delivery in consumer.deliveries {
            consumer.reject(delivery)
            rejected += 1
            if rejected == count { break }
        }
        await consumer.close()
    }

    private func withPublisher<Result: Sendable>(_ body: (Publisher) async throws -> Result) async throws -> Result {
        let publisher = Publisher(
            try BrokerConfiguration(url: amqpURL), topology: queues.topology,
            logger: Logger(label: "quiet") { _ in SwiftLogNoOpLogHandler() })
        await publisher.start()
        do {
            let result = try await body(publisher)
            await publisher.close()
            return result
        } catch {
            await publisher.close()
            throw error
        }
    }
}
