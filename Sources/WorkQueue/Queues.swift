package import Purchases
package import RabbitMQ

/// The queues, by name and arguments. All quorum queues; changed arguments mean a new name, and the rows refill it.
///
/// ```
/// verify.bulk ──┐
/// verify.local ─┤                    ┌─ retry.5000ms … retry.600000ms, back to verify.apple when their time is up
/// verify.apple ─┴─ worker ── again ──┘
///      └── undecodable, unknown, or delivered 20 times without an ack ── dead
/// ```
package struct Queues: Sendable, Equatable {
    /// A crash of the worker counts as a delivery without ack; after this many the message is a dead letter and the
    /// row's due time takes over.
    package static let deliveryLimit = 20

    /// Rings for the local queue that come at the same moment share a message. Not for the others: what is in flight there
    /// is bounded by messages. An earlier program refuses such messages, and the rows' due times bring them.
    package static let localBodiesPerMessage = 16

    private let prefix: String
    private let schedule: RetrySchedule

    package init(prefix: String = "makegood", schedule: RetrySchedule = RetrySchedule()) {
        self.prefix = prefix
        self.schedule = schedule
    }

    package func verify(_ lane: Lane) -> String { "\(prefix).verify.\(lane.rawValue)" }

    package var dead: String { "\(prefix).dead" }

    /// Named by its delay, so that another delay is another queue.
    package func retry(rung: Int) -> String {
        "\(prefix).retry.\(Int((schedule.delay(ofRung: rung).inSeconds * 1000).rounded()))ms"
    }

    package var topology: Topology {
        let verify = Lane.allCases.map {
            QueueDeclaration(
                name: self.verify($0), deliveryLimit: Self.deliveryLimit, deadLetterExchange: "",
                deadLetterRoutingKey: dead, deadLetterStrategyAtLeastOnce: true,
                bodiesPerMessage: $0 == .local ? Self.localBodiesPerMessage : 1)
        }
        let retry = RetrySchedule.rungs.indices.map {
            QueueDeclaration(
                name: self.retry(rung: $0), deadLetterExchange: "", deadLetterRoutingKey: self.verify(.apple),
                deadLetterStrategyAtLeastOnce: true, messageTTL: schedule.delay(ofRung: $0))
        }
        // The dead-letter queue first: a queue that points to it may have something to send at once.
        return Topology(queues: [QueueDeclaration(name: dead)] + verify + retry)
    }
}
