import Adversary
import AppleGateway
import AsyncHTTPClient
import Delivery
import Foundation
import Ledger
import Postgres
import Purchases
import RabbitMQ
import ServiceLifecycle
import Settings
import TestServers
import Testing
import WorkQueue

@testable import Reconciliation

/// Dispatchers on a real database and a real broker, and a receiver on the loopback. The rings of a scheduler come as in
/// production, only more often.
final class DispatcherLab: Sendable {
    static let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

    let lab: LedgerLab
    let workQueue: WorkQueue
    private let broker: BrokerConfiguration
    private let holder: ConfigurationHolder
    private let scale: Double

    private init(
        _ lab: LedgerLab, _ workQueue: WorkQueue, _ broker: BrokerConfiguration, _ holder: ConfigurationHolder,
        scale: Double
    ) {
        self.lab = lab
        self.workQueue = workQueue
        self.broker = broker
        self.holder = holder
        self.scale = scale
    }

    /// Lends a lab whose app has one endpoint, `shop`.
    ///
    /// - Parameters:
    ///   - members: of the endpoint, beside name, URL and secret, each followed by a comma.
    ///   - scale: of all gaps: 0.01 makes 50 ms of 5 s.
    static func with(
        _ members: String = "", scale: Double = 0.01, script: @escaping EventReceiver.Script = { _, _ in .taken },
        _ body: (DispatcherLab, EventReceiver) async throws -> Void
    ) async throws {
        let trusted = try #require(WebhookSecret(secret))
        let receiver = try await EventReceiver.start(secrets: [trusted], script: script)
        let yaml = """
            apps:
              - id: game
                bundleId: com.example.game
                environments: [Sandbox]
                products: []
                endpoints:
                  - {name: shop, url: '\(receiver.url)', secret: '\(secret)', \(members) allowPrivate: ['127.0.0.1']}
            """
        let holder = ConfigurationHolder(try Configuration.parse(yaml, directory: .temporaryDirectory))
        try await TestBroker.run { testBroker in
            let prefix = String(testBroker.queue("x").dropLast(2))
            let queues = Queues(prefix: prefix)
            for queue in queues.topology.queues { _ = testBroker.queue(String(queue.name.dropFirst(prefix.count + 1))) }
            let broker = try BrokerConfiguration(url: testBroker.url)
            let publisher = Publisher(broker, topology: queues.topology, logger: .silent)
            await publisher.start()
            try await LedgerLab.with(scale: scale, endsSound: false) { lab in
                let workQueue = WorkQueue(publisher: publisher, queues: queues)
                let dispatchers = DispatcherLab(lab, workQueue, broker, holder, scale: scale)
                _ = try await lab.ledger.run(Statements.registerEndpoints, [dispatchers.shop])
                let scheduler = Scheduler(
                    ledger: lab.ledger, workQueue: workQueue, apps: AppDirectory(http: .shared, judges: false),
                    halts: Halts(ledger: lab.ledger, logger: .silent), logger: .silent)
                let ringing = Task {
                    while !Task.isCancelled {
                        await scheduler.ring()
                        try? await Task.sleep(for: .milliseconds(100))
                    }
                }
                let result: Result<Void, any Error>
                do { result = .success(try await body(dispatchers, receiver)) } catch { result = .failure(error) }
                ringing.cancel()
                await ringing.value
                try result.get()
            }
            await publisher.close()
        }
        await receiver.stop()
    }

    var shop: EndpointKey { EndpointKey(appID: "game", name: "shop") }

    /// Runs so many dispatchers, each with connections of its own, for the time of `body`. They end as by SIGTERM.
    func run(_ count: Int = 1, _ body: ([ServiceGroup]) async throws -> Void) async throws {
        let ledgers = (0..<count).map { _ in
            Ledger(
                database: Database(LedgerLab.configuration(lab.url), connections: 2, logger: .silent), writers: 1,
                schedule: RetrySchedule(scale: scale))
        }
        let groups = ledgers.map { ledger in
            let dispatcher = Dispatcher(
                consumer: Consumer(
                    broker, topology: workQueue.queues.topology,
                    subscriptions: Dispatcher.subscriptions(workQueue.queues), logger: .silent),
                workQueue: workQueue, ledger: ledger, configuration: holder, inFlightMax: 256, logger: .silent)
            return ServiceGroup(
                configuration: .init(
                    services: [.init(service: dispatcher, successTerminationBehavior: .ignore)], logger: .silent))
        }
        let running = groups.map { group in Task { try await group.run() } }
        let result: Result<Void, any Error>
        do { result = .success(try await body(groups)) } catch { result = .failure(error) }
        for group in groups { await group.triggerGracefulShutdown() }
        for run in running { _ = await run.result }
        for ledger in ledgers { await ledger.close() }
        try result.get()
    }

    /// Writes the next events of these users, one each in turn, `count` times.
    func tell(_ count: Int = 1, users: [String]) async throws {
        let event = Statement<(users: [String], count: Int), Void>(
            "test.tell_many",
            """
            insert into events (event_id, app_id, type, user_id, transaction_id, receipt_id, body)
            select gen_random_uuid(), 'game', 'subscription.renewed', u, gen_random_uuid()::text, gen_random_uuid(), '{}'
            from generate_series(1, $2::int8) n cross join unnest($1::text[]) u order by n
            """,
            bind: { [.texts($0.users), .int($0.count)] })
        try await lab.database.run(event, (users: users, count: count))
    }

    /// Waits until the receiver has taken so many events of users, and expects no more.
    func untilTaken(_ count: Int, by receiver: EventReceiver, within limit: Duration = .seconds(30)) async throws {
        let deadline = ContinuousClock.now + limit
        while Self.ofUsers(receiver.taken).count < count, ContinuousClock.now < deadline {
            try await Task.sleep(for: .milliseconds(10))
        }
        let taken = Self.ofUsers(receiver.taken).count
        #expect(taken == count, "\(receiver.received.count) webhooks came")
    }

    /// Events about nobody tell of the endpoint itself.
    static func ofUsers(_ webhooks: [EventReceiver.Received]) -> [EventReceiver.Received] {
        webhooks.filter { $0.userID != nil }
    }

    func state() async throws -> String {
        try await lab.texts("select state || coalesce(' ' || reason, '') from endpoints").joined(separator: ", ")
    }
}
