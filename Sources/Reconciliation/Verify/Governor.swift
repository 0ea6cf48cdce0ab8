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
        fileprivate let place: Place
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

    fileprivate struct Place: Hashable {
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
    private let logger: Logger
    /// Of each host.
    private let callsMax: Int
    private var hosts: [AppleHost: AppleHostState] = [:]
    private var accounts: [Place: CallAccount] = [:]
    private var waiters: [Place: Deque<Waiter>] = [:]
    /// Places with waiters that somebody serves, and those whose host has no room.
    private var served: Set<Place> = []
    private var blocked: [AppleHost: Set<Place>] = [:]
    private var stops: [CallBudget: ContinuousClock.Instant] = [:]
    /// Of all places: each holds a receipt in flight, and a message before which others wait.
    private let waitersMax: Int
    private var waitersCount = 0
    private var isWatching = false
    private var lastID = 0
    /// Calls since the last report, and of all time.
    private var begun: [AppleHost: Int] = [:]
    private var granted: [AppleHost: Int] = [:]

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
        let (now, place) = (ContinuousClock.now, Place(host: host, budget: allowance?.budget, lane: lane))
        if let budget = place.budget, let until = stops[budget], until > now {
            return refuse(place, until: until - now)
        }
        guard !isDown(host, now) else { return refuse(place, hostDown: true) }
        let slice = allowance.map { CallSlice(callsPerSecond: $0.callsPerSecond) }
        accounts[place, default: CallAccount(slice: slice)].begin(slice, now)
        guard let account = accounts[place] else { return .refused(until: nil) }
        if waiters[place]?.isEmpty ?? true, !isBehind(place), isReady(place, now) { return grant(place, now) }
        guard hasQueue(for: place, account, now) else { return refuse(place, until: nil) }
        return await withCheckedContinuation { continuation in
            lastID += 1
            waitersCount += 1
            waiters[place, default: []].append(
                Waiter(id: lastID, since: now, deadline: deadline ?? now + Self.patience, continuation: continuation))
            watch()
            serve(place)
        }
    }

    /// A call has ended, or was not made after all.
    package func leave(_ pass: Pass, _ outcome: AppleHostState.Outcome) {
        let (host, now) = (pass.place.host, ContinuousClock.now)
        let before = hosts[host]?.breaker.state
        hosts[host]?.end(pass.era, outcome, at: now)
        if let after = hosts[host]?.breaker.state, after != before {
            logger.notice(
                "breaker changed",
                metadata: [
                    "apple.service": "\(host.service.rawValue)", "apple.environment": "\(host.environment)",
                    "apple.breaker": "\(after)",
                ])
            // Nobody waits for a host that is down.
            if after != .closed { for place in waiters.keys where place.host == host { serve(place) } }
        }
        // Of a lane whoever has waited longest, or one app would keep another from a host that has little room.
        let isForAnyLane = isForAnyLane(host)
        let turn = { (place: Place) in
            (isForAnyLane ? CallLane.fresh : place.lane, self.waiters[place]?.first?.id ?? .max)
        }
        for place in (blocked[host] ?? []).sorted(by: { turn($0) < turn($1) }) { serve(place) }
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
        defer { begun = [:] }
        return hosts.keys.map { host in
            _ = isDown(host, now)
            return AppleHostReport(host, hosts[host, default: state], calls: begun[host] ?? 0, at: now)
        }
    }

    /// Whether a call there would be refused now.
    package func isDown(_ host: AppleHost) -> Bool { isDown(host, .now) }

    // MARK: Hosts

    private var state: AppleHostState { AppleHostState(callsMax: callsMax, scale: scale) }

    private func isDown(_ host: AppleHost, _ now: ContinuousClock.Instant) -> Bool {
        hosts[host, default: state].isDown(now)
    }

    private func room(_ host: AppleHost, _ now: ContinuousClock.Instant) -> Int {
        hosts[host, default: state].room(now)
    }

    /// Whether this host has no room only because it is still learning how much it has.
    private func isFilling(_ host: AppleHost, _ now: ContinuousClock.Instant) -> Bool {
        hosts[host]?.limit.isRamping == true && room(host, now) == 0 && !isDown(host, now)
    }

    /// Whether the next call there is for who has waited longest, whatever the lane: one of ten is, or fresh purchases
    /// would keep the others out of a host that has little room.
    private func isForAnyLane(_ host: AppleHost) -> Bool { (granted[host] ?? 0) % 10 == 9 }

    /// Whether others wait for room at this host whose turn comes before.
    private func isBehind(_ place: Place) -> Bool {
        let isForAnyLane = isForAnyLane(place.host)
        return blocked[place.host]?.contains {
            (isForAnyLane || $0.lane <= place.lane) && waiters[$0]?.isEmpty == false
        } ?? false
    }

    private func isReady(_ place: Place, _ now: ContinuousClock.Instant) -> Bool {
        room(place.host, now) > 0 && accounts[place]?.isReady(now + Self.tolerance) == true
    }

    private func grant(_ place: Place, _ now: ContinuousClock.Instant) -> Admission {
        begun[place.host, default: 0] += 1
        granted[place.host, default: 0] += 1
        accounts[place]?.take()
        return .granted(
            Pass(
                place: place, era: hosts[place.host, default: state].begin(),
                leavesBy: place.budget.map { _ in now + Self.passAge }))
    }

    // MARK: Waiting

    /// Who would wait longer than anybody may waits in its row instead, and so do most of those that come again: a fresh
    /// purchase may stand behind them in the queue.
    private func hasQueue(for place: Place, _ account: CallAccount, _ now: ContinuousClock.Instant) -> Bool {
        if isFilling(place.host, now) { return true }
        let isFresh = place.lane == .fresh
        if let queue = account.queueMax(isFresh ? Self.patience : .zero), (waiters[place]?.count ?? 0) >= queue {
            return false
        }
        return waitersCount < (isFresh ? waitersMax : waitersMax / 4)
    }

    private func serve(_ place: Place) {
        guard served.insert(place).inserted else { return }
        Task { await work(place) }
    }

    /// Lets out who waits, as fast as room and lease allow: a lease again at once where all was given, in the next
    /// slice where it was not. Ends when nobody waits, or with the room: then ``leave(_:_:)`` begins it again.
    private func work(_ place: Place) async {
        defer { served.remove(place) }
        blocked[place.host]?.remove(place)
        while waiters[place]?.isEmpty == false {
            let now = ContinuousClock.now
            accounts[place]?.beginSlice(now)
            guard let account = accounts[place], !isDown(place.host, now) else { return release(place, hostDown: true) }
            guard room(place.host, now) > 0 else {
                blocked[place.host, default: []].insert(place)
                return
            }
            if isReady(place, now) {
                waitersCount -= 1
                waiters[place]?.removeFirst().continuation.resume(returning: grant(place, now))
            } else if let at = account.leavesAt {
                try? await Task.sleep(until: at, tolerance: .zero, clock: .continuous)
            } else if account.isDry {
                // Never a busy loop, whatever the two clocks say.
                try? await Task.sleep(until: max(account.endsAt, now + Self.tolerance), clock: .continuous)
            } else {
                await lease(place, account)
            }
        }
    }

    /// One question to the database: for who waits, and for who will come in the rest of the slice as in the last.
    private func lease(_ place: Place, _ account: CallAccount) async {
        guard let budget = place.budget, let slice = account.slice else { return }
        let asked = ContinuousClock.now
        // Of a host in trouble no more than it has room for: other processes may use it.
        let isCut = hosts[place.host]?.limit.isCut == true
        let wanted = min(
            account.wanted(waiting: waiters[place]?.count ?? 0), isCut ? max(1, room(place.host, asked)) : .max)
        let answer: Statements.Lease
        do {
            answer = try await lease(
                Statements.LeaseQuestion(budget: budget, lane: place.lane, wanted: wanted, slice: slice))
        } catch {
            // Without the database no verdict can be written either.
            return release(place, until: nil)
        }
        guard answer.stoppedFor <= .zero else { return halt(budget, for: answer.stoppedFor) }
        Counter(label: "makegood_apple_calls_leased_total", dimensions: place.labels).increment(by: answer.calls)
        accounts[place]?.receive(answer, wanted: wanted, asked: asked, at: .now, lateAnswersMax: Self.lateAnswersMax)
    }

    private func halt(_ budget: CallBudget, for wait: Duration) {
        stops[budget] = max(stops[budget] ?? .now, .now + wait)
        for place in accounts.keys where place.budget == budget {
            accounts[place]?.forget()
            release(place, until: wait)
        }
    }

    private func release(_ place: Place, until wait: Duration? = nil, hostDown: Bool = false) {
        let released = waiters.removeValue(forKey: place) ?? []
        waitersCount -= released.count
        for waiter in released {
            waiter.continuation.resume(returning: refuse(place, until: wait, hostDown: hostDown))
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
        for (place, queue) in waiters where queue.contains(where: { $0.deadline <= now }) {
            let isFilling = isFilling(place.host, now)
            let isOver = { (waiter: Waiter) in
                waiter.deadline <= now && !(isFilling && now < waiter.since + Self.rampPatience)
            }
            waiters[place] = queue.filter { !isOver($0) }
            for waiter in queue where isOver(waiter) {
                waitersCount -= 1
                waiter.continuation.resume(returning: refuse(place, until: nil))
            }
        }
    }

    private func refuse(_ place: Place, until wait: Duration? = nil, hostDown: Bool = false) -> Admission {
        Counter(label: "makegood_apple_calls_refused_total", dimensions: place.labels).increment()
        return hostDown ? .hostDown : .refused(until: wait.map { Date().addingTimeInterval($0.inSeconds) })
    }
}

extension CallBudget {
    fileprivate var labels: [(String, String)] {
        [("app", appID), ("environment", environment), ("endpoint", endpoint)]
    }
}
