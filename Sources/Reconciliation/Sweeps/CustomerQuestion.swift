import AppStore
import AppleGateway
import Foundation
import Ledger
import Logging
import Purchases
import Service
import WorkQueue

/// The questions to Apple about one claimed customer, with the writes that follow from the answers. The sweeps of
/// purchases and of refunds share this type.
struct CustomerQuestion: Sendable {
    /// After this many pages, 400 purchases, the customer rests for ``turn``, and others have their turn.
    static let pagesMax = 20
    static let turn: Duration = .seconds(5)
    /// After so many failures in a row a row waits a day.
    static let failuresMax = 8
    /// After so many failures in a row a page of which nothing verifies is passed over.
    static let unverifiedMax = 3
    static let day: Duration = .seconds(86_400)

    let sweeps: Sweeps
    let app: AppServices
    let claimed: Statements.ClaimedCustomer
    let net: Statements.CustomerPlace.Net

    /// Nil where the app is configured no longer.
    init?(_ sweeps: Sweeps, _ claimed: Statements.ClaimedCustomer, _ net: Statements.CustomerPlace.Net) {
        guard let app = sweeps.apps[claimed.walk.appID] else { return nil }
        self.sweeps = sweeps
        self.app = app
        self.claimed = claimed
        self.net = net
    }

    /// The entries of a page.
    struct Found: Sendable {
        /// Each transaction once, in Apple's order.
        var purchases: [(transaction: Transaction, jws: String)] = []
        /// Entries that do not verify, or are of another app or environment.
        var passedOver = 0

        var isUnverified: Bool { purchases.isEmpty && passedOver > 0 }
    }

    private var scale: Double { sweeps.ledger.schedule.scale }
    private var environment: StoreEnvironment { StoreEnvironment(rawValue: claimed.walk.environment) }

    /// The places of which Apple can be asked now: apps with credentials that nobody paused, that do not rest, whose key
    /// Apple takes and whose host is up.
    static func places(_ sweeps: Sweeps, except rests: SweepRests<String> = .init()) -> [Statements.SweptPlace] {
        let scale = sweeps.ledger.schedule.scale
        let askable = sweeps.askable(except: rests) {
            $0.serverAPI != nil && sweeps.appleGateway.absence(of: .serverApi, for: $0) == nil
        }
        return askable.flatMap { id, app -> [Statements.SweptPlace] in
            let policy = app.policy.sweeps
            return app.lookUpOrder.map {
                Statements.SweptPlace(
                    appID: id, environment: $0.rawValue, customersEvery: policy.customersEvery.map { $0 * scale },
                    refundsEvery: policy.refundsEvery.map { $0 * scale })
            }
        }
    }

    // MARK: Asking

    /// Reads the customer's pages until the list ends, the customer's turn is over, or a page fails. Returns how long
    /// the customer's app should rest; nil: not at all.
    ///
    /// - Parameters:
    ///   - pagesMax: how many pages a list has at most. A longer one leads in a circle.
    ///   - list: the list at Apple behind a page; nil: from the first page on.
    ///   - end: what follows from the pages that were read here, once the last one is read and before it is stored.
    func read<Content: CustomerPage>(
        pagesMax: Int,
        _ list: @Sendable (ServerAPIClient, String, String?, [StoreEnvironment]) -> Pages<Content>,
        end: ([Found]) async throws(AppleRefusal) -> Statements.CustomerPlace.Next
    ) async -> Duration? {
        let lease = sweeps.lease
        var revision = claimed.revision
        var seen: Set<String> = []
        var read: [Found] = []
        for number in 1...Self.pagesMax {
            let askedAt = ContinuousClock.now
            let failures = number == 1 ? claimed.failures : 0
            do throws(AppleRefusal) {
                let page = try await page { [revision] client, id, environments in
                    list(client, id, revision, environments)
                }
                let found = await verified(page.signedTransactions)
                if found.isUnverified, failures < Self.unverifiedMax {
                    await fail(.appleAnswer, failures: failures)
                    return nil
                }
                let isCircle = page.next.map { !seen.insert($0).inserted } ?? false
                if isCircle || claimed.pages + number > pagesMax {
                    await giveUp()
                    return nil
                }
                read.append(found)
                let next: Statements.CustomerPlace.Next =
                    if page.next == nil {
                        try await end(read)
                    } else {
                        number < Self.pagesMax ? .page(lease: lease) : .rest(Self.turn * scale)
                    }
                try await hear(found, revision: page.revision, next: next)
                // A page that took longer than the lease: another reader goes on.
                guard page.next != nil, ContinuousClock.now - askedAt < lease else { return nil }
                revision = page.next
            } catch {
                return await putOff(error, hasPlace: revision != nil, failures: failures)
            }
        }
        return nil
    }

    /// One page. Where Apple does not know the id, another build of the app may have sold the purchase.
    private func page<Content: Page>(
        _ list: @Sendable (ServerAPIClient, String, [StoreEnvironment]) -> Pages<Content>
    ) async throws(AppleRefusal) -> Content {
        var builds = ([app] + app.otherBuilds)[...]
        while let build = builds.popFirst() {
            do throws(AppleRefusal) {
                return try await page(of: build, list)
            } catch {
                guard error.fate == .retry(.notFoundYet), !builds.isEmpty else { throw error }
            }
        }
        throw AppleRefusal(.hold(.credentialsMissing))
    }

    private func page<Content: Page>(
        of build: AppServices, _ list: @Sendable (ServerAPIClient, String, [StoreEnvironment]) -> Pages<Content>
    ) async throws(AppleRefusal) -> Content {
        guard let api = sweeps.appleGateway.serverAPI(of: build, lane: .sweep) else {
            throw AppleRefusal(.hold(.credentialsMissing))
        }
        return try await sweeps.appleGateway.ask(.serverApi, for: build) {
            () async throws(AppStoreFailure) -> (answer: Content, calls: [ServiceCall]) in
            var iterator = list(api, claimed.askedID, [environment]).makeAsyncIterator()
            guard let page = try await iterator.next() else { throw AppStoreFailure(.garbage) }
            return (page.value, page.calls)
        }.answer
    }

    private func verified(_ signed: [String]) async -> Found {
        var found = Found()
        var places: [String: Int] = [:]
        for jws in signed {
            guard let payload = try? await app.verifier.transaction(jws),
                let transaction = Transaction(payload, from: environment),
                transaction.environment == environment.rawValue
            else {
                found.passedOver += 1
                continue
            }
            if let place = places[transaction.id] {
                let known = found.purchases[place].transaction.signedAt ?? .distantPast
                if transaction.signedAt ?? .distantPast >= known { found.purchases[place] = (transaction, jws) }
            } else {
                places[transaction.id] = found.purchases.count
                found.purchases.append((transaction, jws))
            }
        }
        return found
    }

    // MARK: Writing

    /// Stores a page with the place behind it.
    private func hear(
        _ found: Found, revision: String?, next: Statements.CustomerPlace.Next
    ) async throws(AppleRefusal) {
        try await stored { () async throws(LedgerError) in try await store(found, revision: revision, next: next) }
    }

    /// Runs a write to the ledger. A database that is away is no failure of Apple's: the row waits.
    func stored(_ body: () async throws(LedgerError) -> Void) async throws(AppleRefusal) {
        do throws(LedgerError) {
            try await body()
        } catch {
            if error.isRetryable { throw AppleRefusal(.postpone(.historyPending, until: nil)) }
            sweeps.logger.error("the database refuses an answer of Apple's", metadata: LogKeys.error(error))
            throw AppleRefusal(.retry(.appleAnswer))
        }
    }

    private func store(
        _ found: Found, revision: String?, next: Statements.CustomerPlace.Next
    ) async throws(LedgerError) {
        var hearing = Hearing(notification: nil, appID: claimed.walk.appID, net: net == .customer ? .customer : .refund)
        hearing.transactions = found.purchases.map(\.transaction)
        hearing.submissions = try await opened(found)
        hearing.customers = named(found)
        hearing.customerPlace = .init(
            net: net, claimed, revision: revision, passedOver: found.passedOver, next: next)
        let pointers = try await sweeps.ledger.hear(hearing)
        // The rows are due as well; these messages only save the wait for the scheduler.
        for pointer in pointers { sweeps.workQueue.publish(pointer, lane: .unposted) }
        if !found.purchases.isEmpty { sweeps.followUps.wake() }
    }

    /// A receipt for each purchase that may be given and that nobody was given, here or by the former system.
    private func opened(_ found: Found) async throws(LedgerError) -> [Submission] {
        let standing = found.purchases.filter {
            !$0.transaction.isTakenBack && !app.policy.isHistorical($0.transaction, at: claimed.readAt)
        }
        guard !standing.isEmpty else { return [] }
        // No receipt has this id.
        let question = Statements.ListedQuestion(
            receiptID: UUID(), appID: claimed.walk.appID, transactions: standing.map(\.transaction))
        let known = try await sweeps.ledger.run(Statements.knownPurchases, question)
        return zip(standing, known).filter { !$1.isGranted }.map { purchase, _ in
            Submission(unposted: purchase.transaction, jws: purchase.jws, of: claimed.walk.appID, source: .sweep)
        }
    }

    /// The customers that the page names, each with the time in which refunds are likely.
    private func named(_ found: Found) -> [Statements.NamedCustomer] {
        var named: [String: Statements.NamedCustomer] = [:]
        for (transaction, _) in found.purchases {
            let customer = transaction.customerID ?? claimed.walk.customer
            let days = Double(Statements.refundDays) * 86_400
            let until = max(transaction.purchasedAt.addingTimeInterval(days), transaction.expiresAt ?? .distantPast)
            var name =
                named[customer]
                ?? .init(
                    walk: .init(appID: claimed.walk.appID, environment: claimed.walk.environment, customer: customer),
                    askedID: transaction.id, activeUntil: until)
            name.activeUntil = max(name.activeUntil, until)
            named[customer] = name
        }
        return Array(named.values)
    }

    /// Whether Apple names the customer of this row by another id.
    func isNamedOtherwise(_ found: Found) -> Bool {
        let ids = Set(found.purchases.compactMap(\.transaction.customerID))
        return !ids.isEmpty && !ids.contains(claimed.walk.customer)
    }

    // MARK: Failing

    /// Ends a claim without a page. Returns how long the app should rest because Apple takes no calls for it now; nil:
    /// Apple does.
    ///
    /// - Parameters:
    ///   - hasPlace: whether Apple was asked for a page behind another one.
    ///   - failures: in a row, before this one.
    private func putOff(_ error: AppleRefusal, hasPlace: Bool, failures: Int) async -> Duration? {
        switch error.fate {
        case .retry(let reason), .reject(let reason):
            let isRefused = error.calls.last?.code == APIErrorCode.invalidRequestRevision.rawValue
            let isTriedOften = failures >= Self.failuresMax
            // An answer that can never be read, such as a page that leads back to itself.
            if hasPlace, isTriedOften, error.calls.last?.httpStatus == 200 {
                await giveUp()
            } else {
                await fail(reason, failures: failures, forgetsPlace: hasPlace && (isRefused || isTriedOften))
            }
            return nil
        case .postpone(_, let until):
            let named = until.map { Duration.seconds(max(1, $0.timeIntervalSinceNow)) }
            return await wait(for: named ?? Self.turn * scale)
        case .halt, .hold:
            return await wait(for: Self.turn * scale)
        }
    }

    /// Puts the customer off because an answer of Apple's was of no use.
    private func fail(_ reason: Reason, failures: Int, forgetsPlace: Bool = false) async {
        let schedule = sweeps.ledger.schedule
        let delay =
            failures < Self.failuresMax
            ? schedule.delay(afterAttempts: failures, random: Double.random(in: 0..<1)) : Self.day * scale
        await putOff(
            .init(net: net, claimed, dueIn: delay, problem: reason, forgetsPlace: forgetsPlace))
    }

    /// Puts the customer off because the pages of a list lead in a circle, are too many, or cannot be read on. The list
    /// begins anew after a day, and a difference names the customer until a list is read to its end.
    private func giveUp() async {
        let difference = Difference(
            .listEndless, claimed.walk.customer, appID: claimed.walk.appID, environment: claimed.walk.environment,
            net: net == .customer ? .customer : .refund)
        // Where the database does not answer, the lease ends, and the list is given up once more.
        guard (try? await sweeps.ledger.run(Statements.noteDifferences, [difference])) != nil else { return }
        await fail(.appleAnswer, failures: Self.failuresMax, forgetsPlace: true)
    }

    /// The row stays due; other rows of the app are no better off.
    private func wait(for time: Duration) async -> Duration {
        await putOff(.init(net: net, claimed, dueIn: time, problem: nil))
        return time
    }

    private func putOff(_ row: Statements.PutOffCustomer) async {
        // Where the database does not answer, the lease ends and the row is due again.
        _ = try? await sweeps.ledger.run(
            net == .customer ? Statements.putOffCustomer : Statements.putOffRefunds, row)
    }
}

/// A page of a list of one customer's transactions at Apple.
protocol CustomerPage: Page {
    /// Still to be verified.
    var signedTransactions: [String] { get }
    /// The cursor behind this page; nil: Apple named none.
    var revision: String? { get }
}

extension HistoryPage: CustomerPage {}
extension RefundPage: CustomerPage {}

extension Duration {
    /// A tenth more or less, so that rows that were due together are not due together again.
    func spread() -> Duration { self * Double.random(in: 0.9..<1.1) }
}
