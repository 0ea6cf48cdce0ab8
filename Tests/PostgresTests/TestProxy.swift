import Foundation
import Glibc
import Synchronization

/// A TCP proxy to the real server that a test can freeze (a black hole: connections stay open, nothing passes),
/// or cut (every connection breaks, and new ones are refused while it is cut).
final class TestProxy: Sendable {
    enum Mode { case forwarding, frozen, cut }

    private struct State {
        var mode = Mode.forwarding
        var sockets: Set<Int32> = []
        var isClosed = false
    }

    private let state = Mutex(State())
    private let listener: Int32
    private let target: (host: String, port: String)
    let port: UInt16

    struct Failure: Error {}

    /// - Parameter url: of the server, with host and port.
    init(to url: String) throws {
        guard let parts = URLComponents(string: url), let host = parts.host, !host.isEmpty else { throw Failure() }
        target = (host, String(parts.port ?? 5432))
        let listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_addr.s_addr = in_addr_t(0x7f00_0001).bigEndian
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        let bound = withUnsafeMutablePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
                bind(listener, address, length) == 0 && listen(listener, 64) == 0
                    && getsockname(listener, address, &length) == 0
            }
        }
        self.listener = listener
        port = UInt16(bigEndian: address.sin_port)
        guard bound else { throw Failure() }
        Thread.detachNewThread { [self] in
            while true {
                let client = accept(listener, nil, nil)
                if client < 0 { return }
                Thread.detachNewThread { self.serve(client) }
            }
        }
    }

    /// The URL of the same database through the proxy.
    func url(_ url: String) -> String {
        var parts = URLComponents(string: url)
        parts?.host = "127.0.0.1"
        parts?.port = Int(port)
        return parts?.string ?? url
    }

    func set(_ mode: Mode) {
        let sockets = state.withLock { state in
            state.mode = mode
            return mode == .cut ? state.sockets : []
        }
        for socket in sockets { shutdown(socket, Int32(SHUT_RDWR)) }
    }

    func end() {
        state.withLock { $0.isClosed = true }
        set(.cut)
        shutdown(listener, Int32(SHUT_RDWR))
        close(listener)
    }

    private func serve(_ client: Int32) {
        guard state.withLock({ $0.mode }) != .cut, let server = connectToTarget() else {
            close(client)
            return
        }
        state.withLock { $0.sockets.formUnion([client, server]) }
        let done = DispatchGroup()
        for (from, to) in [(client, server), (server, client)] {
            done.enter()
            Thread.detachNewThread {
                self.pump(from, to)
                shutdown(from, Int32(SHUT_RDWR))
                shutdown(to, Int32(SHUT_RDWR))
                done.leave()
            }
        }
        done.wait()
        state.withLock { $0.sockets.subtract([client, server]) }
        close(client)
        close(server)
    }

    private func pump(_ from: Int32, _ to: Int32) {
        var buffer = [UInt8](repeating: 0, count: 65_536)
        while true {
            let length = read(from, &buffer, buffer.count)
            // What arrived while frozen stays here.
            while state.withLock({ $0.mode == .frozen && !$0.isClosed }) { usleep(10_000) }
            guard length > 0 else { return }
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

    private func connectToTarget() -> Int32? {
        var hints = addrinfo()
        hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
        var found: UnsafeMutablePointer<addrinfo>?
        guard getaddrinfo(target.host, target.port, &hints, &found) == 0 else { return nil }
        defer { freeaddrinfo(found) }
        var next = found
        while let info = next?.pointee {
            let server = socket(info.ai_family, info.ai_socktype, info.ai_protocol)
            if connect(server, info.ai_addr, info.ai_addrlen) == 0 { return server }
            close(server)
            next = info.ai_next
        }
        return nil
    }
}
