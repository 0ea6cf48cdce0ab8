import Encoding
import Foundation
package import Ledger
package import Logging
import Metrics
package import NIOSSL
import Purchases
package import RabbitMQ
import Service
import ServiceLifecycle
package import Settings
package import WorkQueue

/// Sends the events of apps to their endpoints: it numbers new events, and serves the endpoints that ring.
///
/// Any number of dispatchers may run. One at a time numbers, and one at a time sends to an endpoint (`SendingTurn`).
/// The rows are the truth: a ring only says where to look, so it is acknowledged at once, and a lost ring costs a second,
/// until a scheduler rings.
package struct Dispatcher: Service {
    /// Rings that a dispatcher holds at a time.
    static let prefetch = 64
    /// Events that are numbered in one transaction.
    static let numberedMax = 1000
    /// The pause after all events have their numbers.
    static let numberingInterval: Duration = .milliseconds(50)
    /// How often endpoints are noted to stand in the configuration. After a day without that note no more deliveries
    /// are kept for an endpoint.
    static let registerInterval: Duration = .seconds(60)
    /// The fewest webhooks for which a process keeps connections, so that a reload may bring more endpoints.
    private static let webhooksMin = 64
    private static let retryPause: Duration = .seconds(1)

    private let consumer: Consumer
    private let workQueue: WorkQueue
    private let ledger: Ledger
    private let directory: EndpointDirectory
    private let turns = Turns()
    private let parts: SendingTurn.Parts
    private let logger: Logger

    /// - Parameters:
    ///   - inFlightMax: how many webhooks may be on the way at a time, to all endpoints together.
    ///   - trustRoots: the authorities that may sign the certificates of endpoints; those of the machine, but for tests.
    package init(
        consumer: Consumer, workQueue: WorkQueue, ledger: Ledger, configuration: ConfigurationHolder, inFlightMax: Int,
        logger: Logger, trustRoots: NIOSSLTrustRoots = .default
    ) {
        self.consumer = consumer
        self.workQueue = workQueue
        self.ledger = ledger
        self.logger = logger
        directory = EndpointDirectory(configuration, trustRoots: trustRoots)
        parts = SendingTurn.Parts(
            ledger: ledger, users: UserRegister(ledger: ledger), directory: directory,
            places: AsyncSemaphore(inFlightMax),
            metrics: DeliveryMetrics(), logger: logger)
    }

    /// How many webhooks the endpoints of a configuration may have on the way, all together.
    package static func webhooks(_ configuration: Configuration) -> Int {
        max(webhooksMin, configuration.apps.values.flatMap(\.endpoints).reduce(0) { $0 + $1.concurrency })
    }

    /// The queue from which a dispatcher's consumer consumes.
    package static func subscriptions(_ queues: Queues) -> [Subscription] {
        [Subscription(queue: queues.deliver, prefetch: prefetch)]
    }

    package func run() async throws {
        await consumer.start()
        logger.info("dispatcher started")
        await withGracefulShutdownHandler {
            await withDiscardingTaskGroup { group in
                group.addTask { await number() }
                for await delivery in consumer.deliveries {
                    guard let pointer = Pointer(delivery.body), pointer.kind == .endpoint else {
                        logger.warning("message went to the dead letters", metadata: ["queue": "\(delivery.queue)"])
                        consumer.reject(delivery)
                        continue
                    }
                    consumer.acknowledge([delivery])
                    // Another dispatcher's configuration has the endpoint.
                    guard directory.current[pointer.id] != nil, let turn = turns.ring(pointer.id) else { continue }
                    group.addTask { await serve(pointer.id, turn.signals, turn.wake) }
                }
                // Leaving the group waits for the turns: each waits for what is in flight, which the time limits of the
                // endpoints bound, and stores the results.
            }
        } onGracefulShutdown: {
            turns.wakeAll()
            Task { await consumer.drain() }
        }
        await consumer.close()
        await directory.close()
        logger.info("dispatcher stopped")
    }

    /// Takes turns at one endpoint as long as it has something due.
    private func serve(
        _ id: UUID, _ signals: AsyncStream<Void>, _ wake: AsyncStream<Void>.Continuation
    ) async {
        var signals = signals.makeAsyncIterator()
        while true {
            turns.begin(id)
            if let endpoint = directory.current[id] {
                var turn = SendingTurn(endpoint, parts, wake: wake)
                let hadTurn = await turn.run(&signals)
                // What was numbered while this dispatcher still had the turn rang nobody. Where another dispatcher has
                // it, that one looks.
                if hadTurn, !Task.isShuttingDownGracefully, await hasDue(endpoint) { continue }
            }
            if turns.end(id) { return }
        }
    }

    private func hasDue(_ endpoint: DefinedEndpoint) async -> Bool {
        let due = try? await ledger.run(Statements.dueEvents, .init(filter: endpoint.filter, limit: 1, except: []))
        return due?.isEmpty == false
    }

    // MARK: Numbering

    /// Numbers events for ever, and rings for the endpoints that got something due.
    private func number() async {
        var registered: (endpoints: Set<UUID>, at: ContinuousClock.Instant)?
        while !Task.isShuttingDownGracefully, !Task.isCancelled {
            let endpoints = directory.current
            var pause = Self.numberingInterval
            do throws(LedgerError) {
                // An endpoint that nobody knows gets nothing, so endpoints are made known first.
                if registered.map({
                    $0.endpoints != Set(endpoints.keys) || ContinuousClock.now - $0.at > Self.registerInterval
                }) ?? true {
                    _ = try await ledger.run(Statements.registerEndpoints, endpoints.values.map(\.key))
                    registered = (endpoints: Set(endpoints.keys), at: .now)
                }
                let filters = endpoints.values.map(\.filter)
                if let batch = try await ledger.numberEvents(limit: Self.numberedMax, for: filters), batch.events > 0 {
                    Counter(label: "makegood_delivery_events_numbered_total").increment(by: batch.events)
                    turns.wakeAll()
                    for id in batch.endpoints { workQueue.ring(id) }
                    if batch.isFull { continue }
                }
            } catch {
                logger.debug("events were not numbered", metadata: LogKeys.error(error))
                pause = Self.retryPause
            }
            try? await cancelWhenGracefulShutdown { [pause] in try await Task.sleep(for: pause) }
        }
    }
}
