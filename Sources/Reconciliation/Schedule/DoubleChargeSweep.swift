package import Logging
import Metrics
import Purchases
import ServiceLifecycle

/// Two purchases of one user and product shortly after each other are both given, and told to support: a player who saw
/// an error and paid again has paid twice (P6). Any number may run, and share one place in the grants; off the path of
/// the verdicts, whose cost it is not.
package struct DoubleChargeSweep: Service {
    package static let interval: Duration = .seconds(60)
    /// Purchase dates this close are suspicious.
    package static let window: Duration = .seconds(600)
    /// Verdicts that were being written while the step before was searched: a worker's statement lives five seconds.
    package static let overlap: Duration = .seconds(60)
    private static let overlapMin: Duration = .seconds(10)
    /// Grants of a step, by time; halved when the database does not manage them in time, and back again.
    package static let spanMax: Duration = .seconds(900)
    private static let spanMin: Duration = .seconds(1)
    /// Between two steps while there is more to do: the database belongs to the purchases.
    private static let busyPause: Duration = .milliseconds(200)

    private let ledger: Ledger
    private let logger: Logger

    package init(ledger: Ledger, logger: Logger) {
        self.ledger = ledger
        self.logger = logger
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            let interval = max(.milliseconds(100), Self.interval * ledger.schedule.scale)
            var span = Self.spanMax
            while !Task.isCancelled {
                // A little less, so that whoever searched last finds it is his turn again.
                await sweep(&span, unlessWithin: interval * 0.9)
                try? await Task.sleep(for: interval)
            }
        }
    }

    /// Everything up to now, unless another one began so lately. Each step commits by itself, so this may end anywhere.
    func sweep(_ span: inout Duration, unlessWithin interval: Duration) async {
        var interval = interval
        do {
            while let step = try await ledger.run(
                Statements.takeDoubleChargeStep, .init(interval: interval, span: span)
            ).first {
                let found = try await ledger.run(
                    Statements.findDoubleCharges,
                    .init(
                        step: step, overlap: max(Self.overlapMin, Self.overlap * ledger.schedule.scale),
                        window: Self.window))
                if !found.isEmpty {
                    let flagged = try await ledger.run(Statements.flagDoubleCharges, found)
                    Counter(label: "makegood_possible_double_charges_total").increment(by: flagged.count)
                }
                span = min(span * 2, Self.spanMax)
                let isWhole = found.count < Statements.doubleChargesMax
                if isWhole { _ = try await ledger.run(Statements.endDoubleChargeStep, step) }
                guard step.isMore || !isWhole, !Task.isCancelled else { return }
                interval = .zero
                try? await Task.sleep(for: Self.busyPause)
            }
        } catch {
            span = max(span / 2, Self.spanMin)
            logger.warning("double charges could not be looked for", metadata: LogKeys.error(error))
        }
    }
}
