import HTTPTypes
import NIOCore
import NIOPosix
import Testing

@testable import Intake
@testable import Service

/// Goal: no user keeps others from their lists, and no user reads two lists at once. Method: readers that stay until
/// they are told to go, and other readers beside them.
@Suite struct ListLimiterTests {
    private let connections = ConnectionLimit(1000)
    private let limiter: ListLimiter

    init() { limiter = ListLimiter(connections: connections) }

    /// Lends a channel. Nothing is written to it, so any channel will do.
    private static func withChannel(_ body: (any Channel) async throws -> Void) async throws {
        let channel = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .bind(host: "127.0.0.1", port: 0).get()
        let result: Result<Void, any Error>
        do { result = .success(try await body(channel)) } catch { result = .failure(error) }
        try await channel.close()
        try result.get()
    }

    /// A reader that has begun, and the continuation that ends it.
    private struct Reader {
        let task: Task<Void, any Error>
        let end: AsyncStream<Void>.Continuation

        func leave() async throws {
            end.finish()
            try await task.value
        }
    }

    private func reader(of user: String?, _ channel: any Channel) async -> Reader {
        let (stay, end) = AsyncStream.makeStream(of: Void.self)
        let (begun, begin) = AsyncStream.makeStream(of: Void.self)
        let task = Task { [limiter] in
            try await limiter.withTurn(of: user, channel) {
                begin.finish()
                for await _ in stay {}
            }
        }
        for await _ in begun {}
        return Reader(task: task, end: end)
    }

    @Test("The next list of a user waits for the one before; another user's does not")
    func turns() async throws {
        try await Self.withChannel { channel in
            _ = connections.remember(channel)
            let first = await reader(of: "u1", channel)
            let start = ContinuousClock.now
            let second = Task { [limiter] in
                try await limiter.withTurn(of: "u1", channel) { ContinuousClock.now - start }
            }
            try await Task.sleep(for: .milliseconds(300))
            try await limiter.withTurn(of: "u2", channel) {}
            try await limiter.withTurn(of: nil, channel) {}
            try await first.leave()
            #expect(try await second.value >= .milliseconds(250))
            try await limiter.withTurn(of: "u1", channel) {}
        }
    }

    @Test("Nobody waits for more than 2 s, and the answer says for what")
    func patience() async throws {
        try await Self.withChannel { channel in
            _ = connections.remember(channel)
            let readers = [await reader(of: "u1", channel), await reader(of: "u2", channel)]
            let start = ContinuousClock.now
            async let busy = problem(of: "u3", channel)
            async let key = problem(of: nil, channel)
            async let own = problem(of: "u1", channel)
            for (problem, status, limit) in [
                (await busy, 503, Limit.lists), (await key, 503, .lists), (await own, 429, .userLists),
            ] {
                #expect(problem?.status.code == status && problem?.limit == limit)
                #expect(problem?.headers[.retryAfter] != nil)
            }
            #expect((.milliseconds(1900)..<Duration.seconds(4)).contains(ContinuousClock.now - start))
            for reader in readers { try await reader.leave() }
            try await limiter.withTurn(of: "u3", channel) {}
        }
    }

    @Test("A reader that waits behind many of one user is not passed by them")
    func crowd() async throws {
        try await Self.withChannel { channel in
            _ = connections.remember(channel)
            let (first, other) = (await reader(of: "u1", channel), await reader(of: "u2", channel))
            let crowd = (0..<ListLimiter.waitersOfUserMax).map { _ in
                Task { [limiter] in try await limiter.withTurn(of: "u1", channel) {} }
            }
            try await Task.sleep(for: .milliseconds(200))
            let start = ContinuousClock.now
            #expect(await problem(of: "u1", channel)?.limit == .userLists)
            #expect(ContinuousClock.now - start < .seconds(1), "refused at once")
            let third = Task { [limiter] in try await limiter.withTurn(of: "u3", channel) {} }
            try await Task.sleep(for: .milliseconds(100))
            // One place is free, and the crowd's user has a list under way.
            try await other.leave()
            try await third.value
            try await first.leave()
            for waiter in crowd { try await waiter.value }
        }
    }

    @Test("Nothing is read for a client that left while it waited, and its place is free")
    func left() async throws {
        try await Self.withChannel { channel in
            let connection = connections.remember(channel)
            let first = await reader(of: "u1", channel)
            let second = Task { [limiter] in try await limiter.withTurn(of: "u1", channel) { Issue.record("was read") }
            }
            try await Task.sleep(for: .milliseconds(100))
            connection.clientLeft()
            try await first.leave()
            await #expect(throws: CancellationError.self) { try await second.value }
            try await limiter.withTurn(of: "u1", channel) {}
        }
    }

    private func problem(of user: String?, _ channel: any Channel) async -> Problem? {
        do {
            try await limiter.withTurn(of: user, channel) {}
            return nil
        } catch {
            return error as? Problem
        }
    }
}
