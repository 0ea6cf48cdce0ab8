package import Logging
import Metrics
import Purchases
import ServiceLifecycle

/// Two purchases of one user and product shortly after each other are both given, and told to support: a player who saw
/// an error and paid again has paid twice (P6). Any number may run; off the path of the verdicts, whose cost it is not.
package struct DoubleChargeSweep: Service {
    package static let interval: Duration = .seconds(60)
    /// Purchase dates this close are suspicious.
    package static let window: Duration = .seconds(600)
    /// What a sweep looks back to where none ran before; a scheduler that is away for longer leaves pairs unflagged.
    package static let lookBackMax: Duration = .seconds(3600)
    /// Verdicts that were being written while the sweep before this one looked.
    package static let overlap: Duration = .seconds(120)

    private let ledger: Ledger
    private let logger: Logger

    package init(ledger: Ledger, logger: Logger) {
        self.ledger = ledger
        self.logger = logger
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            var lookBack = Self.lookBackMax
            while !Task.isCancelled {
                let start = ContinuousClock.now
                let hasLooked = await sweep(lookBack: lookBack)
                try? await Task.sleep(for: max(.milliseconds(100), Self.interval * ledger.schedule.scale))
                let passed = ContinuousClock.now - start
                lookBack = min(Self.lookBackMax, hasLooked ? passed + Self.overlap : lookBack + passed)
            }
        }
    }

    /// - Returns: whether it looked at everything.
    @discardableResult
    func sweep(lookBack: Duration) async -> Bool {
        do {
            let found = try await ledger.run(
                Statements.findDoubleCharges, .init(lookBack: lookBack, window: Self.window))
            guard !found.isEmpty else { return true }
            let flagged = try await ledger.run(Statements.flagDoubleCharges, found)
            Counter(label: "makegood_possible_double_charges_total").increment(by: flagged.count)
            return true
        } catch {
            logger.warning("double charges could not be looked for", metadata: LogKeys.error(error))
            return false
        }
    }
}
