import Delivery
import Encoding
package import Foundation
import NIOCore
import NIOHTTP1
import NIOPosix
package import Settings
import Synchronization

/// A backend that receives webhooks on the loopback, by real HTTP, and writes down each of them. A script says how it
/// answers: well, badly, late or not at all.
package final class EventReceiver: Sendable {
    /// One webhook, as it came.
    package struct Received: Sendable {
        /// The header `webhook-id`.
        package let id: String
        package let type: String
        /// Nil: the event is about nobody.
        package let userID: String?
        package let sequence: Int
        package let previousID: String?
        package let cursor: String
        package let attempt: Int
        package let isReplay: Bool
        /// Why the receiver does not trust the webhook; nil: the signature is one of its secrets', and the body is whole.
        package let refusal: String?
        package let at: ContinuousClock.Instant
        /// The status that was sent; nil: none, or not yet.
        package fileprivate(set) var status: Int?

        /// Whether the receiver has taken the event.
        package var isTaken: Bool { status.map { (200..<300).contains($0) } ?? false }
    }

    package enum Answer: Sendable {
        case status(Int, headers: [String: String] = [:])
        /// An answer with a body of so many bytes.
        case body(Int, bytes: Int)
        /// No answer; the connection stays open.
        case hang
        /// The connection is reset.
        case reset
        /// These bytes, and the end of the connection.
        case bytes(String)
    }

    package struct Reply: Sendable {
        package var answer: Answer
        package var delay: Duration

        package init(_ answer: Answer, after delay: Duration = .zero) {
            self.answer = answer
            self.delay = delay
        }

        package static let taken = Reply(.status(204))
    }

    /// Decides about a webhook.
    ///
    /// - Parameter number: how many webhooks have come with this one.
    package typealias Script = @Sendable (_ webhook: Received, _ number: Int) -> Reply

    fileprivate struct State {
        let clock: @Sendable () -> Date
        var secrets: [WebhookSecret]
        var script: Script
        var received: [Received] = []
        var inFlight = 0
        var inFlightMax = 0
    }

    package let port: Int
    private let channel: any Channel
    private let book: Book

    /// What the connections share.
    fileprivate final class Book: Sendable {
        fileprivate let state: Mutex<State>
        fileprivate let connections = Mutex<[ObjectIdentifier: any Channel]>([:])

        fileprivate init(_ state: sending State) { self.state = Mutex(state) }
    }

    private init(port: Int, channel: any Channel, book: Book) {
        self.port = port
        self.channel = channel
        self.book = book
    }

    /// Listens on a port of the loopback.
    ///
    /// - Parameters:
    ///   - secrets: one of them must have signed a webhook.
    ///   - port: 0: any free one.
    ///   - clock: the time by which timestamps are judged.
    package static func start(
        secrets: [WebhookSecret], port: Int = 0, clock: @escaping @Sendable () -> Date = { Date() },
        script: @escaping Script = { _, _ in .taken }
    ) async throws -> EventReceiver {
        let book = Book(State(clock: clock, secrets: secrets, script: script))
        let channel = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.configureHTTPServerPipeline(withPipeliningAssistance: false)
                    try channel.pipeline.syncOperations.addHandler(ConnectionHandler(book))
                }
            }
            .bind(host: "127.0.0.1", port: port).get()
        return EventReceiver(port: channel.localAddress?.port ?? port, channel: channel, book: book)
    }

    package var url: String { "http://127.0.0.1:\(port)/events" }
    /// Every webhook, in the order in which they came.
    package var received: [Received] { book.state.withLock { $0.received } }
    package var count: Int { book.state.withLock { $0.received.count } }
    /// The most webhooks that waited for their answers at the same time.
    package var inFlightMax: Int { book.state.withLock { $0.inFlightMax } }

    package func answer(by script: @escaping Script) { book.state.withLock { $0.script = script } }
    package func trust(_ secrets: [WebhookSecret]) { book.state.withLock { $0.secrets = secrets } }

    /// Closes the port and every connection: senders are refused from then on.
    package func stop() async {
        try? await channel.close().get()
        for connection in book.connections.withLock({ $0.values }) { try? await connection.close().get() }
    }

    // MARK: What came

    /// The events that were taken, each once, in the order in which they were first taken.
    package var taken: [Received] {
        var seen: Set<String> = []
        return received.filter { $0.isTaken && seen.insert($0.id).inserted }
    }

    /// How many webhooks brought an event that had been taken before.
    package var repeats: Int {
        let all = received.filter(\.isTaken)
        return all.count - Set(all.map(\.id)).count
    }

    /// What is wrong with the order of the events that were taken: each user's sequences must grow, and each event must
    /// name the one before it. Replays are outside of the order.
    package var orderDefects: [String] {
        var last: [String: Received] = [:]
        var defects: [String] = []
        for event in taken where !event.isReplay {
            let user = event.userID ?? ""
            let before = last[user]
            if event.sequence <= before?.sequence ?? 0 {
                defects.append("\(user): \(event.sequence) after \(before?.sequence ?? 0)")
            }
            if event.previousID != before?.id {
                defects.append("\(user): \(event.sequence) follows \(event.previousID ?? "nothing")")
            }
            last[user] = event
        }
        return defects + received.compactMap(\.refusal)
    }
}

extension EventReceiver.Book {
    /// Writes a webhook down.
    ///
    /// - Returns: its place in the book, and the reply.
    fileprivate func note(_ head: HTTPRequestHead, _ body: [UInt8]) -> (place: Int, reply: EventReceiver.Reply) {
        let json = (try? JSONSerialization.jsonObject(with: Data(body))) as? [String: Any] ?? [:]
        let delivery = json["delivery"] as? [String: Any] ?? [:]
        return state.withLock { state in
            var refusal: String?
            do throws(WebhookSignature.Refusal) {
                try WebhookSignature.verify(body: body, secrets: state.secrets, now: state.clock()) { name in
                    head.headers.first(name: name)
                }
                if json["id"] as? String != head.headers.first(name: WebhookSignature.Header.id) { refusal = "the id" }
            } catch {
                refusal = "\(error)"
            }
            let webhook = EventReceiver.Received(
                id: head.headers.first(name: WebhookSignature.Header.id) ?? "", type: json["type"] as? String ?? "",
                userID: json["userId"] as? String, sequence: delivery["sequence"] as? Int ?? 0,
                previousID: delivery["previousId"] as? String, cursor: delivery["cursor"] as? String ?? "",
                attempt: delivery["attempt"] as? Int ?? 0, isReplay: delivery["replay"] != nil,
                refusal: refusal, at: .now)
            state.received.append(webhook)
            state.inFlight += 1
            state.inFlightMax = max(state.inFlightMax, state.inFlight)
            let reply = refusal == nil ? state.script(webhook, state.received.count) : .init(.status(401))
            return (state.received.count - 1, reply)
        }
    }

    fileprivate func noteStatus(_ status: Int, of place: Int) {
        state.withLock { $0.received[place].status = status }
    }

    fileprivate func noteEnd() { state.withLock { $0.inFlight -= 1 } }
}

/// One connection of a sender.
private final class ConnectionHandler: ChannelInboundHandler {
    typealias InboundIn = HTTPServerRequestPart
    typealias OutboundOut = HTTPServerResponsePart

    private let book: EventReceiver.Book
    private var head: HTTPRequestHead?
    private var body: [UInt8] = []
    /// The webhook that waits for its answer.
    private var open: Int?

    init(_ book: EventReceiver.Book) {
        self.book = book
    }

    func channelActive(context: ChannelHandlerContext) {
        let channel = context.channel
        book.connections.withLock { $0[ObjectIdentifier(channel)] = channel }
        context.fireChannelActive()
    }

    func channelInactive(context: ChannelHandlerContext) {
        let channel = context.channel
        book.connections.withLock { $0[ObjectIdentifier(channel)] = nil }
        end()
        context.fireChannelInactive()
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        switch unwrapInboundIn(data) {
        case .head(let head): (self.head, body) = (head, [])
        case .body(let bytes): body += bytes.readableBytesView
        case .end:
            guard let head else { return }
            let (place, reply) = book.note(head, body)
            open = place
            guard reply.delay > .zero else { return answer(reply.answer, place, context) }
            let bound = NIOLoopBound((self, context), eventLoop: context.eventLoop)
            context.eventLoop.scheduleTask(in: TimeAmount(reply.delay)) {
                let (handler, context) = bound.value
                handler.answer(reply.answer, place, context)
            }
        }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }

    private func answer(_ answer: EventReceiver.Answer, _ place: Int, _ context: ChannelHandlerContext) {
        // The sender has gone meanwhile.
        guard open == place else { return }
        switch answer {
        case .status(let status, let headers): write(status, HTTPHeaders(headers.map { ($0, $1) }), bytes: 0, context)
        case .body(let status, let bytes): write(status, [:], bytes: bytes, context)
        case .hang: return
        case .reset:
            let channel = context.channel
            _ = (channel as? any SocketOptionProvider)?.setSoLinger(linger(l_onoff: 1, l_linger: 0))
            context.close(promise: nil)
        case .bytes(let text):
            // Past the encoder of HTTP.
            let encoder = try? context.pipeline.syncOperations.context(handlerType: HTTPResponseEncoder.self)
            encoder?.writeAndFlush(NIOAny(ByteBuffer(string: text)), promise: nil)
            context.close(promise: nil)
        }
    }

    private func write(_ status: Int, _ headers: HTTPHeaders, bytes: Int, _ context: ChannelHandlerContext) {
        guard let place = open else { return }
        var headers = headers
        headers.replaceOrAdd(name: "content-length", value: "\(bytes)")
        let head = HTTPResponseHead(version: .http1_1, status: HTTPResponseStatus(statusCode: status), headers: headers)
        book.noteStatus(status, of: place)
        end()
        context.write(wrapOutboundOut(.head(head)), promise: nil)
        if bytes > 0 {
            let body = ByteBuffer(repeating: UInt8(ascii: "x"), count: bytes)
            context.write(wrapOutboundOut(.body(.byteBuffer(body))), promise: nil)
        }
        context.writeAndFlush(wrapOutboundOut(.end(nil)), promise: nil)
    }

    private func end() {
        guard open != nil else { return }
        open = nil
        book.noteEnd()
    }
}
