/// The queues that a process needs. The process declares them on every connect; declaring twice is harmless. A user
/// without the permission to configure the queues only checks them; a missing queue is then an error, until somebody
/// has declared it.
///
/// Routing is by queue name through the default exchange, for publishes and for dead letters. A queue that exists with
/// other arguments is an error (`RabbitMQError.topology`): changed arguments need a new name.
package struct Topology: Sendable, Hashable {
    package let queues: [QueueDeclaration]

    package init(queues: [QueueDeclaration]) { self.queues = queues }

    func declaration(of queue: String) -> QueueDeclaration? { queues.first { $0.name == queue } }
}

/// A durable quorum queue that refuses publishes when it is full (`x-overflow: reject-publish`).
///
/// Quorum, because only a quorum queue has a message on disk (fsync) when it confirms; reject-publish, because the
/// default drops the oldest message, and because at-least-once dead-lettering needs it
/// (https://www.rabbitmq.com/docs/quorum-queues).
package struct QueueDeclaration: Sendable, Hashable {
    /// 1 to 255 bytes.
    package let name: String
    /// After this many deliveries without ack a message is dead-lettered. Set it: RabbitMQ 3 has no default.
    package var deliveryLimit: Int?
    /// "" is the default exchange, which takes the routing key as the queue's name. Nil: dead letters are dropped.
    package var deadLetterExchange: String?
    package var deadLetterRoutingKey: String?
    /// The message stays in this queue until its dead-letter queue has confirmed it. May duplicate a message, never
    /// loses one.
    package var deadLetterStrategyAtLeastOnce: Bool
    /// Age at which a message is dead-lettered; whole milliseconds.
    package var messageTTL: Duration?
    /// The most messages in the queue; the broker refuses more.
    package var maxLength: Int?
    /// The most bodies that travel as one message, a line each, if they are offered at the same moment: a message costs
    /// the broker the same whatever it holds. Consumers split the message again. 1 to 64; the broker does not know this
    /// number.
    package var bodiesPerMessage: Int

    package init(
        name: String, deliveryLimit: Int? = nil, deadLetterExchange: String? = nil, deadLetterRoutingKey: String? = nil,
        deadLetterStrategyAtLeastOnce: Bool = false, messageTTL: Duration? = nil, maxLength: Int? = nil,
        bodiesPerMessage: Int = 1
    ) {
        precondition((1...255).contains(name.utf8.count), "a queue's name has 1 to 255 bytes")
        self.name = name
        self.deliveryLimit = deliveryLimit
        self.deadLetterExchange = deadLetterExchange
        self.deadLetterRoutingKey = deadLetterRoutingKey
        self.deadLetterStrategyAtLeastOnce = deadLetterStrategyAtLeastOnce
        self.messageTTL = messageTTL
        self.maxLength = maxLength
        precondition((1...MessageLines.max).contains(bodiesPerMessage), "1 to 64 bodies travel together")
        self.bodiesPerMessage = bodiesPerMessage
    }

    enum Argument: Equatable {
        case text(String)
        case number(Int64)
    }

    /// The arguments in the broker's form (https://www.rabbitmq.com/docs/queues#optional-arguments).
    var arguments: [(key: String, value: Argument)] {
        var arguments: [(key: String, value: Argument)] = [
            ("x-queue-type", .text("quorum")), ("x-overflow", .text("reject-publish")),
        ]
        if let deliveryLimit { arguments.append(("x-delivery-limit", .number(Int64(deliveryLimit)))) }
        if let deadLetterExchange { arguments.append(("x-dead-letter-exchange", .text(deadLetterExchange))) }
        if let deadLetterRoutingKey { arguments.append(("x-dead-letter-routing-key", .text(deadLetterRoutingKey))) }
        if deadLetterStrategyAtLeastOnce { arguments.append(("x-dead-letter-strategy", .text("at-least-once"))) }
        if let messageTTL { arguments.append(("x-message-ttl", .number(messageTTL.wholeMilliseconds))) }
        if let maxLength { arguments.append(("x-max-length", .number(Int64(maxLength)))) }
        return arguments
    }
}

extension Duration {
    /// Rounded down.
    var wholeMilliseconds: Int64 { components.seconds * 1000 + components.attoseconds / 1_000_000_000_000_000 }
}
