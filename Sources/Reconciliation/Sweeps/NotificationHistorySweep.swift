import AppStore
import AppleGateway
import Foundation
import Ledger
import Logging
import Purchases
import Service
import Settings
import WorkQueue

/// The sweep of notifications: asks Apple for those that Apple could not bring, and for all of them once a day and
/// after an outage or a restored database. `notification_windows` has a row for each span that is yet to be read; a
/// round reads one page of each of a few spans.
struct NotificationHistorySweep: Sendable {
    /// Between two questions for failures.
    static let failuresInterval: Duration = .seconds(3600)
    /// Between two questions for everything.
    static let allInterval: Duration = .seconds(86_400)
    /// After so many failures of a page in a row the sweep goes on behind the page, or begins anew.
    static let failuresMax = 5
    /// Pages of one walk. A longer list begins anew in two halves: a list whose pages repeat has no end.
    static let pagesMax = 5000

    /// The memory of a loop between its rounds.
    struct State: Sendable {
        var rests = SweepRests<SweptBuild>()
        /// The builds whose failures were asked for since the start of this worker.
        var begun: Set<SweptBuild> = []
    }

    private enum PageResult: Sendable {
        case moved
        case failed
        case rests(SweptBuild, until: Date?)
    }

    private let sweeps: Sweeps
    private var ledger: Ledger { sweeps.ledger }
    private var scale: Double { sweeps.ledger.schedule.scale }

    init(_ sweeps: Sweeps) { self.sweeps = sweeps }

    /// Runs until the task is cancelled.
    func run() async {
        var state = State()
        await sweeps.loop { await round(&state) }
    }

    /// Makes the windows that are due, and reads a page of a few windows.
    ///
    /// - Returns: whether more pages may be due.
    @discardableResult
    func round(_ state: inout State) async -> Bool {
        do {
            let builds = askedBuilds
            let fresh = builds.filter { !state.begun.contains($0) }
            if !fresh.isEmpty {
                _ = try await ledger.run(Statements.beginNotificationSweeps, fresh)
                state.begun.formUnion(fresh)
            }
            let made = try await ledger.run(
                Statements.planNotificationWindows,
                .init(builds: builds, failuresEvery: Self.failuresInterval * scale, allEvery: Self.allInterval * scale))
            if made.contains("outage") {
                sweeps.logger.notice(
                    "workers ask Apple for all notifications since the last sweep: nobody asked, or the database moved"
                )
            }
            let claimed = try await ledger.run(
                Statements.claimNotificationWindows,
                .init(
                    builds: builds.filter { [rests = state.rests] in !rests.isResting($0) }, limit: Sweeps.callsMax,
                    lease: sweeps.lease))
            let results = await withTaskGroup(of: PageResult.self) { group in
                for window in claimed { group.addTask { await readPage(of: window) } }
                return await group.reduce(into: []) { $0.append($1) }
            }
            for case .rests(let build, let until) in results { state.rests.rest(build, until: until, scale: scale) }
            return results.contains { if case .moved = $0 { true } else { false } }
        } catch {
            // The leases end, and the windows are due again.
            sweeps.logger.debug("database is away", metadata: LogKeys.error(error))
            return false
        }
    }

    /// The builds about which Apple can be asked: of apps with credentials that are neither halted nor paused.
    private var askedBuilds: [SweptBuild] {
        sweeps.askable { $0.serverAPI != nil && sweeps.halts.halt(of: .serverApi, for: $0) == nil }.flatMap { id, app in
            app.lookUpOrder.flatMap { environment in
                ([app.identity.bundleId] + app.identity.bundleIdAliases).map { bundleID in
                    SweptBuild(
                        appID: id, environment: environment.rawValue, bundleID: bundleID,
                        reach: NotificationHistoryQuery.reach(in: environment))
                }
            }
        }
    }

    // MARK: One page

    private func readPage(of window: ClaimedWindow) async -> PageResult {
        do {
            guard !window.isForgotten else {
                sweeps.logger.error(
                    "a span of notifications is given up, because Apple has forgotten it", metadata: names(window))
                _ = try await ledger.run(Statements.endNotificationWindow, window)
                return .moved
            }
            guard let app = sweeps.apps[window.appID]?.speaking(for: window.bundleID),
                let api = sweeps.appleGateway.serverAPI(of: app, lane: .sweep)
            else { return .failed }
            let environment = StoreEnvironment(rawValue: window.environment)
            let query = try NotificationHistoryQuery(
                from: window.start, to: window.end, onlyFailures: window.onlyFailures)
            let page: NotificationPage
            do throws(AppleRefusal) {
                page = try await sweeps.appleGateway.ask(.serverApi, for: app) {
                    () async throws(AppStoreFailure) -> (answer: NotificationPage, calls: [ServiceCall]) in
                    var pages = api.notificationHistory(query, after: window.page, in: environment)
                        .makeAsyncIterator()
                    guard let answer = try await pages.next() else { throw AppStoreFailure(.garbage) }
                    return (answer.value, answer.calls)
                }.answer
            } catch {
                return try await take(error, window)
            }
            return try await take(page, of: window, for: app, environment)
        } catch {
            // The lease ends, and the window is due again.
            sweeps.logger.debug("a page of notifications could not be kept", metadata: LogKeys.error(error))
            return .failed
        }
    }

    private func take(
        _ page: NotificationPage, of window: ClaimedWindow, for app: AppServices, _ environment: StoreEnvironment
    ) async throws -> PageResult {
        var (notifications, passedOver) = ([UUID: NewNotification](), 0)
        let isTriedOften = window.attempts + 1 >= Self.failuresMax
        for sent in page.notifications {
            switch try await entry(sent, for: app, environment) {
            case .notification(let notification): notifications[notification.id] = notification
            case .test: break
            case .unverified: passedOver += 1
            // A responder gave no answer, which says nothing about the entry. The other entries do not wait for ever.
            case .unknownYet:
                guard isTriedOften else { return try await fail(window) }
                passedOver += 1
            }
        }
        if passedOver > 0, passedOver == page.notifications.count, !isTriedOften { return try await fail(window) }
        if page.next != nil, window.pages >= Self.pagesMax {
            sweeps.logger.warning("a list of notifications at Apple has no end", metadata: names(window))
            return try await halve(window)
        }
        let new = try await ledger.store(
            ReadHistoryPage(
                window, notifications: notifications.values.sorted { $0.id.uuidString < $1.id.uuidString },
                next: page.next, passedOver: passedOver, againAfter: Self.failuresInterval * scale))
        // The rows are due as well; these messages only save the wait for the scheduler.
        for id in new { sweeps.workQueue.publish(Pointer(notificationID: id, attempt: 0), lane: .unposted) }
        tell(window, found: new.count, passedOver: passedOver)
        return .moved
    }

    private enum Entry {
        case notification(NewNotification)
        /// A test says that the URL works, and nothing else.
        case test
        case unverified
        case unknownYet
    }

    /// An entry of Apple's list, read as ingest reads a notification, but only of this app and environment, and never
    /// sent on to the app's other URL.
    private func entry(
        _ sent: SentNotification, for app: AppServices, _ environment: StoreEnvironment
    ) async throws -> Entry {
        guard let payload = sent.signedPayload else { return .unverified }
        let (notification, bundleID): (SignedNotification, String?)
        do throws(VerificationFailure) {
            let jws = try CompactJWS(payload, bytesMax: CompactJWS.notificationBytesMax)
            notification = try await app.verifier.notification(ofAnyApp: jws, verifiesInside: false)
            bundleID = notification.bundleId ?? SignedNotification.bundleIDOfNewerObject(in: jws.payload)
        } catch {
            return error.isRetryable ? .unknownYet : .unverified
        }
        guard notification.isOf(app.identity, bundleID: bundleID),
            notification.environment.map({ $0 == environment }) ?? true
        else { return .unverified }
        guard notification.notificationType != "TEST" else { return .test }
        var new = NewNotification(
            notification, payload: payload, appID: app.configuration.id, isForwarded: false)
        new.cameBy = .notificationHistory
        return .notification(new)
    }

    // MARK: Failures

    private func take(_ refusal: AppleRefusal, _ window: ClaimedWindow) async throws -> PageResult {
        let build = SweptBuild(
            appID: window.appID, environment: window.environment, bundleID: window.bundleID,
            reach: NotificationHistoryQuery.reach(in: StoreEnvironment(rawValue: window.environment)))
        switch refusal.fate {
        case .postpone(_, let until): return .rests(build, until: until)
        case .halt, .hold: return .rests(build, until: nil)
        case .retry, .reject: break
        }
        switch refusal.calls.last?.code {
        case Self.paginationTokenExpired, Self.invalidPaginationToken:
            return try await halve(window)
        case Self.startDateTooFarInPast: return try await fail(window, forgetsPage: true)
        default: break
        }
        // An answer that can never be read, among them a page that leads back to itself; or that never comes in time.
        let isUnreadable =
            (refusal.calls.last?.httpStatus == 200 || refusal.isLate) && window.attempts + 1 >= Self.failuresMax
        return isUnreadable ? try await halve(window) : try await fail(window)
    }

    // AppleFacts 3.7.
    private static let startDateTooFarInPast: Int64 = 4_000_012
    private static let invalidPaginationToken: Int64 = 4_000_014
    private static let paginationTokenExpired: Int64 = 4_000_017

    private func fail(_ window: ClaimedWindow, forgetsPage: Bool = false) async throws -> PageResult {
        _ = try await ledger.run(
            Statements.failNotificationWindow, .init(window, dueIn: delay(window), forgetsPage: forgetsPage))
        return .failed
    }

    /// Has the list begin anew, in two halves.
    private func halve(_ window: ClaimedWindow) async throws -> PageResult {
        _ = try await ledger.run(Statements.halveNotificationWindow, (window: window, dueIn: delay(window)))
        return .failed
    }

    private func delay(_ window: ClaimedWindow) -> Duration {
        ledger.schedule.delay(afterAttempts: window.attempts, random: Double.random(in: 0..<1))
    }

    // MARK: What operators see

    private func tell(_ window: ClaimedWindow, found: Int, passedOver: Int) {
        if found > 0 {
            sweeps.logger.notice(
                "notifications found at Apple that did not come",
                metadata: names(window).merging(["notifications": "\(found)"]) { $1 })
        }
        if passedOver > 0 {
            sweeps.logger.error(
                "Apple lists notifications that do not verify",
                metadata: names(window).merging(["entries": "\(passedOver)"]) { $1 })
        }
    }

    private func names(_ window: ClaimedWindow) -> Logger.Metadata {
        [
            "app.id": "\(window.appID)", "apple.environment": "\(window.environment)", "window": "\(window.id)",
            "app.bundle": "\(window.bundleID)",
        ]
    }
}
