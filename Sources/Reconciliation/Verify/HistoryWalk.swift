import AppStore
import AppleGateway
import Foundation
import Ledger
import Postgres
import Purchases
import Settings

/// Reads a customer's purchases from Apple's history, for receipts that list more unknown purchases than are worth a
/// call each. One call reads 20 purchases, in the repair lane. All workers together make at most one walk per customer
/// and hour.
///
/// The worker stores every page's facts before it asks for the next page, so one receipt's walk serves every receipt.
/// If a walk stops early (limits, an Apple that is away, a worker that dies), the next worker that needs it continues
/// it.
struct HistoryWalk: Sendable {
    /// The time from the beginning of one walk of a customer to the next: as long as facts stay fresh.
    static let interval: Duration = .seconds(3600)
    /// After this many pages, 400 purchases, the receipt waits for `pause`, and other receipts have their turn.
    static let pagesMax = 20
    static let pause: Duration = .seconds(5)
    /// After this time no further page is asked for, so that the receipt is done before a scheduler rescues it.
    static let timeMax: Duration = .seconds(10)

    let appleGateway: AppleGateway
    let ledger: Ledger
    let schedule: RetrySchedule
    let app: AppServices
    let environment: StoreEnvironment
    /// Apple's appTransactionId, or the original id of the receipt's first purchase where Apple gives no
    /// appTransactionId. A customer without an appTransactionId has one walk for each first purchase, and a receipt has
    /// only one first purchase.
    let customer: String
    /// Any id of the customer's.
    let askedID: String

    /// Returns the transactions that were read now, and what the receipt's other purchases wait for.
    func read(for receipt: StoredReceipt) async -> (transactions: [Transaction], rest: Examination.Rest) {
        var found: [Transaction] = []
        do throws(AppleRefusal) {
            let (begunAt, hasEnded) = try await read(into: &found, receipt)
            // A walk that began before the receipt came may lack the receipt's purchases. A purchase that a later walk
            // lacks is not in the history, and is soon asked for by its id.
            let isLate = hasEnded && begunAt < receipt.receivedAt
            let until = isLate ? begunAt.addingTimeInterval(interval.inSeconds) : afterPause(receipt)
            return (found, .postpone(.historyPending, until: until))
        } catch {
            switch error.fate {
            case .retry(let reason): return (found, .retry(reason, call: error.calls.last.map(Verdict.Call.init)))
            case .postpone(let reason, let until): return (found, .postpone(reason, until: until))
            case .reject(let reason), .hold(let reason), .halt(let reason):
                return (found, .postpone(reason, until: nil))
            }
        }
    }

    /// The purchases of one chain of the customer, with Apple's newest facts; empty where the history has none.
    ///
    /// - Throws: a postponement until all pages are read, or until a walk may begin that is later than the receipt.
    func chain(_ originalID: String, for receipt: StoredReceipt) async throws(AppleRefusal) -> [Transaction] {
        var read: [Transaction] = []
        let (begunAt, hasEnded) = try await self.read(into: &read, receipt)
        guard hasEnded else { throw AppleRefusal(.postpone(.historyPending, until: afterPause(receipt))) }
        let chain = try await run(Statements.chainFacts, (walk: walk, originalID: originalID))
        // The customer may have bought since.
        if chain.isEmpty, begunAt < receipt.receivedAt {
            throw AppleRefusal(
                .postpone(.historyPending, until: begunAt.addingTimeInterval(interval.inSeconds)))
        }
        return chain
    }

    private var walk: Statements.Walk {
        Statements.Walk(appID: app.configuration.id, environment: environment.rawValue, customer: customer)
    }
    private var interval: Duration { Self.interval * schedule.scale }
    /// Longer than any page takes.
    private var lease: Duration { (schedule.callLimit + Governor.patience) * 1.5 }

    private func afterPause(_ receipt: StoredReceipt) -> Date {
        receipt.readAt.addingTimeInterval((Self.pause * schedule.scale).inSeconds)
    }

    private func read(
        into found: inout [Transaction], _ receipt: StoredReceipt
    ) async throws(AppleRefusal) -> (begunAt: Date, hasEnded: Bool) {
        guard let client = appleGateway.serverAPI(of: app, lane: .repair) else {
            throw AppleRefusal(.hold(.credentialsMissing))
        }
        let claim = Statements.WalkClaim(walk: walk, askedID: askedID, lease: lease, interval: interval)
        switch try await run(Statements.claimWalk, claim).first {
        case nil: throw AppleRefusal(.postpone(.historyPending, until: afterPause(receipt)))
        case .busy(let until): throw AppleRefusal(.postpone(.historyPending, until: until))
        case .ended(let begunAt): return (begunAt, true)
        case .claimed(let askedID, var revision, let begunAt, let reader):
            let start = ContinuousClock.now
            for number in 1...Self.pagesMax {
                let page = try await self.page(client, askedID, after: revision)
                let transactions = try await verified(page)
                revision = page.next
                let goesOn = revision != nil && number < Self.pagesMax && ContinuousClock.now - start < Self.timeMax
                let stored = try await run(
                    Statements.storePage,
                    .init(
                        walk: walk, reader: reader, transactions: transactions, revision: revision,
                        lease: goesOn ? lease : .zero))
                found += transactions
                // The page took longer than our lease, and another worker reads on.
                guard !stored.isEmpty else {
                    throw AppleRefusal(.postpone(.historyPending, until: afterPause(receipt)))
                }
                guard goesOn else { break }
            }
            return (begunAt, revision == nil)
        }
    }

    private func page(
        _ client: ServerAPIClient, _ askedID: String, after revision: String?
    ) async throws(AppleRefusal) -> HistoryPage {
        try await appleGateway.ask(.serverApi, for: app) { () throws(AppStoreFailure) in
            let pages = client.transactionHistory(ofCustomerWith: askedID, after: revision, in: [environment])
            var iterator = pages.makeAsyncIterator()
            guard let page = try await iterator.next() else { throw AppStoreFailure(.garbage) }
            return (page.value, page.calls)
        }.answer
    }

    /// The transactions of a page that can be verified. If none can, the call throws a retry: data from Apple that we
    /// cannot verify say nothing.
    private func verified(_ page: HistoryPage) async throws(AppleRefusal) -> [Transaction] {
        var transactions: [Transaction] = []
        for jws in page.signedTransactions {
            guard let signed = try? await app.verifier.transaction(jws),
                let transaction = Transaction(signed, from: environment),
                transaction.environment == environment.rawValue
            else { continue }
            transactions.append(transaction)
        }
        guard !transactions.isEmpty || page.signedTransactions.isEmpty else { throw AppleRefusal(.retry(.appleAnswer)) }
        return transactions
    }

    private func run<Parameters: Sendable, Row: Sendable>(
        _ statement: Statement<Parameters, Row>, _ parameters: Parameters
    ) async throws(AppleRefusal) -> [Row] {
        do {
            return try await ledger.run(statement, parameters)
        } catch {
            throw AppleRefusal(.postpone(.historyPending, until: nil))
        }
    }
}
