import Foundation
package import Logging
import Metrics
package import Postgres
import Purchases
import ServiceLifecycle

/// The invariants, checked one after the other for ever, and the backlog as metrics.
package struct Watch: Service {
    /// In which every invariant is checked once, unless that takes long.
    package static let checkInterval: Duration = .seconds(60)
    /// A check reads two days of rows, and the database belongs to the purchases: each invariant is followed by a rest so
    /// many times as long as it took, so that fewer than one purchase in a hundred has a check beside it.
    static let checkPause = 200
    /// All of them are checked within an hour and a half even where each is cut off (MakegoodInvariantUnchecked).
    static let checkPauseMax: Duration = .seconds(180)
    package static let backlogInterval: Duration = .seconds(15)

    private let ledger: Ledger
    private let logger: Logger

    package init(ledger: Ledger, logger: Logger) {
        self.ledger = ledger
        self.logger = logger
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask {
                    // Schedulers that are started together, or again and again, do not all check at once.
                    try? await Task.sleep(for: Self.checkInterval * Double.random(in: 0..<1))
                    await check(Invariant.ofTheLedger, within: Self.checkInterval)
                }
                group.addTask { await every(Self.backlogInterval, measure) }
                group.addTask { await every(Self.backlogInterval, measureFeed) }
                group.addTask { await every(Self.backlogInterval, measureTrust) }
                group.addTask { await every(Self.backlogInterval, measureErrands) }
            }
        }
    }

    private func every(_ interval: Duration, _ body: () async throws -> Void) async {
        while !Task.isCancelled {
            await look(body)
            try? await Task.sleep(for: interval)
        }
    }

    /// - Returns: how long it took, also where it failed.
    @discardableResult private func look(_ body: () async throws -> Void) async -> Duration {
        await ContinuousClock().measure {
            do {
                try await body()
            } catch {
                logger.warning("watch could not look", metadata: LogKeys.error(error))
            }
        }
    }

    /// One that is cut off keeps no other from being checked.
    func check(_ invariants: [Invariant], within interval: Duration) async {
        // Not yet checked is said as well, so that the alert knows each by its name.
        for invariant in invariants { checkedAt(invariant).record(0) }
        while !Task.isCancelled {
            for invariant in invariants where !Task.isCancelled {
                let taken = await look { try await check(invariant) }
                let pause = min(taken * Self.checkPause, Self.checkPauseMax)
                try? await Task.sleep(for: max(interval / invariants.count, pause))
            }
        }
    }

    private func check(_ invariant: Invariant) async throws {
        let violation = try await invariant.check(ledger.database, span: .recent, scale: ledger.schedule.scale)
        checkedAt(invariant).record(Date().timeIntervalSince1970)
        Gauge(label: "makegood_invariant_violations", dimensions: [("invariant", invariant.name)])
            .record(violation?.count ?? 0)
        guard let violation else { return }
        logger.critical(
            "an invariant does not hold",
            metadata: [
                "invariant": "\(violation.invariant)", "invariant.id": "\(violation.id)",
                "violations": "\(violation.count)",
            ])
    }

    private func checkedAt(_ invariant: Invariant) -> Gauge {
        Gauge(
            label: "makegood_invariant_checked_timestamp_seconds", dimensions: [("invariant", invariant.name)])
    }

    private func measure() async throws {
        for row in try await ledger.run(Statements.backlog, ()) {
            let dimensions = [("app", row.appID), ("lane", row.lane), ("state", row.state)]
            Gauge(label: "makegood_backlog_receipts", dimensions: dimensions).record(row.receipts)
            Gauge(label: "makegood_backlog_overdue_seconds", dimensions: dimensions).record(row.overdueSeconds)
        }
    }

    private func measureTrust() async throws {
        for row in try await ledger.run(Statements.unconfirmed, ()) {
            let dimensions = [("app", row.appID)]
            Gauge(label: "makegood_unconfirmed_grants", dimensions: dimensions).record(row.grants)
            Gauge(label: "makegood_unconfirmed_seconds", dimensions: dimensions).record(row.seconds)
        }
    }

    private func measureErrands() async throws {
        for row in try await ledger.run(Statements.openErrands, ()) {
            let dimensions = [("app", row.appID), ("kind", row.kind), ("state", row.state)]
            Gauge(label: "makegood_errands", dimensions: dimensions).record(row.errands)
            Gauge(label: "makegood_errands_overdue_seconds", dimensions: dimensions).record(row.overdueSeconds)
        }
    }

    private func measureFeed() async throws {
        let lag = try await ledger.run(Statements.feedLag, ()).first ?? 0
        Gauge(label: "makegood_events_lag_seconds").record(lag)
    }
}

extension Statements {
    /// Age of the oldest event that the feed does not show yet, because a transaction that began before it still runs
    /// somewhere in this PostgreSQL.
    package static let feedLag = Statement<Void, Double>(
        "watch.feed_lag",
        """
        select coalesce(extract(epoch from clock_timestamp() - min(at)), 0)::float8 from events
        where xid >= pg_snapshot_xmin(pg_current_snapshot())
        """,
        read: { row throws(PostgresError) in try row.double(0) })

    package struct Backlog: Sendable {
        package let appID: String
        package let lane: String
        package let state: String
        package let receipts: Int
        /// How long the oldest of them has been due; 0 where none is.
        package let overdueSeconds: Double
    }

    /// Open receipts by app, lane and state, zeros included, so that a drained backlog is seen to be drained.
    package static let backlog = Statement<Void, Backlog>(
        "watch.backlog",
        """
        select a.app_id, l.lane, s.state, coalesce(b.receipts, 0),
          greatest(0, coalesce(extract(epoch from now() - b.oldest_due_at), 0))::float8
        from apps a cross join unnest(array[\(lanes)]) l(lane)
        cross join (values ('received'), ('held'), ('parked')) s(state)
        left join v_backlog b on b.app_id = a.app_id and b.lane = l.lane and b.state = s.state
        """,
        read: { row throws(PostgresError) in
            Backlog(
                appID: try row.text(0), lane: try row.text(1), state: try row.text(2), receipts: try row.int(3),
                overdueSeconds: try row.double(4))
        })
}
