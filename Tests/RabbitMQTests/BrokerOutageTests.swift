import Foundation
import Logging
import TestServers
import Testing

@testable import RabbitMQ

/// Goal: alarms, restarts and crashes of the broker itself cost time, never a confirmed message.
/// Method: `MAKEGOOD_LOCAL` (deploy/local) does it to the real broker. Every other test on that broker would suffer,
/// so these run alone and on demand:
///
///     eval "$(deploy/local env)"; MAKEGOOD_TEST_DISRUPT=1 swift test --filter BrokerOutageTests
@Suite(.serialized, .enabled(if: ProcessInfo.processInfo.environment["MAKEGOOD_TEST_DISRUPT"] == "1"))
struct BrokerOutageTests {
    @Test func aMemoryAlarmBlocksPublishingAndNothingElse() async throws {
        do {
            try await memoryAlarm()
        } catch {
            try await local("rabbitmqctl", "set_vm_memory_high_watermark", "0.4")
            throw error
        }
    }

    private func memoryAlarm() async throws {
        try await TestBroker.run { broker in
            let bench = try await Bench(broker, "work")
            try await bench.publisher.publishAll(100, to: bench.queue)
            try await local("rabbitmqctl", "set_vm_memory_high_watermark", "0.000001")
            // The broker tells a connection of the alarm when it publishes; a message sent then is confirmed after the
            // alarm.
            async let first = bench.publisher.outcomes(of: 1) { _ in ("sent into the alarm", bench.queue) }
            try await eventually(within: .seconds(5)) { bench.publisher.state == .blocked }
            await #expect(throws: RabbitMQError.blocked) {
                try await bench.publisher.publish("body", to: bench.queue)
            }
            let ended = await first
            #expect(ended == [.blocked])
            #expect(bench.publisher.state == .blocked)
            let consumer = bench.consumer(prefetch: 100)
            await consumer.start()
            let taken = try await consumer.take(100)
            consumer.acknowledge(taken)
            try await local("rabbitmqctl", "set_vm_memory_high_watermark", "0.4")
            try await eventually(within: .seconds(10)) { bench.publisher.state == .connected }
            let late = try await consumer.take(1)
            #expect(late[0].body == Array("sent into the alarm".utf8))
            consumer.acknowledge(late)
            try await bench.publisher.publish("after", to: bench.queue)
            consumer.acknowledge(try await consumer.take(1))
            await consumer.close()
            await bench.close()
        }
    }

    @Test(arguments: [["restart rabbitmq"], ["kill rabbitmq", "up"]])
    func nothingConfirmedIsLostWhenTheBrokerEnds(commands: [String]) async throws {
        try await TestBroker.run { broker in
            let bench = try await Bench(broker, "work")
            let consumer = bench.consumer(prefetch: 100)
            let idle = bench.consumer(of: [])
            await consumer.start()
            await idle.start()
            let consuming = Task {
                var bodies: Set<[UInt8]> = []
                for await delivery in consumer.deliveries {
                    bodies.insert(delivery.body)
                    consumer.acknowledge([delivery])
                }
                return bodies
            }
            let publishing = Task {
                var confirmed: Set<[UInt8]> = []
                var index = 0
                while !Task.isCancelled {
                    index += 1
                    let body = "receipt \(index) 0"
                    do throws(RabbitMQError) {
                        try await bench.publisher.publish(body, to: bench.queue)
                        confirmed.insert(Array(body.utf8))
                    } catch {
                        #expect([.lost, .unreachable, .timedOut, .refused].contains(error))
                        try? await Task.sleep(for: .milliseconds(10))
                    }
                }
                return confirmed
            }
            try await Task.sleep(for: .milliseconds(500))
            for command in commands { try await local(command.split(separator: " ").map(String.init)) }
            let up = ContinuousClock.now
            try await eventually(within: .seconds(15)) {
                bench.publisher.state == .connected && consumer.isConnected && idle.isConnected
            }
            print("recovered \(ContinuousClock.now - up) after the broker")
            try await Task.sleep(for: .milliseconds(500))
            publishing.cancel()
            let confirmed = await publishing.value
            try await eventually(within: .seconds(15)) { try await bench.publisher.depth(of: bench.queue) == 0 }
            try await Task.sleep(for: .milliseconds(500))
            await consumer.drain()
            let delivered = await consuming.value
            #expect(confirmed.isSubset(of: delivered))
            await consumer.close()
            await idle.close()
            await bench.close()
        }
    }
}

private func local(_ arguments: String...) async throws { try await local(arguments) }

private func local(_ arguments: [String]) async throws {
    let path = try #require(
        ProcessInfo.processInfo.environment["MAKEGOOD_LOCAL"],
        "MAKEGOOD_LOCAL is not set: these tests drive the broker through deploy/local")
    // Not Foundation's Process: it waits until everything that the command started has ended, and `up` starts a server.
    let command = "'\(path)' \(arguments.joined(separator: " ")) < /dev/null > /dev/null 2>&1"
    let status = await withCheckedContinuation { continuation in
        Thread { continuation.resume(returning: system(command)) }.start()
    }
    #expect(status == 0, "\(arguments)")
}
