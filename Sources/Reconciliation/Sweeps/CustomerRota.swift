import AppleGateway
import Ledger
import Logging
import Postgres
import Purchases
import Service

/// The loop that enters Apple's customers behind the verdicts, gives each a time on the rota, and makes those due whom
/// somebody wants. The loop also ends the differences that have healed. Any number of workers may run the loop: a step
/// that another worker takes is passed over.
struct CustomerRota: Sendable {
    /// The pause between two steps, as a multiple of the last step's time, because the purchases go first at the
    /// database.
    private static let pause = 4
    /// A user may leave an order unpaid on purpose, so the user's customer is asked at most once a day for it.
    private static let unpaidApart: Duration = .seconds(86_400)
    private static let reportedApart: Duration = .seconds(600)

    /// The shortest part of the time in which reasons are looked for.
    private static let spanMin: Duration = .seconds(1)

    /// What the loop keeps between its rounds.
    struct State: Sendable {
        /// Open differences are looked at behind this place.
        var differences = Statements.DifferencePlace.first
        /// The length of the time of which a step looks at the orders that nobody paid; and at the reports.
        var unpaidSpan = Statements.ReasonsLook.spanMax
        var reportedSpan = Statements.ReasonsLook.spanMax
    }

    private let sweeps: Sweeps

    init(_ sweeps: Sweeps) { self.sweeps = sweeps }

    /// Runs until the task is cancelled.
    func run() async {
        var state = State()
        while !Task.isCancelled {
            let start = ContinuousClock.now
            let isMore = await round(&state)
            let idle = max(.milliseconds(50), Sweeps.interval * 2 * sweeps.ledger.schedule.scale)
            let taken = ContinuousClock.now - start
            try? await Task.sleep(for: isMore ? min(taken * Self.pause, idle) : idle)
        }
    }

    /// Takes one step of everything. A step that fails stops no other step.
    ///
    /// - Returns: whether more is to be done now.
    func round(_ state: inout State) async -> Bool {
        let scale = sweeps.ledger.schedule.scale
        let spread = (SweepPolicy().refundsEvery ?? CustomerQuestion.day) * scale
        let steps = [
            await step(Statements.enterCustomers, spread), await step(Statements.enterImported, ()),
            await step(Statements.scheduleCustomers, CustomerQuestion.places(sweeps)),
        ]
        let unpaid = await want(Statements.wantUnpaid, apart: Self.unpaidApart * scale, &state.unpaidSpan)
        let reported = await want(Statements.wantReported, apart: Self.reportedApart * scale, &state.reportedSpan)
        if let healed = await step(Statements.endHealedDifferences, state.differences) {
            state.differences = healed.first?.last ?? .first
        }
        return steps.contains { ($0?.first ?? 0) >= Statements.customerStepMax } || unpaid || reported
    }

    /// The rows of a statement. Nil: it failed, and the next round takes the step again.
    private func step<Parameters: Sendable, Row: Sendable>(
        _ statement: Statement<Parameters, Row>, _ parameters: Parameters
    ) async -> [Row]? {
        do {
            return try await sweeps.ledger.run(statement, parameters)
        } catch {
            log(error, statement.name)
            return nil
        }
    }

    /// Looks for reasons in a part of the time.
    ///
    /// - Parameter span: the length of the part. Half of it after a look that took too long, because a part may have
    ///   any number of orders; twice of it after any other.
    /// - Returns: whether more time is left.
    private func want(
        _ statement: Statement<Statements.ReasonsLook, Bool>, apart: Duration, _ span: inout Duration
    ) async -> Bool {
        do throws(LedgerError) {
            let isMore = try await sweeps.ledger.run(statement, .init(apart: apart, span: span)).first
            span = min(span * 2, Statements.ReasonsLook.spanMax)
            return isMore == true
        } catch {
            if case .unavailable(.timedOut) = error { span = max(span / 2, Self.spanMin) }
            log(error, statement.name)
            return false
        }
    }

    private func log(_ error: LedgerError, _ step: String) {
        sweeps.logger.debug("a step of the rota of customers failed: \(step)", metadata: LogKeys.error(error))
    }
}

extension SweepPolicy {
    /// Whether a sweep of this name asks on a rota. Rows of a rota that is off may be due for ever.
    func hasRota(_ sweep: String) -> Bool {
        switch Net(rawValue: sweep) {
        case .customer: customersEvery != nil
        case .refund: refundsEvery != nil
        default: true
        }
    }
}
