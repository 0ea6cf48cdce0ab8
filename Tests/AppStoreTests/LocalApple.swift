import AsyncHTTPClient
import Foundation
import HTTPTypes
import Hummingbird
import Logging
import NIOCore
import Synchronization
import TestServers

/// An HTTP server on 127.0.0.1 that answers as the test says and remembers what it was asked.
final class LocalApple: Sendable {
    struct Asked: Sendable {
        var method: String
        var path: String
        var headers: [String: String]
        var body: [UInt8]
    }

    enum Answer: Sendable {
        case json(String, status: Int = 200, headers: [String: String] = [:])
        /// No answer at all until the test is over.
        case silence
        /// A head and half a body, then nothing until the test is over.
        case stall
    }

    let url: String
    private let asked: Mutex<[Asked]>

    var requests: [Asked] { asked.withLock { $0 } }

    private init(port: Int) {
        url = "http://127.0.0.1:\(port)"
        asked = Mutex([])
    }

    private static let quiet: Logger = {
        var logger = Logger(label: "LocalApple")
        logger.logLevel = .critical
        return logger
    }()

    /// Runs `body` against a server whose answers `answer` gives by request.
    static func serving<Result: Sendable>(
        _ answer: @escaping @Sendable (Asked) -> Answer,
        _ body: @escaping @Sendable (LocalApple, HTTPClient) async throws -> Result
    ) async throws -> Result {
        let (ports, portFound) = AsyncStream<Int>.makeStream()
        let (over, isOver) = AsyncStream<Void>.makeStream()
        let current = Mutex<LocalApple?>(nil)
        let responder = CallbackResponder<BasicRequestContext> { request, _ in
            let buffer = try await request.body.collect(upTo: 16 * 1024 * 1024)
            let headers = Dictionary(
                request.headers.map { ($0.name.canonicalName, $0.value) }, uniquingKeysWith: { first, _ in first })
            let asked = Asked(
                method: request.method.rawValue, path: request.uri.string, headers: headers,
                body: Array(buffer.readableBytesView))
            current.withLock { $0 }?.asked.withLock { $0.append(asked) }
            switch answer(asked) {
            case .json(let text, let status, let headers):
                var fields: HTTPFields = [.contentType: "application/json"]
                for (name, value) in headers { fields[HTTPField.Name(name)!] = value }
                return Response(
                    status: .init(code: status), headers: fields,
                    body: .init(byteBuffer: ByteBuffer(string: text)))
            case .silence:
                for await _ in over {}
                return Response(status: .ok)
            case .stall:
                return Response(
                    status: .ok, headers: [.contentLength: "100"],
                    body: .init { writer in
                        try await writer.write(ByteBuffer(string: "{"))
                        for await _ in over {}
                    })
            }
        }
        let application = Application(
            responder: responder,
            configuration: .init(address: .hostname("127.0.0.1", port: 0)),
            onServerRunning: { channel in portFound.yield(channel.localAddress?.port ?? 0) },
            logger: quiet)

        return try await RunningService.with(application) {
            var iterator = ports.makeAsyncIterator()
            let server = LocalApple(port: await iterator.next() ?? 0)
            current.withLock { $0 = server }
            // The test does not use the shared client: a retried connection attempt would turn a refused one into a
            // time-out.
            var configuration = HTTPClient.Configuration()
            configuration.redirectConfiguration = .disallow
            configuration.connectionPool.retryConnectionEstablishment = false
            let client = HTTPClient(eventLoopGroupProvider: .singleton, configuration: configuration)
            let result: Swift.Result<Result, any Error>
            do { result = .success(try await body(server, client)) } catch { result = .failure(error) }
            isOver.finish()
            try await client.shutdown()
            return try result.get()
        }
    }
}
