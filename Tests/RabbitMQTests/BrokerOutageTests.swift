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
            let lab = try await QueueLab(broker, "work")
            try await lab.publisher.publishAll(100, to: lab.queue)
            try await local("rabbitmqctl", "set_vm_memory_high_watermark", "0.000001")
            // The broker tells a connection of the alarm when it publishes; a message sent then is confirmed after the
            // alarm.
            async let first = lab.publisher.outcomes(of: 1) { _ in ("sent into the alarm", lab.queue) }
            try await eventually(within: .seconds(5)) { lab.publisher.state == .blocked }
            await #expect(throws: RabbitMQError.blocked) {
                try await lab.publisher.publish("body", to: lab.queue)
            }
            let ended = await first
            #expect(ended == [.blocked])
            #expect(lab.publisher.state == .blocked)
            let consumer = lab.consumer(prefetch: 100)
            await consumer.start()
            let taken = try await consumer.take(100)
            consumer.acknowledge(taken)
            try await local("rabbitmqctl", "set_vm_memory_high_watermark", "0.4")
            try await eventually(within: .seconds(10)) { lab.publisher.state == .connected }
            let late = try await consumer.take(1)
            #expect(late[0].body == Array("sent into the alarm".utf8))
            consumer.acknowledge(late)
            try await lab.publisher.publish("after", to: lab.queue)
            consumer.acknowledge(try await consumer.take(1))
            await consumer.close()
            await lab.close()
        }
    }

    @Test(arguments: [["restart rabbitmq"], ["kill rabbitmq", "up"]])
    func nothingConfirmedIsLostWhenTheBrokerEnds(commands: [String]) async throws {
        try await TestBroker.run { broker in
            let lab = try await QueueLab(broker, "work")
            let consumer = lab.consumer(prefetch: 100)
            let idle = lab.consumer(of: [])
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
                        try await lab.publisher.publish(body, to: lab.queue)
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
                lab.publisher.state == .connected && consumer.isConnected && idle.isConnected
            }
            print("recovered \(ContinuousClock.now - up) after the broker")
            try await Task.sleep(for: .milliseconds(500))
            publishing.cancel()
            let confirmed = await publishing.value
            try await eventually(within: .seconds(15)) { try await lab.publisher.depth(of: lab.queue) == 0 }
            try await Task.sleep(for: .milliseconds(500))
            await consumer.drain()
            let delivered = await consuming.value
            #expect(confirmed.isSubset(of: delivered))
            await consumer.close()
            await idle.close()
            await lab.close()
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
