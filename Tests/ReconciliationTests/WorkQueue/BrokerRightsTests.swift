import Foundation
import Logging
import Purchases
import RabbitMQ
import TestServers
import Testing

@testable import WorkQueue

/// Goal: at the broker, each user can do its service's work and nothing else, and a service that may not declare queues
/// works on queues that another user declared. Method: the users of deploy/local, whose permissions are those that
/// `makegood roles --rabbitmq` prints, on the real broker.
@Suite(.serialized, .timeLimit(.minutes(3))) struct BrokerRightsTests {
    /// Lends a test its queues. The broker is told their names so that it deletes them afterwards.
    private static func withQueues(_ body: (TestBroker, Queues) async throws -> Void) async throws {
        try await TestBroker.run { broker in
            let prefix = String(broker.queue("x").dropLast(2))
            let queues = Queues(prefix: prefix)
            for queue in queues.topology.queues { _ = broker.queue(String(queue.name.dropFirst(prefix.count + 1))) }
            try await body(broker, queues)
        }
    }

    private static func configuration(_ broker: TestBroker, as user: String) throws -> BrokerConfiguration {
        var parts = try #require(URLComponents(string: broker.url))
        parts.user = "makegood_\(user)"
        parts.password = parts.user
        return try BrokerConfiguration(url: try #require(parts.string))
    }

    private static func withPublisher(
        _ broker: TestBroker, as user: String, _ queues: Queues, _ body: (Publisher) async throws -> Void
    ) async throws {
        let publisher = Publisher(
            try configuration(broker, as: user), topology: queues.topology, logger: .silent)
        await publisher.start()
        do {
            try await body(publisher)
        } catch {
            await publisher.close()
            throw error
        }
        await publisher.close()
    }

    private static func declare(_ broker: TestBroker, _ queues: Queues) async throws {
        try await withPublisher(broker, as: "deploy", queues) { try await $0.declare() }
    }

    /// Whether this user may take messages from this queue.
    private static func mayConsume(_ broker: TestBroker, as user: String, _ queues: Queues, from queue: String)
        async throws -> Bool
    {
        let consumer = Consumer(
            try configuration(broker, as: user), topology: queues.topology,
            subscriptions: [Subscription(queue: queue, prefetch: 1)], logger: .silent)
        await consumer.start()
        let isConnected = consumer.isConnected
        await consumer.close()
        return isConnected
    }

    @Test func theTestsUseWhatIsPrinted() throws {
        struct Row: Decodable {
            let user, configure, write, read: String
        }
        let json = try Program.run(
            Program.deployLocal, ["rabbitmqctl", "-q", "list_permissions", "-p", "/", "--formatter", "json"])
        let rows = try JSONDecoder().decode([Row].self, from: Data(json.utf8)).filter { $0.user != "guest" }
        let granted = rows.map {
            BrokerRights(user: $0.user, configure: $0.configure, write: $0.write, read: $0.read)
        }
        let wanted = BrokerRights.all(queues: "(makegood|test-[0-9a-z]+)", userPrefix: "makegood")
        #expect(granted.sorted { $0.user < $1.user } == wanted.sorted { $0.user < $1.user })
        let worker = try #require(
            BrokerRights.all(queuePrefix: "shop.eu-1", userPrefix: "shop").first { $0.user == "shop_worker" })
        #expect(
            worker.command(vhost: "/")
                == #"rabbitmqctl set_permissions -p / shop_worker '^$' '^amq\.default$' '^shop\.eu\-1\.verify\.(local|apple|bulk|unposted)$'"#
        )
    }

    @Test func eachUserDoesItsWorkAndNoOther() async throws {
        try await Self.withQueues { broker, queues in
            try await Self.declare(broker, queues)
            for user in ["ingest", "worker", "dispatcher", "scheduler", "all"] {
                try await Self.withPublisher(broker, as: user, queues) { publisher in
                    #expect(publisher.state == .connected)
                    try await publisher.publish("a pointer", to: queues.verify(.local))
                    #expect(try await publisher.depth(of: queues.dead) == 0)
                    await #expect(throws: RabbitMQError.accessRefused) { try await publisher.declare() }
                }
            }
            try await Self.withPublisher(broker, as: "support", queues) { publisher async throws in
                #expect(try await publisher.depth(of: queues.verify(.local)) == 5)
                await #expect(throws: RabbitMQError.lost) { try await publisher.publish("x", to: queues.dead) }
                await #expect(throws: RabbitMQError.accessRefused) { try await publisher.publish("x", to: queues.dead) }
            }
            let readers = [
                "worker": true, "all": true, "ingest": false, "dispatcher": false, "scheduler": false, "support": false,
            ]
            for (user, may) in readers {
                for lane in Lane.allCases {
                    #expect(
                        try await Self.mayConsume(broker, as: user, queues, from: queues.verify(lane)) == may,
                        "\(user)")
                }
                let mayDeliver = ["dispatcher", "all"].contains(user)
                #expect(
                    try await Self.mayConsume(broker, as: user, queues, from: queues.deliver) == mayDeliver, "\(user)")
                for queue in [queues.dead, queues.retry(0)] {
                    #expect(try await !Self.mayConsume(broker, as: user, queues, from: queue), "\(user) \(queue)")
                }
            }
        }
    }

    /// The broker is new, or it was wiped: no service without the right makes queues of another shape by accident. Once
    /// `makegood queue declare` has run, all services work without a restart.
    @Test func missingQueuesAreNamedAndWaitedFor() async throws {
        try await Self.withQueues { broker, queues in
            try await Self.withPublisher(broker, as: "ingest", queues) { publisher in
                #expect(publisher.state == .disconnected(.topology(queue: queues.dead)))
                await #expect(throws: RabbitMQError.topology(queue: queues.dead)) {
                    try await publisher.publish("a pointer", to: queues.verify(.local))
                }
                try await Self.declare(broker, queues)
                for _ in 0..<1000 where publisher.state != .connected {
                    try await Task.sleep(for: .milliseconds(10))
                }
                try await publisher.publish("a pointer", to: queues.verify(.local))
            }
        }
    }
}
