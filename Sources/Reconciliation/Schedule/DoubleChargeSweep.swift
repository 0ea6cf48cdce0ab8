package import Ledger
package import Logging
import Metrics
import Purchases
import Service
import ServiceLifecycle

/// Finds two purchases of one user and product that were probably meant to be one, and tells support: a player who saw an
/// error and paid again has paid twice (P6). Both purchases are given. Who buys two on purpose is not flagged. Any number of schedulers may run this; they share one
/// position in the event feed, in which each grant has one event. The verdicts do not wait for this search.
package struct DoubleChargeSweep: Service {
    package static let interval: Duration = .seconds(60)
    /// Purchase dates this close are suspicious, if there is another sign.
    package static let window: Duration = .seconds(600)
    /// Purchase dates this close are suspicious by themselves: nobody confirms two payments so fast on purpose.
    package static let moment: Duration = .seconds(10)
    /// Events of one step. The sweep halves the number when the database does not manage them in time, and raises it
    /// again later. A busy minute in one step would take a core for seconds, and each purchase would wait meanwhile.
    package static let batchMax = 250
    private static let batchMin = 10

    private let ledger: Ledger
    /// The pause between two steps, as a multiple of the last step's time, because the purchases go first at the
    /// database.
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
                // A little less than the interval: this process's own last search must not count as a recent one.
                await sweep(&batch, unlessWithin: interval * 0.9)
                try? await Task.sleep(for: interval)
            }
        }
    }

    /// Searches all events up to now, unless another search began within `interval`. Each step commits by itself, so
    /// the sweep may end after any step.
    func sweep(_ batch: inout Int, unlessWithin interval: Duration) async {
        var interval = interval
        do {
            while let step = try await ledger.run(
                Statements.takeDoubleChargeStep, .init(interval: interval, batch: batch)
            ).first {
                let start = ContinuousClock.now
                let found = try await ledger.run(
                    Statements.findDoubleCharges, .init(step: step, window: Self.window, moment: Self.moment))
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
