import FaultProxy
import Logging
import Synchronization
import TestServers
import Testing

@testable import RabbitMQ

/// Goal: every message is delivered until it is settled, within its limits, whatever happens to connections and queues.
/// Method: the real broker; connections end by close or by reset through a proxy, queues by deletion from outside.
@Suite struct ConsumerTests {
    @Test func whatIsAcknowledgedIsGone() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work")
            try await lab.publisher.publishAll(1_000, to: lab.queue)
            let consumer = lab.consumer(prefetch: 100)
            await consumer.start()
            var bodies: Set<[UInt8]> = []
            var batch: [Delivery] = []
            for await delivery in consumer.deliveries {
                #expect(delivery.queue == lab.queue)
                #expect(!delivery.redelivered)
                bodies.insert(delivery.body)
                batch.append(delivery)
                if batch.count == 50 {
                    consumer.acknowledge(batch.shuffled())
                    batch = []
                }
                if bodies.count == 1_000 { break }
            }
            #expect(bodies == Set((0..<1_000).map { Array("receipt \($0) 0".utf8) }))
            await consumer.close()
            #expect(try await lab.publisher.depth(of: lab.queue) == 0)
            await lab.close()
        }
    }

    @Test func whatIsNotAcknowledgedComesAgain() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work")
            try await lab.publisher.publishAll(10, to: lab.queue)
            let first = lab.consumer(prefetch: 10)
            await first.start()
            let taken = try await first.take(10)
            first.acknowledge([taken[0], taken[3], taken[9]])
            // A second settlement of a delivery is harmless; if it reached the broker, the broker would close the
            // channel.
            first.acknowledge([taken[0], taken[3]])
            first.reject(taken[9])
            await first.close()
            let second = lab.consumer(prefetch: 10)
            await second.start()
            let again = try await second.take(7)
            #expect(again.allSatisfy { $0.redelivered })
            #expect(Set(again.map(\.body)) == Set([1, 2, 4, 5, 6, 7, 8].map { taken[$0].body }))
            second.acknowledge(again)
            await second.close()
            #expect(try await lab.publisher.depth(of: lab.queue) == 0)
            await lab.close()
        }
    }

    @Test func aLostConnectionBringsEverythingUnsettledAgain() async throws {
        try await TestBroker.run { broker in
            let proxy = try FaultProxy(to: broker.url)
            defer { proxy.end() }
            let lab = try await QueueLab(broker, "work")
            try await lab.publisher.publishAll(20, to: lab.queue)
            let log = CapturedLog()
            let consumer = Consumer(
                try BrokerConfiguration(url: proxy.url(broker.url)), topology: lab.topology,
                subscriptions: [Subscription(queue: lab.queue, prefetch: 20)], logger: log.logger)
            await consumer.start()
            let old = try await consumer.take(15)
            proxy.breakConnections()
            try await eventually(within: .seconds(20)) { !consumer.isConnected }
            // Five were not taken before: they must not be handed out as if they were of the new connection.
            let new = try await consumer.take(20)
            #expect(new.allSatisfy { $0.redelivered })
            // Acks of the old connection are dropped; on the new one they would settle other messages.
            consumer.acknowledge(old)
            consumer.reject(old[0])
            consumer.acknowledge(Array(new.prefix(19)))
            await consumer.close()
            try await eventually(within: .seconds(20)) { try await lab.publisher.depth(of: lab.queue) == 1 }
            #expect(
                log.messages == [
                    "connected to the broker", "no connection to the broker", "connected to the broker again",
                ])
            await lab.close()
        }
    }

    @Test func rejectedAndForeignMessagesBecomeDeadLetters() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work", deliveryLimit: 20)
            try await lab.publisher.publishAll(2, to: lab.queue)
            try broker.publish([UInt8](repeating: 7, count: 70_000), to: lab.queue)
            try broker.publish([UInt8](repeating: 8, count: 65_536), to: lab.queue)
            let consumer = lab.consumer(prefetch: 10)
            await consumer.start()
            // The message of 70,000 bytes is larger than our messages can be and is never handed out.
            let taken = try await consumer.take(3)
            #expect(taken[2].body == [UInt8](repeating: 8, count: 65_536))
            consumer.reject(taken[0])
            consumer.acknowledge([taken[1], taken[2]])
            try await eventually(within: .seconds(20)) { try await lab.publisher.depth(of: lab.dead) == 2 }
            await consumer.close()
            #expect(try await lab.publisher.depth(of: lab.queue) == 0)
            await lab.close()
        }
    }

    @Test func theTwentyFirstDeliveryIsADeadLetter() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work", deliveryLimit: 20)
            try await lab.publisher.publish("poison", to: lab.queue)
            for delivery in 0...20 {
                let consumer = lab.consumer(prefetch: 1)
                await consumer.start()
                let taken = try await consumer.take(1)
                #expect(taken[0].redelivered == (delivery > 0))
                await consumer.close()
            }
            try await eventually(within: .seconds(20)) { try await lab.publisher.depth(of: lab.dead) == 1 }
            #expect(try await lab.publisher.depth(of: lab.queue) == 0)
            await lab.close()
        }
    }

    @Test func aRetryQueueGivesBackAfterItsTime() async throws {
        try await TestBroker.run { broker in
            let (work, retry) = (broker.queue("work"), broker.queue("retry"))
            let topology = Topology(queues: [
                QueueDeclaration(name: work, deliveryLimit: 20),
                QueueDeclaration(
                    name: retry, deadLetterExchange: "", deadLetterRoutingKey: work,
                    deadLetterStrategyAtLeastOnce: true, messageTTL: .milliseconds(500)),
            ])
            let configuration = try BrokerConfiguration(url: broker.url)
            let publisher = Publisher(configuration, topology: topology, logger: .silent)
            let consumer = Consumer(
                configuration, topology: topology, subscriptions: [Subscription(queue: work, prefetch: 1)],
                logger: .silent)
            await consumer.start()
            // The loop runs twice: a retry is a fresh publish.
            for attempt in 1...2 {
                let start = ContinuousClock.now
                try await publisher.publish("receipt x \(attempt)", to: retry)
                let taken = try await consumer.take(1)
                let waited = ContinuousClock.now - start
                #expect(waited > .milliseconds(450) && waited < .seconds(8), "\(waited)")
                #expect(taken[0].body == Array("receipt x \(attempt)".utf8))
                #expect(taken[0].queue == work)
                consumer.acknowledge(taken)
            }
            await consumer.close()
            try await eventually(within: .seconds(20)) { try await publisher.depth(of: retry) == 0 }
            #expect(try await publisher.depth(of: work) == 0)
            await publisher.close()
        }
    }

    @Test func eachQueueHasItsOwnPrefetch() async throws {
        try await TestBroker.run { broker in
            let (local, apple) = (broker.queue("local"), broker.queue("apple"))
            let configuration = try BrokerConfiguration(url: broker.url)
            let publisher = Publisher(configuration, topology: .of(local, apple), logger: .silent)
            try await publisher.publishAll(30, to: local)
            try await publisher.publishAll(30, to: apple)
            let consumer = Consumer(
                configuration, topology: .of(local, apple),
                subscriptions: [Subscription(queue: local, prefetch: 7), Subscription(queue: apple, prefetch: 2)],
                logger: .silent)
            await consumer.start()
            let taken = try await consumer.take(9)
            let fromApple = taken.filter { $0.queue == apple }
            #expect(fromApple.count == 2)
            #expect(try await consumer.takesNothing(for: .milliseconds(300)))
            #expect(try await publisher.depth(of: local) == 23)

            // Settling makes room in that queue alone.
            consumer.acknowledge(fromApple)
            let next = try await consumer.take(2)
            #expect(next.allSatisfy { $0.queue == apple })
            #expect(try await consumer.takesNothing(for: .milliseconds(300)))
            consumer.acknowledge(taken + next)
            await consumer.close()
            await publisher.close()
        }
    }

    @Test func aPrefetchSurvivesReconnects() async throws {
        try await TestBroker.run { broker in
            let proxy = try FaultProxy(to: broker.url)
            defer { proxy.end() }
            let lab = try await QueueLab(broker, "work")
            let consumer = Consumer(
                try BrokerConfiguration(url: proxy.url(broker.url)), topology: lab.topology,
                subscriptions: [Subscription(queue: lab.queue, prefetch: 3)], logger: .silent)
            await consumer.start()
            proxy.breakConnections()
            try await eventually(within: .seconds(20)) { !consumer.isConnected }
            try await eventually(within: .seconds(20)) { consumer.isConnected }
            try await lab.publisher.publishAll(5, to: lab.queue)
            #expect(try await consumer.take(3).count == 3)
            #expect(try await consumer.takesNothing(for: .milliseconds(300)))
            await consumer.close()
            await lab.close()
        }
    }

    @Test func aDeletedQueueIsConsumedAgain() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work")
            let consumer = lab.consumer(prefetch: 10)
            await consumer.start()
            for round in 0..<3 {
                try broker.delete(lab.queue)
                let start = ContinuousClock.now
                let publishing = Task {
                    // Returned while there is no queue. The test publishes more than one message, because RabbitMQ 3.10
                    // may confirm a message into a queue that is just being deleted, as if it had been deleted with it.
                    while !Task.isCancelled {
                        try? await lab.publisher.publish("round \(round)", to: lab.queue)
                        try? await Task.sleep(for: .milliseconds(20))
                    }
                }
                var bodies: [[UInt8]] = []
                repeat {
                    let taken = try await consumer.take(1)
                    consumer.acknowledge(taken)
                    bodies += taken.map(\.body)
                } while bodies.last != Array("round \(round)".utf8)
                publishing.cancel()
                // A confirm that RabbitMQ forgets costs 5 s, a consumer that it forgets 3 s; `silenceMax` is 10 s.
                #expect(ContinuousClock.now - start < .seconds(9))
                await publishing.value
            }
            await consumer.close()
            await lab.close()
        }
    }

    /// RabbitMQ 3.10 sometimes forgets a consumer where a queue is deleted and declared again at once, and says nothing.
    @Test func aQueueThatIsDeletedAndMadeAgainAtOnceIsConsumed() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work")
            let consumer = lab.consumer(prefetch: 10)
            await consumer.start()
            for round in 0..<5 {
                try broker.delete(lab.queue)
                let start = ContinuousClock.now
                _ = try await lab.publisher.depth(of: lab.queue)
                let publishing = Task {
                    while !Task.isCancelled {
                        try? await lab.publisher.publish("round \(round)", to: lab.queue)
                        try? await Task.sleep(for: .milliseconds(20))
                    }
                }
                var bodies: [[UInt8]] = []
                repeat {
                    let taken = try await consumer.take(1)
                    consumer.acknowledge(taken)
                    bodies += taken.map(\.body)
                } while bodies.last != Array("round \(round)".utf8)
                publishing.cancel()
                #expect(ContinuousClock.now - start < .seconds(9), "as above")
                await publishing.value
            }
            await consumer.close()
            await lab.close()
        }
    }

    @Test func drainingEndsTheSequenceAndStillSettles() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work")
            try await lab.publisher.publishAll(20, to: lab.queue)
            let consumer = lab.consumer(prefetch: 10)
            await consumer.start()
            let taken = try await consumer.take(4)
            await consumer.drain()
            var rest = 0
            for await _ in consumer.deliveries { rest += 1 }
            #expect(rest == 0)
            consumer.acknowledge(taken)
            await consumer.close()
            // Six were delivered and never taken, ten never delivered.
            try await eventually(within: .seconds(20)) { try await lab.publisher.depth(of: lab.queue) == 16 }
            await lab.close()
        }
    }

    @Test func cancellingTheTaskEndsTheSequence() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work")
            let consumer = lab.consumer(prefetch: 10)
            await consumer.start()
            let tasks = (0..<10).map { _ in
                Task {
                    for await delivery in consumer.deliveries { consumer.acknowledge([delivery]) }
                }
            }
            try await lab.publisher.publishAll(100, to: lab.queue)
            try await eventually(within: .seconds(20)) { try await lab.publisher.depth(of: lab.queue) == 0 }
            for task in tasks { task.cancel() }
            for task in tasks { await task.value }
            await consumer.close()
            await lab.close()
        }
    }

    @Test func anInequivalentQueueIsReportedAndRetried() async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work")
            try await lab.publisher.publish("body", to: lab.queue)
            let log = CapturedLog()
            let consumer = Consumer(
                try BrokerConfiguration(url: broker.url),
                topology: Topology(queues: [QueueDeclaration(name: lab.queue, deliveryLimit: 3)]),
                subscriptions: [Subscription(queue: lab.queue, prefetch: 1)], logger: log.logger)
            await consumer.start()
            #expect(!consumer.isConnected)
            #expect(log.messages == ["no connection to the broker"])
            try broker.delete(lab.queue)
            try await eventually(within: .seconds(10)) { consumer.isConnected }
            await consumer.close()
            await lab.close()
        }
    }
}

/// A publisher and a queue with its dead letters.
struct QueueLab: Sendable {
    let queue: String
    let dead: String
    let topology: Topology
    let publisher: Publisher
    private let configuration: BrokerConfiguration

    init(
        _ broker: TestBroker, _ word: String, deliveryLimit: Int? = nil, bodiesPerMessage: Int = 1
    ) async throws {
        (queue, dead) = (broker.queue(word), broker.queue("\(word).dead"))
        topology = Topology(queues: [
            QueueDeclaration(
                name: queue, deliveryLimit: deliveryLimit, deadLetterExchange: "", deadLetterRoutingKey: dead,
                deadLetterStrategyAtLeastOnce: true, bodiesPerMessage: bodiesPerMessage),
            QueueDeclaration(name: dead),
        ])
        configuration = try BrokerConfiguration(url: broker.url)
        publisher = Publisher(configuration, topology: topology, logger: .silent)
        await publisher.start()
    }

    func consumer(prefetch: Int) -> Consumer {
        consumer(of: [Subscription(queue: queue, prefetch: prefetch)])
    }

    /// - Parameter subscriptions: if empty, the consumer only keeps a connection.
    func consumer(of subscriptions: [Subscription]) -> Consumer {
        Consumer(configuration, topology: topology, subscriptions: subscriptions, logger: .silent)
    }

    func close() async { await publisher.close() }
}

extension Consumer {
    /// The next deliveries; fails after 10 s.
    nonisolated func take(_ count: Int) async throws -> [Delivery] {
        let reading = Task {
            var taken: [Delivery] = []
            guard count > 0 else { return taken }
            for await delivery in deliveries {
                taken.append(delivery)
                if taken.count == count { break }
            }
            return taken
        }
        let guarding = Task {
            try await Task.sleep(for: .seconds(10))
            reading.cancel()
        }
        defer { guarding.cancel() }
        let taken = await reading.value
        try #require(taken.count == count)
        return taken
    }

    nonisolated func takesNothing(for time: Duration) async throws -> Bool {
        let reading = Task { await deliveries.first { _ in true } }
        try await Task.sleep(for: time)
        reading.cancel()
        return await reading.value == nil
    }
}
