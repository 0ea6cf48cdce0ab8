import Foundation
import Glibc
import Synchronization

/// A TCP proxy in front of the broker that misbehaves on command. Two threads per connection; ended by `stop`.
final class FaultProxy: Sendable {
    enum Behaviour: Sendable, Equatable {
        case pass
        /// Connections stand, and new ones are accepted, but no byte moves in either direction.
        case blackHole
        /// Every byte is a write of its own.
        case slice
        /// New connections are closed at once.
        case refuse
    }

    private struct Address {
        let host: String
        let port: Int
    }

    private final class Link: Sendable {
        let client: Int32
        let server: Int32
        private let openEnds = Atomic(2)
        private let isDead = Atomic(false)

        init(client: Int32, server: Int32) {
            self.client = client
            self.server = server
        }

        var isAlive: Bool { !isDead.load(ordering: .acquiring) }

        /// Both pumps end and close; with `reset` the peers see RST instead of FIN.
        func end(reset: Bool) {
            if reset {
                var option = linger(l_onoff: 1, l_linger: 0)
                for end in [client, server] {
                    setsockopt(end, SOL_SOCKET, SO_LINGER, &option, socklen_t(MemoryLayout<linger>.size))
                }
            }
            isDead.store(true, ordering: .releasing)
        }

        /// Called once by each pump; the second closes both ends.
        func release() {
            if openEnds.subtract(1, ordering: .acquiringAndReleasing).newValue == 0 {
                close(client)
                close(server)
            }
        }
    }

    private struct State {
        var behaviour = Behaviour.pass
        var links: [Link] = []
        var isStopped = false
        /// Put before the next bytes of the broker, or sent by itself.
        var injection: [UInt8] = []
    }

    let port: Int
    private let target: Address
    private let listener: Int32
    private let state = Mutex(State())

    /// - Parameter url: the broker's; `url(replacing:)` gives the one through the proxy.
    init(to url: String) throws {
        let components = URLComponents(string: url)
        target = Address(host: components?.host ?? "127.0.0.1", port: components?.port ?? 5672)
        let listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        let isBound = withUnsafeMutablePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { pointer in
                bind(listener, pointer, length) == 0 && listen(listener, 64) == 0
                    && getsockname(listener, pointer, &length) == 0
            }
        }
        guard isBound else { throw POSIXError(.EADDRINUSE) }
        self.listener = listener
        port = Int(UInt16(bigEndian: address.sin_port))
        Thread { [self] in accept() }.start()
    }

    func url(replacing url: String) -> String {
        var components = URLComponents(string: url)!
        components.host = "127.0.0.1"
        components.port = port
        return components.string!
    }

    var behaviour: Behaviour {
        get { state.withLock { $0.behaviour } }
        set { state.withLock { $0.behaviour = newValue } }
    }

    /// Cuts every connection.
    func cut(reset: Bool = true) {
        let links = state.withLock { state in
            let links = state.links
            state.links = []
            return links
        }
        for link in links { link.end(reset: reset) }
    }

    /// Sends bytes to the client as if the broker had. Only while no frame is on its way.
    func inject(_ bytes: [UInt8]) { state.withLock { $0.injection += bytes } }

    func stop() {
        state.withLock { $0.isStopped = true }
        cut()
    }

    private func accept() {
        while !state.withLock({ $0.isStopped }) {
            guard Self.isReadable(listener) else { continue }
            let client = Glibc.accept(listener, nil, nil)
            guard client >= 0 else { continue }
            guard behaviour != .refuse, let server = connect() else {
                close(client)
                continue
            }
            for end in [client, server] {
                var on: Int32 = 1
                setsockopt(end, Int32(IPPROTO_TCP), TCP_NODELAY, &on, socklen_t(MemoryLayout<Int32>.size))
            }
            let link = Link(client: client, server: server)
            state.withLock { $0.links.append(link) }
            Thread { [self] in pump(link, from: client, to: server, isFromBroker: false) }.start()
            Thread { [self] in pump(link, from: server, to: client, isFromBroker: true) }.start()
        }
        close(listener)
    }

    private func connect() -> Int32? {
        let server = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = UInt16(target.port).bigEndian
        address.sin_addr.s_addr = inet_addr(target.host == "localhost" ? "127.0.0.1" : target.host)
        let isConnected = withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                Glibc.connect(server, $0, socklen_t(MemoryLayout<sockaddr_in>.size)) == 0
            }
        }
        if isConnected { return server }
        close(server)
        return nil
    }

    private func pump(_ link: Link, from source: Int32, to sink: Int32, isFromBroker: Bool) {
        var buffer = [UInt8](repeating: 0, count: 16 << 10)
        while link.isAlive {
            let (behaviour, injection) = state.withLock { state in
                let injection = isFromBroker ? state.injection : []
                if isFromBroker { state.injection = [] }
                return (state.behaviour, injection)
            }
            if !injection.isEmpty { _ = injection.withUnsafeBytes { send(sink, $0.baseAddress, $0.count, noSignal) } }
            if behaviour == .blackHole {
                usleep(5_000)
                continue
            }
            // Asked again: it may have changed while we slept.
            guard Self.isReadable(source), self.behaviour != .blackHole else { continue }
            let count = recv(source, &buffer, buffer.count, 0)
            guard count > 0, write(buffer[..<count], to: sink, link, sliced: behaviour == .slice) else {
                link.end(reset: false)
                break
            }
        }
        link.release()
    }

    private func write(_ bytes: ArraySlice<UInt8>, to sink: Int32, _ link: Link, sliced: Bool) -> Bool {
        var rest = bytes
        while !rest.isEmpty {
            guard link.isAlive else { return false }
            let part = sliced ? rest.prefix(1) : rest
            let sent = part.withUnsafeBytes {
                send(sink, $0.baseAddress, $0.count, noSignal | Int32(MSG_DONTWAIT))
            }
            if sent > 0 {
                rest = rest.dropFirst(sent)
            } else if errno == EAGAIN {
                usleep(1_000)
            } else {
                return false
            }
        }
        return true
    }

    private let noSignal = Int32(MSG_NOSIGNAL)

    private static func isReadable(_ descriptor: Int32) -> Bool {
        var entry = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
        return poll(&entry, 1, 20) > 0
    }
}
