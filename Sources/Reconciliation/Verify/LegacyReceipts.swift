import AppStore
import AppleGateway
import Foundation
import Ledger
import Purchases

/// Examines legacy receipts. The app's strategies are tried in order, and the first that can answer decides.
extension ReceiptVerifier {
    /// What a receipt says without a call to Apple.
    enum LocalReading {
        /// The purchases as Apple listed them on the day the receipt was made, and the environment.
        case purchases([Transaction], StoreEnvironment)
        /// An iOS 6 style receipt: a question, because only verifyReceipt can check its signature.
        case question(TransactionReceipt)
        /// The decision on the whole receipt: it ends here, or is held.
        case whole(Decision)
        case retry(Reason)
    }

    func examineLegacy(
        _ base64: String, of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        if receipt.isTakenOver, !receipt.isOnTrust { return .decided(.receipt(.rejected(.takenOver))) }
        // Not verified yet, it chooses among the app's own ids only.
        let bundleID = app.identity.bundleIdAliases.isEmpty ? nil : (try? AppReceipt(unverified: base64))?.bundleId
        return try await examineLegacy(base64, of: receipt, asking: app.speaking(for: bundleID))
    }

    /// - Parameter app: asks Apple by the bundle id that made the receipt.
    private func examineLegacy(
        _ base64: String, of receipt: StoredReceipt, asking app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        var refusals: [AppleRefusal] = []
        for strategy in app.policy.legacyReceipts {
            do throws(AppleRefusal) {
                switch strategy {
                case .verifyReceipt:
                    let reading = await read(base64, of: receipt, for: app)
                    if let known = try await judgePast(reading, of: receipt, for: app) { return known }
                    return try await askVerifyReceipt(base64, reading, of: receipt, for: app)
                case .serverApi:
                    return try await askServerAPI(base64, of: receipt, for: app, butFor: unreached(by: refusals))
                case .local:
                    let reading = await read(base64, of: receipt, for: app)
                    let asked = refusals.last { $0.fate != .hold(.credentialsMissing) }
                    return try await judgeLocally(reading, of: receipt, for: app, after: asked)
                }
            } catch {
                refusals.append(error)
                if !error.fate.leavesItToOthers {
                    return examination(of: error, after: refusals, for: app)
                }
            }
        }
        let refusal = refusals.first(where: \.isTry) ?? refusals.first ?? AppleRefusal(.hold(.credentialsMissing))
        return examination(of: refusal, after: refusals, for: app)
    }

    // MARK: Apple is away

    /// What the refusal means, with the purchases about which none of the services could be reached.
    private func examination(
        of refusal: AppleRefusal, after refusals: [AppleRefusal], for app: AppServices
    ) -> Examination {
        let ids = unreached(by: refusals) ?? []
        let entries = refusals.lazy.map(\.unreached.entries).first { !$0.isEmpty } ?? []
        return examination(of: refusal).with(Unreached(entries: entries, ids: ids), for: app)
    }

    /// The ids of the purchases about which none of the services could be reached. Nil: there was no service to ask.
    private func unreached(by refusals: [AppleRefusal]) -> Set<String>? {
        let asked = refusals.filter { $0.fate != .hold(.credentialsMissing) }.map(\.unreached.ids)
        return asked.first.map { asked.dropFirst().reduce($0) { $0.intersection($1) } }
    }

    /// The receipt's purchases about which Apple would be asked one by one.
    private func unreached(_ reading: LocalReading, of receipt: StoredReceipt, for app: AppServices) async -> Unreached
    {
        guard app.policy.provisional != nil, case .purchases(let listed, _) = reading,
            let known = try? await plan(listed, of: receipt, for: app)
        else { return Unreached() }
        return Unreached(known.plan)
    }

    /// Whether the receipt must move to Apple's lane, because only there a receipt waits for Apple.
    ///
    /// - Parameter plan: the questions to Apple.
    /// - Throws: why asking would be in vain now, so that the next strategy is tried.
    private func needsReroute(
        _ receipt: StoredReceipt, for service: ServiceCall.Service, of app: AppServices, _ plan: ReceiptPlan? = nil
    ) throws(AppleRefusal) -> Bool {
        guard !receipt.lane.asksApple else { return false }
        guard var refusal = appleGateway.absence(of: service, for: app) else { return true }
        if refusal.isOutage, let plan { refusal.unreached = Unreached(plan) }
        throw refusal
    }

    // MARK: verifyReceipt

    /// After this many answers "malformed" from verifyReceipt a receipt is rejected, if we cannot read it either.
    private static let malformedAnswersMax = 3
    private static let malformed = 21002

    /// The verdict on a receipt for which Apple need not be asked. If every purchase in a receipt is over, Apple is not
    /// asked, in any lane and however often the receipt is posted. For an empty receipt Apple is asked once.
    ///
    /// - Returns: nil where Apple must be asked. That includes purchases of which Apple may know more than the receipt
    ///   does, such as those that renew, were held, or were refunded.
    private func judgePast(
        _ reading: LocalReading, of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination? {
        guard !receipt.isOnTrust else { return nil }
        if case .whole(let decision) = reading, decision == .held(.noTransactionYet),
            receipt.reason == Reason.noTransactionYet.rawValue
        {
            return .decided(.receipt(decision))
        }
        guard case .purchases(let listed, _) = reading, !listed.contains(where: \.isPeriod) else { return nil }
        let (plan, purchases, judge) = try await plan(listed, of: receipt, for: app)
        guard plan.asked.isEmpty, zip(purchases, plan.judged).allSatisfy({ $0.isOver(by: $1.decision) }) else {
            return nil
        }
        return .decided(.transactions(judge.settled(plan.judged)))
    }

    /// - Parameter reading: what the receipt says without a call.
    private func askVerifyReceipt(
        _ base64: String, _ reading: LocalReading, of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        // A receipt that we cannot verify must not delay anybody's purchase.
        let lane = if case .whole(.rejected) = reading { CallLane.repair } else { appleGateway.lane(of: receipt) }
        guard let client = appleGateway.receipts(of: app, lane: lane) else {
            throw AppleRefusal(.hold(.credentialsMissing))
        }
        do throws(AppleRefusal) {
            if try needsReroute(receipt, for: .verifyReceipt, of: app) { return .reroute }
            if let verified = answers.answer(about: receipt.id) {
                return try await judgeAndKeep(verified, [], of: receipt, for: app)
            }
            let shown = SharedAnswers.PostedBytes(receipt)
            switch sharedAnswers.leave(toAskAbout: shown, for: receipt.id) {
            case .answer(let verified): return try await judgeAndKeep(verified, [], of: receipt, for: app)
            case .wait: throw AppleRefusal(.postpone(.appleBudget, until: nil))
            case .ask: break
            }
            let asked: (answer: VerifiedReceipt, calls: [ServiceCall])
            do throws(AppleRefusal) {
                asked = try await appleGateway.ask(.verifyReceipt, for: app) { () throws(AppStoreFailure) in
                    let verified = try await client.verify(base64)
                    return (verified, verified.calls)
                } proves: {
                    // Only receipts with subscriptions need the secret.
                    $0.latestReceiptInfo != nil
                }
            } catch {
                sharedAnswers.asked(about: shown, for: receipt.id, nil)
                throw error
            }
            sharedAnswers.asked(about: shown, for: receipt.id, asked.answer)
            return try await judgeAndKeep(asked.answer, asked.calls, of: receipt, for: app)
        } catch {
            if case .whole(let decision) = reading, decision == .rejected(.malformed),
                try await isMalformedForGood(receipt, after: error.calls)
            {
                return .decided(.receipt(decision))
            }
            var refusal = error
            if error.isOutage { refusal.unreached = await unreached(reading, of: receipt, for: app) }
            throw refusal
        }
    }

    /// Whether Apple has now said often enough that this is no receipt. Apple gives the same answer when Apple itself
    /// has trouble (P15), so the answer ends only a receipt that we cannot read either.
    private func isMalformedForGood(
        _ receipt: StoredReceipt, after calls: [ServiceCall]
    ) async throws(AppleRefusal) -> Bool {
        guard calls.last?.code == Int64(Self.malformed) else { return false }
        let question = Statements.AnswerCount(receiptID: receipt.id, code: Self.malformed)
        let before = try await query(Statements.countAnswers, question).first ?? 0
        return before + 1 >= Self.malformedAnswersMax
    }

    /// Judges by verifyReceipt's answer, and keeps the answer for as long as the receipt waits for another service.
    private func judgeAndKeep(
        _ verified: VerifiedReceipt, _ calls: [ServiceCall], of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        do throws(AppleRefusal) {
            let examination = try await judge(verified, calls, of: receipt, for: app)
            switch examination {
            case .postpone, .partly(_, .postpone), .unreached(_, .postpone), .unreached(_, .partly(_, .postpone)):
                answers.note(verified, about: receipt.id)
            default: answers.forget(receipt.id)
            }
            return examination
        } catch {
            if case .postpone = error.fate {
                answers.note(verified, about: receipt.id)
            } else {
                answers.forget(receipt.id)
            }
            throw error
        }
    }

    private func judge(
        _ verified: VerifiedReceipt, _ calls: [ServiceCall], of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        // Apple named no app that this program can read: unknown is not wrong.
        guard let bundleID = verified.bundleId else {
            return .retry(.appleAnswer, call: calls.last.map(Verdict.Call.init))
        }
        guard app.identity.admits(bundleID) else { return .decided(.receipt(.rejected(.wrongApp))) }
        guard app.identity.environments.contains(verified.environment) else {
            return .decided(.receipt(.rejected(.wrongEnvironment)))
        }
        let entries = verified.entries
        guard !entries.isEmpty else { return .decided(.receipt(.held(.noTransactionYet))) }
        let transactions = entries.compactMap { Transaction($0, in: verified) }
        // An unreadable entry must not be dropped because others are readable.
        guard transactions.count == entries.count else {
            return .retry(.appleAnswer, call: calls.last.map(Verdict.Call.init))
        }
        guard
            let hidden = Hidden(
                transactions, in: verified.environment, for: app, mayHaveTokens: receipt.appHasOrders)
        else {
            return try await decide(transactions, of: receipt, for: app)
        }
        return try await confirm(
            transactions, in: verified.environment, of: receipt, for: app, butFor: [], hidden: hidden, isCurrent: true)
    }

    /// What a legacy receipt does not show of its purchases, where Apple can be asked: a purchase that would be granted
    /// waits for its signed transaction.
    private enum Hidden {
        /// Tokens, which may say whose a purchase is (Ownership, note 2).
        case tokens
        /// Whether another customer shares a purchase (row 0d).
        case sharing

        /// Nil: nothing that counts.
        init?(
            _ listed: [Transaction], in environment: StoreEnvironment, for app: AppServices, mayHaveTokens: Bool
        ) {
            guard app.serverAPI != nil, app.lookUpOrder.contains(environment) else { return nil }
            if mayHaveTokens {
                self = .tokens
            } else if listed.contains(where: app.policy.mayBeShared) {
                self = .sharing
            } else {
                return nil
            }
        }

        func concerns(_ transaction: Transaction, of app: AppServices) -> Bool {
            switch self {
            case .tokens: true
            case .sharing: app.policy.mayBeShared(transaction)
            }
        }
    }

    /// Decides by the receipt itself.
    ///
    /// Behind a service that could not answer nothing is asked. Where none was asked, the Server API is asked only
    /// about purchases that may be shared: each family member with a copy would get the goods once more.
    ///
    /// - Parameter refusal: of the service that was asked before.
    /// - Throws: `refusal`, where a purchase would be granted and needs a call.
    private func judgeLocally(
        _ reading: LocalReading, of receipt: StoredReceipt, for app: AppServices, after refusal: AppleRefusal?
    ) async throws(AppleRefusal) -> Examination {
        guard case .purchases(let listed, let environment) = reading,
            let hidden = Hidden(
                listed, in: environment, for: app, mayHaveTokens: refusal != nil && receipt.appHasOrders)
        else { return try await judge(reading, of: receipt, for: app) }
        guard let refusal else {
            return try await confirm(listed, in: environment, of: receipt, for: app, butFor: nil, hidden: hidden)
        }
        let (plan, _, judge) = try await plan(listed, of: receipt, for: app, hidden)
        guard plan.asked.isEmpty else { throw refusal }
        return .decided(.transactions(judge.settled(plan.judged)))
    }

    // MARK: The receipt itself

    /// Verifies the receipt as signed data is verified, and rejects it for the same reasons. The Server API is not
    /// asked about a receipt that cannot be verified.
    func read(_ base64: String, of receipt: StoredReceipt, for app: AppServices) async -> LocalReading {
        let verified: AppReceipt
        do throws(ReceiptFailure) {
            verified = try await app.appReceipts.receipt(base64)
        } catch {
            if error.isRetryable { return .retry(Reason(error.reason)) }
            if case .notBelieved = error { return .whole(.rejected(Reason(error.reason))) }
            do throws(ReceiptFailure) {
                return .question(try TransactionReceipt(base64: base64))
            } catch {
                return .whole(.rejected(.malformed))
            }
        }
        if let madeAt = verified.creationDate, madeAt.timeIntervalSince(receipt.readAt) > Self.clockAheadMax {
            return .retry(.clockAhead)
        }
        let entries = verified.entries
        guard !entries.isEmpty else { return .whole(.held(.noTransactionYet)) }
        let transactions = entries.compactMap { Transaction($0, in: verified) }
        // An unreadable entry must not be dropped because others are readable.
        guard transactions.count == entries.count, let environment = verified.environment else {
            return .retry(.appleAnswer)
        }
        return .purchases(transactions, environment)
    }

    private func judge(
        _ reading: LocalReading, of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        switch reading {
        case .purchases(let transactions, _): try await decide(transactions, of: receipt, for: app)
        case .question: throw AppleRefusal(.hold(.possessionMissing))
        case .whole(let decision): .decided(.receipt(decision))
        case .retry(let reason): .retry(reason, call: nil)
        }
    }

    // MARK: The Server API

    /// - Parameter ids: the purchases about which the services before this one could not be reached either; nil: there
    ///   was no such service.
    private func askServerAPI(
        _ base64: String, of receipt: StoredReceipt, for app: AppServices, butFor ids: Set<String>?
    ) async throws(AppleRefusal) -> Examination {
        let reading = await read(base64, of: receipt, for: app)
        switch reading {
        // A receipt that Xcode made can be looked up nowhere (AppleFacts 3.1).
        case .purchases(let listed, let environment) where app.lookUpOrder.contains(environment):
            return try await confirm(listed, in: environment, of: receipt, for: app, butFor: ids)
        case .question(let question): return try await answer(question, of: receipt, for: app)
        case .purchases, .whole, .retry: return try await judge(reading, of: receipt, for: app)
        }
    }

    /// Anybody can write such a receipt around an id, so it proves no possession unless a trusted backend vouches for
    /// the user.
    private func answer(
        _ question: TransactionReceipt, of receipt: StoredReceipt, for app: AppServices
    ) async throws(AppleRefusal) -> Examination {
        guard receipt.isVouched else { throw AppleRefusal(.hold(.possessionMissing)) }
        // A receipt that names no environment is of production, or too old to name one (F23).
        let environments = app.lookUpOrder.filter { question.environment == nil || question.environment == $0.rawValue }
        guard !environments.isEmpty else { return .decided(.receipt(.rejected(.wrongEnvironment))) }
        if try needsReroute(receipt, for: .serverApi, of: app) { return .reroute }
        return try await answer(question.transactionId, of: receipt, for: app, in: environments)
    }

    /// Asks Apple about those purchases of a verified receipt that would be granted and are not known well enough. A
    /// purchase that can be granted is granted at once, whatever the receipt's other purchases wait for.
    ///
    /// - Parameters:
    ///   - hidden: what Apple is asked for; nil: everything, because the list is old.
    ///   - isCurrent: whether the list is Apple's answer of now, not of the day the receipt was made. A purchase that
    ///     the Server API never finds is then judged by the list.
    private func confirm(
        _ listed: [Transaction], in environment: StoreEnvironment, of receipt: StoredReceipt, for app: AppServices,
        butFor ids: Set<String>?, hidden: Hidden? = nil, isCurrent: Bool = false
    ) async throws(AppleRefusal) -> Examination {
        let (plan, purchases, judge) = try await plan(listed, of: receipt, for: app, hidden)
        guard !plan.asked.isEmpty else { return .decided(.transactions(judge.settled(plan.judged))) }
        if try needsReroute(receipt, for: .serverApi, of: app, plan) { return .reroute }

        var round = LookUpRound(plan)
        await withTaskGroup(of: (ListedPurchase, Result<Transaction, AppleRefusal>).self) { group in
            for purchase in plan.asked {
                group.addTask {
                    let found = await lookUp(purchase, of: receipt, for: app, in: environment)
                    guard isCurrent, case .failure(let refusal) = found, refusal.fate == .retry(.notFoundYet),
                        isNotFoundForGood(receipt, after: refusal.calls)
                    else { return (purchase, found) }
                    return (purchase, .success(purchase.current))
                }
            }
            for await (purchase, result) in group { round.take(result, for: purchase) }
        }
        if !plan.waiting.isEmpty, round.isAnswered {
            // The customer's id at Apple, if a purchase that was just looked up gives it.
            let oldest = listed[0].originalID
            let walk = HistoryWalk(
                appleGateway: appleGateway, ledger: ledger, schedule: schedule, app: app, environment: environment,
                customer: round.customerID ?? oldest, askedID: oldest)
            let read = await walk.read(for: receipt)
            round.take(read.transactions)
            round.historyRest = read.rest
        }
        // Apple's answer may carry a token, which the receipt does not show (Ownership, note 2).
        let found = Dictionary(round.found.map { ($0.id, $0) }, uniquingKeysWith: { first, _ in first })
        let informed = try await self.judge(
            of: purchases.map { found[$0.listed.id] ?? $0.current }, in: receipt, for: app)
        let otherwise = try round.examination(by: informed)
        var unreached = round.unreached(by: informed)
        if let ids { unreached.ids.formIntersection(ids) }
        return otherwise.with(unreached, for: app)
    }

    /// The questions to Apple, from what is known of the listed purchases and of their owners.
    private func plan(
        _ listed: [Transaction], of receipt: StoredReceipt, for app: AppServices, _ hidden: Hidden? = nil
    ) async throws(AppleRefusal) -> (plan: ReceiptPlan, purchases: [ListedPurchase], judge: Judge) {
        let purchases = try await known(listed, of: receipt)
        let judge = try await judge(of: purchases.map(\.current), in: receipt, for: app)
        let plan = ReceiptPlan(purchases, named: receipt.transactionID, judge: judge, freshFor: Self.staleAfter) {
            hidden?.concerns($0, of: app) ?? true
        }
        return (plan, purchases, judge)
    }

    /// What is known of each of the listed purchases, in order.
    func known(
        _ listed: [Transaction], of receipt: StoredReceipt
    ) async throws(AppleRefusal) -> [ListedPurchase] {
        let question = Statements.ListedQuestion(receiptID: receipt.id, appID: receipt.appID, transactions: listed)
        return zip(listed, try await query(Statements.knownPurchases, question)).map { listed, known in
            ListedPurchase(
                listed: listed, stored: known.stored, isGranted: known.isGranted, isOnTrust: known.isOnTrust,
                before: known.before)
        }
    }

    /// Apple's current answer about a purchase that Apple signed. If Apple now knows no such id, that is no proof
    /// against the purchase (P14).
    private func lookUp(
        _ purchase: ListedPurchase, of receipt: StoredReceipt, for app: AppServices, in environment: StoreEnvironment
    ) async -> Result<Transaction, AppleRefusal> {
        do throws(AppleRefusal) {
            let found = try await lookUp(
                purchase.listed.id, lane: appleGateway.lane(of: receipt), for: app, in: [environment])
            guard purchase.listed.updated(by: found) != nil else { throw AppleRefusal(.retry(.appleAnswer)) }
            return .success(found)
        } catch {
            guard case .reject = error.fate else { return .failure(error) }
            return .failure(AppleRefusal(.retry(.appleAnswer), calls: error.calls))
        }
    }
}

extension Unreached {
    /// All purchases that would have been looked up, for the case that no service could be asked at all.
    fileprivate init(_ plan: ReceiptPlan) {
        let open = (plan.asked + plan.waiting).map { $0.waiting(.appleUnavailable) }
        self.init(entries: plan.judged + open, ids: Set(plan.asked.filter(\.isUnreached).map(\.listed.id)))
    }
}

extension Fate {
    /// Whether a service cannot answer now, so that another service may be asked instead. A limit of ours and a time
    /// that Apple names are waits, and "not found yet" is an answer.
    fileprivate var leavesItToOthers: Bool {
        switch self {
        case .retry(.appleUnavailable), .retry(.appleAnswer), .postpone(.appleUnavailable, until: nil), .halt,
            .hold(.credentialsMissing), .hold(.possessionMissing):
            true
        case .retry, .postpone, .hold, .reject: false
        }
    }
}
