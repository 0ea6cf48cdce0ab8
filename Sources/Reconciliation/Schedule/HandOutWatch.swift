package import Ledger
package import Logging
package import Metrics
import Postgres
import Purchases
import Service
import ServiceLifecycle
package import Settings

/// Counts the hand-outs that the apps' backends do not acknowledge in time, and measures and names those that wait
/// (S0-13, S0-14, S1-33). Any number of schedulers may run this; of one app one of them counts at a time.
package struct HandOutWatch: Service {
    package static let interval: Duration = .seconds(15)
    /// Events, and failures, of one step.
    package static let batch = 2000
    /// The pause between two steps, as a multiple of the last step's time, because the purchases go first at the
    /// database.
    private static let pause = 4

    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let logger: Logger
    private let metrics: any MetricsFactory

    package init(
        ledger: Ledger, configuration: ConfigurationHolder, logger: Logger,
        metrics: any MetricsFactory = MetricsSystem.factory
    ) {
        self.ledger = ledger
        self.configuration = configuration
        self.logger = logger
        self.metrics = metrics
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            var named: Set<String> = []
            while !Task.isCancelled {
                do {
                    try await count()
                    try await measure(&named)
                } catch {
                    logger.warning("hand-outs could not be counted", metadata: LogKeys.error(error))
                }
                try? await Task.sleep(for: max(.milliseconds(50), Self.interval * ledger.schedule.scale))
            }
        }
    }

    /// Looks at all events whose limit has passed. Each step commits by itself, so this may end after any step.
    func count() async throws {
        let limits = configuration.current.apps.values.map { app in
            Statements.HandOutLimit(appID: app.id, within: app.handOutWithin.map { $0 * ledger.schedule.scale })
        }
        _ = try await ledger.run(Statements.followHandOuts, limits)
        for limit in limits where limit.within != nil {
            try await inSteps {
                try await ledger.run(Statements.countLateHandOuts, .init(appID: limit.appID, most: Self.batch))
            }
        }
        try await inSteps { try await ledger.run(Statements.recountHandOuts, Self.batch) }
    }

    private func inSteps(_ step: () async throws -> [Int]) async throws {
        while !Task.isCancelled {
            let start = ContinuousClock.now
            guard try await step().first == Self.batch else { return }
            try await Task.sleep(for: (ContinuousClock.now - start) * Self.pause)
        }
    }

    /// The log names the order of each app that waits longest, once by each scheduler.
    ///
    /// - Parameter named: the orders that the log has named and that still wait longest.
    func measure(_ named: inout Set<String>) async throws {
        var oldest: Set<String> = []
        for row in try await ledger.run(Statements.waitingHandOuts, ()) {
            let dimensions = [("app", row.appID)]
            for (label, value) in [
                ("makegood_late_hand_outs", Double(row.orders)), ("makegood_late_hand_outs_seconds", row.seconds),
                ("makegood_failed_hand_outs", Double(row.needPerson)),
            ] {
                Gauge(label: label, dimensions: dimensions, factory: metrics).record(value)
            }
            guard let number = row.number, let transaction = row.transactionID else { continue }
            oldest.insert("\(row.appID) \(number)")
            guard !named.contains("\(row.appID) \(number)") else { continue }
            logger.error(
                "goods were not handed out in time",
                metadata: [
                    "app": "\(row.appID)", "order.number": "\(number)", "transaction.id": "\(transaction)",
                    "waited.seconds": "\(Int(row.seconds))", "orders": "\(row.orders)",
                    "command": "makegood explain \(transaction)",
                ])
        }
        named = oldest
    }
}
