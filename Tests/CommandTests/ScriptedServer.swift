import Foundation
import NIOCore
import NIOHTTP1
import NIOPosix
import NIOSSL
import Synchronization

/// An HTTP server on a port of its own that answers each request with the bytes that the test gives.
final class ScriptedServer: Sendable {
    /// The answer to a request.
    enum Answer: Sendable {
        case bytes(String)
        /// The server sends this answer and closes the connection.
        case last(String)
        case silence
        /// The server sends this answer, closes the connection and stops listening.
        case lastOfAll(String)

        static let accepted = bytes("HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}")
    }

    struct Request: Sendable {
        let head: HTTPRequestHead
        let body: String
        let at: NIODeadline
    }

    private struct State {
        var requests: [Request] = []
        var connections = 0
    }

    private let answer: @Sendable (Int) -> Answer
    private let state = Mutex(State())

    /// - Parameter answer: the answer to the request with this number, from 0, in the order of arrival.
    init(answer: @escaping @Sendable (Int) -> Answer) {
        self.answer = answer
    }

    var requests: [Request] { state.withLock { $0.requests } }
    /// The number of connections opened so far.
    var connections: Int { state.withLock { $0.connections } }

    /// Serves while `body` runs; `body` gets the port.
    func serve<Value>(tls: NIOSSLContext? = nil, _ body: (Int) async throws -> Value) async throws -> Value {
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let listener = try await ServerBootstrap(group: group)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    self.state.withLock { $0.connections += 1 }
                    let pipeline = channel.pipeline.syncOperations
                    if let tls { try pipeline.addHandler(NIOSSLServerHandler(context: tls)) }
                    try pipeline.addHandler(ByteToMessageHandler(HTTPRequestDecoder()))
                    try pipeline.addHandler(Answering(self))
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        do {
            let value = try await body(listener.localAddress?.port ?? 0)
            try await group.shutdownGracefully()
            return value
        } catch {
            try await group.shutdownGracefully()
            throw error
        }
    }

    private func answer(to request: Request) -> Answer {
        answer(
            state.withLock { state in
                state.requests.append(request)
                return state.requests.count - 1
            })
    }

    private final class Answering: ChannelInboundHandler {
        typealias InboundIn = HTTPServerRequestPart
        typealias OutboundOut = ByteBuffer

        private let server: ScriptedServer
        private var head: HTTPRequestHead?
        private var body = ""

        init(_ server: ScriptedServer) { self.server = server }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            switch Self.unwrapInboundIn(data) {
            case .head(let head): (self.head, body) = (head, "")
            case .body(let part): body += String(buffer: part)
            case .end: answer(over: context)
            }
        }

        private func answer(over context: ChannelHandlerContext) {
            guard let head else { return }
            switch server.answer(to: Request(head: head, body: body, at: .now())) {
            case .bytes(let text):
                context.writeAndFlush(Self.wrapOutboundOut(ByteBuffer(string: text)), promise: nil)
            case .last(let text):
                context.writeAndFlush(Self.wrapOutboundOut(ByteBuffer(string: text)), promise: nil)
                context.close(promise: nil)
            case .lastOfAll(let text):
                context.channel.parent?.close(promise: nil)
                context.writeAndFlush(Self.wrapOutboundOut(ByteBuffer(string: text)), promise: nil)
                context.close(promise: nil)
            case .silence:
                break
            }
        }

        func errorCaught(context: ChannelHandlerContext, error: any Error) {
            context.close(promise: nil)
        }
    }
}
