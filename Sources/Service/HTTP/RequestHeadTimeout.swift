import Encoding
import NIOCore
import NIOHTTPTypes

/// Watches one connection. Its first byte must come within 10 s, and the head of each request within a limit from the
/// head's first byte. Without these limits a client that sends nothing, or sends byte by byte, would keep its
/// connection until the idle time-out. Bodies have `RequestClock`. The `ConnectionLimit` learns from here since when
/// the connection has no request.
///
/// The handler stands behind the HTTP decoder, and puts a second handler before the decoder. Bytes that came in and
/// have not become a part of a message (head, piece of a body, end) are an unfinished head. There is one timer per
/// connection, never one per request.
///
/// An unfinished head is answered 408. A silent connection is closed without an answer: a gateway that is just sending
/// its first request would take an answer to nothing for the answer to that request.
final class RequestHeadTimeout: ChannelDuplexHandler, RemovableChannelHandler {
    typealias InboundIn = HTTPRequestPart
    typealias InboundOut = HTTPRequestPart
    typealias OutboundIn = HTTPResponsePart
    typealias OutboundOut = HTTPResponsePart

    static let firstByteMax: Duration = .seconds(10)

    /// An outbound event: bytes that bypass the HTTP encoder, which knows one head for each request.
    struct Raw: Sendable {
        fileprivate let bytes: ByteBuffer

        /// Asks the client for the body that it announced (RFC 9110, 10.1.1).
        static let goOn = Raw(bytes: ByteBuffer(string: "HTTP/1.1 100 Continue\r\n\r\n"))

        /// The last answer of a connection whose request did not come (RFC 9110, 15.5.9).
        fileprivate static let timeout: Raw = {
            let body = Problem.tooSlow.document.bytes
            let head = [
                "HTTP/1.1 408 Request Timeout", "Content-Type: \(Problem.mediaType)", "Content-Length: \(body.count)",
                "Cache-Control: no-store", "Connection: close",
            ]
            var bytes = ByteBuffer(string: head.joined(separator: "\r\n") + "\r\n\r\n")
            bytes.writeBytes(body)
            return Raw(bytes: bytes)
        }()
    }

    /// The handler before the decoder, which sees the bytes themselves.
    private final class Bytes: ChannelDuplexHandler {
        typealias InboundIn = ByteBuffer
        typealias OutboundIn = ByteBuffer
        typealias OutboundOut = ByteBuffer
        private let watch: RequestHeadTimeout

        init(_ watch: RequestHeadTimeout) { self.watch = watch }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            watch.bytesCame(context)
            context.fireChannelRead(data)
        }

        func triggerUserOutboundEvent(context: ChannelHandlerContext, event: Any, promise: EventLoopPromise<Void>?) {
            guard let raw = event as? Raw else { return context.triggerUserOutboundEvent(event, promise: promise) }
            context.writeAndFlush(wrapOutboundOut(raw.bytes), promise: promise)
        }
    }

    private let limit: TimeAmount
    private let firstByteLimit: TimeAmount
    private let connections: ConnectionLimit
    private var connection: ConnectionLimit.Connection?
    /// When the first byte, or the rest of a head, must have come; nil: nothing is waited for.
    private var deadline: NIODeadline?
    private var isSilent = true
    private var timer: Scheduled<Void>?
    /// Requests whose answer has not ended.
    private var requests = 0

    init(limit: Duration, connections: ConnectionLimit) {
        self.limit = TimeAmount(limit)
        firstByteLimit = TimeAmount(min(limit, Self.firstByteMax))
        self.connections = connections
    }

    func handlerAdded(context: ChannelHandlerContext) {
        do {
            try context.pipeline.syncOperations.addHandler(Bytes(self), position: .first)
        } catch {
            // This happens only in a pipeline that is being torn down.
            context.close(promise: nil)
        }
        if context.channel.isActive { opened(context) }
    }

    func channelActive(context: ChannelHandlerContext) {
        opened(context)
        context.fireChannelActive()
    }

    func channelInactive(context: ChannelHandlerContext) {
        timer?.cancel()
        timer = nil
        connection?.clientLeft()
        connections.forget(context.channel)
        context.fireChannelInactive()
    }

    /// The client closed its side. A client that only says that it sends no more is answered all the same, unless it
    /// waits for a turn (`ListLimiter`).
    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        if case ChannelEvent.inputClosed? = event as? ChannelEvent { connection?.clientLeft() }
        context.fireUserInboundEventTriggered(event)
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        deadline = nil
        if case .head = unwrapInboundIn(data) {
            requests += 1
            connection?.becameBusy()
        }
        context.fireChannelRead(data)
    }

    func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        if case .end = unwrapOutboundIn(data) {
            // Bytes that are no HTTP are answered too, although they were no request.
            requests = max(0, requests - 1)
            if requests == 0 { connection?.becameIdle(at: .now()) }
        }
        context.write(data, promise: promise)
    }

    private func opened(_ context: ChannelHandlerContext) {
        guard connection == nil else { return }
        connection = connections.remember(context.channel)
        deadline = .now() + firstByteLimit
        startTimer(context)
    }

    private func bytesCame(_ context: ChannelHandlerContext) {
        guard isSilent || deadline == nil else { return }
        isSilent = false
        deadline = .now() + limit
        startTimer(context)
    }

    /// Starts the timer. A timer that already runs looks again when it ends.
    private func startTimer(_ context: ChannelHandlerContext) {
        guard timer == nil, let deadline else { return }
        timer = context.eventLoop.assumeIsolated().scheduleTask(deadline: deadline) {
            self.timer = nil
            guard let deadline = self.deadline else { return }
            if deadline <= .now() { return self.timeIsUp(context) }
            self.startTimer(context)
        }
    }

    private func timeIsUp(_ context: ChannelHandlerContext) {
        connections.note(isSilent ? .silentConnection : .requestTime, of: context.remoteAddress)
        // An answer to an earlier request may be half written.
        guard !isSilent, requests == 0 else { return context.close(promise: nil) }
        let written = context.eventLoop.makePromise(of: Void.self)
        written.futureResult.assumeIsolated().whenComplete { _ in context.close(promise: nil) }
        context.triggerUserOutboundEvent(Raw.timeout, promise: written)
    }
}
