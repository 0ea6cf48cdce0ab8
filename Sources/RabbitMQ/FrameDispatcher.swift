/// Turns the frames of a connection into events: a message comes in several frames, every other event in one. Pure:
/// frames in, events out. Belongs to one connection with one channel.
struct FrameDispatcher {
    /// A larger message is not ours: it is skipped and reported without its body.
    static let incomingBodyLimitBytes = 64 << 10

    /// A frame as a value. Methods have the names of AMQP 0-9-1.
    enum Frame: Equatable {
        case ack(tag: UInt64, multiple: Bool)
        case nack(tag: UInt64, multiple: Bool)
        /// basic.return: header and body follow.
        case giveBack
        /// basic.deliver: header and body follow.
        case deliver(consumer: String, tag: UInt64, redelivered: Bool)
        case header(bodyBytes: UInt64, messageID: String?, headers: MessageHeaders? = nil)
        /// A part of the body; never empty on the wire.
        case body([UInt8])
        case cancel(consumer: String)
        case block
        case unblock
        /// The broker closes the channel or the connection.
        case close
        /// A method that no broker sends unasked to a client that opened one channel.
        case unknown
    }

    enum Failure: Error, Equatable {
        /// The broker has ended the channel or the connection.
        case closed
        /// The stream of frames cannot be followed any more.
        case outOfOrder
    }

    /// A message in progress: after its method come one header and the body frames, possibly over many turns.
    private struct Content {
        enum Kind {
            case returned
            case delivered(consumer: String, tag: UInt64, redelivered: Bool)
        }

        let kind: Kind
        /// Nil until the header has come.
        var remainingBytes: UInt64?
        var tag: UInt64?
        var headers: MessageHeaders?
        var body: [UInt8] = []
        var isTooLarge = false
    }

    private var content: Content?

    /// Takes a frame and returns the event that it completes, if it completes one. After an error no more frames may be
    /// taken.
    ///
    /// Confirms, cancels and alarms may come between the frames of a message: each is an event of its own.
    mutating func take(_ frame: Frame) throws(Failure) -> BrokerEvent? {
        switch frame {
        case .ack(let tag, let multiple): return .confirmed(tag: tag, multiple: multiple)
        case .nack(let tag, let multiple): return .refused(tag: tag, multiple: multiple)
        case .cancel(let consumer): return .cancelled(consumer: consumer)
        case .block: return .blocked
        case .unblock: return .unblocked
        case .close: throw .closed
        case .unknown: throw .outOfOrder
        case .giveBack: return try begin(.returned)
        case .deliver(let consumer, let tag, let redelivered):
            return try begin(.delivered(consumer: consumer, tag: tag, redelivered: redelivered))
        case .header(let bodyBytes, let messageID, let headers):
            guard var content, content.remainingBytes == nil else { throw .outOfOrder }
            content.remainingBytes = bodyBytes
            content.isTooLarge = bodyBytes > UInt64(Self.incomingBodyLimitBytes)
            content.tag = messageID.flatMap { UInt64($0) }
            content.headers = headers
            self.content = content
            return finish()
        case .body(let fragment):
            guard let remaining = content?.remainingBytes, UInt64(fragment.count) <= remaining else {
                throw .outOfOrder
            }
            content?.remainingBytes = remaining - UInt64(fragment.count)
            if content?.isTooLarge == false { content?.body += fragment }
            return finish()
        }
    }

    private mutating func begin(_ kind: Content.Kind) throws(Failure) -> BrokerEvent? {
        guard content == nil else { throw .outOfOrder }
        content = Content(kind: kind)
        return nil
    }

    private mutating func finish() -> BrokerEvent? {
        guard let content, content.remainingBytes == 0 else { return nil }
        self.content = nil
        switch content.kind {
        case .returned: return .returned(tag: content.tag)
        case .delivered(let consumer, let tag, let redelivered):
            return .delivered(
                consumer: consumer, tag: tag, redelivered: redelivered, body: content.isTooLarge ? nil : content.body,
                headers: content.headers)
        }
    }
}
