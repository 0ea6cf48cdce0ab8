package import AppleGateway
import Encoding
package import Ledger
package import Logging
import Metrics
import Postgres
import Purchases
import Service
import ServiceLifecycle
package import WorkQueue

/// Publishes due rows again, because no message led a worker to them. Apps take turns, and within an app users take
/// turns. Any number of schedulers may run.
///
/// A scheduler does not flood a queue: each second it fills the queue up to a depth. So a fresh purchase never has more
/// than that many rescued receipts before it, and a backlog, a slow Apple and dead workers all show as depth.
package struct Scheduler: Service {
    package static let tickInterval: Duration = .seconds(1)
    /// The interval after a tick that found more due rows than the queue had room for. A million due rows end within
    /// minutes, as fast as the workers take them, and the queue gets no deeper.
    package static let busyTickInterval: Duration = .milliseconds(150)
    /// The number of ready messages up to which a queue is filled. It is a third of a second's work for a worker, and
    /// more than a worker does until the next busy tick.
    package static let depthMax = 600
    /// The number of messages that a queue gets in any case, so that a wrong depth stops nothing.
    package static let publishMin = 10
    /// The rows of halted apps that still go to Apple's queue in a tick: one is enough to carry the probe.
    package static let haltedLimit = 1
    /// The endpoints that are rung in a tick at most.
    static let ringsMax = 256
    package static let rescueDelayMax: Duration = .seconds(3600)

    private let ledger: Ledger
    private let workQueue: WorkQueue
    private let apps: AppDirectory
    private let halts: Halts
    private let logger: Logger

    package init(ledger: Ledger, workQueue: WorkQueue, apps: AppDirectory, halts: Halts, logger: Logger) {
        self.ledger = ledger
        self.workQueue = workQueue
        self.apps = apps
        self.halts = halts
        self.logger = logger
    }

    package func run() async throws {
        logger.info("scheduler started")
        while !Task.isShuttingDownGracefully, !Task.isCancelled {
            var isBusy = false
            for lane in Lane.allCases where await feed(lane) { isBusy = true }
            await ring()
            if let deadLetters = try? await workQueue.deadLetters() {
                Gauge(label: "makegood_dead_letters_messages").record(deadLetters)
            }
            let interval = (isBusy ? Self.busyTickInterval : Self.tickInterval) * ledger.schedule.scale
            try? await cancelWhenGracefulShutdown { try await Task.sleep(for: max(.milliseconds(50), interval)) }
        }
        logger.info("scheduler stopped")
    }

    /// Does one tick for one queue. Without a broker the scheduler claims nothing: a claim that cannot be published
    /// loses a second.
    ///
    /// - Returns: whether the queue had room and more rows may be due than the tick took.
    @discardableResult
    func feed(_ lane: Lane) async -> Bool {
        let (depth, consumers): (Int, Int)
        do {
            (depth, consumers) = try await workQueue.counts(of: lane)
        } catch {
            logger.debug("broker is away", metadata: LogKeys.error(error))
            return false
        }
        Gauge(label: "makegood_queue_depth_messages", dimensions: [("queue", workQueue.queues.verify(lane))]).record(
            depth)
        let room = max(Self.depthMax - depth, Self.publishMin)
        let halted = lane == .apple ? halts.haltedApps : []
        let all = apps.ids
        var claim = Statements.Claim(
            lane: lane, apps: [], limit: room, rescueDelay: ledger.schedule.rescueDelay(lane),
            rescueDelayMax: Self.rescueDelayMax * ledger.schedule.scale)
        // Only an empty queue with workers proves that earlier messages reached one.
        claim.mayPark = depth == 0 && consumers > 0
        // If messages wait and nobody consumes them, no worker runs. Publishing again would count rescues that no
        // worker had a chance to answer.
        claim.repeats = depth == 0 || consumers > 0
        claim.apps = all.filter { !halted.contains($0) && !halts.isPaused($0) }
        var claimed = await self.claim(claim)
        var hasMore = claimed.count == room && room > Self.publishMin
        claim.apps = all.filter { halted.contains($0) && !halts.isPaused($0) }
        claim.limit = Self.haltedLimit
        claimed += await self.claim(claim)
        let receipts = claimed.map { (row: $0, pointer: Pointer(receiptID: $0.id, attempt: $0.attempt)) }
        let notifications = lane == .unposted ? await claimNotifications(beside: claim, room - claimed.count) : []
        guard !receipts.isEmpty || !notifications.isEmpty else { return false }
        if !notifications.isEmpty, receipts.count + notifications.count >= room { hasMore = room > Self.publishMin }
        CrashPoint.afterClaimBeforePublish.reached()
        Counter(label: "makegood_rescues_total", dimensions: [("lane", lane.rawValue)]).increment(
            by: receipts.count + notifications.count)
        await publish(receipts + notifications, lane)
        return hasMore
    }

    /// Rings for the endpoints that have something due and that no dispatcher serves, unless as many rings wait already:
    /// without a dispatcher the queue gets no deeper.
    func ring() async {
        do {
            let due = try await ledger.run(Statements.dueEndpoints, Self.ringsMax)
            guard !due.isEmpty else { return }
            let waiting = try await workQueue.waitingRings()
            Gauge(label: "makegood_queue_depth_messages", dimensions: [("queue", workQueue.queues.deliver)]).record(
                waiting)
            for endpoint in due.dropFirst(waiting) { workQueue.ring(endpoint) }
        } catch {
            logger.debug("no endpoint was rung", metadata: LogKeys.error(error))
        }
    }

    /// Notifications are of all apps, also of halted and paused ones: a worker needs no call for them.
    private func claimNotifications(
        beside claim: Statements.Claim, _ room: Int
    ) async -> [(row: ClaimedReceipt, pointer: Pointer)] {
        do {
            let claimed = try await ledger.run(
                Statements.claimNotifications,
                .init(
                    limit: max(room, Self.publishMin), rescueDelay: claim.rescueDelay,
                    rescueDelayMax: claim.rescueDelayMax, mayPark: claim.mayPark, repeats: claim.repeats))
            return claimed.map { ($0, Pointer(notificationID: $0.id, attempt: $0.attempt)) }
        } catch {
            logger.debug("database is away", metadata: LogKeys.error(error))
            return []
        }
    }

    private func claim(_ claim: Statements.Claim) async -> [ClaimedReceipt] {
        guard !claim.apps.isEmpty else { return [] }
        do {
            return try await ledger.run(Statements.claim, claim)
        } catch {
            logger.debug("database is away", metadata: LogKeys.error(error))
            return []
        }
    }

    private func publish(_ claimed: [(row: ClaimedReceipt, pointer: Pointer)], _ lane: Lane) async {
        await withDiscardingTaskGroup { group in
            for (row, pointer) in claimed {
                if row.isNewlyParked {
                    logger.error(
                        "\(pointer.kind.rawValue) parked: it never reached a verdict",
                        metadata: pointer.receiptID.map(LogKeys.receipt) ?? ["notification.id": "\(row.id.text)"])
                    continue
                }
                group.addTask {
                    do {
                        try await workQueue.publish(pointer, to: workQueue.queues.verify(lane))
                    } catch {
                        // The claim's lease ends and the row is due again.
                        logger.debug("rescue not published", metadata: LogKeys.error(error))
                    }
                }
            }
        }
    }
}
