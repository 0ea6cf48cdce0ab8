package import Ledger
package import Logging
import Metrics
import Postgres
import Service
import ServiceLifecycle
package import Settings

/// Removes payloads by day. Payloads that must stay longer are moved first, then the day is dropped (0003_payloads.sql
/// says what must stay, and why nothing of it blocks ingest). Any number of schedulers may run this.
package struct PayloadRetention: Service {
    package static let tickInterval: Duration = .seconds(60)
    /// The pause between two steps while there is more to do, because the purchases go first at the database.
    package static let busyPause: Duration = .milliseconds(200)
    /// How many days ahead partitions exist, so that the scheduler may be away for as long.
    package static let partitionDays = 7
    /// Rows of one step at first. The number is halved when the database does not manage a step in time, and raised
    /// again later.
    package static let batchMax = 1000
    static let batchMin = 10

    private let ledger: Ledger
    private let configuration: ConfigurationHolder
    private let logger: Logger

    package init(ledger: Ledger, configuration: ConfigurationHolder, logger: Logger) {
        self.ledger = ledger
        self.configuration = configuration
        self.logger = logger
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            var batch = Self.batchMax
            while !Task.isCancelled {
                await tick(&batch)
                try? await Task.sleep(for: Self.tickInterval)
            }
        }
    }

    /// Does everything that is due now. Each step commits by itself, so this may end after any step.
    func tick(_ batch: inout Int) async {
        do {
            _ = try await ledger.run(Statements.createPayloadPartitions, Self.partitionDays)
        } catch {
            // The payloads of a day without a partition go to the default partition. Old days must leave all the same.
            logger.warning("no partition for the payloads to come", metadata: LogKeys.error(error))
        }
        do {
            while try await ledger.run(Statements.dropLimitPlaces, ()).first ?? 0 > 0, !Task.isCancelled {
                try? await Task.sleep(for: Self.busyPause)
            }
        } catch {
            logger.warning("the places of past days were not dropped", metadata: LogKeys.error(error))
        }
        do {
            while let step = try await step(batch), step.isMore, !Task.isCancelled {
                batch = min(batch * 2, Self.batchMax)
                try? await Task.sleep(for: Self.busyPause)
            }
            try await measure()
        } catch {
            batch = max(batch / 2, Self.batchMin)
            logger.warning("payload retention did not come through", metadata: LogKeys.error(error))
        }
        await emptyNotifications(batch)
    }

    /// Empties payloads of notifications that ended long ago.
    private func emptyNotifications(_ batch: Int) async {
        let days = configuration.current.notificationDays
        do {
            while try await ledger.run(Statements.emptyNotifications, .init(days: days, batch: batch)).first == batch,
                !Task.isCancelled
            {
                try? await Task.sleep(for: Self.busyPause)
            }
        } catch {
            logger.warning("payloads of notifications were not emptied", metadata: LogKeys.error(error))
        }
    }

    private func step(_ batch: Int) async throws(LedgerError) -> Statements.Retained? {
        let configuration = configuration.current
        let asking = configuration.apps.values.filter { $0.serverAPI != nil }.map(\.id).sorted()
        let step = try await ledger.run(
            Statements.retainPayloads,
            .init(days: configuration.payloadDays, appsAskingByID: asking, batch: batch)
        ).first
        if let day = step?.droppedDay {
            logger.notice("the payloads of a day were dropped", metadata: ["payloads.day": "\(day)"])
        }
        return step
    }

    private func measure() async throws(LedgerError) {
        for place in try await ledger.run(Statements.payloadPlaces, ()) {
            Gauge(label: "makegood_payloads_bytes", dimensions: [("place", place.name)]).record(place.bytes)
            if place.name == "day" { Gauge(label: "makegood_payloads_oldest_days").record(place.oldestDays ?? 0) }
        }
        for kept in try await ledger.run(Statements.keptPayloads, ()) {
            Gauge(label: "makegood_kept_payloads_receipts", dimensions: [("reason", kept.reason)]).record(kept.receipts)
        }
    }
}
