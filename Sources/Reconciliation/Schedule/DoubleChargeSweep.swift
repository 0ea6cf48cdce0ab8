package import Ledger
package import Logging
import Metrics
import Purchases
import Service
import ServiceLifecycle

/// Two purchases of one user and product shortly after each other are both given, and told to support: a player who saw
/// an error and paid again has paid twice (P6). Any number may run, and share one place in the events, of which
/// each grant has one; off the path of the verdicts, whose cost it is not.
package struct DoubleChargeSweep: Service {
    package static let interval: Duration = .seconds(60)
    /// Purchase dates this close are suspicious.
    package static let window: Duration = .seconds(600)
    /// Events of a step; halved when the database does not manage them in time, and back again. A busy minute at once would
    /// take a core for seconds, and each purchase meanwhile would wait.
    package static let batchMax = 250
    private static let batchMin = 10

    private let ledger: Ledger
    /// Between two steps, as a multiple of what the last one took: the database belongs to the purchases.
    private let pause: Int
    private let logger: Logger

    package init(ledger: Ledger, pause: Int = 9, logger: Logger) {
        self.ledger = ledger
        self.pause = pause
        self.logger = logger
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            let interval = max(.milliseconds(100), Self.interval * ledger.schedule.scale)
            var batch = Self.batchMax
            while !Task.isCancelled {
                // A little less, so that whoever searched last finds it is his turn again.
                await sweep(&batch, unlessWithin: interval * 0.9)
                try? await Task.sleep(for: interval)
            }
        }
    }

    /// Everything up to now, unless another one began so lately. Each step commits by itself, so this may end anywhere.
    func sweep(_ batch: inout Int, unlessWithin interval: Duration) async {
        var interval = interval
        do {
            while let step = try await ledger.run(
                Statements.takeDoubleChargeStep, .init(interval: interval, batch: batch)
            ).first {
                let start = ContinuousClock.now
                let found = try await ledger.run(
                    Statements.findDoubleCharges, .init(step: step, window: Self.window))
                if !found.isEmpty {
                    let flagged = try await ledger.run(Statements.flagDoubleCharges, found)
                    Counter(label: "makegood_possible_double_charges_total").increment(by: flagged.count)
                }
                let taken = ContinuousClock.now - start
                batch = min(batch * 2, Self.batchMax)
                let isWhole = found.count < Statements.doubleChargesMax
                if isWhole { _ = try await ledger.run(Statements.endDoubleChargeStep, step) }
                guard step.isMore || !isWhole, !Task.isCancelled else { return }
                interval = .zero
                try? await Task.sleep(for: taken * pause)
            }
        } catch {
            batch = max(batch / 2, Self.batchMin)
            logger.warning("double charges could not be looked for", metadata: LogKeys.error(error))
        }
    }
}
