import AppStore
import AppleGateway
import Foundation
import Ledger
import Logging
import Metrics
import Purchases
import Service

/// Tells Apple about decided purchases (B3, B5). Any number of workers may run this; the rows in the database say which
/// Apple updates are open.
///
/// The purchases themselves go first: the governor counts these calls as repairs, few calls run at a time, and a row
/// whose call may not be made now waits. If a worker dies, the next worker takes over its rows. Both kinds of call may
/// be made twice.
struct AppleUpdateRunner: Sendable {
    static let interval: Duration = .seconds(1)
    /// Calls at a time, in each process.
    static let callsMax = 16
    private static let budgetDelay: Duration = .seconds(10)
    private static let pauseDelay: Duration = .seconds(60)

    let ledger: Ledger
    let apps: AppDirectory
    let halts: Halts
    let appleGateway: AppleGateway
    let callsMax: Int
    let logger: Logger

    init(
        ledger: Ledger, apps: AppDirectory, halts: Halts, appleGateway: AppleGateway, callsMax: Int, logger: Logger
    ) {
        self.ledger = ledger
        self.apps = apps
        self.halts = halts
        self.appleGateway = appleGateway
        self.callsMax = max(1, min(Self.callsMax, callsMax))
        self.logger = logger
    }

    /// Runs until the task is cancelled.
    func run() async {
        while !Task.isCancelled {
            guard await !round() else { continue }
            try? await Task.sleep(for: max(.milliseconds(50), Self.interval * scale))
        }
    }

    /// Claims the updates that are due and makes their calls.
    ///
    /// - Returns: whether more updates may be due and Apple accepted some of these.
    @discardableResult
    func round() async -> Bool {
        let lines = lines
        guard !lines.isEmpty else { return false }
        do {
            let claimed = try await ledger.run(
                Statements.claimAppleUpdates, Statements.AppleUpdateClaim(lines: lines, limit: callsMax, lease: lease))
            guard !claimed.isEmpty else { return false }
            let results = await withTaskGroup(of: AppleUpdateResult.self) { group in
                for appleUpdate in claimed { group.addTask { await attempt(appleUpdate) } }
                var results: [AppleUpdateResult] = []
                for await result in group { results.append(result) }
                return results
            }
            CrashPoint.afterAppleUpdateBeforeRow.reached()
            _ = try await ledger.run(Statements.reportAppleUpdates, results)
            count(results)
            return claimed.count == callsMax && results.contains { $0.state == .done }
        } catch {
            // The lease ends, and the updates are due again.
            logger.debug("database is away", metadata: LogKeys.error(error))
            return false
        }
    }

    private var scale: Double { ledger.schedule.scale }

    /// How long a claim lasts: at least twice the longest call with the longest wait for it.
    private var lease: Duration {
        max(ledger.schedule.rescueDelay(.apple), (ledger.schedule.callLimit + Governor.patience) * 2)
    }

    /// The kinds of update that the apps want told now. Rows of a kind that is switched off stay as they are.
    private var lines: [AppleUpdateLine] {
        apps.ids.flatMap { id -> [AppleUpdateLine] in
            guard let app = apps[id], app.serverAPI != nil, !halts.isPaused(id) else { return [] }
            var kinds: [AppleUpdate.Kind] = []
            if app.policy.writesBackTokens { kinds.append(.setToken) }
            if app.policy.finishAtApple != .never { kinds.append(.finish) }
            return app.lookUpOrder.flatMap { environment in
                kinds.map { kind in
                    // A purchase that was held while the policy still said to finish held ones need not be finished at
                    // Apple any more.
                    AppleUpdateLine(
                        appID: id, environment: environment.rawValue, kind: kind,
                        needsGrant: kind == .finish && app.policy.finishAtApple == .afterGrant)
                }
            }
        }
    }

    // MARK: One Apple update

    private func attempt(_ appleUpdate: ClaimedAppleUpdate) async -> AppleUpdateResult {
        guard let app = apps[appleUpdate.appID] else { return result(appleUpdate, .wait(.credentialsMissing)) }
        let answer = await attempt(appleUpdate, for: app)
        // No row tells the bundle id that sold the purchase.
        guard answer.reason == .notFoundYet || answer.reason == .notFound else { return answer }
        for build in app.otherBuilds {
            let other = await attempt(appleUpdate, for: build)
            if other.state == .done { return other }
        }
        return answer
    }

    private func attempt(_ appleUpdate: ClaimedAppleUpdate, for app: AppServices) async -> AppleUpdateResult {
        guard let api = appleGateway.serverAPI(of: app, lane: .repair) else {
            return result(appleUpdate, .wait(.credentialsMissing))
        }
        do {
            let calls = try await appleGateway.ask(.serverApi, for: app) {
                () async throws(AppStoreFailure) -> (answer: Void, calls: [ServiceCall]) in
                let answer = try await tell(appleUpdate, api)
                return ((), answer.calls)
            }.calls
            return result(appleUpdate, .done, calls.last)
        } catch {
            return result(appleUpdate, AppleUpdateFate(error), error.calls.last, until: error.fate.until)
        }
    }

    private func tell(
        _ appleUpdate: ClaimedAppleUpdate, _ api: ServerAPIClient
    ) async throws(AppStoreFailure) -> ServerAPIClient.Answer<Void> {
        let environments = [StoreEnvironment(rawValue: appleUpdate.environment)]
        if let token = appleUpdate.token {
            return try await api.setAppAccountToken(
                token, ofPurchase: appleUpdate.originalTransactionID, in: environments)
        }
        return try await api.finishTransaction(appleUpdate.transactionID, in: environments)
    }

    /// The result to store: when the update is tried again, if at all, and whether a person should look.
    private func result(
        _ appleUpdate: ClaimedAppleUpdate, _ fate: AppleUpdateFate, _ call: ServiceCall? = nil, until: Date? = nil
    ) -> AppleUpdateResult {
        func make(_ state: AppleUpdateResult.State?, _ reason: Reason?, counts: Bool, dueIn: Duration = .zero)
            -> AppleUpdateResult
        {
            AppleUpdateResult(
                appleUpdate: appleUpdate, state: state, reason: reason, counts: counts, dueIn: dueIn,
                httpStatus: call?.httpStatus, code: call?.code.map(Int.init(clamping:)))
        }
        switch fate {
        case .done: return make(.done, nil, counts: true)
        case .refused(let reason): return make(.refused, reason, counts: true)
        case .wait(let reason):
            return make(nil, reason, counts: false, dueIn: wait(reason, until))
        case .notFound
        where appleUpdate.attempt + 1 >= AppleUpdateFate.notFoundTries
            && appleUpdate.age >= AppleUpdateFate.notFoundAge * scale:
            return make(.refused, .notFound, counts: true)
        case .notFound: return make(.open, .notFoundYet, counts: true, dueIn: backoff(appleUpdate))
        case .retry(let reason):
            let parking = Parking(scale: scale)
            // As for a receipt, both the time and the number of tries must have passed.
            guard appleUpdate.attempt + 1 >= Parking.attemptsMin, appleUpdate.age >= parking.after else {
                return make(.open, reason, counts: true, dueIn: backoff(appleUpdate))
            }
            let again = min(max(appleUpdate.age - parking.after, parking.againMin), parking.againMax)
            return make(.parked, reason, counts: true, dueIn: again)
        }
    }

    private func backoff(_ appleUpdate: ClaimedAppleUpdate) -> Duration {
        ledger.schedule.delay(afterAttempts: appleUpdate.attempt, random: Double.random(in: 0..<1))
    }

    /// The wait before the next try. It is random, so that rows that wait for the same thing come back one by one.
    private func wait(_ reason: Reason, _ until: Date?) -> Duration {
        let named = until.map { Duration.seconds(max(1, $0.timeIntervalSinceNow)) }
        let least = (reason == .appleBudget ? Self.budgetDelay : Self.pauseDelay) * scale
        return (named ?? least) + least * Double.random(in: 0..<1)
    }

    private func count(_ results: [AppleUpdateResult]) {
        for result in results {
            Counter(
                label: "makegood_apple_update_tries_total",
                dimensions: [
                    ("app", result.appleUpdate.appID), ("kind", result.appleUpdate.kind.rawValue),
                    ("answer", result.counts ? result.reason?.rawValue ?? "done" : "waits"),
                ]
            ).increment()
            guard let state = result.state, state == .refused || state == .parked else { continue }
            logger.warning(
                "Apple does not take what it is told about a purchase",
                metadata: [
                    "app.id": "\(result.appleUpdate.appID)", "apple_update.kind": "\(result.appleUpdate.kind.rawValue)",
                    "apple_update.state": "\(state.rawValue)", "apple.code": "\(result.code ?? 0)",
                ])
        }
    }
}

extension Fate {
    fileprivate var until: Date? {
        if case .postpone(_, let until) = self { until } else { nil }
    }
}
