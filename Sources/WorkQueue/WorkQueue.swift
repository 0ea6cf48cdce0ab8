package import Purchases
package import RabbitMQ
import Service

/// Tells the workers that a row waits, and to which trace that belongs, if to any. Losing a ring costs time, never a receipt: the row's due time is the net.
package final class WorkQueue: Sendable {
    private let publisher: Publisher
    package let queues: Queues

    package init(publisher: Publisher, queues: Queues) {
        self.publisher = publisher
        self.queues = queues
    }

    /// Publishes in the background: never in the way of an answer, never waits for the broker.
    package func publish(_ pointer: Pointer, lane: Lane) {
        // The publisher logs an outage once; each lost ring is a number in its metrics.
        publisher.offer(
            pointer.text, to: queues.verify(lane), traceparent: TraceContext.current?.traceparent)
    }

    /// Publishes and waits for the broker's confirm.
    package func publish(_ pointer: Pointer, to queue: String) async throws(RabbitMQError) {
        try await publisher.publish(pointer.text, to: queue, traceparent: TraceContext.current?.traceparent)
    }

    /// Messages that nobody could work on: for a person to look at.
    package func deadLetters() async throws(RabbitMQError) -> Int {
        try await publisher.depth(of: queues.dead)
    }

    /// What waits in a lane's queue, and how many workers take from it.
    package func counts(of lane: Lane) async throws(RabbitMQError) -> (messages: Int, consumers: Int) {
        try await publisher.counts(of: queues.verify(lane))
    }
}
