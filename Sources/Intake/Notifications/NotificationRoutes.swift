import AppStore
import Crypto
import Encoding
import Foundation
import Hummingbird
package import Ledger
package import Logging
import Metrics
import Purchases
package import Service
package import Settings
import Synchronization
package import WorkQueue

/// `POST /v1/apple/notifications` (version 2) and `POST /v1/apple/notifications/v1`.
///
/// Apple sends no credential: the signature is the credential, or in version 1 the app's shared secret. One address
/// serves all apps and both environments. Ingest answers 200 after the row is committed, and a worker reads what the
/// notification says. Apple takes each answer but 200 as a failure, and comes again a few times only. So ingest answers a
/// fault of ours with 503, and so a missing shared secret, and refuses nothing that Apple signed.
package struct NotificationRoutes: Sendable {
    /// The outcome of a notification's post. The raw value is the word in metrics and answers.
    private enum Outcome: String {
        case stored
        /// The notification was stored before.
        case repeated
        /// The notification is Apple's, and no app here has its bundle id. Ingest stores and holds the notification.
        case unknownApp = "app_unknown"
        /// As ``unknownApp``, but the day's bound for such notifications is reached. Ingest does not store the
        /// notification.
        case overBound = "over_bound"
    }

    /// Nothing proves that Apple sent the notification.
    private struct Refused: Error {
        let reason: NotificationRefusal
        /// The app that version 1 names.
        var appID: String?

        /// 401. Where the configuration lacks the secret that could prove it, the fault is ours: 503, and Apple sends
        /// the notification again.
        var problem: Problem {
            reason == .noSecret
                ? .unavailable() : .notApples("nothing proves that Apple sent it: \(reason.rawValue)")
        }
    }

    /// Notifications about unknown apps that one process stores in a day, by UTC. Anybody with an app at Apple can have
    /// Apple send its notifications here.
    package static let unknownAppsPerDay = 1000
    /// Verifications that wait; one more is answered 503.
    private static let waitersMax = 512
    private static let apple = Caller(name: "apple", userID: nil, scopes: [], apps: [])

    private let ledger: Ledger
    private let workQueue: WorkQueue
    private let configuration: ConfigurationHolder
    private let bodies: BodyReader
    private let logger: Logger
    private let security: SecurityLog
    private let verifiers = NotificationVerifiers()
    /// Verifications at a time: one for each core while no post is in flight, otherwise half as many, so that a flood of
    /// notifications leaves half of the cores to posts. A verification beside a post weighs two.
    private let turns = AsyncSemaphore(
        max(2, ProcessInfo.processInfo.activeProcessorCount), waitersMax: waitersMax)
    private let unknownApps: DayCount
    private let refusals = OncePerMinute<NotificationRefusal>()
    private let strangers = OncePerMinute<Outcome>()

    package init(
        ledger: Ledger, workQueue: WorkQueue, configuration: ConfigurationHolder, bodies: BodyReader, logger: Logger,
        security: SecurityLog, unknownAppsPerDay: Int = unknownAppsPerDay
    ) {
        self.ledger = ledger
        self.workQueue = workQueue
        self.configuration = configuration
        self.bodies = bodies
        self.logger = logger
        self.security = security
        unknownApps = DayCount(max: unknownAppsPerDay)
    }

    package func add(to router: some RouteTable) {
        router.serve(
            "/v1/apple/notifications",
            [
                .post: Endpoint(storesPurchases: true) { request, context in
                    try await answer(request, context, version: 2, atMost: CompactJWS.notificationBytesMax, signed)
                }
            ])
        router.serve(
            "/v1/apple/notifications/v1",
            [
                .post: Endpoint(storesPurchases: true) { request, context in
                    // It carries a whole receipt, so it may be as long as a post of one.
                    try await answer(request, context, version: 1, unsigned)
                }
            ])
    }

    // MARK: Answers

    private func answer(
        _ request: Request, _ context: HTTPContext, version: Int, atMost bytesMax: Int = .max,
        _ read: ([UInt8]) async throws -> NewNotification
    ) async throws -> Response {
        do {
            // No password could be right: nothing of the body is read.
            if version == 1, !configuration.current.apps.values.contains(where: \.hasSharedSecret) {
                throw Refused(reason: .noSecret)
            }
            let (id, outcome) = try await bodies.withBody(
                of: request, context, from: Self.apple, atMost: bytesMax, isNotification: true
            ) { body in
                let notification = try await inTurn { try await read(body) }
                return (notification.id, try await store(notification))
            }
            count(outcome.rawValue, version)
            return Response(
                json: .object([
                    .init("id", .string(id.text)), .init("outcome", .string(outcome.rawValue)),
                ]))
        } catch let refused as Refused {
            let problem = refused.problem
            count(problem.status == .serviceUnavailable ? "unavailable" : "refused", version)
            note(refused)
            throw problem
        } catch {
            guard let problem = Self.problem(error) else { throw error }
            count(problem.status == .serviceUnavailable ? "unavailable" : "malformed", version)
            throw problem
        }
    }

    /// Lets as many notifications be verified at one time as posts leave cores for.
    private func inTurn(_ read: () async throws -> NewNotification) async throws -> NewNotification {
        let weight = bodies.hasPosts ? 2 : 1
        guard await turns.enter(weight) else { throw Problem.unavailable() }
        defer { turns.leave(weight) }
        return try await read()
    }

    /// The answer to a body that is no notification of Apple's, and to a fault of our own. Nil for an error of the
    /// connection.
    private static func problem(_ error: any Error) -> Problem? {
        switch error {
        case is any StoreError, is ConfigurationError: .unavailable()
        case let problem as Problem:
            switch problem.status {
            case .unsupportedMediaType: .malformed(.notJSON, "the body must be a JSON object", field: nil)
            case .internalServerError: .unavailable()
            default: problem
            }
        default: nil
        }
    }

    private func count(_ answer: String, _ version: Int) {
        Counter(
            label: "makegood_notifications_total", dimensions: [("version", String(version)), ("answer", answer)]
        ).increment()
    }

    /// Counts each refusal, and writes a line for each reason into the security log once a minute.
    private func note(_ refused: Refused) {
        Counter(
            label: "makegood_notification_refusals_total", dimensions: [("reason", refused.reason.rawValue)]
        ).increment()
        guard let count = refusals.take(refused.reason) else { return }
        var metadata: Logger.Metadata = [:]
        if let appID = refused.appID { metadata["app.id"] = "\(appID)" }
        if refused.reason == .noSecret { metadata["setting"] = "verifyReceipt.sharedSecret" }
        security.note(.notificationRefused(refused.reason), count: count, metadata)
    }

    // MARK: Steps

    /// Reads and verifies `{"signedPayload": …}`.
    private func signed(_ body: [UInt8]) async throws -> NewNotification {
        let json = try Self.object(body)
        try json.refuseDuplicates(of: ["signedPayload"])
        guard case .string(let payload)? = json["signedPayload"] else {
            throw Problem.wrongType("signedPayload", "a JWS")
        }
        let verifiers = try verifiers.of(configuration.current)
        do throws(VerificationFailure) {
            let (notification, app) = try await verifiers.verified(payload)
            return NewNotification(
                notification, payload: payload, appID: app?.id,
                isForwarded: app?.notifications.forwardTo != nil)
        } catch {
            if error.isRetryable { throw Problem.unavailable() }
            throw Refused(reason: NotificationRefusal(rawValue: error.reason.rawValue) ?? .malformed)
        }
    }

    /// Reads the JSON of version 1, and compares its password with the shared secrets of the apps with its bundle id.
    private func unsigned(_ body: [UInt8]) async throws -> NewNotification {
        let json = try Self.object(body)
        try json.refuseDuplicates(of: [
            "notification_type", "bid", "password", "environment", "unified_receipt", "latest_receipt",
        ])
        for field in ["notification_type", "bid"] {
            guard case .string(let text)? = json[field], !text.isEmpty else { throw Problem.wrongType(field, "a text") }
        }
        guard case .string(let bundleID)? = json["bid"] else { throw Problem.wrongType("bid", "a text") }
        let apps = configuration.current.apps.values.filter { $0.identity.admits(bundleID) }.sorted { $0.id < $1.id }
        guard let first = apps.first else { throw Refused(reason: .unknownApp) }
        guard apps.contains(where: \.hasSharedSecret) else {
            throw Refused(reason: .noSecret, appID: first.id)
        }
        var password = ""
        if case .string(let text)? = json["password"] { password = text }
        let proven = apps.filter { $0.verifyReceipt?.sharedSecret.map { Self.isSame(password, $0) } ?? false }
        guard !proven.isEmpty else { throw Refused(reason: .password, appID: first.id) }
        let kept = NotificationV1.withoutPassword(json)
        guard let members = try? JSON(parsing: kept.bytes).object, let notification = try? NotificationV1(members)
        else {
            throw Problem.malformed(.duplicateMember, "holds a member twice", field: nil)
        }
        let app = proven.first { app in notification.environment.map(app.identity.environments.contains) ?? true }
        let owner = app ?? proven[0]
        return NewNotification(
            notification, payload: kept.text, appID: owner.id, isForwarded: owner.notifications.forwardTo != nil)
    }

    private static func object(_ body: [UInt8]) throws(Problem) -> JSONValue {
        let json: JSONValue
        do {
            json = try JSONValue(parsing: body)
        } catch {
            throw Problem(error)
        }
        guard case .object = json else { throw .malformed(.notJSON, "the body must be a JSON object", field: nil) }
        return json
    }

    /// Compares every byte of both hashes: the time taken tells an attacker nothing.
    private static func isSame(_ one: String, _ other: String) -> Bool {
        let hashes = zip(SHA256.hash(data: Array(one.utf8)), SHA256.hash(data: Array(other.utf8)))
        return hashes.reduce(0 as UInt8) { $0 | ($1.0 ^ $1.1) } == 0
    }

    /// Stores a notification; the row is committed on return. Ingest publishes the id of a new one to RabbitMQ.
    private func store(_ notification: NewNotification) async throws(LedgerError) -> Outcome {
        let isOfStranger = notification.appID == nil
        if isOfStranger, !unknownApps.take() {
            warn(of: notification, .overBound)
            return .overBound
        }
        let isNew: Bool
        do throws(LedgerError) {
            isNew = try await ledger.store(notification)
        } catch {
            if isOfStranger { unknownApps.giveBack() }
            throw error
        }
        guard isNew else {
            if isOfStranger { unknownApps.giveBack() }
            // The row is there, so the count decides nothing about the answer.
            try? await ledger.countRepeat(ofNotification: notification.id)
            return .repeated
        }
        if isOfStranger {
            warn(of: notification, .unknownApp)
            return .unknownApp
        }
        CrashPoint.afterCommitBeforePublish.reached()
        workQueue.publish(Pointer(notificationID: notification.id, attempt: 0), lane: .unposted)
        return .stored
    }

    private func warn(of notification: NewNotification, _ outcome: Outcome) {
        guard let count = strangers.take(outcome) else { return }
        logger.warning(
            """
            Apple sends notifications of an app that is not configured: add its bundle id and appAppleId to apps, or \
            take this server's address out of the app at App Store Connect
            """,
            metadata: [
                "app.bundle": "\(notification.bundleID ?? "")", "app.environment": "\(notification.environment ?? "")",
                "notifications": "\(count)", "stored": "\(outcome == .unknownApp)",
            ])
    }
}

extension AppConfiguration {
    fileprivate var hasSharedSecret: Bool { verifyReceipt?.sharedSecret != nil }
}
