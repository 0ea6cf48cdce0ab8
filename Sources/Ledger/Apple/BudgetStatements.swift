import AppStore
package import Postgres
import Purchases

/// The calls to Apple that are counted together: Apple limits each app's calls by endpoint (AppleFacts 3.8).
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

/// The lanes of calls to Apple, in the order in which they go first where Apple limits calls.
package enum CallLane: String, Sendable, CaseIterable, Comparable {
    /// For a purchase that no worker has looked at yet: a user waits.
    case fresh
    /// For a purchase that was tried before.
    case repair
    /// For a search for purchases that no message told us of.
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

/// A slice of the time in which Apple counts calls. Slices begin by the database's clock, so they are the same for
/// every process.
package struct CallSlice: Sendable, Equatable {
    package let calls: Int
    package let length: Duration

    /// Below Apple's limit, so that a call that leaves late does not exceed the limit of the next slice.
    static let share = 0.8
    static let lengths: [Duration] = [.milliseconds(250), .seconds(1), .seconds(4), .seconds(16), .seconds(64)]

    /// The shortest slice in which one call is allowed. The longest slice has one call, however rarely Apple allows it.
    ///
    /// - Parameter callsPerSecond: at most a million; a higher value counts as a million.
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
        /// How many calls the process may make until the slice ends.
        package let calls: Int
        /// How many calls of the slice were leased before these.
        package let first: Int
        package let endsIn: Duration
        /// The time until Apple's Retry-After is over; zero where calls are not stopped.
        package let stoppedFor: Duration

        package init(calls: Int, first: Int = 0, endsIn: Duration, stoppedFor: Duration) {
            self.calls = calls
            self.first = first
            self.endsIn = endsIn
            self.stoppedFor = stoppedFor
        }
    }

    /// Leases calls of one lane for the current slice by the database's clock.
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

    /// Sets the lane that goes first, in every process at once.
    package static let setLaneOrder = Statement<LaneOrder, Void>(
        "budgets.set_lane_order",
        """
        insert into lane_orders (app_id, first_lane, until) values ($1, $2, now() + make_interval(secs => $3))
        on conflict (app_id) do update set first_lane = excluded.first_lane, until = excluded.until
        """,
        bind: { [.text($0.appID), .text($0.first.rawValue), .double($0.length.inSeconds)] })

    /// Stores how a worker sees Apple's hosts, for the view `v_apple`.
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

    /// Stops all calls of a budget for so long, because Apple answered 429. A longer stop stays in force.
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
