import HTTPTypes
import NIOCore
import NIOPosix
import Purchases
import Testing

@testable import Encoding
@testable import Service

/// Goal: slow bodies are refused by the right limit, and no honest phone is refused. Method: bodies of every age and
/// size, and one look at them.
@Suite struct RequestClockTests {
    private struct Body {
        var user: String?
        var seconds: Double
        var bytes: Int
    }

    /// The limit for which each body is refused.
    private static func refused(_ bodies: [Body]) async throws -> [Limit?] {
        // Any channel will do: none is written to.
        let channel = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .bind(host: "127.0.0.1", port: 0).get()
        let now = ContinuousClock.now
        let arrivals = bodies.map { body in
            let arrival = RequestClock.Arrival(channel, of: body.user, start: now - .seconds(body.seconds))
            arrival.add(body.bytes)
            return arrival
        }
        let late = RequestClock().late(arrivals, at: now)
        try await channel.close()
        #expect(Set(late.map { ObjectIdentifier($0.0) }).count == late.count)
        #expect(late.allSatisfy { $0.1.status == .requestTimeout && $0.1.code == .requestTimeout })
        return arrivals.map { arrival in late.first { $0.0 === arrival }?.1.limit }
    }

    @Test(
        "1 KiB a second from the fifth second on, 30 s in all",
        arguments: [
            (4.9, 0, nil), (5.0, 0, nil), (6.0, 1023, .bodyRate), (6.0, 1024, nil), (29.0, 24 * 1024, nil),
            (29.0, 24 * 1024 - 1, .bodyRate), (30.0, 1 << 20, .requestTime), (31.0, 0, .requestTime),
        ] as [(Double, Int, Limit?)])
    func rate(seconds: Double, bytes: Int, limit: Limit?) async throws {
        for user in ["u1", nil] {
            #expect(try await Self.refused([Body(user: user, seconds: seconds, bytes: bytes)]) == [limit])
        }
    }

    @Test("Two slow bodies of a user, the oldest; of a key that sends for many any number")
    func ofUser() async throws {
        let ages = [1.5, 3.0, 0.5, 2.0, 2.5]
        let limits = try await Self.refused(ages.map { Body(user: "u1", seconds: $0, bytes: 10) })
        #expect(limits == [.userBodies, nil, nil, .userBodies, nil])
        #expect(
            try await Self.refused(ages.map { Body(user: nil, seconds: $0, bytes: 10) }) == ages.map { _ in nil })
        // By bytes: Unicode calls these two spellings equal.
        let others = ["caf\u{E9}", "cafe\u{301}", "caf\u{E9}", "cafe\u{301}"]
        #expect(
            try await Self.refused(others.map { Body(user: $0, seconds: 2, bytes: 10) }) == others.map { _ in nil })
    }
}
