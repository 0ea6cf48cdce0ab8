package import AppStore
package import Foundation
package import Ledger
package import Logging
import Metrics
import Purchases
import Synchronization

/// Lets the calls to Apple out, one by one (B9, P26). No host that is down is asked, no host gets more calls at once
/// than it can take, and all processes together keep to what Apple allows an app per endpoint.
///
/// Calls that Apple limits are leased from the database for a slice of time, leave at even distances in it, and are
/// handed out here: fresh purchases first, then repairs, then sweeps. A call that could not be made soon is refused at
/// once, so a backlog waits in its rows and never before a purchase that has just come. Apple's 429 stops an endpoint
/// for every process. All of this is checked at the moment a call is let out, not when its caller began to wait.
package final class Governor: Sendable {
    /// One call that is out. The caller gives it back by ``leave(_:_:)``, whatever came of the call.
    package struct Pass: Sendable {
        /// The host's number among those of ``CallScheduler``.
        let host: Int
        let era: Int
        /// The latest moment at which the call may leave. A process that stood still until then must have another call
        /// leased. Nil where Apple names no limit.
        let leavesBy: ContinuousClock.Instant?
    }

    package enum Admission: Sendable {
        case granted(Pass)
        /// Not now. `until`: the time that Apple has named.
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

    /// The longest time that a caller waits for a call. For longer waits the receipt goes back to its row.
    package static let patience: Duration = .seconds(2)
    /// The longest wait for room at a host while it is not known how many calls the host takes, because that number
    /// grows.
    static let rampPatience: Duration = .seconds(10)
    /// How long calls stop where Apple says 429 and names no time.
    static let stopMin: Duration = .seconds(10)
    /// How late after its deadline a wait may end.
    private static let watchInterval: Duration = .milliseconds(50)

    private let lease: Lease
    private let stop: Stop
    let logger: Logger
    /// Behind a lock rather than an actor: letting a call out takes a few instructions, not a visit to another thread.
    private let scheduler: Mutex<CallScheduler>

    /// - Parameters:
    ///   - callsMax: calls at the same time, to each host.
    ///   - waitersMax: how many may wait for a call at the same time; repairs and sweeps get only a quarter of it.
    ///   - scale: multiplies the breakers' pauses.
    package convenience init(ledger: Ledger, callsMax: Int, waitersMax: Int, scale: Double, logger: Logger) {
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
        scheduler = Mutex(CallScheduler(callsMax: callsMax, waitersMax: waitersMax, scale: scale))
        self.lease = lease
        self.stop = stop
        self.logger = logger
    }

    /// Asks for one call. Returns when the call may be made, or soon when it may not be made soon.
    ///
    /// - Parameters:
    ///   - allowance: nil where Apple names no limit. A change counts from the next slice on.
    ///   - deadline: how long the caller waits at most; nil: ``patience`` from now.
    package func admit(
        _ host: AppleHost, within allowance: Allowance?, lane: CallLane, by deadline: ContinuousClock.Instant? = nil
    ) async -> Admission {
        let place = CallScheduler.Place(host: host, budget: allowance?.budget, lane: lane)
        return await withCheckedContinuation { continuation in
            let jobs = scheduler.withLock {
                let now = ContinuousClock.now
                return $0.admit(
                    place, allowance?.callsPerSecond, by: deadline ?? now + Self.patience, continuation, now)
            }
            begin(jobs)
        }
    }

    /// Ends a call, or gives back a call that was not made after all.
    package func leave(_ pass: Pass, _ outcome: AppleHostState.Outcome) {
        let (change, jobs) = scheduler.withLock { $0.leave(pass, outcome, .now) }
        if let (host, breaker) = change {
            logger.notice(
                "breaker changed",
                metadata: [
                    "apple.service": "\(host.service.rawValue)", "apple.environment": "\(host.environment)",
                    "apple.breaker": "\(breaker)",
                ])
        }
        begin(jobs)
    }

    /// Stops the calls of a budget until then, because Apple said 429.
    package func stop(_ budget: CallBudget, until: Date?) async {
        let wait = until.map { Duration.seconds(max(0, $0.timeIntervalSinceNow)) } ?? Self.stopMin
        scheduler.withLock { $0.halt(budget, for: wait, .now) }
        Counter(label: "makegood_apple_stops_total", dimensions: budget.labels).increment()
        logger.warning(
            "Apple limits the calls of an app: stopped for every worker",
            metadata: [
                "app.id": "\(budget.appID)", "apple.environment": "\(budget.environment)",
                "apple.endpoint": "\(budget.endpoint)", "apple.wait": "\(wait)",
            ])
        // Without the database the other processes learn it from Apple.
        try? await stop(budget, wait)
    }

    /// The hosts that were asked so far, and how many calls each got since the last report.
    package func report() -> [AppleHostReport] { scheduler.withLock { $0.report(.now) } }

    /// Whether a call to the host would be refused now because the host is down.
    package func isDown(_ host: AppleHost) -> Bool { scheduler.withLock { $0.isDown(host, .now) } }

    private func begin(_ jobs: [CallScheduler.Job]) {
        for job in jobs {
            Task {
                switch job {
                case .serve(let place, let wait): await serve(place, wait)
                case .watch:
                    repeat {
                        try? await Task.sleep(for: Self.watchInterval)
                    } while scheduler.withLock { $0.expire(.now) }
                }
            }
        }
    }

    private func serve(_ place: CallScheduler.Place, _ first: CallScheduler.Wait) async {
        var next: CallScheduler.Wait? = first
        while let wait = next {
            switch wait {
            case .until(let at): try? await Task.sleep(until: at, tolerance: .zero, clock: .continuous)
            case .lease:
                let asked = ContinuousClock.now
                guard let question = scheduler.withLock({ $0.question(at: place, asked) }) else { break }
                let answer = try? await lease(question)
                next = scheduler.withLock { $0.receive(answer, to: question, at: place, asked: asked, .now) }
                continue
            }
            next = scheduler.withLock { $0.proceed(place, .now) }
        }
    }
}

extension CallBudget {
    fileprivate var labels: [(String, String)] {
        [("app", appID), ("environment", environment), ("endpoint", endpoint)]
    }
}
