package import Purchases
package import RabbitMQ

/// The queues, by name and arguments. All quorum queues; changed arguments mean a new name, and the rows refill it.
///
/// ```
/// verify.unposted ─┐
/// verify.bulk ─────┤
/// verify.local ────┤                    ┌─ retry.5000ms … retry.600000ms, back to verify.apple when their time is up
/// verify.apple ────┴─ worker ── again ──┘
///      └── undecodable, unknown, or delivered 20 times without an ack ── dead
/// deliver ── dispatcher
///      └── undecodable, or delivered 20 times without an ack ── dead
/// ```
package struct Queues: Sendable, Equatable {
    /// Deliveries without an ack after which a message is a dead letter and the row's due time takes over. A crash of
    /// the worker counts as one.
    package static let deliveryLimit = 20

    /// Pointers for the local queue that are published at the same moment share a message. Pointers for the other
    /// queues do not, because messages bound what is in flight there. An earlier program refuses such messages, and the
    /// receipts come back at their due times.
    package static let localBodiesPerMessage = 16

    private let prefix: String
    private let schedule: RetrySchedule

    package init(prefix: String = "makegood", schedule: RetrySchedule = RetrySchedule()) {
        self.prefix = prefix
        self.schedule = schedule
    }

    package func verify(_ lane: Lane) -> String { "\(prefix).verify.\(lane.rawValue)" }

    /// The rings for dispatchers.
    package var deliver: String { "\(prefix).deliver" }

    package var dead: String { "\(prefix).dead" }

    /// A retry queue, named by its delay, so that another delay is another queue.
    package func retry(_ index: Int) -> String {
        "\(prefix).retry.\(Int((schedule.delay(ofRetryQueue: index).inSeconds * 1000).rounded()))ms"
    }

    package var topology: Topology {
        let verify = Lane.allCases.map {
            QueueDeclaration(
                name: self.verify($0), deliveryLimit: Self.deliveryLimit, deadLetterExchange: "",
                deadLetterRoutingKey: dead, deadLetterStrategyAtLeastOnce: true,
                bodiesPerMessage: $0 == .local ? Self.localBodiesPerMessage : 1)
        }
        let retry = RetrySchedule.retryDelays.indices.map {
            QueueDeclaration(
                name: self.retry($0), deadLetterExchange: "", deadLetterRoutingKey: self.verify(.apple),
                deadLetterStrategyAtLeastOnce: true, messageTTL: schedule.delay(ofRetryQueue: $0))
        }
        let deliver = QueueDeclaration(
            name: self.deliver, deliveryLimit: Self.deliveryLimit, deadLetterExchange: "",
            deadLetterRoutingKey: dead, deadLetterStrategyAtLeastOnce: true)
        // The dead-letter queue is declared first: a queue that points to it may have messages for it at once.
        return Topology(queues: [QueueDeclaration(name: dead)] + verify + retry + [deliver])
    }
}
