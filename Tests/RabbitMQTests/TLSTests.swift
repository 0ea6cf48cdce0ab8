import Foundation
import TestServers
import Testing

@testable import RabbitMQ

/// Goal: over `amqps`, publisher and consumer connect only to the broker that the certificate names, and name the fault
/// otherwise. Method: a RabbitMQ of our own with certificates of an authority made for the test.
@Suite(.timeLimit(.minutes(5))) struct TLSTests {
    private static let topology = Topology.of("work")

    private func url(_ server: TLSServer, authority: String) -> String {
        "amqps://guest:guest@\(TLSServer.name):\(server.port)/?cacertfile=\(authority)"
    }

    /// How one attempt to connect ends, for a publisher and a consumer alike.
    private func state(_ url: String) async throws -> PublisherState {
        let configuration = try BrokerConfiguration(url: url)
        let publisher = Publisher(configuration, topology: Self.topology, logger: .silent)
        await publisher.start()
        let state = publisher.state
        await publisher.close()
        let consumer = Consumer(
            configuration, topology: Self.topology, subscriptions: [Subscription(queue: "work", prefetch: 1)],
            logger: .silent)
        await consumer.start()
        #expect(consumer.isConnected == (state == .connected))
        await consumer.close()
        return state
    }

    @Test func onlyTheBrokerThatTheCertificateNames() async throws {
        try await TLSServer.run(.rabbitMQ) { server in
            let verified = url(server, authority: server.authority)
            #expect(try await state(verified) == .connected)
            try await roundTrip(verified)

            #expect(try await state(url(server, authority: server.otherAuthority)) == .disconnected(.untrusted))
            #expect(try await state(url(server, authority: server.authority + ".none")) == .disconnected(.untrusted))
            // A plain connection to the TLS listener, and the reverse: both fail.
            #expect(
                try await state("amqp://guest:guest@\(TLSServer.name):\(server.port)/")
                    == .disconnected(.unreachable))
            #expect(
                try await state(
                    "amqps://guest:guest@\(TLSServer.name):\(server.plainPort)/?cacertfile=\(server.authority)")
                    == .disconnected(.unreachable))

            #expect(RabbitMQError.unreachable.description.contains("TLS (amqps)"))
            #expect(RabbitMQError.untrusted.description.contains("cacertfile"))

            // The right authority, another broker.
            try server.present(certificateFor: "other.example")
            #expect(try await state(verified) == .disconnected(.untrusted))
            try server.present(certificateFor: TLSServer.name)
            #expect(try await state(verified) == .connected)
        }
    }

    /// Publishes, delivers and acknowledges messages that are together larger than one TLS record.
    private func roundTrip(_ url: String) async throws {
        let configuration = try BrokerConfiguration(url: url)
        let publisher = Publisher(configuration, topology: Self.topology, logger: .silent)
        await publisher.start()
        let consumer = Consumer(
            configuration, topology: Self.topology, subscriptions: [Subscription(queue: "work", prefetch: 100)],
            logger: .silent)
        await consumer.start()
        try await publisher.publishAll(2_000, to: "work")
        var taken = 0
        for await delivery in consumer.deliveries {
            consumer.acknowledge([delivery])
            taken += 1
            if taken == 2_000 { break }
        }
        await consumer.close()
        #expect(try await publisher.depth(of: "work") == 0)
        await publisher.close()
    }
}
