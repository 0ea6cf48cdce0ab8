package import Ledger
package import Logging
import Metrics
import Postgres
import Service
import ServiceLifecycle
package import Settings

/// Payloads leave by day: those that must stay longer are moved first, then the day is dropped (0003_payloads.sql says
/// what must stay, and why nothing of it stands in the way of ingest). Any number may run.
package struct PayloadRetention: Service {
    package static let tickInterval: Duration = .seconds(60)
    /// Between two steps while there is more to do: the database belongs to the purchases.
    package static let busyPause: Duration = .milliseconds(200)
    /// Partitions exist this many days ahead, so that a scheduler may be away that long.
    package static let partitionDays = 7
    /// Rows of a step at first; halved when the database does not manage them in time, and back again.
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

    /// Everything that is due now. Each step commits by itself, so this may end anywhere.
    func tick(_ batch: inout Int) async {
        do {
            _ = try await ledger.run(Statements.createPayloadPartitions, Self.partitionDays)
        } catch {
            // A day without a partition goes to the default partition; that must not keep old days from leaving.
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
