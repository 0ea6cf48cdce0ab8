package import Ledger
package import Logging
import Postgres
import Purchases
import Service
import ServiceLifecycle

/// Keeps sums of rows by time, minutes behind the verdicts, so that a query reads minutes of rows and not weeks. Any
/// number of schedulers may run this.
package struct RunningSums: Service {
    package static let tickInterval: Duration = .seconds(60)
    /// The pause between two steps while there is more to do, because the purchases go first at the database.
    package static let busyPause: Duration = .milliseconds(200)
    /// The longest span of time whose rows one step sums. The loop halves the span when the database does not manage a
    /// step in time, and raises the span again later.
    package static let spanMax: Duration = .seconds(3600)
    static let spanMin: Duration = .seconds(1)
    /// A transaction that grants has its number at the latest this long after it began, because a worker's statement
    /// lives five seconds. The clock of a server that takes over may be behind by as much.
    static let margin: Duration = .seconds(300)

    private let what: String
    private let sumAgain: Statement<Duration, Bool>
    private let lookAhead: Statement<Duration, Void>
    private let sum: Statement<Duration, Bool>
    private let ledger: Ledger
    private let logger: Logger

    /// The goods given per day (0011_sums.sql). `v_goods_by_day` itself reads the grants that no scheduler has summed
    /// yet.
    package static func goodsByDay(_ ledger: Ledger, logger: Logger) -> RunningSums {
        RunningSums(
            what: "goods", sumAgain: Statements.sumGoodsAgain, lookAhead: Statements.lookAheadOfGoods,
            sum: Statements.sumGoods, ledger: ledger, logger: logger)
    }

    /// The arrivals by hour (0027_books.sql).
    package static func arrivalsByHour(_ ledger: Ledger, logger: Logger) -> RunningSums {
        RunningSums(
            what: "arrivals", sumAgain: Statements.sumArrivalsAgain, lookAhead: Statements.lookAheadOfArrivals,
            sum: Statements.sumArrivals, ledger: ledger, logger: logger)
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            var span = Self.spanMax
            while !Task.isCancelled {
                await tick(&span)
                try? await Task.sleep(for: max(.milliseconds(50), Self.tickInterval * ledger.schedule.scale))
            }
        }
    }

    /// Sums all rows of complete spans. Each step commits by itself, so this may end after any step.
    func tick(_ span: inout Duration) async {
        do {
            if try await ledger.run(sumAgain, Self.margin).first != nil {
                logger.warning("the database's clock went back; the latest sums begin again", metadata: sums)
            }
            _ = try await ledger.run(lookAhead, Self.margin)
            while let isMore = try await ledger.run(sum, span).first {
                span = min(span * 2, Self.spanMax)
                guard isMore, !Task.isCancelled else { return }
                try? await Task.sleep(for: Self.busyPause * ledger.schedule.scale)
            }
        } catch {
            span = max(span / 2, Self.spanMin)
            logger.warning("rows could not be summed", metadata: LogKeys.error(error).merging(sums) { $1 })
        }
    }

    private var sums: Logger.Metadata { ["sums": "\(what)"] }
}
