import AppStore
import AppleGateway
import Foundation
import Ledger
import Logging
import Postgres
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
        await sweeps.sweep(
            Statements.claimCustomers, wholeEvery: Self.wholeEvery * sweeps.ledger.schedule.scale, &rests
        ) { await read($0) }
    }

    private func read(_ claimed: Statements.ClaimedCustomer) async -> Duration? {
        guard let question = CustomerQuestion(sweeps, claimed, .customer) else { return nil }
        return await question.read(pagesMax: Self.pagesMax) { client, id, revision, environments in
            client.transactionHistory(ofCustomerWith: id, after: revision, in: environments)
        } end: { pages async throws(AppleRefusal) in
            if let last = pages.last, question.isNamedOtherwise(last) { return .gone }
            return .end(dueIn: interval(of: question.app).spread())
        }
    }

    private func interval(of app: AppServices) -> Duration {
        (app.policy.sweeps.customersEvery ?? SweepPolicy().customersEvery ?? CustomerQuestion.day * 30)
            * sweeps.ledger.schedule.scale
    }
}

extension Sweeps {
    /// Claims customers, and reads them side by side.
    ///
    /// - Parameters:
    ///   - claim: the statement that claims them.
    ///   - wholeEvery: after this time a list is read from its first page.
    ///   - rests: gets the apps for which Apple takes no calls now. Other apps are asked meanwhile.
    ///   - read: reads one customer, and returns how long the customer's app should rest.
    /// - Returns: whether more customers may be due now.
    func sweep(
        _ claim: Statement<Statements.CustomerClaim, Statements.ClaimedCustomer>, wholeEvery: Duration,
        _ rests: inout SweepRests<String>, _ read: @escaping @Sendable (Statements.ClaimedCustomer) async -> Duration?
    ) async -> Bool {
        let places = CustomerQuestion.places(self, except: rests)
        guard !places.isEmpty else { return false }
        let claimed: [Statements.ClaimedCustomer]
        do {
            claimed = try await ledger.run(claim, .init(places: places, lease: lease, wholeEvery: wholeEvery))
        } catch {
            logger.debug("database is away", metadata: LogKeys.error(error))
            return false
        }
        let named = await withTaskGroup(of: (appID: String, rest: Duration?).self) { group in
            for customer in claimed { group.addTask { (customer.walk.appID, await read(customer)) } }
            return await group.reduce(into: []) { $0.append($1) }
        }
        for case (let appID, let rest?) in named { rests.rest(appID, for: rest) }
        return claimed.count == Statements.customersClaimedMax
    }
}
