import Foundation
import Glibc
import Synchronization

/// A TCP proxy between the processes and a server, which a test can cut at an exact place.
///
/// Cut: every connection breaks and new ones are refused. Frozen: connections stay open and nothing passes. A trap
/// waits for bytes from a client and breaks that connection before the server got them, or after the server did what
/// they ask and before its answer passes: for the client the outcome is unknown.
final class FaultProxy: Sendable {
    enum Mode { case forwarding, frozen, cut }
    enum Moment { case beforeRequest, beforeAnswer }

    private struct State {
        var mode = Mode.forwarding
        var sockets: Set<Int32> = []
        var trap: (bytes: [UInt8], moment: Moment)?
        var sprung = 0
    }

    /// One client's connection.
    private final class Link: Sendable {
        let client: Int32
        let server: Int32
        let isDoomed = Atomic<Bool>(false)

        init(client: Int32, server: Int32) {
            self.client = client
            self.server = server
        }
    }

    struct Failure: Error {}

    private let state = Mutex(State())
    private let listener: Int32
    private let target: (host: String, port: String)
    private let port: UInt16

    /// - Parameter url: of the server, with host and port.
    init(to url: String) throws {
        guard let parts = URLComponents(string: url), let host = parts.host, let port = parts.port else {
            throw Failure()
        }
        target = (host, String(port))
        let listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue) | Int32(SOCK_CLOEXEC.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_addr.s_addr = in_addr_t(0x7f00_0001).bigEndian
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        let isBound = withUnsafeMutablePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
                bind(listener, address, length) == 0 && listen(listener, 64) == 0
                    && getsockname(listener, address, &length) == 0
            }
        }
        self.listener = listener
        self.port = UInt16(bigEndian: address.sin_port)
        guard isBound else { throw Failure() }
        Thread.detachNewThread { [self] in
            while true {
                let client = accept(listener, nil, nil)
                if client < 0 { return }
                _ = fcntl(client, F_SETFD, FD_CLOEXEC)
                Thread.detachNewThread { self.serve(client) }
            }
        }
    }

    /// The same address through the proxy.
    func url(_ url: String) -> String {
        guard var parts = URLComponents(string: url) else { return url }
        parts.host = "127.0.0.1"
        parts.port = Int(port)
        return parts.string ?? url
    }

    func set(_ mode: Mode) {
        let sockets = state.withLock { state in
            state.mode = mode
            return mode == .cut ? state.sockets : []
        }
        for socket in sockets { shutdown(socket, Int32(SHUT_RDWR)) }
    }

    /// Breaks one connection: the first that sends these bytes from now on.
    func trap(_ bytes: [UInt8], _ moment: Moment) {
        state.withLock { $0.trap = (bytes, moment) }
    }

    /// How many connections a trap has broken.
    var sprung: Int { state.withLock { $0.sprung } }

    func end() {
        set(.cut)
        shutdown(listener, Int32(SHUT_RDWR))
        close(listener)
    }

    private func serve(_ client: Int32) {
        guard state.withLock({ $0.mode }) != .cut, let server = connectToTarget() else {
            close(client)
            return
        }
        let isLate = state.withLock { state in
            state.sockets.formUnion([client, server])
            return state.mode == .cut
        }
        let link = Link(client: client, server: server)
        if isLate { shutdown(client, Int32(SHUT_RDWR)) }
        let done = DispatchGroup()
        for isRequest in [true, false] {
            done.enter()
            Thread.detachNewThread {
                self.pump(link, isRequest: isRequest)
                shutdown(client, Int32(SHUT_RDWR))
                shutdown(server, Int32(SHUT_RDWR))
                done.leave()
            }
        }
        done.wait()
        state.withLock { $0.sockets.subtract([client, server]) }
        close(client)
        close(server)
    }

    private func pump(_ link: Link, isRequest: Bool) {
        let (from, to) = isRequest ? (link.client, link.server) : (link.server, link.client)
        var buffer = [UInt8](repeating: 0, count: 65_536)
        var tail: [UInt8] = []
        while true {
            let length = read(from, &buffer, buffer.count)
            while state.withLock({ $0.mode == .frozen }) { usleep(10_000) }
            guard length > 0 else { return }
            if isRequest {
                let moment = springs(tail + buffer[..<length])
                if moment == .beforeRequest { return }
                if moment == .beforeAnswer { link.isDoomed.store(true, ordering: .sequentiallyConsistent) }
                // The bytes may lie across two reads.
                tail = Array((tail + buffer[..<length]).suffix(255))
            } else if link.isDoomed.load(ordering: .sequentiallyConsistent) {
                return
            }
            var sent = 0
            while sent < length {
                let count = buffer[sent..<length].withUnsafeBytes {
                    send(to, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL))
                }
                guard count > 0 else { return }
                sent += count
            }
        }
    }

    private func springs(_ bytes: [UInt8]) -> Moment? {
        state.withLock { state in
            guard let trap = state.trap, Data(bytes).range(of: Data(trap.bytes)) != nil else { return nil }
            state.trap = nil
            state.sprung += 1
            return trap.moment
        }
    }

    private func connectToTarget() -> Int32? {
        var hints = addrinfo()
        hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
        var found: UnsafeMutablePointer<addrinfo>?
        guard getaddrinfo(target.host, target.port, &hints, &found) == 0 else { return nil }
        defer { freeaddrinfo(found) }
        var next = found
        while let info = next?.pointee {
            let server = socket(info.ai_family, info.ai_socktype | Int32(SOCK_CLOEXEC.rawValue), info.ai_protocol)
            if connect(server, info.ai_addr, info.ai_addrlen) == 0 { return server }
            close(server)
            next = info.ai_next
        }
        return nil
    }
}
