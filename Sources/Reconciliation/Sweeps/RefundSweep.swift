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
        let places = CustomerQuestion.places(sweeps, except: rests)
        guard !places.isEmpty else { return false }
        do {
            let claimed = try await sweeps.ledger.run(
                Statements.claimRefunds,
                .init(places: places, lease: sweeps.lease, wholeEvery: .zero))
            return await sweeps.sweep(claimed, &rests) { await read($0) }
        } catch {
            sweeps.logger.debug("database is away", metadata: LogKeys.error(error))
            return false
        }
    }

    private func read(_ claimed: Statements.ClaimedCustomer) async -> Duration? {
        guard let question = CustomerQuestion(sweeps, claimed, .refund) else { return nil }
        let schedule = sweeps.ledger.schedule
        let lease = sweeps.lease
        var revision = claimed.revision
        var seen: Set<String> = []
        // Nil: a part of the list was not seen, so nothing follows from a missing entry.
        var listed: [String]? = claimed.revision == nil ? [] : nil
        for number in 1...CustomerQuestion.pagesMax {
            let askedAt = ContinuousClock.now
            let failures = number == 1 ? claimed.failures : 0
            do throws(AppleRefusal) {
                let page = try await question.page { [revision] client, id, environments in
                    client.refundHistory(ofCustomerWith: id, after: revision, in: environments)
                }
                let found = await question.verified(page.signedTransactions)
                if found.isUnverified, failures < CustomerQuestion.unverifiedMax {
                    await question.fail(.appleAnswer, failures: failures)
                    return nil
                }
                let isCircle = page.next.map { !seen.insert($0).inserted } ?? false
                if isCircle || claimed.pages + number > CustomerSweep.pagesMax {
                    await question.giveUp()
                    return nil
                }
                if found.passedOver > 0 { listed = nil }
                listed?.append(contentsOf: found.purchases.map(\.transaction.id))
                let next: Statements.CustomerPlace.Next =
                    if page.next == nil {
                        .end(dueIn: interval(of: question.app).spread())
                    } else if number < CustomerQuestion.pagesMax {
                        .page(lease: lease)
                    } else {
                        .rest(CustomerQuestion.turn * schedule.scale)
                    }
                if page.next == nil, let whole = listed {
                    try await question.stored { () async throws(LedgerError) in
                        try await wantUndone(claimed, whole)
                    }
                }
                try await question.hear(found, revision: page.revision, next: next)
                guard page.next != nil, ContinuousClock.now - askedAt < lease else { return nil }
                revision = page.next
            } catch {
                return await question.putOff(error, hasPlace: revision != nil, failures: failures)
            }
        }
        return nil
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
