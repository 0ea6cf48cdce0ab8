/// How long the publisher keeps a connection on which the broker refuses messages. Pure.
///
/// After a quorum queue was full and an operator lifted its limit, RabbitMQ 3.10 goes on refusing the messages of an
/// old channel [seen: for 150 s and more] and accepts those of a new channel. Nothing tells the publisher that the
/// limit was lifted: only a new connection can find out. While the queue stays full, each new connection is refused as
/// well, and costs the messages in flight. So the pauses double: the publisher finds out at most as long after the lift
/// as the queue was full, and never later than `longest`. A queue that is merely emptied takes messages again on the
/// same channel.
struct RefusalPatience {
    typealias Instant = ContinuousClock.Instant

    /// How often the pause doubles.
    private static let growthMax = 4

    private let first: Duration
    private var current: Duration
    private var lastRefusal: Instant?

    init(_ first: Duration) {
        self.first = first
        current = first
    }

    private var longest: Duration { first * (1 << Self.growthMax) }

    /// Records that the broker refused a message on a connection opened at `openedAt`. True: the publisher should open
    /// a new connection.
    ///
    /// A confirm does not reset the pause, because the other queues of the connection may have room. Only `longest`
    /// without a refusal does.
    mutating func isOver(at now: Instant, openedAt: Instant) -> Bool {
        if let lastRefusal, now - lastRefusal > longest { current = first }
        lastRefusal = now
        guard now - openedAt > current else { return false }
        current = min(current * 2, longest)
        return true
    }
}
