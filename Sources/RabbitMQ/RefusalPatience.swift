/// How long a connection on which the broker refuses messages is kept. Pure.
///
/// RabbitMQ 3.10 goes on refusing a channel's messages for a quorum queue that was full after somebody lifted the limit
/// [seen: for 150 s and more], and takes a new channel's. Nothing tells us that it was lifted, so a new connection is
/// the question; while the queue stays full each one is answered no, and costs what was in flight. So the pauses double:
/// the answer comes at most as long after the lift as the queue was full, and never later than `longest`. A queue that
/// is merely emptied takes messages again on the same channel.
struct RefusalPatience {
    typealias Instant = ContinuousClock.Instant

    /// Doublings.
    private static let growthMax = 4

    private let first: Duration
    private var current: Duration
    private var lastRefusal: Instant?

    init(_ first: Duration) {
        self.first = first
        current = first
    }

    private var longest: Duration { first * (1 << Self.growthMax) }

    /// The broker refused a message on a connection opened then. True: it is worth a new one.
    ///
    /// Not ended by a confirm: the other queues of the connection may have room. Only by time without a refusal.
    mutating func isOver(at now: Instant, openedAt: Instant) -> Bool {
        if let lastRefusal, now - lastRefusal > longest { current = first }
        lastRefusal = now
        guard now - openedAt > current else { return false }
        current = min(current * 2, longest)
        return true
    }
}
