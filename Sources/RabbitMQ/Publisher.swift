import BlockingIO
import DequeModule
package import Logging
import Metrics
import Synchronization

/// What a publisher can do at the moment.
package enum PublisherState: Sendable, Equatable {
    case connected
    /// The broker has a memory or disk alarm: publishes fail with `blocked` until it ends.
    case blocked
    /// Publishes fail with the reason. The publisher goes on trying to connect in the background, at most 5 s apart.
    case disconnected(RabbitMQError)
}

/// Publishes with confirms over one connection, one channel, one thread.
///
/// Any number of tasks may await `publish` at once: they share the window (256 unconfirmed) and one round trip, ~25,000
/// confirmed per second on a quorum queue of one node. The publisher connects on the first call and reconnects in the
/// background until `close`. The owner must call `close`: an open connection keeps its publisher alive.
///
/// A publisher has a connection of its own, because the broker throttles and blocks connections that publish; a
/// consumer's acks must not wait for that (https://www.rabbitmq.com/docs/alarms).
package actor Publisher {
    private struct Waiting {
        var body: String
        let queue: String
        var ticket: Ticket
        /// The traces of the bodies, a line each.
        var traceparent: String?
    }

    /// The receiver of a message's outcome.
    private enum Ticket {
        case awaited(CheckedContinuation<Result<Void, RabbitMQError>, Never>)
        /// No caller: only the metrics count the outcome, under the queue's name, for each of `count` bodies in one
        /// message.
        case offered(queue: String, count: Int)
    }

    /// How often offers are sent that come in a stream: the broker writes its disk once for all that arrive together.
    private static let offerInterval: Duration = .milliseconds(4)
    /// The least time between two declarations of the queues after returned messages.
    private static let redeclareInterval: Duration = .seconds(1)

    private let configuration: BrokerConfiguration
    private let topology: Topology
    /// The most bodies of one message, for the queues whose messages may hold several.
    private let bodiesPerMessage: [String: Int]
    private let logger: Logger
    private let thread: ConnectionThread
    private let admission: PublishAdmission
    /// Offers that the thread has not seen yet.
    private let offers = Mutex<[Waiting]>([])
    private let published = CounterFamily(label: MetricName.published, dimensions: ("queue", "outcome"))
    private let reconnects = CounterFamily(label: MetricName.reconnects, dimensions: ("role", nil))
    private let confirmSeconds = Timer(label: MetricName.confirmSeconds)
    private let blockedGauge = Gauge(label: MetricName.blocked)

    private var connection: BrokerConnection?
    private var confirms = OutstandingConfirms<Ticket>()
    private var waiting: Deque<Waiting> = []
    private var isBlocked = false
    /// The broker refused a message in this turn.
    private var isRefused = false
    private var patience: RefusalPatience
    private var outage = Outage()
    private var reconnecting: Task<Void, Never>?
    private var closers: [CheckedContinuation<Void, Never>] = []
    private var isTopologyInDoubt = false
    private var lastDeclared = ContinuousClock.now
    private var openedAt = ContinuousClock.now

    package nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }

    package init(_ configuration: BrokerConfiguration, topology: Topology, logger: Logger) {
        var configuration = configuration
        configuration.connectionName += " publisher"
        var logger = logger
        logger[metadataKey: LogKey.role] = "publisher"
        logger[metadataKey: LogKey.broker] = "\(configuration)"
        self.configuration = configuration
        self.topology = topology
        bodiesPerMessage = Dictionary(
            topology.queues.compactMap { $0.bodiesPerMessage > 1 ? ($0.name, $0.bodiesPerMessage) : nil },
            uniquingKeysWith: { first, _ in first })
        self.logger = logger
        thread = ConnectionThread(name: "amqp-publisher", pace: Self.offerInterval)
        patience = RefusalPatience(configuration.refusalPatience)
        admission = PublishAdmission(limit: configuration.queueLimit + configuration.window)
    }

    /// For health and metrics; never waits.
    package nonisolated var state: PublisherState { admission.state }

    /// Connects now instead of at the first publish. Returns after one attempt; `state` tells how it went.
    package func start() {
        if admission.isFresh { connect() }
    }

    /// Publishes a message. Returns when the broker has it on disk in that queue.
    ///
    /// The call ends within `confirmDeadline` (5 s) and a second, whatever happens; while there is no connection it
    /// fails at once. Cancelling the task does not take the message back and does not end the wait.
    ///
    /// - Parameter body: at most `bodyLimitBytes`.
    /// - Parameter traceparent: the trace that the message belongs to (W3C Trace Context), one line; travels as a
    ///   header.
    package nonisolated func publish(
        _ body: String, to queue: String, traceparent: String? = nil
    ) async throws(RabbitMQError) {
        do throws(RabbitMQError) {
            guard body.utf8.count <= configuration.bodyLimitBytes, queue.utf8.count <= 255 else {
                throw .tooLarge
            }
            try admission.enter()
            defer { admission.leave() }
            try await submit(body, to: queue, traceparent).get()
        } catch {
            published.increment(queue, error.label)
            throw error
        }
        published.increment(queue, "confirmed")
    }

    /// Publishes without telling the caller the outcome: only the metrics count it. Never waits, and costs the caller a
    /// lock. The thread sends the message within `offerInterval`. If `publish` would fail at once, or half of the
    /// places are taken, the message is dropped and counted.
    ///
    /// - Parameter body: at most `bodyLimitBytes`.
    /// - Parameter traceparent: as for `publish`; each body keeps its own when several share a message.
    package nonisolated func offer(_ body: String, to queue: String, traceparent: String? = nil) {
        do throws(RabbitMQError) {
            guard body.utf8.count <= configuration.bodyLimitBytes, queue.utf8.count <= 255 else { throw .tooLarge }
            try admission.enter(isOffered: true)
        } catch {
            published.increment(queue, error.label)
            return
        }
        let isFirst = offers.withLock { offers in
            offers.append(
                Waiting(
                    body: body, queue: queue, ticket: .offered(queue: queue, count: 1), traceparent: traceparent))
            return offers.count == 1
        }
        guard isFirst else { return }
        thread.wake()
        if admission.isFresh { Task { await start() } }
    }

    /// Declares the topology. Throws `accessRefused` if this user may not declare, which connecting does not.
    package func declare() throws(RabbitMQError) {
        if admission.isFresh { connect() }
        guard let connection else { throw admission.reason }
        guard connection.mayDeclare else { throw .accessRefused }
    }

    /// How many messages are ready in a queue, exact for quorum queues.
    ///
    /// A queue of the topology is declared, and so comes back if somebody deleted it. Any other queue is only checked.
    /// If it is missing, the broker closes the channel: the publisher makes the connection anew, and publishes in
    /// flight end as `lost`.
    package func depth(of queue: String) async throws(RabbitMQError) -> Int {
        try await counts(of: queue).messages
    }

    /// `depth`, and how many consumers the queue has anywhere.
    package func counts(of queue: String) async throws(RabbitMQError) -> (messages: Int, consumers: Int) {
        if admission.isFresh { connect() }
        guard let connection else { throw admission.reason }
        guard !isBlocked else { throw .blocked }
        guard queue.utf8.count <= 255 else { throw .tooLarge }
        do {
            if let declaration = topology.declaration(of: queue) { return try connection.counts(of: declaration) }
            return try connection.counts(ofMissable: queue)
        } catch {
            // Other callers do not get a missing queue outside the topology as their reason.
            lose(topology.declaration(of: queue) == nil ? .lost : error)
            throw error
        }
    }

    /// Takes no more publishes, waits for the confirms of those it has taken (at most `confirmDeadline`), and
    /// disconnects.
    package func close() async {
        admission.close()
        reconnecting?.cancel()
        takeOffers()
        if connection == nil { failWaiting(.closed) }
        if !isIdle { await withCheckedContinuation { closers.append($0) } }
        guard let connection else { return }
        thread.unwatch()
        self.connection = nil
        // During an alarm the broker does not read an orderly close.
        connection.close(isSilent: isBlocked)
        failWaiting(.closed)
    }

    // MARK: On the thread

    private var isIdle: Bool { waiting.isEmpty && confirms.open == 0 }

    private func submit(
        _ body: String, to queue: String, _ traceparent: String?
    ) async -> Result<Void, RabbitMQError> {
        if admission.isFresh { connect() }
        guard connection != nil else { return .failure(admission.reason) }
        guard !isBlocked else { return .failure(.blocked) }
        return await withCheckedContinuation { continuation in
            waiting.append(
                Waiting(body: body, queue: queue, ticket: .awaited(continuation), traceparent: traceparent))
        }
    }

    private func takeOffers() {
        let taken = offers.withLock { offers in
            defer { offers.removeAll(keepingCapacity: true) }
            return offers
        }
        if isBlocked {
            for offer in taken { answer(offer.ticket, .failure(.blocked)) }
        } else {
            waiting.append(contentsOf: taken)
        }
    }

    private func answer(_ ticket: Ticket, _ result: Result<Void, RabbitMQError>) {
        switch ticket {
        case .awaited(let continuation): continuation.resume(returning: result)
        case .offered(let queue, let count):
            admission.leave(count)
            switch result {
            case .success: published.increment(queue, "confirmed", by: count)
            case .failure(let error): published.increment(queue, error.label, by: count)
            }
        }
    }

    private func connect() {
        do {
            let connection = try BrokerConnection.toAnyNode(of: configuration)
            try connection.establish(topology)
            try connection.selectConfirms()
            try watch(connection)
            opened(connection)
        } catch {
            failed(error)
            failWaiting(.unreachable)
        }
    }

    private func watch(_ connection: BrokerConnection) throws(RabbitMQError) {
        do {
            // The cycle connection - thread - watch - self is cut by `unwatch` in `lose` and `close`.
            try thread.watch(
                .init(socket: connection.socket, tick: configuration.tick) { self.assumeIsolated { $0.turn() } })
        } catch {
            throw .outOfDescriptors
        }
    }

    private func opened(_ connection: BrokerConnection) {
        self.connection = connection
        isRefused = false
        confirms = OutstandingConfirms()
        isTopologyInDoubt = false
        lastDeclared = .now
        openedAt = .now
        setBlocked(false)
        admission.opened()
        let attempts = outage.attempts
        if let length = outage.ended(at: .now) {
            reconnects.increment("publisher")
            logger.notice(
                "connected to the broker again",
                metadata: [LogKey.outageSeconds: "\(length.components.seconds)", LogKey.attempts: "\(attempts)"])
        } else {
            logger.info("connected to the broker")
        }
    }

    /// Runs after jobs, after bytes, after a tick: reads everything, then sends as much as the window allows.
    private func turn() {
        guard let connection else { return }
        takeOffers()
        do throws(RabbitMQError) {
            // The question first: frames that the library keeps while it waits for the answer are read below.
            try redeclareIfNeeded(connection)
            try connection.limited(to: configuration.stallDeadline) { () throws(RabbitMQError) in
                // Reading first: it moves the heartbeat's deadline, past which amqp_basic_publish may block for ever.
                while let event = try connection.receive() { try handle(event) }
            }
            // Only now, when all confirms that the broker has sent already are handled.
            if isRefused {
                isRefused = false
                if patience.isOver(at: .now, openedAt: openedAt) { throw .refused }
            }
            try checkDeadlines()
            try connection.limited(to: min(configuration.confirmDeadline, configuration.stallDeadline)) {
                () throws(RabbitMQError) in
                try send(connection)
            }
        } catch {
            lose(error)
        }
        if isIdle { resumeClosers() }
    }

    private func handle(_ event: BrokerEvent) throws(RabbitMQError) {
        switch event {
        case .confirmed(let tag, let multiple): try settle(tag, multiple: multiple, refused: false)
        case .refused(let tag, let multiple): try settle(tag, multiple: multiple, refused: true)
        case .returned(let tag):
            guard let tag else { throw .protocolViolation }
            confirms.markReturned(tag)
        case .blocked:
            setBlocked(true)
            logger.warning("the broker blocks publishing: resource alarm")
            failWaiting(.blocked)
        case .unblocked:
            setBlocked(false)
            confirms.restart(at: .now)
            logger.notice("the broker accepts publishing again")
        case .delivered, .cancelled: throw .protocolViolation
        }
    }

    private func settle(_ tag: UInt64, multiple: Bool, refused: Bool) throws(RabbitMQError) {
        let now = ContinuousClock.now
        for settled in try confirms.settle(tag, multiple: multiple, refused: refused) {
            switch settled.answer {
            case .confirmed:
                confirmSeconds.record(duration: now - settled.sentAt)
                answer(settled.ticket, .success(()))
            case .returned:
                isTopologyInDoubt = true
                answer(settled.ticket, .failure(.returned))
            case .refused:
                isRefused = true
                answer(settled.ticket, .failure(.refused))
            }
        }
    }

    private func checkDeadlines() throws(RabbitMQError) {
        guard let oldest = confirms.oldest else { return }
        let limit = ContinuousClock.now - configuration.confirmDeadline
        guard oldest < limit else { return }
        // During an alarm the confirms come when the alarm ends: the publisher keeps the connection and answers the
        // callers.
        let answer: RabbitMQError = isBlocked ? .blocked : .timedOut
        for ticket in confirms.abandon(sentBefore: limit) { self.answer(ticket, .failure(answer)) }
        if !isBlocked { throw .timedOut }
    }

    private func send(_ connection: BrokerConnection) throws(RabbitMQError) {
        guard !waiting.isEmpty, !isBlocked else { return }
        guard confirms.unconfirmed < configuration.window else { return }
        let now = ContinuousClock.now
        try connection.gathered { () throws(RabbitMQError) in
            while confirms.unconfirmed < configuration.window, let next = takeMessage() {
                // Registered before it is sent: the confirm may be there before the call returns.
                let tag = confirms.register(next.ticket, at: now)
                try connection.publish(next.body, to: next.queue, tag: tag, traceparent: next.traceparent)
            }
        }
    }

    /// The next message: one awaited body, or as many offered bodies as may share a message to their queue.
    private func takeMessage() -> Waiting? {
        guard var message = waiting.popFirst() else { return nil }
        guard case .offered(let queue, _) = message.ticket, let countMax = bodiesPerMessage[queue] else {
            return message
        }
        var (bodies, traceparents) = ([message.body], [message.traceparent])
        var bytes = message.body.utf8.count
        while bodies.count < countMax, let next = waiting.first, next.queue == queue, case .offered = next.ticket {
            bytes += next.body.utf8.count + 1
            guard bytes <= configuration.bodyLimitBytes else { break }
            bodies.append(next.body)
            traceparents.append(next.traceparent)
            waiting.removeFirst()
        }
        guard bodies.count > 1 else { return message }
        message.body = MessageLines.join(bodies)
        message.traceparent = MessageHeaders.join(traceparents)
        message.ticket = .offered(queue: queue, count: bodies.count)
        return message
    }

    /// Declares the queues again after the broker returned a message: the message's queue may have been deleted.
    private func redeclareIfNeeded(_ connection: BrokerConnection) throws(RabbitMQError) {
        guard isTopologyInDoubt, !isBlocked else { return }
        guard ContinuousClock.now - lastDeclared >= Self.redeclareInterval else { return }
        isTopologyInDoubt = false
        lastDeclared = .now
        for queue in topology.queues { try connection.declare(queue) }
    }

    private func setBlocked(_ isBlocked: Bool) {
        self.isBlocked = isBlocked
        admission.setBlocked(isBlocked)
        blockedGauge.record(isBlocked ? 1 : 0)
    }

    /// Gives up the connection: every waiting caller gets an answer, and a new connection is made in the background.
    private func lose(_ error: RabbitMQError) {
        guard let connection else { return }
        let wasBlocked = isBlocked
        thread.unwatch()
        self.connection = nil
        setBlocked(false)
        // `admission` fails first, then the callers get their answers: a caller that tries again at once shall fail at
        // once. Closing may take a second.
        failed(error)
        for (ticket, _) in confirms.removeAll() { answer(ticket, .failure(.lost)) }
        failWaiting(.unreachable)
        resumeClosers()
        connection.close(isSilent: wasBlocked || error == .timedOut)
    }

    private func failed(_ error: RabbitMQError) {
        let isNews = outage.failed(error, at: .now)
        // The error of a lost connection says nothing about publishes that were never sent.
        admission.failed(error.isMisconfiguration ? error : .unreachable)
        if isNews { logger.warning("no connection to the broker", metadata: [LogKey.reason: "\(error.label)"]) }
        guard !admission.isClosed else { return }
        let delay = outage.delay(random: .random(in: 0...1))
        reconnecting = Task { [weak self] in
            do { try await Task.sleep(for: delay) } catch { return }
            await self?.reconnect()
        }
    }

    private func reconnect() {
        if connection == nil, !admission.isClosed { connect() }
    }

    private func failWaiting(_ error: RabbitMQError) {
        takeOffers()
        let failed = waiting
        waiting = []
        for entry in failed { answer(entry.ticket, .failure(error)) }
    }

    private func resumeClosers() {
        let resumed = closers
        closers = []
        for closer in resumed { closer.resume() }
    }
}

extension BrokerConfiguration {
    /// How often the thread looks after an idle connection: often enough for heartbeats and for the confirm deadline.
    var tick: Duration { min(heartbeat / 3, confirmDeadline / 4, .seconds(1)) }
}
