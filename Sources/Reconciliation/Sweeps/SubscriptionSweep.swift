import AppStore
import AppleGateway
import Encoding
import Foundation
import Ledger
import Logging
import Metrics
import Postgres
import Purchases
import Service
import WorkQueue

/// The sweep of subscriptions: asks Apple about those whose period is over and whose next period or end nobody has told
/// (S3-54, P39).
///
/// An app with credentials for the App Store Server API asks for the statuses of the chain's customer; an app without
/// them asks verifyReceipt with the chain's newest stored receipt.
struct SubscriptionSweep: Sendable {
    /// How long a follow-up may take to tell the state that Apple named, and how often a difference is looked at again.
    static let comparedAfter: Duration = .seconds(600)
    static let comparedAgain: Duration = .seconds(3600)
    /// How long an app's chains rest if Apple's budget has no call for them and no time is named.
    private static let pause: Duration = .seconds(5)
    /// The longest such rest: a new look costs little.
    private static let pauseMax: Duration = .seconds(60)

    private let sweeps: Sweeps

    init(_ sweeps: Sweeps) { self.sweeps = sweeps }

    private var ledger: Ledger { sweeps.ledger }
    private var scale: Double { ledger.schedule.scale }
    /// At least twice the longest call with the longest wait for it; verifyReceipt may need three calls.
    private var lease: Duration {
        max(ledger.schedule.rescueDelay(.apple), (ledger.schedule.callLimit + Governor.patience) * 4)
    }

    /// Runs until the task is cancelled.
    func run() async {
        var rests = SweepRests<String>()
        await sweeps.loop { await round(&rests) }
    }

    /// Claims some due chains, asks about them, and compares states.
    ///
    /// - Parameter rests: the apps whose budget has no call, or whose key Apple refuses; moved.
    /// - Returns: whether more chains may be due now.
    @discardableResult
    func round(_ rests: inout SweepRests<String>) async -> Bool {
        do {
            _ = try await ledger.run(
                Statements.compareChains, .init(appIDs: sweeps.apps.ids, again: Self.comparedAgain * scale))
            let asking = sweeps.askable(except: rests) { $0.serverAPI != nil || $0.receipts != nil }.map(\.id)
            guard !asking.isEmpty else { return false }
            let claimed = try await ledger.run(
                Statements.claimChains, .init(appIDs: asking, limit: Sweeps.callsMax, lease: lease))
            guard !claimed.isEmpty else { return false }
            let asked = await withTaskGroup(of: (appID: String, result: Result).self) { group in
                for chain in claimed { group.addTask { (chain.appID, await ask(about: chain)) } }
                return await group.reduce(into: []) { $0.append($1) }
            }
            for case (let appID, .rests(let length)) in asked { rests.rest(appID, for: length) }
            return claimed.count == Sweeps.callsMax
                && asked.contains { if case .moved = $0.result { true } else { false } }
        } catch {
            // The lease ends, and the chains are due again.
            sweeps.logger.debug("database is away", metadata: LogKeys.error(error))
            return false
        }
    }

    // MARK: One chain

    /// Apple's answer about a chain.
    struct Answer: Sendable {
        var transactions: [Transaction] = []
        var renewals: [Renewal] = []
        var submissions: [Submission] = []
        /// All that Apple listed of the chain itself, in any order.
        var periods: [Transaction] = []
        var appleState: SubscriptionState?
    }

    private enum Result: Sendable {
        /// The chain's position moved.
        case moved
        case stayed
        /// The app should rest for this time.
        case rests(Duration)
    }

    private func ask(about chain: ClaimedChain) async -> Result {
        guard let app = sweeps.apps[chain.appID] else { return .stayed }
        var asked = AskedChain(chain)
        do throws(AppleRefusal) {
            let answer = try await app.serverAPI == nil ? receiptAnswer(chain, app) : statuses(chain, app)
            guard let answer else { return await end(asked) }
            return await take(answer, asked, app)
        } catch {
            switch error.fate {
            case .postpone(_, let until):
                let named = until.map { Duration.seconds(max(0, $0.timeIntervalSinceNow)) } ?? Self.pause * scale
                return .rests(min(named, Self.pauseMax * scale))
            case .halt, .hold:
                // Later questions are the probes that end a halt.
                return .rests(Self.pauseMax * scale)
            case .retry, .reject:
                asked.dueIn = Asking.delay(afterFailures: chain.failures + 1, of: chain.originalID) * scale
                count(chain.appID, "failed")
                return await report(asked)
            }
        }
    }

    /// Ends the questions about a chain about which nothing can be asked.
    private func end(_ asked: AskedChain) async -> Result {
        var asked = asked
        asked.isAnswered = true
        asked.endsAt = asked.chain.asked?.end
        count(asked.chain.appID, "unasked")
        return await report(asked)
    }

    private func report(_ asked: AskedChain) async -> Result {
        (try? await ledger.run(Statements.reportChains, [asked])) == nil ? .stayed : .moved
    }

    private func take(_ answer: Answer, _ asked: AskedChain, _ app: AppServices) async -> Result {
        var asked = asked
        let chain = asked.chain
        asked.isAnswered = true
        asked.appleState = answer.appleState
        asked.comparedIn = Self.comparedAfter * scale
        let own = answer.renewals.filter { $0.originalID.isSameText(as: chain.originalID) }
        let next = ChainFacts.nextQuestion(
            of: chain.originalID, after: answer.periods.map { .init(transaction: $0) },
            renewal: own.max { $0.signedAt < $1.signedAt }, asked: chain.asked,
            by: app.subscriptionPolicy(scale: scale),
            at: chain.readAt)
        asked.askAt = next?.at
        asked.endsAt = next?.end
        var hearing = Hearing(notification: nil, appID: chain.appID, net: .subscription)
        hearing.transactions = answer.transactions
        hearing.renewals = answer.renewals
        hearing.submissions = answer.submissions
        hearing.askedChain = asked
        guard let pointers = try? await ledger.hear(hearing) else { return .stayed }
        // The rows are due as well; these messages only save the wait for the scheduler.
        for pointer in pointers { sweeps.workQueue.publish(pointer, lane: .unposted) }
        sweeps.followUps.wake()
        count(chain.appID, pointers.isEmpty ? "answered" : "found")
        await wantMissing(answer, chain, app)
        return .moved
    }

    /// Makes the customer's history due where periods are missing between the last known one and the answered one. The
    /// answer lists the newest period alone.
    private func wantMissing(_ answer: Answer, _ chain: ClaimedChain, _ app: AppServices) async {
        let newest = answer.periods.max { ($0.expiresAt ?? .distantPast) < ($1.expiresAt ?? .distantPast) }
        guard app.serverAPI != nil, let newest, !newest.isNextPeriod(after: chain.newest) else { return }
        // If the database is away, the customer's turn comes by the rota.
        _ = try? await ledger.run(
            Statements.wantCustomer,
            .init([(appID: chain.appID, name: .purchase(chain.originalID))], reason: .missingPeriods))
    }

    /// A receipt that nobody posted. Nil: the purchase may not be given.
    private func unposted(
        _ transaction: Transaction, _ jws: String, _ chain: ClaimedChain, _ app: AppServices
    ) -> Submission? {
        guard !transaction.isTakenBack, !app.policy.isHistorical(transaction, at: chain.readAt) else { return nil }
        return Submission(unposted: transaction, jws: jws, of: chain.appID, source: .sweep)
    }

    // MARK: With credentials

    /// Apple's statuses of the customer's subscriptions.
    ///
    /// - Throws: a retry where Apple says nothing of the chain that can be verified.
    private func statuses(_ chain: ClaimedChain, _ app: AppServices) async throws(AppleRefusal) -> Answer? {
        let environment = StoreEnvironment(rawValue: chain.environment)
        let shownID = Transaction.shownID(chain.originalID, in: chain.environment)
        var (builds, statuses): ([AppServices], SubscriptionStatuses?) = (app.otherBuilds, nil)
        var asking = app
        while statuses == nil {
            guard let client = sweeps.appleGateway.serverAPI(of: asking, lane: .sweep) else {
                throw AppleRefusal(.hold(.credentialsMissing))
            }
            do throws(AppleRefusal) {
                statuses = try await sweeps.appleGateway.ask(.serverApi, for: asking) { () throws(AppStoreFailure) in
                    let answer = try await client.subscriptionStatuses(ofCustomerWith: shownID, in: [environment])
                    return (answer.value, answer.calls)
                }.answer
            } catch {
                // No row tells the bundle id that sold the purchase.
                guard error.fate == .retry(.notFoundYet), !builds.isEmpty else { throw error }
                asking = builds.removeFirst()
            }
        }
        var answer = Answer()
        for entry in (statuses?.groups ?? []).flatMap(\.lastTransactions) {
            await read(entry, chain, app, into: &answer)
        }
        guard !answer.periods.isEmpty else { throw AppleRefusal(.retry(.appleAnswer)) }
        return answer
    }

    /// Reads one entry. An entry that does not verify, or is of another app or environment, is passed over.
    private func read(
        _ entry: SubscriptionStatuses.LastTransaction, _ chain: ClaimedChain, _ app: AppServices,
        into answer: inout Answer
    ) async {
        let environment = StoreEnvironment(rawValue: chain.environment)
        guard let jws = entry.signedTransactionInfo, let signed = try? await app.verifier.transaction(jws),
            let transaction = Transaction(signed, from: environment), transaction.environment == chain.environment,
            isInTime(transaction.signedAt, chain)
        else { return count(chain.appID, "passed_over") }
        answer.transactions.append(transaction)
        if let submission = unposted(transaction, jws, chain, app) { answer.submissions.append(submission) }
        if let jws = entry.signedRenewalInfo, let info = try? await app.verifier.renewalInfo(jws),
            let renewal = Renewal(info, from: environment), renewal.environment == chain.environment,
            renewal.originalID.isSameText(as: transaction.originalID), isInTime(renewal.signedAt, chain)
        {
            answer.renewals.append(renewal)
        }
        guard transaction.originalID.isSameText(as: chain.originalID) else { return }
        answer.periods.append(transaction)
        answer.appleState = entry.status.flatMap(SubscriptionState.init)
    }

    private func isInTime(_ signedAt: Date?, _ chain: ClaimedChain) -> Bool {
        (signedAt ?? .distantPast).timeIntervalSince(chain.readAt) <= ReceiptVerifier.clockAheadMax
    }

    // MARK: Without credentials

    /// verifyReceipt's answer about the chain's newest stored receipt. Only facts that are not stored yet count: Apple
    /// dates the whole list anew with each answer.
    ///
    /// - Returns: nil where no receipt of the chain is stored.
    private func receiptAnswer(_ chain: ClaimedChain, _ app: AppServices) async throws(AppleRefusal) -> Answer? {
        guard let client = sweeps.appleGateway.receipts(of: app, lane: .sweep) else {
            throw AppleRefusal(.hold(.credentialsMissing))
        }
        let question = Statements.ChainQuestion(
            appID: chain.appID, environment: chain.environment, originalID: chain.originalID)
        guard let receipt = try await query(Statements.receiptOfChain, question).first else { return nil }
        let verified = try await sweeps.appleGateway.ask(.verifyReceipt, for: app) { () throws(AppStoreFailure) in
            let verified = try await client.verify(receipt.payload)
            return (verified, verified.calls)
        } proves: {
            $0.latestReceiptInfo != nil
        }.answer
        let transactions = verified.entries.compactMap { Transaction($0, in: verified) }
        guard let bundleID = verified.bundleId, app.identity.admits(bundleID),
            verified.environment.rawValue == chain.environment, transactions.count == verified.entries.count,
            isInTime(verified.requestDate, chain)
        else { throw AppleRefusal(.retry(.appleAnswer)) }
        var answer = Answer()
        answer.periods = transactions.filter { $0.originalID.isSameText(as: chain.originalID) && $0.isPeriod }
        guard !answer.periods.isEmpty else { throw AppleRefusal(.retry(.appleAnswer)) }
        let known = try await query(
            Statements.knownPurchases,
            .init(receiptID: receipt.receiptID, appID: chain.appID, transactions: transactions))
        answer.transactions = zip(transactions, known).filter { !$0.isKnown(as: $1.stored) }.map(\.0)
        answer.renewals = verified.pendingRenewals.compactMap { Renewal($0, in: verified) }.filter { renewal in
            transactions.contains { $0.originalID.isSameText(as: renewal.originalID) }
        }
        let open = zip(transactions, known).filter { transaction, known in
            !known.isGranted && !transaction.isTakenBack
                && !app.policy.isHistorical(transaction, at: chain.readAt)
        }
        let unjudged = open.isEmpty ? [] : try await query(Statements.unjudged, open.map(\.0.id))
        if !unjudged.isEmpty {
            answer.submissions = [
                Submission(
                    unposted: verified.latestReceipt ?? receipt.payload, hintedID: chain.originalID, of: chain.appID,
                    source: .sweep)
            ]
        }
        return answer
    }

    private func query<Parameters: Sendable, Row: Sendable>(
        _ statement: Statement<Parameters, Row>, _ parameters: Parameters
    ) async throws(AppleRefusal) -> [Row] {
        do {
            return try await ledger.run(statement, parameters)
        } catch {
            // The lease ends, and the chain is due again.
            throw AppleRefusal(.halt(.halted))
        }
    }

    // MARK: What operators see

    private func count(_ appID: String, _ answer: String) {
        Counter(label: "makegood_subscription_questions_total", dimensions: [("app", appID), ("answer", answer)])
            .increment()
    }
}

extension Transaction {
    /// Whether a list of verifyReceipt says nothing of the purchase that is not stored.
    fileprivate func isKnown(as stored: Transaction?) -> Bool {
        guard let stored else { return false }
        // A receipt tells times to the second.
        func isSame(_ one: Date?, _ other: Date?) -> Bool {
            guard let one, let other else { return one == nil && other == nil }
            return one.isSame(as: other)
        }
        return isSame(expiresAt ?? stored.expiresAt, stored.expiresAt) && isSame(revokedAt, stored.revokedAt)
            && isUpgraded == stored.isUpgraded
    }
}

extension SubscriptionState {
    /// Apple's number of a status. Nil for one that is newer than this program.
    fileprivate init?(_ status: SubscriptionStatuses.Status) {
        switch status {
        case .active: self = .active
        case .expired: self = .expired
        case .billingRetry: self = .inRetry
        case .gracePeriod: self = .inGrace
        case .revoked: self = .revoked
        default: return nil
        }
    }
}
