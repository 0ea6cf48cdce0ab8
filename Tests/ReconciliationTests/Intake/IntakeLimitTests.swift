import AsyncHTTPClient
import Encoding
import Foundation
import NIOCore
import NIOHTTP1
import NIOPosix
import Purchases
import Service
import ServiceLifecycle
import Settings
import Synchronization
import TestServers
import Testing

/// Goal: everything has a limit, and each limit has a clear answer; a process that stops answers the requests that it
/// has. Method: bodies too large, too slow and cut, a database that is gone, a shutdown with requests under way.
@Suite(.migratedDatabase, .serialized) struct IntakeLimitTests {
    private static let limit = 4096

    private static func body(bytes: Int) -> String {
        let frame = #"{"userId":"u1","receipt":""}"#
        return #"{"userId":"u1","receipt":"\#(String(repeating: "A", count: (bytes - frame.utf8.count) / 4 * 4))"}"#
    }

    @Test("Over the limit by its own announcement: 413 before a byte is read")
    func announced() async throws {
        try await RunningIntake.run(environment: ["MAKEGOOD_BODY_BYTES_MAX": "\(Self.limit)"]) { intake in
            #expect(try await intake.post(Self.body(bytes: Self.limit)).status == 202)
            let answer = try await intake.post(Self.body(bytes: Self.limit + 64))
            #expect(answer.status == 413)
            #expect(answer["code"] == .string("body_too_large"))
            #expect(answer.headers["connection"] == "close")
            // A head that announces 1 GB without a body is answered all the same.
            let text = try await RawConnection.exchange(
                intake.port,
                "POST /v1/receipts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \(IntakeFixture.key)\r\n"
                    + "Content-Length: 1000000000\r\n\r\n")
            #expect(text.hasPrefix("HTTP/1.1 413"))
            #expect(text.contains("body_too_large"))
        }
    }

    @Test("Over the limit in chunks: 413")
    func chunked() async throws {
        try await RunningIntake.run(environment: ["MAKEGOOD_BODY_BYTES_MAX": "\(Self.limit)"]) { intake in
            for (bytes, status) in [(Self.limit - 100, 202), (Self.limit * 4, 413)] {
                var request = HTTPClientRequest(url: intake.base + "/v1/receipts")
                request.method = .POST
                request.headers.add(name: "Authorization", value: "Bearer \(IntakeFixture.key)")
                let chunks = Array(Self.body(bytes: bytes).utf8).chunks(of: 500)
                request.body = .stream(
                    AsyncStream { continuation in
                        for chunk in chunks { continuation.yield(ByteBuffer(bytes: chunk)) }
                        continuation.finish()
                    }, length: .unknown)
                let answer = try await RunningIntake.answer(intake.client.execute(request, timeout: .seconds(10)))
                #expect(answer.status == status)
            }
        }
    }

    @Test("A request that does not arrive in time: 408, and the connection is closed")
    func slow() async throws {
        try await RunningIntake.run(requestLimit: .milliseconds(1500)) { intake in
            let start = ContinuousClock.now
            let text = try await RawConnection.exchange(
                intake.port,
                "POST /v1/receipts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \(IntakeFixture.key)\r\n"
                    + "Content-Length: 100\r\n\r\n{\"userId\":")
            #expect(text.hasPrefix("HTTP/1.1 408"))
            #expect(text.contains("request_timeout") && text.contains(#""limit":"request.time""#))
            #expect(ContinuousClock.now - start < .seconds(10))
            // Other clients are not disturbed.
            #expect(try await intake.post(Self.body(bytes: 200)).status == 202)
        }
    }

    @Test("More connections than there may be: they wait, and everybody gets a turn")
    func crowd() async throws {
        try await RunningIntake.run(connectionsMax: 2) { intake in
            let answers = try await withThrowingTaskGroup(of: String.self) { clients in
                for _ in 0..<24 {
                    clients.addTask {
                        try await RawConnection.exchange(intake.port, "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                    }
                }
                return try await clients.reduce(into: [String]()) { $0.append($1) }
            }
            #expect(answers.allSatisfy { $0.hasPrefix("HTTP/1.1 200") })
            // The clients did not ask for it. The last two connections may stay open.
            #expect(answers.count { $0.lowercased().contains("connection: close") } >= 20)
        }
    }

    @Test("A head that does not arrive in time: 408 and closed, also after a good request; silence is only closed")
    func slowHead() async throws {
        try await RunningIntake.run(requestLimit: .milliseconds(600)) { intake in
            let whole = "GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
            for (first, rest, statuses) in [
                ("GET /health/live HTTP/1.1\r\nHo", "st:", ["408"]), (whole, "GET /hea", ["200", "408"]),
                ("", nil, []),
            ] {
                let start = ContinuousClock.now
                let answer = try await RawConnection.exchange(intake.port, first, then: rest)
                #expect(answer.split(separator: "HTTP/1.1 ").map { String($0.prefix(3)) } == statuses)
                #expect(answer.contains(#""limit":"request.time""#) == statuses.contains("408"))
                #expect(ContinuousClock.now - start < .seconds(4))
            }
        }
    }

    @Test("The body of a caller without a key is not read to its end")
    func unreadBody() async throws {
        try await RunningIntake.run { intake in
            let start = ContinuousClock.now
            let text = try await RawConnection.exchange(
                intake.port,
                "POST /v1/receipts HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n")
            #expect(text.hasPrefix("HTTP/1.1 401"))
            #expect(ContinuousClock.now - start < .seconds(4))
        }
    }

    @Test("S1-2: a post cut in the middle stores nothing")
    func cut() async throws {
        try await RunningIntake.run { intake in
            let before = try await intake.count("select count(*) from receipts")
            let text = try await RawConnection.exchange(
                intake.port,
                "POST /v1/receipts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \(IntakeFixture.key)\r\n"
                    + "Content-Length: 1000\r\n\r\n" + Self.body(bytes: 200), thenClose: true)
            #expect(!text.hasPrefix("HTTP/1.1 2"))
            #expect(try await intake.count("select count(*) from receipts") == before)
        }
    }

    @Test("The database is gone: 503 with Retry-After, and ready says so")
    func databaseGone() async throws {
        try await RunningIntake.run(
            url: "postgresql://postgres@127.0.0.1:1/none", reconnectWait: .milliseconds(500)
        ) { intake in
            let answers = try await withThrowingTaskGroup(of: RunningIntake.Answer.self) { group in
                for index in 0..<10 {
                    group.addTask { try await intake.post(#"{"userId":"u\#(index)","receipt":"QUJD"}"#) }
                }
                group.addTask { try await intake.get("/v1/receipts/\(UUID().uuidString)") }
                group.addTask { try await intake.get("/v1/events", key: IntakeFixture.backendKey) }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            for answer in answers {
                #expect(answer.status == 503)
                #expect(answer["code"] == .string("unavailable"))
                #expect((1...5).contains(Int(answer.headers["retry-after"] ?? "") ?? 0))
                #expect(answer["safeToFinish"] == .bool(false))
            }
            let ready = try await intake.get("/health/ready", key: nil)
            #expect(ready.status == 503)
            #expect(ready["database"] == .string("down"))
            #expect(try await intake.get("/health/live", key: nil).status == 200)
        }
    }

    @Test("B12: ready without the broker, and degraded; metrics are there")
    func operations() async throws {
        try await RunningIntake.run(broker: { false }) { intake in
            _ = try await intake.post(Self.body(bytes: 200))
            let ready = try await intake.get("/health/ready", key: nil)
            #expect(ready.status == 200)
            #expect(ready["status"] == .string("degraded"))
            #expect(ready["configuration"] != nil)
            let metrics = try await intake.get("/metrics", key: nil)
            #expect(metrics.status == 200)
            #expect(metrics.headers["content-type"] == PrometheusRegistry.contentType)
            #expect(metrics.headers["x-content-type-options"] == "nosniff")
            #expect(metrics.text.contains("# TYPE"))
            #expect(try await intake.send("HEAD", "/health/ready", key: nil).status == 200)
        }
    }

    @Test("With a port of their own, health and metrics are not on the public one")
    func ownPort() async throws {
        try await RunningIntake.run(environment: ["MAKEGOOD_OPERATIONS_PORT": "0"]) { intake in
            for path in ["/health/live", "/health/ready", "/metrics"] {
                let answer = try await intake.get(path, key: nil)
                #expect(answer.status == 404)
            }
        }
    }

    @Test("On a public address without a port of their own: live and ready for load balancers, and nothing else")
    func publicPort() async throws {
        try await RunningIntake.run(environment: ["MAKEGOOD_HTTP_HOST": "0.0.0.0"], broker: { false }) { intake in
            // A post needs the database, so that readiness is asked of a server that has connected to it.
            _ = try await intake.post(Self.body(bytes: 200))
            #expect(try await intake.get("/health/live", key: nil).status == 200)
            let ready = try await intake.get("/health/ready", key: nil)
            #expect(ready.status == 200 && ready.text == #"{"status":"degraded"}"#)
            #expect(try await intake.get("/metrics", key: nil).status == 404)
        }
    }

    @Test(
        "Loopback is an address of this machine, and no name that looks like one",
        arguments: [
            ("127.0.0.1", true), ("127.255.3.4", true), ("::1", true), ("localhost", true), ("LocalHost", true),
            ("0.0.0.0", false), ("::", false), ("10.0.0.1", false), ("127.0.0.1.example.com", false),
            ("127.1", false), ("127.0.0.01", false), ("localhost.example.com", false), ("", false),
        ])
    func loopback(_ host: String, _ isLoopback: Bool) throws {
        #expect(try Settings(environment: ["MAKEGOOD_HTTP_HOST": host]).showsInside == isLoopback)
    }

    @Test("Shutdown: not ready at once, still accepting with Connection: close, waits end, then the port is closed")
    func drain() async throws {
        try await RunningIntake.run(environment: ["MAKEGOOD_DRAIN_DELAY_SECONDS": "5"]) { intake in
            let start = ContinuousClock.now
            async let waiting = intake.post(Self.body(bytes: 400), wait: "25")
            try await Task.sleep(for: .milliseconds(300))
            await intake.group.triggerGracefulShutdown()
            try await Task.sleep(for: .milliseconds(300))
            let ready = try await intake.get("/health/ready", key: nil)
            #expect(ready.status == 503)
            #expect(ready["status"] == .string("draining"))
            let answer = try await intake.post(Self.body(bytes: 200))
            #expect(answer.status == 202)
            #expect(answer.headers["connection"] == "close")
            #expect(try await waiting.status == 202)
            #expect(ContinuousClock.now - start < .seconds(5))
            try await Task.sleep(for: .seconds(6))
            await #expect(throws: (any Error).self) { try await intake.get("/health/live", key: nil) }
        }
    }
}

extension Array {
    fileprivate func chunks(of count: Int) -> [[Element]] {
        stride(from: 0, to: self.count, by: count).map { Array(self[$0..<Swift.min($0 + count, self.count)]) }
    }
}

/// A client that sends raw bytes, as no HTTP client would, and reads until the server closes the connection or the time
/// is over.
enum RawConnection {
    static func exchange(
        _ port: Int, _ text: String, then rest: String? = nil, thenClose: Bool = false, seconds: Int64 = 5
    ) async throws -> String {
        let channel = try await ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .channelOption(.allowRemoteHalfClosure, value: true)
            .connect(host: "127.0.0.1", port: port) { channel in
                channel.eventLoop.makeCompletedFuture {
                    try NIOAsyncChannel<ByteBuffer, ByteBuffer>(
                        wrappingChannelSynchronously: channel, configuration: .init(isOutboundHalfClosureEnabled: true))
                }
            }
        return try await channel.executeThenClose { inbound, outbound in
            try await outbound.write(ByteBuffer(string: text))
            if let rest {
                try await Task.sleep(for: .milliseconds(200))
                try await outbound.write(ByteBuffer(string: rest))
            }
            if thenClose { outbound.finish() }
            let killer = channel.channel.eventLoop.scheduleTask(in: .seconds(seconds)) {
                channel.channel.close(promise: nil)
            }
            defer { killer.cancel() }
            var answer = ""
            for try await buffer in inbound { answer += String(buffer: buffer) }
            return answer
        }
    }
}
