import AppStore
import AppStoreSimulator
import Foundation
import Purchases
import RabbitMQ
import Testing

@testable import AppleGateway
@testable import Ledger
@testable import Reconciliation
@testable import Service
@testable import Settings
@testable import WorkQueue

/// A worker that sweeps the notification history of a simulated App Store over real HTTP, round by round.
struct NotificationSweepLab: Sendable {
    static let build = SweptBuild(
        appID: VerifyLab.appID, environment: "Production", bundleID: VerifyLab.bundleID, reach: .seconds(180 * 86_400))

    let lab: VerifyLab
    let apps: AppDirectory
    let registry = PrometheusRegistry()
    private let sweeps: Sweeps
    private let processor: NotificationProcessor
    private var state = NotificationHistorySweep.State()

    /// A worker of its own, with breakers and proofs of its own.
    ///
    /// - Parameter scale: of the worker's intervals, and of the time that a call may take.
    init(_ lab: VerifyLab, _ more: [String] = [], ocsp: OCSPMode = .off, scale: Double = 1) async throws {
        self.lab = lab
        try lab.store.register(RegisteredApp(app: VerifyLab.bundleID, appAppleId: 1))
        apps = AppDirectory(http: lab.http)
        let ledger =
            scale == 1
            ? lab.lab.ledger
            : Ledger(database: lab.lab.ledger.database, writers: 1, schedule: RetrySchedule(scale: scale))
        try await apps.update(try lab.configuration(ocsp: ocsp, more: more), ledger: ledger)
        let queues = Queues()
        let publisher = Publisher(
            try BrokerConfiguration(url: "amqp://127.0.0.1:1"), topology: queues.topology, logger: .silent)
        await publisher.close()
        let workQueue = WorkQueue(publisher: publisher, queues: queues)
        let followUps = FollowUpSignal()
        sweeps = Sweeps(
            ledger: ledger, apps: apps, halts: lab.halts,
            appleGateway: AppleGateway(halts: lab.halts, governor: lab.governor()), workQueue: workQueue,
            followUps: followUps, logger: .silent, metrics: registry)
        processor = NotificationProcessor(
            ledger: ledger, apps: apps, workQueue: workQueue, followUps: followUps, logger: .silent)
    }

    static func with(
        _ more: [String] = [], namesResponder: Bool = false, ocsp: OCSPMode = .off,
        _ body: (inout NotificationSweepLab) async throws -> Void
    ) async throws {
        try await VerifyLab.with(namesResponder: namesResponder) { lab in
            var bench = try await NotificationSweepLab(lab, more, ocsp: ocsp)
            try await body(&bench)
        }
    }

    // MARK: The worker

    @discardableResult
    mutating func round() async -> Bool { await NotificationHistorySweep(sweeps).round(&state) }

    /// Rounds until no page is due.
    mutating func sweep() async {
        for _ in 0..<200 {
            guard await round() else { return }
        }
        Issue.record("the sweep has no end")
    }

    /// Makes the windows that are due, and returns the purpose of each.
    func plan() async throws -> [String] {
        try await lab.lab.ledger.run(
            Statements.planNotificationWindows,
            .init(
                builds: [Self.build], failuresEvery: NotificationHistorySweep.failuresInterval,
                allEvery: NotificationHistorySweep.allInterval))
    }

    func measure() async throws { try await sweeps.measureOnce() }

    /// Has a worker judge every notification that waits.
    func hearAll() async throws {
        for id in try await lab.lab.texts("select id::text from notifications where state = 'received' order by id") {
            let pointer = Pointer(notificationID: try #require(UUID(uuidString: id)), attempt: 0)
            #expect(await processor.process(pointer, redelivered: false) == .done)
        }
    }

    // MARK: Apple

    /// A notification that Apple could not bring, unless it did.
    @discardableResult
    func hold(
        _ type: String = "ONE_TIME_CHARGE", about sale: Sale? = nil, arrived: Bool = false
    ) throws -> (id: String, signedPayload: String) {
        var request = NotificationRequest(
            app: VerifyLab.bundleID, notificationType: type, transactionId: sale?.purchase.transactionId)
        request.sendAttempts = [
            .init(
                attemptDate: Int64(Date.now.timeIntervalSince1970 * 1000),
                sendAttemptResult: arrived ? "SUCCESS" : "UNSUCCESSFUL_HTTP_RESPONSE_CODE")
        ]
        let (notification, payload) = try lab.store.hold(request)
        return (notification.notificationUUID, payload)
    }

    /// So many notifications about purchases, none of which Apple could bring.
    func holdMany(_ count: Int) async throws {
        for _ in 0..<count { try hold(about: try await lab.sell()) }
    }

    var calls: Int { lab.store.calls().count }

    // MARK: The database

    /// Makes the windows due.
    func passes() async throws { try await lab.lab.run("update notification_windows set due_at = now()") }

    /// An hour passes, and a worker asks for failures again.
    func anHourPasses() async throws {
        try await lab.lab.run(
            """
            update notification_sweeps set failures_due_at = now(), asked_until = asked_until - interval '1 hour'
            """)
    }

    var stored: Int {
        get async throws { try await lab.lab.number("select count(*) from notifications") }
    }

    var windows: Int {
        get async throws { try await lab.lab.number("select count(*) from notification_windows") }
    }

    /// `passed_over` of `v_sweeps`.
    var passedOver: Int {
        get async throws {
            try await lab.lab.number("select coalesce(sum(passed_over), 0)::bigint from v_sweeps")
        }
    }
}
