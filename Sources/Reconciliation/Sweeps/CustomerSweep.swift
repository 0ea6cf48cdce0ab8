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
    /// A customer has fewer pages than this, of purchases as of refunds: a longer list leads in a circle.
    static let pagesMax = 5000

    private let sweeps: Sweeps

    init(_ sweeps: Sweeps) { self.sweeps = sweeps }

    /// Runs until the task is cancelled.
    func run() async {
        var rests = SweepRests<String>()
        await sweeps.loop { await round(&rests) }
    }

    /// Claims customers who are due, and reads their pages.
    ///
    /// - Parameter rests: the apps whose budget has no call; moved.
    /// - Returns: whether more may be due now.
    @discardableResult
    func round(_ rests: inout SweepRests<String>) async -> Bool {
        let places = CustomerQuestion.places(sweeps, except: rests)
        guard !places.isEmpty else { return false }
        do {
            let claimed = try await sweeps.ledger.run(
                Statements.claimCustomers,
                .init(
                    places: places, lease: sweeps.lease,
                    wholeEvery: Self.wholeEvery * sweeps.ledger.schedule.scale))
            return await sweeps.sweep(claimed, &rests) { await read($0) }
        } catch {
            sweeps.logger.debug("database is away", metadata: LogKeys.error(error))
            return false
        }
    }

    /// Reads pages of one customer. Returns how long the customer's app should rest; nil: not at all.
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
                    await question.giveUp()
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
    /// Reads several claimed customers side by side.
    ///
    /// - Parameters:
    ///   - rests: gets the apps for which Apple takes no calls now. Other apps are asked meanwhile.
    ///   - read: reads one customer, and returns how long the customer's app should rest.
    /// - Returns: whether more customers may be due now.
    func sweep(
        _ claimed: [Statements.ClaimedCustomer], _ rests: inout SweepRests<String>,
        _ read: @escaping @Sendable (Statements.ClaimedCustomer) async -> Duration?
    ) async -> Bool {
        let named = await withTaskGroup(of: (appID: String, rest: Duration?).self) { group in
            for customer in claimed { group.addTask { (customer.walk.appID, await read(customer)) } }
            return await group.reduce(into: []) { $0.append($1) }
        }
        for case (let appID, let rest?) in named { rests.rest(appID, for: rest) }
        return claimed.count == Statements.customersClaimedMax
    }
}
