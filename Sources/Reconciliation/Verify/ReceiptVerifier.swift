import AppStore
package import AppleGateway
package import Foundation
package import Ledger
import Postgres
package import Purchases

/// The result of examining a receipt.
package indirect enum Examination: Sendable {
    /// Every transaction is decided, or the receipt as a whole.
    case decided(Verdict.Decisions)
    /// Apple could not be reached about some of the purchases. The receipt goes on with `otherwise`.
    case unreached(Unreached, otherwise: Examination)
    /// Apple was asked and gave no usable answer: an attempt.
    case retry(Reason, call: Verdict.Call?)
    /// Apple was not asked, or told us to wait: no attempt.
    case postpone(Reason, until: Date?)
    /// Some of the receipt's transactions are judged; the others are open, and `Rest` says what they wait for.
    case partly([Verdict.Entry], Rest)
    /// The receipt needs Apple, so it goes to Apple's queue.
    case reroute

    /// What the open transactions of a receipt wait for: as ``retry(_:call:)`` and ``postpone(_:until:)``.
    package enum Rest: Sendable {
        case retry(Reason, call: Verdict.Call?)
        case postpone(Reason, until: Date?)
    }
}

/// Turns a stored receipt into decisions: verifies, asks Apple where the proof needs it, decides.
package struct ReceiptVerifier: Sendable {
    /// How far ahead of our clock a signed transaction may be, in seconds. Beyond this our clock or Apple's is wrong: a
    /// retry.
    package static let clockAheadMax: TimeInterval = 300
    /// How old a signed transaction may be when its receipt comes, in seconds. A signed transaction proves the state at
    /// its signedDate; about an older one Apple is asked.
    package static let staleAfter: TimeInterval = 3600
    /// How long "not found" may mean "not found yet", and how often Apple must be asked at least (P14): a day on which
    /// we did not ask does not count.
    package static let notFoundFor: Duration = .seconds(86_400)
    package static let notFoundAttemptsMin = Parking.attemptsMin

    let appleGateway: AppleGateway
    let ledger: Ledger
    let schedule: RetrySchedule
    let answers = VerifyReceiptCache()
    let sharedAnswers = SharedAnswers()
    let installations = InstallationRegister()

    package init(appleGateway: AppleGateway, ledger: Ledger, schedule: RetrySchedule) {
        self.appleGateway = appleGateway
        self.ledger = ledger
        self.schedule = schedule
    }

    package func examine(_ receipt: StoredReceipt, for app: AppServices) async -> Examination {
        do throws(AppleRefusal) {
            guard receipt.hasPayload else { return try await examineWithoutPayload(receipt, for: app) }
            switch receipt.proof {
            case .signedTransaction(let jws): return try await examineSigned(jws, of: receipt, for: app)
            case .receipt(let base64): return try await examineLegacy(base64, of: receipt, for: app)
            case .identifier: return try await examineIdentifier(of: receipt, for: app)
            }
        } catch {
            return examination(of: error)
        }
    }

    /// Judges a receipt whose payload retention has emptied: a transaction that nobody posted by Apple's facts, which
    /// were verified when they were stored. Any other receipt waits for a person.
    private func examineWithoutPayload(
        _ receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        guard receipt.source != .post, receipt.proof.kind == .signedTransaction, let id = receipt.transactionID,
            let stored = try await query(Statements.storedTransaction, (appID: receipt.appID, id: id)).first
        else { return .decided(.receipt(.held(.review))) }
        return try await decide([stored], of: receipt, for: app)
    }

    func claim(_ receipt: StoredReceipt) -> Claim {
        var claim = Claim(
            userID: receipt.userID, hasPossession: receipt.proof.kind != .identifier || receipt.isVouched,
            receivedAt: receipt.receivedAt, judgedAt: receipt.readAt, target: receipt.target,
            declared: receipt.declared, isPosted: receipt.source == .post)
        claim.unpostedFor = schedule.unpostedFor
        return claim
    }

    func examination(of refusal: AppleRefusal) -> Examination {
        switch refusal.fate {
        case .retry(let reason): .retry(reason, call: refusal.calls.last.map(Verdict.Call.init))
        case .postpone(let reason, let until): .postpone(reason, until: until)
        case .reject(let reason): .decided(.receipt(.rejected(reason)))
        case .hold(let reason): .decided(.receipt(.held(reason)))
        case .halt(let reason): .postpone(reason, until: nil)
        }
    }

    // MARK: Signed transactions

    private func examineSigned(
        _ jws: String, of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        let signed: SignedTransaction
        do throws(VerificationFailure) {
            signed = try await app.verifier.transaction(jws)
        } catch {
            if error.isRetryable { return .retry(Reason(error.reason), call: nil) }
            // Apple signed it. A field that this program cannot read proves nothing against the purchase (F15).
            if error.isGenuine { return .retry(.appleAnswer, call: nil) }
            return .decided(.receipt(.rejected(Reason(error.reason))))
        }
        if let signedAt = signed.signedDate, signedAt.timeIntervalSince(receipt.readAt) > Self.clockAheadMax {
            return .retry(.clockAhead, call: nil)
        }
        // The build that sold it is the build about which Apple is asked.
        let build = app.speaking(for: signed.bundleId)
        guard signed.environment != nil else { return try await examineUnplaced(signed, of: receipt, for: build) }
        guard let transaction = Transaction(signed) else { return .retry(.appleAnswer, call: nil) }
        return try await examine(transaction, signed, of: receipt, for: build)
    }

    /// - Parameter app: asks Apple by the bundle id that sold the transaction.
    private func examine(
        _ transaction: Transaction, _ signed: SignedTransaction, of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        let judge = try await judge(of: [transaction], in: receipt, for: app)
        var entry = judge.judge(transaction)
        let isAsked: Bool
        if case .grant(_, let source) = entry.decision {
            isAsked = needsConfirmation(signed, by: source, of: receipt, for: app)
            if !isAsked, !isFresh(signed.signedDate, by: source, of: receipt) { entry = entry.noting(.appleUnasked) }
        } else {
            isAsked = receipt.needsAnswer(despite: entry.decision)
        }
        guard isAsked else { return .decided(.transactions([entry])) }
        if let known = try await known(entry, of: receipt, by: judge, for: app) {
            return .decided(.transactions([known]))
        }
        guard receipt.lane.asksApple else { return .reroute }
        return try await confirm(entry, of: receipt, for: app)
    }

    /// Examines a signed transaction that names no environment (F23). Unknown is not wrong, and is not Production
    /// either: Apple is asked, production first, and the host that knows the purchase is its environment.
    ///
    /// - Throws: a hold, without credentials.
    private func examineUnplaced(
        _ signed: SignedTransaction, of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        guard app.serverAPI != nil else { throw AppleRefusal(.hold(.credentialsMissing)) }
        guard receipt.lane.asksApple else { return .reroute }
        let found: Transaction
        do throws(AppleRefusal) {
            found = try await lookUp(
                signed.transactionId, lane: appleGateway.lane(of: receipt), for: app, in: [.production, .sandbox])
        } catch {
            guard case .reject(.invalidTransactionID) = error.fate else { throw error }
            throw AppleRefusal(.retry(.appleAnswer), calls: error.calls)
        }
        let place = StoreEnvironment(rawValue: found.environment)
        guard let confirmed = Transaction(signed, from: place)?.updated(by: found) else {
            return .retry(.appleAnswer, call: nil)
        }
        return try await decide([confirmed], of: receipt, for: app)
    }

    private func needsConfirmation(
        _ signed: SignedTransaction, by source: BindingSource, of receipt: StoredReceipt, for app: AppServices
    ) -> Bool {
        switch app.policy.confirmWithApple {
        case .never: false
        case .always: true
        case .stale:
            app.serverAPI != nil && !isFresh(signed.signedDate, by: source, of: receipt)
        }
    }

    /// Whether data that Apple signed at this time count as Apple's current state. Time in our own queue does not
    /// count, but a purchase that waited for a person may be refunded by now.
    func isFresh(_ signedAt: Date?, by source: BindingSource, of receipt: StoredReceipt) -> Bool {
        source != .support && signedAt.map { receipt.claimedAt.timeIntervalSince($0) <= Self.staleAfter } ?? false
    }

    /// The verdict on a purchase that would be granted, from what is known of it here, so that the same proof under a
    /// thousand orders is one call. Nil: Apple is asked.
    ///
    /// Where the app has everything confirmed, only a grant answers: stored facts may be those of another proof.
    private func known(
        _ entry: Verdict.Entry, of receipt: StoredReceipt, by judge: Judge, for app: AppServices
    ) async throws(AppleRefusal) -> Verdict.Entry? {
        // What is known under its id is another environment's purchase, if a person gives this one apart.
        guard case .grant = entry.decision, entry.transaction.hasKeyOfItsIDs, !entry.transaction.isGivenApart,
            let purchase = try await known([entry.transaction], of: receipt).first
        else { return nil }
        if purchase.isGranted {
            // The grant answers before any decision; this one would be seen only if it were gone.
            return try await mayAskOfGranted(entry.transaction, receipt) ? nil : entry.with(.held(.review))
        }
        guard app.policy.confirmWithApple == .stale, !receipt.isOnTrust, let stored = purchase.stored,
            stored.signedAt ?? .distantPast > entry.transaction.signedAt ?? .distantPast
        else { return nil }
        let known = judge.judge(stored)
        if case .grant(_, let source) = known.decision,
            stored.endsByReceipt || !isFresh(stored.signedAt, by: source, of: receipt)
        {
            return nil
        }
        return known
    }

    private func mayAskOfGranted(
        _ transaction: Transaction, _ receipt: StoredReceipt
    ) async throws(AppleRefusal) -> Bool {
        guard let userID = receipt.userID else { return false }
        // The question is counted in Apple's lane, where the call is made.
        guard receipt.lane.asksApple else { return true }
        let question = Statements.GrantedQuestion(
            appID: receipt.appID, transactionID: transaction.id, userID: userID)
        return try await query(Statements.mayAskOfGranted, question).first ?? false
    }

    private func confirm(
        _ entry: Verdict.Entry, of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        let transaction = entry.transaction
        do throws(AppleRefusal) {
            let current = try await lookUp(
                transaction.id, lane: appleGateway.lane(of: receipt), for: app,
                in: [StoreEnvironment(rawValue: transaction.environment)])
            // An answer about another purchase of the chain says nothing about this one.
            guard let confirmed = transaction.updated(by: current) else { return .retry(.appleAnswer, call: nil) }
            return try await decide([confirmed], of: receipt, for: app)
        } catch {
            // Apple signed this id. If Apple now calls it invalid, that is no proof against the purchase (P14).
            guard case .reject(.invalidTransactionID) = error.fate else {
                return examination(of: error).with(receipt.unreached(transaction, after: error), for: app)
            }
            throw AppleRefusal(.retry(.appleAnswer), calls: error.calls)
        }
    }

    // MARK: Questions

    /// Judges Apple's answer about an id for which somebody vouches. If Apple does not know the id, the history of the
    /// named `originalTransactionId` answers.
    func answer(
        _ id: String, of receipt: StoredReceipt, for app: AppServices, in environments: [StoreEnvironment]
    ) async throws(AppleRefusal) -> Examination {
        do throws(AppleRefusal) {
            let found = try await lookUpInAnyBuild(id, of: receipt, for: app, in: environments)
            return try await decide([found], of: receipt, for: app)
        } catch {
            guard error.isUnknownID else { throw error }
            let found = try await history(of: receipt, askedFor: id, for: app, in: environments)
            guard found.isEmpty else { return try await decide(found, of: receipt, for: app) }
            if case .retry = error.fate, isNotFoundForGood(receipt, after: error.calls) {
                return .decided(.receipt(.rejected(.notFound)))
            }
            throw error
        }
    }

    /// Whether "not found" is final: a purchase that exists would have shown by now, wherever it could be.
    func isNotFoundForGood(_ receipt: StoredReceipt, after calls: [ServiceCall]) -> Bool {
        let age = Duration.seconds(receipt.readAt.timeIntervalSince(receipt.claimedAt))
        // An environment that refused our token did not look. The reason may be an app that was never released and so
        // has no production yet, but a wrong key looks the same (P13).
        let isSaidByAll = calls.allSatisfy { $0.code.map(APIErrorCode.init(rawValue:))?.meaning == .notFound }
        return isSaidByAll && age > Self.notFoundFor * schedule.scale
            && receipt.tries + 1 >= Self.notFoundAttemptsMin
    }

    /// As ``lookUp(_:lane:for:in:)``, for an id of which nothing tells the bundle id that sold it: the app's own is
    /// asked first, and then the aliases, for as long as Apple finds nothing.
    ///
    /// - Throws: what Apple says of the app's own bundle id; of an alias, where Apple did not say that it has no such
    ///   purchase: "not found" is final only if it is said of every build. A bare id ends by no answer, and its poster
    ///   must not learn more from a trouble with an alias.
    private func lookUpInAnyBuild(
        _ id: String, of receipt: StoredReceipt, for app: AppServices, in environments: [StoreEnvironment]
    ) async throws(AppleRefusal) -> Transaction {
        let lane = appleGateway.lane(of: receipt)
        do throws(AppleRefusal) {
            return try await lookUp(id, lane: lane, for: app, in: environments)
        } catch {
            var calls = error.calls
            for build in app.otherBuilds where error.fate == .retry(.notFoundYet) {
                let refusal: AppleRefusal
                do throws(AppleRefusal) {
                    return try await lookUp(id, lane: lane, for: build, in: environments)
                } catch let ofBuild {
                    refusal = ofBuild
                }
                guard refusal.isUnknownID || receipt.isBareID else { throw refusal }
                calls += refusal.calls
            }
            throw AppleRefusal(error.fate, calls: calls, isOutage: error.isOutage)
        }
    }

    /// Apple's current data on a transaction, verified like any other.
    ///
    /// - Throws: `wrong_environment` if the environment that knows it is not served.
    func lookUp(
        _ id: String, lane: CallLane, for app: AppServices, in environments: [StoreEnvironment]
    ) async throws(AppleRefusal) -> Transaction {
        guard let client = appleGateway.serverAPI(of: app, lane: lane) else {
            throw AppleRefusal(.hold(.credentialsMissing))
        }
        let (info, calls) = try await appleGateway.ask(.serverApi, for: app) { () throws(AppStoreFailure) in
            let info = try await client.transactionInfo(id, in: environments)
            return (info, info.calls)
        }
        guard app.identity.environments.contains(info.environment) else {
            throw AppleRefusal(.reject(.wrongEnvironment), calls: calls)
        }
        do throws(VerificationFailure) {
            let signed = try await app.verifier.transaction(info.value)
            guard let transaction = Transaction(signed, from: info.environment),
                transaction.id == id || transaction.originalID == id
            else { throw VerificationFailure(.malformed) }
            return transaction
        } catch {
            // Data from Apple that we cannot verify say nothing about the purchase.
            throw AppleRefusal(.retry(.appleAnswer), calls: calls)
        }
    }

    func decide(
        _ transactions: [Transaction], of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        .decided(.transactions(try await judge(of: transactions, in: receipt, for: app).judge(transactions)))
    }

    /// The rows of a statement.
    ///
    /// - Throws: a postponement, if the database is away.
    func query<Parameters: Sendable, Row: Sendable>(
        _ statement: Statement<Parameters, Row>, _ parameters: Parameters
    ) async throws(AppleRefusal) -> [Row] {
        do {
            return try await ledger.run(statement, parameters)
        } catch {
            throw AppleRefusal(.postpone(.historyPending, until: nil))
        }
    }
}
