/// One message handed to us, to be settled once with `Consumer.acknowledge` or `Consumer.reject`.
package struct Delivery: Sendable {
    package let queue: String
    /// At most 64 KiB.
    package let body: [UInt8]
    /// Delivered before, to us or to another: somebody did not settle it.
    package let redelivered: Bool
    /// The trace that its body belongs to (W3C Trace Context), as it was published.
    package let traceparent: String?
    /// How it became a dead letter; nil for any other message, or where the broker does not say.
    package let death: Death?
    /// Which connection of its consumer brought it; tags of another one mean nothing.
    let generation: UInt64
    let tag: UInt64
    /// Its place among the bodies of its message, from 0; 0 where the message has one.
    let line: Int
}

/// A queue to consume from, with its own bound on unsettled deliveries.
package struct Subscription: Sendable, Hashable {
    package let queue: String
    /// 1 to 65,535; what is outside of it becomes the nearest.
    package let prefetch: Int

    package init(queue: String, prefetch: Int) {
        self.queue = queue
        self.prefetch = prefetch
    }
}
