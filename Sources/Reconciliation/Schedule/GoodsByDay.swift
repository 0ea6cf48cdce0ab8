package import Ledger
package import Logging
import Service
import ServiceLifecycle

/// Keeps the sums of the goods given per day (0011_sums.sql), so that a dashboard reads minutes of grants and not
/// weeks. Any number of schedulers may run this. The view itself reads the grants that no scheduler has summed yet.
package struct GoodsByDay: Service {
    package static let tickInterval: Duration = .seconds(60)
    /// The pause between two steps while there is more to do, because the purchases go first at the database.
    package static let busyPause: Duration = .milliseconds(200)
    /// The span of time whose grants one step sums. It is halved when the database does not manage a step in time, and
    /// raised again later.
    package static let spanMax: Duration = .seconds(3600)
    static let spanMin: Duration = .seconds(1)
    /// A transaction that grants has its number at the latest this long after it began, because a worker's statement
    /// lives five seconds. The clock of a server that takes over may be behind by as much.
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

    /// Sums all grants of complete spans. Each step commits by itself, so this may end after any step.
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
