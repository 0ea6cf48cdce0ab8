import AppStore
package import Postgres
import Purchases

/// Whose calls to Apple are counted together: Apple limits each app's by endpoint (AppleFacts 3.8).
package struct CallBudget: Sendable, Hashable {
    package let appID: String
    /// As Apple writes it.
    package let environment: String
    package let endpoint: String

    package init(appID: String, environment: String, endpoint: String) {
        self.appID = appID
        self.environment = environment
        self.endpoint = endpoint
    }
}

/// Who goes first where Apple limits calls: in this order.
package enum CallLane: String, Sendable, CaseIterable, Comparable {
    /// A purchase that nobody looked at yet: a customer waits.
    case fresh
    /// One that comes again.
    case repair
    /// Looking for what no message told us.
    case sweep

    private var rank: Int {
        switch self {
        case .fresh: 0
        case .repair: 1
        case .sweep: 2
        }
    }

    package static func < (one: CallLane, other: CallLane) -> Bool { one.rank < other.rank }
}

/// A part of the time in which Apple counts calls, the same for every process: they begin with the database's clock.
package struct CallSlice: Sendable, Equatable {
    package let calls: Int
    package let length: Duration

    /// Below Apple's limit, so that a call that is late does not fall into the next slice's number.
    static let share = 0.8
    static let lengths: [Duration] = [.milliseconds(250), .seconds(1), .seconds(4), .seconds(16), .seconds(64)]

    /// The shortest slice in which one call is allowed; one in the longest, however rarely Apple allows it.
    ///
    /// - Parameter callsPerSecond: at most a million; what lies beyond is taken for that.
    package init(callsPerSecond: Double) {
        let rate = min(max(callsPerSecond, 0), 1_000_000) * Self.share
        length = Self.lengths.first { rate * $0.inSeconds >= 1 } ?? Self.lengths[Self.lengths.count - 1]
        calls = max(1, Int(rate * length.inSeconds))
    }
}

extension Statements {
    package struct LeaseQuestion: Sendable {
        package let budget: CallBudget
        package let lane: CallLane
        package let wanted: Int
        package let slice: CallSlice

        package init(budget: CallBudget, lane: CallLane, wanted: Int, slice: CallSlice) {
            self.budget = budget
            self.lane = lane
            self.wanted = wanted
            self.slice = slice
        }
    }

    package struct Lease: Sendable, Equatable {
        /// Calls that may be made until the slice ends.
        package let calls: Int
        /// How many of the slice anybody had before.
        package let first: Int
        package let endsIn: Duration
        /// Until Apple's Retry-After is over; zero where nothing is stopped.
        package let stoppedFor: Duration

        package init(calls: Int, first: Int = 0, endsIn: Duration, stoppedFor: Duration) {
            self.calls = calls
            self.first = first
            self.endsIn = endsIn
            self.stoppedFor = stoppedFor
        }
    }

    /// Leases calls of one lane for the rest of the slice that the database's clock is in.
    package static let leaseCalls = Statement<LeaseQuestion, Lease>(
        "budgets.lease_calls",
        "select leased, leased_before, ends_in, stopped_for from lease_calls($1, $2, $3, $4, $5, $6, $7)",
        bind: { question in
            [
                .text(question.budget.appID), .text(question.budget.environment), .text(question.budget.endpoint),
                .text(question.lane.rawValue), .int32(question.wanted), .int32(question.slice.calls),
                .double(question.slice.length.inSeconds),
            ]
        },
        read: { row throws(PostgresError) in
            Lease(
                calls: try row.int(0), first: try row.int(1), endsIn: .seconds(try row.double(2)),
                stoppedFor: .seconds(try row.double(3)))
        })

    package struct LaneOrder: Sendable {
        package let appID: String
        package let first: CallLane
        package let length: Duration

        package init(appID: String, first: CallLane, length: Duration) {
            self.appID = appID
            self.first = first
            self.length = length
        }
    }

    /// Who goes first from now on, in every process at once.
    package static let setLaneOrder = Statement<LaneOrder, Void>(
        "budgets.set_lane_order",
        """
        insert into lane_orders (app_id, first_lane, until) values ($1, $2, now() + make_interval(secs => $3))
        on conflict (app_id) do update set first_lane = excluded.first_lane, until = excluded.until
        """,
        bind: { [.text($0.appID), .text($0.first.rawValue), .double($0.length.inSeconds)] })

    /// How a worker sees Apple's hosts, for the view `v_apple`.
    package static let reportAppleHosts = Statement<(worker: String, hosts: [AppleHostReport]), Void>(
        "budgets.report_apple_hosts", "select report_apple_hosts($1, $2, $3, $4, $5, $6, $7)",
        bind: { report in
            [
                .text(report.worker), .texts(report.hosts.map(\.host.service.rawValue)),
                .texts(report.hosts.map(\.host.environment.rawValue)), .texts(report.hosts.map(\.breaker.rawValue)),
                .doubles(report.hosts.map { $0.probeIn.inSeconds }), .int32s(report.hosts.map(\.concurrencyLimit)),
                .int32s(report.hosts.map(\.inFlight)),
            ]
        })

    /// Apple said 429: nobody asks there for so long. A longer stop stands.
    package static let stopCalls = Statement<(budget: CallBudget, wait: Duration), Void>(
        "budgets.stop_calls",
        """
        insert into call_budgets as b (app_id, environment, endpoint, stopped_until)
        values ($1, $2, $3, now() + make_interval(secs => $4))
        on conflict (app_id, environment, endpoint) do update
          set stopped_until = greatest(b.stopped_until, excluded.stopped_until)
        """,
        bind: { stop in
            [
                .text(stop.budget.appID), .text(stop.budget.environment), .text(stop.budget.endpoint),
                .double(stop.wait.inSeconds),
            ]
        })
}
