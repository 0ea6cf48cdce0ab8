package import Logging
import Metrics
import Purchases
package import RabbitMQ
import ServiceLifecycle

/// Takes pointers off the queues, judges what they point at, writes the verdicts, and only then acknowledges.
///
/// In flight: at most the sum of the two prefetches, so a slow Apple fills its own queue's share and no other. The
/// payloads in flight are bounded by it too: 64 receipts of at most 1 MiB, 512 signed transactions of at most 64 KiB.
package struct VerifyWorker: Service {
    package struct Limits: Sendable {
        package var localInFlight: Int
        package var appleInFlight: Int

        package init(localInFlight: Int, appleInFlight: Int) {
            self.localInFlight = localInFlight
            self.appleInFlight = appleInFlight
        }
    }

    /// A database that is away is waited for this long with the message unacked; then the row's due time takes over,
    /// well before the broker's consumer timeout (P29: at most 60 s).
    static let databasePatience: Duration = .seconds(45)
    static let breakerInterval: Duration = .milliseconds(200)

    private let consumer: Consumer
    private let doorbell: Doorbell
    private let apps: AppDirectory
    private let limits: Limits
    private let bench: VerifyBench
    private let desk: AppleDesk
    private let logger: Logger

    package init(
        consumer: Consumer, doorbell: Doorbell, ledger: Ledger, apps: AppDirectory, halts: HaltBoard, limits: Limits,
        logger: Logger
    ) {
        self.consumer = consumer
        self.doorbell = doorbell
        self.apps = apps
        self.limits = limits
        self.logger = logger
        desk = AppleDesk(
            halts: halts,
            // The others are in flight: at Apple, or on their way through.
            governor: Governor(ledger: ledger, waitersMax: max(1, limits.appleInFlight / 2), logger: logger),
            scale: ledger.schedule.scale)
        bench = VerifyBench(
            ledger: ledger, apps: apps, halts: halts, examiner: Examiner(desk: desk, schedule: ledger.schedule),
            doorbell: doorbell, logger: logger)
    }

    /// What the worker consumes from, for the consumer it is given.
    package static func subscriptions(_ queues: Queues, _ limits: Limits) -> [Subscription] {
        [
            Subscription(queue: queues.verify(.local), prefetch: limits.localInFlight),
            Subscription(queue: queues.verify(.apple), prefetch: limits.appleInFlight),
        ]
    }

    package func run() async throws {
        await consumer.start()
        logger.info("worker started")
        await withGracefulShutdownHandler {
            await withDiscardingTaskGroup { group in
                let watch = Task { await followBreaker() }
                for await delivery in consumer.deliveries {
                    group.addTask { await handle(delivery) }
                }
                watch.cancel()
                // Leaving the group waits for what is in flight: each is bounded by Apple's and the database's limits.
            }
        } onGracefulShutdown: {
            Task { await consumer.drain() }
        }
        await consumer.close()
        logger.info("worker stopped")
    }

    private func handle(_ delivery: Delivery) async {
        switch await bench.settle(delivery.body, redelivered: delivery.redelivered) {
        case .done:
            CrashPoint.afterCommitBeforeAck.reached()
            consumer.acknowledge([delivery])
        case .undeliverable:
            logger.warning("message went to the dead letters", metadata: ["queue": "\(delivery.queue)"])
            consumer.reject(delivery)
        }
    }

    /// An open breaker stops taking from Apple's queue, unless what lies there may be given on trust (what may not is put
    /// off, without a call); a half-open one takes one at a time.
    private func followBreaker() async {
        let queue = doorbell.queues.verify(.apple)
        let gauge = Gauge(label: "makegood_breaker_open")
        var applied: Breaker.State = .closed
        while !Task.isCancelled {
            let state = desk.breakerState
            if state != applied {
                switch state {
                case .closed: await consumer.setPrefetch(limits.appleInFlight, for: queue)
                case .halfOpen: await consumer.setPrefetch(1, for: queue)
                case .open: await consumer.setPrefetch(apps.trusts ? limits.appleInFlight : 0, for: queue)
                }
                gauge.record(state == .closed ? 0 : 1)
                logger.notice("breaker changed", metadata: ["apple.breaker": "\(state)"])
                applied = state
            }
            try? await Task.sleep(for: Self.breakerInterval)
        }
    }
}
