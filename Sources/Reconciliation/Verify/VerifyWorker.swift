package import AppleGateway
package import Ledger
package import Logging
import Purchases
package import RabbitMQ
package import Service
import ServiceLifecycle
package import WorkQueue

/// Takes pointers off the queues, judges what they point at, writes the verdicts, and only then acknowledges.
///
/// In flight: at most the sum of the limits, so a slow Apple fills its own queue's share and no other. The payloads in
/// flight are bounded by it too: 64 receipts, 512 signed transactions of at most 64 KiB, among which small receipts are
/// where an app judges them `local`. More pointers than that may lie here: those of the local queue share messages.
///
/// Apple's queue is taken from also while Apple is down: the receipts of a host whose breaker is open go back to their
/// rows, no attempt counted, for the other hosts' may stand behind them. An outage of the sandbox stops nobody else.
package struct VerifyWorker: Service {
    package struct Limits: Sendable {
        package var localInFlight: Int
        package var appleInFlight: Int

        package init(localInFlight: Int, appleInFlight: Int) {
            self.localInFlight = localInFlight
            self.appleInFlight = appleInFlight
        }
    }

    /// A big receipt is a statement of hundreds of rows, again and again: no more of them than leave others a connection
    /// and a core.
    static let bulkInFlight = 2

    /// A database that is away is waited for this long with the message unacked; then the row's due time takes over,
    /// well before the broker's consumer timeout (P29: at most 60 s).
    static let databasePatience: Duration = .seconds(45)

    private let consumer: Consumer
    private let workQueue: WorkQueue
    private let limits: Limits
    private let local: AsyncSemaphore
    private let processor: ReceiptProcessor
    private let reporter: AppleHostReporter
    private let appleUpdates: AppleUpdateRunner
    private let logger: Logger

    package init(
        consumer: Consumer, workQueue: WorkQueue, ledger: Ledger, apps: AppDirectory, halts: Halts, limits: Limits,
        logger: Logger, security: SecurityLog
    ) {
        self.consumer = consumer
        self.workQueue = workQueue
        self.limits = limits
        local = AsyncSemaphore(limits.localInFlight)
        self.logger = logger
        let governor = Governor(
            ledger: ledger, callsMax: limits.appleInFlight,
            // The others are in flight: at Apple, or on their way through.
            waitersMax: max(1, limits.appleInFlight / 2), scale: ledger.schedule.scale, logger: logger)
        reporter = AppleHostReporter(governor: governor, ledger: ledger)
        let appleGateway = AppleGateway(halts: halts, governor: governor, security: security)
        processor = ReceiptProcessor(
            ledger: ledger, apps: apps, halts: halts,
            receiptVerifier: ReceiptVerifier(appleGateway: appleGateway, ledger: ledger, schedule: ledger.schedule),
            workQueue: workQueue, logger: logger, security: security)
        appleUpdates = AppleUpdateRunner(
            ledger: ledger, apps: apps, halts: halts, appleGateway: appleGateway,
            // The purchases' own calls go first.
            callsMax: limits.appleInFlight / 4, logger: logger)
    }

    /// What the worker consumes from, for the consumer it is given.
    package static func subscriptions(_ queues: Queues, _ limits: Limits) -> [Subscription] {
        [
            Subscription(queue: queues.verify(.local), prefetch: limits.localInFlight),
            Subscription(queue: queues.verify(.apple), prefetch: limits.appleInFlight),
            Subscription(queue: queues.verify(.bulk), prefetch: bulkInFlight),
        ]
    }

    package func run() async throws {
        await consumer.start()
        logger.info("worker started")
        await withGracefulShutdownHandler {
            await withDiscardingTaskGroup { group in
                let reports = Task { await reporter.run() }
                let telling = Task { await appleUpdates.run() }
                for await delivery in consumer.deliveries {
                    group.addTask { await handle(delivery) }
                }
                reports.cancel()
                telling.cancel()
                await telling.value
                // Leaving the group waits for what is in flight: each is bounded by Apple's and the database's limits.
            }
        } onGracefulShutdown: {
            Task { await consumer.drain() }
        }
        await consumer.close()
        logger.info("worker stopped")
    }

    private func handle(_ delivery: Delivery) async {
        let isLocal = delivery.queue == workQueue.queues.verify(.local)
        let takenAt = ContinuousClock.now
        if isLocal { await local.enter() }
        defer { if isLocal { local.leave() } }
        // Stopping: what waited for its turn goes back to the queue. And whoever waited behind a database that is away
        // for as long as anybody waits for it leaves the rest to the row's due time.
        if isLocal, Task.isShuttingDownGracefully { return }
        guard ContinuousClock.now - takenAt < Self.databasePatience else { return consumer.acknowledge([delivery]) }
        let result = await processor.settle(
            delivery.body, redelivered: delivery.redelivered, traceparent: delivery.traceparent)
        switch result {
        case .done:
            CrashPoint.afterCommitBeforeAck.reached()
            consumer.acknowledge([delivery])
        case .undeliverable:
            logger.warning("message went to the dead letters", metadata: ["queue": "\(delivery.queue)"])
            consumer.reject(delivery)
        }
    }
}
