import Foundation
import Logging
import TestServers
import Testing

@testable import RabbitMQ

/// Goal: a full queue causes few new connections, and a queue whose limit was lifted is used again (B12). Method: the
/// rule as a value; then a real queue whose limit a policy sets and lifts, with seconds for minutes.
@Suite struct RefusalTests {
    private let start = ContinuousClock.now

    /// The instants, in seconds, at which a new connection is made while every second brings a refusal.
    private func reconnects(_ patience: inout RefusalPatience, _ seconds: Range<Int>, openedAt: Int) -> [Int] {
        var openedAt = openedAt
        var all: [Int] = []
        for second in seconds {
            let now = start + .seconds(second)
            if patience.isOver(at: now, openedAt: start + .seconds(openedAt)) {
                openedAt = second
                all.append(second)
            }
        }
        return all
    }

    @Test func thePausesDoubleUpToMinutes() {
        var patience = RefusalPatience(.seconds(10))
        let made = reconnects(&patience, 0..<3600, openedAt: 0)
        #expect(made.prefix(5) == [11, 32, 73, 154, 315])
        #expect(zip(made.dropFirst(4), made.dropFirst(5)).allSatisfy { $1 - $0 == 161 })
        #expect(made.count < 30)
    }

    /// For a shop with few purchases, whose channel is stuck: one refusal is enough.
    @Test func anOldConnectionIsGivenUpAtItsFirstRefusal() {
        var patience = RefusalPatience(.seconds(10))
        #expect(reconnects(&patience, 500..<510, openedAt: 0) == [500])
        // Two minutes without a refusal do not reset the patience, three do.
        #expect(reconnects(&patience, 629..<630, openedAt: 615) == [])
        #expect(reconnects(&patience, 800..<820, openedAt: 795) == [806])
    }

    @Test func aFullQueueCostsFewConnections() async throws {
        try await TestBroker.run { broker in
            let (small, other) = (broker.queue("small"), broker.queue("other"))
            try Self.limit(small, to: 1)
            defer { try? Self.lift(small) }
            let log = CapturedLog()
            var configuration = try BrokerConfiguration(url: broker.url)
            configuration.refusalPatience = .milliseconds(250)
            let publisher = Publisher(configuration, topology: .of(small, other), logger: log.logger)
            await publisher.start()
            let refused = try await Self.publish(publisher, to: small, beside: other, for: .seconds(8))
            #expect(refused > 50)
            // After 0.25, 0.5, 1, 2 and 4 s, and the time of each connecting; without growth there would be about
            // fifteen.
            let made = log.messages.count { $0 == "connected to the broker again" }
            #expect((2...5).contains(made), "\(made) connections")

            try Self.lift(small)
            // The publisher leaves the stuck channel at the latest when the pause that began last is over.
            try await eventually(within: .seconds(12)) {
                do { try await publisher.publish("body", to: small) } catch { return false }
                return true
            }
            try await publisher.publishAll(100, to: small)
            await publisher.close()
        }
    }

    /// Publishes to both queues until the time is over; returns how many messages the small one refused. The other one
    /// takes all.
    private static func publish(
        _ publisher: Publisher, to small: String, beside other: String, for time: Duration
    ) async throws -> Int {
        let end = ContinuousClock.now + time
        var refused = 0
        while ContinuousClock.now < end {
            let outcomes = await publisher.outcomes(of: 2) { ("body", $0 == 0 ? small : other) }
            refused += outcomes.count { $0 == .refused }
            try await Task.sleep(for: .milliseconds(10))
        }
        return refused
    }

    private static func limit(_ queue: String, to count: Int) throws {
        try Program.run(
            Program.deployLocal,
            [
                "rabbitmqctl", "-q", "set_policy", "--apply-to", "queues", queue, "^\(queue)$",
                #"{"max-length": \#(count), "overflow": "reject-publish"}"#,
            ])
    }

    private static func lift(_ queue: String) throws {
        try Program.run(Program.deployLocal, ["rabbitmqctl", "-q", "clear_policy", queue])
    }
}
