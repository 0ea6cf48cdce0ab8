import Commands
import Foundation
import NIOCore
import NIOHTTP1
import NIOSSL
import Synchronization
import Testing

@testable import makegood

/// Goal: whatever a server does to a connection, each request of a run is counted once, with its outcome, and the run
/// goes on. Method: runs against a server that answers with bytes of the test's choice.
@Suite struct LoadRunTests {
    private static let accepted = ScriptedServer.Answer.accepted

    /// Runs `tokens` requests, closed loop unless there is a rate.
    private func run(
        _ server: ScriptedServer, tokens: Int, connections: Int = 1, rate: Double? = nil,
        timeout: TimeAmount = .seconds(20), watch: @escaping @Sendable (LoadRecord.Accepted) -> Void = { _ in }
    ) async throws -> LoadRun.Outcome {
        try await server.serve { port in
            let address = try LoadAddress("http://127.0.0.1:\(port)/base/", option: "--url", allowsRemote: false)
            return try await run(
                address, connector: LoadConnector(address), tokens: tokens, connections: connections, rate: rate,
                timeout: timeout, watch: watch)
        }
    }

    private func run(
        _ address: LoadAddress, connector: LoadConnector, tokens: Int, connections: Int = 1, rate: Double? = nil,
        timeout: TimeAmount = .seconds(20), watch: @escaping @Sendable (LoadRecord.Accepted) -> Void = { _ in }
    ) async throws -> LoadRun.Outcome {
        try await LoadRun(
            connector: connector, request: LoadRequest(address: address, key: "secret", appId: "game"),
            source: Self.tokens(tokens), limit: .max, connections: connections, rate: rate, duration: .seconds(30),
            users: 3, watch: watch, timeout: timeout
        ).run()
    }

    @Test("a notification is posted as Apple posts it, without a user")
    func notification() throws {
        let address = try LoadAddress("http://127.0.0.1:1/base/", option: "--url", allowsRemote: false)
        let request = try LoadRequest(address: address, key: "secret", appId: "game", .notifications)
        var buffer = ByteBuffer()
        request.write(ByteBuffer(string: "a.b.c"), user: 7, into: &buffer)
        let text = String(buffer: buffer)
        #expect(text.hasPrefix("POST /base/v1/apple/notifications HTTP/1.1\r\n"))
        #expect(text.hasSuffix("Content-Length: 25\r\n\r\n{\"signedPayload\":\"a.b.c\"}"))
    }

    /// The tokens `token-0` and so on.
    private static func tokens(_ count: Int) -> TokenStock.Source {
        let stock = Tokens(count: count)
        return { await stock.next($0) }
    }

    private actor Tokens {
        let count: Int
        private var given = 0

        init(count: Int) { self.count = count }

        func next(_ wanted: Int) -> [ByteBuffer] {
            let end = min(given + wanted, count)
            defer { given = end }
            return (given..<end).map { ByteBuffer(string: "token-\($0)") }
        }
    }

    @Test func theRequest() async throws {
        let server = ScriptedServer { _ in .accepted }
        let outcome = try await run(server, tokens: 4)
        #expect(outcome.found.answers.accepted == 4)
        #expect(server.connections == 1)
        #expect(
            server.requests.map(\.body)
                == (0..<4).map { #"{"appId":"game","userId":"load-\#($0 % 3)","signedTransaction":"token-\#($0)"}"# })
        for head in server.requests.map(\.head) {
            #expect(head.method == .POST)
            #expect(head.uri == "/base/v1/receipts")
            #expect(head.headers["Host"].first?.hasPrefix("127.0.0.1:") == true)
            #expect(head.headers["Authorization"] == ["Bearer secret"])
            #expect(head.headers["Content-Type"] == ["application/json"])
        }
    }

    /// A body with its length, in pieces, in pieces with an interim answer before them, and up to the end of the
    /// connection.
    @Test func everyKindOfBody() async throws {
        let kinds: [ScriptedServer.Answer] = [
            .bytes("HTTP/1.1 202 Accepted\r\nContent-Length: 9\r\n\r\n{\"id\":\"\"}"),
            .bytes(
                "HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"id\"\r\n4\r\n:\"\"}\r\n0\r\n\r\n"),
            .bytes(
                "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 202 Accepted\r\n"
                    + "Transfer-Encoding: chunked\r\n\r\n9\r\n{\"id\":\"\"}\r\n0\r\n\r\n"),
            .last("HTTP/1.1 202 Accepted\r\n\r\n{\"id\":\"\"}"),
        ]
        let server = ScriptedServer { kinds[$0 % kinds.count] }
        let bodies = Mutex<[String]>([])
        let outcome = try await run(server, tokens: 40) { receipt in
            bodies.withLock { $0.append(String(buffer: receipt.body)) }
        }
        #expect(outcome.found.answers == .init(accepted: 40))
        #expect(bodies.withLock(\.self) == Array(repeating: "{\"id\":\"\"}", count: 40))
        #expect(server.connections == 10)
    }

    /// The connection closes before a byte of the answer, within its head, within its body.
    @Test(arguments: ["", "HTTP/1.1 202 Acc", "HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\nhalf"])
    func closedInTheMiddle(_ part: String) async throws {
        let server = ScriptedServer { $0 % 5 == 4 ? .last(part) : .accepted }
        let outcome = try await run(server, tokens: 50, connections: 3)
        #expect(outcome.found.sent == 50)
        #expect(outcome.found.answers == .init(accepted: 40, error: 10))
        #expect(outcome.found.acceptedCount == 40)
        #expect(outcome.found.firstTrouble != nil)
        #expect(outcome.isUsedUp)
        #expect(Set(server.requests.map(\.body)).count == 50, "a request was sent twice")
    }

    /// Whether or not the server closes the connection after it announced that.
    @Test(arguments: [true, false]) func connectionClose(_ closes: Bool) async throws {
        let text = "HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
        let server = ScriptedServer { _ in closes ? .last(text) : .bytes(text) }
        let outcome = try await run(server, tokens: 30, connections: 2)
        #expect(outcome.found.answers == .init(accepted: 30))
        #expect(server.connections == 30)
    }

    /// The server closes a connection that waits for its next request: that is no error.
    @Test func closedWhileIdle() async throws {
        let server = ScriptedServer { _ in .last("HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}") }
        let outcome = try await run(server, tokens: 10, rate: 10)
        #expect(outcome.found.answers == .init(accepted: 10))
        #expect(server.connections == 10)
    }

    @Test func noAnswer() async throws {
        let server = ScriptedServer { $0 % 10 == 3 ? .silence : .accepted }
        let outcome = try await run(server, tokens: 20, timeout: .seconds(3))
        #expect(outcome.found.answers == .init(accepted: 18, error: 2))
        #expect(outcome.found.firstTrouble == LoadTrouble.timedOut.description)
        #expect(outcome.lasted >= .seconds(6))
        #expect(server.connections == 3)
    }

    @Test func refused() async throws {
        let server = ScriptedServer { number in
            let answer = "HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
            return number < 5 ? .last(answer) : .lastOfAll(answer)
        }
        let outcome = try await run(server, tokens: 20)
        #expect(outcome.found.sent == 20)
        #expect(outcome.found.answers == .init(accepted: 6, error: 14))
    }

    @Test func answerTooLong() async throws {
        let long = String(repeating: "x", count: (1 << 20) + 1)
        let server = ScriptedServer { number in
            .bytes("HTTP/1.1 202 Accepted\r\nContent-Length: \(long.count - number)\r\n\r\n\(long.dropLast(number))")
        }
        let outcome = try await run(server, tokens: 2)
        #expect(outcome.found.answers == .init(accepted: 1, error: 1))
    }

    /// No request comes before its time, also after slow answers and lost connections, and all of them come.
    @Test func openLoopKeepsItsTimes() async throws {
        let rate = 100.0
        let server = ScriptedServer { $0 % 20 == 7 ? .last("") : $0 == 30 ? .silence : .accepted }
        let before = NIODeadline.now()
        // One answer never comes; the others may be late if the machine pauses.
        let outcome = try await run(server, tokens: 100, connections: 4, rate: rate, timeout: .seconds(3))
        #expect(outcome.found.answers == .init(accepted: 94, error: 6))
        #expect(server.requests.count == 100)
        for request in server.requests {
            let number = try #require(Int(request.body.split(separator: "token-").last?.dropLast(2) ?? ""))
            #expect(request.at >= before + TimeAmount(inSeconds: Double(number) / rate))
        }
        #expect(outcome.lasted >= .milliseconds(990))
    }

    /// The third batch of tokens comes only after the first two are used up: the run counts that and goes on.
    @Test func slowTokens() async throws {
        let server = ScriptedServer { _ in .accepted }
        let outcome = try await server.serve { port in
            let address = try LoadAddress("http://localhost:\(port)", option: "--url", allowsRemote: false)
            let tokens = Tokens(count: 3500)
            return try await LoadRun(
                connector: LoadConnector(address), request: LoadRequest(address: address, key: "secret", appId: nil),
                source: { wanted in
                    let batch = await tokens.next(wanted)
                    if batch.contains(ByteBuffer(string: "token-2000")) {
                        while server.requests.count < 2000 { try await Task.sleep(for: .milliseconds(10)) }
                        try await Task.sleep(for: .milliseconds(300))
                    }
                    return batch
                },
                limit: 3200, connections: 4, rate: nil, duration: .seconds(30), users: 1
            ).run()
        }
        #expect(outcome.found.answers == .init(accepted: 3200))
        #expect(outcome.tokenWaits > 0)
        #expect(!outcome.isUsedUp, "the limit ended the run")
        #expect(outcome.found.acceptedCount == 3200)
        #expect(server.requests.first?.body == #"{"userId":"load-0","signedTransaction":"token-0"}"#)
    }

    @Test func tokensFail() async throws {
        let server = ScriptedServer { _ in .accepted }
        let outcome = try await server.serve { port in
            let address = try LoadAddress("http://127.0.0.1:\(port)", option: "--url", allowsRemote: false)
            return try await LoadRun(
                connector: LoadConnector(address), request: LoadRequest(address: address, key: "secret", appId: nil),
                source: { _ in throw UnusableInput("no tokens") }, limit: 10, connections: 4, rate: nil,
                duration: .seconds(30), users: 1
            ).run()
        }
        #expect(outcome.found.sent == 0)
        #expect("\(outcome.failure.map { "\($0)" } ?? "")" == "no tokens")
    }

    @Test func overTLS() async throws {
        try await withFolder { folder in
            try makeCertificate(in: folder)
            let context = try NIOSSLContext(
                configuration: .makeServerConfiguration(
                    certificateChain: NIOSSLCertificate.fromPEMFile("\(folder)/server.pem").map { .certificate($0) },
                    privateKey: .privateKey(NIOSSLPrivateKey(file: "\(folder)/server.key", format: .pem))))
            let server = ScriptedServer { $0 % 5 == 4 ? .last("") : .accepted }
            try await server.serve(tls: context) { port in
                let address = try LoadAddress("https://localhost:\(port)", option: "--url", allowsRemote: false)
                let known = try LoadConnector(address, trusting: .file("\(folder)/server.pem"))
                let trusted = try await run(address, connector: known, tokens: 20, connections: 2)
                #expect(trusted.found.answers == .init(accepted: 16, error: 4))
                let distrusted = try await run(address, connector: LoadConnector(address), tokens: 20)
                #expect(distrusted.found.answers == .init(error: 20))
                #expect(server.requests.count == 20, "a key was sent to a server that nobody knows")
            }
        }
    }

    private func makeCertificate(in folder: String) throws {
        let openssl = Process()
        openssl.executableURL = URL(filePath: "/usr/bin/env")
        openssl.arguments = [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", "\(folder)/server.key",
            "-out", "\(folder)/server.pem",
        ]
        openssl.standardError = FileHandle.nullDevice
        try openssl.run()
        openssl.waitUntilExit()
        try #require(openssl.terminationStatus == 0)
    }
}
