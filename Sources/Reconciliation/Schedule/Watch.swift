import Encoding
package import Foundation
package import Ledger
package import Logging
package import Metrics
package import Postgres
import Purchases
import Service
import ServiceLifecycle

/// Checks the invariants one after the other for ever, and measures the backlog.
package struct Watch: Service {
    /// The time in which every invariant is checked once, unless the checks take longer.
    package static let checkInterval: Duration = .seconds(60)
    /// The rest after each check, as a multiple of the check's time, because the purchases go first at the database.
    /// With this rest fewer than one purchase in two hundred runs beside the check of a whole day.
    static let checkPause = 200
    /// The longest such rest. All invariants are checked within an hour and a half even if each check is cut off
    /// (MakegoodInvariantUnchecked).
    static let checkPauseMax: Duration = .seconds(180)
    /// How far back a check of new data looks: as far as two rounds take. Beside a thousand purchases a second such a
    /// check takes about a fifth of a second.
    static let newSpan: Duration = .seconds(120)
    /// How far back the other check looks, however long that takes. This check finds what was tried for long, or
    /// changed later.
    static let daySpan: Duration = .seconds(86_400)
    package static let backlogInterval: Duration = .seconds(15)

    let ledger: Ledger
    private let logger: Logger
    private let waitingLimit: Duration
    private let metrics: any MetricsFactory

    /// - Parameter waitingLimit: how long a paid purchase may wait (S1-33).
    package init(
        ledger: Ledger, logger: Logger, waitingLimit: Duration = .seconds(3600),
        metrics: any MetricsFactory = MetricsSystem.factory
    ) {
        self.ledger = ledger
        self.logger = logger
        self.waitingLimit = waitingLimit
        self.metrics = metrics
    }

    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask {
                    // Schedulers that are started together, or again and again, must not all check at once.
                    try? await Task.sleep(for: Self.checkInterval * Double.random(in: 0..<1))
                    await check(Invariant.ofTheLedger)
                }
                group.addTask { await every(Self.backlogInterval, measure) }
                group.addTask { await every(Self.backlogInterval, measureFeed) }
                group.addTask { await every(Self.backlogInterval, measureTrust) }
                group.addTask {
                    var known: Set<[String]> = []
                    await every(Self.backlogInterval) { try await measureDelivery(&known) }
                }
                group.addTask { await every(Self.backlogInterval, measureAppleUpdates) }
                group.addTask { await every(Self.backlogInterval, measureDoubleCharges) }
                group.addTask { await every(Self.backlogInterval, measureRefundRequests) }
                group.addTask { await every(Self.backlogInterval, measureNotifications) }
                group.addTask { await every(Self.checkInterval, measureRevocations) }
                group.addTask {
                    var known: Set<[String]> = []
                    await every(Self.checkInterval) { try await measureFeedGroups(&known) }
                }
                group.addTask {
                    var named: Set<UUID> = []
                    await every(Self.checkInterval) { try await measureWaiting(&named) }
                }
            }
        }
    }

    private func every(_ interval: Duration, _ body: () async throws -> Void) async {
        while !Task.isCancelled {
            await look(body)
            try? await Task.sleep(for: interval)
        }
    }

    private func look(_ body: () async throws -> Void) async {
        do {
            try await body()
        } catch {
            logger.warning("watch could not look", metadata: LogKeys.error(error))
        }
    }

    /// Checks for ever: the new data of each invariant, and beside that the whole day of each.
    func check(
        _ invariants: [Invariant], within interval: Duration = checkInterval, pause: Int = checkPause
    ) async {
        // An invariant that is not yet checked gets a value too, so that the alert knows each invariant by its name.
        for invariant in invariants { checkedAt(invariant).record(0) }
        await withDiscardingTaskGroup { group in
            group.addTask {
                while !Task.isCancelled {
                    await check(invariants, back: Self.newSpan, within: interval, pause: pause)
                }
            }
            group.addTask {
                // A scheduler that has just been started has a backlog to publish, and every statement to plan.
                try? await Task.sleep(for: interval)
                while !Task.isCancelled {
                    await check(invariants, back: Self.daySpan, within: interval, pause: pause)
                }
            }
        }
    }

    /// Checks each invariant once. A check that is cut off does not keep the next ones from being made.
    func check(_ invariants: [Invariant], back span: Duration, within interval: Duration, pause: Int) async {
        for invariant in invariants where !Task.isCancelled {
            let start = ContinuousClock.now
            await look { try await check(invariant, back: span) }
            let taken = ContinuousClock.now - start
            try? await Task.sleep(for: max(interval / invariants.count, min(taken * pause, Self.checkPauseMax)))
        }
    }

    private func check(_ invariant: Invariant, back span: Duration) async throws {
        let violation = try await invariant.check(ledger.database, span: .last(span), scale: ledger.schedule.scale)
        let isDay = span == Self.daySpan
        if isDay { checkedAt(invariant).record(Date().timeIntervalSince1970) }
        // Only a check of the whole day can say that nothing is violated.
        if violation != nil || isDay {
            gauge("makegood_invariant_violations", [("invariant", invariant.name)]).record(violation?.count ?? 0)
        }
        guard let violation else { return }
        logger.critical(
            "an invariant does not hold",
            metadata: [
                "invariant": "\(violation.invariant)", "invariant.id": "\(violation.id)",
                "violations": "\(violation.count)",
            ])
    }

    private func checkedAt(_ invariant: Invariant) -> Gauge {
        gauge("makegood_invariant_checked_timestamp_seconds", [("invariant", invariant.name)])
    }

    func gauge(_ label: String, _ dimensions: [(String, String)] = []) -> Gauge {
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

    private func measureAppleUpdates() async throws {
        for row in try await ledger.run(Statements.openAppleUpdates, ()) {
            let dimensions = [("app", row.appID), ("kind", row.kind), ("state", row.state)]
            gauge("makegood_apple_updates", dimensions).record(row.appleUpdates)
            gauge("makegood_apple_updates_overdue_seconds", dimensions).record(row.overdueSeconds)
        }
    }

    private func measureRefundRequests() async throws {
        for row in try await ledger.run(Statements.lateRefundRequests, ()) {
            gauge("makegood_refund_requests_late", [("app", row.appID)]).record(row.requests)
        }
    }

    private func measureFeed() async throws {
        let lag = try await ledger.run(Statements.feedLag, ()).first ?? 0
        gauge("makegood_events_lag_seconds").record(lag)
    }

    /// Measures how far each group is behind the feed. A group that was forgotten is behind no more.
    ///
    /// - Parameter known: app and name of the groups that were measured before.
    func measureFeedGroups(_ known: inout Set<[String]>) async throws {
        func record(_ group: [String], _ events: Int, _ seconds: Double) {
            let dimensions = [("app", group[0]), ("group", group[1])]
            gauge("makegood_feed_group_events_behind", dimensions).record(events)
            gauge("makegood_feed_group_lag_seconds", dimensions).record(seconds)
        }
        let lags = try await ledger.run(Statements.allFeedGroupLags, ())
        let groups = Set(lags.map { [$0.appID, $0.name] })
        for group in known.subtracting(groups) { record(group, 0, 0) }
        for lag in lags { record([lag.appID, lag.name], lag.eventsBehind, lag.seconds) }
        known = groups
    }

    /// Measures the paid purchases that wait longer than their limit. The log names the one of each app and line that
    /// waits longest, once by each scheduler: a metric that named purchases would have a series for each for ever.
    ///
    /// - Parameter named: the receipts that the log has named and that still wait longest.
    func measureWaiting(_ named: inout Set<UUID>) async throws {
        var waiting: Set<UUID> = []
        for row in try await ledger.run(Statements.waitingPurchases, waitingLimit) {
            let dimensions = [("app", row.appID), ("line", row.line)]
            gauge("makegood_late_purchases", dimensions).record(row.purchases)
            gauge("makegood_late_purchases_seconds", dimensions).record(row.seconds)
            guard let receiptID = row.receiptID else { continue }
            waiting.insert(receiptID)
            guard !named.contains(receiptID) else { continue }
            logger.error(
                "a paid purchase waits longer than its limit",
                metadata: [
                    "app": "\(row.appID)", "line": "\(row.line)", "receipt.id": "\(receiptID.text)",
                    "transaction.id": "\(row.transactionID ?? "unknown")", "reason": "\(row.reason ?? "")",
                    "waited.seconds": "\(Int(row.seconds))", "purchases": "\(row.purchases)",
                ])
        }
        named = waiting
    }

    func measureNotifications() async throws {
        for row in try await ledger.run(Statements.openNotifications, ()) {
            let dimensions = [("app", row.appID), ("state", row.state)]
            gauge("makegood_open_notifications", dimensions).record(row.notifications)
            gauge("makegood_open_notifications_overdue_seconds", dimensions).record(row.overdueSeconds)
        }
    }

    func measureRevocations() async throws {
        for row in try await ledger.run(Statements.revocationsOfDay, ()) {
            gauge("makegood_recent_revocations", [("app", row.appID), ("reason", row.reason)]).record(row.revocations)
        }
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

    package struct WaitingPurchases: Sendable {
        package let appID: String
        /// `owner`: what waits a day for its owner; `any`: every other purchase.
        package let line: String
        /// How many wait longer than the limit of their line.
        package let purchases: Int
        /// How long the one that waits longest has waited; 0 where none is late. The other values are of it.
        package let seconds: Double
        package let receiptID: UUID?
        package let transactionID: String?
        package let reason: String?
    }

    /// The paid purchases of each app and line that wait longer than the limit, zeros included. What waits for its
    /// owner may wait a day longer (``Matcher/unpostedFor``).
    package static let waitingPurchases = Statement<Duration, WaitingPurchases>(
        "watch.waiting_purchases",
        """
        with late as materialized (
          select app_id, line, receipt_id, transaction_id, reason, waited_seconds from v_waiting_purchases
          where raises_alarm and since < now() - make_interval(secs => $1)
            and (line <> 'owner' or since < now() - make_interval(secs => $1) - interval '1 day')),
        longest as (
          select distinct on (app_id, line) * from late order by app_id, line, waited_seconds desc, receipt_id)
        select a.app_id, l.line, (select count(*) from late where app_id = a.app_id and line = l.line),
          coalesce(waited_seconds, 0)::float8, receipt_id, transaction_id, reason
        from apps a cross join (values ('any'), ('owner')) l(line)
        left join longest on longest.app_id = a.app_id and longest.line = l.line
        """,
        bind: { [.double($0.inSeconds)] },
        read: { row throws(PostgresError) in
            WaitingPurchases(
                appID: try row.text(0), line: try row.text(1), purchases: try row.int(2), seconds: try row.double(3),
                receiptID: try row.optionalUUID(4), transactionID: try row.optionalText(5),
                reason: try row.optionalText(6))
        })

    package struct Backlog: Sendable {
        package let appID: String
        package let lane: String
        package let state: String
        package let receipts: Int
        /// How long the oldest of these receipts has been due; 0 where none is.
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
