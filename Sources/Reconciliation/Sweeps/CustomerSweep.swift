import AppStore
import AppleGateway
import Foundation
import Ledger
import Logging
import Purchases
import Service

/// The sweep of customers: asks Apple for the purchases of each customer on a slow rota, and at once where there is a
/// reason (B1, S1-6). Apple sorts a history by the last change, so a sweep reads only the changes since the last one.
struct CustomerSweep: Sendable {
    /// After this time a sweep begins at the first page: half a year.
    static let wholeEvery: Duration = .seconds(182 * 86_400)
    /// A customer has fewer pages than this: a longer list leads in a circle.
    static let pagesMax = 5000

    private let sweeps: Sweeps

    init(_ sweeps: Sweeps) { self.sweeps = sweeps }

    /// Runs until the task is cancelled.
    func run() async { await sweeps.loop { await round() } }

    /// Claims customers who are due, and reads their pages.
    ///
    /// - Returns: how long to wait until the next look; zero: more may be due.
    @discardableResult
    func round() async -> Duration {
        let schedule = sweeps.ledger.schedule
        let places = CustomerQuestion.places(sweeps)
        guard !places.isEmpty else { return Sweeps.interval * schedule.scale }
        do {
            let claimed = try await sweeps.ledger.run(
                Statements.claimCustomers,
                .init(
                    places: places, lease: sweeps.lease,
                    wholeEvery: Self.wholeEvery * schedule.scale))
            return await sweeps.sweep(claimed) { await read($0) }
        } catch {
            sweeps.logger.debug("database is away", metadata: LogKeys.error(error))
            return Sweeps.interval * schedule.scale
        }
    }

    /// Reads pages of one customer. Returns how long the sweep should rest; nil: not at all.
    private func read(_ claimed: Statements.ClaimedCustomer) async -> Duration? {
        guard let question = CustomerQuestion(sweeps, claimed, .customer) else { return nil }
        let schedule = sweeps.ledger.schedule
        let lease = sweeps.lease
        var revision = claimed.revision
        var seen: Set<String> = []
        for number in 1...CustomerQuestion.pagesMax {
            let askedAt = ContinuousClock.now
            let failures = number == 1 ? claimed.failures : 0
            do throws(AppleRefusal) {
                let page = try await question.page { [revision] client, id, environments in
                    client.transactionHistory(ofCustomerWith: id, after: revision, in: environments)
                }
                let found = await question.verified(page.signedTransactions)
                if found.isUnverified, failures < CustomerQuestion.unverifiedMax {
                    await question.fail(.appleAnswer, failures: failures)
                    return nil
                }
                let isCircle = page.next.map { !seen.insert($0).inserted } ?? false
                if isCircle || claimed.pages + number > Self.pagesMax {
                    await question.fail(.appleAnswer, failures: CustomerQuestion.failuresMax, forgetsPlace: true)
                    return nil
                }
                let next: Statements.CustomerPlace.Next =
                    if page.next != nil {
                        number < CustomerQuestion.pagesMax
                            ? .page(lease: lease) : .rest(CustomerQuestion.turn * schedule.scale)
                    } else if question.isNamedOtherwise(found) {
                        .gone
                    } else {
                        .end(dueIn: interval(of: question.app).spread())
                    }
                try await question.hear(found, revision: page.revision, next: next)
                // A page that took longer than the lease: another reader goes on.
                guard page.next != nil, ContinuousClock.now - askedAt < lease else { return nil }
                revision = page.next
            } catch {
                return await question.putOff(error, hasPlace: revision != nil, failures: failures)
            }
        }
        return nil
    }

    private func interval(of app: AppServices) -> Duration {
        (app.policy.sweeps.customersEvery ?? SweepPolicy().customersEvery ?? CustomerQuestion.day * 30)
            * sweeps.ledger.schedule.scale
    }
}

extension Sweeps {
    /// Repeats a round until the task is cancelled.
    ///
    /// - Parameter round: asks what is due, and returns how long to wait until the next look. The wait is a minute at
    ///   most, so that no loop sleeps for long.
    func loop(_ round: () async -> Duration) async {
        while !Task.isCancelled {
            let wait = await round()
            guard wait > .zero else { continue }
            let scale = ledger.schedule.scale
            try? await Task.sleep(for: max(.milliseconds(50), min(wait, Self.interval * 12 * scale)))
        }
    }

    /// Reads several claimed customers side by side.
    ///
    /// - Returns: how long to wait until the next look: as long as Apple takes no calls.
    func sweep(
        _ claimed: [Statements.ClaimedCustomer],
        _ read: @escaping @Sendable (Statements.ClaimedCustomer) async -> Duration?
    ) async -> Duration {
        let rest = await withTaskGroup(of: Duration?.self) { group in
            for customer in claimed { group.addTask { await read(customer) } }
            var rest: Duration?
            for await time in group { rest = [rest, time].compactMap(\.self).max() }
            return rest
        }
        return rest ?? (claimed.count == Statements.customersClaimedMax ? .zero : Self.interval * ledger.schedule.scale)
    }
}
