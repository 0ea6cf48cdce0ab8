/// One body of a message. The receiver settles it once, with `Consumer.acknowledge` or `Consumer.reject`.
package struct Delivery: Sendable {
    package let queue: String
    /// At most 64 KiB.
    package let body: [UInt8]
    /// The broker delivered the message before, to this consumer or another, and it was not settled.
    package let redelivered: Bool
    /// The trace that the body belongs to (W3C Trace Context), as it was published.
    package let traceparent: String?
    /// How the message became a dead letter; nil for any other message, or if the broker does not say.
    package let death: Death?
    /// The number of the consumer's connection that brought the message; the tag means nothing on another connection.
    let generation: UInt64
    let tag: UInt64
    /// The place of the body in its message, from 0.
    let line: Int
}

/// A queue to consume from, with its own bound on unsettled deliveries.
package struct Subscription: Sendable, Hashable {
    package let queue: String
    /// 1 to 65,535; a value outside becomes the nearest of these.
    package let prefetch: Int

    package init(queue: String, prefetch: Int) {
        self.queue = queue
        self.prefetch = prefetch
    }
}
