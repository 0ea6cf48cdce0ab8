import CRabbitMQ
import Glibc
import Synchronization

/// The real RabbitMQ of the tests, with unique queue names that are deleted at the end, and with operations that only
/// tests need.
///
/// The address comes from `MAKEGOOD_AMQP_URL`; without it `run` throws, so the test fails and is never skipped.
/// Isolation is by queue name, because a vhost needs administrator rights. It uses librabbitmq directly on purpose: the
/// tests of the module `RabbitMQ` must not use that module to look at the broker. Calls block for a few milliseconds.
package final class TestBroker: Sendable {
    package struct Missing: Error, CustomStringConvertible {
        package let description: String
    }

    /// The broker refused, or could not be reached.
    package struct Failure: Error {
        package let step: String
    }

    package let url: String
    private let prefix: String
    private let names = Mutex<Set<String>>([])

    private init(url: String) {
        self.url = url
        prefix = "test-" + String(UInt64.random(in: 0 ... .max), radix: 36)
    }

    /// Lends a broker with fresh names to `body` and deletes its queues afterwards, also after a failure.
    package static func run<Result>(_ body: (TestBroker) async throws -> Result) async throws -> Result {
        guard let url = unsafe getenv("MAKEGOOD_AMQP_URL").map({ unsafe String(cString: $0) }), !url.isEmpty else {
            throw Missing(
                description: "MAKEGOOD_AMQP_URL is not set: these tests need a real RabbitMQ (deploy/local env)")
        }
        let broker = TestBroker(url: url)
        do {
            let result = try await body(broker)
            try broker.deleteAll()
            return result
        } catch {
            try? broker.deleteAll()
            throw error
        }
    }

    /// The name of a queue: the same for the same word within one test, another one in every other test.
    package func queue(_ word: String) -> String {
        let name = "\(prefix).\(word)"
        names.withLock { _ = $0.insert(name) }
        return name
    }

    /// Deletes a queue and what is in it, through a connection of its own.
    package func delete(_ queue: String) throws {
        try withChannel { state in
            unsafe Self.withBytes(queue) { name in
                _ = unsafe amqp_queue_delete(state, 1, name, 0, 0)
            }
            try unsafe Self.check(amqp_get_rpc_reply(state), "queue.delete")
        }
    }

    /// Deletes every ready message of a queue; returns how many.
    package func purge(_ queue: String) throws -> Int {
        var count = 0
        try withChannel { state in
            unsafe Self.withBytes(queue) { name in
                // amqp_framing.h, amqp_queue_purge: the answer lives in the channel's pool until it is released.
                let answer = unsafe amqp_queue_purge(state, 1, name)
                if let answer = unsafe answer { count = unsafe Int(answer.pointee.message_count) }
            }
            try unsafe Self.check(amqp_get_rpc_reply(state), "queue.purge")
        }
        return count
    }

    /// Publishes any bytes, without waiting for a confirm.
    package func publish(_ body: [UInt8], to queue: String) throws {
        try withChannel { state in
            let status = unsafe Self.withBytes(queue) { name in
                body.withUnsafeBytes { body in
                    let bytes = unsafe amqp_bytes_t(
                        len: body.count, bytes: UnsafeMutableRawPointer(mutating: body.baseAddress))
                    return unsafe amqp_basic_publish(state, 1, amqp_empty_bytes, name, 0, 0, nil, bytes)
                }
            }
            guard status == 0 else { throw Failure(step: "basic.publish") }
        }
    }

    private func deleteAll() throws {
        for name in names.withLock({ $0 }) { try delete(name) }
    }

    private func withChannel(_ body: (amqp_connection_state_t) throws -> Void) throws {
        var text = Array(url.utf8CString)
        try text.withUnsafeMutableBufferPointer { text in
            var info = unsafe amqp_connection_info()
            // amqp.h, amqp_parse_url: the parts point into the text, which it changes.
            guard unsafe amqp_parse_url(text.baseAddress, &info) == 0 else { throw Failure(step: "url") }
            guard let state = unsafe amqp_new_connection() else { throw Failure(step: "memory") }
            defer { _ = unsafe amqp_destroy_connection(state) }
            var limit = timeval(tv_sec: 10, tv_usec: 0)
            unsafe amqp_set_rpc_timeout(state, &limit)
            guard let socket = unsafe amqp_tcp_socket_new(state),
                unsafe amqp_socket_open_noblock(socket, info.host, info.port, &limit) == 0
            else { throw Failure(step: "connect") }
            var properties = unsafe amqp_empty_table
            try unsafe Self.check(
                makegood_amqp_login_plain(state, info.vhost, 0, 131_072, 0, &properties, info.user, info.password),
                "login")
            _ = unsafe amqp_channel_open(state, 1)
            try unsafe Self.check(amqp_get_rpc_reply(state), "channel.open")
            try unsafe body(state)
            // Closing the connection is ordered after everything before it: when the broker answers, it has read the
            // publish.
            _ = unsafe amqp_connection_close(state, 200)
        }
    }

    private static func check(_ reply: amqp_rpc_reply_t, _ step: String) throws {
        guard unsafe reply.reply_type == AMQP_RESPONSE_NORMAL else { throw Failure(step: step) }
    }

    private static func withBytes<Result>(_ string: String, _ body: (amqp_bytes_t) -> Result) -> Result {
        var string = string
        return string.withUTF8 { utf8 in
            unsafe body(amqp_bytes_t(len: utf8.count, bytes: UnsafeMutableRawPointer(mutating: utf8.baseAddress)))
        }
    }
}
