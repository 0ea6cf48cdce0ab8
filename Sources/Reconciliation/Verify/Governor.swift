import DequeModule
package import Foundation
package import Logging
import Metrics
import Purchases

/// Keeps the calls of all processes within what Apple allows an app, per endpoint (B9, P26).
///
/// Calls are leased from the database for a slice of time and handed out here: fresh purchases first, then repairs, then
/// sweeps. A call that could not be made soon is refused at once, so a backlog waits in its rows and never before a
/// purchase that has just come. Apple's 429 stops an endpoint for every process.
package actor Governor {
    package enum Permit: Sendable, Equatable {
        case granted
        /// Not now. `until`: Apple has named the time.
        case refused(until: Date?)
    }

    typealias Lease = @Sendable (Statements.LeaseQuestion) async throws -> Statements.Lease
    typealias Stop = @Sendable (CallBudget, Duration) async throws -> Void

    /// Nobody waits longer for a call than this; longer waits are the row's.
    package static let patience: Duration = .seconds(2)
    /// Where Apple says 429 and not for how long.
    static let stopMin: Duration = .seconds(10)

    private static let lateAnswersMax = 3

    private struct Waiter {
        let id: Int
        let continuation: CheckedContinuation<Permit, Never>
    }

    private struct Place: Hashable {
        let budget: CallBudget
        let lane: CallLane
    }

    /// What this process has of one budget for one lane.
    private struct Account {
        var slice: CallSlice
        /// When the slice ends that was leased last, and what is left of it.
        var endsAt: ContinuousClock.Instant = .now
        var free = 0
        /// The last lease was less than was asked for: nothing more before the slice ends.
        var isDry = false
        /// How much that was.
        var share: Int?
        var granted = 0
        var grantedBefore = 0
        var lateAnswers = 0
        var waiters: Deque<Waiter> = []
        var isServed = false

        /// What was leased and not used is not asked for again.
        mutating func beginSlice(_ now: ContinuousClock.Instant) {
            guard endsAt <= now else { return }
            let isNext = now < endsAt + slice.length
            (grantedBefore, granted, free, isDry) = (isNext ? granted - free : 0, 0, 0, false)
        }
    }

    private let lease: Lease
    private let stop: Stop
    private let logger: Logger
    private var accounts: [Place: Account] = [:]
    private var stops: [CallBudget: ContinuousClock.Instant] = [:]
    /// Of all budgets: each holds a receipt in flight, and a message before which others wait.
    private let waitersMax: Int
    private var waitersCount = 0
    private var lastID = 0

    /// - Parameter waitersMax: how many may wait for a call at the same time, repairs and sweeps only a quarter of it.
    package init(ledger: Ledger, waitersMax: Int, logger: Logger) {
        self.init(
            waitersMax: waitersMax,
            lease: { question in
                guard let lease = try await ledger.run(Statements.leaseCalls, question).first else {
                    throw LedgerError.busy
                }
                return lease
            },
            stop: { budget, wait in _ = try await ledger.run(Statements.stopCalls, (budget, wait)) }, logger: logger)
    }

    init(waitersMax: Int = 100, lease: @escaping Lease, stop: @escaping Stop, logger: Logger) {
        self.waitersMax = waitersMax
        self.lease = lease
        self.stop = stop
        self.logger = logger
    }

    /// Asks for one call. Returns when it may be made, at most ``patience`` later, or when it may not be made soon.
    ///
    /// - Parameter callsPerSecond: what Apple allows for this budget; a change counts from the next slice on.
    package func permit(_ budget: CallBudget, callsPerSecond: Double, lane: CallLane) async -> Permit {
        let slice = CallSlice(callsPerSecond: callsPerSecond)
        let (now, place) = (ContinuousClock.now, Place(budget: budget, lane: lane))
        if let until = stops[budget], until > now { return refuse(place, until: until - now) }
        accounts[place, default: Account(slice: slice)].slice = slice
        accounts[place]?.beginSlice(now)
        guard let account = accounts[place] else { return .refused(until: nil) }
        if account.waiters.isEmpty, account.free > 0 {
            accounts[place]?.free -= 1
            return .granted
        }
        // Who would wait longer than anybody may waits in its row instead, and so do most of those that come again:
        // a fresh purchase may stand behind them in the queue.
        let slices = lane == .fresh ? max(1, Int(Self.patience / slice.length)) : 1
        guard account.waiters.count < max(1, account.share ?? slice.calls) * slices,
            waitersCount < (lane == .fresh ? waitersMax : waitersMax / 4)
        else { return refuse(place, until: nil) }
        return await withCheckedContinuation { continuation in
            lastID += 1
            waitersCount += 1
            let id = lastID
            accounts[place]?.waiters.append(Waiter(id: id, continuation: continuation))
            Task {
                try? await Task.sleep(until: now + Self.patience, clock: .continuous)
                expire(id, at: place)
            }
            guard !account.isServed else { return }
            accounts[place]?.isServed = true
            Task { await serve(place) }
        }
    }

    /// Apple said 429: nobody calls there until then.
    package func stop(_ budget: CallBudget, until: Date?) async {
        let wait = until.map { Duration.seconds(max(0, $0.timeIntervalSinceNow)) } ?? Self.stopMin
        halt(budget, for: wait)
        Counter(label: "makegood_apple_stops_total", dimensions: Self.labels(budget)).increment()
        logger.warning(
            "Apple limits the calls of an app: stopped for every worker",
            metadata: [
                "app.id": "\(budget.appID)", "apple.environment": "\(budget.environment)",
                "apple.endpoint": "\(budget.endpoint)", "apple.wait": "\(wait)",
            ])
        // Without the database the others learn it from Apple.
        try? await stop(budget, wait)
    }

    /// Leases while anybody waits: again at once where all was given, in the next slice where it was not.
    private func serve(_ place: Place) async {
        while let account = accounts[place], !account.waiters.isEmpty {
            accounts[place]?.beginSlice(.now)
            if accounts[place]?.isDry == true {
                // Never a busy loop, whatever the two clocks say.
                try? await Task.sleep(until: max(account.endsAt, .now + .milliseconds(2)), clock: .continuous)
            } else {
                await lease(place)
            }
        }
        accounts[place]?.isServed = false
    }

    /// One question to the database: for who waits, and for who will come in the rest of the slice as in the last.
    private func lease(_ place: Place) async {
        guard let account = accounts[place] else { return }
        let expected = max(account.grantedBefore - account.granted, account.granted / 4)
        let wanted = min(max(account.waiters.count, expected), account.slice.calls)
        let asked = ContinuousClock.now
        let answer: Statements.Lease
        do {
            answer = try await lease(
                Statements.LeaseQuestion(budget: place.budget, lane: place.lane, wanted: wanted, slice: account.slice))
        } catch {
            // Without the database no verdict can be written either.
            return release(place, until: nil)
        }
        guard answer.stoppedFor <= .zero else { return halt(place.budget, for: answer.stoppedFor) }
        Counter(label: "makegood_apple_calls_leased_total", dimensions: Self.labels(place)).increment(by: answer.calls)
        hand(answer, wanted: wanted, asked: asked, to: place)
    }

    private func hand(_ answer: Statements.Lease, wanted: Int, asked: ContinuousClock.Instant, to place: Place) {
        guard var account = accounts[place] else { return }
        // From the question on: the answer may have taken its time. One that comes after its slice is of no use, or calls
        // would pile up in the next; but a database that is always so slow must not mean that nobody calls.
        account.endsAt = asked + answer.endsIn
        account.lateAnswers = .now < account.endsAt ? 0 : account.lateAnswers + 1
        guard account.lateAnswers == 0 || account.lateAnswers > Self.lateAnswersMax else {
            accounts[place] = account
            return
        }
        account.granted += answer.calls
        account.free += answer.calls
        account.isDry = answer.calls < wanted
        account.share = account.isDry ? account.granted : nil
        let served = account.waiters.prefix(account.free)
        account.free -= served.count
        account.waiters.removeFirst(served.count)
        waitersCount -= served.count
        accounts[place] = account
        for waiter in served { waiter.continuation.resume(returning: .granted) }
    }

    private func halt(_ budget: CallBudget, for wait: Duration) {
        stops[budget] = max(stops[budget] ?? .now, .now + wait)
        for lane in CallLane.allCases {
            let place = Place(budget: budget, lane: lane)
            accounts[place]?.free = 0
            release(place, until: wait)
        }
    }

    private func release(_ place: Place, until wait: Duration?) {
        guard let waiters = accounts[place]?.waiters else { return }
        accounts[place]?.waiters = []
        waitersCount -= waiters.count
        for waiter in waiters { waiter.continuation.resume(returning: refuse(place, until: wait)) }
    }

    private func expire(_ id: Int, at place: Place) {
        guard let index = accounts[place]?.waiters.firstIndex(where: { $0.id == id }),
            let waiter = accounts[place]?.waiters.remove(at: index)
        else { return }
        waitersCount -= 1
        waiter.continuation.resume(returning: refuse(place, until: nil))
    }

    private func refuse(_ place: Place, until wait: Duration?) -> Permit {
        Counter(label: "makegood_apple_calls_refused_total", dimensions: Self.labels(place)).increment()
        return .refused(until: wait.map { Date().addingTimeInterval($0.inSeconds) })
    }

    private static func labels(_ place: Place) -> [(String, String)] {
        labels(place.budget) + [("lane", place.lane.rawValue)]
    }

    private static func labels(_ budget: CallBudget) -> [(String, String)] {
        [("app", budget.appID), ("environment", budget.environment), ("endpoint", budget.endpoint)]
    }
}
