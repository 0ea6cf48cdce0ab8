import AppStore
import DequeModule
import Foundation
import Ledger
import Metrics
import Purchases

/// Decides when calls to Apple leave: a `CallQueue` for each budget and lane, with the callers that wait in it. Time
/// is a parameter. The owner of this value does everything that takes time (``Job``), so that one lock around the value
/// is enough.
struct CallScheduler: ~Copyable {
    /// What must happen before the next call of a queue may leave.
    enum Wait {
        case until(ContinuousClock.Instant)
        /// The database's answer to ``question(at:_:)``, given to ``receive(_:to:at:asked:_:)``.
        case lease
    }

    /// Work that the owner begins, and continues until the answer is that nothing is left to do.
    enum Job {
        /// The owner calls ``proceed(_:_:)`` after each wait.
        case serve(Place, Wait)
        /// The owner calls ``expire(_:)`` again and again: one timer for all waiting callers, because one timer each
        /// would cost more than the calls.
        case watch
    }

    struct Place: Hashable {
        let host: AppleHost
        /// Nil where Apple names no limit.
        let budget: CallBudget?
        let lane: CallLane

        fileprivate var labels: [(String, String)] {
            [
                ("app", budget?.appID ?? ""), ("environment", host.environment.rawValue),
                ("endpoint", budget?.endpoint ?? host.service.rawValue), ("lane", lane.rawValue),
            ]
        }
    }

    typealias Continuation = CheckedContinuation<Governor.Admission, Never>

    private static let lateAnswersMax = 3
    /// How long a call that was let out may take to leave. With this, and with the fifth of the limit that stays
    /// unused, a second never has more calls than Apple allows.
    private static let passAge: Duration = .milliseconds(100)
    /// Timers are no more precise than this.
    private static let tolerance: Duration = .milliseconds(2)

    /// One of Apple's hosts.
    private final class Host {
        let id: AppleHost
        let index: Int
        var state: AppleHostState
        /// Calls since the last report, and of all time.
        var begun = 0
        var granted = 0
        /// Gates whose waiting callers found no room.
        var blocked: [CallQueue] = []

        init(_ id: AppleHost, index: Int, _ state: AppleHostState) {
            self.id = id
            self.index = index
            self.state = state
        }

        /// Whether the next call to this host goes to the caller that has waited longest, whatever its lane. One call
        /// of ten does, or fresh purchases would keep the other lanes out of a host that has little room.
        var isForAnyLane: Bool { granted % 10 == 9 }

        /// Whether the host has no room only because the process is still learning how many calls the host takes.
        func isFilling(_ now: ContinuousClock.Instant) -> Bool {
            state.limit.isRamping && state.room(now) == 0 && !state.isDown(now)
        }
    }

    /// Lets out the calls of one place.
    private final class CallQueue {
        let place: Place
        let host: Host
        let leased: Counter
        let refused: Counter
        /// The number from which the account's slice was computed; nil where Apple names no limit.
        private(set) var callsPerSecond: Double?
        var account = CallLease()
        var waiters: Deque<Waiter> = []
        /// Whether a job lets the waiting callers out.
        var isServed = false

        init(_ place: Place, _ host: Host) {
            self.place = place
            self.host = host
            leased = Counter(label: "makegood_apple_calls_leased_total", dimensions: place.labels)
            refused = Counter(label: "makegood_apple_calls_refused_total", dimensions: place.labels)
        }

        /// Begins an admission. The slice is computed only when the number changes, because that costs more than the
        /// rest of an admission.
        func begin(_ callsPerSecond: Double?, _ now: ContinuousClock.Instant) {
            if self.callsPerSecond != callsPerSecond {
                self.callsPerSecond = callsPerSecond
                account.keep(to: callsPerSecond.map { CallSlice(callsPerSecond: $0) })
            }
            account.beginSlice(now)
        }

        func isReady(_ now: ContinuousClock.Instant) -> Bool {
            host.state.room(now) > 0 && account.isReady(now + CallScheduler.tolerance)
        }
    }

    private struct Waiter {
        /// In order of arrival.
        let id: Int
        let since: ContinuousClock.Instant
        let deadline: ContinuousClock.Instant
        let continuation: Continuation
    }

    /// Calls at the same time, to each host.
    private let callsMax: Int
    /// Callers that may wait, over all places. Each holds a receipt in flight, and a message behind which others wait.
    private let waitersMax: Int
    private let scale: Double
    private var hosts: [Host] = []
    private var queues: [Place: CallQueue] = [:]
    private var stops: [CallBudget: ContinuousClock.Instant] = [:]
    private var waitersCount = 0
    private var isWatched = false
    private var lastID = 0

    init(callsMax: Int, waitersMax: Int, scale: Double) {
        self.callsMax = callsMax
        self.waitersMax = waitersMax
        self.scale = scale
    }

    // MARK: Calls

    /// Answers the caller now, or queues it.
    mutating func admit(
        _ place: Place, _ callsPerSecond: Double?, by deadline: ContinuousClock.Instant, _ continuation: Continuation,
        _ now: ContinuousClock.Instant
    ) -> [Job] {
        let queue = self.queue(place)
        if let budget = place.budget, let until = stops[budget], until > now {
            continuation.resume(returning: refuse(queue, until: until - now))
            return []
        }
        guard !queue.host.state.isDown(now) else {
            continuation.resume(returning: refuse(queue, hostDown: true))
            return []
        }
        queue.begin(callsPerSecond, now)
        // If there is room and nobody waits, this caller does not wait either.
        if queue.waiters.isEmpty, queue.isReady(now) {
            continuation.resume(returning: grant(queue, now))
            return []
        }
        guard hasQueue(for: queue, now) else {
            continuation.resume(returning: refuse(queue))
            return []
        }
        lastID += 1
        waitersCount += 1
        queue.waiters.append(Waiter(id: lastID, since: now, deadline: deadline, continuation: continuation))
        var jobs = serve(queue, now)
        if !isWatched, waitersCount > 0 {
            isWatched = true
            jobs.append(.watch)
        }
        return jobs
    }

    /// - Returns: the host and its breaker if the breaker's state has changed, and the jobs to begin.
    mutating func leave(
        _ pass: Governor.Pass, _ outcome: AppleHostState.Outcome, _ now: ContinuousClock.Instant
    ) -> (change: (AppleHost, Breaker.State)?, jobs: [Job]) {
        let host = hosts[pass.host]
        let before = host.state.breaker.state
        host.state.end(pass.era, outcome, at: now)
        let after = host.state.breaker.state
        var jobs: [Job] = []
        // Callers do not wait for a host that is down.
        if after != before, after != .closed {
            for queue in queues.values where queue.host === host && !queue.waiters.isEmpty { jobs += serve(queue, now) }
        }
        jobs += open(host, now)
        return (after != before ? (host.id, after) : nil, jobs)
    }

    /// The hosts that were asked so far, and how many calls each got since the last report.
    func report(_ now: ContinuousClock.Instant) -> [AppleHostReport] {
        hosts.map { host in
            _ = host.state.isDown(now)
            defer { host.begun = 0 }
            return AppleHostReport(host.id, host.state, calls: host.begun, at: now)
        }
    }

    mutating func isDown(_ id: AppleHost, _ now: ContinuousClock.Instant) -> Bool { host(id).state.isDown(now) }

    private mutating func host(_ id: AppleHost) -> Host {
        if let host = hosts.first(where: { $0.id == id }) { return host }
        let host = Host(id, index: hosts.count, AppleHostState(callsMax: callsMax, scale: scale))
        hosts.append(host)
        return host
    }

    private mutating func queue(_ place: Place) -> CallQueue {
        if let queue = queues[place] { return queue }
        let queue = CallQueue(place, host(place.host))
        queues[place] = queue
        return queue
    }

    private func grant(_ queue: CallQueue, _ now: ContinuousClock.Instant) -> Governor.Admission {
        let host = queue.host
        host.begun += 1
        host.granted += 1
        queue.account.take()
        return .granted(
            Governor.Pass(
                host: host.index, era: host.state.begin(),
                leavesBy: queue.place.budget.map { _ in now + Self.passAge }))
    }

    // MARK: Waiting

    /// Whether a caller may queue. If a caller would wait longer than the limit, its receipt waits in its row instead.
    /// So do most receipts that come again, because a fresh purchase may stand behind them in the queue.
    private func hasQueue(for queue: CallQueue, _ now: ContinuousClock.Instant) -> Bool {
        if queue.host.isFilling(now) { return true }
        let isFresh = queue.place.lane == .fresh
        if let most = queue.account.queueMax(isFresh ? Governor.patience : .zero), queue.waiters.count >= most {
            return false
        }
        return waitersCount < (isFresh ? waitersMax : waitersMax / 4)
    }

    /// Serves the queues that wait for room at a host, in turn. Within a lane the queue whose caller has waited longest
    /// comes first, or one app would keep another from a host that has little room.
    private mutating func open(_ host: Host, _ now: ContinuousClock.Instant) -> [Job] {
        guard !host.blocked.isEmpty, host.state.room(now) > 0 else { return [] }
        let isForAnyLane = host.isForAnyLane
        let turn = { (queue: CallQueue) in
            (isForAnyLane ? CallLane.fresh : queue.place.lane, queue.waiters.first?.id ?? .max)
        }
        let blocked = host.blocked.count == 1 ? host.blocked : host.blocked.sorted { turn($0) < turn($1) }
        host.blocked = []
        return blocked.flatMap { serve($0, now) }
    }

    /// Lets out the callers that may leave now. Returns a job where the others need time and no job serves them yet;
    /// otherwise none.
    private mutating func serve(_ queue: CallQueue, _ now: ContinuousClock.Instant) -> [Job] {
        guard !queue.isServed, let wait = advance(queue, now) else { return [] }
        queue.isServed = true
        return [.serve(queue.place, wait)]
    }

    /// Continues a job after a wait. Nil: the job has ended.
    mutating func proceed(_ place: Place, _ now: ContinuousClock.Instant) -> Wait? {
        guard let queue = queues[place] else { return nil }
        let wait = advance(queue, now)
        queue.isServed = wait != nil
        return wait
    }

    /// Lets out waiting callers, as fast as room and lease allow. If the database gave all calls that were asked for,
    /// the next lease is asked for at once, otherwise in the next slice. Nil when nobody waits, or when the host has no
    /// room: then ``leave(_:_:_:)`` begins again.
    private mutating func advance(_ queue: CallQueue, _ now: ContinuousClock.Instant) -> Wait? {
        let host = queue.host
        host.blocked.removeAll { $0 === queue }
        queue.account.beginSlice(now)
        while !queue.waiters.isEmpty {
            guard !host.state.isDown(now) else {
                release(queue, hostDown: true)
                return nil
            }
            guard host.state.room(now) > 0 else {
                host.blocked.append(queue)
                return nil
            }
            if queue.isReady(now) {
                waitersCount -= 1
                queue.waiters.removeFirst().continuation.resume(returning: grant(queue, now))
            } else if let at = queue.account.leavesAt {
                return .until(at)
            } else if let at = queue.account.asksAt(now) {
                // Never a busy loop, whatever the two clocks say.
                return .until(max(at, now + Self.tolerance))
            } else {
                return .lease
            }
        }
        return nil
    }

    /// How many calls to lease, as a question to the database: for the callers that wait, and for those that will come
    /// in the rest of the slice if it goes like the last one. For a host in trouble it is no more than the host has
    /// room for, because other processes may use the rest. Nil: nobody waits any more.
    func question(at place: Place, _ now: ContinuousClock.Instant) -> Statements.LeaseQuestion? {
        guard let queue = queues[place], !queue.waiters.isEmpty, let budget = place.budget,
            let slice = queue.account.slice
        else { return nil }
        let wanted = min(
            queue.account.wanted(waiting: queue.waiters.count),
            queue.host.state.limit.isCut ? max(1, queue.host.state.room(now)) : .max)
        return Statements.LeaseQuestion(budget: budget, lane: place.lane, wanted: wanted, slice: slice)
    }

    /// Continues a job after a lease. Nil: the job has ended.
    ///
    /// - Parameter answer: nil where the database gave none. The waiting callers are then refused, because without the
    ///   database no verdict can be written either.
    mutating func receive(
        _ answer: Statements.Lease?, to question: Statements.LeaseQuestion, at place: Place,
        asked: ContinuousClock.Instant, _ now: ContinuousClock.Instant
    ) -> Wait? {
        guard let queue = queues[place] else { return nil }
        if let answer, answer.stoppedFor > .zero {
            halt(question.budget, for: answer.stoppedFor, now)
        } else if let answer {
            queue.leased.increment(by: answer.calls)
            queue.account.receive(
                answer, wanted: question.wanted, asked: asked, at: now, lateAnswersMax: Self.lateAnswersMax)
        } else {
            release(queue)
        }
        return proceed(place, now)
    }

    /// Stops all calls of a budget for `wait`.
    mutating func halt(_ budget: CallBudget, for wait: Duration, _ now: ContinuousClock.Instant) {
        stops[budget] = max(stops[budget] ?? now, now + wait)
        for queue in queues.values where queue.place.budget == budget {
            queue.account.forget()
            release(queue, until: wait)
        }
    }

    /// Refuses the callers that have waited long enough. False: nobody waits, and no timer is needed any more.
    mutating func expire(_ now: ContinuousClock.Instant) -> Bool {
        for queue in queues.values where queue.waiters.contains(where: { $0.deadline <= now }) {
            let isFilling = queue.host.isFilling(now)
            let isOver = { (waiter: Waiter) in
                waiter.deadline <= now && !(isFilling && now < waiter.since + Governor.rampPatience)
            }
            let waiters = queue.waiters
            queue.waiters = waiters.filter { !isOver($0) }
            for waiter in waiters where isOver(waiter) {
                waitersCount -= 1
                waiter.continuation.resume(returning: refuse(queue))
            }
        }
        isWatched = waitersCount > 0
        return isWatched
    }

    private mutating func release(_ queue: CallQueue, until wait: Duration? = nil, hostDown: Bool = false) {
        let released = queue.waiters
        queue.waiters = []
        waitersCount -= released.count
        for waiter in released {
            waiter.continuation.resume(returning: refuse(queue, until: wait, hostDown: hostDown))
        }
    }

    private func refuse(_ queue: CallQueue, until wait: Duration? = nil, hostDown: Bool = false) -> Governor.Admission {
        queue.refused.increment()
        return hostDown ? .hostDown : .refused(until: wait.map { Date().addingTimeInterval($0.inSeconds) })
    }
}
