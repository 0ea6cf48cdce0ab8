package import Foundation
package import Purchases
package import RabbitMQ
import Service

/// Publishes the ids of receipts to RabbitMQ, each with the trace it belongs to, if any; workers consume them. A lost
/// message costs time, never a receipt: a scheduler publishes the row again at its due time.
package final class WorkQueue: Sendable {
    private let publisher: Publisher
    package let queues: Queues

    package init(publisher: Publisher, queues: Queues) {
        self.publisher = publisher
        self.queues = queues
    }

    /// Publishes in the background. No answer to a client waits for the broker.
    package func publish(_ pointer: Pointer, lane: Lane) {
        // The publisher logs an outage once, and counts each lost message in its metrics.
        publisher.offer(
            pointer.text, to: queues.verify(lane), traceparent: TraceContext.current?.traceparent)
    }

    /// Rings in the background: this endpoint has something due.
    package func ring(_ endpointID: UUID) {
        publisher.offer(Pointer(endpointID: endpointID).text, to: queues.deliver, traceparent: nil)
    }

    /// Publishes and waits for the broker's confirm.
    package func publish(_ pointer: Pointer, to queue: String) async throws(RabbitMQError) {
        try await publisher.publish(pointer.text, to: queue, traceparent: TraceContext.current?.traceparent)
    }

    /// The number of messages that no worker could work on; a person should look at them.
    package func deadLetters() async throws(RabbitMQError) -> Int {
        try await publisher.depth(of: queues.dead)
    }

    /// How many rings wait for a dispatcher.
    package func waitingRings() async throws(RabbitMQError) -> Int {
        try await publisher.depth(of: queues.deliver)
    }

    /// How many messages wait in a lane's queue, and how many workers consume from it.
    package func counts(of lane: Lane) async throws(RabbitMQError) -> (messages: Int, consumers: Int) {
        try await publisher.counts(of: queues.verify(lane))
    }
}
