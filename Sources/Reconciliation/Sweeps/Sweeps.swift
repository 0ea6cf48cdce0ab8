import AppStore
import AppleGateway
import Foundation
import Ledger
import Logging
import Metrics
import Purchases
import Service
import WorkQueue

/// The loops that ask Apple for purchases and ends that nobody told (Sweeps). Any number of workers may run the loops:
/// the rows say which question is due, and when.
struct Sweeps: Sendable {
    /// How often a loop looks for a row that is due.
    static let interval: Duration = .seconds(5)
    /// Calls at a time, of each sweep in each process.
    static let callsMax = 4
    /// How often a worker measures how far the sweeps are.
    static let measureInterval: Duration = .seconds(60)

    let ledger: Ledger
    let apps: AppDirectory
    let halts: Halts
    let appleGateway: AppleGateway
    let workQueue: WorkQueue
    let followUps: FollowUpSignal
    let logger: Logger
    var metrics: any MetricsFactory = MetricsSystem.factory

    /// Runs every sweep until the task is cancelled.
    func run() async {
        await withDiscardingTaskGroup { group in
            group.addTask { await NotificationHistorySweep(self).run() }
            group.addTask { await CustomerRota(self).run() }
            group.addTask { await CustomerSweep(self).run() }
            group.addTask { await RefundSweep(self).run() }
            group.addTask { await SampleAudit(self).run() }
            group.addTask { await measure() }
            group.addTask { await SubscriptionSweep(self).run() }
        }
    }

    /// Repeats a round until the task is cancelled.
    ///
    /// - Parameter round: asks what is due, and returns whether more may be due now.
    func loop(_ round: () async -> Bool) async {
        while !Task.isCancelled {
            guard await !round() else { continue }
            try? await Task.sleep(for: max(.milliseconds(50), Self.interval * ledger.schedule.scale))
        }
    }

    /// How long a claim lasts: at least twice the longest call with the longest wait for it.
    var lease: Duration {
        max(ledger.schedule.rescueDelay(.apple), (ledger.schedule.callLimit + Governor.patience) * 2)
    }

    /// The apps that this process may ask Apple about now, with their ids: nobody paused them, they do not rest, and they
    /// can ask.
    ///
    /// - Parameter canAsk: whether an app has the credentials that a sweep needs, and Apple takes them.
    func askable(
        except rests: SweepRests<String> = .init(), where canAsk: (AppServices) -> Bool
    ) -> [(id: String, app: AppServices)] {
        apps.ids.compactMap { id in
            guard let app = apps[id], !halts.isPaused(id), !rests.isResting(id), canAsk(app) else { return nil }
            return (id, app)
        }
    }

    // MARK: What operators see

    private func measure() async {
        while !Task.isCancelled {
            // The pause comes first, because a worker that has just started has purchases to judge.
            try? await Task.sleep(for: Self.measureInterval)
            guard !Task.isCancelled else { return }
            do {
                try await measureOnce()
            } catch {
                logger.warning("the sweeps could not be measured", metadata: LogKeys.error(error))
            }
        }
    }

    /// Measures the sweeps of the apps and environments that this worker is configured for.
    func measureOnce() async throws {
        for row in try await ledger.run(Statements.sweeps, ()) {
            guard let app = apps[row.appID], app.lookUpOrder.contains(StoreEnvironment(rawValue: row.environment)),
                // Without credentials only subscriptions are asked about.
                app.serverAPI != nil || row.sweep == Net.subscription.rawValue,
                app.policy.sweeps.hasRota(row.sweep)
            else { continue }
            let dimensions = [("sweep", row.sweep), ("app", row.appID), ("environment", row.environment)]
            func gauge(_ label: String) -> Gauge { Gauge(label: label, dimensions: dimensions, factory: metrics) }
            gauge("makegood_sweep_due").record(row.due)
            gauge("makegood_sweep_lag_seconds").record(row.lagSeconds)
            gauge("makegood_sweep_passed_over").record(row.passedOver)
        }
    }
}

/// The times until which a sweep asks Apple nothing about a subject, because the governor admitted no call or Apple
/// refuses the key. Only this process keeps the times: a claimed row is due again when its lease ends.
struct SweepRests<Subject: Hashable & Sendable>: Sendable {
    /// The length of a rest for which the governor names no time.
    static var usual: Duration { .seconds(60) }
    private static var longest: Duration { .seconds(3600) }

    private var ends: [Subject: ContinuousClock.Instant] = [:]

    /// - Parameters:
    ///   - until: the time that the governor has named, by this process's clock.
    ///   - scale: of the retry schedule.
    mutating func rest(_ subject: Subject, until: Date?, scale: Double) {
        rest(subject, for: until.map { Duration.seconds(max(0, $0.timeIntervalSinceNow)) } ?? Self.usual * scale)
    }

    /// A rest that ends later stays.
    mutating func rest(_ subject: Subject, for length: Duration) {
        let end = ContinuousClock.now + min(length, Self.longest)
        ends[subject] = max(ends[subject] ?? end, end)
    }

    func isResting(_ subject: Subject) -> Bool { ends[subject].map { ContinuousClock.now < $0 } ?? false }
}
