import AppleGateway
import Ledger
import Logging
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

    private let sweeps: Sweeps

    init(_ sweeps: Sweeps) { self.sweeps = sweeps }

    /// Runs until the task is cancelled.
    func run() async {
        var differences = Statements.DifferencePlace.first
        while !Task.isCancelled {
            let start = ContinuousClock.now
            let isMore = await round(&differences)
            let idle = max(.milliseconds(50), Sweeps.interval * 2 * sweeps.ledger.schedule.scale)
            let taken = ContinuousClock.now - start
            try? await Task.sleep(for: isMore ? min(taken * Self.pause, idle) : idle)
        }
    }

    /// Takes one step of everything.
    ///
    /// - Parameter differences: the place behind which open differences are looked at; moved.
    /// - Returns: whether more is to be done now.
    func round(_ differences: inout Statements.DifferencePlace) async -> Bool {
        let ledger = sweeps.ledger
        let scale = ledger.schedule.scale
        do {
            let spread = (SweepPolicy().refundsEvery ?? CustomerQuestion.day) * scale
            let entered = try await ledger.run(Statements.enterCustomers, spread).first
            let imported = try await ledger.run(Statements.enterImported, ()).first
            let scheduled = try await ledger.run(
                Statements.scheduleCustomers, CustomerQuestion.places(sweeps)
            ).first
            let unpaid = try await ledger.run(Statements.wantUnpaid, Self.unpaidApart * scale).first
            let reported = try await ledger.run(Statements.wantReported, Self.reportedApart * scale).first
            let healed = try await ledger.run(Statements.endHealedDifferences, differences).first
            differences = healed?.last ?? .first
            return [entered, imported, scheduled].contains { ($0 ?? 0) >= Statements.customerStepMax } || unpaid == true
                || reported == true
        } catch {
            sweeps.logger.debug("database is away", metadata: LogKeys.error(error))
            return false
        }
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
