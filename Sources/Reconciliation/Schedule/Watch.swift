import Foundation
package import Logging
package import Metrics
package import Postgres
import Purchases
import ServiceLifecycle

/// The invariants, checked one after the other for ever, and the backlog as metrics.
package struct Watch: Service {
    /// In which every invariant is checked once, unless that takes long.
    package static let checkInterval: Duration = .seconds(60)
    /// The database belongs to the purchases: each invariant is followed by a rest so many times as long as it took, so
    /// that fewer than one purchase in a hundred has a check beside it.
    static let checkPause = 200
    /// All of them are checked within an hour and a half even where each is cut off (MakegoodInvariantUnchecked).
    static let checkPauseMax: Duration = .seconds(180)
    /// How far back a check reads: little at first, a day in the end if that is read within `checkTarget`.
    static let checkReaches: [Duration] = [22, 170, 1350, 10_800, 86_400].map { .seconds($0) }
    /// Purchases wait for a check that takes longer.
    static let checkTarget: Duration = .milliseconds(100)
    /// So often the whole day is read, however long that takes: what was tried for long, or changed later, is seen then.
    static let checkDayInterval: Duration = .seconds(900)
    package static let backlogInterval: Duration = .seconds(15)

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
                    // Schedulers that are started together, or again and again, do not all check at once.
                    try? await Task.sleep(for: Self.checkInterval * Double.random(in: 0..<1))
                    await check(Invariant.ofTheLedger, within: Self.checkInterval)
                }
                group.addTask { await every(Self.backlogInterval, measure) }
                group.addTask { await every(Self.backlogInterval, measureFeed) }
                group.addTask { await every(Self.backlogInterval, measureTrust) }
                group.addTask { await every(Self.backlogInterval, measureErrands) }
                group.addTask { await every(Self.backlogInterval, measureDoubleCharges) }
            }
        }
    }

    private func every(_ interval: Duration, _ body: () async throws -> Void) async {
        while !Task.isCancelled {
            await look(body)
            try? await Task.sleep(for: interval)
        }
    }

    /// - Returns: whether it could look.
    @discardableResult private func look(_ body: () async throws -> Void) async -> Bool {
        do {
            try await body()
            return true
        } catch {
            logger.warning("watch could not look", metadata: LogKeys.error(error))
            return false
        }
    }

    /// One that is cut off keeps no other from being checked.
    func check(
        _ invariants: [Invariant], within interval: Duration, dayWithin dayInterval: Duration = checkDayInterval,
        pause: Int = checkPause
    ) async {
        // Not yet checked is said as well, so that the alert knows each by its name.
        for invariant in invariants { checkedAt(invariant).record(0) }
        let day = Self.checkReaches.count - 1
        var states = [CheckState](repeating: CheckState(), count: invariants.count)
        while !Task.isCancelled {
            for (index, invariant) in invariants.enumerated() where !Task.isCancelled {
                let start = ContinuousClock.now
                var state = states[index]
                // What is broken stays in sight.
                let isDay = !state.holds || state.reach == day || start - state.dayEnded >= dayInterval
                let couldLook = await look { state.holds = try await check(invariant, back: isDay ? day : state.reach) }
                let taken = ContinuousClock.now - start
                if isDay { state.dayEnded = .now }
                if !isDay || state.reach == day {
                    state.reach = Self.reach(after: state.reach, thatTook: taken, couldLook: couldLook)
                }
                states[index] = state
                try? await Task.sleep(for: max(interval / invariants.count, min(taken * pause, Self.checkPauseMax)))
            }
        }
    }

    private struct CheckState {
        var holds = true
        /// An index into `checkReaches`.
        var reach = 0
        /// When the last check of a whole day ended.
        var dayEnded = ContinuousClock.now
    }

    /// - Returns: the next check's, as an index into `checkReaches`.
    static func reach(after reach: Int, thatTook taken: Duration, couldLook: Bool = true) -> Int {
        if taken > checkTarget { return max(reach - 1, 0) }
        // Eight times as much will not be too long.
        return couldLook && taken * 10 < checkTarget ? min(reach + 1, checkReaches.count - 1) : reach
    }

    /// - Parameter reach: an index into `checkReaches`.
    /// - Returns: whether it holds.
    private func check(_ invariant: Invariant, back reach: Int) async throws -> Bool {
        let span = Self.checkReaches[reach]
        let violation = try await invariant.check(ledger.database, span: .last(span), scale: ledger.schedule.scale)
        // What the alert asks for is the whole day.
        if reach == Self.checkReaches.count - 1 { checkedAt(invariant).record(Date().timeIntervalSince1970) }
        let dimensions = [("invariant", invariant.name)]
        gauge("makegood_invariant_checked_span_seconds", dimensions).record(span.inSeconds)
        gauge("makegood_invariant_violations", dimensions).record(violation?.count ?? 0)
        guard let violation else { return true }
        logger.critical(
            "an invariant does not hold",
            metadata: [
                "invariant": "\(violation.invariant)", "invariant.id": "\(violation.id)",
                "violations": "\(violation.count)",
            ])
        return false
    }

    private func checkedAt(_ invariant: Invariant) -> Gauge {
        gauge("makegood_invariant_checked_timestamp_seconds", [("invariant", invariant.name)])
    }

    private func gauge(_ label: String, _ dimensions: [(String, String)] = []) -> Gauge {
        Gauge(label: label, dimensions: dimensions, factory: metrics)
    }

    private func measure() async throws {
        for row in try await ledger.run(Statements.backlog, ()) {
            let dimensions = [("app", row.appID), ("lane", row.lane), ("state", row.state)]
            gauge("makegood_backlog_receipts", dimensions).record(row.receipts)
            gauge("makegood_backlog_overdue_seconds", dimensions).record(row.overdueSeconds)
        }
    }

    private func measureTrust() async throws {
        for row in try await ledger.run(Statements.unconfirmed, ()) {
            let dimensions = [("app", row.appID)]
            gauge("makegood_unconfirmed_grants", dimensions).record(row.grants)
            gauge("makegood_unconfirmed_seconds", dimensions).record(row.seconds)
        }
    }

    private func measureErrands() async throws {
        for row in try await ledger.run(Statements.openErrands, ()) {
            let dimensions = [("app", row.appID), ("kind", row.kind), ("state", row.state)]
            gauge("makegood_errands", dimensions).record(row.errands)
            gauge("makegood_errands_overdue_seconds", dimensions).record(row.overdueSeconds)
        }
    }

    private func measureFeed() async throws {
        let lag = try await ledger.run(Statements.feedLag, ()).first ?? 0
        gauge("makegood_events_lag_seconds").record(lag)
    }

    private func measureDoubleCharges() async throws {
        let behind = try await ledger.run(Statements.doubleChargesBehind, ()).first ?? 0
        gauge("makegood_double_charges_behind_seconds").record(behind)
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
