package import AppStore
package import Foundation
package import Ledger
package import Logging
import Metrics
import Purchases
import Synchronization

/// Lets the calls to Apple out, one by one (B9, P26): no host is asked that is down, none by more at once than it bears,
/// and all processes together keep to what Apple allows an app per endpoint.
///
/// Calls that Apple limits are leased from the database for a slice of time, leave at even distances in it, and are
/// handed out here: fresh purchases first, then repairs, then sweeps. A call that could not be made soon is refused at
/// once, so a backlog waits in its rows and never before a purchase that has just come. Apple's 429 stops an endpoint
/// for every process. All is looked at in the moment a call is let out, not when it began to wait.
package final class Governor: Sendable {
    /// One call that is out. Given back by ``leave(_:_:)``, whatever came of it.
    package struct Pass: Sendable {
        /// The host's number among those of ``CallScheduler``.
        let host: Int
        let era: Int
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
    /// How late a wait may end.
    private static let watchInterval: Duration = .milliseconds(50)

    private let lease: Lease
    private let stop: Stop
    let logger: Logger
    /// Behind a lock rather than an actor: to let a call out is a few instructions, not a visit to another thread.
    private let gates: Mutex<CallScheduler>

    /// - Parameters:
    ///   - callsMax: at the same time, to each host.
    ///   - waitersMax: how many may wait for a call at the same time, repairs and sweeps only a quarter of it.
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
        gates = Mutex(CallScheduler(callsMax: callsMax, waitersMax: waitersMax, scale: scale))
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
        let place = CallScheduler.Place(host: host, budget: allowance?.budget, lane: lane)
        return await withCheckedContinuation { continuation in
            let jobs = gates.withLock {
                let now = ContinuousClock.now
                return $0.admit(
                    place, allowance?.callsPerSecond, by: deadline ?? now + Self.patience, continuation, now)
            }
            begin(jobs)
        }
    }

    /// A call has ended, or was not made after all.
    package func leave(_ pass: Pass, _ outcome: AppleHostState.Outcome) {
        let (change, jobs) = gates.withLock { $0.leave(pass, outcome, .now) }
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

    /// Apple said 429: nobody calls there until then.
    package func stop(_ budget: CallBudget, until: Date?) async {
        let wait = until.map { Duration.seconds(max(0, $0.timeIntervalSinceNow)) } ?? Self.stopMin
        gates.withLock { $0.halt(budget, for: wait, .now) }
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
    package func report() -> [AppleHostReport] { gates.withLock { $0.report(.now) } }

    /// Whether a call there would be refused now.
    package func isDown(_ host: AppleHost) -> Bool { gates.withLock { $0.isDown(host, .now) } }

    private func begin(_ jobs: [CallScheduler.Job]) {
        for job in jobs {
            Task {
                switch job {
                case .serve(let place, let wait): await serve(place, wait)
                case .watch:
                    repeat { try? await Task.sleep(for: Self.watchInterval) } while gates.withLock { $0.expire(.now) }
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
                guard let question = gates.withLock({ $0.question(at: place, asked) }) else { break }
                let answer = try? await lease(question)
                next = gates.withLock { $0.receive(answer, to: question, at: place, asked: asked, .now) }
                continue
            }
            next = gates.withLock { $0.proceed(place, .now) }
        }
    }
}

extension CallBudget {
    fileprivate var labels: [(String, String)] {
        [("app", appID), ("environment", environment), ("endpoint", endpoint)]
    }
}
