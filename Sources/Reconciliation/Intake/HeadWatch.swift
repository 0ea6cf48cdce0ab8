import NIOCore

/// The head of a request must arrive within a limit too: without this, a client that sends it byte by byte would live
/// until the idle time-out. Bodies have `RequestClock`.
///
/// Stands behind the HTTP decoder, and puts a second handler before it. Bytes that came in and have not become a part
/// of a message (head, piece of a body, end) are an unfinished head. One timer per connection, never one per request.
final class HeadWatch: ChannelInboundHandler, RemovableChannelHandler {
    /// Whatever the decoder makes: it is passed on unopened.
    typealias InboundIn = NIOAny

    private final class Bytes: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer
        private let watch: HeadWatch

        init(_ watch: HeadWatch) { self.watch = watch }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            watch.bytesCame(context)
            context.fireChannelRead(data)
        }
    }

    private let limit: TimeAmount
    /// When the oldest byte came that has not become part of a message.
    private var unfinishedSince: NIODeadline?
    private var hasTimer = false

    init(limit: Duration) {
        self.limit = .nanoseconds(Int64(limit / .nanoseconds(1)))
    }

    func handlerAdded(context: ChannelHandlerContext) {
        do {
            try context.pipeline.syncOperations.addHandler(Bytes(self), position: .first)
        } catch {
            // Only in a pipeline that is being torn down.
            context.close(promise: nil)
        }
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        unfinishedSince = nil
        context.fireChannelRead(data)
    }

    private func bytesCame(_ context: ChannelHandlerContext) {
        guard unfinishedSince == nil else { return }
        unfinishedSince = .now()
        if !hasTimer { startTimer(context, in: limit) }
    }

    private func startTimer(_ context: ChannelHandlerContext, in wait: TimeAmount) {
        hasTimer = true
        context.eventLoop.assumeIsolated().scheduleTask(in: wait) {
            self.hasTimer = false
            guard let since = self.unfinishedSince else { return }
            let left = since + self.limit - .now()
            if left <= .zero { return context.close(promise: nil) }
            self.startTimer(context, in: left)
        }
    }
}
