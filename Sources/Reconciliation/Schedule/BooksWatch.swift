import Encoding
package import Ledger
package import Logging
package import Metrics
import Postgres
import Purchases
import Service
import ServiceLifecycle

/// The loops that measure the books: the items that wait for too long (L1), the arrivals that have stopped (L4), and
/// the open differences (L6). One loop writes the report of each day on the morning after. Any number of schedulers may
/// run the loops.
package struct BooksWatch: Service {
    package static let interval: Duration = .seconds(60)
    /// How often a scheduler looks whether a report is due: whether the day has no row.
    package static let reportInterval: Duration = .seconds(10)

    private let ledger: Ledger
    private let logger: Logger
    private let metrics: any MetricsFactory

    package init(ledger: Ledger, logger: Logger, metrics: any MetricsFactory = MetricsSystem.factory) {
        self.ledger = ledger
        self.logger = logger
        self.metrics = metrics
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask {
                    var named: Set<String> = []
                    await every(Self.interval) { try await measureOverdue(&named) }
                }
                group.addTask {
                    var late: Set<Statements.ArrivalSeries> = []
                    await every(Self.interval) { try await measureArrivals(&late) }
                }
                group.addTask { await every(Self.interval, measureDifferences) }
                group.addTask { await every(Self.reportInterval, writeReports) }
            }
        }
    }

    private func every(_ interval: Duration, _ body: () async throws -> Void) async {
        while !Task.isCancelled {
            do {
                try await body()
            } catch {
                logger.warning("the books could not be read", metadata: LogKeys.error(error))
            }
            try? await Task.sleep(for: max(.milliseconds(50), interval * ledger.schedule.scale))
        }
    }

    private func gauge(_ label: String, _ dimensions: [(String, String)] = []) -> Gauge {
        Gauge(label: label, dimensions: dimensions, factory: metrics)
    }

    /// The log names the oldest items of an account, once by each scheduler.
    ///
    /// - Parameter named: the items that the log has named and that are still the oldest of their account.
    func measureOverdue(_ named: inout Set<String>) async throws {
        var oldest: Set<String> = []
        for row in try await ledger.run(Statements.overdueItems, ()) {
            let dimensions = [("app", row.appID), ("account", row.account)]
            gauge("makegood_clearing_overdue_items", dimensions).record(row.items)
            gauge("makegood_clearing_overdue_seconds", dimensions).record(row.seconds)
            guard let id = row.ids.first, let command = row.command else { continue }
            oldest.insert("\(row.account) \(id)")
            guard !named.contains("\(row.account) \(id)") else { continue }
            logger.error(
                "an account of the books does not come to zero",
                metadata: [
                    "app": "\(row.appID)", "account": "\(row.account)", "items": "\(row.items)",
                    "ids": "\(row.ids.joined(separator: ", "))", "waited.seconds": "\(Int(row.seconds))",
                    "command": "\(command)",
                ])
        }
        named = oldest
    }

    /// - Parameter late: the arrivals that were late at the last look.
    func measureArrivals(_ late: inout Set<Statements.ArrivalSeries>) async throws {
        var isLate: [Statements.ArrivalSeries: Statements.ArrivalSpan] = [:]
        var known: Set<Statements.ArrivalSeries> = []
        for span in try await ledger.run(Statements.timeliness, ()) {
            known.insert(span.series)
            guard Timeliness(span.facts).isLate else { continue }
            // The shortest span tells best when the arrivals stopped.
            if let other = isLate[span.series], other.hours <= span.hours { continue }
            isLate[span.series] = span
        }
        // An alarm also ends where nothing of the kind has arrived for five weeks.
        for series in known.union(late) {
            gauge(
                "makegood_arrivals_late",
                [
                    ("app", series.appID), ("environment", series.environment), ("kind", series.kind),
                    ("type", series.type),
                ]
            ).record(isLate[series] == nil ? 0 : 1)
        }
        for (series, span) in isLate where !late.contains(series) {
            logger.error(
                "arrivals that always came have stopped",
                metadata: [
                    "app": "\(series.appID)", "environment": "\(series.environment)", "kind": "\(series.kind)",
                    "type": "\(series.type)", "hours": "\(span.hours)", "until": "\(span.facts.until.rfc3339)",
                    "arrivals": "\(span.facts.arrivals)", "weeks": "\(span.facts.weeks)",
                ])
        }
        late = Set(isLate.keys)
    }

    func measureDifferences() async throws {
        for row in try await ledger.run(Statements.openDifferences, ()) {
            let dimensions = [("app", row.appID), ("category", row.category)]
            gauge("makegood_open_differences", dimensions).record(row.differences)
            gauge("makegood_open_differences_seconds", dimensions).record(row.seconds)
        }
    }

    /// Writes the reports that are due, and measures how many days have none. Another scheduler may write the same day:
    /// the first row stays.
    func writeReports() async throws {
        while let day = try await ledger.run(Statements.dueReport, ()).first, !Task.isCancelled {
            let report = try await DayReport.read(day: day, appID: nil, in: ledger.database)
            guard try await ledger.run(Statements.keepReport, (day: day, report: report.json)).first != nil else {
                continue
            }
            logger.info(
                "the report of a day is written",
                metadata: [
                    "day": "\(day)", "seals.block": "\(report.seals?.block ?? 0)",
                    "seals.head": "\(report.seals?.head ?? "")",
                ])
        }
        gauge("makegood_daily_reports_missing").record(try await ledger.run(Statements.missingReports, ()).first ?? 0)
    }
}
