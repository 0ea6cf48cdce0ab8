import BlockingIO
import CRabbitMQ
import Glibc

/// One AMQP connection with one channel, over librabbitmq 0.11. Only this file, `BrokerHandshake`, `Arena` and
/// `LibRabbitMQVersion` call the C library.
///
/// Not Sendable: the connection lives in an actor pinned to one thread, as librabbitmq demands ("threads must not share
/// a connection", README of rabbitmq-c). All calls may block, each within a limit: the library's own time-outs where it
/// has them, and `Cutoff` around everything, because 0.11 waits without limit when the broker stalls (rabbitmq-c issue
/// 780). After the first error the owner may only call `close()`.
@safe final class BrokerConnection {
    private static let channel: amqp_channel_t = 1
    /// Unacknowledged bytes end a connection after this time (tcp(7)); the kernel's default is about 15 min.
    private static let tcpUserTimeoutMilliseconds: Int32 = 10_000
    /// The time-out of an orderly close.
    private static let closeLimit: Duration = .seconds(1)
    /// Ignores SIGPIPE: a write to a closed socket must be an error, not the end of the process. librabbitmq sends with
    /// MSG_NOSIGNAL, OpenSSL's own writes do not.
    private static let ignoreBrokenPipes: Void = { _ = signal(SIGPIPE, SIG_IGN) }()

    private enum Reply {
        case done
        /// The broker closed the channel or the connection with this AMQP reply code.
        case refused(code: Int)
    }

    /// A duplicate of the library's socket, which only this class closes. The library closes its own socket after a
    /// time-out; without the duplicate, this class might poll or shut down a number that belongs to another file by
    /// then.
    private(set) var socket: Int32 = -1
    private let configuration: BrokerConfiguration
    private let cutoff = Cutoff()
    /// Made by amqp_new_connection, freed once by amqp_destroy_connection in `close` (amqp.h).
    private var state: amqp_connection_state_t?
    /// Whether the stream is still in order, so that the broker would understand an orderly close.
    private var isInOrder = false
    private var dispatcher = FrameDispatcher()
    /// False if the broker does not let this user declare queues, or the configuration forbids it. Then queues are only
    /// checked.
    private(set) var mayDeclare: Bool

    /// Connects to the first node that answers. Each call tries the nodes in a random order: so processes spread over
    /// the nodes, and a process that lost a node that accepts connections but does no more does not return to that node
    /// each time. For each node that does not answer, the call blocks as long as `init` does.
    static func toAnyNode(of configuration: BrokerConfiguration) throws(RabbitMQError) -> BrokerConnection {
        var failure = RabbitMQError.unreachable
        for node in configuration.nodes.shuffled() {
            do throws(RabbitMQError) {
                return try BrokerConnection(configuration, node)
            } catch {
                // A misconfiguration, which a person has to mend, is reported rather than another node that is away.
                if !failure.isMisconfiguration { failure = error }
            }
        }
        throw failure
    }

    /// Connects, logs in and opens the channel. Blocks up to the sum of the connect, handshake and RPC time-outs, and
    /// for the name lookup, on which we have no limit (getaddrinfo(3)).
    private init(
        _ configuration: BrokerConfiguration, _ node: BrokerConfiguration.Node
    ) throws(RabbitMQError) {
        _ = Self.ignoreBrokenPipes
        self.configuration = configuration
        mayDeclare = configuration.declaresQueues
        do {
            try open(node)
        } catch {
            close()
            throw error
        }
    }

    deinit { close() }

    // MARK: Life

    private func open(_ node: BrokerConfiguration.Node) throws(RabbitMQError) {
        // amqp.h, amqp_new_connection: NULL if out of memory.
        guard let state = unsafe amqp_new_connection() else { throw .unreachable }
        unsafe self.state = state
        let handshake = BrokerHandshake(configuration, node)
        let librarySocket = try unsafe handshake.connect(state)
        socket = fcntl(librarySocket, F_DUPFD_CLOEXEC, 0)
        guard socket >= 0 else { throw .outOfDescriptors }
        cutoff.opened(socket)
        setOption(SOL_SOCKET, SO_KEEPALIVE, 1)
        setOption(Int32(IPPROTO_TCP), TCP_USER_TIMEOUT, Self.tcpUserTimeoutMilliseconds)
        try unsafe handshake.login(state, cutoff)
        isInOrder = true
        try channelOpen()
    }

    private func setOption(_ level: Int32, _ name: Int32, _ value: Int32) {
        var value = value
        // setsockopt(2): copies the value. An option that the system does not know does not prevent the connection.
        _ = unsafe setsockopt(socket, level, name, &value, socklen_t(MemoryLayout<Int32>.size))
    }

    private func channelOpen() throws(RabbitMQError) {
        let reply = try unsafe ask { state in
            // amqp_framing.h, amqp_channel_open: NULL on failure, details by amqp_get_rpc_reply.
            _ = unsafe amqp_channel_open(state, Self.channel)
        }
        guard case .done = reply else { throw .unreachable }
    }

    /// Closes in order if the broker would understand that, and frees everything. May be called again.
    ///
    /// - Parameter isSilent: the broker does not answer any more; an orderly close would take its whole limit of 1 s.
    func close(isSilent: Bool = false) {
        guard let state = unsafe state else { return }
        if isInOrder, !isSilent, !cutoff.hasFired {
            var limit = Self.closeLimit.timeval
            cutoff.limited(to: Self.closeLimit * 3) {
                // amqp.h, amqp_connection_close: a question like any other, within the RPC time-out.
                unsafe amqp_set_rpc_timeout(state, &limit)
                _ = unsafe amqp_connection_close(state, AMQP_REPLY_SUCCESS)
            }
        }
        isInOrder = false
        cutoff.closed()
        // amqp.h, amqp_destroy_connection: frees the state and closes its socket; not used again.
        _ = unsafe amqp_destroy_connection(state)
        unsafe self.state = nil
        if socket >= 0 { _ = Glibc.close(socket) }
        socket = -1
    }

    // MARK: Questions

    /// Declares the queues. If the broker does not let this user do so (403), a user with more rights has declared
    /// them: then this call checks that the queues exist, and later calls only check as well. Call it first on a
    /// connection: the refusal ends the channel and everything on it.
    func establish(_ topology: Topology) throws(RabbitMQError) {
        do {
            for queue in topology.queues { try declare(queue) }
        } catch .accessRefused where mayDeclare {
            mayDeclare = false
            try channelOpen()
            for queue in topology.queues { try declare(queue) }
        }
    }

    /// Declares a queue and returns how many messages are ready in it. Harmless if the queue exists with these
    /// arguments.
    @discardableResult
    func declare(_ queue: QueueDeclaration) throws(RabbitMQError) -> Int {
        try counts(of: queue).messages
    }

    /// The numbers of ready messages and of consumers of a queue. Declares the queue if this user may, so that it
    /// exists afterwards.
    func counts(of queue: QueueDeclaration) throws(RabbitMQError) -> (messages: Int, consumers: Int) {
        try declare(queue.name, arguments: queue.arguments, passive: !mayDeclare)
    }

    /// The same for a queue that may be missing. If it is missing the broker closes the channel, and the caller must
    /// close the connection.
    func counts(ofMissable queue: String) throws(RabbitMQError) -> (messages: Int, consumers: Int) {
        try declare(queue, arguments: [], passive: true)
    }

    private func declare(
        _ queue: String, arguments: [(key: String, value: QueueDeclaration.Argument)], passive: Bool
    ) throws(RabbitMQError) -> (messages: Int, consumers: Int) {
        var counts = (messages: 0, consumers: 0)
        let reply = try unsafe withArena { arena throws(RabbitMQError) in
            let table = unsafe arena.table(
                arguments.map { argument in
                    switch argument.value {
                    case .text(let text): unsafe (argument.key, .text(text))
                    case .number(let number): unsafe (argument.key, .number(number))
                    }
                })
            let name = unsafe arena.bytes(queue)
            return try unsafe ask { state in
                // amqp_framing.h, amqp_queue_declare: the answer lives in the channel's pool until it is released.
                let answer = unsafe amqp_queue_declare(state, Self.channel, name, passive ? 1 : 0, 1, 0, 0, table)
                if let answer = unsafe answer {
                    counts = unsafe (Int(answer.pointee.message_count), Int(answer.pointee.consumer_count))
                }
            }
        }
        switch reply {
        case .done: return counts
        // 404 not found, 405 locked by another connection, 406 other arguments (AMQP 0-9-1, queue.declare).
        case .refused(code: 404), .refused(code: 405), .refused(code: 406): throw .topology(queue: queue)
        case .refused(code: 403): throw .accessRefused
        case .refused: throw .lost
        }
    }

    /// Turns on confirms; publishes count from 1.
    func selectConfirms() throws(RabbitMQError) {
        let reply = try unsafe ask { state in
            // amqp_framing.h, amqp_confirm_select.
            _ = unsafe amqp_confirm_select(state, Self.channel)
        }
        guard case .done = reply else { throw .lost }
    }

    /// Starts a consumer. `prefetch` counts for this consumer alone: RabbitMQ applies basic.qos with global = false
    /// to the consumers made after it (https://www.rabbitmq.com/docs/consumer-prefetch).
    func consume(_ queue: String, as consumer: String, prefetch: UInt16) throws(RabbitMQError) {
        let reply = try unsafe withArena { arena throws(RabbitMQError) in
            let name = unsafe arena.bytes(queue)
            let tag = unsafe arena.bytes(consumer)
            let limited = try unsafe ask { state in
                // amqp_framing.h, amqp_basic_qos.
                _ = unsafe amqp_basic_qos(state, Self.channel, 0, prefetch, 0)
            }
            guard case .done = limited else { return limited }
            return try unsafe ask { state in
                // amqp_framing.h, amqp_basic_consume: the bytes are read during the call.
                _ = unsafe amqp_basic_consume(state, Self.channel, name, tag, 0, 0, 0, amqp_empty_table)
            }
        }
        switch reply {
        case .done: return
        case .refused(code: 404), .refused(code: 405): throw .topology(queue: queue)
        case .refused(code: 403): throw .accessRefused
        case .refused: throw .lost
        }
    }

    /// Ends a consumer. `receive` still returns the deliveries that the broker sent before, and they can still be
    /// settled.
    func cancel(_ consumer: String) throws(RabbitMQError) {
        let reply = try unsafe withArena { arena throws(RabbitMQError) in
            let tag = unsafe arena.bytes(consumer)
            return try unsafe ask { state in
                // amqp_framing.h, amqp_basic_cancel: the bytes are read during the call.
                _ = unsafe amqp_basic_cancel(state, Self.channel, tag)
            }
        }
        guard case .done = reply else { throw .lost }
    }

    /// Sends a question and waits for its answer. Other frames that arrive meanwhile are kept by the library for
    /// `receive`.
    private func ask(_ question: (amqp_connection_state_t) -> Void) throws(RabbitMQError) -> Reply {
        guard let state = unsafe state else { throw .lost }
        let limit = configuration.rpcTimeout + configuration.stallDeadline
        cutoff.limited(to: limit) { unsafe question(state) }
        // amqp.h, amqp_get_rpc_reply: valid right after a question.
        let reply = unsafe amqp_get_rpc_reply(state)
        switch unsafe reply.reply_type {
        case AMQP_RESPONSE_NORMAL:
            // amqp.h, amqp_maybe_release_buffers: keeps what a queued frame still needs.
            unsafe amqp_maybe_release_buffers(state)
            return .done
        case AMQP_RESPONSE_SERVER_EXCEPTION:
            let code = unsafe Self.closeCode(reply.reply)
            unsafe answerClose(reply.reply.id)
            return .refused(code: code)
        default:
            throw unsafe broken(reply.library_error)
        }
    }

    // MARK: Statements

    /// Sends one persistent, mandatory message to a queue. The tag travels as the message id, because basic.return
    /// carries no number. The broker answers with the confirm alone.
    func publish(
        _ body: String, to queue: String, tag: UInt64, traceparent: String? = nil
    ) throws(RabbitMQError) {
        guard let state = unsafe state else { throw .lost }
        var (body, queue, identifier) = (body, queue, String(tag))
        let status = body.withUTF8 { body in
            queue.withUTF8 { queue in
                identifier.withUTF8 { identifier in
                    var properties = unsafe amqp_basic_properties_t()
                    unsafe properties._flags =
                        amqp_flags_t(AMQP_BASIC_DELIVERY_MODE_FLAG) | amqp_flags_t(AMQP_BASIC_MESSAGE_ID_FLAG)
                    unsafe properties.delivery_mode = UInt8(AMQP_DELIVERY_PERSISTENT.rawValue)
                    unsafe properties.message_id = amqp_bytes_t(identifier)
                    // amqp.h, amqp_basic_publish: all bytes are copied into the send buffer during the call.
                    return unsafe Self.withHeaders(traceparent, &properties) { properties in
                        unsafe amqp_basic_publish(
                            state, Self.channel, amqp_empty_bytes, amqp_bytes_t(queue), 1, 0, &properties,
                            amqp_bytes_t(body))
                    }
                }
            }
        }
        guard status == AMQP_STATUS_OK.rawValue else { throw broken(status) }
    }

    /// Calls `body` with the headers, which live as long as the call. Without a trace there are no headers.
    private static func withHeaders(
        _ traceparent: String?, _ properties: inout amqp_basic_properties_t,
        _ body: (inout amqp_basic_properties_t) -> Int32
    ) -> Int32 {
        guard var traceparent else { return unsafe body(&properties) }
        return traceparent.withUTF8 { value in
            MessageHeaders.traceparentName.withUTF8Buffer { name in
                var entry = unsafe amqp_table_entry_t()
                unsafe entry.key = amqp_bytes_t(name)
                // amqp.h, amqp_field_value_t: the kind says which member of the union is set.
                unsafe entry.value.kind = UInt8(AMQP_FIELD_KIND_UTF8.rawValue)
                unsafe entry.value.value.bytes = amqp_bytes_t(value)
                return unsafe withUnsafeMutablePointer(to: &entry) { entries in
                    unsafe properties._flags |= amqp_flags_t(AMQP_BASIC_HEADERS_FLAG)
                    unsafe properties.headers = amqp_table_t(num_entries: 1, entries: entries)
                    return unsafe body(&properties)
                }
            }
        }
    }

    /// Sends the messages of `body` in full segments instead of one segment per message, so that the broker reads once
    /// instead of many times. Must not be nested.
    func gathered(_ body: () throws(RabbitMQError) -> Void) throws(RabbitMQError) {
        // tcp(7), TCP_CORK: nothing but full segments leaves until it is cleared, for at most 200 ms.
        setOption(Int32(IPPROTO_TCP), TCP_CORK, 1)
        defer { setOption(Int32(IPPROTO_TCP), TCP_CORK, 0) }
        try body()
    }

    func acknowledge(_ tag: UInt64, multiple: Bool) throws(RabbitMQError) {
        guard let state = unsafe state else { throw .lost }
        // amqp.h, amqp_basic_ack: 0 or a negative status.
        let status = unsafe amqp_basic_ack(state, Self.channel, tag, multiple ? 1 : 0)
        guard status == AMQP_STATUS_OK.rawValue else { throw broken(status) }
    }

    /// Rejects a message without requeueing it: the broker dead-letters it.
    func reject(_ tag: UInt64) throws(RabbitMQError) {
        guard let state = unsafe state else { throw .lost }
        // amqp.h, amqp_basic_reject: 0 or a negative status.
        let status = unsafe amqp_basic_reject(state, Self.channel, tag, 0)
        guard status == AMQP_STATUS_OK.rawValue else { throw broken(status) }
    }

    /// Runs statements and `receive` within one limit. Must not be nested, and not be put around questions.
    func limited(to limit: Duration, _ body: () throws(RabbitMQError) -> Void) throws(RabbitMQError) {
        let result = cutoff.limited(to: limit) { () -> Result<Void, RabbitMQError> in
            do throws(RabbitMQError) { return .success(try body()) } catch { return .failure(error) }
        }
        try result.get()
    }

    // MARK: Listening

    /// The next event; nil if the library's buffer and the socket are empty. Only then may the thread sleep, for
    /// poll(2) knows nothing of bytes that the library has read. Also sends and checks heartbeats.
    func receive() throws(RabbitMQError) -> BrokerEvent? {
        guard let state = unsafe state else { throw .lost }
        while true {
            var frame = unsafe amqp_frame_t()
            var noWait = timeval()
            // amqp.h, amqp_simple_wait_frame_noblock: the frame's memory is the pool's until it is released.
            let status = unsafe amqp_simple_wait_frame_noblock(state, &frame, &noWait)
            if status == AMQP_STATUS_TIMEOUT.rawValue { return nil }
            guard status == AMQP_STATUS_OK.rawValue else { throw broken(status) }
            let event = try unsafe take(frame)
            // amqp.h, amqp_maybe_release_buffers: everything was copied out by `take`.
            unsafe amqp_maybe_release_buffers(state)
            if let event { return event }
        }
    }

    private func take(_ frame: amqp_frame_t) throws(RabbitMQError) -> BrokerEvent? {
        guard let copy = unsafe Self.copy(frame) else { return nil }
        do {
            return try dispatcher.take(copy)
        } catch {
            switch error {
            case .closed:
                let code = unsafe Self.closeCode(frame.payload.method)
                unsafe answerClose(frame.payload.method.id)
                // A publish that is not permitted ends the channel (AMQP 0-9-1, reply code 403).
                throw code == 403 ? .accessRefused : .lost
            case .outOfOrder: throw violated()
            }
        }
    }

    /// The frame as a value; nil for a heartbeat.
    private static func copy(_ frame: amqp_frame_t) -> FrameDispatcher.Frame? {
        // amqp.h, amqp_frame_t: the frame type says which member of the union is set.
        switch unsafe Int32(frame.frame_type) {
        case AMQP_FRAME_METHOD: return unsafe copy(frame.payload.method)
        case AMQP_FRAME_HEADER:
            var (messageID, headers): (String?, MessageHeaders?) = (nil, nil)
            // amqp.h: `decoded` points to the properties of the header's class; ours is basic.
            if unsafe frame.payload.properties.class_id == UInt16(AMQP_BASIC_CLASS),
                let decoded = unsafe frame.payload.properties.decoded
            {
                let properties = unsafe decoded.assumingMemoryBound(to: amqp_basic_properties_t.self).pointee
                if unsafe properties._flags & amqp_flags_t(AMQP_BASIC_MESSAGE_ID_FLAG) != 0 {
                    messageID = unsafe String(properties.message_id)
                }
                if unsafe properties._flags & amqp_flags_t(AMQP_BASIC_HEADERS_FLAG) != 0 {
                    headers = unsafe MessageHeaders(properties.headers)
                }
            }
            return unsafe .header(
                bodyBytes: frame.payload.properties.body_size, messageID: messageID, headers: headers)
        case AMQP_FRAME_BODY:
            // amqp.h, amqp_bytes_t: `len` bytes at `bytes`.
            let fragment = unsafe UnsafeRawBufferPointer(
                start: frame.payload.body_fragment.bytes, count: frame.payload.body_fragment.len)
            return unsafe .body([UInt8](fragment))
        default: return nil
        }
    }

    private static func copy(_ method: amqp_method_t) -> FrameDispatcher.Frame {
        // amqp.h, amqp_method_t: `decoded` points to the struct that belongs to the id.
        switch unsafe method.id {
        case AMQP_BASIC_ACK_METHOD:
            let ack = unsafe method.decoded.assumingMemoryBound(to: amqp_basic_ack_t.self).pointee
            return unsafe .ack(tag: ack.delivery_tag, multiple: ack.multiple != 0)
        case AMQP_BASIC_NACK_METHOD:
            let nack = unsafe method.decoded.assumingMemoryBound(to: amqp_basic_nack_t.self).pointee
            return unsafe .nack(tag: nack.delivery_tag, multiple: nack.multiple != 0)
        case AMQP_BASIC_RETURN_METHOD: return .giveBack
        case AMQP_BASIC_DELIVER_METHOD:
            let delivery = unsafe method.decoded.assumingMemoryBound(to: amqp_basic_deliver_t.self).pointee
            return unsafe .deliver(
                consumer: String(delivery.consumer_tag), tag: delivery.delivery_tag,
                redelivered: delivery.redelivered != 0)
        case AMQP_BASIC_CANCEL_METHOD:
            let cancel = unsafe method.decoded.assumingMemoryBound(to: amqp_basic_cancel_t.self).pointee
            return unsafe .cancel(consumer: String(cancel.consumer_tag))
        case AMQP_CONNECTION_BLOCKED_METHOD: return .block
        case AMQP_CONNECTION_UNBLOCKED_METHOD: return .unblock
        case AMQP_CHANNEL_CLOSE_METHOD, AMQP_CONNECTION_CLOSE_METHOD: return .close
        default: return .unknown
        }
    }

    // MARK: Ends

    private func answerClose(_ method: amqp_method_number_t) {
        guard let state = unsafe state else { return }
        if method == AMQP_CHANNEL_CLOSE_METHOD {
            var answer = amqp_channel_close_ok_t()
            // amqp.h, amqp_send_method: encodes the struct that belongs to the id during the call.
            let status = unsafe amqp_send_method(state, Self.channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &answer)
            isInOrder = isInOrder && status == AMQP_STATUS_OK.rawValue
        } else {
            var answer = amqp_connection_close_ok_t()
            // As above, on channel 0 (AMQP 0-9-1, connection.close-ok).
            _ = unsafe amqp_send_method(state, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &answer)
            isInOrder = false
        }
    }

    /// The library failed: its state must not be used again (amqp.h, amqp_rpc_reply_t).
    private func broken(_ status: Int32) -> RabbitMQError {
        isInOrder = false
        return switch status {
        case AMQP_STATUS_BAD_AMQP_DATA.rawValue, AMQP_STATUS_UNKNOWN_CLASS.rawValue,
            AMQP_STATUS_UNKNOWN_METHOD.rawValue, AMQP_STATUS_WRONG_METHOD.rawValue:
            .protocolViolation
        default: .lost
        }
    }

    private func violated() -> RabbitMQError {
        isInOrder = false
        return .protocolViolation
    }

    /// The AMQP reply code of a connection.close or channel.close; 0 for every other method.
    static func closeCode(_ method: amqp_method_t) -> Int {
        // amqp.h, amqp_method_t: `decoded` points to the struct that belongs to the id.
        switch unsafe method.id {
        case AMQP_CHANNEL_CLOSE_METHOD:
            unsafe Int(method.decoded.assumingMemoryBound(to: amqp_channel_close_t.self).pointee.reply_code)
        case AMQP_CONNECTION_CLOSE_METHOD:
            unsafe Int(method.decoded.assumingMemoryBound(to: amqp_connection_close_t.self).pointee.reply_code)
        default: 0
        }
    }
}
