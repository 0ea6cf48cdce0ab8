import AppStore
import AppleGateway
import Foundation
import Ledger
import Logging
import Metrics
import Purchases
import Service
import Synchronization

/// A loop that answers Apple's questions about refunds from the ledger (B11, P33). Any number of workers may run this;
/// the rows of `refund_requests` say which requests are open and when each is due.
///
/// The runner decides the answer right before the call, by the facts of that moment: a user may have withdrawn the
/// consent meanwhile, and the app's backend may have reported consumption. If a worker dies, the next worker takes over
/// its rows. Apple may then get an answer twice, and the second one counts.
struct RefundRequestRunner: Sendable {
    static let interval: Duration = .seconds(5)
    /// Calls at a time, in each process. The calls for purchases go first.
    static let callsMax = 4
    private static let pauseDelay: Duration = .seconds(60)

    let ledger: Ledger
    let apps: AppDirectory
    let halts: Halts
    let appleGateway: AppleGateway
    let logger: Logger
    private let refusals = DailyNotice()

    init(ledger: Ledger, apps: AppDirectory, halts: Halts, appleGateway: AppleGateway, logger: Logger) {
        self.ledger = ledger
        self.apps = apps
        self.halts = halts
        self.appleGateway = appleGateway
        self.logger = logger
    }

    /// Runs until the task is cancelled.
    func run() async {
        while !Task.isCancelled {
            guard await !round() else { continue }
            try? await Task.sleep(for: max(.milliseconds(50), Self.interval * scale))
        }
    }

    /// Ends late requests, claims due requests, and answers them.
    ///
    /// - Returns: whether more requests may be due and some of these have ended.
    @discardableResult
    func round() async -> Bool {
        do {
            for appID in try await ledger.run(Statements.endLateRefundRequests, ()) { count(appID, .tooLate) }
            let claimed = try await ledger.run(
                Statements.claimRefundRequests, .init(apps: answeringApps, limit: Self.callsMax, lease: lease))
            guard !claimed.isEmpty else { return false }
            let results = await withTaskGroup(of: RefundRequestResult?.self) { group in
                for request in claimed { group.addTask { await answer(request) } }
                var results: [RefundRequestResult] = []
                for await case let result? in group { results.append(result) }
                return results
            }
            let reported = Set(try await ledger.run(Statements.reportRefundRequests, results))
            let ended = results.filter { $0.state != nil && reported.contains($0.request.notificationID) }
            for result in ended { note(result) }
            return claimed.count == Self.callsMax && !ended.isEmpty
        } catch {
            // The lease ends, and the requests are due again.
            logger.debug("database is away", metadata: LogKeys.error(error))
            return false
        }
    }

    private var scale: Double { ledger.schedule.scale }

    /// How long a claim lasts: at least twice the longest call with the longest wait for it.
    private var lease: Duration {
        max(ledger.schedule.rescueDelay(.apple), (ledger.schedule.callLimit + Governor.patience) * 2)
    }

    /// The apps that nobody paused, each with its time to answer. The due requests of a paused app wait.
    private var answeringApps: [(id: String, answerAfter: Duration)] {
        apps.ids.compactMap { id in
            guard let app = apps[id], !halts.isPaused(id) else { return nil }
            return (id: id, answerAfter: app.policy.refunds.answerAfter * scale)
        }
    }

    // MARK: One request

    /// Nil where the database did not answer: the lease ends, and the request is due again.
    private func answer(_ claimed: ClaimedRefundRequest) async -> RefundRequestResult? {
        let request = claimed.request
        guard let app = apps[request.appID],
            let facts = try? await ledger.run(Statements.refundFacts, .init(request)).first
        else { return nil }
        var result = RefundRequestResult(claimed)
        switch app.policy.answer(to: request, facts, edit: claimed.edit, age: claimed.age) {
        case .silence(let reason):
            result.state = .unanswered
            result.silence = reason
        case .send(let statement):
            do throws(InvalidRequest) {
                let body = try ConsumptionBody(statement)
                result.answer = body.json
                result.apiVersion = statement.apiVersion
                await send(body, claimed, for: app, &result)
            } catch {
                // A defect of the program: the same combination is forbidden again.
                logger.error(
                    "an answer about a refund breaks Apple's rules",
                    metadata: ["app.id": "\(request.appID)", "field": "\(error.field)"])
                result.state = .unanswered
                result.silence = .refused
            }
        }
        return result
    }

    private func send(
        _ body: ConsumptionBody, _ claimed: ClaimedRefundRequest, for app: AppServices,
        _ result: inout RefundRequestResult
    ) async {
        var fate = await attempt(body, claimed.request, for: app, &result)
        // No row tells the bundle id that sold the purchase.
        for build in app.otherBuilds where fate == .notFound {
            fate = await attempt(body, claimed.request, for: build, &result)
        }
        switch fate {
        case nil:
            result.state = .answered
            result.counts = true
        case .refused:
            result.state = .unanswered
            result.silence = .refused
            result.counts = true
        case .retry, .notFound:
            result.answer = nil
            result.apiVersion = nil
            result.counts = true
            result.dueIn = ledger.schedule.delay(
                afterAttempts: claimed.attempt, random: Double.random(in: 0..<1))
        case .wait(let until):
            result.answer = nil
            result.apiVersion = nil
            let least = Self.pauseDelay * scale
            let named = until.map { Duration.seconds(max(1, $0.timeIntervalSinceNow)) }
            result.dueIn = (named ?? least) + least * Double.random(in: 0..<1)
        }
    }

    /// Tells Apple, and returns the failure. Nil: Apple took the answer.
    private func attempt(
        _ body: ConsumptionBody, _ request: RefundRequest, for app: AppServices, _ result: inout RefundRequestResult
    ) async -> RefundRequestFate? {
        guard let api = appleGateway.serverAPI(of: app, lane: .repair) else { return .wait(until: nil) }
        do {
            let calls = try await appleGateway.ask(.serverApi, for: app) {
                () async throws(AppStoreFailure) -> (answer: Void, calls: [ServiceCall]) in
                ((), try await tell(body, request, api).calls)
            }.calls
            take(calls.last, &result)
            return nil
        } catch {
            take(error.calls.last, &result)
            return RefundRequestFate(error)
        }
    }

    private func tell(
        _ body: ConsumptionBody, _ request: RefundRequest, _ api: ServerAPIClient
    ) async throws(AppStoreFailure) -> ServerAPIClient.Answer<Void> {
        let environments = [StoreEnvironment(rawValue: request.environment)]
        switch body {
        case .v1(let information):
            return try await api.sendConsumption(of: request.transactionID, information, in: environments)
        case .v2(let information):
            return try await api.sendConsumption(of: request.transactionID, information, in: environments)
        }
    }

    private func take(_ call: ServiceCall?, _ result: inout RefundRequestResult) {
        guard let call else { return }
        result.httpStatus = call.httpStatus
        result.code = call.code.map(Int.init(clamping:))
    }

    // MARK: What operators see

    /// Counts the ended requests. A refusal for good is no alarm: the log names it once for each app and day.
    private func note(_ result: RefundRequestResult) {
        count(result.request.appID, result.silence)
        guard result.silence == .refused, refusals.isFirst(of: result.request.appID, at: .now) else { return }
        logger.notice(
            "Apple will not take an answer about a refund; further ones of this app and day are counted only",
            metadata: [
                "app.id": "\(result.request.appID)", "transaction.id": "\(result.request.transactionID)",
                "apple.code": "\(result.code ?? 0)",
            ])
    }

    private func count(_ appID: String, _ silence: RefundSilence?) {
        Counter(
            label: "makegood_refund_requests_total",
            dimensions: [("app", appID), ("answer", silence?.rawValue ?? "answered")]
        ).increment()
    }
}

/// Says of each app once in a day of UTC that something happened.
final class DailyNotice: Sendable {
    private let days = Mutex<[String: Int]>([:])

    func isFirst(of appID: String, at now: Date) -> Bool {
        let day = Int((now.timeIntervalSince1970 / 86_400).rounded(.down))
        return days.withLock { $0.updateValue(day, forKey: appID) != day }
    }
}
