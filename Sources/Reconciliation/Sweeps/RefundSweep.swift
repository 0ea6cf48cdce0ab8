import AppStore
import AppleGateway
import Foundation
import Ledger
import Logging
import Purchases
import Service

/// The sweep of refunds: asks Apple for those of customers who bought lately, on a rota (P32, S1-6). Refunds are few,
/// and Apple takes an entry out of the list when a refund is reversed, so each question begins at the first page.
struct RefundSweep: Sendable {
    private let sweeps: Sweeps

    init(_ sweeps: Sweeps) { self.sweeps = sweeps }

    /// Runs until the task is cancelled.
    func run() async {
        var rests = SweepRests<String>()
        await sweeps.loop { await round(&rests) }
    }

    /// Claims customers whose refunds are due, and reads them.
    ///
    /// - Parameter rests: the apps whose budget has no call; moved.
    /// - Returns: whether more may be due now.
    @discardableResult
    func round(_ rests: inout SweepRests<String>) async -> Bool {
        await sweeps.sweep(Statements.claimRefunds, wholeEvery: .zero, &rests) { await read($0) }
    }

    private func read(_ claimed: Statements.ClaimedCustomer) async -> Duration? {
        guard let question = CustomerQuestion(sweeps, claimed, .refund) else { return nil }
        return await question.read(pagesMax: CustomerSweep.pagesMax) { client, id, revision, environments in
            client.refundHistory(ofCustomerWith: id, after: revision, in: environments)
        } end: { pages async throws(AppleRefusal) in
            // If a part of the list was not seen, nothing follows from a missing entry.
            if claimed.revision == nil, pages.allSatisfy({ $0.passedOver == 0 }) {
                let listed = pages.flatMap(\.purchases).map(\.transaction.id)
                try await question.stored { () async throws(LedgerError) in try await wantUndone(claimed, listed) }
            }
            return .end(dueIn: interval(of: question.app).spread())
        }
    }

    /// Makes the customer's history due if a refund that is known here is in Apple's list no more: the history says
    /// whether Apple reversed the refund.
    private func wantUndone(_ claimed: Statements.ClaimedCustomer, _ listed: [String]) async throws(LedgerError) {
        let undone = try await sweeps.ledger.run(Statements.refundsUndone, (walk: claimed.walk, listed: listed))
        guard !undone.isEmpty else { return }
        _ = try await sweeps.ledger.run(
            Statements.wantCustomer,
            .init(
                undone.map { (appID: claimed.walk.appID, name: .purchase($0)) }, reason: .refundUndone,
                apart: CustomerQuestion.day * sweeps.ledger.schedule.scale))
    }

    private func interval(of app: AppServices) -> Duration {
        (app.policy.sweeps.refundsEvery ?? CustomerQuestion.day) * sweeps.ledger.schedule.scale
    }
}
