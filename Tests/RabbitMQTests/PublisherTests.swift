import FaultProxy
import Logging
import TestServers
import Testing

@testable import RabbitMQ

/// Goal: a message whose publish returned is in its queue, a publish that throws says why, and nothing waits without
/// limit.
/// Method: the real broker; a second connection deletes queues; a proxy injects frames that a healthy broker never
/// sends.
@Suite struct PublisherTests {
    @Test func tenThousandPipelinedPublishesAreAllConfirmed() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            var configuration = try BrokerConfiguration(url: broker.url)
            configuration.queueLimit = 10_000
            let publisher = Publisher(configuration, topology: .of(queue), logger: .silent)
            await withThrowingTaskGroup(of: Void.self) { group in
                for index in 0..<10_000 {
                    group.addTask { try await publisher.publish("receipt \(index) 0", to: queue) }
                }
                while let result = await group.nextResult() {
                    #expect(throws: Never.self) { try result.get() }
                }
            }
            #expect(try await publisher.depth(of: queue) == 10_000)
            await publisher.close()
        }
    }

    @Test func theDepthIsExactAfterAThousandPublishes() async throws {
        try await TestBroker.run { broker in
            let (queue, other) = (broker.queue("work"), broker.queue("other"))
            let publisher = Publisher(
                try BrokerConfiguration(url: broker.url), topology: .of(queue, other), logger: .silent)
            for index in 1...10 {
                try await publisher.publishAll(100, to: queue)
                #expect(try await publisher.depth(of: queue) == index * 100)
            }
            #expect(try await publisher.depth(of: other) == 0)
            // Another process knows the queue by name only.
            let stranger = Publisher(
                try BrokerConfiguration(url: broker.url), topology: Topology(queues: []), logger: .silent)
            #expect(try await stranger.depth(of: queue) == 1_000)
            await #expect(throws: RabbitMQError.topology(queue: "missing-\(queue)")) {
                try await stranger.depth(of: "missing-\(queue)")
            }
            // The broker closed that channel; the publisher connects again by itself.
            try await eventually(within: .seconds(20)) { stranger.state == .connected }
            #expect(try await stranger.depth(of: queue) == 1_000)
            await stranger.close()
            await publisher.close()
        }
    }

    @Test func anUnroutableMessageFailsAndTheChannelGoesOn() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let publisher = Publisher(try BrokerConfiguration(url: broker.url), topology: .of(queue), logger: .silent)
            let outcomes = await publisher.outcomes(of: 200) { index in
                ("body", index % 2 == 0 ? queue : "nowhere-\(queue)")
            }
            #expect(outcomes.count { $0 == .returned } == 100)
            #expect(outcomes.count { $0 == nil } == 100)
            #expect(try await publisher.depth(of: queue) == 100)
            await publisher.close()
        }
    }

    @Test func aFullQueueRefuses() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("small")
            let topology = Topology(queues: [QueueDeclaration(name: queue, maxLength: 1)])
            let publisher = Publisher(try BrokerConfiguration(url: broker.url), topology: topology, logger: .silent)
            var refusals = 0
            for _ in 0..<50 {
                do throws(RabbitMQError) {
                    try await publisher.publish("body", to: queue)
                } catch {
                    #expect(error == .refused)
                    refusals += 1
                }
            }
            // The queue may exceed its limit by the messages that are on their way (rabbitmq.com/docs/maxlength).
            #expect(refusals > 25)
            await publisher.close()
        }
    }

    @Test func aDeletedQueueComesBackWhilePublishing() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let publisher = Publisher(try BrokerConfiguration(url: broker.url), topology: .of(queue), logger: .silent)
            try await publisher.publishAll(10, to: queue)
            async let outcomes = publisher.outcomes(of: 2_000) { _ in ("body", queue) }
            try broker.delete(queue)
            // RabbitMQ 3.10.8 may crash that channel or forget the confirm [both seen]: it must cost a reconnect, no more.
            let expected: Set<String> = ["returned", "refused", "lost", "unreachable", "timed_out"]
            let unexpected = await outcomes.compactMap { $0?.label }.filter { !expected.contains($0) }
            #expect(unexpected.isEmpty)
            // Returned messages make the publisher declare its queues anew, at most once a second.
            try await eventually(within: .seconds(15)) {
                do { try await publisher.publish("body", to: queue) } catch { return false }
                return true
            }
            await publisher.close()
        }
    }

    @Test func queuesWithOtherArgumentsAreRefused() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let first = Publisher(try BrokerConfiguration(url: broker.url), topology: .of(queue), logger: .silent)
            try await first.publish("body", to: queue)
            let other = Topology(queues: [QueueDeclaration(name: queue, deliveryLimit: 7)])
            let second = Publisher(try BrokerConfiguration(url: broker.url), topology: other, logger: .silent)
            await #expect(throws: RabbitMQError.topology(queue: queue)) {
                try await second.publish("body", to: queue)
            }
            #expect(second.state == .disconnected(.topology(queue: queue)))
            try await first.publish("body", to: queue)
            await second.close()
            await first.close()
        }
    }

    @Test func wrongCredentialsAndVhostsAreNamed() async throws {
        try await TestBroker.run { broker in
            let good = try BrokerConfiguration(url: broker.url)
            let node = "\(good.nodes[0].host):\(good.nodes[0].port)"
            for url in [
                "amqp://guest:wrong@\(node)/%2f",
                "amqp://nobody:guest@\(node)/%2f",
                // The unreachable node is not what the operator has to correct.
                "amqp://nobody:guest@\(node),127.0.0.1:1/%2f",
                "amqp://\(good.user):\(good.password)@\(node)/no-such-vhost",
            ] {
                let publisher = Publisher(
                    try BrokerConfiguration(url: url), topology: Topology(queues: []), logger: .silent)
                await #expect(throws: RabbitMQError.accessRefused) { try await publisher.publish("body", to: "q") }
                #expect(publisher.state == .disconnected(.accessRefused))
                await publisher.close()
                await #expect(throws: RabbitMQError.closed) { try await publisher.publish("body", to: "q") }
            }
        }
    }

    /// Method: of eight nodes seven are away: five refuse connections, two take them and say nothing.
    @Test func oneNodeThatAnswersWillDo() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let good = try BrokerConfiguration(url: broker.url)
            let proxy = try FaultProxy(to: broker.url)
            defer { proxy.end() }
            proxy.set(.frozen)
            let ports = [1, 1, 1, 1, 1, proxy.port, proxy.port]
            let nodes = ports.map { "127.0.0.1:\($0)" } + ["\(good.nodes[0].host):\(good.nodes[0].port)"]
            var configuration = try BrokerConfiguration(
                url: "amqp://\(good.user):\(good.password)@\(nodes.joined(separator: ","))/")
            configuration.handshakeTimeout = .seconds(2)
            let publisher = Publisher(configuration, topology: .of(queue), logger: .silent)
            try await publisher.publish("body", to: queue)
            #expect(try await publisher.depth(of: queue) == 1)
            await publisher.close()
        }
    }

    @Test func nobodyListensThere() async throws {
        var configuration = try BrokerConfiguration(url: "amqp://guest:guest@127.0.0.1:1")
        configuration.connectTimeout = .seconds(1)
        let log = CapturedLog()
        let publisher = Publisher(configuration, topology: Topology(queues: []), logger: log.logger)
        for _ in 0..<100 {
            await #expect(throws: RabbitMQError.unreachable) { try await publisher.publish("body", to: "q") }
        }
        try await Task.sleep(for: .seconds(2))
        // One line per outage, not per attempt.
        #expect(log.messages == ["no connection to the broker"])
        await publisher.close()
    }

    /// A process that may open no more files, such as one with `ulimit -n 64` under load. The test runs in a process of
    /// its own.
    /// Method: a connection needs the library's socket, its duplicate and the two ends of the thread's pipe. With room
    /// for fewer neither publisher nor consumer connects, and both say why; with room for all four both connect.
    @Test(.timeLimit(.minutes(2))) func withoutDescriptorsNothingConnectsUntilThereAreSome() async {
        await #expect(processExitsWith: .success) {
            try await TestBroker.run { broker in
                // Closed at the end: a connection that closes earlier would leave room for the next.
                var (publishers, consumers) = ([Publisher](), [Consumer]())
                for room in 0...3 {
                    let queue = broker.queue("work\(room)")
                    let configuration = try BrokerConfiguration(url: broker.url)
                    let log = CapturedLog()
                    let publisher = Publisher(configuration, topology: .of(queue), logger: log.logger)
                    let consumer = Consumer(
                        configuration, topology: .of(queue), subscriptions: [Subscription(queue: queue, prefetch: 1)],
                        logger: log.logger)
                    try await DescriptorLimit.leaving(room) {
                        await publisher.start()
                        await consumer.start()
                        #expect(publisher.state == .disconnected(.unreachable), "room for \(room)")
                        #expect(!consumer.isConnected, "room for \(room)")
                        await #expect(throws: RabbitMQError.unreachable) {
                            try await publisher.publish("body", to: queue)
                        }
                    }
                    #expect(log.reasons == ["out_of_descriptors", "out_of_descriptors"], "room for \(room)")
                    try await eventually(within: .seconds(20)) {
                        publisher.state == .connected && consumer.isConnected
                    }
                    try await publisher.publish("body", to: queue)
                    var deliveries = consumer.deliveries.makeAsyncIterator()
                    let delivery = await deliveries.next()
                    #expect(delivery?.body == Array("body".utf8), "room for \(room)")
                    publishers.append(publisher)
                    consumers.append(consumer)
                }
                for consumer in consumers { await consumer.close() }
                for publisher in publishers { await publisher.close() }
            }
        }
    }

    @Test func closingFlushes() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let publisher = Publisher(try BrokerConfiguration(url: broker.url), topology: .of(queue), logger: .silent)
            await publisher.start()
            async let outcomes = publisher.outcomes(of: 3_000) { _ in ("body", queue) }
            try await Task.sleep(for: .milliseconds(20))
            await publisher.close()
            let ended = await outcomes
            #expect(ended.allSatisfy { $0 == nil || $0 == .closed })
            let reader = Publisher(try BrokerConfiguration(url: broker.url), topology: .of(queue), logger: .silent)
            #expect(try await reader.depth(of: queue) == ended.count { $0 == nil })
            await reader.close()
        }
    }

    /// A connected publisher with room for 4 messages in flight and 16 that wait, and 1 s for a confirm, its queue, and
    /// the proxy before its broker.
    private func withNarrowPublisher(
        _ body: (Publisher, _ queue: String, FaultProxy) async throws -> Void
    ) async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let proxy = try FaultProxy(to: broker.url)
            defer { proxy.end() }
            var configuration = try BrokerConfiguration(url: proxy.url(broker.url))
            configuration.window = 4
            configuration.queueLimit = 16
            configuration.bodyLimitBytes = 1000
            configuration.confirmDeadline = .seconds(1)
            let publisher = Publisher(configuration, topology: .of(queue), logger: .silent)
            await publisher.start()
            try await body(publisher, queue, proxy)
            await publisher.close()
        }
    }

    @Test func limitsAreKept() async throws {
        try await withNarrowPublisher { publisher, queue, proxy in
            let tooLarge = String(repeating: "x", count: 1001)
            await #expect(throws: RabbitMQError.tooLarge) { try await publisher.publish(tooLarge, to: queue) }
            await #expect(throws: RabbitMQError.tooLarge) {
                try await publisher.publish("body", to: String(repeating: "q", count: 256))
            }
            try await publisher.publish(String(repeating: "x", count: 1000), to: queue)
            try await publisher.publish("", to: queue)
            proxy.set(.frozen)
            let outcomes = await publisher.outcomes(of: 50) { _ in ("body", queue) }
            #expect(outcomes.count { $0 == .tooManyWaiting } == 30)
            #expect(outcomes.count { $0 == .timedOut } == 4)
            #expect(outcomes.count { $0 == .unreachable } == 16)
        }
    }

    /// Ingest offers pointers on the publisher on which workers and schedulers wait for confirms (rule 9: each limit
    /// has a name).
    @Test func offersLeaveRoomForWhoWaits() async throws {
        try await withNarrowPublisher { publisher, queue, proxy in
            let counters = CountedMetrics.shared
            proxy.set(.frozen)
            for _ in 0..<50 { publisher.offer("body", to: queue) }
            #expect(counters.published(queue, "too_many_waiting") == 40)
            let outcomes = await publisher.outcomes(of: 12) { _ in ("body", queue) }
            #expect(outcomes.count { $0 == .tooManyWaiting } == 2)
            #expect(counters.published(queue, "too_many_waiting") == 42)
            // Each offer that found room is counted as well.
            try await eventually(within: .seconds(20)) {
                counters.published(queue, "timed_out") + counters.published(queue, "unreachable") == 20
            }
            // The room is free again.
            proxy.breakConnections()
            proxy.set(.forwarding)
            try await eventually(within: .seconds(15)) { publisher.state == .connected }
            for _ in 0..<10 { publisher.offer("body", to: queue) }
            try await eventually(within: .seconds(20)) { counters.published(queue, "confirmed") == 10 }
        }
    }

    /// The broker announces an alarm and later its end. Frames as in AMQP 0-9-1: type 1, channel 0, length, method
    /// 10.60 with a short string or 10.61, end mark. A real alarm would hit every other test of this broker.
    @Test func aBlockedConnectionFailsFastAndComesBack() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let proxy = try FaultProxy(to: broker.url)
            defer { proxy.end() }
            var configuration = try BrokerConfiguration(url: proxy.url(broker.url))
            configuration.confirmDeadline = .seconds(4)
            let publisher = Publisher(configuration, topology: .of(queue), logger: .silent)
            try await publisher.publish("body", to: queue)

            // Sent before the alarm is known, and not read by the broker: the caller gets its answer when its deadline
            // has passed.
            proxy.set(.frozen)
            async let inFlight = publisher.outcomes(of: 1) { _ in ("body", queue) }
            try await Task.sleep(for: .milliseconds(500))
            proxy.inject([1, 0, 0, 0, 0, 0, 8, 0, 10, 0, 60, 3] + Array("low".utf8) + [206])
            try await eventually(within: .seconds(3)) { publisher.state == .blocked }
            let start = ContinuousClock.now
            await #expect(throws: RabbitMQError.blocked) { try await publisher.publish("body", to: queue) }
            await #expect(throws: RabbitMQError.blocked) { try await publisher.depth(of: queue) }
            #expect(ContinuousClock.now - start < .seconds(1))
            let ended = await inFlight
            #expect(ended == [.blocked])
            #expect(publisher.state == .blocked, "the connection is kept")

            proxy.set(.forwarding)
            proxy.inject([1, 0, 0, 0, 0, 0, 4, 0, 10, 0, 61, 206])
            try await eventually(within: .seconds(20)) { publisher.state == .connected }
            try await publisher.publish("body", to: queue)
            let depth = try await publisher.depth(of: queue)
            #expect(depth == 3)
            await publisher.close()
        }
    }
}
