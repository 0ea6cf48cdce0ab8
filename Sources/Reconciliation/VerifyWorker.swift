package import AppleGateway
package import Ledger
package import Logging
import Purchases
package import RabbitMQ
package import Service
import ServiceLifecycle
package import WorkQueue

/// A consumer of pointers: it judges the receipts and hears the notifications that the pointers name, writes the
/// results, and only then acknowledges.
///
/// At most as many receipts are in flight as the limits add up to, so a slow Apple fills the share of its own queue and
/// no other. The limits bound the payloads in flight too: 64 receipts and 512 signed transactions of at most 64 KiB,
/// among which small receipts count where an app judges them `local`. The worker may hold more pointers than that,
/// because pointers of the local queue share messages.
///
/// The worker consumes Apple's queue also while Apple is down. The receipts of a host whose breaker is open go back to
/// their rows, and no attempt is counted, because receipts of other hosts may wait behind them. An outage of the
/// sandbox stops nobody else.
package struct VerifyWorker: Service {
    package struct Limits: Sendable {
        package var localInFlight: Int
        package var appleInFlight: Int

        package init(localInFlight: Int, appleInFlight: Int) {
            self.localInFlight = localInFlight
            self.appleInFlight = appleInFlight
        }
    }

    /// Big receipts in flight. Each is a statement of hundreds of rows, again and again, so this number leaves other
    /// receipts a connection and a core.
    static let bulkInFlight = 2

    /// Notifications and receipts that nobody posted in flight. Nobody waits for them.
    static let unpostedInFlight = 32

    /// Of these, the receipts about which Apple may be asked: a slow Apple leaves places to notifications, which need
    /// no call.
    static let unpostedAskingMax = 24

    /// How long the worker waits for a database that is away, with the message unacknowledged. After that the row's due
    /// time takes over, well before the broker's consumer timeout (P29: at most 60 s).
    static let databasePatience: Duration = .seconds(45)

    private let consumer: Consumer
    private let workQueue: WorkQueue
    private let limits: Limits
    private let local: AsyncSemaphore
    private let processor: ReceiptProcessor
    private let notifications: NotificationProcessor
    private let followUps: FollowUpRunner
    private let reporter: AppleHostReporter
    private let appleUpdates: AppleUpdateRunner
    private let refundRequests: RefundRequestRunner
    private let sweeps: Sweeps
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
            // The other receipts are in flight: at Apple, or on their way through.
            waitersMax: max(1, limits.appleInFlight / 2), scale: ledger.schedule.scale, logger: logger)
        reporter = AppleHostReporter(governor: governor, ledger: ledger)
        let appleGateway = AppleGateway(halts: halts, governor: governor, security: security)
        let signal = FollowUpSignal()
        processor = ReceiptProcessor(
            ledger: ledger, apps: apps, halts: halts,
            receiptVerifier: ReceiptVerifier(appleGateway: appleGateway, ledger: ledger, schedule: ledger.schedule),
            workQueue: workQueue, logger: logger, security: security, followUps: signal)
        notifications = NotificationProcessor(
            ledger: ledger, apps: apps, workQueue: workQueue, followUps: signal, logger: logger)
        followUps = FollowUpRunner(
            ledger: ledger, apps: apps, workQueue: workQueue, signal: signal, logger: logger)
        appleUpdates = AppleUpdateRunner(
            ledger: ledger, apps: apps, halts: halts, appleGateway: appleGateway,
            // The calls for purchases go first.
            callsMax: limits.appleInFlight / 4, logger: logger)
        refundRequests = RefundRequestRunner(
            ledger: ledger, apps: apps, halts: halts, appleGateway: appleGateway, logger: logger)
        sweeps = Sweeps(
            ledger: ledger, apps: apps, halts: halts, appleGateway: appleGateway, workQueue: workQueue,
            followUps: signal, logger: logger)
    }

    /// The queues from which the worker's consumer consumes.
    package static func subscriptions(_ queues: Queues, _ limits: Limits) -> [Subscription] {
        [
            Subscription(queue: queues.verify(.local), prefetch: limits.localInFlight),
            Subscription(queue: queues.verify(.apple), prefetch: limits.appleInFlight),
            Subscription(queue: queues.verify(.bulk), prefetch: bulkInFlight),
            Subscription(queue: queues.verify(.unposted), prefetch: unpostedInFlight),
        ]
    }

    package func run() async throws {
        await consumer.start()
        logger.info("worker started")
        await withGracefulShutdownHandler {
            await withDiscardingTaskGroup { group in
                let reports = Task { await reporter.run() }
                let telling = Task { await appleUpdates.run() }
                let following = Task { await followUps.run() }
                let answering = Task { await refundRequests.run() }
                let sweeping = Task { await sweeps.run() }
                for await delivery in consumer.deliveries {
                    group.addTask { await handle(delivery) }
                }
                reports.cancel()
                telling.cancel()
                following.cancel()
                answering.cancel()
                sweeping.cancel()
                await telling.value
                await following.value
                await answering.value
                await sweeping.value
                // Leaving the group waits for the deliveries in flight; the limits of Apple and of the database bound
                // each of them.
            }
        } onGracefulShutdown: {
            Task { await consumer.drain() }
        }
        await consumer.close()
        logger.info("worker stopped")
    }

    private func process(_ delivery: Delivery) async -> ReceiptProcessor.Result {
        if let pointer = Pointer(delivery.body), pointer.kind == .notification {
            return await notifications.process(pointer, redelivered: delivery.redelivered)
        }
        return await processor.process(
            delivery.body, redelivered: delivery.redelivered, traceparent: delivery.traceparent)
    }

    private func handle(_ delivery: Delivery) async {
        let isLocal = delivery.queue == workQueue.queues.verify(.local)
        let takenAt = ContinuousClock.now
        if isLocal { await local.enter() }
        defer { if isLocal { local.leave() } }
        // While the worker stops, a message that waited for its turn goes back to the queue. A message that waited
        // behind an unavailable database for the whole patience is acknowledged, and the row comes back at its due
        // time.
        if isLocal, Task.isShuttingDownGracefully { return }
        guard ContinuousClock.now - takenAt < Self.databasePatience else { return consumer.acknowledge([delivery]) }
        switch await process(delivery) {
        case .done:
            CrashPoint.afterCommitBeforeAck.reached()
            consumer.acknowledge([delivery])
        case .undeliverable:
            logger.warning("message went to the dead letters", metadata: ["queue": "\(delivery.queue)"])
            consumer.reject(delivery)
        }
    }
}
