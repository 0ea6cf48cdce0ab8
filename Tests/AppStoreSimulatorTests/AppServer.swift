import Foundation
import HTTPTypes
import Hummingbird
import Logging
import NIOCore
import Synchronization
import TestServers

/// The server of an app: keeps the notifications that arrive, and answers them as the test says.
final class AppServer: Sendable {
    private struct State {
        var bodies: [[UInt8]] = []
        /// The statuses of the next answers; then 200.
        var statuses: [Int] = []
    }

    let url: String
    private let state: Mutex<State>

    private init(port: Int) {
        url = "http://127.0.0.1:\(port)/apple"
        state = Mutex(State())
    }

    func answer(_ statuses: Int...) { state.withLock { $0.statuses = statuses } }

    /// The bodies as JSON objects, in the order of their arrival.
    var bodies: [[String: Any]] {
        state.withLock { $0.bodies }.map {
            (try? JSONSerialization.jsonObject(with: Data($0))) as? [String: Any] ?? [:]
        }
    }

    /// The bodies once `count` of them have arrived; fewer after 20 seconds.
    func bodies(_ count: Int) async throws -> [[String: Any]] {
        try await eventually { bodies.count >= count }
        return bodies
    }

    /// The payloads of `count` notifications of version 2.
    func payloads(_ count: Int) async throws -> [SignedTransaction] {
        try await bodies(count).map { try SignedTransaction($0["signedPayload"] as? String ?? "") }
    }

    private func took(_ body: [UInt8]) -> Int {
        state.withLock { state in
            state.bodies.append(body)
            return state.statuses.isEmpty ? 200 : state.statuses.removeFirst()
        }
    }

    /// Runs `body` beside a server.
    static func with(_ body: (AppServer) async throws -> Void) async throws {
        let (ports, portFound) = AsyncStream<Int>.makeStream()
        let current = Mutex<AppServer?>(nil)
        let responder = CallbackResponder<BasicRequestContext> { request, _ in
            let buffer = try await request.body.collect(upTo: 4 << 20)
            let status = current.withLock { $0 }?.took(Array(buffer.readableBytesView)) ?? 503
            return Response(status: .init(code: status))
        }
        var logger = Logger(label: "test")
        logger.logLevel = .critical
        let application = Application(
            responder: responder, configuration: .init(address: .hostname("127.0.0.1", port: 0)),
            onServerRunning: { channel in portFound.yield(channel.localAddress?.port ?? 0) }, logger: logger)
        try await RunningService.with(application) {
            var iterator = ports.makeAsyncIterator()
            let server = AppServer(port: await iterator.next() ?? 0)
            current.withLock { $0 = server }
            try await body(server)
        }
    }
}

/// Waits for a condition, at most 20 seconds.
func eventually(_ condition: () async throws -> Bool) async throws {
    let start = ContinuousClock.now
    while ContinuousClock.now - start < .seconds(20) {
        if try await condition() { return }
        try await Task.sleep(for: .milliseconds(10))
    }
}
