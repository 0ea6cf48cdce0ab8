import Encoding
import NIOCore
import NIOHTTP1

/// Why a request got no answer.
enum LoadTrouble: Error, CustomStringConvertible {
    case connectionClosed, timedOut, answerTooLong

    var description: String {
        switch self {
        case .connectionClosed: "the connection was closed before the answer was complete"
        case .timedOut: "no answer in time"
        case .answerTooLong: "the answer was too long"
        }
    }
}

/// One sender of a run: sends one request after the other over a connection, and opens a new one when it is gone. Lives
/// on the run's event loop; nothing here waits or takes a lock.
final class LoadConnection: ChannelInboundHandler {
    typealias InboundIn = HTTPClientResponsePart
    typealias OutboundOut = HTTPClientRequestPart

    /// The limit on an answer's bytes: one receipt with a thousand transactions takes less.
    private static let answerBytesMax = 1 << 20

    /// The request under way, with the received part of its answer.
    private struct Exchange {
        let intended: NIODeadline
        /// Nil until the request was sent.
        var deadline: NIODeadline?
        var status = 0
        var keepsConnection = false
        var wantsBody = false
        var bodyBytes = 0
        var body = ByteBuffer()
    }

    private let senders: LoadSenders
    private var context: ChannelHandlerContext?
    private var exchange: Exchange?
    private var request = ByteBuffer()
    private var isWatched = false

    init(_ senders: LoadSenders) {
        self.senders = senders
    }

    /// Sends the next request at its time, if there is one.
    func next() {
        guard !senders.record.isHopeless else { return end() }
        switch senders.stock.next() {
        case .none: end()
        case .later: senders.stock.whenMore { self.next() }
        case .token(let token):
            let now = NIODeadline.now()
            let intended = senders.intended(token.number) ?? now
            if intended > now {
                senders.loop.assumeIsolated().scheduleTask(deadline: intended) {
                    self.begin(token, intended: intended, at: .now())
                }
            } else {
                begin(token, intended: intended, at: now)
            }
        }
    }

    private func begin(_ token: TokenStock.Token, intended: NIODeadline, at now: NIODeadline) {
        guard now < senders.end else { return end() }
        senders.record.began(late: now - intended)
        senders.run.request.write(token.text, user: token.number % senders.run.users, into: &request)
        exchange = Exchange(intended: intended)
        if let context, context.channel.isActive { send(over: context, at: now) } else { connect() }
    }

    private func connect() {
        hangUp()
        senders.run.connector.connect(on: senders.loop).assumeIsolated().whenComplete { result in
            do {
                try result.get().pipeline.syncOperations.addHandler(self)
                guard let context = self.context else { throw LoadTrouble.connectionClosed }
                self.send(over: context, at: .now())
            } catch {
                self.fail(error)
            }
        }
    }

    private func send(over context: ChannelHandlerContext, at now: NIODeadline) {
        exchange?.deadline = now + senders.run.timeout
        watch(until: now + senders.run.timeout)
        context.write(Self.wrapOutboundOut(LoadRequestWriter.head), promise: nil)
        context.writeAndFlush(Self.wrapOutboundOut(.body(.byteBuffer(request))), promise: nil)
    }

    /// Sets one timer for all requests of this connection. The timer fires at the deadline of the request for which it
    /// was set, and is then set again for the request under way.
    private func watch(until deadline: NIODeadline) {
        guard !isWatched else { return }
        isWatched = true
        senders.loop.assumeIsolated().scheduleTask(deadline: deadline) {
            self.isWatched = false
            guard let deadline = self.exchange?.deadline else { return }
            if deadline <= .now() { self.fail(LoadTrouble.timedOut) } else { self.watch(until: deadline) }
        }
    }

    private func fail(_ error: any Error) {
        hangUp()
        exchange = nil
        senders.record.failed(error)
        next()
    }

    private func end() {
        hangUp()
        senders.ended()
    }

    /// Closes the connection and forgets it: data that still comes over it is ignored.
    private func hangUp() {
        let old = context
        context = nil
        old?.close(promise: nil)
    }

    // MARK: The channel's events

    func handlerAdded(context: ChannelHandlerContext) {
        if context.channel.isActive { self.context = context }
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        guard context === self.context, exchange != nil else { return }
        switch Self.unwrapInboundIn(data) {
        case .head(let head):
            let status = Int(head.status.code)
            exchange?.status = status
            exchange?.keepsConnection = head.isKeepAlive
            exchange?.wantsBody = senders.record.wantsBody(status)
        case .body(let part):
            read(part)
        case .end:
            answered()
        }
    }

    private func read(_ part: ByteBuffer) {
        exchange?.bodyBytes += part.readableBytes
        if exchange?.bodyBytes ?? 0 > Self.answerBytesMax { return fail(LoadTrouble.answerTooLong) }
        if exchange?.wantsBody == true { exchange?.body.writeImmutableBuffer(part) }
    }

    private func answered() {
        guard let answer = exchange else { return }
        exchange = nil
        let now = NIODeadline.now()
        senders.record.answered(answer.status, answer.body, at: now, after: now - answer.intended)
        if !answer.keepsConnection { hangUp() }
        next()
    }

    func channelInactive(context: ChannelHandlerContext) {
        lost(context, LoadTrouble.connectionClosed)
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        lost(context, error)
    }

    /// Handles the loss of the connection. Without a request under way it is no trouble: the next request opens a new
    /// one.
    private func lost(_ context: ChannelHandlerContext, _ error: any Error) {
        guard context === self.context else { return }
        if exchange == nil { hangUp() } else { fail(error) }
    }
}
