import BlockingIO
package import Logging
import Metrics
import Synchronization

/// Consumes from any number of queues over one connection, one channel, one thread.
///
/// The consumer reconnects in the background until `close`. The owner must call `close`: an open connection keeps its
/// consumer alive. After a lost connection the broker delivers everything unsettled again, and the consumer drops acks
/// that come late for the old connection. So a message may be seen twice and is never lost.
package actor Consumer {
    private struct Settlement {
        let delivery: Delivery
        let isRejected: Bool
    }

    private static let longestPrefetch = Int(UInt16.max)
    /// How long after the broker ended a consumer the queue is declared and consumed anew. Not at once: RabbitMQ may
    /// still be busy deleting the queue, and a queue that is deleted again and again must not keep this process busy.
    private static let resubscribeDelay: Duration = .milliseconds(200)
    /// How often each queue is asked whether it still serves our consumer. RabbitMQ 3.10 forgets a consumer silently if
    /// the consumer's queue is deleted and declared again within some 30 ms [seen: no basic.cancel on the wire; the new
    /// queue counts a consumer and delivers nothing]. The question is as cheap as a heartbeat.
    private static let consumerCheckInterval: Duration = .seconds(1)
    /// A consumer that has room and gets nothing for this long is made anew: where other consumers empty the queue, a
    /// forgotten consumer cannot be told from one that is not needed.
    private static let silenceMax: Duration = .seconds(10)

    /// Every delivery, across reconnects. Buffers at most the sum of the prefetches, times the bodies per message.
    package nonisolated let deliveries: Deliveries

    private let configuration: BrokerConfiguration
    private let topology: Topology
    /// The queues whose messages may hold several bodies.
    private let isShared: Set<String>
    private let logger: Logger
    private let thread: ConnectionThread
    private let mailbox = Mailbox()
    /// Settlements that the thread has not seen yet.
    private let decided = Mutex<[Settlement]>([])
    private let connected = Atomic(false)
    private let delivered = CounterFamily(label: MetricName.deliveries, dimensions: ("queue", nil))
    private let reconnects = CounterFamily(label: MetricName.reconnects, dimensions: ("role", nil))

    private var connection: BrokerConnection?
    /// Counts connections.
    private var generation: UInt64 = 0
    private var window = AcknowledgementWindow()
    /// The unsettled messages with several bodies, by tag.
    private var shared: [UInt64: MessageLines] = [:]
    /// The most unsettled messages that each queue's consumer may have.
    private let prefetches: [String: UInt16]
    /// The tags of the running consumers, by queue.
    private var consumers: [String: String] = [:]
    /// The queues by consumer tag, also of cancelled consumers whose frames were still to be read.
    private var queues: [String: String] = [:]
    private var lastConsumer: UInt64 = 0
    /// The queues whose consumer the broker ended, and when to try again.
    private var resubscriptions: [String: ContinuousClock.Instant] = [:]
    private var nextConsumerCheck: ContinuousClock.Instant = .now
    /// Deliveries since the last check, and messages that are not settled, by queue.
    private var deliveredSinceCheck: [String: Int] = [:]
    private var unsettled: [String: Int] = [:]
    /// Queues whose consumer looked forgotten at the last check.
    private var suspects: Set<String> = []
    /// When a queue last brought a message, or its consumer was made.
    private var heardAt: [String: ContinuousClock.Instant] = [:]
    private var outage = Outage()
    /// Why there is no connection.
    package private(set) var failure: RabbitMQError?
    private var reconnecting: Task<Void, Never>?
    private var isStarted = false
    private var isDraining = false
    private var isClosed = false

    package nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }

    package init(
        _ configuration: BrokerConfiguration, topology: Topology, subscriptions: [Subscription], logger: Logger
    ) {
        var configuration = configuration
        configuration.connectionName += " consumer"
        var logger = logger
        logger[metadataKey: LogKey.role] = "consumer"
        logger[metadataKey: LogKey.broker] = "\(configuration)"
        self.configuration = configuration
        self.topology = topology
        isShared = Set(topology.queues.filter { $0.bodiesPerMessage > 1 }.map(\.name))
        self.logger = logger
        thread = ConnectionThread(name: "amqp-consumer")
        deliveries = Deliveries(mailbox: mailbox)
        prefetches = Dictionary(
            subscriptions.map { ($0.queue, Self.bounded($0.prefetch)) }, uniquingKeysWith: { _, last in last })
    }

    /// For health; never waits.
    package nonisolated var isConnected: Bool { connected.load(ordering: .acquiring) }

    /// Begins to consume. Returns after one attempt to connect; more attempts follow in the background, at most 5 s
    /// apart.
    package func start() {
        guard !isStarted, !isClosed else { return }
        isStarted = true
        connect()
    }

    /// Settles deliveries that the caller has worked off. The broker forgets a message when all of its bodies are
    /// settled. The thread sends the acks with everything else of its next turn; the call never waits. Deliveries of a
    /// connection that is gone are ignored (the broker delivers them again), and so is a second settlement.
    package nonisolated func acknowledge(_ deliveries: [Delivery]) {
        decide(deliveries.map { Settlement(delivery: $0, isRejected: false) })
    }

    /// Rejects a delivery that the caller cannot handle: the broker moves the message to the queue's dead letters.
    /// Otherwise as `acknowledge`.
    package nonisolated func reject(_ delivery: Delivery) {
        decide([Settlement(delivery: delivery, isRejected: true)])
    }

    private nonisolated func decide(_ settlements: [Settlement]) {
        let wasEmpty = decided.withLock { decided in
            defer { decided.append(contentsOf: settlements) }
            return decided.isEmpty
        }
        if wasEmpty { thread.wake() }
    }

    /// Takes no more deliveries and ends `deliveries`. Deliveries that a task has taken may still be settled; the
    /// others go back to their queue at `close`.
    package func drain() {
        guard !isDraining else { return }
        isDraining = true
        mailbox.finish()
        guard let connection else { return }
        do {
            for queue in consumers.keys.sorted() { try cancelConsumer(of: queue, connection) }
        } catch {
            lose(error)
        }
    }

    /// Drains, sends the settlements that were decided, and disconnects. Everything unsettled goes back to its queue.
    package func close() {
        drain()
        isClosed = true
        reconnecting?.cancel()
        guard let connection else { return }
        do {
            try settle(connection)
        } catch {
            logger.debug("settlements not sent", metadata: [LogKey.reason: "\(error.label)"])
        }
        release(connection)
    }

    // MARK: On the thread

    private static func bounded(_ prefetch: Int) -> UInt16 { UInt16(min(max(1, prefetch), longestPrefetch)) }

    private func connect() {
        do {
            let connection = try BrokerConnection.toAnyNode(of: configuration)
            self.connection = connection
            generation += 1
            window = AcknowledgementWindow()
            shared = [:]
            try connection.establish(topology)
            try watch(connection)
            if !isDraining {
                for queue in prefetches.keys.sorted() { try consume(queue, connection) }
            }
            opened()
        } catch {
            if let connection { release(connection) }
            failed(error)
        }
    }

    private func watch(_ connection: BrokerConnection) throws(RabbitMQError) {
        do {
            // The cycle connection - thread - watch - self is cut by `unwatch` in `release`.
            try thread.watch(
                .init(socket: connection.socket, tick: configuration.tick) { self.assumeIsolated { $0.turn() } })
        } catch {
            throw .outOfDescriptors
        }
    }

    private func opened() {
        connected.store(true, ordering: .relaxed)
        failure = nil
        nextConsumerCheck = .now + Self.consumerCheckInterval
        let attempts = outage.attempts
        if let length = outage.ended(at: .now) {
            reconnects.increment("consumer")
            logger.notice(
                "connected to the broker again",
                metadata: [LogKey.outageSeconds: "\(length.components.seconds)", LogKey.attempts: "\(attempts)"])
        } else {
            logger.info("connected to the broker")
        }
    }

    /// Runs after jobs, after bytes, after a tick: sends the questions that are due, reads everything, then sends the
    /// decisions.
    private func turn() {
        guard let connection else { return }
        do {
            // Questions first: frames that the library keeps while it waits for an answer are read below, not after the
            // next tick.
            try resubscribe(connection)
            try checkConsumers(connection)
            try read(connection)
            try settle(connection)
        } catch {
            lose(error)
        }
    }

    private func read(_ connection: BrokerConnection) throws(RabbitMQError) {
        try connection.limited(to: configuration.stallDeadline) { () throws(RabbitMQError) in
            while let event = try connection.receive() { try handle(event) }
        }
    }

    private func takeDecisions() {
        let taken = decided.withLock { decided in
            defer { decided.removeAll(keepingCapacity: true) }
            return decided
        }
        for decision in taken where decision.delivery.generation == generation {
            let delivery = decision.delivery
            var isRejected = decision.isRejected
            if shared[delivery.tag] != nil {
                guard let rejected = settleLine(of: delivery, isRejected: isRejected) else { continue }
                isRejected = rejected
            }
            let isNew = isRejected ? window.reject(delivery.tag) : window.acknowledge(delivery.tag)
            if isNew { unsettled[delivery.queue, default: 0] -= 1 }
        }
    }

    /// Settles one body of a message. Nil while other bodies of the message are unsettled; otherwise whether any was
    /// rejected.
    private func settleLine(of delivery: Delivery, isRejected: Bool) -> Bool? {
        guard var lines = shared[delivery.tag], lines.settle(delivery.line, isRejected: isRejected) else { return nil }
        shared[delivery.tag] = lines.isSettled ? nil : lines
        return lines.isSettled ? lines.isRejected : nil
    }

    private func settle(_ connection: BrokerConnection) throws(RabbitMQError) {
        takeDecisions()
        let commands = window.takeCommands()
        guard !commands.isEmpty else { return }
        try connection.limited(to: configuration.stallDeadline) { () throws(RabbitMQError) in
            try connection.gathered { () throws(RabbitMQError) in
                for command in commands {
                    switch command {
                    case .acknowledge(let tag, let multiple): try connection.acknowledge(tag, multiple: multiple)
                    case .reject(let tag): try connection.reject(tag)
                    }
                }
            }
        }
    }

    private func handle(_ event: BrokerEvent) throws(RabbitMQError) {
        switch event {
        case .delivered(let consumer, let tag, let redelivered, let body, let headers):
            guard let queue = queues[consumer] else { throw .protocolViolation }
            try window.delivered(tag)
            deliveredSinceCheck[queue, default: 0] += 1
            guard let body else {
                delivered.increment(queue)
                logger.warning("a message is too large to be ours: rejected", metadata: [LogKey.queue: "\(queue)"])
                window.reject(tag)
                return
            }
            unsettled[queue, default: 0] += 1
            let bodies = isShared.contains(queue) ? MessageLines.split(body) : [body]
            if bodies.count > 1 { shared[tag] = MessageLines(count: bodies.count) }
            delivered.increment(queue, by: bodies.count)
            let traceparents = headers?.traceparents(of: bodies.count) ?? []
            for (line, body) in bodies.enumerated() {
                mailbox.put(
                    Delivery(
                        queue: queue, body: body, redelivered: redelivered,
                        traceparent: traceparents.isEmpty ? nil : traceparents[line], death: headers?.death,
                        generation: generation, tag: tag, line: line))
            }
        case .cancelled(let consumer):
            guard let queue = queues[consumer] else { return }
            if consumers[queue] == consumer { consumers[queue] = nil }
            resubscriptions[queue] = .now + Self.resubscribeDelay
            logger.warning("the broker ended a consumer: its queue is gone", metadata: [LogKey.queue: "\(queue)"])
        case .blocked, .unblocked: return  // Acks are not publishes: nothing of ours waits.
        case .confirmed, .refused, .returned: throw .protocolViolation
        }
    }

    private func consume(_ queue: String, _ connection: BrokerConnection) throws(RabbitMQError) {
        guard let prefetch = prefetches[queue], consumers[queue] == nil else { return }
        // No tag is used twice: RabbitMQ before 3.10.9 has a fault where a consumer comes back under its old tag with
        // deliveries in flight.
        lastConsumer += 1
        let consumer = "c\(lastConsumer)"
        queues[consumer] = queue
        consumers[queue] = consumer
        heardAt[queue] = .now
        try connection.consume(queue, as: consumer, prefetch: prefetch)
    }

    private func cancelConsumer(of queue: String, _ connection: BrokerConnection) throws(RabbitMQError) {
        resubscriptions[queue] = nil
        guard let consumer = consumers.removeValue(forKey: queue) else { return }
        try connection.cancel(consumer)
        // Deliveries that were on their way are read under the old tag; afterwards the tag can be forgotten.
        try read(connection)
        queues[consumer] = nil
    }

    private func resubscribe(_ connection: BrokerConnection) throws(RabbitMQError) {
        guard !resubscriptions.isEmpty, !isDraining else { return }
        let now = ContinuousClock.now
        for (queue, due) in resubscriptions where due <= now {
            resubscriptions[queue] = nil
            guard consumers[queue] == nil else { continue }
            if let declaration = topology.declaration(of: queue) { try connection.declare(declaration) }
            try consume(queue, connection)
        }
    }

    /// Finds consumers that the broker has forgotten, and makes them anew. A consumer is forgotten if its queue counts
    /// no consumer at all, or if twice in a row the queue had messages ready, the consumer had room, and nothing came
    /// (others may consume from the queue, so a count of consumers proves nothing). A consumer that is silent for
    /// `silenceMax` is made anew in any case.
    private func checkConsumers(_ connection: BrokerConnection) throws(RabbitMQError) {
        let now = ContinuousClock.now
        guard now >= nextConsumerCheck, !isDraining else { return }
        nextConsumerCheck = now + Self.consumerCheckInterval
        let delivered = deliveredSinceCheck
        deliveredSinceCheck = [:]
        for queue in consumers.keys.sorted() {
            guard let declaration = topology.declaration(of: queue) else { continue }
            let (messages, consumers) = try connection.counts(of: declaration)
            // Deliveries that arrived during the question count as well.
            try read(connection)
            let hasRoom = unsettled[queue, default: 0] < Int(prefetches[queue, default: 0])
            let isSilent = delivered[queue] == nil && deliveredSinceCheck[queue] == nil
            if !isSilent || !hasRoom { heardAt[queue] = now }
            let isSilentForLong = now - heardAt[queue, default: now] >= Self.silenceMax
            let isSuspect = messages > 0 && hasRoom && isSilent
            let wasSuspect = suspects.remove(queue) != nil
            if isSuspect { suspects.insert(queue) }
            let isForgotten = consumers == 0 || (isSuspect && wasSuspect)
            guard isForgotten || isSilentForLong, self.consumers[queue] != nil else { continue }
            if isForgotten {
                logger.warning("the broker has forgotten a consumer", metadata: [LogKey.queue: "\(queue)"])
            }
            try cancelConsumer(of: queue, connection)
            try consume(queue, connection)
        }
    }

    private func lose(_ error: RabbitMQError) {
        guard let connection else { return }
        release(connection)
        failed(error)
    }

    private func release(_ connection: BrokerConnection) {
        thread.unwatch()
        self.connection = nil
        // Before anyone can see that the connection is gone, and before the time that closing takes: from here on no
        // delivery of this connection is handed out, and settlements of earlier ones have no effect.
        generation += 1
        mailbox.empty()
        connected.store(false, ordering: .releasing)
        connection.close()
        window = AcknowledgementWindow()
        shared = [:]
        consumers = [:]
        queues = [:]
        resubscriptions = [:]
        deliveredSinceCheck = [:]
        unsettled = [:]
        suspects = []
    }

    private func failed(_ error: RabbitMQError) {
        failure = error
        if outage.failed(error, at: .now) {
            logger.warning("no connection to the broker", metadata: [LogKey.reason: "\(error.label)"])
        }
        guard !isClosed, !isDraining else { return }
        let delay = outage.delay(random: .random(in: 0...1))
        reconnecting = Task { [weak self] in
            do { try await Task.sleep(for: delay) } catch { return }
            await self?.reconnect()
        }
    }

    private func reconnect() {
        if connection == nil, !isClosed, !isDraining { connect() }
    }
}
