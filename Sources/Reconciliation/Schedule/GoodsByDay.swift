package import Ledger
package import Logging
import Service
import ServiceLifecycle

/// Keeps the sums of what was given by day (0011_sums.sql), so that a dashboard reads minutes of grants and not
/// weeks. Any number may run; what none of them has summed yet the view reads itself.
package struct GoodsByDay: Service {
    package static let tickInterval: Duration = .seconds(60)
    /// Between two steps while there is more to do: the database belongs to the purchases.
    package static let busyPause: Duration = .milliseconds(200)
    /// Grants of a step, by time; halved when the database does not manage them in time, and back again.
    package static let spanMax: Duration = .seconds(3600)
    static let spanMin: Duration = .seconds(1)
    /// A transaction that grants has its number this long after it began: a worker's statement lives five seconds. And
    /// so far may the clock of a server that takes over be behind.
    static let margin: Duration = .seconds(300)

    private let ledger: Ledger
    private let logger: Logger

    package init(ledger: Ledger, logger: Logger) {
        self.ledger = ledger
        self.logger = logger
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            var span = Self.spanMax
            while !Task.isCancelled {
                await tick(&span)
                try? await Task.sleep(for: Self.tickInterval)
            }
        }
    }

    /// Everything that is complete. Each step commits by itself, so this may end anywhere.
    func tick(_ span: inout Duration) async {
        do {
            if try await ledger.run(Statements.sumGoodsAgain, Self.margin).first != nil {
                logger.warning("the database's clock went back; the goods of this day are summed again")
            }
            _ = try await ledger.run(Statements.lookAheadOfGoods, Self.margin)
            while let isMore = try await ledger.run(Statements.sumGoods, span).first {
                span = min(span * 2, Self.spanMax)
                guard isMore, !Task.isCancelled else { return }
                try? await Task.sleep(for: Self.busyPause)
            }
        } catch {
            span = max(span / 2, Self.spanMin)
            logger.warning("goods could not be summed", metadata: LogKeys.error(error))
        }
    }
}
