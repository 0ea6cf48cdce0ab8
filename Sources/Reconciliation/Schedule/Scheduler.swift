package import AppleGateway
package import Ledger
package import Logging
import Metrics
import Postgres
import Purchases
import Service
import ServiceLifecycle
package import WorkQueue

/// Finds what no message told us: due rows are published again, apps in turn, in each app users in turn. Any number may
/// run.
///
/// It feeds, it does not flood: each second a queue is filled up to a depth, so a fresh purchase never has more than
/// that many rescued ones before it, and a backlog, a slow Apple, dead workers all show as depth.
package struct Scheduler: Service {
    package static let tickInterval: Duration = .seconds(1)
    /// Where a tick found more due rows than the queue had room for: a million of them end within minutes, as fast as
    /// the workers take them, and the queue is no deeper for it.
    package static let busyTickInterval: Duration = .milliseconds(150)
    /// A queue is filled up to this many ready messages: a third of a second's work for a worker, and more than it does
    /// until the next busy tick …
    package static let depthMax = 600
    /// … and gets this many in any case, so that a wrong depth stops nothing.
    package static let publishMin = 10
    /// What a halted app still gets for Apple's queue: enough for one to carry the probe.
    package static let haltedLimit = 1
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
            if let deadLetters = try? await workQueue.deadLetters() {
                Gauge(label: "makegood_dead_letters_messages").record(deadLetters)
            }
            let interval = (isBusy ? Self.busyTickInterval : Self.tickInterval) * ledger.schedule.scale
            try? await cancelWhenGracefulShutdown { try await Task.sleep(for: max(.milliseconds(50), interval)) }
        }
        logger.info("scheduler stopped")
    }

    /// One tick for one queue. Without a broker nothing is claimed: a claim that cannot be published is a lost second.
    ///
    /// - Returns: whether the queue had room and more may be due than it took.
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
        // Nobody takes: no worker is there. Again would count rescues that nobody had a chance to answer.
        claim.repeats = depth == 0 || consumers > 0
        claim.apps = all.filter { !halted.contains($0) && !halts.isPaused($0) }
        var claimed = await self.claim(claim)
        let hasMore = claimed.count == room && room > Self.publishMin
        claim.apps = all.filter { halted.contains($0) && !halts.isPaused($0) }
        claim.limit = Self.haltedLimit
        claimed += await self.claim(claim)
        guard !claimed.isEmpty else { return false }
        CrashPoint.afterClaimBeforePublish.reached()
        Counter(label: "makegood_rescues_total", dimensions: [("lane", lane.rawValue)]).increment(by: claimed.count)
        await publish(claimed, lane)
        return hasMore
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

    private func publish(_ claimed: [ClaimedReceipt], _ lane: Lane) async {
        await withDiscardingTaskGroup { group in
            for receipt in claimed {
                if receipt.isNewlyParked {
                    logger.error("receipt parked: it never reached a verdict", metadata: LogKeys.receipt(receipt.id))
                    continue
                }
                group.addTask {
                    do {
                        try await workQueue.publish(
                            Pointer(receiptID: receipt.id, attempt: receipt.attempt),
                            to: workQueue.queues.verify(lane))
                    } catch {
                        // The claim's lease ends and the row is due again.
                        logger.debug("rescue not published", metadata: LogKeys.error(error))
                    }
                }
            }
        }
    }
}
