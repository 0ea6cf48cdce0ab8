import FaultProxy
import Foundation
import Logging
import TestServers
import Testing

@testable import RabbitMQ

/// Goal: no fault of the network makes a publish end wrongly or never, and everything works again afterwards.
/// Method: a proxy between us and the real broker cuts, slices or swallows.
@Suite struct FaultTests {
    @Test func aResetInTheMiddleLosesOnlyWhatWasInFlight() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let proxy = try FaultProxy(to: broker.url)
            defer { proxy.end() }
            let log = CapturedLog()
            let publisher = Publisher(
                try BrokerConfiguration(url: proxy.url(broker.url)), topology: .of(queue),
                logger: log.logger)
            await publisher.start()
            // A slow line, so that something is on its way however late this task continues.
            proxy.set(.both { $0.latency = .milliseconds(50) })
            async let pending = publisher.outcomes(of: 5_000) { _ in ("body", queue) }
            // Silence first, so that the window is full of unconfirmed messages when the connection ends.
            try await Task.sleep(for: .milliseconds(30))
            proxy.set(.frozen)
            try await Task.sleep(for: .milliseconds(300))
            proxy.breakConnections()
            proxy.set(.forwarding)
            let outcomes = await pending
            #expect(outcomes.allSatisfy { $0 == nil || $0 == .lost || $0 == .unreachable })
            let lost = outcomes.count { $0 == .lost }
            #expect(lost > 0 && lost <= 256)
            // Connected again without being asked.
            try await eventually(within: .seconds(20)) { publisher.state == .connected }
            try await publisher.publishAll(100, to: queue)
            // Nothing confirmed is missing, nothing that was never sent is there.
            let confirmed = outcomes.count { $0 == nil } + 100
            let depth = try await publisher.depth(of: queue)
            #expect((confirmed...confirmed + lost).contains(depth))
            #expect(
                log.messages == [
                    "connected to the broker", "no connection to the broker", "connected to the broker again",
                ])
            await publisher.close()
        }
    }

    /// 4,000 bodies of 1 KiB overflow every socket buffer on the way: amqp_basic_publish itself blocks, which 0.11
    /// does without limit.
    @Test(arguments: [(1, 10), (4096, 4_000)])
    func aBrokerThatFallsSilentHoldsNobody(window: Int, count: Int) async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let proxy = try FaultProxy(to: broker.url)
            defer { proxy.end() }
            var configuration = try BrokerConfiguration(url: proxy.url(broker.url))
            configuration.confirmDeadline = .seconds(1)
            configuration.handshakeTimeout = .seconds(1)
            configuration.window = window
            let publisher = Publisher(configuration, topology: .of(queue), logger: .silent)
            try await publisher.publish("body", to: queue)
            proxy.set(.frozen)
            let body = String(repeating: "x", count: 1024)
            let start = ContinuousClock.now
            let outcomes = await publisher.outcomes(of: count) { _ in (body, queue) }
            #expect(ContinuousClock.now - start < .seconds(5))
            #expect(outcomes.allSatisfy { $0 == .timedOut || $0 == .lost || $0 == .unreachable })
            // While the outage lasts, every caller is told at once: an attempt to connect takes twice as long.
            for _ in 0..<20 {
                let start = ContinuousClock.now
                await #expect(throws: RabbitMQError.unreachable) { try await publisher.publish("body", to: queue) }
                #expect(ContinuousClock.now - start < .milliseconds(500))
                try await Task.sleep(for: .milliseconds(50))
            }
            proxy.breakConnections()
            proxy.set(.forwarding)
            try await eventually(within: .seconds(15)) { publisher.state == .connected }
            try await publisher.publish("body", to: queue)
            await publisher.close()
        }
    }

    @Test func aSilentBrokerDoesNotHoldAClose() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let proxy = try FaultProxy(to: broker.url)
            defer { proxy.end() }
            var configuration = try BrokerConfiguration(url: proxy.url(broker.url))
            configuration.confirmDeadline = .seconds(1)
            let publisher = Publisher(configuration, topology: .of(queue), logger: .silent)
            let consumer = Consumer(
                configuration, topology: .of(queue), subscriptions: [Subscription(queue: queue, prefetch: 1)],
                logger: .silent)
            await publisher.start()
            await consumer.start()
            proxy.set(.frozen)
            async let outcome = publisher.outcomes(of: 1) { _ in ("body", queue) }
            try await Task.sleep(for: .milliseconds(500))
            let start = ContinuousClock.now
            await publisher.close()
            #expect(ContinuousClock.now - start < .seconds(4))
            let ended = await outcome
            #expect(ended == [.timedOut])
            await consumer.close()
            #expect(ContinuousClock.now - start < .seconds(12))
        }
    }

    /// A silent broker and a heartbeat of 2 s: twice that without a byte ends the connection.
    @Test func heartbeatsFindASilentBroker() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let proxy = try FaultProxy(to: broker.url)
            defer { proxy.end() }
            var configuration = try BrokerConfiguration(url: proxy.url(broker.url))
            configuration.heartbeat = .seconds(2)
            configuration.handshakeTimeout = .seconds(1)
            let publisher = Publisher(configuration, topology: .of(queue), logger: .silent)
            let consumer = Consumer(
                configuration, topology: .of(queue), subscriptions: [Subscription(queue: queue, prefetch: 1)],
                logger: .silent)
            await publisher.start()
            await consumer.start()
            // Idle for longer than the heartbeat: both sides keep it alive.
            try await Task.sleep(for: .seconds(6))
            #expect(publisher.state == .connected)
            #expect(consumer.isConnected)
            proxy.set(.frozen)
            try await eventually(within: .seconds(20)) { publisher.state != .connected && !consumer.isConnected }
            proxy.breakConnections()
            proxy.set(.forwarding)
            try await eventually(within: .seconds(15)) { publisher.state == .connected && consumer.isConnected }
            await consumer.close()
            await publisher.close()
        }
    }

    @Test func framesMayArriveByteByByte() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let proxy = try FaultProxy(to: broker.url)
            defer { proxy.end() }
            proxy.set(.sliced)
            let configuration = try BrokerConfiguration(url: proxy.url(broker.url))
            let publisher = Publisher(configuration, topology: .of(queue), logger: .silent)
            let outcomes = await publisher.outcomes(of: 200) { index in
                ("receipt \(index) 0", index % 10 == 0 ? "nowhere-\(queue)" : queue)
            }
            #expect(outcomes.count { $0 == nil } == 180)
            #expect(outcomes.count { $0 == .returned } == 20)
            try broker.publish([UInt8](repeating: 9, count: 50_000), to: queue)
            let consumer = Consumer(
                configuration, topology: .of(queue), subscriptions: [Subscription(queue: queue, prefetch: 20)],
                logger: .silent)
            await consumer.start()
            var bodies: [[UInt8]] = []
            for await delivery in consumer.deliveries {
                bodies.append(delivery.body)
                consumer.acknowledge([delivery])
                if bodies.count == 181 { break }
            }
            #expect(bodies.count { $0.count == 50_000 } == 1)
            #expect(Set(bodies).count == 181)
            await consumer.close()
            #expect(try await publisher.depth(of: queue) == 0)
            await publisher.close()
        }
    }

    /// Ten short outages while messages are published and consumed: at the end, every confirmed message was delivered.
    @Test func outagesLoseNoConfirmedMessage() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let proxy = try FaultProxy(to: broker.url)
            defer { proxy.end() }
            let configuration = try BrokerConfiguration(url: proxy.url(broker.url))
            let publisher = Publisher(configuration, topology: .of(queue), logger: .silent)
            let consumer = Consumer(
                configuration, topology: .of(queue), subscriptions: [Subscription(queue: queue, prefetch: 100)],
                logger: .silent)
            await publisher.start()
            await consumer.start()
            let consuming = Task {
                var bodies: Set<[UInt8]> = []
                for await delivery in consumer.deliveries {
                    bodies.insert(delivery.body)
                    consumer.acknowledge([delivery])
                }
                return bodies
            }
            let cutting = Task {
                for _ in 0..<10 {
                    try await Task.sleep(for: .milliseconds(300))
                    proxy.breakConnections(reset: Bool.random())
                }
            }
            var confirmed: Set<[UInt8]> = []
            for index in 0..<300 {
                let body = "receipt \(index) 0"
                do throws(RabbitMQError) {
                    try await publisher.publish(body, to: queue)
                    confirmed.insert(Array(body.utf8))
                } catch {
                    #expect(error == .lost || error == .unreachable)
                }
                try await Task.sleep(for: .milliseconds(10))
            }
            try await cutting.value
            try await eventually(within: .seconds(15)) { publisher.state == .connected && consumer.isConnected }
            try await eventually(within: .seconds(15)) { try await publisher.depth(of: queue) == 0 }
            try await Task.sleep(for: .milliseconds(300))
            await consumer.drain()
            let delivered = await consuming.value
            #expect(confirmed.isSubset(of: delivered))
            #expect(confirmed.count > 50)
            await consumer.close()
            await publisher.close()
        }
    }

    @Test func closingIsHarmlessAtAnyTime() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let configuration = try BrokerConfiguration(url: broker.url)
            let publisher = Publisher(configuration, topology: .of(queue), logger: .silent)
            await publisher.close()
            await publisher.start()
            await #expect(throws: RabbitMQError.closed) { try await publisher.publish("body", to: queue) }
            await #expect(throws: RabbitMQError.closed) { try await publisher.depth(of: queue) }
            #expect(publisher.state == .disconnected(.closed))
            await publisher.close()
            let consumer = Consumer(configuration, topology: .of(queue), subscriptions: [], logger: .silent)
            await consumer.close()
            await consumer.start()
            await consumer.drain()
            await consumer.close()
            #expect(!consumer.isConnected)
            let none = await consumer.deliveries.first { _ in true }
            #expect(none == nil)
        }
    }

    /// A watch keeps its actor alive: after `close` nothing may keep it, or every closed connection costs a thread for
    /// ever.
    @Test func aClosedConnectionIsLetGo() async throws {
        try await TestBroker.run { broker in
            let queue = broker.queue("work")
            let configuration = try BrokerConfiguration(url: broker.url)
            let unreachable = try BrokerConfiguration(url: "amqp://127.0.0.1:1")
            weak var publisher: Publisher?
            weak var consumer: Consumer?
            weak var disconnected: Publisher?
            do {
                let made = Publisher(configuration, topology: .of(queue), logger: .silent)
                try await made.publish("body", to: queue)
                publisher = made
                let consuming = Consumer(
                    configuration, topology: .of(queue), subscriptions: [Subscription(queue: queue, prefetch: 1)],
                    logger: .silent)
                await consuming.start()
                consumer = consuming
                let lost = Publisher(unreachable, topology: .of(queue), logger: .silent)
                await lost.start()
                disconnected = lost
                await made.close()
                await consuming.close()
                await lost.close()
            }
            try await eventually(within: .seconds(20)) { publisher == nil && consumer == nil && disconnected == nil }
        }
    }
}
