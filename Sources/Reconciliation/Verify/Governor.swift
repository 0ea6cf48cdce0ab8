package import AppStore
import DequeModule
package import Foundation
package import Logging
import Metrics
import Purchases

/// Lets the calls to Apple out, one by one (B9, P26): no host is asked that is down, none by more at once than it bears,
/// and all processes together keep to what Apple allows an app per endpoint.
///
/// Calls that Apple limits are leased from the database for a slice of time, leave at even distances in it, and are
/// handed out here: fresh purchases first, then repairs, then sweeps. A call that could not be made soon is refused at
/// once, so a backlog waits in its rows and never before a purchase that has just come. Apple's 429 stops an endpoint
/// for every process. All is looked at in the moment a call is let out, not when it began to wait.
package actor Governor {
    /// One call that is out. Given back by ``leave(_:_:)``, whatever came of it.
    package struct Pass: Sendable {
        fileprivate let host: AppleHost
        fileprivate let era: Int
        /// A process that stood still until then has another call leased: this one's time has passed. Nil where Apple
        /// names no limit.
        let leavesBy: ContinuousClock.Instant?
    }

    package enum Admission: Sendable {
        case granted(Pass)
        /// Not now. `until`: Apple has named the time.
        case refused(until: Date?)
        /// The host's breaker is open, or a probe is under way.
        case hostDown
    }

    /// What Apple allows: this many calls a second in this budget.
    package struct Allowance: Sendable {
        package let budget: CallBudget
        package let callsPerSecond: Double

        package init(_ budget: CallBudget, callsPerSecond: Double) {
            self.budget = budget
            self.callsPerSecond = callsPerSecond
        }
    }

    typealias Lease = @Sendable (Statements.LeaseQuestion) async throws -> Statements.Lease
    typealias Stop = @Sendable (CallBudget, Duration) async throws -> Void

    /// Nobody waits longer for a call than this; longer waits are the row's.
    package static let patience: Duration = .seconds(2)
    /// While it is not known how much a host bears, those wait longer that it has no room for yet: it grows.
    static let rampPatience: Duration = .seconds(10)
    /// Where Apple says 429 and not for how long.
    static let stopMin: Duration = .seconds(10)

    private static let lateAnswersMax = 3
    /// Of a call that was let out; with the fifth that stays unused, a second never has more than Apple allows.
    private static let passAge: Duration = .milliseconds(100)
    /// Timers are no better than that.
    private static let tolerance: Duration = .milliseconds(2)
    /// How late a wait may end. One timer for all who wait: each its own would cost more than the calls.
    private static let watchInterval: Duration = .milliseconds(50)

    private struct Place: Hashable {
        let host: AppleHost
        /// Nil where Apple names no limit.
        let budget: CallBudget?
        let lane: CallLane

        var labels: [(String, String)] {
            [
                ("app", budget?.appID ?? ""), ("environment", host.environment.rawValue),
                ("endpoint", budget?.endpoint ?? host.service.rawValue), ("lane", lane.rawValue),
            ]
        }
    }

    /// One of Apple's hosts.
    private final class Host {
        let id: AppleHost
        var state: AppleHostState
        /// Calls since the last report, and of all time.
        var begun = 0
        var granted = 0
        /// Those whose waiters found no room.
        var blocked: [Gate] = []

        init(_ id: AppleHost, _ state: AppleHostState) {
            self.id = id
            self.state = state
        }

        /// Whether the next call there is for who has waited longest, whatever the lane: one of ten is, or fresh
        /// purchases would keep the others out of a host that has little room.
        var isForAnyLane: Bool { granted % 10 == 9 }

        /// Whether it has no room only because it is still learning how much it has.
        func isFilling(_ now: ContinuousClock.Instant) -> Bool {
            state.limit.isRamping && state.room(now) == 0 && !state.isDown(now)
        }
    }

    /// What calls of one place go through. Found once for each call: its key is four words to hash.
    private final class Gate {
        let place: Place
        let host: Host
        let leased: Counter
        let refused: Counter
        var account: CallAccount
        var waiters: Deque<Waiter> = []
        /// Somebody lets its waiters out.
        var isServed = false

        init(_ place: Place, _ host: Host, _ slice: CallSlice?) {
            self.place = place
            self.host = host
            account = CallAccount(slice: slice)
            leased = Counter(label: "makegood_apple_calls_leased_total", dimensions: place.labels)
            refused = Counter(label: "makegood_apple_calls_refused_total", dimensions: place.labels)
        }

        /// Whether others wait for room at this host whose turn comes before.
        var isBehind: Bool {
            guard !host.blocked.isEmpty else { return false }
            let isForAnyLane = host.isForAnyLane
            return host.blocked.contains {
                (isForAnyLane || $0.place.lane <= place.lane) && !$0.waiters.isEmpty
            }
        }

        func isReady(_ now: ContinuousClock.Instant) -> Bool {
            host.state.room(now) > 0 && account.isReady(now + Governor.tolerance)
        }
    }

    private struct Waiter {
        /// In order of arrival.
        let id: Int
        let since: ContinuousClock.Instant
        let deadline: ContinuousClock.Instant
        let continuation: CheckedContinuation<Admission, Never>
    }

    private let lease: Lease
    private let stop: Stop
    private let scale: Double
    let logger: Logger
    /// Of each host.
    private let callsMax: Int
    private var hosts: [AppleHost: Host] = [:]
    private var gates: [Place: Gate] = [:]
    private var stops: [CallBudget: ContinuousClock.Instant] = [:]
    /// Of all places: each holds a receipt in flight, and a message before which others wait.
    private let waitersMax: Int
    private var waitersCount = 0
    private var isWatching = false
    private var lastID = 0

    /// - Parameters:
    ///   - callsMax: at the same time, to each host.
    ///   - waitersMax: how many may wait for a call at the same time, repairs and sweeps only a quarter of it.
    ///   - scale: multiplies the breakers' pauses.
    package init(ledger: Ledger, callsMax: Int, waitersMax: Int, scale: Double, logger: Logger) {
        self.init(
            callsMax: callsMax, waitersMax: waitersMax, scale: scale,
            lease: { question in
                guard let lease = try await ledger.run(Statements.leaseCalls, question).first else {
                    throw LedgerError.busy
                }
                return lease
            },
            stop: { budget, wait in _ = try await ledger.run(Statements.stopCalls, (budget, wait)) }, logger: logger)
    }

    init(
        callsMax: Int = 1000, waitersMax: Int = 100, scale: Double = 1, lease: @escaping Lease, stop: @escaping Stop,
        logger: Logger
    ) {
        self.callsMax = callsMax
        self.waitersMax = waitersMax
        self.scale = scale
        self.lease = lease
        self.stop = stop
        self.logger = logger
    }

    /// Asks for one call. Returns when it may be made, or soon when it may not be made soon.
    ///
    /// - Parameters:
    ///   - allowance: nil where Apple names no limit. A change counts from the next slice on.
    ///   - deadline: how long the caller would wait; ``patience`` from now where it does not say.
    package func admit(
        _ host: AppleHost, within allowance: Allowance?, lane: CallLane, by deadline: ContinuousClock.Instant? = nil
    ) async -> Admission {
        let now = ContinuousClock.now
        let slice = allowance.map { CallSlice(callsPerSecond: $0.callsPerSecond) }
        let gate = self.gate(Place(host: host, budget: allowance?.budget, lane: lane), slice)
        if let budget = allowance?.budget, let until = stops[budget], until > now {
            return refuse(gate, until: until - now)
        }
        guard !gate.host.state.isDown(now) else { return refuse(gate, hostDown: true) }
        gate.account.begin(slice, now)
        if gate.waiters.isEmpty, !gate.isBehind, gate.isReady(now) { return grant(gate, now) }
        guard hasQueue(for: gate, now) else { return refuse(gate, until: nil) }
        return await withCheckedContinuation { continuation in
            lastID += 1
            waitersCount += 1
            gate.waiters.append(
                Waiter(id: lastID, since: now, deadline: deadline ?? now + Self.patience, continuation: continuation))
            watch()
            serve(gate)
        }
    }

    /// A call has ended, or was not made after all.
    package func leave(_ pass: Pass, _ outcome: AppleHostState.Outcome) {
        let (host, now) = (self.host(pass.host), ContinuousClock.now)
        let before = host.state.breaker.state
        host.state.end(pass.era, outcome, at: now)
        let after = host.state.breaker.state
        if after != before {
            logger.notice(
                "breaker changed",
                metadata: [
                    "apple.service": "\(host.id.service.rawValue)", "apple.environment": "\(host.id.environment)",
                    "apple.breaker": "\(after)",
                ])
            // Nobody waits for a host that is down.
            if after != .closed {
                for gate in gates.values where gate.host === host && !gate.waiters.isEmpty { serve(gate) }
            }
        }
        guard !host.blocked.isEmpty else { return }
        // Of a lane whoever has waited longest, or one app would keep another from a host that has little room.
        let isForAnyLane = host.isForAnyLane
        let turn = { (gate: Gate) in
            (isForAnyLane ? CallLane.fresh : gate.place.lane, gate.waiters.first?.id ?? .max)
        }
        for gate in host.blocked.sorted(by: { turn($0) < turn($1) }) { serve(gate) }
    }

    /// Apple said 429: nobody calls there until then.
    package func stop(_ budget: CallBudget, until: Date?) async {
        let wait = until.map { Duration.seconds(max(0, $0.timeIntervalSinceNow)) } ?? Self.stopMin
        halt(budget, for: wait)
        Counter(label: "makegood_apple_stops_total", dimensions: budget.labels).increment()
        logger.warning(
            "Apple limits the calls of an app: stopped for every worker",
            metadata: [
                "app.id": "\(budget.appID)", "apple.environment": "\(budget.environment)",
                "apple.endpoint": "\(budget.endpoint)", "apple.wait": "\(wait)",
            ])
        // Without the database the others learn it from Apple.
        try? await stop(budget, wait)
    }

    /// The hosts that were asked so far, and how many calls each got since the last report.
    package func report() -> [AppleHostReport] {
        let now = ContinuousClock.now
        return hosts.values.map { host in
            _ = host.state.isDown(now)
            defer { host.begun = 0 }
            return AppleHostReport(host.id, host.state, calls: host.begun, at: now)
        }
    }

    /// Whether a call there would be refused now.
    package func isDown(_ host: AppleHost) -> Bool { self.host(host).state.isDown(.now) }

    // MARK: Hosts and gates

    private func host(_ id: AppleHost) -> Host {
        if let host = hosts[id] { return host }
        let host = Host(id, AppleHostState(callsMax: callsMax, scale: scale))
        hosts[id] = host
        return host
    }

    private func gate(_ place: Place, _ slice: CallSlice?) -> Gate {
        if let gate = gates[place] { return gate }
        let gate = Gate(place, host(place.host), slice)
        gates[place] = gate
        return gate
    }

    private func grant(_ gate: Gate, _ now: ContinuousClock.Instant) -> Admission {
        let host = gate.host
        host.begun += 1
        host.granted += 1
        gate.account.take()
        return .granted(
            Pass(
                host: host.id, era: host.state.begin(),
                leavesBy: gate.place.budget.map { _ in now + Self.passAge }))
    }

    // MARK: Waiting

    /// Who would wait longer than anybody may waits in its row instead, and so do most of those that come again: a fresh
    /// purchase may stand behind them in the queue.
    private func hasQueue(for gate: Gate, _ now: ContinuousClock.Instant) -> Bool {
        if gate.host.isFilling(now) { return true }
        let isFresh = gate.place.lane == .fresh
        if let queue = gate.account.queueMax(isFresh ? Self.patience : .zero), gate.waiters.count >= queue {
            return false
        }
        return waitersCount < (isFresh ? waitersMax : waitersMax / 4)
    }

    private func serve(_ gate: Gate) {
        guard !gate.isServed else { return }
        gate.isServed = true
        Task { await work(gate) }
    }

    /// Lets out who waits, as fast as room and lease allow: a lease again at once where all was given, in the next
    /// slice where it was not. Ends when nobody waits, or with the room: then ``leave(_:_:)`` begins it again.
    private func work(_ gate: Gate) async {
        let host = gate.host
        defer { gate.isServed = false }
        host.blocked.removeAll { $0 === gate }
        while !gate.waiters.isEmpty {
            let now = ContinuousClock.now
            gate.account.beginSlice(now)
            guard !host.state.isDown(now) else { return release(gate, hostDown: true) }
            guard host.state.room(now) > 0 else {
                host.blocked.append(gate)
                return
            }
            if gate.isReady(now) {
                waitersCount -= 1
                gate.waiters.removeFirst().continuation.resume(returning: grant(gate, now))
            } else if let at = gate.account.leavesAt {
                try? await Task.sleep(until: at, tolerance: .zero, clock: .continuous)
            } else if gate.account.isDry {
                // Never a busy loop, whatever the two clocks say.
                try? await Task.sleep(until: max(gate.account.endsAt, now + Self.tolerance), clock: .continuous)
            } else {
                await lease(gate)
            }
        }
    }

    /// One question to the database: for who waits, and for who will come in the rest of the slice as in the last.
    private func lease(_ gate: Gate) async {
        guard let budget = gate.place.budget, let slice = gate.account.slice else { return }
        let asked = ContinuousClock.now
        // Of a host in trouble no more than it has room for: other processes may use it.
        let host = gate.host
        let wanted = min(
            gate.account.wanted(waiting: gate.waiters.count),
            host.state.limit.isCut ? max(1, host.state.room(asked)) : .max)
        let answer: Statements.Lease
        do {
            answer = try await lease(
                Statements.LeaseQuestion(budget: budget, lane: gate.place.lane, wanted: wanted, slice: slice))
        } catch {
            // Without the database no verdict can be written either.
            return release(gate, until: nil)
        }
        guard answer.stoppedFor <= .zero else { return halt(budget, for: answer.stoppedFor) }
        gate.leased.increment(by: answer.calls)
        gate.account.receive(answer, wanted: wanted, asked: asked, at: .now, lateAnswersMax: Self.lateAnswersMax)
    }

    private func halt(_ budget: CallBudget, for wait: Duration) {
        stops[budget] = max(stops[budget] ?? .now, .now + wait)
        for gate in gates.values where gate.place.budget == budget {
            gate.account.forget()
            release(gate, until: wait)
        }
    }

    private func release(_ gate: Gate, until wait: Duration? = nil, hostDown: Bool = false) {
        let released = gate.waiters
        gate.waiters = []
        waitersCount -= released.count
        for waiter in released {
            waiter.continuation.resume(returning: refuse(gate, until: wait, hostDown: hostDown))
        }
    }

    private func watch() {
        guard !isWatching else { return }
        isWatching = true
        Task {
            while waitersCount > 0 {
                try? await Task.sleep(for: Self.watchInterval)
                expire(.now)
            }
            isWatching = false
        }
    }

    /// Refuses those who have waited long enough.
    private func expire(_ now: ContinuousClock.Instant) {
        for gate in gates.values where gate.waiters.contains(where: { $0.deadline <= now }) {
            let isFilling = gate.host.isFilling(now)
            let isOver = { (waiter: Waiter) in
                waiter.deadline <= now && !(isFilling && now < waiter.since + Self.rampPatience)
            }
            let queue = gate.waiters
            gate.waiters = queue.filter { !isOver($0) }
            for waiter in queue where isOver(waiter) {
                waitersCount -= 1
                waiter.continuation.resume(returning: refuse(gate, until: nil))
            }
        }
    }

    private func refuse(_ gate: Gate, until wait: Duration? = nil, hostDown: Bool = false) -> Admission {
        gate.refused.increment()
        return hostDown ? .hostDown : .refused(until: wait.map { Date().addingTimeInterval($0.inSeconds) })
    }
}

extension CallBudget {
    fileprivate var labels: [(String, String)] {
        [("app", appID), ("environment", environment), ("endpoint", endpoint)]
    }
}
