import Foundation
import NIOCore
import NIOHTTP1
import NIOPosix
import NIOSSL
import Synchronization

/// A receiver of webhooks on a port of its own that answers each request with the bytes that the test gives, whether or
/// not they are HTTP.
final class TestReceiver: Sendable {
    enum Answer: Sendable {
        /// The connection stays open.
        case bytes(String)
        /// The receiver closes the connection after these bytes.
        case last(String)
        case silence
        /// The receiver resets the connection.
        case reset
        /// These bytes, and then as many times a mebibyte as the other side takes.
        case flood(String, mebibytes: Int)

        static func status(_ status: String, _ headers: String = "", body: String = "") -> Answer {
            .bytes("HTTP/1.1 \(status)\r\n\(headers)Content-Length: \(body.utf8.count)\r\n\r\n\(body)")
        }
    }

    struct Request: Sendable {
        let head: HTTPRequestHead
        let body: [UInt8]
    }

    private struct State {
        var requests: [Request] = []
        var connections = 0
        var mebibytesTaken = 0
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
    /// How much of its floods the other side has taken into its buffers.
    var mebibytesTaken: Int { state.withLock { $0.mebibytesTaken } }

    /// Serves on 127.0.0.1 while `body` runs; `body` gets the port.
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
            // Small buffers: what was taken was read, but for the buffers of the other side.
            .childChannelOption(.socketOption(.so_sndbuf), value: 65_536)
            .bind(host: "127.0.0.1", port: 0).get()
        let result: Result<Value, any Error>
        do {
            result = .success(try await body(listener.localAddress?.port ?? 0))
        } catch {
            result = .failure(error)
        }
        try await group.shutdownGracefully()
        return try result.get()
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

        private let receiver: TestReceiver
        private var head: HTTPRequestHead?
        private var body: [UInt8] = []
        private let mebibyte = ByteBuffer(repeating: 0x78, count: 1 << 20)

        init(_ receiver: TestReceiver) { self.receiver = receiver }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            switch Self.unwrapInboundIn(data) {
            case .head(let head): (self.head, body) = (head, [])
            case .body(let part): body += part.readableBytesView
            case .end: answer(over: context)
            }
        }

        private func answer(over context: ChannelHandlerContext) {
            guard let head else { return }
            switch receiver.answer(to: Request(head: head, body: body)) {
            case .bytes(let text): write(text, over: context)
            case .last(let text):
                write(text, over: context)
                context.close(promise: nil)
            case .silence: break
            case .reset:
                // Closing with a linger of no time sends RST in the place of FIN.
                let channel = context.channel
                guard let socket = channel as? any SocketOptionProvider else { return }
                socket.setSoLinger(linger(l_onoff: 1, l_linger: 0)).whenComplete { _ in channel.close(promise: nil) }
            case .flood(let text, let mebibytes):
                write(text, over: context)
                flood(mebibytes, over: context)
            }
        }

        private func write(_ text: String, over context: ChannelHandlerContext) {
            context.writeAndFlush(Self.wrapOutboundOut(ByteBuffer(string: text)), promise: nil)
        }

        private func flood(_ rest: Int, over context: ChannelHandlerContext) {
            guard rest > 0 else { return }
            let bound = NIOLoopBound((self, context), eventLoop: context.eventLoop)
            context.writeAndFlush(Self.wrapOutboundOut(mebibyte)).whenSuccess {
                let (handler, context) = bound.value
                handler.receiver.state.withLock { $0.mebibytesTaken += 1 }
                handler.flood(rest - 1, over: context)
            }
        }

        func errorCaught(context: ChannelHandlerContext, error: any Error) {
            context.close(promise: nil)
        }
    }
}
