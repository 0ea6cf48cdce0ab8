import AppleGateway
import Ledger
import Logging
import Metrics
import Postgres
import Purchases
import Service
import WorkQueue

/// A loop that follows up marked chains, and chains whose time has come. Any number of workers may run this: two
/// runners never follow up one chain at once.
struct FollowUpRunner: Sendable {
    /// After this time the runner looks without a wake, for the marks of other processes and for changes by the clock.
    static let interval: Duration = .seconds(1)
    /// The pause after a look, so that marks which come together are one look.
    private static let pause: Duration = .milliseconds(50)
    /// The chains of one transaction.
    static let chainsMax = 64

    let ledger: Ledger
    let apps: AppDirectory
    let workQueue: WorkQueue
    let signal: FollowUpSignal
    let logger: Logger

    /// Runs until the task is cancelled.
    func run() async {
        await withDiscardingTaskGroup { group in
            group.addTask {
                while !Task.isCancelled {
                    signal.wake()
                    try? await Task.sleep(for: max(.milliseconds(50), Self.interval * ledger.schedule.scale))
                }
            }
            var limit = Self.chainsMax
            for await _ in signal.wakes {
                while await round(&limit), !Task.isCancelled {}
                try? await Task.sleep(for: Self.pause)
            }
            group.cancelAll()
        }
    }

    /// Follows up some chains.
    ///
    /// - Returns: whether more chains may be marked or due.
    @discardableResult
    func round() async -> Bool {
        var limit = Self.chainsMax
        return await round(&limit)
    }

    /// - Parameter limit: the chains of one transaction. After a failure they are half as many, so that a chain whose
    ///   follow-up always fails is alone in the end, and is put off; after a success they are twice as many.
    private func round(_ limit: inout Int) async -> Bool {
        do throws(LedgerError) {
            let followed = try await ledger.followUpChains(policies: policies, limit: limit)
            limit = min(limit * 2, Self.chainsMax)
            if followed.chains > 0 { Counter(label: "makegood_followups_total").increment(by: followed.chains) }
            Gauge(label: "makegood_followups_lag_seconds").record(followed.lag.inSeconds)
            // The rows are due as well; these messages only save the wait for the scheduler.
            for pointer in followed.woken { workQueue.publish(pointer.pointer, lane: pointer.lane) }
            return followed.isMore
        } catch {
            // After a failure the marks stay, and the chains stay due.
            logger.debug("chains could not be followed up", metadata: LogKeys.error(error))
            let failed = limit
            limit = max(1, limit / 2)
            guard failed == 1 else { return !error.isRetryable }
            return await putOff(for: error)
        }
    }

    /// Puts off the chain whose turn it is, unless the error says nothing of the chain.
    ///
    /// - Returns: whether it was put off.
    private func putOff(for error: LedgerError) async -> Bool {
        switch error {
        case .refused(.data), .refused(.internalError), .refused(.undecodable), .unavailable(.timedOut(.statement)):
            break
        case .busy, .refused, .unavailable: return false
        }
        guard let chain = try? await ledger.putOffChain() else { return false }
        Counter(label: "makegood_refused_verdicts_total").increment()
        logger.error(
            "a chain cannot be followed up",
            metadata: LogKeys.error(error).merging(["chain": "\(chain)"]) { first, _ in first })
        return true
    }

    private var policies: [String: SubscriptionPolicy] {
        Dictionary(
            uniqueKeysWithValues: apps.ids.compactMap { id in
                apps[id].map { (id, $0.subscriptionPolicy(scale: ledger.schedule.scale)) }
            })
    }
}

extension AppServices {
    /// The policy for subscriptions, and how a worker asks Apple about them. Without credentials for the App Store
    /// Server API ended chains are asked about too, because there is no history of the customer to ask for.
    func subscriptionPolicy(scale: Double) -> SubscriptionPolicy {
        var policy = policy.subscriptions
        let asksByReceipt = serverAPI == nil && receipts != nil
        policy.asks = AskPolicy(endedEvery: asksByReceipt ? self.policy.sweeps.customersEvery : nil, scale: scale)
        return policy
    }
}
