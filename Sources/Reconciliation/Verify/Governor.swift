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

    /// Nobody waits longer for a call than this, or two slices where those are longer.
    package static let patience: Duration = .seconds(2)
    /// Where Apple says 429 and not for how long.
    static let stopMin: Duration = .seconds(10)

    private struct Waiter {
        let deadline: ContinuousClock.Instant
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
        var waiters: Deque<Waiter> = []
        var isServed = false

        mutating func beginSlice(_ now: ContinuousClock.Instant) {
            guard endsAt <= now else { return }
            (grantedBefore, granted, free, isDry) = (granted, 0, 0, false)
        }
    }

    private let lease: Lease
    private let stop: Stop
    private let logger: Logger
    private var accounts: [Place: Account] = [:]
    private var stops: [CallBudget: ContinuousClock.Instant] = [:]

    package init(ledger: Ledger, logger: Logger) {
        self.init(
            lease: { question in
                guard let lease = try await ledger.run(Statements.leaseCalls, question).first else {
                    throw LedgerError.busy
                }
                return lease
            },
            stop: { budget, wait in _ = try await ledger.run(Statements.stopCalls, (budget, wait)) }, logger: logger)
    }

    init(lease: @escaping Lease, stop: @escaping Stop, logger: Logger) {
        self.lease = lease
        self.stop = stop
        self.logger = logger
    }

    /// Asks for one call. Returns when it may be made, at most ``patience`` later, or when it may not be made soon.
    ///
    /// - Parameter callsPerSecond: what Apple allows for this budget; a change counts from the next slice on.
    package func permit(_ budget: CallBudget, callsPerSecond: Double, lane: CallLane) async -> Permit {
        guard let slice = CallSlice(callsPerSecond: callsPerSecond) else { return .refused(until: nil) }
        let (now, place) = (ContinuousClock.now, Place(budget: budget, lane: lane))
        if let until = stops[budget], until > now { return refuse(place, until: until - now) }
        accounts[place, default: Account(slice: slice)].slice = slice
        accounts[place]?.beginSlice(now)
        guard let account = accounts[place] else { return .refused(until: nil) }
        if account.waiters.isEmpty, account.free > 0 {
            accounts[place]?.free -= 1
            return .granted
        }
        // Who would wait longer than anybody may waits in its row instead.
        let patience = max(Self.patience, slice.length * 2)
        guard account.waiters.count < max(1, account.share ?? slice.calls) * Int(patience / slice.length) else {
            return refuse(place, until: nil)
        }
        return await withCheckedContinuation { continuation in
            accounts[place]?.waiters.append(Waiter(deadline: now + patience, continuation: continuation))
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
                refuseLate(place)
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
        hand(answer, wanted: wanted, to: place)
    }

    private func hand(_ answer: Statements.Lease, wanted: Int, to place: Place) {
        guard var account = accounts[place] else { return }
        account.endsAt = .now + answer.endsIn
        account.granted += answer.calls
        account.free += answer.calls
        account.isDry = answer.calls < wanted
        account.share = account.isDry ? account.granted : nil
        let served = account.waiters.prefix(account.free)
        account.free -= served.count
        account.waiters.removeFirst(served.count)
        accounts[place] = account
        for waiter in served { waiter.continuation.resume(returning: .granted) }
    }

    private func halt(_ budget: CallBudget, for wait: Duration) {
        stops[budget] = .now + wait
        for lane in CallLane.allCases {
            let place = Place(budget: budget, lane: lane)
            accounts[place]?.free = 0
            release(place, until: wait)
        }
    }

    private func release(_ place: Place, until wait: Duration?) {
        guard let waiters = accounts[place]?.waiters else { return }
        accounts[place]?.waiters = []
        for waiter in waiters { waiter.continuation.resume(returning: refuse(place, until: wait)) }
    }

    private func refuseLate(_ place: Place) {
        while let first = accounts[place]?.waiters.first, first.deadline <= .now {
            accounts[place]?.waiters.removeFirst()
            first.continuation.resume(returning: refuse(place, until: nil))
        }
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
